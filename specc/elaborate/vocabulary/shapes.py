"""Words that move elements about. Axes keep their names: there is no general reshape."""

from specc.elaborate import nodes
from specc.elaborate.arithmetic import as_tensor
from specc.elaborate.kinds import Anything
from specc.elaborate.numbers import as_attribute, attribute
from specc.elaborate.values import Known, Number, Results, Tensor, Unknown, describe
from specc.elaborate.vocabulary.patterns import steps_of
from specc.elaborate.vocabulary.registry import Site, word
from specc.ir import ops
from specc.ir.dim import Dim, DimError, exact, product, total


@word()
def split(
    site: Site, x: Tensor, *, into: tuple[Dim, ...], axis: Dim = Dim.of(-1)
) -> Tensor:
    """One axis as several, the last running fastest: `split(x, into=[heads, head_dim])`."""
    return site.one(ops.Split(site.axis(x, axis), into), x)


@word()
def merge(
    site: Site, x: Tensor, *, axis: Dim = Dim.of(-2), count: Dim = Dim.of(2)
) -> Tensor:
    """`count` neighboring axes from `axis` on as one, the last running fastest."""
    at = site.axis(x, axis)
    if count.number is None or not 1 <= count.number <= len(x.shape) - at:
        site.fail(
            "E0208",
            f"there are no {count} axes from axis {at} on",
            "count",
            describe(x),
        )
    return site.one(ops.Merge(at, count.number), x)


@word()
def transpose(site: Site, x: Tensor, *, order: tuple[Dim, ...] = ()) -> Tensor:
    """Reorder the axes; without `order`, swap the last two."""
    rank = len(x.shape)
    if not order:
        if rank < 2:
            site.fail(
                "E0208", "a tensor of one axis has none to swap", "x", describe(x)
            )
        numbers = [*range(rank - 2), rank - 1, rank - 2]
    else:
        numbers = [site.axis(x, o) for o in order]
    # negative axes are counted from the front by now
    if sorted(numbers) != list(range(rank)):
        site.fail("E0208", f"`order` names each of the {rank} axes once", "order")
    return site.one(ops.Transpose(tuple(numbers)), x)


@word()
def rearrange(
    site: Site, x: Tensor, pattern: str, *, sizes: tuple[Dim, ...] = ()
) -> Tensor:
    """Split, reorder and merge by a pattern:
    `rearrange(x, "b n (h d) -> b h n d", sizes=[heads])`.

    `sizes` are the lengths of the names inside parentheses on the left, in order,
    except the last of each pair of parentheses. A `1` on the left drops an axis of
    length 1, on the right it adds one.
    """
    for op in steps_of(site, x, pattern, sizes):
        x = site.one(op, x)
    return x


@word()
def insert(site: Site, x: Tensor, *, axis: Dim) -> Tensor:
    """A new axis of length 1 before axis `axis`."""
    return site.one(ops.Insert(site.axis(x, axis, ends=1)), x)


@word()
def squeeze(site: Site, x: Tensor, *, axis: Dim) -> Tensor:
    """Without an axis of length 1."""
    return site.one(ops.Squeeze(site.axis(x, axis)), x)


@word()
def expand(site: Site, x: Tensor, *, axis: Dim, length: Dim) -> Tensor:
    """An axis of length 1 repeated."""
    return site.one(ops.Expand(site.axis(x, axis), length), x)


@word()
def concat(
    site: Site, items: tuple[Anything, ...], *, axis: Dim = Dim.of(-1)
) -> Tensor:
    """Tensors one after the other along an axis: `concat([a, b])`."""
    tensors = _tensors(site, items, "concat")
    return site.one(ops.Concat(site.axis(tensors[0], axis)), *tensors)


@word()
def stack(site: Site, items: tuple[Anything, ...], *, axis: Dim = Dim.of(0)) -> Tensor:
    """Tensors of one shape as rows of a new axis."""
    tensors = _tensors(site, items, "stack")
    at = site.axis(tensors[0], axis, ends=1)
    return site.one(ops.Concat(at), *(site.one(ops.Insert(at), t) for t in tensors))


def _tensors(site: Site, items: tuple[Known, ...], called: str) -> list[Tensor]:
    tensors = [item for item in items if isinstance(item, Tensor)]
    if not tensors or len(tensors) < len(items):
        # an empty list is refused as holding a list: it has no type to go by
        wrong = next((item for item in items if not isinstance(item, Tensor)), ())
        title = f"`{called}` takes a list of tensors, this holds {describe(wrong)}"
        site.fail("E0203", title, "items")
    return tensors


@word()
def parts(
    site: Site, x: Tensor, *, into: tuple[Dim, ...], axis: Dim = Dim.of(-1)
) -> Results:
    """Consecutive pieces of an axis: `q, k, v = parts(x, into=[d, d, d])`."""
    at, start, made = site.axis(x, axis), Dim.of(0), []
    # as lengths: `[d, d, d]` makes an axis of `3 * d` whatever `d` is
    if total(into) != x.shape[at]:
        title = f"pieces of {' + '.join(map(str, into))} do not make an axis of {x.shape[at]}"
        site.fail("E0302", title, "into", describe(x))
    for length in into:
        made.append(site.one(ops.Slice(at, start, start + length), x))
        start = start + length
    return Results(tuple(made))


@word()
def chunk(site: Site, x: Tensor, count: Dim, *, axis: Dim = Dim.of(-1)) -> Results:
    """`count` equal consecutive pieces of an axis: `q, k, v = chunk(x, 3)`."""
    at = site.axis(x, axis)
    pieces = site.count(count, "count")
    try:
        each = exact(x.shape[at], pieces)
    except DimError as error:
        site.fail("E0310", str(error), "count", describe(x))
    return parts(site, x, into=(each,) * pieces, axis=axis)


@word()
def flip(site: Site, x: Tensor, *, axis: Dim = Dim.of(1)) -> Tensor:
    """An axis turned around."""
    return site.one(ops.Flip(site.axis(x, axis)), x)


@word()
def delay(
    site: Site,
    x: Tensor,
    *,
    by: Dim = Dim.of(1),
    first: Anything = Dim.of(0),
    axis: Dim = Dim.of(1),
) -> Tensor:
    """Shifted right: row t is row `t - by` of the operand, the first `by` rows are `first`."""
    if by.number is None:
        site.fail("E0203", "`by` is a number", "by")
    value = filling(site, x, first, "first")
    return site.one(ops.Delay(site.axis(x, axis), by.number, value), x)


def filling(site: Site, x: Tensor, given: Known, option: str) -> float:
    """What the rows hold that an operation puts beside those of `x`."""
    what, at = f"`{option}` of `{site.call.function.path}`", site.spans.get(option)
    value: float | Unknown
    if isinstance(given, bool):
        value = given
    elif isinstance(given, Number):
        value = attribute(site.context, given, what, at)
    else:
        title = f"{what} takes a number, not {describe(given)}"
        site.fail("E0203", title, option)
    if x.type.dtype == "i64" and not isinstance(value, Unknown):
        if value != int(value):
            title = f"{value:g} has a fraction, the tensor holds whole numbers"
            site.fail("E0206", title, option)
        value = int(value)
    elif not isinstance(value, Unknown | bool):
        nodes.check_single(value, at)
    return as_attribute(value)


@word()
def last(site: Site, x: Tensor, *, axis: Dim = Dim.of(1)) -> Tensor:
    """The newest row of an axis."""
    return site.one(ops.Last(site.axis(x, axis)), x)


@word()
def gather(site: Site, x: Tensor, ids: Tensor, *, axis: Dim = Dim.of(1)) -> Tensor:
    """Rows of an axis by computed numbers, for each of the leading axes apart:
    `x[b, ids[b, n]]`. Where `ids` has 1 for a leading axis, its numbers serve all of it.

    When `ids` has no axis of its own, as of `argmax`, one row is read and the axis
    goes.
    """
    at = site.axis(x, axis)
    for lead, (one, length) in enumerate(zip(ids.shape[:at], x.shape, strict=False)):
        if one.number == 1 and length.number != 1:
            ids = site.one(ops.Expand(lead, length), ids)
    # `argmax` along the axis took it away: one row for each
    alone = len(ids.shape) == at
    if alone:
        ids = site.one(ops.Insert(at), ids)
    rows = site.one(ops.Gather(at), x, ids)
    return site.one(ops.Squeeze(at), rows) if alone else rows


@word()
def prepend(site: Site, x: Tensor, p: Tensor, *, axis: Dim = Dim.of(1)) -> Tensor:
    """Rows put before an axis, the same for every batch row when `p` has 1 there: a
    [CLS] token, a prefix.
    """
    return _beside(site, x, p, axis, before=True)


@word()
def append(site: Site, x: Tensor, p: Tensor, *, axis: Dim = Dim.of(1)) -> Tensor:
    """Rows put behind an axis, the same for every batch row when `p` has 1 there."""
    return _beside(site, x, p, axis, before=False)


def _beside(site: Site, x: Tensor, p: Tensor, axis: Dim, *, before: bool) -> Tensor:
    at = site.axis(x, axis)
    if len(p.shape) == len(x.shape):
        for n, (have, want) in enumerate(zip(p.shape, x.shape, strict=True)):
            # every axis but the one that grows, as operations of two tensors would
            if n != at and have == 1 and want != 1:
                p = site.one(ops.Expand(n, want), p)
    return site.one(ops.Concat(at), *((p, x) if before else (x, p)))


@word()
def one_hot(site: Site, x: Tensor, *, size: Dim) -> Tensor:
    """1 at the given number, 0 elsewhere, along a new last axis."""
    return site.one(ops.OneHot(size), x)


@word(name="range")
def range_(site: Site, n: Dim) -> Tensor:
    """The numbers 0, 1, … below `n`. Over a run-time axis write `positions(x)`."""
    return site.one(ops.Range(n), *())


@word()
def zeros(site: Site, *, shape: tuple[Dim, ...]) -> Tensor:
    """A tensor of zeros."""
    return _filled(site, 0.0, shape)


@word()
def ones(site: Site, *, shape: tuple[Dim, ...]) -> Tensor:
    """A tensor of ones."""
    return _filled(site, 1.0, shape)


def _filled(site: Site, value: float, shape: tuple[Dim, ...]) -> Tensor:
    x = as_tensor(site.context, value, "f32", site.span)
    for axis, length in enumerate(shape):
        x = site.one(ops.Insert(axis), x)
        x = site.one(ops.Expand(axis, length), x)
    return x


@word()
def length(site: Site, x: Tensor, *, axis: Dim) -> Dim:
    """How long an axis is, as a number known while compiling or as a symbol."""
    return x.shape[site.axis(x, axis)]


@word()
def size(site: Site, x: Tensor) -> Dim:
    """How many numbers a tensor holds."""
    return product(x.shape)
