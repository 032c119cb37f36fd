"""What is said about a leak, and the words for ops that pick, turn and resample rows."""

from dataclasses import dataclass, replace

from specc.ir import ops
from specc.ir.op import Op
from specc.text.diagnostic import Label

MASK, SCORES = "seen", "s > -inf"
BY_MASK = ", with a causal mask as `seen`"
"""How helps call what says which keys are hidden: a mask, in a normalizer its scores."""


@dataclass(frozen=True, slots=True)
class Said:
    """What is said about a leak."""

    code: str
    what: str
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()


def zero_later_keys(rank: int, keys: int) -> str:
    """Return the help that sets weights of later keys to 0, for weights of this rank
    whose keys are the axis `keys`.
    """
    mask = "grid(causal, x, x)"
    if rank == 3:
        mask = f"squeeze({mask}, axis=1)"
    order = "" if keys == rank - 1 else " while they are [batch, heads, query, key]"
    return (
        f"set the weights of later keys to 0: `where({mask}, w, 0.0)`, with the weights "
        f"as `w`{order} and the sequence [batch, length, features] as `x`"
    )


def in_normalizer(said: Said, at: Label | None) -> Said:
    """What is said of an op that a normalizer is made of: E0723 in its name."""
    name = at.span.normalizer if at else ""
    if not name:
        return said
    what = f"the normalizer `{name}` is not causal: {said.what}"
    note = "its scores, `s` here, are -inf where the mask hides"
    # It has no mask at hand: the scores say what is hidden.
    helps = (h.removesuffix(BY_MASK).replace(MASK, SCORES) for h in said.helps)
    notes = (*said.notes, note)
    return replace(said, code="E0723", what=what, notes=notes, helps=tuple(helps))


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
        case ops.Roll():
            return Said(
                "E0711",
                "what leaves at the end comes in at the front, and there is no end yet",
                helps=("to shift a sequence by one use `delay(x, by=1)`",),
            )
        case ops.Pad():
            return Said(
                "E0711",
                "rows put beside those of a growing axis would move with every new one",
                helps=("to shift a sequence by one use `delay(x, by=1)`",),
            )
        case ops.Resize():
            return Said(
                "E0711", "what is sampled anew changes at every row with a new one"
            )
        case ops.GroupNorm():
            return Said(
                "E0711",
                "this norm takes its statistics over every position",
                helps=(
                    "normalize the features alone: `layer_norm(x, eps=1e-5) @ norm`",
                ),
            )
    return Said("E0711", reads)
