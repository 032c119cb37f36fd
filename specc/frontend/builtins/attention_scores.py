"""Compute attention scores and normalize them: mask and bias options, softmax and other
normalizers, weighted sums.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import inf

from specc.diagnostics.diagnostic import Failed, Label, raise_error
from specc.frontend.builtins.registry import CallSite, register_builtin
from specc.frontend.grid_indices import make_grid_indices
from specc.frontend.masks import GridIndices, MaskGrid, expand_bias, expand_definition, expand_mask
from specc.frontend.parameter_kinds import NORMALIZER_WORDS, Mask, Normalizer, Score
from specc.frontend.spec_values import (
    BuiltinFunction,
    ChoiceValue,
    DefinitionFunction,
    SpecValue,
    Tensor,
    describe_value,
    take_first_result,
)
from specc.frontend.weight_paths import resolve_weight_path
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.op import Op


def evaluate_mask_option(
    site: CallSite, mask: SpecValue, rows: GridIndices, beside: int
) -> MaskGrid:
    """The option `mask` as a grid for scores of `beside` axes; a truth where it shows
    everything or nothing.
    """
    span = site.spans.get("mask")
    with _show_errors_at_option(site, "mask", "E0604"):
        return expand_mask(site.context, mask, rows, site.scope, span, beside)


def evaluate_bias_option(
    site: CallSite, add: SpecValue, rows: GridIndices, beside: int
) -> Tensor | None:
    """The option `add` as a grid of numbers, likewise; None where there is none."""
    span = site.spans.get("add")
    with _show_errors_at_option(site, "add", "E0604"):
        return expand_bias(site.context, add, rows, site.scope, span, beside)


@contextmanager
def _show_errors_at_option(site: CallSite, option: str, code: str) -> Iterator[None]:
    """An error inside a definition is shown where the definition was given."""
    try:
        yield
    except Failed as failed:
        found, span = failed.diagnostics[0], site.spans.get(option)
        if found.code != code or span is None or found.primary is None:
            raise
        raise Failed(
            replace(found, primary=Label(span), others=(found.primary, *found.others))
        ) from None


def make_ones(site: CallSite, shape: tuple[Dim, ...]) -> Tensor:
    """A tensor of ones."""
    x = site.constant(1.0, "f32")
    for axis, length in enumerate(shape):
        x = site.one(ops.Expand(axis, length), site.one(ops.Insert(axis), x))
    return x


def compute_scores(site: CallSite, score: Score, q: Tensor, k: Tensor, rows: GridIndices) -> Tensor:
    """The grid of scores of every query and key: `[batch, (heads,) q, k]`."""
    # [… q, 1, d] beside [… 1, k, d]: what is written for two vectors is of all pairs
    query = site.one(ops.Insert(len(q.shape) - 1), q)
    key = site.one(ops.Insert(len(k.shape) - 2), k)
    with explain_width_mismatch(site, score.name, q, k):
        if isinstance(score, BuiltinFunction):
            value = take_first_result(score.word.make(site, query, key))
        else:
            names = {"q": query, "k": key}
            inner, heads = get_definition_scope(site, score), len(q.shape) == 4
            value = expand_definition(site.context, score, rows, names, inner, heads=heads)
    if not isinstance(value, Tensor):
        title = f"a score is a grid of numbers; this is {describe_value(value)}"
        site.fail("E0605", title, "score")
    if len(value.shape) == len(q.shape) + 1 and value.shape[-1] == 1:
        # `linear(…, out=1)` leaves an axis that holds one number
        value = site.one(ops.Squeeze(len(q.shape)), value)
    pairs = (q.shape[-2], k.shape[-2])
    if len(value.shape) != len(q.shape) or value.shape[-2:] != pairs:
        title = (
            f"the score `{score.name}` gives {describe_value(value)}, not one number "
            "for each query and key"
        )
        helps = ["`dot(a, b)` sums over the features; a last axis of length 1 is dropped"]
        site.fail("E0605", title, "score", helps=helps)
    return value


@contextmanager
def explain_width_mismatch(site: CallSite, score: str, q: Tensor, k: Tensor) -> Iterator[None]:
    """Lengths that do not meet, said of what the user wrote, where it is because
    queries and keys differ in width.
    """
    try:
        yield
    except Failed as failed:
        if failed.diagnostics[0].code != "E0302" or q.shape[-1] == k.shape[-1]:
            raise  # something else does not meet, which is said where it stands
        title = (
            f"`{score}` cannot compare queries of {q.shape[-1]} features with keys of {k.shape[-1]}"
        )
        places = [(site.spans.get(n), describe_value(x)) for n, x in (("q", q), ("k", k))]
        others = [Label(span, text) for span, text in places if span is not None]
        helps = [
            "the scores `general` and `additive(size)` learn how the two meet: "
            "`attend_by(general, …) @ name`",
            f"or bring one to the other's size: `linear(k, out={q.shape[-1]}) @ name`",
        ]
        raise_error(
            "E0607", title, site.spans.get("score") or site.span, others=others, helps=helps
        )


def get_definition_scope(site: CallSite, score: Score) -> str:
    """The weight scope of a score or a normalizer: where it was written, if it has
    weights of its own.
    """
    if not score.weights:
        return site.scope
    home = score.env or site.env
    return site.env.under(resolve_weight_path(site.context, score.weights, home)).scope


OPS_BY_NORMALIZER: Mapping[str, type[Op]] = {
    "softmax": ops.MaskedSoftmax,
    "hard": ops.Hard,
    "sampled": ops.Hard,
    "kernel": ops.Share,
    "uniform": ops.Share,
}
"""What makes weights of each row of scores; `queries` goes along columns instead."""

SOFTMAX_NORMALIZER = ChoiceValue("softmax", NORMALIZER_WORDS)


def normalize_scores(
    site: CallSite, grid: Tensor, mask: MaskGrid, normalize: Normalizer, rows: GridIndices
) -> Tensor:
    """Weights from scores, each row over the keys it sees.

    A score of minus infinity hides its key as the mask does, whether a bias or the
    score itself gave it.
    """
    if isinstance(mask, Tensor):
        shown = match_score_rank(site, mask, len(grid.shape))
    else:  # all or nothing, as [1, 1]: it spreads over any grid
        shown = site.constant(mask, "bool")
        shown = site.one(ops.Insert(0), site.one(ops.Insert(0), shown))
    low = site.constant(-inf, grid.type.dtype)
    if isinstance(normalize, DefinitionFunction):
        if mask is not True:
            grid = site.one(ops.Where(), shown, grid, low)
        made = _apply_definition(site, normalize, grid, rows)
        # whatever it makes of a row that sees nothing, and of what is hidden
        zero = site.constant(0.0, grid.type.dtype)
        there = site.one(ops.Compare("ne"), grid, low)
        if mask is not True:
            there = site.one(ops.And(), shown, there)
        return site.one(ops.Where(), there, made, zero)
    word = normalize.word if isinstance(normalize, ChoiceValue) else ""
    if word == "queries":
        return _softmax_over_queries(site, grid, shown)
    if word == "uniform":  # whatever the score, every key that is seen counts alike
        there = site.one(ops.Compare("ne"), grid, low)
        grid = site.one(ops.Cast(grid.type.dtype), there)
    return site.one(OPS_BY_NORMALIZER[word](), grid, shown)


def _apply_definition(
    site: CallSite, made: DefinitionFunction, scores: Tensor, rows: GridIndices
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
        value = expand_definition(context, given, rows, {}, get_definition_scope(site, made))
    finally:
        context.normalizer = outer
    if not isinstance(value, Tensor) or value.type != scores.type:
        title = (
            f"the normalizer `{made.name}` gives {describe_value(value)} of scores "
            f"{describe_value(scores)}"
        )
        helps = ["weights are as many as the scores: a sum needs `insert(…, axis=-1)`"]
        site.fail("E0609", title, "normalize", helps=helps)
    return value


def _softmax_over_queries(site: CallSite, grid: Tensor, mask: Tensor) -> Tensor:
    """Softmax along the queries, the last axis but one, among those that may look at the key."""

    def turned(x: Tensor) -> Tensor:
        rank = len(x.shape)
        return site.one(ops.Transpose((*range(rank - 2), rank - 1, rank - 2)), x)

    return turned(site.one(ops.MaskedSoftmax(), turned(grid), turned(mask)))


def match_score_rank(site: CallSite, grid: Tensor, rank: int) -> Tensor:
    """A grid of four axes beside scores of `rank`: the heads axis goes where scores have none."""
    if rank == 3:
        if grid.shape[1] != 1:
            site.fail(
                "E0603",
                "this differs from head to head, and there are no heads here",
                "mask",
                describe_value(grid),
                helps=[
                    "queries and keys get a heads axis by `heads_of(x, heads)`; a mask "
                    "or a bias for all heads has 1 there"
                ],
            )
        return site.one(ops.Squeeze(1), grid)
    return grid


@register_builtin()
def masked_softmax(site: CallSite, scores: Tensor, mask: Mask) -> Tensor:
    """Softmax over the last axis, keys, among those the mask shows; a row that sees
    none is all zeros.
    """
    return _normalize_masked(site, scores, mask, SOFTMAX_NORMALIZER)


@register_builtin()
def hard(site: CallSite, scores: Tensor, mask: Mask) -> Tensor:
    """One at the greatest visible score of each row, zero elsewhere."""
    return _normalize_masked(site, scores, mask, ChoiceValue("hard", NORMALIZER_WORDS))


def _normalize_masked(site: CallSite, scores: Tensor, mask: Mask, how: Normalizer) -> Tensor:
    rank = len(scores.shape)
    if rank not in (2, 3, 4):
        title = "scores have the axes batch, heads if any, query if any, key"
        site.fail("E0307", title, "scores", describe_value(scores))
    # [batch, key] is one query, whose own row has no number
    wide = site.one(ops.Insert(1), scores) if rank == 2 else scores
    last = len(wide.shape) - 1
    queries = last - 1 if rank > 2 else None
    rows = make_grid_indices(site.context, (wide, queries), (wide, last))
    shown = evaluate_mask_option(site, mask, rows, rank)
    weights = normalize_scores(site, wide, shown, how, rows)
    return site.one(ops.Squeeze(1), weights) if rank == 2 else weights


@register_builtin()
def share(site: CallSite, scores: Tensor, mask: Mask) -> Tensor:
    """Each visible score divided by the sum of its row, those below zero as zero; zeros
    where the sum is zero.
    """
    return _normalize_masked(site, scores, mask, ChoiceValue("kernel", NORMALIZER_WORDS))


@register_builtin()
def weights_by(site: CallSite, normalize: Normalizer, scores: Tensor, *, mask: Mask) -> Tensor:
    """Weights by any normalizer, of scores [… q, k] or [batch, k]:
    `weights_by(sparsemax, z, mask=causal)`. What the mask hides weighs nothing.

    The words for `normalize` are those of `attend_by`, but for `sampled`, which needs
    noise.
    """
    if isinstance(normalize, ChoiceValue) and normalize.word == "sampled":
        title = "`sampled` draws keys by noise, which `attend_by` takes"
        site.fail("E0606", title, "normalize", helps=["use `attend_by(…, noise=gumbel(u))`"])
    return _normalize_masked(site, scores, mask, normalize)


@register_builtin()
def weigh(site: CallSite, weights: Tensor, values: Tensor) -> Tensor:
    """Values summed by weights: [… q, k] and [… k, d] give [… q, d]; without a query axis [… d]."""
    if len(weights.shape) == len(values.shape) - 1:
        at = len(weights.shape) - 1
        return site.one(
            ops.Squeeze(at), site.one(ops.Weigh(), site.one(ops.Insert(at), weights), values)
        )
    return site.one(ops.Weigh(), weights, values)
