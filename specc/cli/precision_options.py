"""The options that say which weights are rounded to few bits, and how."""

from argparse import ArgumentParser, Namespace

from specc.cli.spec_options import number
from specc.compiler.rounding import CACHES, MOST_SAMPLES, NONE, Asked
from specc.passes.quantize.plan import BLOCK, KINDS


def precision_arguments(parser: ArgumentParser) -> None:
    """`--quantize` and what belongs to it."""
    parser.add_argument(
        "--quantize",
        choices=[*KINDS, NONE],
        help="round weights: int8 (whole numbers on both sides, a scale a row), "
        "int8-weights (weights alone), int4 (least memory, for texts written by few), or "
        "int8-tensor (recurrent layers faster, rows share a scale); none, though the "
        "spec says so",
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave these weights as they are, by name or scope: lm_head, layers.0.*",
    )
    parser.add_argument(
        "--block",
        type=int,
        metavar="N",
        help=f"numbers that share a scale, with int4 and int8-weights; otherwise {BLOCK}",
    )
    parser.add_argument(
        "--quantize-head",
        choices=["int8", "int4", "none"],
        help="what is done to the weights that make the results",
    )
    parser.add_argument(
        "--quantize-all",
        action="store_true",
        default=None,
        help="with int4: 4 bits for small maps and the first attention, too",
    )
    parser.add_argument(
        "--fold-norms",
        action="store_true",
        default=None,
        help="before rounding, move the gains of norms into the maps behind them: for "
        "models in which some gains are far greater than others",
    )
    _by_inputs(parser)


def _by_inputs(parser: ArgumentParser) -> None:
    """By what numbers of 4 bits are rounded, and by whom."""
    parser.add_argument(
        "--samples",
        type=_samples,
        metavar="N",
        help="with int4 or --cache: round by so many texts that the model writes itself; 0: each "
        "number to the nearest",
    )
    parser.add_argument(
        "--calibrate",
        default="",
        metavar="FILE",
        help="with int4 or --cache: round by these inputs, .npz or a JSON object a line",
    )
    parser.add_argument(
        "--cache",
        choices=CACHES,
        help="with --for step: keep keys and values in 8 bits, by scales of texts that the "
        "model writes itself, or of --calibrate; none, though the spec says so",
    )
    parser.add_argument(
        "--for-quantizers",
        action="store_true",
        help="with --target onnx: leave the rounding to other programs, and write no "
        "operator that they misread",
    )


def _samples(text: str) -> int:
    """How many texts a model writes to be rounded by."""
    return number(text, 0, MOST_SAMPLES, "a number of texts")


def asked(given: Namespace) -> Asked:
    """What the options say of rounding."""
    return Asked(
        kind=given.quantize or "",
        keep=tuple(given.keep),
        block=given.block,
        head=given.quantize_head or "",
        every=given.quantize_all,
        samples=given.samples,
        calibrate=given.calibrate,
        cache=given.cache or "",
        fold=given.fold_norms,
    )
