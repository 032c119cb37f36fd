"""Scores to weights, and values summed by them."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from specc.elaborate.definitions import Grid, Rows, expand
from specc.elaborate.kinds import NORMALIZERS, Mask, Normalizer
from specc.elaborate.rows import row_names
from specc.elaborate.values import DefinitionFunction, Picked, Tensor, describe
from specc.elaborate.vocabulary.grids import inner_scope, mask_of
from specc.elaborate.vocabulary.registry import Site, word
from specc.ir import ops
from specc.ir.op import Op

OPS: Mapping[str, type[Op]] = {
    "softmax": ops.MaskedSoftmax,
    "hard": ops.Hard,
    "sampled": ops.Hard,
    "kernel": ops.Share,
    "uniform": ops.Share,
}
"""What makes weights of each row of scores; `queries` goes along columns instead."""

SOFTMAX = Picked("softmax", NORMALIZERS)


def normalized(
    site: Site, grid: Tensor, mask: Grid, normalize: Normalizer, rows: Rows
) -> Tensor:
    """Weights from scores, each row over the keys it sees.

    A score of minus infinity hides its key as the mask does, whether a bias or the
    score itself gave it.
    """
    if isinstance(mask, Tensor):
        shown = fit_rank(site, mask, len(grid.shape))
    else:  # all or nothing, as [1, 1]: it spreads over any grid
        shown = site.constant(mask, "bool")
        shown = site.one(ops.Insert(0), site.one(ops.Insert(0), shown))
    low = site.constant(-inf, grid.type.dtype)
    if isinstance(normalize, DefinitionFunction):
        if mask is not True:
            grid = site.one(ops.Where(), shown, grid, low)
        made = _defined(site, normalize, grid, rows)
        # whatever it makes of a row that sees nothing, and of what is hidden
        zero = site.constant(0.0, grid.type.dtype)
        there = site.one(ops.Compare("ne"), grid, low)
        if mask is not True:
            there = site.one(ops.And(), shown, there)
        return site.one(ops.Where(), there, made, zero)
    word = normalize.word if isinstance(normalize, Picked) else ""
    if word == "queries":
        return _over_queries(site, grid, shown)
    if word == "uniform":  # whatever the score, every key that is seen counts alike
        there = site.one(ops.Compare("ne"), grid, low)
        grid = site.one(ops.Cast(grid.type.dtype), there)
    return site.one(OPS[word](), grid, shown)


def _defined(
    site: Site, made: DefinitionFunction, scores: Tensor, rows: Rows
) -> Tensor:
    """What a definition makes of scores, hidden ones minus infinity."""
    params = made.definition.params or ()
    if not params:
        title = f"the normalizer `{made.name}` has no parameter for the scores"
        helps = [f"name them first: `normalizer {made.name}(s) = …`"]
        site.fail("E0608", title, "normalize", helps=helps)
    given = replace(made, given={**made.given, params[0].name: scores})
    context = site.context
    outer, context.normalizer = context.normalizer, made.name
    try:
        value = expand(context, given, rows, {}, inner_scope(site, made))
    finally:
        context.normalizer = outer
    if not isinstance(value, Tensor) or value.type != scores.type:
        title = (
            f"the normalizer `{made.name}` gives {describe(value)} of scores "
            f"{describe(scores)}"
        )
        helps = ["weights are as many as the scores: a sum needs `insert(…, axis=-1)`"]
        site.fail("E0609", title, "normalize", helps=helps)
    return value


def _over_queries(site: Site, grid: Tensor, mask: Tensor) -> Tensor:
    """Softmax along the queries, the last axis but one, among those that may look at the key."""

    def turned(x: Tensor) -> Tensor:
        rank = len(x.shape)
        return site.one(ops.Transpose((*range(rank - 2), rank - 1, rank - 2)), x)

    return turned(site.one(ops.MaskedSoftmax(), turned(grid), turned(mask)))


def fit_rank(site: Site, grid: Tensor, rank: int) -> Tensor:
    """A grid of four axes beside scores of `rank`: the heads axis goes where scores have none."""
    if rank == 3:
        if grid.shape[1] != 1:
            site.fail(
                "E0603",
                "this differs from head to head, and there are no heads here",
                "mask",
                describe(grid),
                helps=[
                    "queries and keys get a heads axis by `heads_of(x, heads)`; a mask "
                    "or a bias for all heads has 1 there"
                ],
            )
        return site.one(ops.Squeeze(1), grid)
    return grid


@word()
def masked_softmax(site: Site, scores: Tensor, mask: Mask) -> Tensor:
    """Softmax over the last axis, keys, among those the mask shows; a row that sees
    none is all zeros.
    """
    return _masked(site, scores, mask, SOFTMAX)


@word()
def hard(site: Site, scores: Tensor, mask: Mask) -> Tensor:
    """One at the greatest visible score of each row, zero elsewhere."""
    return _masked(site, scores, mask, Picked("hard", NORMALIZERS))


def _masked(site: Site, scores: Tensor, mask: Mask, how: Normalizer) -> Tensor:
    rank = len(scores.shape)
    if rank not in (2, 3, 4):
        title = "scores have the axes batch, heads if any, query if any, key"
        site.fail("E0307", title, "scores", describe(scores))
    # [batch, key] is one query, whose own row has no number
    wide = site.one(ops.Insert(1), scores) if rank == 2 else scores
    last = len(wide.shape) - 1
    queries = last - 1 if rank > 2 else None
    rows = row_names(site.context, (wide, queries), (wide, last))
    shown = mask_of(site, mask, rows, rank)
    weights = normalized(site, wide, shown, how, rows)
    return site.one(ops.Squeeze(1), weights) if rank == 2 else weights


@word()
def share(site: Site, scores: Tensor, mask: Mask) -> Tensor:
    """Each visible score divided by the sum of its row, those below zero as zero; zeros
    where the sum is zero.
    """
    return _masked(site, scores, mask, Picked("kernel", NORMALIZERS))


@word()
def weights_by(
    site: Site, normalize: Normalizer, scores: Tensor, *, mask: Mask
) -> Tensor:
    """Weights by any normalizer, of scores [… q, k] or [batch, k]:
    `weights_by(sparsemax, z, mask=causal)`. What the mask hides weighs nothing.

    The words for `normalize` are those of `attend_by`, but for `sampled`, which needs
    noise.
    """
    if isinstance(normalize, Picked) and normalize.word == "sampled":
        title = "`sampled` draws keys by noise, which `attend_by` takes"
        site.fail(
            "E0606", title, "normalize", helps=["use `attend_by(…, noise=gumbel(u))`"]
        )
    return _masked(site, scores, mask, normalize)


@word()
def weigh(site: Site, weights: Tensor, values: Tensor) -> Tensor:
    """Values summed by weights: [… q, k] and [… k, d] give [… q, d]; without a query axis [… d]."""
    if len(weights.shape) == len(values.shape) - 1:
        at = len(weights.shape) - 1
        return site.one(
            ops.Squeeze(at),
            site.one(ops.Weigh(), site.one(ops.Insert(at), weights), values),
        )
    return site.one(ops.Weigh(), weights, values)
