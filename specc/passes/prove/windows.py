"""What is said of a window that moves along an axis that grows, where it may not."""

from specc.ir import ops

MEND = ("write `padding=causal`",)
COUNTED = ("write `padding=causal, counted=false`",)


def window_words(
    op: ops.Conv | ops.ConvTranspose | ops.MaxPool | ops.AveragePool,
    ahead: str,
    every: bool,
    chunk: int,
) -> tuple[str, tuple[str, ...]]:
    """What is wrong, and the helps: it reads some rows `ahead`, or, as its rows are not
    those of the axis, `every` one. A stream comes in chunks of more than one row.
    """
    mend = COUNTED if isinstance(op, ops.AveragePool) else MEND
    called = "convolution" if isinstance(op, ops.Conv | ops.ConvTranspose) else "pool"
    if not every:
        return f"this {called} reads {ahead}", mend
    if isinstance(op, ops.ConvTranspose):
        return "a growing axis cannot be made longer", ()
    if op.stride[0] > 1 and chunk > 1:
        # Whole chunks would give fewer rows than the strides say, or more.
        what = f"this {called} does not make one row of every {op.stride[0]}"
        return what, mend
    if op.stride[0] > 1:
        # A step would have to wait until so many rows have come.
        what = (
            f"this {called} makes one row of {op.stride[0]}, and a step has one new row"
        )
        return what, ("leave out `stride=` along what grows",)
    return f"this {called} does not give as many rows as it is given", mend
