"""The options of a command that writes: how tokens are chosen, and when a text ends."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any

from specc.decode.options import STRATEGIES

HELP = {
    "--max": ("N", "write at most N tokens; otherwise the spec's number, or 256"),
    "--min": ("N", "write at least N tokens before a text may end"),
    "--no-repeat": ("N", "write no N tokens in a row that are there already"),
    "--temperature": (
        "T",
        "sample, with logits divided by T: below 1 the likely become likelier",
    ),
    "--top-k": ("K", "sample among the K best tokens"),
    "--top-p": (
        "P",
        "sample among the best tokens that together reach the probability P",
    ),
    "--min-p": (
        "P",
        "sample among tokens of at least P times the best one's probability",
    ),
    "--repetition-penalty": (
        "R",
        "above 1: make tokens that are there already less likely",
    ),
    "--beams": ("N", "beam search: follow N unfinished texts at once"),
    "--length-penalty": (
        "A",
        "beam search: divide a text's score by its length to the power of A",
    ),
    "--n-best": ("N", "beam search: give the N best texts"),
    "--seed": (
        "SEED",
        "the number that samples are drawn from; the same one draws the same text",
    ),
}
WHOLE = ("--max", "--min", "--no-repeat", "--top-k", "--beams", "--n-best", "--seed")
NAMES = {"--max": "max_tokens", "--min": "min_tokens"}


def choosing_arguments(parser: ArgumentParser, title: str) -> Any:
    """Declare those that say how tokens are chosen; gives their group. None has a
    default: the spec's settings hold.
    """
    group = parser.add_argument_group(title)
    group.add_argument(
        "--strategy",
        choices=STRATEGIES,
        help="how tokens are chosen; otherwise as the spec says",
    )
    for flag, (word, about) in HELP.items():
        group.add_argument(
            flag,
            type=_whole if flag in WHOLE else _number,
            metavar=word,
            help=about,
            dest=_name(flag),
        )
    return group


def writing_arguments(parser: ArgumentParser) -> None:
    """Declare all of them."""
    group = choosing_arguments(parser, "how text is written (docs/generation.md)")
    group.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        dest="stop_strings",
        help="end before this text; may be given again",
    )
    group.add_argument(
        "--log-probs",
        action="store_const",
        const=True,
        dest="log_probabilities",
        help="with -o: write the tokens' log-probabilities too",
    )


def settings_given(given: Namespace) -> dict[str, Any]:
    """What was given, by the names of `specc.decode.settings`."""
    names = ("strategy", *map(_name, HELP), "stop_strings", "log_probabilities")
    found = vars(given)
    return {name: found[name] for name in names if found.get(name) is not None}


def flag_of(name: str) -> str:
    """The option that gives the setting `name`."""
    return next(
        (flag for flag in HELP if _name(flag) == name), f"--{name.replace('_', '-')}"
    )


def _name(flag: str) -> str:
    return NAMES.get(flag, flag.strip("-").replace("-", "_"))


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ArgumentTypeError(f"{text[:40]!r} is no whole number")
    if len(text) > 20:
        raise ArgumentTypeError(f"{text[:40]!r} is too large")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text[:40]!r} is no number") from None
