"""Normalization of attention scores: masks, biases, softmax and other normalizers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import inf

from specc.diagnostics.diagnostic import Label, SpeccError
from specc.frontend.builtins.registry import CallContext, register_builtin
from specc.frontend.mask_and_bias_definitions import (
    IndexVariables,
    MaskValue,
    expand_attention_bias,
    expand_definition,
    expand_mask,
    make_index_variables,
)
from specc.frontend.node_builder import NodeBuilder
from specc.frontend.parameter_kinds import NORMALIZER_NAMES, Mask, Normalizer, Score
from specc.frontend.spec_values import (
    AttentionFunction,
    SpecValue,
    StringChoice,
    Tensor,
    describe_value,
)
from specc.frontend.weight_paths_and_sharing import resolve_weight_path
from specc.ir import ops
from specc.ir.op import Op


@contextmanager
def _show_errors_at_option(ctx: CallContext, option: str, code: str) -> Iterator[None]:
    """Return a context manager that reports errors with the code `code` at the option `option`."""
    try:
        yield
    except SpeccError as failed:
        diagnostic, span = failed.diagnostics[0], ctx.argument_spans.get(option)
        if diagnostic.code != code or span is None or diagnostic.primary is None:
            raise
        raise SpeccError(
            replace(
                diagnostic,
                primary=Label(span),
                related_labels=(diagnostic.primary, *diagnostic.related_labels),
            )
        ) from None


OPS_BY_NORMALIZER: Mapping[str, type[Op]] = {
    "softmax": ops.MaskedSoftmax,
    "hard": ops.MaskedHardmax,
    "sampled": ops.MaskedHardmax,
    "kernel": ops.MaskedL1Normalization,
    "uniform": ops.MaskedL1Normalization,
}
"""The ops that normalize scores along the keys, by normalizer name."""

SOFTMAX_NORMALIZER = StringChoice("softmax", NORMALIZER_NAMES)


def normalize_scores(
    ctx: CallContext,
    scores: Tensor,
    mask: MaskValue,
    normalize: Normalizer,
    index_variables: IndexVariables,
) -> Tensor:
    """Normalize scores [batch, (heads,) q, k] to attention weights over the visible keys of a
    query.

    A key with the score -inf is masked out.
    """
    mask_tensor = _make_visible_mask(ctx, mask, len(scores.shape))
    minus_infinity = ctx.add_constant(-inf, scores.type.dtype)
    if isinstance(normalize, AttentionFunction):
        if mask is not True:
            scores = ctx.add_op(ops.Where(), mask_tensor, scores, minus_infinity)
        weights = _apply_definition(ctx, normalize, scores, index_variables)
        # attention weights are zero at masked keys, even if the definition returns another value
        zero = ctx.add_constant(0.0, scores.type.dtype)
        is_visible = ctx.add_op(ops.Compare("ne"), scores, minus_infinity)
        if mask is not True:
            is_visible = ctx.add_op(ops.And(), mask_tensor, is_visible)
        return ctx.add_op(ops.Where(), is_visible, weights, zero)
    normalizer_name = normalize.value if isinstance(normalize, StringChoice) else ""
    if normalizer_name == "queries":
        return _softmax_over_queries(ctx, scores, mask_tensor)
    if normalizer_name == "uniform":  # all visible keys have equal attention weights
        is_visible = ctx.add_op(ops.Compare("ne"), scores, minus_infinity)
        scores = ctx.add_op(ops.Cast(scores.type.dtype), is_visible)
    return ctx.add_op(OPS_BY_NORMALIZER[normalizer_name](), scores, mask_tensor)


def _make_visible_mask(ctx: CallContext, mask: MaskValue, score_rank: int) -> Tensor:
    """Convert a mask to a tensor that broadcasts to scores with `score_rank` axes."""
    if isinstance(mask, Tensor):
        return squeeze_mask_heads_axis(ctx, mask, score_rank)
    # if all or no keys are visible, a mask [1, 1] broadcasts to any scores
    visible = ctx.add_constant(mask, "bool")
    return ctx.insert_axis(ctx.insert_axis(visible, 0), 0)


def _apply_definition(
    ctx: CallContext, normalizer: AttentionFunction, scores: Tensor, index_variables: IndexVariables
) -> Tensor:
    """Apply a normalizer definition to scores that are -inf at masked keys. Raise E0608 if the
    definition has no parameter, and E0609 if its result does not have the type of the scores.
    """
    params = normalizer.definition.params or ()
    if not params:
        title = f"the normalizer `{normalizer.name}` has no parameter for the scores"
        helps = [f"declare one: `normalizer {normalizer.name}(s) = …`"]
        ctx.raise_error("E0608", title, "normalize", helps=helps)
    bound_normalizer = replace(
        normalizer, bound_arguments={**normalizer.bound_arguments, params[0].name: scores}
    )
    context = ctx.env.context
    outer_name, context.errors.normalizer = context.errors.normalizer, normalizer.name
    try:
        value = expand_definition(
            context, bound_normalizer, index_variables, {}, get_weight_scope(ctx, normalizer)
        )
    finally:
        context.errors.normalizer = outer_name
    if not isinstance(value, Tensor) or value.type != scores.type:
        title = (
            f"the normalizer `{normalizer.name}` returns {describe_value(value)} for scores "
            f"{describe_value(scores)}"
        )
        helps = [
            "the normalizer must return the shape of the scores; after a sum, insert the axis "
            "again: `insert(…, axis=-1)`"
        ]
        ctx.raise_error("E0609", title, "normalize", helps=helps)
    return value


def _softmax_over_queries(ctx: CallContext, scores: Tensor, mask: Tensor) -> Tensor:
    """Apply softmax over the queries that attend to a key, i.e. along the second-to-last axis."""

    def swap_last_axes(x: Tensor) -> Tensor:
        rank = len(x.shape)
        return ctx.add_op(ops.Transpose((*range(rank - 2), rank - 1, rank - 2)), x)

    return swap_last_axes(
        ctx.add_op(ops.MaskedSoftmax(), swap_last_axes(scores), swap_last_axes(mask))
    )


def squeeze_mask_heads_axis(ctx: CallContext, tensor: Tensor, rank: int) -> Tensor:
    """Remove the heads axis of a mask or bias with four axes if the scores have no heads axis (rank
    3). Raise E0603 if the mask or bias has one value per head.
    """
    if rank == 3:
        if tensor.shape[1] != 1:
            ctx.raise_error(
                "E0603",
                "this mask or bias has one value per head, but the scores have no heads axis",
                "mask",
                describe_value(tensor),
                helps=[
                    "`split_heads(x, heads)` adds a heads axis to queries and keys; a mask or "
                    "bias for all heads has length 1 on this axis"
                ],
            )
        return ctx.squeeze_axis(tensor, 1)
    return tensor


@register_builtin()
def masked_softmax(ctx: CallContext, scores: Tensor, mask: Mask) -> Tensor:
    """Apply softmax over the unmasked keys, i.e. along the last axis. The weights are zero if all
    keys are masked.
    """
    return _normalize_masked(ctx, scores, mask, SOFTMAX_NORMALIZER)


@register_builtin()
def hard(ctx: CallContext, scores: Tensor, mask: Mask) -> Tensor:
    """Return one-hot weights at the maximum unmasked score of each query."""
    return _normalize_masked(ctx, scores, mask, StringChoice("hard", NORMALIZER_NAMES))


def _normalize_masked(
    ctx: CallContext, scores: Tensor, mask: Mask, normalizer: Normalizer
) -> Tensor:
    """Normalize masked scores. Raise E0307 unless the scores have rank 2 to 4."""
    rank = len(scores.shape)
    if rank not in (2, 3, 4):
        title = "scores must be [batch, key], [batch, query, key] or [batch, heads, query, key]"
        ctx.raise_error("E0307", title, "scores", describe_value(scores))
    # scores [batch, key] belong to a single query, which has no position
    query_scores = ctx.insert_axis(scores, 1) if rank == 2 else scores
    key_axis = len(query_scores.shape) - 1
    query_axis = key_axis - 1 if rank > 2 else None
    index_variables = make_index_variables(
        NodeBuilder(ctx.env.context), (query_scores, query_axis), (query_scores, key_axis)
    )
    expanded_mask = evaluate_mask_option(ctx, mask, index_variables, rank)
    weights = normalize_scores(ctx, query_scores, expanded_mask, normalizer, index_variables)
    return ctx.squeeze_axis(weights, 1) if rank == 2 else weights


@register_builtin()
def share(ctx: CallContext, scores: Tensor, mask: Mask) -> Tensor:
    """Divide each unmasked score by the sum over the keys, with negative scores clamped to zero. If
    the sum is zero, the weights are zero.
    """
    return _normalize_masked(ctx, scores, mask, StringChoice("kernel", NORMALIZER_NAMES))


@register_builtin()
def weights_by(ctx: CallContext, normalize: Normalizer, scores: Tensor, *, mask: Mask) -> Tensor:
    """Normalize scores [… q, k] or [batch, k] with any normalizer, as in `weights_by(sparsemax, z,
    mask=causal)`. Masked keys have weight zero.

    `normalize` is any normalizer of `attend_by` except `sampled`, which needs noise.
    """
    if isinstance(normalize, StringChoice) and normalize.value == "sampled":
        title = "`normalize=sampled` needs `noise`, which only `attend_by` accepts"
        ctx.raise_error(
            "E0606", title, "normalize", helps=["write `attend_by(…, noise=gumbel_noise(u))`"]
        )
    return _normalize_masked(ctx, scores, mask, normalize)


@register_builtin()
def weigh(ctx: CallContext, weights: Tensor, values: Tensor) -> Tensor:
    """Sum `values` [… k, d] over the keys, weighted by `weights` [… q, k] or [… k]. The result is
    [… q, d] or [… d].
    """
    if len(weights.shape) == len(values.shape) - 1:
        query_axis = len(weights.shape) - 1
        return ctx.squeeze_axis(
            ctx.add_op(ops.WeightedSum(), ctx.insert_axis(weights, query_axis), values), query_axis
        )
    return ctx.add_op(ops.WeightedSum(), weights, values)


def evaluate_mask_option(
    ctx: CallContext, mask: SpecValue, index_variables: IndexVariables, score_rank: int
) -> MaskValue:
    """Evaluate the option `mask` to a tensor, or to a bool if all or no keys are visible.
    `score_rank` is the number of axes of the scores.
    """
    with _show_errors_at_option(ctx, "mask", "E0604"):
        return expand_mask(
            ctx.make_node_builder("mask"), mask, index_variables, ctx.scope, score_rank
        )


def evaluate_bias_option(
    ctx: CallContext, add: SpecValue, index_variables: IndexVariables, score_rank: int
) -> Tensor | None:
    """Evaluate the option `add` to a bias tensor, or None."""
    with _show_errors_at_option(ctx, "add", "E0604"):
        return expand_attention_bias(
            ctx.make_node_builder("add"), add, index_variables, ctx.scope, score_rank
        )


def get_weight_scope(ctx: CallContext, function: Score) -> str:
    """Return the weight scope of a score or normalizer, by default the weight scope of the call."""
    if not function.weight_path:
        return ctx.scope
    definition_env = function.env or ctx.env
    return ctx.env.with_weight_scope(
        resolve_weight_path(function.weight_path, definition_env)
    ).scope
