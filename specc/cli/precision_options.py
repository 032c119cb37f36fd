"""The options that say which weights are rounded to few bits, and how."""

from argparse import ArgumentParser, Namespace

from specc.compiler.precision import wish_of
from specc.passes.quantize.plan import BLOCK, KINDS, Wish


def precision_arguments(parser: ArgumentParser) -> None:
    """`--quantize` and what belongs to it."""
    parser.add_argument(
        "--quantize",
        choices=KINDS,
        help="round weights: int8 (whole numbers on both sides, a scale a row), "
        "int8-weights (weights alone), or int4 (least memory, for texts written by "
        "few)",
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
        help="with int4: 4 bits for small maps and the first attention, too",
    )


def wish_given(given: Namespace) -> Wish | None:
    """What is asked for. E0753 for options of rounding where nothing is rounded."""
    return wish_of(
        given.quantize or "",
        keep=tuple(given.keep),
        block=given.block,
        head=given.quantize_head or "",
        every=given.quantize_all,
    )
