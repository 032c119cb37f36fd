"""Expand mask, bias and score definitions into tensors over query and key positions. Definitions
can index tensors with the index variables `h` (head index), `i` (query position) and `j` (key
position).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from specc.diagnostics.diagnostic import Label, Span, SpeccError, raise_error
from specc.frontend.declared_types import ErrorContext, convert_to_declared_type
from specc.frontend.elaboration_context import EMPTY_NAMES, ElaborationContext, LexicalScope
from specc.frontend.elaboration_limits_and_errors import EXPANSION_COST
from specc.frontend.foreign_names_and_options import raise_unknown_option_error
from specc.frontend.node_builder import NodeBuilder
from specc.frontend.spec_values import (
    AttentionFunction,
    MaskExpression,
    SpecValue,
    Tensor,
    describe_value,
)
from specc.frontend.weight_paths_and_sharing import resolve_weight_path
from specc.ir import ops
from specc.ir.dim import Dim
from specc.syntax import ast

IndexVariables: TypeAlias = Mapping[str, Tensor]
"""The tensors of the index variables `h`, `i` and `j` of a definition."""

PAIR_RANK = 4
"""The number of axes of a mask or bias: batch, head, query, key."""

PAIR_INDEX_ORDER = ("h", "i", "j")
"""The index variables of a mask's axes after the batch axis, in order."""

BATCH_INDEX_NAME = "b"
"""The index variable for the batch axis. `size[b]` is one value per batch element."""


def make_index_variables(
    builder: NodeBuilder, queries: tuple[Tensor, int | None], keys: tuple[Tensor, int]
) -> IndexVariables:
    """Return the index variables of a definition: the query position ids `i` [q, 1] and the key
    position ids `j` [k]. The result lacks `i` if the query has no position axis. `queries` and
    `keys` are pairs (tensor, index of the position axis).
    """
    key, key_axis = keys
    query, query_axis = queries
    lengths = (query.shape[query_axis] if query_axis is not None else None, key.shape[key_axis])
    index_variables = {"j": _make_position_ids(builder, key, key_axis, ("j", *lengths))}
    if query_axis is not None:
        i = _make_position_ids(builder, query, query_axis, ("i", *lengths))
        index_variables["i"] = builder.add_op(ops.Insert(1), i)
    return index_variables


def _make_position_ids(
    nodes: NodeBuilder, x: Tensor, axis: int, role: tuple[str, Dim | None, Dim]
) -> Tensor:
    """Return the position ids of an axis. Axes with the same role and lengths share one node."""
    length = x.shape[axis]
    if length.number is not None or length in nodes.context.facts.sorted_lengths:
        return nodes.add_op(ops.Extent(axis), x)
    position_ids = nodes.context.facts.position_ids
    if role not in position_ids:
        position_ids[role] = nodes.add_op(ops.Extent(axis), x)
    return position_ids[role]


def has_index_variables(expr: ast.Index, env: LexicalScope) -> bool:
    """Return True if an index uses `h`, `i` or `j`, or a `b` that is not a variable."""
    if not env.index_variables:
        return False
    index_names = {item.path for item in expr.items if isinstance(item, ast.Name)}
    if index_names & set(PAIR_INDEX_ORDER):
        return True
    return BATCH_INDEX_NAME in index_names and BATCH_INDEX_NAME not in {*env.names, *env.config}


def index_tensor_with_variables(base: Tensor, expr: ast.Index, env: LexicalScope) -> Tensor:
    """Index a tensor with index variables. `keep[j]` of a tensor bool[b, k] becomes bool[b, 1, 1,
    k], or bool[b, 1, k] if the scores have no heads axis. `size[b]` of int[b] is int[b, 1, 1, 1]. A
    tensor without a batch axis has the same values for all batch elements.
    """
    index_names = [item.path if isinstance(item, ast.Name) else "" for item in expr.items]
    has_batch_index = index_names[0] == BATCH_INDEX_NAME
    index_names = index_names[1:] if has_batch_index else index_names
    _check_pair_read(base, expr, env, index_names)
    leading_rank = len(base.shape) - len(index_names)
    if leading_rank not in (0, 1) or has_batch_index > leading_rank:
        title = f"{describe_value(base)} does not have the axes of this index"
        helps = [
            "one axis per index, optionally after a batch axis: [batch] is read at "
            "`[b]`, [batch, keys] at `[j]`, [batch, queries, keys] at `[i, j]`, "
            "[heads, queries, keys] at `[h, i, j]`"
        ]
        raise_error("E0603", title, expr.span, helps=helps)
    nodes = NodeBuilder(env.context, expr.span)
    value, axis = base, leading_rank
    for name in PAIR_INDEX_ORDER if env.has_head_axis else PAIR_INDEX_ORDER[1:]:
        if name in index_names:
            axis += 1
        # the result has no batch axis if the tensor has none
        elif axis > 0:
            value = nodes.add_op(ops.Insert(axis), value)
            axis += 1
    return value


def _check_pair_read(
    base: Tensor, expr: ast.Index, env: LexicalScope, index_names: Sequence[str]
) -> None:
    """Raise E0603 if indices are repeated or unordered, or if `h` is used without a heads axis."""
    if (
        any(name not in PAIR_INDEX_ORDER for name in index_names)
        or sorted(index_names, key=PAIR_INDEX_ORDER.index) != index_names
    ):
        title = "the index variables are b (batch), h (head), i (query) and j (key)"
        helps = ["write them in the order b, h, i, j, each at most once"]
        raise_error("E0603", title, expr.span, helps=helps)
    if "h" in index_names and not env.has_head_axis:
        title = f"{describe_value(base)} is read per head, but there is no heads axis here"
        helps = ["`split_heads(x, heads)` adds a heads axis to queries and keys"]
        raise_error("E0603", title, expr.span, helps=helps)


def expand_to_mask_rank(builder: NodeBuilder, value: Tensor, score_rank: int = PAIR_RANK) -> Tensor:
    """Convert a tensor to a mask or bias with all four axes. If a tensor has as many axes as the
    scores (`score_rank`), its first axis is the batch axis, and missing axes are inserted after the
    batch axis.
    """
    if len(value.shape) > PAIR_RANK:
        title = "a mask or bias has at most four axes (batch, head, query, key), not "
        raise_error("E0603", title + describe_value(value), builder.span)
    axis = 1 if len(value.shape) == score_rank else 0
    while len(value.shape) < PAIR_RANK:
        value = builder.add_op(ops.Insert(axis), value)
    return value


MaskValue: TypeAlias = Tensor | bool
"""A mask over queries and keys: a boolean tensor, or one bool for all pairs."""

MAX_EXPANSION_DEPTH = 8
"""The maximum nesting depth of expanded definitions, which can take masks as arguments."""


def bind_definition(
    target: AttentionFunction, expr: ast.Call, env: LexicalScope
) -> AttentionFunction:
    """Bind arguments to a definition, as in `window(128)`. `env` is the scope of the caller."""
    definition = target.definition
    params = definition.params or ()
    if target.kind == "normalizer":
        params = params[1:]  # attention passes the scores as the first argument
    # `m = window(back=4)` may be called again as `m(ahead=1)`, and keeps its bound options
    arguments = dict(target.bound_arguments)
    for n, value in enumerate(expr.args):
        if n >= len(params):
            call = f"weights_by({definition.name}, s, mask=s > -inf)"
            title = f"`{definition.name}` expects {len(params)} arguments, got {len(expr.args)}"
            helps = [f"to normalize scores: `{call}`"] if target.kind == "normalizer" else []
            raise_error("E0211", title, value.span, helps=helps)
        arguments[params[n].name] = _evaluate_definition_argument(params[n], value, env)
    by_name = {p.name: p for p in params}
    for option in expr.options:
        if option.name not in by_name:
            raise_unknown_option_error(definition.name, option, by_name)
        arguments[option.name] = _evaluate_definition_argument(
            by_name[option.name], option.value, env
        )
    weight_path = expr.weights and ast.WeightPath(
        resolve_weight_path(expr.weights, env), span=expr.weights.span
    )
    function = replace(target, bound_arguments=arguments, weight_path=weight_path, span=expr.span)
    if weight_path:
        env.context.weights.sharing.record_definition_path(
            function, env.with_weight_scope(weight_path.text).scope
        )
    return function


def _evaluate_definition_argument(
    param: ast.DefinitionParameter, expr: ast.Expr, env: LexicalScope
) -> SpecValue:
    value = env.evaluate_value(expr)
    # a parameter without a type accepts any value, because tensors are checked when they are used
    if param.type is None or isinstance(value, Tensor):
        return value
    error_context = ErrorContext(f"`{param.name}`", expr.span)
    return convert_to_declared_type(param.type, value, env, error_context)


@contextmanager
def enter_function_scope(
    context: ElaborationContext, function: AttentionFunction
) -> Iterator[None]:
    """Return a context manager that records the expansion of a definition. Raise E0210 for
    unbounded recursion.
    """
    name = function.definition.name
    context.evaluator.check_step_estimate(
        function.definition, function.module, _get_definition_config(function), function.span
    )
    context.consume_steps(function.span, EXPANSION_COST + len(context.call_stack) // 8)
    chain = [*(c for c in context.call_stack if c.startswith("definition ")), f"definition {name}"]
    if chain.count(chain[-1]) > MAX_EXPANSION_DEPTH:
        # show a cycle such as `a → b → a` only once, although expansion has repeated it many times
        names = [c.removeprefix("definition ") for c in chain]
        start = names.index(name)
        cycle = [*names[start : names.index(name, start + 1)], name]
        title = f"`{name}` is defined in terms of itself: {' → '.join(cycle)}"
        helps = ["remove one of the references in this cycle"]
        raise_error("E0210", title, function.definition.name_span, helps=helps)
    context.call_stack.append(chain[-1])
    try:
        # attention layers with the same bound bias share the bias's weights without a `share` rule
        with (
            context.errors.track_user_call(function.span, is_standard=function.module.is_standard),
            context.weights.sharing.restore_call_path(function),
        ):
            yield
    except SpeccError as failed:
        raise _move_error_to_definition(failed, function) from None
    finally:
        context.call_stack.pop()


def _move_error_to_definition(error: SpeccError, function: AttentionFunction) -> SpeccError:
    """Return the error E0417 at the location of the call that bound the definition's arguments."""
    diagnostic, span = error.diagnostics[0], function.span
    if (
        diagnostic.code != "E0417"
        or diagnostic.primary is None
        or span is None
        or span.source is diagnostic.primary.span.source
    ):
        return error
    labels = (Label(diagnostic.primary.span, "checked here"), *diagnostic.related_labels)
    title, primary = f"`{function.name}`: {diagnostic.title}", Label(span, "passed here")
    return SpeccError(replace(diagnostic, title=title, primary=primary, related_labels=labels))


def expand_definition(
    context: ElaborationContext,
    function: AttentionFunction,
    index_variables: IndexVariables,
    names: Mapping[str, SpecValue],
    scope: str,
    *,
    has_head_axis: bool = True,
) -> SpecValue:
    """Evaluate a definition with the index variables `index_variables` and additional variables
    `names`. `has_head_axis` is True if the scores have a heads axis.
    """
    with enter_function_scope(context, function):
        return _evaluate_definition(
            context, function, index_variables, names, scope, has_head_axis=has_head_axis
        )


def _get_definition_config(function: AttentionFunction) -> Mapping[str, SpecValue]:
    """Return the config for evaluating a definition. It is empty if another file defines it."""
    env = function.env
    return env.config if env and env.module.root is function.module.root else EMPTY_NAMES


def _evaluate_definition(
    context: ElaborationContext,
    function: AttentionFunction,
    index_variables: IndexVariables,
    names: Mapping[str, SpecValue],
    scope: str,
    *,
    has_head_axis: bool = True,
) -> SpecValue:
    """Evaluate the expression of a definition. The scope contains the arguments of the definition,
    the variables `names` and the index variables. Raise E0211 if an argument is missing.
    """
    definition = function.definition
    env = LexicalScope(
        context=context,
        module=function.module,
        config=_get_definition_config(function),
        names=dict(names),
        scope=scope,
        index_variables=index_variables,
        has_head_axis=has_head_axis,
    )
    for param in definition.params or ():
        # evaluate arguments in order, because a default may use an earlier parameter
        if param.name in function.bound_arguments:
            env.names[param.name] = function.bound_arguments[param.name]
        elif param.default is not None:
            env.names[param.name] = env.evaluate_value(param.default)
        else:
            title = f"missing argument `{param.name}` of {definition.kind} `{definition.name}`"
            raise_error("E0211", title, function.span)
    return env.evaluate_value(definition.value)


def expand_mask(
    builder: NodeBuilder,
    mask: SpecValue,
    index_variables: IndexVariables,
    scope: str,
    score_rank: int = PAIR_RANK,
) -> MaskValue:
    """Expand a mask into a boolean tensor, or into True or False if all or no keys are visible.

    `score_rank` is the number of axes of the attention scores, without inserted axes.
    """
    span = builder.span
    builder.context.consume_steps(span)
    match mask:
        case bool():
            return mask
        case Tensor() as tensor:
            if tensor.type.dtype != "bool":
                title = f"a mask must be boolean, got {describe_value(tensor)}"
                raise_error("E0601", title, span, helps=["compare it: `x > 0`"])
            _check_mask_axes(tensor, index_variables, span)
            return expand_to_mask_rank(builder, tensor, score_rank)
        case MaskExpression(op, parts):
            # `all` and `none` remain bools, and all other operands are expanded to the same axes
            masks = [expand_mask(builder, p, index_variables, scope, score_rank) for p in parts]
            return _merge_masks(builder, op, masks)
        case AttentionFunction() if mask.kind == "mask":
            with enter_function_scope(builder.context, mask):
                # a definition may evaluate to an unexpanded mask, as in `mask m(a) = a & causal`
                value = _evaluate_definition(builder.context, mask, index_variables, {}, scope)
                inner_nodes = replace(builder, span=mask.span or span)
                return expand_mask(inner_nodes, value, index_variables, scope)
    raise_error("E0601", f"{describe_value(mask)} is not a mask", span)


def _check_mask_axes(mask: Tensor, index_variables: IndexVariables, span: Span | None) -> None:
    """Raise E0601 if a padding mask [batch, key] is used as a mask [query, key]."""
    if len(mask.shape) != 2 or "i" not in index_variables:
        return
    first_length, last_length = mask.shape
    is_query = first_length in (index_variables["i"].shape[0], Dim.from_value(1))
    if is_query or last_length != index_variables["j"].shape[0]:
        return
    title = f"a mask has the axes query and key; {describe_value(mask)} is a padding mask"
    source = mask.source_span.text if mask.source_span else ""
    name = source if source.isidentifier() and source != "mask" else "keep"
    raise_error("E0601", title, span, helps=[f"write `visible({name})`, which masks out padding"])


def _merge_masks(nodes: NodeBuilder, op: str, masks: list[MaskValue]) -> MaskValue:
    """Combine expanded masks with `&` or `|`, or negate a single mask (`not`)."""
    result, *rest = masks
    if op == "not" and isinstance(result, Tensor):
        return nodes.add_op(ops.Not(), result)
    if op == "not":
        return not result
    for mask in rest:
        # an operand that is a bool needs no node: `all & m` is `m`, and `all | m` is `all`
        if isinstance(result, bool):
            result = mask if result == (op == "&") else result
        elif isinstance(mask, bool):
            result = result if mask == (op == "&") else mask
        else:
            logical_op = ops.And() if op == "&" else ops.Or()
            (result,) = nodes.add_node(logical_op, [result, mask], op)
    return result


def expand_attention_bias(
    builder: NodeBuilder,
    bias: SpecValue,
    index_variables: IndexVariables,
    scope: str,
    score_rank: int = PAIR_RANK,
) -> Tensor | None:
    """Expand a bias into a float tensor, or return None for `none`. `score_rank` has the same
    meaning as in `expand_mask`.
    """
    if bias is None:
        return None
    if isinstance(bias, AttentionFunction) and bias.kind == "bias":
        bias_scope = scope
        if bias.weight_path:
            # the weights of a bias belong to the call that bound its arguments
            bias_env = bias.env
            assert bias_env is not None  # `bind_definition` sets `env`
            path = resolve_weight_path(bias.weight_path, bias_env)
            bias_scope = bias_env.with_weight_scope(path).scope
        bias = expand_definition(builder.context, bias, index_variables, {}, bias_scope)
        score_rank = PAIR_RANK
    if not isinstance(bias, Tensor) or bias.type.dtype == "bool":
        raise_error(
            "E0602", f"a bias must be a float tensor, got {describe_value(bias)}", builder.span
        )
    return expand_to_mask_rank(builder, bias, score_rank)
