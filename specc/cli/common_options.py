"""Options shared by commands: the spec and its config, quantization."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import fields

from specc.artifact.package_index import is_package_directory
from specc.cli.terminal import STDIN, print_note, read_spec_from_stdin
from specc.driver.quantize_section import CACHES, HEADS, MAX_SAMPLES, NONE, QuantizeOptions
from specc.driver.spec_loader import OpenedSpec, open_spec
from specc.library.spec_files import format_shadow_note, is_builtin_spec
from specc.transforms.quantization_plan import DEFAULT_GROUP_SIZE, QUANTIZATION_KINDS


def add_quantize_arguments(parser: ArgumentParser) -> None:
    """`--quantize` and what belongs to it."""
    parser.add_argument(
        "--quantize",
        default="",
        choices=[*QUANTIZATION_KINDS, NONE],
        help="weight quantization: int8 (W8A8, per-channel weight scales, dynamic per-token "
        "activation scales), int8-weights and int4 (weight-only, group-wise scales), "
        "int8-tensor (recurrent layers with per-tensor activation scales); none overrides "
        "the spec",
    )
    parser.add_argument(
        "--quantize-exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="do not quantize weights that match this name or scope: lm_head, layers.0.*",
    )
    parser.add_argument(
        "--group-size",
        type=int,
        metavar="N",
        help=f"group size of int4 and int8-weights (default {DEFAULT_GROUP_SIZE})",
    )
    parser.add_argument(
        "--lm-head-bits",
        default="",
        choices=HEADS,
        help="with int4: precision of the output projection (default: 8)",
    )
    parser.add_argument(
        "--quantize-all",
        action="store_true",
        default=None,
        help="with int4: 4 bits for small linear layers and the first attention too",
    )
    parser.add_argument(
        "--fold-norms",
        action="store_true",
        default=None,
        help="fold norm weights into the following linear layers before quantization, for "
        "models with outlier channels",
    )
    _by_inputs(parser)


def _by_inputs(parser: ArgumentParser) -> None:
    """By what numbers of 4 bits are rounded, and by whom."""
    parser.add_argument(
        "--calibration-samples",
        type=_samples,
        metavar="N",
        help="with int4 or --kv-cache: number of self-generated calibration sequences; "
        "0: round to nearest",
    )
    parser.add_argument(
        "--calibration-data",
        default="",
        metavar="FILE",
        help="with int4 or --kv-cache: calibration inputs, .npz or JSON Lines",
    )
    parser.add_argument(
        "--kv-cache",
        default="",
        choices=CACHES,
        help="with --graphs step: quantize the KV cache with scales from self-generated data "
        "or --calibration-data; none overrides the spec",
    )
    parser.add_argument(
        "--for-quantizers",
        action="store_true",
        help="with --target onnx: prepare the model for other quantization tools (no operators "
        "that they misinterpret)",
    )


def _samples(text: str) -> int:
    """How many texts a model writes to be rounded by."""
    return parse_bounded_int(text, 0, MAX_SAMPLES, "a number of texts")


def parse_quantize_options(given: Namespace) -> QuantizeOptions:
    """Return the quantization options of a command line."""
    values = {each.name: vars(given)[each.name] for each in fields(QuantizeOptions)}
    return QuantizeOptions(**values | {"quantize_exclude": tuple(given.quantize_exclude)})


PROVIDER = "ONNX Runtime execution provider: cpu, cuda, … (default: cpu)"
"""Help of `--execution-provider`."""


def add_spec_arguments(parser: ArgumentParser, more: str = "") -> None:
    """SPEC, `--config`, `--set`, `--context-length`, `--graph`; `more` is what else SPEC may be."""
    parser.add_argument(
        "spec",
        metavar="SPEC",
        help="the name of a built-in spec (see `specc list specs`), a spec file, a "
        "checkpoint directory with a config.json, "
        f"{more}or - for the standard input",
    )
    parser.add_argument(
        "--spec",
        default="",
        metavar="FILE",
        dest="own",
        help="use this spec for a checkpoint directory",
    )
    parser.add_argument(
        "--config", default="", metavar="FILE|DIR", help="read config values from a config.json"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a config value, for example layers=2",
    )
    parser.add_argument(
        "--context-length",
        type=parse_context,
        default=0,
        metavar="N",
        help="context length for dynamic and longrope RoPE scaling",
    )
    parser.add_argument("--graph", default="", metavar="NAME", help="select a graph of the spec")


def open_spec_from_arguments(arguments: Namespace, weights: str = "") -> OpenedSpec:
    """Open the spec these options name; `weights` is the checkpoint it is to be filled
    from.
    """
    print_shadow_note(arguments.spec)
    given = read_spec_from_stdin() if arguments.spec == STDIN else arguments.spec
    return open_spec(
        given,
        config=arguments.config,
        sets=arguments.set,
        weights=weights,
        own=arguments.own,
        longest=arguments.context_length,
    )


def print_shadow_note(spec: str) -> None:
    """Print a note where a file or directory has the name of the built-in spec."""
    if note := format_shadow_note(spec):
        print_note(note)


def is_compiled(path: str) -> bool:
    """Return whether a MODEL or SPEC argument is a compiled model or a package."""
    return path.endswith(".onnx") or (is_package_directory(path) and not is_builtin_spec(path))


def parse_seed(text: str) -> int:
    """A seed of the command line: a whole number of 64 bits."""
    return parse_bounded_int(text, 0, 2**64 - 1, "a seed")


def parse_context(text: str) -> int:
    """A length of texts."""
    return parse_bounded_int(text, 1, 2**31 - 1, "a length of texts")


def parse_rounds(text: str) -> int:
    """How often to try."""
    return parse_bounded_int(text, 1, 1000, "a number of rounds")


def parse_bounded_int(text: str, least: int, most: int, what: str) -> int:
    """A whole number within bounds; `what` says what it counts."""
    # digits of other scripts are digits to Python; of too many it refuses to make a number
    plain = text.isascii() and text.isdigit() and len(text) <= 20
    if not plain or not least <= int(text) <= most:
        raise ArgumentTypeError(f"{what} is a whole number from {least} to {most}")
    return int(text)
