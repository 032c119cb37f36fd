"""Attention without projections: `attend`, `attend_by`, and the parts they are made of."""

import math
from dataclasses import dataclass
from typing import NoReturn

from specc.elaborate.definitions import Grid, bias_grid, mask_grid
from specc.elaborate.kinds import Anything, Mask, Normalizer, Scalar, Score
from specc.elaborate.numbers import (
    arithmetic,
    as_attribute,
    as_float,
    as_scalar,
    symbols,
)
from specc.elaborate.rows import as_grid, row_names
from specc.elaborate.values import (
    DefinitionFunction,
    Joined,
    Picked,
    Results,
    Tensor,
    Unknown,
    WordFunction,
    describe,
)
from specc.elaborate.vocabulary.grids import added_of, mask_of, ones, scores, widths
from specc.elaborate.vocabulary.registry import Site, word
from specc.elaborate.vocabulary.weighing import SOFTMAX, fit_rank, normalized
from specc.ir import ops
from specc.lang import tree

NAMES = ("out", "weights")


@word(weights=True)
def attend(
    site: Site,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask,
    scale: Scalar | None = None,
    cap: float = 0.0,
    add: Anything = None,
    sinks: Tensor | None = None,
) -> Results:
    """Scaled dot-product attention over [batch, heads, length, d]; gives (out,
    weights).

    Without a heads axis there is one head; a query [batch, d] has no length, nor have
    its results. Fewer key heads than query heads serve groups of neighbors. `scale` is
    1/sqrt(d) unless given, `cap` bounds scores softly before `add` is added and the
    mask applied, `sinks` [heads] take weight and give nothing.
    """
    site.within(cap, "cap", 0.0)
    site.within(scale, "scale", -math.inf)
    wide = [_heads(site, x, name, q) for x, name in ((q, "q"), (k, "k"), (v, "v"))]
    queries = 2 if len(q.shape) > 2 else None  # [batch, d]: its row has no number
    rows = row_names(site.context, (wide[0], queries), (wide[1], 2))
    grid = mask_of(site, mask, rows, len(q.shape))
    added = added_of(site, add, rows, len(q.shape))
    shown = _shown(site, grid)
    wide[0], factor = _scaled(site, wide[0], scale)
    with widths(site, "attend", q, k):
        op = ops.Attend(as_attribute(factor), cap)
        out, weights = site.add(op, *wide, shown, added, sinks)
    return Results((_narrow(site, out, q), _narrow(site, weights, q)), NAMES)


def _scaled(
    site: Site, q: Tensor, scale: Scalar | None
) -> tuple[Tensor, float | Unknown]:
    """The query and the number its scores are multiplied by; one that only an input
    tells goes into the query.
    """
    if scale is None:
        try:
            scale = arithmetic(site.context, "pow", q.shape[-1], -0.5, site.span)
        except ZeroDivisionError:  # vectors of no numbers: every score is 0
            scale = 1.0
    if site.context.late(symbols(scale)):
        factor = as_scalar(site.context, scale, q.type.dtype, site.span)
        return site.one(ops.Arith("mul"), q, factor), 1.0
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
    site.fail(
        "E0307",
        f"`{name}` has the axes batch, heads, length, d (heads may be missing)",
        name,
        describe(x),
    )


def _narrow(site: Site, x: Tensor, q: Tensor) -> Tensor:
    """Without the axes the query did not have: length and heads of [batch, d], heads of
    [batch, length, d].
    """
    for axis in {2: (2, 1), 3: (1,)}.get(len(q.shape), ()):
        x = site.one(ops.Squeeze(axis), x)
    return x


def _shown(site: Site, grid: Grid) -> Tensor | None:
    """A mask as an operand: None where every key is seen; a grid of false where none is."""
    if isinstance(grid, Tensor):
        return grid
    if grid:
        return None
    return as_grid(site.context, site.constant(False, "bool"), site.span)


@word(weights=True)
def attend_by(
    site: Site,
    score: Score,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask,
    add: Anything = None,
    normalize: Normalizer = SOFTMAX,
    noise: Tensor | None = None,
) -> Results:
    """Attention by any score: a definition of `q` and `k`, two vectors. Gives (out,
    weights).

    `q` is [batch, length, d] or [batch, d], or has a heads axis behind the batch; `k`
    and `v` alike. `normalize` makes weights of the scores that the mask shows:
    `softmax` over the keys (arXiv:1409.0473, eq. 6), or over the `queries` of each key
    (arXiv:2006.15055, sec. 2.1); `hard`, one at the greatest (arXiv:1502.03044, 4.1);
    `sampled`, one at a key drawn with softmax's chances, the greatest after Gumbel
    `noise`, shaped as the weights, is added (arXiv:1611.01144, eq. 1); `kernel`, each
    score's share of their sum (Nadaraya 1964), those below zero as zero; `uniform`, all
    alike; or a definition such as `sparsemax`, `entmax15`, `topk(8)`. Where nothing is
    shown, or all kernels are zero, weights are zeros.
    """
    if (noise is None) == _is(normalize, "sampled"):
        _noise_fault(site, noise)
    wanted = _Weights(score=score, mask=mask, add=add, normalize=normalize, noise=noise)
    weights = wanted.of(site, q, k)
    out = site.one(ops.Weigh(), weights, v)
    if len(q.shape) > 2:
        return Results((out, weights), NAMES)
    # a query without a length had one row for the while
    alone = (site.one(ops.Squeeze(len(x.shape) - 2), x) for x in (out, weights))
    return Results(tuple(alone), NAMES)


def _is(normalize: Normalizer, word: str) -> bool:
    return isinstance(normalize, Picked) and normalize.word == word


def _noise_fault(site: Site, noise: Tensor | None) -> NoReturn:
    if noise is None:
        title = (
            "`normalize=sampled` needs `noise`, or every run would draw the same keys"
        )
        helps = [
            "declare an input `u` of random numbers from 0 to 1, shaped as the "
            "weights, and add `noise=gumbel(u)`"
        ]
        site.fail("E0606", title, "normalize", helps=helps)
    title = "`noise` decides nothing unless keys are sampled"
    site.fail(
        "E0606",
        title,
        "noise",
        helps=["write `normalize=sampled`, or leave the noise out"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """How `attend_by` is to weigh keys, as its options say."""

    score: Score
    mask: Mask
    add: Anything
    normalize: Normalizer
    noise: Tensor | None

    def of(self, site: Site, q: Tensor, k: Tensor) -> Tensor:
        """The weights [batch, (heads,) q, k]."""
        wide = site.one(ops.Insert(1), q) if len(q.shape) == 2 else q
        if len(wide.shape) != len(k.shape) or len(k.shape) not in (3, 4):
            _unlike(site, k)
        axis = len(wide.shape) - 2
        queries = axis if len(q.shape) > 2 else None
        rows = row_names(site.context, (wide, queries), (k, axis))
        if _is(self.normalize, "uniform"):  # whatever the score, every key counts alike
            grid = ones(site, (*wide.shape[:-1], k.shape[-2]))
        else:
            grid = scores(site, self.score, wide, k, rows)
        if self.add is not None:
            added = added_of(site, self.add, rows, len(q.shape))
            assert added is not None  # only `none` adds nothing
            added = fit_rank(site, added, len(grid.shape))
            grid = site.one(ops.Arith("add"), grid, added)
        if self.noise is not None:
            alone = len(q.shape) == 2
            noise = site.one(ops.Insert(1), self.noise) if alone else self.noise
            grid = site.one(ops.Arith("add"), grid, noise)
        shown = mask_of(site, self.mask, rows, len(q.shape))
        return normalized(site, grid, shown, self.normalize, rows)


def _unlike(site: Site, k: Tensor) -> NoReturn:
    title = "`q` and `k` have the same axes: batch, heads if any, length, d"
    site.fail("E0307", title, "k", describe(k))


@word(weights=True)
def grid(site: Site, of: Anything, q: Tensor, k: Tensor) -> Tensor:
    """A score, bias or mask for every query and key row, as a tensor [batch, (heads,)
    q, k].

    `q` and `k` are [batch, length, d], or have a heads axis behind the batch. A bias or
    a mask has a heads axis always, and 1 for an axis along which it does not change;
    one grid can serve several attentions.
    """
    at = len(k.shape) - 2
    if at not in (1, 2) or len(q.shape) != len(k.shape):
        _unlike(site, k)
    rows = row_names(site.context, (q, at), (k, at))
    where = site.spans.get("of")
    match of:
        case WordFunction():
            return scores(site, of, q, k, rows)
        case DefinitionFunction() if of.kind == "score":
            return scores(site, of, q, k, rows)
        case Joined() | DefinitionFunction(definition=tree.Definition(kind="mask")):
            shown = mask_grid(site.context, of, rows, site.scope, where)
            if isinstance(shown, bool):
                shown = site.constant(shown, "bool")
            return as_grid(site.context, shown, site.span)
    added = bias_grid(site.context, of, rows, site.scope, where)
    if added is None:
        title = "a grid is made of a score, a bias or a mask, not of none"
        site.fail("E0602", title, "of")
    return added
