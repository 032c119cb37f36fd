"""The options of `specc run`."""

from argparse import ArgumentParser, ArgumentTypeError

from specc.cli.spec_options import FORCE
from specc.cli.writing_options import writing_arguments
from specc.data.spans import STRATEGIES
from specc.data.tasks import FUNCTIONS
from specc.files.read import shown

MOST_ROWS = 2**53
"""Lengths are numbers below it, as everywhere."""


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = 'For example: specc run out/numbers "de 305" --max 64'
    parser.add_argument(
        "model", metavar="MODEL.onnx|DIR", help="a compiled model, or a package"
    )
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
        "--graph",
        default="",
        metavar="NAME",
        help="run this one of a package's graphs, once",
    )
    parser.add_argument(
        "--provider",
        default="cpu",
        help="cpu, cuda, … (an execution provider of ONNX Runtime)",
    )
    _attention_arguments(parser)
    parser.add_argument(
        "-o",
        "--output",
        default="",
        metavar="OUT.npz",
        help="also write the results as arrays",
    )
    parser.add_argument("--force", action="store_true", help=FORCE)
    writing_arguments(parser)


def _task_arguments(parser: ArgumentParser) -> None:
    """Declare the options of models with a head for text (docs/tasks.md)."""
    group = parser.add_argument_group("labels, spans, answers and vectors")
    group.add_argument(
        "--aggregation-strategy",
        choices=STRATEGIES,
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
        "--compare",
        action="store_true",
        help="embeddings: print the cosine of every two texts",
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
        "--layers",
        default="",
        metavar="0,2-5",
        help="of which layers to draw attention",
    )
    parser.add_argument(
        "--heads", default="", metavar="0,2-5", help="which heads of it to draw"
    )
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
        raise ArgumentTypeError(f"`{shown(text)[:40]}` is no number of rows above 0")
    return int(text)


def _chat_argument(parser: ArgumentParser) -> None:
    """Declare what stands for the text that is gone on behind."""
    parser.add_argument(
        "--chat",
        default=None,
        metavar="TEXT|@FILE",
        help="write behind a chat: what the user says, or a JSON file of messages",
    )
