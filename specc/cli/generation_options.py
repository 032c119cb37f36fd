"""Options of `specc run`: generation settings, attention maps, output."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any

from specc.cli.common_options import FORCE
from specc.decode.setting_table import STRATEGIES
from specc.io.safe_read import escape_text
from specc.preprocessing.entity_spans import AGGREGATION_STRATEGIES
from specc.preprocessing.task_kinds import FUNCTIONS

HELP = {
    "--max": ("N", "write at most N tokens; otherwise the spec's number, or 256"),
    "--min": ("N", "write at least N tokens before a text may end"),
    "--no-repeat": ("N", "write no N tokens in a row that are there already"),
    "--temperature": ("T", "sample, with logits divided by T: below 1 the likely become likelier"),
    "--top-k": ("K", "sample among the K best tokens"),
    "--top-p": ("P", "sample among the best tokens that together reach the probability P"),
    "--min-p": ("P", "sample among tokens of at least P times the best one's probability"),
    "--repetition-penalty": ("R", "above 1: make tokens that are there already less likely"),
    "--beams": ("N", "beam search: follow N unfinished texts at once"),
    "--length-penalty": ("A", "beam search: divide a text's score by its length to the power of A"),
    "--n-best": ("N", "beam search: give the N best texts"),
    "--seed": ("SEED", "the number that samples are drawn from; the same one draws the same text"),
}
WHOLE = ("--max", "--min", "--no-repeat", "--top-k", "--beams", "--n-best", "--seed")
NAMES = {"--max": "max_tokens", "--min": "min_tokens"}


def add_sampling_arguments(parser: ArgumentParser, title: str) -> Any:
    """Declare those that say how tokens are chosen; gives their group. None has a
    default: the spec's settings hold.
    """
    group = parser.add_argument_group(title)
    group.add_argument(
        "--strategy", choices=STRATEGIES, help="how tokens are chosen; otherwise as the spec says"
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


def add_generation_arguments(parser: ArgumentParser) -> None:
    """Declare all of them."""
    group = add_sampling_arguments(parser, "how text is written (docs/generation.md)")
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


def parse_generation_settings(given: Namespace) -> dict[str, Any]:
    """What was given, by the names of `specc.decode.generation_settings`."""
    names = ("strategy", *map(_name, HELP), "stop_strings", "log_probabilities")
    found = vars(given)
    return {name: found[name] for name in names if found.get(name) is not None}


def setting_flag(name: str) -> str:
    """The option that gives the setting `name`."""
    return next((flag for flag in HELP if _name(flag) == name), f"--{name.replace('_', '-')}")


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


MOST_ROWS = 2**53
"""Lengths are numbers below it, as everywhere."""


def add_run_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = 'For example: specc run out/numbers "de 305" --max 64'
    parser.add_argument("model", metavar="MODEL.onnx|DIR", help="a compiled model, or a package")
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="a text, @FILE with a text a line, - for the standard input, [[1, 2]] for ids, "
        "a file (.png, .jpg, .wav, .npy, .npz, .json); NAME=INPUT says which input it is; several "
        "are a batch (docs/inputs.md)",
    )
    _task_arguments(parser)
    _chat_argument(parser)
    _chunk_argument(parser)
    parser.add_argument(
        "--graph", default="", metavar="NAME", help="run this one of a package's graphs, once"
    )
    parser.add_argument(
        "--provider", default="cpu", help="cpu, cuda, … (an execution provider of ONNX Runtime)"
    )
    _attention_arguments(parser)
    parser.add_argument(
        "-o", "--output", default="", metavar="OUT.npz", help="also write the results as arrays"
    )
    parser.add_argument("--force", action="store_true", help=FORCE)
    add_generation_arguments(parser)


def _task_arguments(parser: ArgumentParser) -> None:
    """Declare the options of models with a head for text (docs/tasks.md)."""
    group = parser.add_argument_group("labels, spans, answers and vectors")
    group.add_argument(
        "--aggregation-strategy",
        choices=AGGREGATION_STRATEGIES,
        help="token classification: how tokens are grouped to spans; otherwise simple",
    )
    group.add_argument(
        "--function-to-apply",
        choices=FUNCTIONS,
        help="text classification: how logits become scores; otherwise as config.json says",
    )
    group.add_argument(
        "--hypothesis-template",
        metavar="TEXT",
        help="image and candidate labels: the sentence around a label, with {} in its place",
    )
    group.add_argument(
        "--prompt-name",
        metavar="NAME",
        help="embeddings: the prompt before each text, of those in "
        "config_sentence_transformers.json",
    )
    group.add_argument(
        "--compare", action="store_true", help="embeddings: print the cosine of every two texts"
    )


def _attention_arguments(parser: ArgumentParser) -> None:
    """Declare what is drawn of attention, and how."""
    parser.add_argument(
        "--attention",
        default="",
        metavar="OUT.html|.svg|.png",
        help="draw where the model's attention looked: a page with all of it, or a picture",
    )
    parser.add_argument(
        "--scope",
        default="",
        metavar="PATTERN",
        help="which attention to draw, by its scope; the last one otherwise, on a page all",
    )
    parser.add_argument(
        "--layers", default="", metavar="0,2-5", help="of which layers to draw attention"
    )
    parser.add_argument("--heads", default="", metavar="0,2-5", help="which heads of it to draw")
    parser.add_argument(
        "--log",
        action="store_true",
        help="color weights by powers of ten, so that small ones are seen",
    )


def _chunk_argument(parser: ArgumentParser) -> None:
    """Declare how the rows of a stream come."""
    parser.add_argument(
        "--chunk",
        type=_rows,
        default=0,
        metavar="ROWS",
        help="give a stream so many rows at a time (docs/streams.md)",
    )


def _rows(text: str) -> int:
    """A number of rows."""
    if not text.isdecimal() or not 0 < int(text) < MOST_ROWS:
        raise ArgumentTypeError(f"`{escape_text(text)[:40]}` is no number of rows above 0")
    return int(text)


def _chat_argument(parser: ArgumentParser) -> None:
    """Declare what stands for the text that is gone on behind."""
    parser.add_argument(
        "--chat",
        default=None,
        metavar="TEXT|@FILE",
        help="write behind a chat: what the user says, or a JSON file of messages",
    )
