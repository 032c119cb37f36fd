"""Attention without projections: `attend`, `attend_by`, and the parts they are made of."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, NoReturn

from specc.elaborate.definitions import bias_grid, expand, mask_grid
from specc.elaborate.kinds import Mask, Number, Score
from specc.elaborate.names import weight_path
from specc.elaborate.numbers import arithmetic, as_float, as_scalar, symbols
from specc.elaborate.rows import as_grid, row_names
from specc.elaborate.values import Function, Joined, Results, Tensor, describe
from specc.elaborate.vocabulary.registry import Site, word
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.op import Op
from specc.text.diagnostic import Failed, Label, fail

NAMES = ("out", "weights")
Normalizer = Literal["softmax", "queries", "hard", "sampled", "kernel", "uniform"]
"""How scores become weights; `attend_by` says what each means."""


@word(weights=True)
def attend(
    site: Site,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask,
    scale: Number | None = None,
    cap: float = 0.0,
    add: Any = None,
    sinks: Tensor | None = None,
) -> Results:
    """Scaled dot-product attention over [batch, heads, length, d]; gives (out, weights).

    Without a heads axis there is one head; a query [batch, d] has no length, nor have its results. Fewer
    key heads than query heads serve groups of neighbors. `scale` is 1/sqrt(d) unless given, `cap` bounds scores
    softly before `add` is added and the mask applied, `sinks` [heads] take weight and give nothing.
    """
    wide = [_heads(site, x, name, q) for x, name in ((q, "q"), (k, "k"), (v, "v"))]
    rows = row_names(site.context, wide[0], 2 if len(q.shape) > 2 else None, wide[1], 2)
    grid = _mask(site, mask, rows)
    added = _added(site, add, rows)
    given = _shown(site, grid, rows)
    wide[0], factor = _scaled(site, wide[0], scale)
    with _widths(site, "attend", q, k):
        out, weights = site.add(ops.Attend(factor, cap), *wide, given, added, sinks)
    return Results((_narrow(site, out, q, k), _narrow(site, weights, q, k)), NAMES)


def _scaled(site: Site, q: Tensor, scale: Any) -> tuple[Tensor, Any]:
    """The query and the number its scores are multiplied by; one that only an input tells goes into the query."""
    if scale is None:
        try:
            scale = arithmetic(site.context, "pow", q.shape[-1], -0.5, site.span)
        except ZeroDivisionError:  # vectors of no numbers: every score is 0
            scale = 1.0
    if site.context.late(symbols(scale)):
        return site.one(ops.Arith("mul"), q, as_scalar(site.context, scale, q.type.dtype, site.span)), 1.0
    return q, as_float(site.context, scale, site.span)


def _heads(site: Site, x: Tensor, name: str, q: Tensor) -> Tensor:
    """As [batch, heads, length, d]."""
    rank = len(x.shape)
    if rank == 4:
        return x
    if rank == 3:
        return site.one(ops.Insert(1), x)
    if rank == 2 and name == "q":
        return site.one(ops.Insert(1), site.one(ops.Insert(1), x))
    site.fail("E0307", f"`{name}` has the axes batch, heads, length, d (heads may be missing)", name, describe(x))


def _narrow(site: Site, x: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Without the axes the query did not have."""
    for axis in (2, 1)[: 4 - len(q.shape)] if len(q.shape) == 2 else (1,)[: 4 - len(q.shape)]:
        x = site.one(ops.Squeeze(axis), x)
    return x


def _shown(site: Site, grid: Any, rows: Mapping[str, Tensor]) -> Tensor | None:
    """A mask as an operand: None where every key is seen; a grid of false where none is."""
    if grid is True:
        return None
    if grid is False:
        false = site.constant(False, "bool")
        for axis in range(4):
            false = site.one(ops.Insert(axis), false)
        return false
    assert isinstance(grid, Tensor)
    return grid


@word(weights=True)
def attend_by(
    site: Site,
    score: Score,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask,
    add: Any = None,
    normalize: Normalizer = "softmax",
    noise: Tensor | None = None,
) -> Results:
    """Attention by any score: a definition of `q` and `k`, two vectors. Gives (out, weights).

    `q` is [batch, length, d] or [batch, d], or has a heads axis behind the batch; `k` and `v` alike.
    `normalize` makes weights of the scores that the mask shows: `softmax` over the keys (arXiv:1409.0473, eq. 6), or
    over the `queries` of each key (arXiv:2006.15055, sec. 2.1); `hard`, one at the greatest (arXiv:1502.03044, 4.1);
    `sampled`, one at a key drawn with softmax's chances, the greatest after Gumbel `noise`, shaped as the weights, is
    added (arXiv:1611.01144, eq. 1); `kernel`, each score's share of their sum (Nadaraya 1964), those below zero as
    zero; `uniform`, all alike. Where nothing is shown, or all kernels are zero, weights are zeros.
    """
    if (noise is None) == (normalize == "sampled"):
        _noise_fault(site, noise)
    weights = _weights(site, score, q, k, mask, add, normalize, noise)
    alone = len(q.shape) == 2
    values = v
    out = site.one(ops.Weigh(), weights, values)
    made = (out, weights)
    if alone:
        made = tuple(site.one(ops.Squeeze(len(x.shape) - 2), x) for x in made)  # type: ignore[assignment]
    return Results(made, NAMES)


def _noise_fault(site: Site, noise: Tensor | None) -> NoReturn:
    if noise is None:
        title = "`normalize=sampled` needs `noise`, or every run would draw the same keys"
        helps = ["declare an input `u` of random numbers from 0 to 1, shaped as the weights, and add `noise=gumbel(u)`"]
        site.fail("E0606", title, "normalize", helps=helps)
    title = "`noise` decides nothing unless keys are sampled"
    site.fail("E0606", title, "noise", helps=["write `normalize=sampled`, or leave the noise out"])


def _weights(
    site: Site, score: Any, q: Tensor, k: Tensor, mask: Any, add: Any, normalize: str, noise: Tensor | None
) -> Tensor:
    wide = site.one(ops.Insert(1), q) if len(q.shape) == 2 else q
    if len(wide.shape) != len(k.shape) or len(k.shape) not in (3, 4):
        site.fail("E0307", "`q` and `k` have the same axes: batch, heads if any, length, d", "k", describe(k))
    lengths = len(wide.shape) - 2
    rows = row_names(site.context, wide, lengths if len(q.shape) > 2 else None, k, lengths)
    if normalize == "uniform":
        grid = _ones(site, (*wide.shape[:-1], k.shape[-2]))
    else:
        grid = scores(site, score, wide, k, rows)
    if add is not None:
        extra = _added(site, add, rows)
        assert extra is not None
        grid = site.one(ops.Arith("add"), grid, _fit(site, extra, len(grid.shape)))
    if noise is not None:
        grid = site.one(ops.Arith("add"), grid, site.one(ops.Insert(1), noise) if len(q.shape) == 2 else noise)
    return normalized(site, grid, _mask(site, mask, rows), normalize)


def _mask(site: Site, mask: Any, rows: Mapping[str, Tensor]) -> Any:
    with _pointing_at(site, "mask", "E0604"):
        return mask_grid(site.context, mask, rows, site.scope, site.spans.get("mask"))


def _added(site: Site, add: Any, rows: Mapping[str, Tensor]) -> Tensor | None:
    with _pointing_at(site, "add", "E0604"):
        return bias_grid(site.context, add, rows, site.scope, site.spans.get("add"))


@contextmanager
def _pointing_at(site: Site, option: str, code: str) -> Iterator[None]:
    """An error inside a definition is shown where the definition was given."""
    try:
        yield
    except Failed as failed:
        found, span = failed.diagnostics[0], site.spans.get(option)
        if found.code != code or span is None or found.primary is None:
            raise
        raise Failed(replace(found, primary=Label(span), others=(found.primary, *found.others))) from None


def _ones(site: Site, shape: tuple[Dim, ...]) -> Tensor:
    x = site.constant(1.0, "f32")
    for axis, length in enumerate(shape):
        x = site.one(ops.Expand(axis, length), site.one(ops.Insert(axis), x))
    return x


def scores(site: Site, score: Any, q: Tensor, k: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
    """The grid of scores of every query and key: `[batch, (heads,) q, k]`."""
    query = site.one(ops.Insert(len(q.shape) - 1), q)
    key = site.one(ops.Insert(len(k.shape) - 2), k)
    with _widths(site, score.name, q, k):
        if score.kind == "op":
            value = score.target.make(site, query, key)
        else:
            value = expand(site.context, score, rows, {"q": query, "k": key}, _inner(site, score))
    if not isinstance(value, Tensor):
        site.fail("E0605", f"a score is a grid of numbers; this is {describe(value)}", "score")
    if len(value.shape) == len(q.shape) + 1 and value.shape[-1] == 1:
        value = site.one(ops.Squeeze(len(q.shape)), value)
    if len(value.shape) != len(q.shape) or value.shape[-1] != k.shape[-2] or value.shape[-2] != q.shape[-2]:
        title = f"the score `{score.name}` gives {describe(value)}, not one number for each query and key"
        helps = ["dot(a, b) sums over the features; a last axis of length 1 is dropped"]
        site.fail("E0605", title, "score", helps=helps)
    return value


@contextmanager
def _widths(site: Site, score: str, q: Tensor, k: Tensor) -> Iterator[None]:
    """Lengths that do not meet, said of what the user wrote, where it is because queries and keys differ in width."""
    try:
        yield
    except Failed as failed:
        if failed.diagnostics[0].code != "E0302" or q.shape[-1] == k.shape[-1]:
            raise
        title = f"`{score}` cannot compare queries of {q.shape[-1]} features with keys of {k.shape[-1]}"
        places = [(site.spans.get(n), describe(x)) for n, x in (("q", q), ("k", k))]
        others = [Label(span, text) for span, text in places if span is not None]
        helps = [
            "the scores `general` and `additive(size)` learn how the two meet: attend_by(general, …) @ name",
            f"or bring one to the other's size: linear(k, out={q.shape[-1]}) @ name",
        ]
        fail("E0607", title, site.spans.get("score") or site.span, others=others, helps=helps)


def _inner(site: Site, score: Any) -> str:
    if not score.weights:
        return site.scope
    return site.env.under(weight_path(site.context, score.weights, score.env or site.env)).scope


def normalized(site: Site, grid: Tensor, mask: Any, normalize: str) -> Tensor:
    """Weights from scores, each row over the keys it sees."""
    if mask is True:
        if normalize == "softmax":
            return site.one(ops.Softmax(len(grid.shape) - 1), grid)
        mask = site.constant(True, "bool")
        mask = site.one(ops.Insert(0), site.one(ops.Insert(0), mask))
    elif mask is False:
        mask = site.constant(False, "bool")
        mask = site.one(ops.Insert(0), site.one(ops.Insert(0), mask))
    else:
        mask = _fit(site, mask, len(grid.shape))
    if normalize == "queries":
        return _over_queries(site, grid, mask)
    return site.one(KINDS[normalize](), grid, mask)


KINDS: Mapping[str, type[Op]] = {
    "softmax": ops.MaskedSoftmax,
    "hard": ops.Hard,
    "sampled": ops.Hard,
    "kernel": ops.Share,
    "uniform": ops.Share,
}


def _over_queries(site: Site, grid: Tensor, mask: Tensor) -> Tensor:
    """Softmax along the queries, the last axis but one, among those that may look at the key."""

    def turned(x: Tensor) -> Tensor:
        rank = len(x.shape)
        return site.one(ops.Transpose((*range(rank - 2), rank - 1, rank - 2)), x)

    return turned(site.one(ops.MaskedSoftmax(), turned(grid), turned(mask)))


def _fit(site: Site, grid: Tensor, rank: int) -> Tensor:
    """A grid of four axes beside scores of `rank`: the heads axis goes where scores have none."""
    if rank == 3:
        if grid.shape[1] != 1:
            site.fail("E0603", "this differs from head to head, and there are no heads here", "mask", describe(grid))
        return site.one(ops.Squeeze(1), grid)
    return grid


@word()
def masked_softmax(site: Site, scores: Tensor, mask: Mask) -> Tensor:
    """Softmax over the last axis, keys, among those the mask shows; a row that sees none is all zeros."""
    return _masked(site, scores, mask, "softmax")


@word()
def hard(site: Site, scores: Tensor, mask: Mask) -> Tensor:
    """One at the greatest visible score of each row, zero elsewhere."""
    return _masked(site, scores, mask, "hard")


def _masked(site: Site, scores: Tensor, mask: Any, how: str) -> Tensor:
    rank = len(scores.shape)
    if rank not in (2, 3, 4):
        site.fail("E0307", "scores have the axes batch, heads if any, query if any, key", "scores", describe(scores))
    wide = site.one(ops.Insert(1), scores) if rank == 2 else scores
    rows = row_names(site.context, wide, len(wide.shape) - 2 if rank > 2 else None, wide, len(wide.shape) - 1)
    made = normalized(site, wide, _mask(site, mask, rows), how)
    return site.one(ops.Squeeze(1), made) if rank == 2 else made


@word()
def share(site: Site, scores: Tensor, mask: Mask) -> Tensor:
    """Each visible score divided by the sum of its row, those below zero as zero; zeros where the sum is zero."""
    return _masked(site, scores, mask, "kernel")


@word(weights=True)
def grid(site: Site, of: Any, q: Tensor, k: Tensor) -> Tensor:
    """A score, bias or mask for every query and key row, as a tensor [batch, (heads,) q, k].

    `q` and `k` are [batch, length, d], or have a heads axis behind the batch. A bias or a mask has a
    heads axis always, and 1 for an axis along which it does not change; one grid can serve several attentions.
    """
    at = len(k.shape) - 2
    if at not in (1, 2) or len(q.shape) != len(k.shape):
        site.fail("E0307", "`q` and `k` have the same axes: batch, heads if any, length, d", "k", describe(k))
    rows = row_names(site.context, q, at, k, at)
    if isinstance(of, Function) and of.kind in ("score", "op"):
        return scores(site, of, q, k, rows)
    if isinstance(of, Joined) or (isinstance(of, Function) and of.kind == "mask"):
        made = mask_grid(site.context, of, rows, site.scope, site.spans.get("of"))
        shown = site.constant(made, "bool") if isinstance(made, bool) else made
        return as_grid(site.context, shown, site.span)
    made = bias_grid(site.context, of, rows, site.scope, site.spans.get("of"))
    if made is None:
        site.fail("E0602", "a grid is made of a score, a bias or a mask, not of none", "of")
    return made


@word()
def weigh(site: Site, weights: Tensor, values: Tensor) -> Tensor:
    """Values summed by weights: [… q, k] and [… k, d] give [… q, d]; without a query axis [… d]."""
    if len(weights.shape) == len(values.shape) - 1:
        at = len(weights.shape) - 1
        return site.one(ops.Squeeze(at), site.one(ops.Weigh(), site.one(ops.Insert(at), weights), values))
    return site.one(ops.Weigh(), weights, values)
