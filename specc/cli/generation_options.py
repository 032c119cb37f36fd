"""Options of `specc run`: generation settings, attention maps, output."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any

from specc.cli.terminal import FORCE
from specc.decode.setting_table import STRATEGIES
from specc.io.safe_read import escape_text
from specc.preprocessing.predictions import AGGREGATION_STRATEGIES
from specc.preprocessing.task_kinds import FUNCTIONS

HELP = {
    "max_tokens": ("N", "maximum number of generated tokens (default: the spec's, or 256)"),
    "min_tokens": ("N", "minimum number of generated tokens before a stop token is allowed"),
    "no_repeat_ngram_size": ("N", "do not repeat any n-gram of this size"),
    "temperature": ("T", "sample; divide the logits by T (below 1: more deterministic)"),
    "top_k": ("K", "sample from the K most probable tokens"),
    "top_p": ("P", "nucleus sampling: sample from the smallest set with total probability P"),
    "min_p": ("P", "sample from tokens of at least P times the highest probability"),
    "repetition_penalty": ("R", "above 1: make tokens that already occur less likely"),
    "num_beams": ("N", "beam search with N beams"),
    "length_penalty": ("A", "beam search: divide scores by length ** A"),
    "num_return_sequences": ("N", "beam search: return the N best sequences"),
    "seed": ("SEED", "random seed of sampling"),
}
"""Settings with an option of their own: metavar and help."""
INTEGERS = (
    "max_tokens",
    "min_tokens",
    "no_repeat_ngram_size",
    "top_k",
    "num_beams",
    "num_return_sequences",
    "seed",
)


def add_sampling_arguments(parser: ArgumentParser, title: str) -> Any:
    """Declare the options that choose tokens and return their group. None has a default:
    the spec's settings apply.
    """
    group = parser.add_argument_group(title)
    group.add_argument(
        "--strategy", choices=STRATEGIES, help="decoding strategy (default: the spec's)"
    )
    for name, (metavar, text) in HELP.items():
        kind = _parse_integer if name in INTEGERS else _parse_float
        group.add_argument(setting_flag(name), type=kind, metavar=metavar, help=text)
    return group


def add_generation_arguments(parser: ArgumentParser) -> None:
    """Declare all generation options."""
    group = add_sampling_arguments(parser, "generation (docs/generation.md)")
    group.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        dest="stop_strings",
        help="stop before this string; may be repeated",
    )
    group.add_argument(
        "--log-probs",
        action="store_const",
        const=True,
        help="with -o: also write the log-probability of each token",
    )


def parse_generation_settings(given: Namespace) -> dict[str, Any]:
    """Return the given options, named as in `specc.decode.generation_settings`."""
    names = ("strategy", *HELP, "stop_strings", "log_probs")
    found = vars(given)
    return {name: found[name] for name in names if found.get(name) is not None}


def setting_flag(name: str) -> str:
    """Return the flag of a generation setting: `top_k` is `--top-k`."""
    return "--stop" if name == "stop_strings" else f"--{name.replace('_', '-')}"


def _parse_integer(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ArgumentTypeError(f"{text[:40]!r} is not an integer")
    if len(text) > 20:
        raise ArgumentTypeError(f"{text[:40]!r} is too large")
    return int(text)


def _parse_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text[:40]!r} is not a number") from None


MOST_ROWS = 2**53
"""Lengths are numbers below it, as everywhere."""


def add_run_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx|DIR", help="a compiled model, or a package")
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="a text, @FILE (one text per line), - (standard input), [[1, 2]] (token ids), or "
        "a file (.png, .jpg, .wav, .npy, .npz, .json); NAME=INPUT names the input; "
        "several inputs form a batch (docs/inputs.md)",
    )
    _task_arguments(parser)
    _chat_argument(parser)
    _chunk_argument(parser)
    parser.add_argument(
        "--graph", default="", metavar="NAME", help="run this graph of a package once"
    )
    parser.add_argument(
        "--execution-provider",
        default="cpu",
        help="cpu, cuda, … (an execution provider of ONNX Runtime)",
    )
    _attention_arguments(parser)
    parser.add_argument(
        "-o", "--output", default="", metavar="OUT.npz", help="also write the outputs as arrays"
    )
    parser.add_argument("--force", action="store_true", help=FORCE)
    add_generation_arguments(parser)


def _task_arguments(parser: ArgumentParser) -> None:
    """Declare the options of models with a head for text (docs/tasks.md)."""
    group = parser.add_argument_group("labels, spans, answers and vectors")
    group.add_argument(
        "--aggregation-strategy",
        choices=AGGREGATION_STRATEGIES,
        help="token classification: how tokens are grouped into spans (default: simple)",
    )
    group.add_argument(
        "--function-to-apply",
        choices=FUNCTIONS,
        help="text classification: activation of the logits (default: from config.json)",
    )
    group.add_argument(
        "--hypothesis-template",
        metavar="TEXT",
        help="zero-shot image classification: template around a label, with {} as placeholder",
    )
    group.add_argument(
        "--prompt-name",
        metavar="NAME",
        help="embeddings: a prompt of config_sentence_transformers.json",
    )
    group.add_argument(
        "--similarity", action="store_true", help="embeddings: print pairwise cosine similarities"
    )


def _attention_arguments(parser: ArgumentParser) -> None:
    """Declare what is drawn of attention, and how."""
    parser.add_argument(
        "--attention",
        default="",
        metavar="OUT.html|.svg|.png",
        help="plot attention weights: an interactive page, or a figure",
    )
    parser.add_argument(
        "--scope",
        default="",
        metavar="PATTERN",
        help="attentions with this scope (default: the last one; on a page all)",
    )
    parser.add_argument("--layers", default="", metavar="0,2-5", help="attentions of these layers")
    parser.add_argument("--heads", default="", metavar="0,2-5", help="these heads")
    parser.add_argument("--log-scale", action="store_true", help="logarithmic color scale")


def _chunk_argument(parser: ArgumentParser) -> None:
    """Declare how the rows of a stream come."""
    parser.add_argument(
        "--chunk-size",
        type=_rows,
        default=0,
        metavar="ROWS",
        help="split the streamed input into chunks of N positions (docs/streaming-inference.md)",
    )


def _rows(text: str) -> int:
    """A number of rows."""
    if not text.isdecimal() or not 0 < int(text) < MOST_ROWS:
        raise ArgumentTypeError(f"`{escape_text(text)[:40]}` is not a number of rows above 0")
    return int(text)


def _chat_argument(parser: ArgumentParser) -> None:
    """Declare what stands for the text that is gone on behind."""
    parser.add_argument(
        "--chat",
        default=None,
        metavar="TEXT|@FILE",
        help="generate with the chat template: a user message, or a JSON file of messages",
    )
