"""The options of every command that reads a spec."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from specc.artifact.index import is_package
from specc.cli.messages import remark
from specc.cli.standard_input import STDIN, spec_text
from specc.compiler.spec import Spec, open_spec
from specc.library.files import is_built_in, shadow_note

FORCE = "replace a file that specc did not write, too; never one that is read"
"""What `--force` says wherever something is written."""


def spec_arguments(parser: ArgumentParser, more: str = "") -> None:
    """SPEC, `--config`, `--set`, `--context`, `--graph`; `more` is what else SPEC may be."""
    parser.add_argument(
        "spec",
        metavar="SPEC",
        help="the name of a built-in spec (see `specc list specs`), a spec file, the "
        "folder of a checkpoint, whose config.json tells the spec, "
        f"{more}or - for the standard input",
    )
    parser.add_argument(
        "--spec",
        default="",
        metavar="FILE",
        dest="own",
        help="a spec of your own for the folder of a checkpoint",
    )
    parser.add_argument(
        "--config",
        default="",
        metavar="FILE|DIR",
        help="take config values from a model's config.json",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one config value, such as layers=2",
    )
    parser.add_argument(
        "--context",
        type=context,
        default=0,
        metavar="N",
        help="texts are up to N tokens long, where that decides how positions turn "
        "(dynamic and long rotary scaling)",
    )
    parser.add_argument(
        "--graph",
        default="",
        metavar="NAME",
        help="which graph, where a spec has several",
    )


def spec_of(arguments: Namespace, weights: str = "") -> Spec:
    """Open the spec these options name; `weights` is the checkpoint it is to be filled
    from.
    """
    print_shadow_note(arguments.spec)
    given = spec_text() if arguments.spec == STDIN else arguments.spec
    return open_spec(
        given,
        config=arguments.config,
        sets=arguments.set,
        weights=weights,
        own=arguments.own,
        longest=arguments.context,
    )


def print_shadow_note(spec: str) -> None:
    """Print a note where a file or directory has the name of the built-in spec."""
    if note := shadow_note(spec):
        remark(note)


def is_compiled(path: str) -> bool:
    """Return whether a MODEL or SPEC argument is a compiled model or a package."""
    return path.endswith(".onnx") or (is_package(path) and not is_built_in(path))


def seed(text: str) -> int:
    """A seed of the command line: a whole number of 64 bits."""
    return number(text, 0, 2**64 - 1, "a seed")


def context(text: str) -> int:
    """A length of texts."""
    return number(text, 1, 2**31 - 1, "a length of texts")


def rounds(text: str) -> int:
    """How often to try."""
    return number(text, 1, 1000, "a number of rounds")


def number(text: str, least: int, most: int, what: str) -> int:
    """A whole number within bounds; `what` says what it counts."""
    # digits of other scripts are digits to Python; of too many it refuses to make a number
    plain = text.isascii() and text.isdigit() and len(text) <= 20
    if not plain or not least <= int(text) <= most:
        raise ArgumentTypeError(f"{what} is a whole number from {least} to {most}")
    return int(text)
