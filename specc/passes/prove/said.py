"""What is said about a leak, and the words for ops that pick, turn and resample rows."""

from dataclasses import dataclass

from specc.ir import ops
from specc.ir.op import Op


@dataclass(frozen=True, slots=True)
class Said:
    """What is said about a leak."""

    code: str
    what: str
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()


def of_rows(op: Op, reads: str) -> Said:
    """The words for an op of `specc.ir.ops.rows` along an axis that grows; for others
    what it `reads`.
    """
    match op:
        case ops.TopK():
            return Said(
                "E0711",
                "this picks among every position",
                helps=("weigh them with `attend(...)`",),
            )
        case ops.Stride(step=step):
            return Said(
                "E0711",
                f"of every {step} rows this takes one, and a step makes one at a time",
                helps=(
                    "keep all rows and hide the others from who reads them: "
                    f"`mask some = j % {step} == 0`, then `mask=causal & some`",
                ),
            )
    return Said("E0711", reads)
