"""The built-in function `route`, a mixture of experts with token-wise experts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Label, Span, SpeccError, raise_error
from specc.frontend.builtins.registry import ONE, CallContext, register_builtin
from specc.frontend.loop_bodies_and_early_exit import extract_body_graph
from specc.frontend.parameter_kinds import FunctionValue
from specc.frontend.spec_values import (
    ERROR_VALUE,
    AlreadyReportedError,
    SpecValue,
    Tensor,
    describe_value,
    format_type,
    get_first_result,
)
from specc.frontend.weight_paths_and_sharing import ExpertWeights
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, NodeOrigin, Value, collect_required_nodes, select_entries
from specc.ir.ir_verifier import is_dynamic_size_node
from specc.ir.loop_dependence import AxisReadSet, trace_axis_reads
from specc.ir.types import SAME_POSITION, Type
from specc.syntax import ast


def check_token_independence(
    ctx: CallContext, body: Graph, captured: Sequence[Value], length: str
) -> None:
    """Raise E0331 if an expert's output for a token depends on other tokens or on their number.
    Raise E0333 if the expert's body contains a dynamic dimension other than `length`, the symbolic
    number of tokens routed to the expert.
    """
    origins: Mapping[Node, NodeOrigin] = {
        **ctx.env.context.builder.node_origins,
        **body.node_origins,
    }
    for node in _find_token_count_readers(body, captured, length):
        _raise_tokens_mixed(ctx, origins, node, "depends on the number of tokens")
    for node in _find_token_mixing(body):
        _raise_tokens_mixed(ctx, origins, node, "depends on other tokens")
    for value in (*captured, *(r for _, results in body.nodes for r in results)):
        spans = origins.get(value.node, NodeOrigin()).spans if value.node else ()
        _check_no_dynamic_length(ctx, value, length, spans[-1] if spans else ctx.span)


def _find_token_count_readers(
    body: Graph, captured: Sequence[Value], length: str
) -> Iterator[Node]:
    """Yield the nodes of an expert body that depend on the number of routed tokens. An expert must
    not depend on this number, because the number depends on the whole batch.
    """
    yield from (node for node, _ in body.nodes if is_dynamic_size_node(node))
    for node in collect_required_nodes(captured):
        attributes = node.op.get_attributes().values()
        if any(isinstance(v, Dim) and length in v.symbols() for v in attributes):
            yield node


def _check_no_dynamic_length(
    ctx: CallContext, value: Value, length: str, span: Span | None
) -> None:
    """Raise E0333 for a dynamic dimension other than the number of routed tokens `length`."""
    for dim in value.type.shape:
        if ctx.env.context.has_dynamic_symbol(dim.symbols() - {length}):
            raise_error(
                "E0333",
                f"an expert uses a tensor of the dynamic length {dim}, expected a static length",
                span,
                f"this reads {format_type(value.type)}",
                helps=[
                    "pass per-token data with the tokens: `concat([x, …])`; tables need a "
                    "length from the config"
                ],
            )


def _find_token_mixing(body: Graph) -> Iterator[Node]:
    """Yield the nodes that make the output for a token depend on other tokens."""
    tokens = next(iter(body.inputs.values()))
    # trace the token axis through the body: an output may depend only on its own position
    read_sets = trace_axis_reads(body, {tokens: AxisReadSet({tokens.type.rank - 2: SAME_POSITION})})
    for node, results in body.nodes:
        result_reads = [read_sets[r] for r in results if r in read_sets]
        if any(t.is_fully_read or set(t.axes.values()) - {SAME_POSITION} for t in result_reads):
            yield node


def _raise_tokens_mixed(
    ctx: CallContext, origins: Mapping[Node, NodeOrigin], node: Node, violation: str
) -> NoReturn:
    """Raise E0331 for a node that depends on other tokens. `violation` completes the message."""
    spans = origins.get(node, NodeOrigin()).spans
    span = spans[-1] if spans else ctx.span
    fn = node.op.get_attributes().get("fn")
    op_name = fn if isinstance(fn, str) else node.op.name
    raise_error(
        "E0331",
        f"experts must process each token independently, but this one {violation}",
        span,
        f"`{op_name}` does",
        related_labels=Label.tuple_from_span(
            None if span is ctx.span else ctx.span, "the experts run here"
        ),
        helps=["compute this on all tokens before `route`"],
    )


def drop_unused_weights(body: Graph, weights: Sequence[Value]) -> tuple[Graph, list[Value]]:
    """Remove unused weights from an expert body. Return the body and the remaining weights. The
    inputs of the body are the tokens, one input per weight, and the captures.
    """
    # otherwise, the weight loader would report an unused weight as missing from the checkpoint
    used_values = {a for n, _ in body.nodes for a in n.args} | {*body.outputs.values()}
    names = list(body.inputs)[1 : 1 + len(weights)]
    kept_names = body.inputs.keys() - {n for n in names if body.inputs[n] not in used_values}
    inputs = select_entries(body.inputs, kept_names)
    facts = select_entries(body.input_facts, kept_names)
    used_weights = [v for n, v in zip(names, weights, strict=True) if n in kept_names]
    return replace(body, inputs=inputs, input_facts=facts), used_weights


ROUTED_LENGTH = "routed"
"""The symbolic dimension for the number of tokens that are routed to an expert."""


@register_builtin(has_weights=True)
def route(
    ctx: CallContext,
    x: Tensor,
    ids: Tensor,
    gates: Tensor,
    *,
    to: FunctionValue,
    experts: Dim,
    keep: Tensor | None = None,
) -> Tensor:
    """Compute a mixture of experts (MoE). The output for a token is the sum of the outputs of its
    experts `ids`, weighted by `gates` (arXiv:1701.06538, eq. 1). `x` is [… d], `ids` and `gates`
    are [… k].

    `to` is the block that computes one expert. The experts' weights are stored with a leading axis
    of length `experts`. Tokens that `keep` […] masks out are not routed, and their output is zero.
    Experts without tokens are skipped.
    """
    _check_routed_operands(ctx, x, ids, gates, keep)
    _check_expert_count(ctx, ids.shape[-1], gates, experts)
    length = _make_length_name(ctx, x)
    stack = ExpertWeights(experts)
    unit_axes = (ONE,) * (len(x.shape) - 2)
    shape = (*unit_axes, Dim.symbol(length), x.shape[-1])
    tokens = Value(Type(x.type.dtype, shape))
    start_index = len(ctx.env.context.builder.nodes)
    output = _elaborate_expert(ctx, to, tokens, stack, _map_dims_to_expert(ctx, x, length))
    weight_inputs = {f"own {name}": value for name, value in stack.expert_values.items()}
    body, captured = extract_body_graph(
        ctx.env.context.builder,
        {"rows": tokens, **weight_inputs},
        {"y": output.value},
        start_index,
        length,
    )
    check_token_independence(ctx, body, captured, length)
    body, weights = drop_unused_weights(body, list(stack.stacked_values.values()))
    op = ops.MixtureOfExperts(body, experts, len(weights), keep is not None)
    operands = [x, ids, gates, *([keep] if keep else [])]
    return ctx.add_op(op, *operands, *(Tensor(v) for v in (*weights, *captured)))


# --- operands -------------------------------------------------------------------------


OPERAND_DTYPES = {
    "ids": ("integers", ("i64", "i32")),
    "gates": ("floats", ("f32", "f16", "bf16", "f64")),
    "keep": ("bools", ("bool",)),
}
"""The allowed element types of each operand except `x`, with a plural noun for messages."""


def _check_routed_operands(
    ctx: CallContext, x: Tensor, ids: Tensor, gates: Tensor, keep: Tensor | None
) -> None:
    """Raise E0332 for operands whose shape does not match `x` or whose element type is wrong."""
    if len(x.shape) < 2:
        helps = ["add a leading axis: insert(…, axis=0)"]
        title = "`route` takes token vectors, […, d]"
        ctx.raise_error("E0332", title, "x", f"this is {describe_value(x)}", helps=helps)
    leading_shape = x.shape[:-1]
    operands = {"ids": (ids, "k"), "gates": (gates, "k"), "keep": (keep, "")}
    for name, (value, suffix) in operands.items():
        if value is None:
            continue
        dtype_names, dtypes = OPERAND_DTYPES[name]
        label = f"this is {describe_value(value)}"
        if value.type.dtype not in dtypes:
            ctx.raise_error("E0332", f"`{name}` of `route` must contain {dtype_names}", name, label)
        leading, rank = value.shape[: len(leading_shape)], len(leading_shape) + len(suffix)
        if leading != leading_shape or len(value.shape) != rank:
            expected = ", ".join([*map(str, leading_shape), *suffix])
            title = f"`{name}` of `route` must have the leading axes of `x`: [{expected}]"
            ctx.raise_error("E0332", title, name, label)


def _check_expert_count(ctx: CallContext, k: Dim, gates: Tensor, experts: Dim) -> None:
    """Raise E0332 if the numbers of gates and ids per token differ. Raise E0330 if a token has more
    ids than there are experts, and E0333 if `experts` is a dynamic dimension.
    """
    gate_count = gates.shape[-1]
    if k != gate_count:
        axis = len(gates.shape) - 1
        fix = f"select the gate weights of the chosen experts: `gather(…, ids, axis={axis})`"
        title = f"`ids` has {k} experts per token, but `gates` has {gate_count} values"
        helps = [fix] if gate_count == experts else []
        ctx.raise_error("E0332", title, "gates", f"this is {describe_value(gates)}", helps=helps)
    if ctx.env.context.has_dynamic_symbol(experts.symbols()):
        title = f"`experts` must be known at compile time, but {experts} depends on an input"
        helps = ["weights must have a static shape: use a config value"]
        ctx.raise_error("E0333", title, "experts", helps=helps)
    if experts.number is None:
        return
    if experts.number < 1:
        ctx.raise_error("E0330", f"`experts` must be at least 1, got {experts}", "experts")
    if k.number is not None and k.number > experts.number:
        title = f"each token selects {k} experts, but `experts` is {experts}"
        ctx.raise_error("E0330", title, "ids", f"{k} ids per token")


# --- the expert block -----------------------------------------------------------------


def _make_length_name(ctx: CallContext, x: Tensor) -> str:
    """Return the name of a new symbolic dimension for the number of routed tokens."""
    name, lengths = ROUTED_LENGTH, ctx.env.context.symbols.dynamic_names
    used_names: Sequence[str] = [*ctx.env.module.dims, *ctx.env.dims, *lengths]
    while name in used_names or any(name in d.symbols() for d in x.shape):
        name += "_again"
    return name


def _map_dims_to_expert(ctx: CallContext, x: Tensor, length: str) -> dict[str, Dim]:
    """Map each symbolic dimension of the spec to its size inside an expert. Inside an expert, the
    sequence dimension of `x` becomes `length`, the number of routed tokens, and the batch
    dimensions become 1. Thus, a block declared for `x: float[batch, seq, d]` also accepts the
    routed tokens.
    """
    expert_dims: dict[str, Dim] = {}
    for name in ctx.env.module.dims:
        dim = ctx.env.find_dynamic_length(name)
        if dim is not None and dim == x.shape[-2]:
            dim = Dim.symbol(length)
        elif dim is not None and dim in x.shape[:-2]:
            dim = ONE
        if dim is not None:
            expert_dims[name] = dim
    return expert_dims


def _elaborate_expert(
    ctx: CallContext,
    expert: FunctionValue,
    tokens: Value,
    stack: ExpertWeights,
    lengths: dict[str, Dim],
) -> Tensor:
    """Elaborate an expert for routed tokens. Raise E0331 unless the expert returns one vector per
    token.
    """
    context, expr = ctx.env.context, ctx.expr
    names: dict[str, SpecValue] = {"to": expert, "x": Tensor(tokens, ctx.argument_spans.get("x"))}
    # call the expert block in the scope from which the spec calls `route`
    function = ast.Name("to", span=expr.function.span)
    inner_call = ast.Call(function, (ast.Name("x", span=expr.span),), span=expr.span)
    (length,) = tokens.type.shape[-2].symbols()
    free_names, context.symbols.dynamic_names = (
        context.symbols.dynamic_names,
        context.symbols.dynamic_names | {length},
    )
    context.weights.expert_stacks.append(stack)
    try:
        env = replace(ctx.env, names=names, dynamic_lengths=lengths)
        with context.enter_position_id_scope():
            output = get_first_result(context.evaluator.call(inner_call, env))
    except SpeccError as failed:
        token_type = format_type(tokens.type)
        raise SpeccError(*(_add_expert_note(d, token_type) for d in failed.diagnostics)) from None
    finally:
        context.weights.expert_stacks.pop()
        context.symbols.dynamic_names = free_names
    if output is ERROR_VALUE:
        raise AlreadyReportedError
    if not isinstance(output, Tensor) or output.shape[:-1] != tokens.type.shape[:-1]:
        title = f"an expert must return one vector per token, got {describe_value(output)}"
        helps = [f"return […, out] for the input {format_type(tokens.type)}"]
        ctx.raise_error("E0331", title, "to", helps=helps)
    if output.type.dtype not in OPERAND_DTYPES["gates"][1]:
        title = (
            f"the outputs of experts are summed and must be floats, got {describe_value(output)}"
        )
        ctx.raise_error("E0331", title, "to")
    return output


def _add_expert_note(diagnostic: Diagnostic, token_type: str) -> Diagnostic:
    """Add a note on the expert's input to a shape mismatch inside the expert."""
    if diagnostic.code != "E0302":
        return diagnostic
    note = (
        f"an expert receives {token_type}, the tokens routed to it; pass data that belongs to a "
        "token along with it: `concat([x, …])`"
    )
    return replace(diagnostic, notes=(*diagnostic.notes, note))
