"""Scores to weights, and values summed by them."""

from collections.abc import Mapping
from typing import Literal

from specc.elaborate.definitions import Grid
from specc.elaborate.kinds import Mask
from specc.elaborate.rows import row_names
from specc.elaborate.values import Tensor, describe
from specc.elaborate.vocabulary.grids import mask_of
from specc.elaborate.vocabulary.registry import Site, word
from specc.ir import ops
from specc.ir.op import Op

Normalizer = Literal["softmax", "queries", "hard", "sampled", "kernel", "uniform"]
"""How scores become weights; `attend_by` says what each means."""

OPS: Mapping[Normalizer, type[Op]] = {
    "softmax": ops.MaskedSoftmax,
    "hard": ops.Hard,
    "sampled": ops.Hard,
    "kernel": ops.Share,
    "uniform": ops.Share,
}
"""What makes weights of each row of scores; `queries` goes along columns instead."""


def normalized(site: Site, grid: Tensor, mask: Grid, normalize: Normalizer) -> Tensor:
    """Weights from scores, each row over the keys it sees."""
    if isinstance(mask, Tensor):
        shown = fit_rank(site, mask, len(grid.shape))
    elif mask and normalize == "softmax":
        return site.one(ops.Softmax(len(grid.shape) - 1), grid)
    else:  # all or nothing, as [1, 1]: it spreads over any grid
        shown = site.constant(mask, "bool")
        shown = site.one(ops.Insert(0), site.one(ops.Insert(0), shown))
    if normalize == "queries":
        return _over_queries(site, grid, shown)
    return site.one(OPS[normalize](), grid, shown)


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
    return _masked(site, scores, mask, "softmax")


@word()
def hard(site: Site, scores: Tensor, mask: Mask) -> Tensor:
    """One at the greatest visible score of each row, zero elsewhere."""
    return _masked(site, scores, mask, "hard")


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
    weights = normalized(site, wide, mask_of(site, mask, rows, rank), how)
    return site.one(ops.Squeeze(1), weights) if rank == 2 else weights


@word()
def share(site: Site, scores: Tensor, mask: Mask) -> Tensor:
    """Each visible score divided by the sum of its row, those below zero as zero; zeros
    where the sum is zero.
    """
    return _masked(site, scores, mask, "kernel")


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
