"""Words that pick, turn and resample the rows of an axis."""

from specc.elaborate.values import Results, Tensor, describe
from specc.elaborate.vocabulary.registry import Site, word
from specc.ir import ops
from specc.ir.dim import Dim


@word()
def sort(
    site: Site, x: Tensor, *, axis: Dim = Dim.of(-1), descending: bool = False
) -> Results:
    """The rows along an axis in ascending order, and their row numbers; of equals the
    lower number first. With `descending` from the greatest on.
    """
    return Results(site.add(ops.Sort(site.axis(x, axis), descending), x))


@word()
def argsort(site: Site, x: Tensor, *, axis: Dim = Dim.of(-1)) -> Tensor:
    """Row numbers in ascending order of the values along an axis; of equals the lower
    number first.
    """
    return site.add(ops.Sort(site.axis(x, axis)), x)[1]


@word()
def topk(
    site: Site, x: Tensor, k: Dim, *, axis: Dim = Dim.of(-1), largest: bool = True
) -> Results:
    """The `k` greatest along an axis from the greatest on, and their row numbers; of
    equals the lower number first: `values, ids = topk(x, 3)`.

    With `largest=false` the least from the least on. `gather(y, ids)` reads the same
    rows of another tensor.
    """
    at = site.axis(x, axis)
    site.within(k, "k", 1)
    spare = x.shape[at] - k
    if spare.number is not None and spare.number < 0:
        site.fail(
            "E0326",
            f"the {k} greatest are asked for, the axis has {x.shape[at]} rows",
            "k",
            describe(x),
            helps=[f"write a number up to {x.shape[at]}", "or name another `axis`"],
        )
    return Results(site.add(ops.TopK(at, k, largest), x))
