"""Elaborate `scan` loops: scanned tensors, loop-carried values, scan outputs and body graphs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from specc.diagnostics.diagnostic import Label, raise_error
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.loop_bodies_and_early_exit import EarlyExit, extract_body_graph, find_early_exit
from specc.frontend.node_builder import NodeBuilder
from specc.frontend.spec_values import (
    ERROR_VALUE,
    AlreadyReportedError,
    SpecValue,
    Tensor,
    describe_value,
    format_type,
)
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Value
from specc.ir.ops.loop import remove_axis
from specc.ir.types import Type
from specc.syntax import ast


def evaluate_scan_inputs(statement: ast.ScanLoop, env: LexicalScope) -> tuple[list[Tensor], int]:
    """Return the scanned tensors and the scan axis of the first tensor. A loop without `along`
    iterates over a range of indices.
    """
    if statement.along is None:
        count = _evaluate_iteration_count(statement, env)
        return [NodeBuilder(env.context, statement.span).add_op(ops.Range(count))], 0
    length = _resolve_scan_length(statement.along, env)
    scanned_tensors = [
        _check_scanned_tensor(e, length, statement, env) for e in statement.sequences
    ]
    # find the scan axis by its symbolic size, because axes with the same symbol have the same size
    return scanned_tensors, next(n for n, d in enumerate(scanned_tensors[0].shape) if d == length)


def _evaluate_iteration_count(statement: ast.ScanLoop, env: LexicalScope) -> Dim:
    """Evaluate the number of iterations of a loop without `along`."""
    expr = statement.sequences[0]
    value = env.evaluate_value(expr)
    if len(statement.sequences) > 1 or not isinstance(value, Dim):
        title = "`scan` over tensors requires `along`"
        label = f"this is {describe_value(value)}"
        helps = ["name the axis: `scan x in xs along n { … }`"]
        raise_error("E0304", title, expr.span, label, helps=helps)
    if value.number is not None and value.number < 0:
        raise_error(
            "E0216", f"the number of iterations must not be negative, got {value}", expr.span
        )
    return value


def _resolve_scan_length(along: ast.Expr, env: LexicalScope) -> Dim | None:
    """Return the dimension named after `along`, or None if the expression is not a dimension."""
    if isinstance(along, ast.Name):
        length = env.dims.get(along.path)
        if length is not None:
            return length
        # either the name after `along` is unknown, or no tensor has an axis of this declared size
        if along.path not in env.names and along.path not in env.config:
            return Dim.symbol(along.path)
    value = env.evaluate_value(along)
    return value if isinstance(value, Dim) else None


def _check_scanned_tensor(
    expr: ast.Expr, length: Dim | None, statement: ast.ScanLoop, env: LexicalScope
) -> Tensor:
    """Return the value of `expr`. Raise E0304 unless the value is a tensor with an axis of size
    `length`. If `length` is static, only one axis of the tensor may have this size.
    """
    value = env.evaluate_value(expr)
    if not isinstance(value, Tensor):
        raise_error("E0304", f"`scan`: expected a tensor, got {describe_value(value)}", expr.span)
    if length is None or length not in value.shape:
        source = format_scan_dimension(statement.along)
        title = f"the scanned tensor has no axis of length `{source}`"
        lengths = value.shape[1:] or value.shape
        helps = [f"write the length of an axis: `along {d}`" for d in lengths[:1]]
    elif length.number is not None and value.shape.count(length) > 1:
        title = f"the scanned tensor has several axes of length {length}"
        helps = [f"`repeat i in {length} {{ … }}` with `x[:, i]` iterates over one axis"]
    else:
        return value
    raise_error("E0304", title, expr.span, f"this is {format_type(value.type)}", helps=helps)


def format_scan_dimension(dim: ast.Expr | None) -> str:
    """Return the source text of `dim`, the dimension after `along`."""
    if isinstance(dim, ast.Name):
        return dim.path
    return dim.span.text if dim is not None and dim.span else str(dim)


def evaluate_scan_mask(statement: ast.ScanLoop, env: LexicalScope, length: Dim) -> Tensor | None:
    """Evaluate the padding mask of a loop, or return None if the loop has no `keep`. An iteration
    at a padded position leaves the loop-carried values unchanged.
    """
    if statement.keep is None:
        return None
    value = env.evaluate_value(statement.keep)
    if value is None:
        return None
    if not isinstance(value, Tensor) or value.type.dtype != "bool" or value.shape[-1] != length:
        length_text = format_scan_dimension(statement.along)
        title = f"`keep` must be a padding mask bool[batch, {length_text}]"
        raise_error("E0305", title, statement.keep.span, f"this is {describe_value(value)}")
    return value


NODES_PER_STEP = 16
"""The number of graph nodes that may be visited for one elaboration step."""


CarryValue: TypeAlias = Tensor | tuple["CarryValue", ...]
"""A loop-carried value: a tensor, or a (nested) list of tensors."""

RunBody: TypeAlias = Callable[[Sequence[ast.Statement], LexicalScope], object]
"""A function that runs the statements of a loop body. It returns None if nothing is returned."""


def elaborate_scan(statement: ast.ScanLoop, env: LexicalScope, run_body: RunBody) -> None:
    """Elaborate a loop, and bind the names of loop-carried values and scan outputs to the results.

    The body is elaborated once, for one time step and the initial loop-carried values. The added
    nodes are then extracted as the body graph.
    """
    env.context.consume_steps(statement.span, 1 + len(env.context.builder.nodes) // NODES_PER_STEP)
    scanned_tensors, axis = evaluate_scan_inputs(statement, env)
    keep = evaluate_scan_mask(statement, env, scanned_tensors[0].shape[axis])
    initial_carries = {name: _get_initial_carry(statement, name, env) for name in statement.carry}
    initial_tensors = _flatten_carries(initial_carries)
    early_exit = find_early_exit(statement, dict(initial_tensors))
    body, captures = _build_scan_body(
        statement,
        env,
        run_body,
        initial_carries,
        slices=[Value(remove_axis(x.type, axis)) for x in scanned_tensors],
        early_exit=early_exit,
    )
    op = ops.Scan(
        body=body,
        scanned_count=len(scanned_tensors),
        carry_count=len(initial_tensors),
        axis=axis,
        reverse=statement.reverse,
        has_mask=keep is not None,
        end_condition_index=early_exit.carry_index if early_exit else -1,
    )
    # the operands are in the order documented in `ops.Scan`
    operands = [
        *([keep] if keep else []),
        *scanned_tensors,
        *(tensor for _, tensor in initial_tensors),
        *(Tensor(c) for c in captures),
    ]
    scope = env.scope or _get_state_scope(op)
    results = iter(NodeBuilder(env.context, statement.span, scope).add_node(op, operands, "scan"))
    env.names.update(
        {
            name: unflatten_loop_carried_value(value, results)
            for name, value in initial_carries.items()
        }
    )
    env.names.update(zip(statement.collect, results, strict=True))


def _get_state_scope(op: ops.Scan) -> str:
    """Return the weight scope after which the states of an outermost loop are named, which is the
    scope of the cell that computes the loop-carried values.
    """
    for value in op.get_next_carries():
        origin = op.body.node_origins.get(value.node) if value.node else None
        if origin and origin.scopes:
            return origin.scopes[0]
    return ""


def _build_scan_body(
    statement: ast.ScanLoop,
    env: LexicalScope,
    run_body: RunBody,
    initial_carries: Mapping[str, CarryValue],
    *,
    slices: Sequence[Value],
    early_exit: EarlyExit | None,
) -> tuple[Graph, list[Value]]:
    """Return the graph of one iteration and the captured values.

    The inputs of the graph are the scanned slices and the loop-carried values. The outputs of the
    graph are the next loop-carried values and the scan outputs. Inputs and outputs are in the order
    of the statement.
    """
    carries = {label: Value(tensor.type) for label, tensor in _flatten_carries(initial_carries)}
    inputs = dict(zip(statement.variables, slices, strict=True))
    start_index = len(env.context.builder.nodes)
    # names bound in the body are local, except the names of loop-carried values and scan outputs
    carry_tensors = (Tensor(v, statement.span) for v in carries.values())
    names = env.names | {n: Tensor(v, statement.span) for n, v in inputs.items()}
    names |= {
        name: unflatten_loop_carried_value(value, carry_tensors)
        for name, value in initial_carries.items()
    }
    body_env = replace(env, names=names)
    with env.context.enter_position_id_scope():
        returned = run_body(statement.body, body_env)
    if returned is not None:
        raise_error("E0214", "`return` is not allowed inside `scan`", statement.span)
    # `names` now contains the values of all names at the end of the iteration
    values_before = iter(carries.values())
    next_carries = [
        value
        for name, initial in initial_carries.items()
        for value in _check_loop_carried_value(statement, name, initial, values_before, names[name])
    ]
    scan_outputs = {n: _get_scan_output(statement, n, body_env) for n in statement.collect}
    if early_exit is not None:
        previous_carries = [*carries.values()]
        nodes = NodeBuilder(env.context, early_exit.span)
        next_carries = early_exit.freeze_finished_carries(nodes, previous_carries, next_carries)
        scan_outputs = early_exit.zero_finished_outputs(nodes, previous_carries, scan_outputs)
    outputs = {f"next {n}": v for n, v in zip(carries, next_carries, strict=True)}
    outputs.update(scan_outputs)
    return extract_body_graph(env.context.builder, {**inputs, **carries}, outputs, start_index)


def flatten_loop_carried_value(name: str, value: CarryValue) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) for each tensor of a loop-carried value, which may be a nested list."""
    if isinstance(value, Tensor):
        yield name, value
    else:
        for n, item in enumerate(value):
            yield from flatten_loop_carried_value(f"{name}[{n}]", item)


def _flatten_carries(carries: Mapping[str, CarryValue]) -> list[tuple[str, Tensor]]:
    """Return (name, tensor) for each tensor of all loop-carried values."""
    return [t for name, value in carries.items() for t in flatten_loop_carried_value(name, value)]


def unflatten_loop_carried_value(value: CarryValue, tensors: Iterator[Tensor]) -> CarryValue:
    """Return a loop-carried value that has the structure of `value` and contains `tensors`."""
    if isinstance(value, Tensor):
        return next(tensors)
    return tuple(unflatten_loop_carried_value(item, tensors) for item in value)


def _get_initial_carry(statement: ast.ScanLoop, name: str, env: LexicalScope) -> CarryValue:
    """Return the initial value of a loop-carried name, which is a tensor or a list of tensors."""
    value = env.names.get(name)
    if value is ERROR_VALUE:
        raise AlreadyReportedError
    carry = _convert_to_carry(value)
    if carry is None:
        helps = [f"initialize `{name}` before the loop, for example with zeros"]
        title = f"`{name}` is carried, but has no value before the loop"
        raise_error("E0305", title, statement.span, helps=helps)
    return carry


def _convert_to_carry(value: SpecValue) -> CarryValue | None:
    """Return a tensor or a (nested) non-empty list of tensors, or None for other values."""
    if isinstance(value, Tensor):
        return value
    items = tuple(map(_convert_to_carry, value)) if isinstance(value, tuple) else ()
    carries = tuple(item for item in items if item is not None)
    return carries if carries and len(carries) == len(items) else None


def _check_loop_carried_value(
    statement: ast.ScanLoop,
    name: str,
    initial: CarryValue,
    values_before: Iterator[Value],
    next_value: SpecValue,
) -> Iterator[Value]:
    """Yield the tensors that a loop-carried value contains after an iteration. Raise E0305 for a
    changed type.
    """
    if next_value is ERROR_VALUE:
        raise AlreadyReportedError
    if isinstance(initial, Tensor):
        yield _check_loop_carried_tensor(statement, name, next_value, next(values_before))
        return
    if not isinstance(next_value, tuple) or len(next_value) != len(initial):
        actual = (
            f"a list of {len(next_value)}"
            if isinstance(next_value, tuple)
            else describe_value(next_value)
        )
        title = f"`{name}` is carried as a list of {len(initial)}, but the body sets it to {actual}"
        helps = ["`repeat … collect` creates a list with one item per iteration"]
        raise_error("E0305", title, statement.span, helps=helps)
    for n, (item, initial_item) in enumerate(zip(next_value, initial, strict=True)):
        yield from _check_loop_carried_value(
            statement, f"{name}[{n}]", initial_item, values_before, item
        )


def _check_loop_carried_tensor(
    statement: ast.ScanLoop, name: str, next_value: SpecValue, previous_value: Value
) -> Value:
    """Return a loop-carried tensor after an iteration. Raise E0305 if the type has changed."""
    # if the body does not assign a name, the name still has the same object as before the iteration
    if not isinstance(next_value, Tensor) or next_value.value is previous_value:
        helps = [f"set `{name}` in the body, or remove it from `carry`"]
        raise_error(
            "E0305",
            f"`{name}` is carried, but the loop body does not assign it",
            statement.span,
            helps=helps,
        )
    if next_value.type != previous_value.type:
        type_before, type_after = format_type(previous_value.type), format_type(next_value.type)
        related_labels = Label.tuple_from_span(
            statement.span, f"before the loop it is {type_before}"
        )
        title = f"the loop-carried value `{name}` changes from {type_before} to {type_after}"
        suggestion = f"project it back to its size: `{name} = linear(…, out=…)`"
        if axis := _find_broadcast_axis(previous_value.type, next_value.type):
            n, length = axis
            suggestion = (
                f"expand it before the loop: `{name} = expand({name}, axis={n}, length={length})`"
            )
        if next_value.type.dtype != previous_value.type.dtype:
            suggestion = "convert it: `cast(x, to=float)`"
        helps = [f"{suggestion}; or give `{name}` this type before the loop"]
        label, span = (
            f"after an iteration it is {type_after}",
            next_value.source_span or statement.span,
        )
        raise_error("E0305", title, span, label, related_labels=related_labels, helps=helps)
    return next_value.value


def _find_broadcast_axis(before: Type, after: Type) -> tuple[int, Dim] | None:
    """Return the index of the axis of size 1 that the body broadcasts, and its new size."""
    if before.dtype != after.dtype or len(before.shape) != len(after.shape):
        return None
    changed_axes = [n for n, d in enumerate(before.shape) if d != after.shape[n]]
    if len(changed_axes) != 1 or before.shape[changed_axes[0]].number != 1:
        return None
    return changed_axes[0], after.shape[changed_axes[0]]


def _get_scan_output(statement: ast.ScanLoop, name: str, env: LexicalScope) -> Value:
    """Return the value of a scan output after an iteration. Raise E0305 if it is not a tensor."""
    value = env.names.get(name)
    if value is ERROR_VALUE:
        raise AlreadyReportedError
    if not isinstance(value, Tensor):
        message = f"`{name}` is collected, but the loop body does not assign it"
        raise_error("E0305", message, statement.span)
    return value.value
