"""`scan`: a body elaborated once for any row, cut out of the graph by what depends on the row.

What a body mentions but does not change is computed outside, once: membership follows from dependence.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from specc.elaborate import nodes
from specc.elaborate.context import Context, Env, Poisoned
from specc.elaborate.expressions import plain
from specc.elaborate.row_numbers import made_outside
from specc.elaborate.values import POISON, Tensor, describe, first, show_type
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Input, Made, Node, Value
from specc.ir.ops.loop import without
from specc.lang import tree
from specc.text.diagnostic import Label, fail

NODES_A_STEP = 16
"""Nodes that are looked at in the time of one step."""


def run_scan(context: Context, statement: tree.Scan, env: Env, run_body: Callable[..., Any]) -> None:
    """Elaborate a loop and bind its carries and collected rows."""
    context.work(statement.span, 1 + len(context.builder.nodes) // NODES_A_STEP)
    length = env.dims.get(statement.along) or env.names.get(statement.along) or Dim.symbol(statement.along)
    scanned = [_scanned(context, e, length, statement, env) for e in statement.over]
    axis = scanned[0].shape.index(length)
    keep = _keep(context, statement, env, length)
    starts = {name: _start(statement, name, env) for name in statement.carry}
    first_ones = [(label, t) for name, value in starts.items() for label, t in leaves(name, value)]
    rows = [Value(without(x.type, axis)) for x in scanned]
    carries = [Value(t.type) for _, t in first_ones]
    inner = replace(env, names=dict(env.names))
    inner.names.update({n: Tensor(v, statement.span) for n, v in zip(statement.variables, rows, strict=True)})
    state = iter([Tensor(v, statement.span) for v in carries])
    inner.names.update({name: rebuilt(value, state) for name, value in starts.items()})
    if run_body(context, statement.body, inner) is not None:
        fail("E0214", "`return` cannot stand inside `scan`", statement.span)
    before = iter(carries)
    after = [v for name, value in starts.items() for v in _carried(statement, name, value, before, inner)]
    collected = [_collected(statement, n, inner) for n in statement.collect]
    labels = [label for label, _ in first_ones]
    named = {**dict(zip(statement.variables, rows, strict=True)), **dict(zip(labels, carries, strict=True))}
    made = dict(zip((*(f"next {n}" for n in labels), *statement.collect), after + collected, strict=True))
    body, captures = cut_body(context.builder, named, made)
    op = ops.Scan(body, len(rows), len(carries), axis, statement.reverse, keep is not None)
    operands = [*([keep] if keep else []), *scanned, *(t for _, t in first_ones), *(Tensor(c) for c in captures)]
    results = iter(nodes.add(context, op, operands, statement.span, env.scope, "scan"))
    env.names.update({name: rebuilt(value, results) for name, value in starts.items()})
    env.names.update(zip(statement.collect, results, strict=True))


def leaves(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a carried value, a tensor or a list (of lists) of such, under the names messages use."""
    if isinstance(value, Tensor):
        yield name, value
    else:
        for n, item in enumerate(value):
            yield from leaves(f"{name}[{n}]", item)


def rebuilt(value: Any, tensors: Iterator[Tensor]) -> Any:
    """A value of the same form made of other tensors."""
    return next(tensors) if isinstance(value, Tensor) else tuple(rebuilt(item, tensors) for item in value)


def _scanned(context: Context, expr: Any, length: Dim, statement: tree.Scan, env: Env) -> Tensor:
    value = plain(context, expr, env)
    if not isinstance(value, Tensor):
        fail("E0304", f"`scan` walks over a tensor, not {describe(value)}", expr.span)
    if length not in value.shape:
        title = f"`{statement.along}` is no axis of what `scan` walks over"
        fail("E0304", title, expr.span, f"this is {show_type(value.type)}")
    return value


def _keep(context: Context, statement: tree.Scan, env: Env, length: Dim) -> Tensor | None:
    if statement.keep is None:
        return None
    value = plain(context, statement.keep, env)
    if value is None:
        return None
    if not isinstance(value, Tensor) or value.type.dtype != "bool" or value.shape[-1] != length:
        title = f"`keep` says which rows of `{statement.along}` exist: bool[batch, {statement.along}]"
        fail("E0305", title, statement.keep.span, f"this is {describe(value)}")
    return value


def _start(statement: tree.Scan, name: str, env: Env) -> Any:
    """What a carry is before the loop: a tensor, or a list of them, one a layer."""
    value = first(env.names.get(name))
    if value is POISON:
        raise Poisoned
    if not _carriable(value):
        helps = [f"set `{name}` before the loop, e.g. to zeros"]
        fail("E0305", f"`{name}` is carried, but has no value before the loop", statement.span, helps=helps)
    return value


def _carriable(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, tuple) and bool(value) and all(map(_carriable, value)))


def _carried(statement: tree.Scan, name: str, start: Any, before: Iterator[Value], env: Env) -> Iterator[Value]:
    """What a carry is after a step, tensor by tensor: of the same form and types as before it."""
    after = first(env.names[name])
    if after is POISON:
        raise Poisoned
    if isinstance(start, Tensor):
        yield _carried_tensor(statement, name, after, next(before))
        return
    if not isinstance(after, tuple) or len(after) != len(start):
        now = f"a list of {len(after)}" if isinstance(after, tuple) else describe(after)
        title = f"`{name}` is carried as a list of {len(start)}, and the body makes it {now}"
        fail("E0305", title, statement.span, helps=["`repeat … collect` makes a list, one item a turn"])
    for n, (item, was) in enumerate(zip(after, start, strict=True)):
        yield from _carried(statement, f"{name}[{n}]", was, before, replace(env, names={f"{name}[{n}]": item}))


def _carried_tensor(statement: tree.Scan, name: str, after: Any, before: Value) -> Value:
    if not isinstance(after, Tensor) or after.value is before:
        helps = [f"set `{name}` in the body; what does not change needs no `carry`"]
        fail("E0305", f"`{name}` is carried, but the body does not set it", statement.span, helps=helps)
    if after.type != before.type:
        others = [Label(statement.span, f"before the loop it is {show_type(before.type)}")] if statement.span else []
        title = f"`{name}` is carried and changes from {show_type(before.type)} to {show_type(after.type)}"
        mend = f"a linear map brings it back to its size: `{name} = linear(…, out=…)`"
        if after.type.dtype != before.type.dtype:
            mend = "cast(x, to=float) makes numbers of it"
        helps = [f"{mend}; or start `{name}` as what a step makes of it"]
        now = f"after a step it is {show_type(after.type)}"
        fail("E0305", title, after.span or statement.span, now, others=others, helps=helps)
    return after.value


def _collected(statement: tree.Scan, name: str, env: Env) -> Value:
    value = first(env.names.get(name))
    if value is POISON:
        raise Poisoned
    if not isinstance(value, Tensor):
        fail("E0305", f"`{name}` is collected, but the body does not set it", statement.span)
    return value.value


def cut_body(builder: Builder, inputs: dict[str, Value], outputs: dict[str, Value]) -> tuple[Graph, list[Value]]:
    """The nodes between loop inputs and outputs as a graph of its own, and what it takes from outside."""
    outputs = made_outside(builder, dependent(builder.nodes, inputs.values()), outputs)
    inside = dependent(builder.nodes, inputs.values())
    live: dict[Node, None] = {}
    captured: dict[Value, None] = {}
    todo = list(outputs.values())
    leaves = set(inputs.values())
    while todo:
        value = todo.pop()
        if value in leaves:
            continue
        if value.node is None or value.node not in inside:
            captured[value] = None
        elif value.node not in live:
            live[value.node] = None
            todo += [a for a in value.node.args if a]
    order = {v: n for n, v in enumerate(_values(builder))}
    outer = sorted(captured, key=lambda v: order.get(v, -1))
    names = {**inputs, **{f"outer {n}": Value(v.type) for n, v in enumerate(outer)}}
    now = dict(zip([*inputs.values(), *outer], names.values(), strict=True))
    kept: list[tuple[Node, tuple[Value, ...]]] = []
    scopes: dict[Node, Made] = {}
    for old, results in builder.nodes.items():
        if old in live:
            node = Node(old.op, tuple(now[a] if a else None for a in old.args))
            kept.append((node, tuple(Value(r.type, node) for r in results)))
            now.update(zip(results, kept[-1][1], strict=True))
            if old in builder.made:
                scopes[node] = builder.made[old]
    facts = {name: Input(v.type) for name, v in names.items()}
    given = {name: now[v] for name, v in outputs.items()}
    return Graph("body", names, facts, {}, {}, tuple(kept), given, made=scopes), outer


def _values(builder: Builder) -> Iterable[Value]:
    yield from builder.inputs.values()
    yield from builder.parameters.values()
    for results in builder.nodes.values():
        yield from results


def dependent(made: dict[Node, tuple[Value, ...]], leaves: Iterable[Value]) -> dict[Node, None]:
    """Every node that reads one of `leaves`, directly or not, in order."""
    moved = set(leaves)
    found: dict[Node, None] = {}
    for node, results in made.items():
        if any(a in moved for a in node.args if a):
            found[node] = None
            moved.update(results)
    return found
