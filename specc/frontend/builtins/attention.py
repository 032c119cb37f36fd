"""Built-in attention functions: `attend`, `attend_by`, `grid`."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from specc.diagnostics.diagnostic import Label, SpeccError, raise_error
from specc.frontend.builtins.attention_normalizers import (
    SOFTMAX_NORMALIZER,
    evaluate_bias_option,
    evaluate_mask_option,
    get_weight_scope,
    normalize_scores,
    squeeze_mask_heads_axis,
)
from specc.frontend.builtins.registry import (
    ONE,
    CallContext,
    broadcast_batch_axis,
    register_builtin,
)
from specc.frontend.builtins.tensor import make_constant_tensor
from specc.frontend.mask_and_bias_definitions import (
    IndexVariables,
    MaskValue,
    expand_attention_bias,
    expand_definition,
    expand_mask,
    expand_to_mask_rank,
    make_index_variables,
)
from specc.frontend.node_builder import NodeBuilder
from specc.frontend.parameter_kinds import Anything, Mask, Normalizer, Scalar, Score
from specc.frontend.runtime_scalars import (
    apply_binary_function,
    cast_to_float_attribute,
    convert_to_float,
    convert_to_scalar_tensor,
    get_free_symbols,
)
from specc.frontend.spec_values import (
    AttentionFunction,
    BuiltinFunction,
    MaskExpression,
    ResultTuple,
    RuntimeScalar,
    StringChoice,
    Tensor,
    describe_value,
    get_first_result,
)
from specc.ir import ops
from specc.syntax import ast

ATTENTION_RESULTS = ("out", "weights")


@register_builtin(has_weights=True)
def attend(
    ctx: CallContext,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask,
    scale: Scalar | None = None,
    cap: float = 0.0,
    add: Anything = None,
    sinks: Tensor | None = None,
) -> ResultTuple:
    """Compute scaled dot-product attention over [batch, heads, length, head_dim]. Returns (out,
    weights).

    Inputs without a heads axis are treated as having a single head. If the query is [batch, d], the
    results have no length axis. If there are fewer key heads than query heads, compute
    grouped-query attention. `scale` defaults to 1/sqrt(d). `cap` is the logit soft-capping limit;
    soft-capping is applied before the bias `add` and the mask. `sinks` [heads] are the logits of
    attention sinks.
    """
    ctx.check_range(cap, "cap", 0.0)
    ctx.check_range(scale, "scale", -math.inf)
    batch = next((x.shape[0] for x in (q, k, v) if x.shape and x.shape[0] != 1), ONE)
    qkv = [
        broadcast_batch_axis(ctx, _expand_to_heads(ctx, x, name), batch)
        for x, name in ((q, "q"), (k, "k"), (v, "v"))
    ]
    query_axis = 2 if len(q.shape) > 2 else None  # a query [batch, d] has no length axis
    index_variables = make_index_variables(
        NodeBuilder(ctx.env.context), (qkv[0], query_axis), (qkv[1], 2)
    )
    expanded_mask = evaluate_mask_option(ctx, mask, index_variables, len(q.shape))
    bias = evaluate_bias_option(ctx, add, index_variables, len(q.shape))
    mask_operand = _make_mask_operand(ctx, expanded_mask)
    qkv[0], score_scale = _fold_scale(ctx, qkv[0], scale)
    with report_width_mismatch(ctx, "attend", q, k):
        op = ops.Attend(cast_to_float_attribute(score_scale), cap)
        out, weights = ctx.add_node(op, *qkv, mask_operand, bias, sinks)
    return ResultTuple(
        (_drop_added_axes(ctx, out, q), _drop_added_axes(ctx, weights, q)), ATTENTION_RESULTS
    )


def _fold_scale(
    ctx: CallContext, q: Tensor, scale: Scalar | None
) -> tuple[Tensor, float | RuntimeScalar]:
    """Return the query and the scale. A run-time scale is multiplied into the query."""
    if scale is None:
        try:
            scale = apply_binary_function(ctx.builder, "pow", q.shape[-1], -0.5)
        except ZeroDivisionError:  # if the head dimension is 0, all scores are 0
            scale = 1.0
    if ctx.env.context.has_dynamic_symbol(get_free_symbols(scale)):
        factor = convert_to_scalar_tensor(ctx.builder, scale, q.type.dtype)
        return ctx.add_binary_op("mul", q, factor), 1.0
    return q, convert_to_float(ctx.builder, scale)


def _expand_to_heads(ctx: CallContext, x: Tensor, name: str) -> Tensor:
    """Expand `x` to [batch, heads, length, d]. Raise E0307 for a rank other than 2 to 4."""
    rank = len(x.shape)
    if rank == 4:
        return x
    if rank == 3:
        return ctx.insert_axis(x, 1)
    if rank == 2 and name == "q":
        return ctx.insert_axis(ctx.insert_axis(x, 1), 1)
    ctx.raise_error(
        "E0307",
        f"`{name}` must be [batch, heads, length, d]; heads are optional",
        name,
        describe_value(x),
    )


def _drop_added_axes(ctx: CallContext, x: Tensor, q: Tensor) -> Tensor:
    """Remove from `x` the axes that `_expand_to_heads` has added to `q`."""
    for axis in {2: (2, 1), 3: (1,)}.get(len(q.shape), ()):
        x = ctx.squeeze_axis(x, axis)
    return x


def _make_mask_operand(ctx: CallContext, mask: MaskValue) -> Tensor | None:
    """Return the mask operand: None if all keys are visible, False if no key is visible."""
    if isinstance(mask, Tensor):
        return mask
    if mask:
        return None
    return expand_to_mask_rank(ctx.builder, ctx.add_constant(False, "bool"))


@register_builtin(has_weights=True)
def attend_by(
    ctx: CallContext,
    score: Score,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask,
    add: Anything = None,
    normalize: Normalizer = SOFTMAX_NORMALIZER,
    noise: Tensor | None = None,
) -> ResultTuple:
    """Compute attention with an arbitrary score function of a query vector `q` and a key vector
    `k`. Returns (out, weights). `q`, `k` and `v` are [batch, length, d], optionally with a heads
    axis after the batch axis. `q` may also be [batch, d]. `normalize` is the function from unmasked
    scores to weights: `softmax`, over the keys (arXiv:1409.0473, eq. 6); `queries`, softmax over
    the queries of each key (arXiv:2006.15055, sec. 2.1); `hard`, one-hot at the maximum
    (arXiv:1502.03044, 4.1); `sampled`, one-hot at a key sampled from the softmax by adding Gumbel
    `noise` of the weights' shape (arXiv:1611.01144, eq. 1); `kernel`, scores divided by their sum
    (Nadaraya 1964), with negative scores clamped to zero; `uniform`, equal weights; or a definition
    such as `sparsemax`, `entmax15`, `topk(8)`. If all keys are masked or all kernel values are
    zero, the weights are zero.
    """
    if (noise is None) == _is_normalizer(normalize, "sampled"):
        _raise_noise_error(ctx, noise)
    weights = _compute_attention_weights(
        ctx, score, q, k, mask=mask, bias=add, normalize=normalize, noise=noise
    )
    out = ctx.add_op(ops.WeightedSum(), weights, v)
    if len(q.shape) > 2:
        return ResultTuple((out, weights), ATTENTION_RESULTS)
    # remove the length axis of size 1 that was added to a query without a length axis
    squeezed = (ctx.squeeze_axis(x, len(x.shape) - 2) for x in (out, weights))
    return ResultTuple(tuple(squeezed), ATTENTION_RESULTS)


def _is_normalizer(normalize: Normalizer, normalizer_name: str) -> bool:
    return isinstance(normalize, StringChoice) and normalize.value == normalizer_name


def _raise_noise_error(ctx: CallContext, noise: Tensor | None) -> NoReturn:
    """Raise E0606 if `normalize=sampled` lacks noise, or if another normalizer is given noise."""
    if noise is None:
        title = "`normalize=sampled` needs `noise`; without it every run selects the same keys"
        helps = [
            "declare an input `u` of uniform random numbers in [0, 1), shaped as the "
            "weights, and add `noise=gumbel_noise(u)`"
        ]
        ctx.raise_error("E0606", title, "normalize", helps=helps)
    title = "`noise` has no effect without `normalize=sampled`"
    ctx.raise_error("E0606", title, "noise", helps=["write `normalize=sampled`, or remove `noise`"])


def _compute_attention_weights(
    ctx: CallContext,
    score: Score,
    q: Tensor,
    k: Tensor,
    *,
    mask: Mask,
    bias: Anything,
    normalize: Normalizer,
    noise: Tensor | None,
) -> Tensor:
    """Return the attention weights [batch, (heads,) q, k] of a call of `attend_by`."""
    has_length = len(q.shape) > 2
    query = q if has_length else ctx.insert_axis(q, 1)
    if len(query.shape) != len(k.shape) or len(k.shape) not in (3, 4):
        _raise_width_mismatch(ctx, k)
    length_axis = len(query.shape) - 2
    index_variables = make_index_variables(
        NodeBuilder(ctx.env.context), (query, length_axis if has_length else None), (k, length_axis)
    )
    if _is_normalizer(normalize, "uniform"):  # `uniform` does not depend on the scores
        scores = make_constant_tensor(ctx, 1.0, (*query.shape[:-1], k.shape[-2]))
    else:
        scores = compute_attention_scores(ctx, score, query, k, index_variables)
    expanded_bias = evaluate_bias_option(ctx, bias, index_variables, len(q.shape))
    if expanded_bias is not None:
        expanded_bias = squeeze_mask_heads_axis(ctx, expanded_bias, len(scores.shape))
        scores = ctx.add_binary_op("add", scores, expanded_bias)
    if noise is not None:
        scores = ctx.add_binary_op(
            "add", scores, noise if has_length else ctx.insert_axis(noise, 1)
        )
    expanded_mask = evaluate_mask_option(ctx, mask, index_variables, len(q.shape))
    return normalize_scores(ctx, scores, expanded_mask, normalize, index_variables)


def _raise_width_mismatch(ctx: CallContext, k: Tensor) -> NoReturn:
    title = "`q` and `k` must have the same axes: batch, optional heads, length, d"
    ctx.raise_error("E0307", title, "k", describe_value(k))


@register_builtin(has_weights=True)
def grid(ctx: CallContext, of: Anything, q: Tensor, k: Tensor) -> Tensor:
    """Evaluate a score, bias or mask for all query-key pairs. The result is [batch, (heads,) q, k].

    `q` and `k` are [batch, length, d], optionally with a heads axis after the batch. The result for
    a bias or mask always has a heads axis; every axis on which the bias or mask does not depend has
    size 1. Several attention layers can share the result.
    """
    length_axis = len(k.shape) - 2
    if length_axis not in (1, 2) or len(q.shape) != len(k.shape):
        _raise_width_mismatch(ctx, k)
    index_variables = make_index_variables(
        NodeBuilder(ctx.env.context), (q, length_axis), (k, length_axis)
    )
    nodes = ctx.make_node_builder("of")
    match of:
        case BuiltinFunction():
            return compute_attention_scores(ctx, of, q, k, index_variables)
        case AttentionFunction() if of.kind == "score":
            return compute_attention_scores(ctx, of, q, k, index_variables)
        case MaskExpression() | AttentionFunction(definition=ast.AttentionDef(kind="mask")):
            mask = expand_mask(nodes, of, index_variables, ctx.scope)
            if isinstance(mask, bool):
                mask = ctx.add_constant(mask, "bool")
            return expand_to_mask_rank(ctx.builder, mask)
    bias = expand_attention_bias(nodes, of, index_variables, ctx.scope)
    if bias is None:
        title = "`grid`: expected a score, a bias or a mask, got none"
        ctx.raise_error("E0602", title, "of")
    return bias


def compute_attention_scores(
    ctx: CallContext, score: Score, q: Tensor, k: Tensor, index_variables: IndexVariables
) -> Tensor:
    """Compute the scores [batch, (heads,) q, k] of all query-key pairs."""
    # a score function of two vectors is computed for all pairs by broadcasting queries [… q, 1, d]
    # and keys [… 1, k, d]
    query = ctx.insert_axis(q, len(q.shape) - 1)
    key = ctx.insert_axis(k, len(k.shape) - 2)
    with report_width_mismatch(ctx, score.name, q, k):
        if isinstance(score, BuiltinFunction):
            value = get_first_result(score.builtin.evaluate(ctx, query, key))
        else:
            names = {"q": query, "k": key}
            scope, has_heads = get_weight_scope(ctx, score), len(q.shape) == 4
            value = expand_definition(
                ctx.env.context, score, index_variables, names, scope, has_head_axis=has_heads
            )
    if not isinstance(value, Tensor):
        title = f"a score must be a tensor of floats, got {describe_value(value)}"
        ctx.raise_error("E0605", title, "score")
    if len(value.shape) == len(q.shape) + 1 and value.shape[-1] == 1:
        # `linear(…, out=1)` leaves a last axis of size 1
        value = ctx.squeeze_axis(value, len(q.shape))
    pair_lengths = (q.shape[-2], k.shape[-2])
    if len(value.shape) != len(q.shape) or value.shape[-2:] != pair_lengths:
        title = (
            f"the score `{score.name}` returns {describe_value(value)}, expected one number "
            "per query and key"
        )
        helps = ["`dot(a, b)` sums over the features; a last axis of length 1 is dropped"]
        ctx.raise_error("E0605", title, "score", helps=helps)
    return value


@contextmanager
def report_width_mismatch(ctx: CallContext, score: str, q: Tensor, k: Tensor) -> Iterator[None]:
    """Return a context manager that reports unequal widths of queries and keys as E0607."""
    try:
        yield
    except SpeccError as failed:
        if failed.diagnostics[0].code != "E0302" or q.shape[-1] == k.shape[-1]:
            raise  # errors for other shape mismatches are reported at their original location
        title = (
            f"`{score}` needs equal widths: queries have {q.shape[-1]} features, keys {k.shape[-1]}"
        )
        labels = [(ctx.argument_spans.get(n), describe_value(x)) for n, x in (("q", q), ("k", k))]
        related_labels = [Label(span, text) for span, text in labels if span is not None]
        helps = [
            "the scores `general` and `additive(size)` learn a projection between them: "
            "`attend_by(general, …) @ name`",
            f"or project one to the other's width: `linear(k, out={q.shape[-1]}) @ name`",
        ]
        raise_error(
            "E0607",
            title,
            ctx.argument_spans.get("score") or ctx.span,
            related_labels=related_labels,
            helps=helps,
        )
