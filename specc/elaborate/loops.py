"""`scan`: a body elaborated once for any row, cut out of the graph by what depends on
the row.

What a body mentions but does not change is computed outside, once: membership follows
from dependence.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from specc.elaborate import nodes
from specc.elaborate.bodies import cut_body
from specc.elaborate.context import Context, Env, Poisoned
from specc.elaborate.halting import Halting, halting_of
from specc.elaborate.values import POISON, Known, Tensor, describe, show_type
from specc.elaborate.walked import kept_rows, walked
from specc.ir import ops
from specc.ir.graph import Graph, Value
from specc.ir.ops.loop import without
from specc.lang import tree
from specc.text.diagnostic import Label, fail

NODES_A_STEP = 16
"""Nodes that are looked at in the time of one step."""


Carry: TypeAlias = Tensor | tuple["Carry", ...]
"""What a loop carries under one name: a tensor, or a list (of lists) of such."""

RunBody: TypeAlias = Callable[[Context, Sequence[tree.Statement], Env], object]
"""Runs the statements of a body; None unless they end in `return`."""


def run_scan(
    context: Context, statement: tree.Scan, env: Env, run_body: RunBody
) -> None:
    """Elaborate a loop and bind its carries and collected rows.

    The body is run once, on values that stand for one row and for what a step begins
    with; the nodes that this adds are then cut out of the graph as the body's own.
    """
    context.work(statement.span, 1 + len(context.builder.nodes) // NODES_A_STEP)
    scanned, length = walked(context, statement, env)
    axis = scanned[0].shape.index(length)
    keep = kept_rows(context, statement, env, length)
    starts = {name: _start(statement, name, env) for name in statement.carry}
    first_ones = [t for name, value in starts.items() for t in leaves(name, value)]
    halting = halting_of(statement, dict(first_ones))
    body, captures = _body(
        context,
        statement,
        env,
        run_body,
        starts,
        rows=[Value(without(x.type, axis)) for x in scanned],
        halting=halting,
    )
    op = ops.Scan(
        body=body,
        scanned=len(scanned),
        carries=len(first_ones),
        axis=axis,
        reverse=statement.reverse,
        masked=keep is not None,
        until=halting.place if halting else -1,
    )
    # in the order that the op's own docstring gives
    operands = [
        *([keep] if keep else []),
        *scanned,
        *(tensor for _, tensor in first_ones),
        *(Tensor(c) for c in captures),
    ]
    scope = env.scope or _home(op)
    results = iter(nodes.add(context, op, operands, statement.span, scope, "scan"))
    env.names.update({name: rebuilt(value, results) for name, value in starts.items()})
    env.names.update(zip(statement.collect, results, strict=True))


def _home(op: ops.Scan) -> str:
    """Where a loop of the outermost scope belongs: to the cell that makes what it carries,
    so that its states are called after that.
    """
    for value in op.nexts():
        made = op.body.made.get(value.node) if value.node else None
        if made and made.scopes:
            return made.scopes[0]
    return ""


def _body(
    context: Context,
    statement: tree.Scan,
    env: Env,
    run_body: RunBody,
    starts: Mapping[str, Carry],
    *,
    rows: Sequence[Value],
    halting: Halting | None,
) -> tuple[Graph, list[Value]]:
    """The graph of one step on these rows, and what it takes from outside.

    Its inputs are the rows and the carries, its outputs the next carries and what is
    collected, each in the order of the statement.
    """
    leaves_of = [pair for name, value in starts.items() for pair in leaves(name, value)]
    carries = {label: Value(tensor.type) for label, tensor in leaves_of}
    before = dict(zip(statement.variables, rows, strict=True))
    # what the body binds is seen in it alone; what is carried or collected comes out
    start = len(context.builder.nodes)
    inner = replace(env, names=dict(env.names))
    inner.names.update({n: Tensor(v, statement.span) for n, v in before.items()})
    state = iter([Tensor(v, statement.span) for v in carries.values()])
    inner.names.update({name: rebuilt(value, state) for name, value in starts.items()})
    with context.apart():
        returned = run_body(context, statement.body, inner)
    if returned is not None:
        fail("E0214", "`return` cannot stand inside `scan`", statement.span)
    # only now is every name bound to what it is after a step
    given = iter(carries.values())
    after = [
        value
        for name, start in starts.items()
        for value in _carried(statement, name, start, given, inner.names[name])
    ]
    collected = {n: _collected(statement, n, inner) for n in statement.collect}
    if halting is not None:
        before_it = list(carries.values())
        done = Tensor(before_it[halting.place])
        halting.check(done, {n: Tensor(v) for n, v in collected.items()}, "collected")
        after = halting.held(context, before_it, after)
        collected = {
            n: halting.emptied(context, done.value, v) for n, v in collected.items()
        }
    outputs = {f"next {n}": v for n, v in zip(carries, after, strict=True)}
    outputs.update(collected)
    return cut_body(context.builder, {**before, **carries}, outputs, start)


def leaves(name: str, value: Carry) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a carried value, a tensor or a list (of lists) of such, under the
    names messages use.
    """
    if isinstance(value, Tensor):
        yield name, value
    else:
        for n, item in enumerate(value):
            yield from leaves(f"{name}[{n}]", item)


def rebuilt(value: Carry, tensors: Iterator[Tensor]) -> Carry:
    """A value of the same form made of other tensors."""
    if isinstance(value, Tensor):
        return next(tensors)
    return tuple(rebuilt(item, tensors) for item in value)


def _start(statement: tree.Scan, name: str, env: Env) -> Carry:
    """What a carry is before the loop: a tensor, or a list of them, one a layer."""
    value = env.names.get(name)
    if value is POISON:
        raise Poisoned
    carry = _as_carry(value)
    if carry is None:
        helps = [f"set `{name}` before the loop, e.g. to zeros"]
        title = f"`{name}` is carried, but has no value before the loop"
        fail("E0305", title, statement.span, helps=helps)
    return carry


def _as_carry(value: Known) -> Carry | None:
    """The value, if it is made of nothing but tensors and lists that hold some."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, tuple) or not value:
        return None
    items: list[Carry] = []
    for item in value:
        carry = _as_carry(item)
        if carry is None:
            return None
        items.append(carry)
    return tuple(items)


def _carried(
    statement: tree.Scan,
    name: str,
    start: Carry,
    before: Iterator[Value],
    after: Known,
) -> Iterator[Value]:
    """What a carry is after a step, tensor by tensor: of the same form and types as before it."""
    if after is POISON:
        raise Poisoned
    if isinstance(start, Tensor):
        yield _carried_tensor(statement, name, after, next(before))
        return
    if not isinstance(after, tuple) or len(after) != len(start):
        now = f"a list of {len(after)}" if isinstance(after, tuple) else describe(after)
        title = f"`{name}` is carried as a list of {len(start)}, and the body makes it {now}"
        helps = ["`repeat … collect` makes a list, one item a turn"]
        fail("E0305", title, statement.span, helps=helps)
    for n, (item, was) in enumerate(zip(after, start, strict=True)):
        yield from _carried(statement, f"{name}[{n}]", was, before, item)


def _carried_tensor(
    statement: tree.Scan, name: str, after: Known, before: Value
) -> Value:
    # the very value of before: no statement of the body has set the name
    if not isinstance(after, Tensor) or after.value is before:
        helps = [f"set `{name}` in the body; what does not change needs no `carry`"]
        fail(
            "E0305",
            f"`{name}` is carried, but the body does not set it",
            statement.span,
            helps=helps,
        )
    if after.type != before.type:
        others = (
            [Label(statement.span, f"before the loop it is {show_type(before.type)}")]
            if statement.span
            else []
        )
        title = (
            f"`{name}` is carried and changes from {show_type(before.type)} to "
            f"{show_type(after.type)}"
        )
        mend = f"a linear map brings it back to its size: `{name} = linear(…, out=…)`"
        if after.type.dtype != before.type.dtype:
            mend = "`cast(x, to=float)` makes numbers of it"
        helps = [f"{mend}; or start `{name}` as what a step makes of it"]
        now = f"after a step it is {show_type(after.type)}"
        fail(
            "E0305",
            title,
            after.span or statement.span,
            now,
            others=others,
            helps=helps,
        )
    return after.value


def _collected(statement: tree.Scan, name: str, env: Env) -> Value:
    value = env.names.get(name)
    if value is POISON:
        raise Poisoned
    if not isinstance(value, Tensor):
        fail(
            "E0305",
            f"`{name}` is collected, but the body does not set it",
            statement.span,
        )
    return value.value
