"""Bodies of loops and of experts: nodes cut out of a graph by what they depend on."""

from collections.abc import Container, Iterable

from specc.elaborate.row_numbers import made_outside
from specc.ir.graph import Builder, Graph, Input, Made, Node, Value


def cut_body(
    builder: Builder,
    inputs: dict[str, Value],
    outputs: dict[str, Value],
    own: str = "",
) -> tuple[Graph, list[Value]]:
    """The nodes between loop inputs and outputs as a graph of its own, and what it
    takes from outside. What has rows of the length `own`, which nobody knows outside,
    is inside too.
    """
    inside = dependent(builder.nodes, inputs.values(), own)
    outputs = made_outside(builder, inside, outputs)
    # again: row numbers that were made outside depend on no row any more
    inside = dependent(builder.nodes, inputs.values(), own)
    live, captured = _reached(inside, inputs.values(), outputs.values())
    # captures go in the order in which the graph made them, so that the same spec
    # gives the same body, however its outputs were walked
    order = {v: n for n, v in enumerate(_values(builder))}
    outer = sorted(captured, key=lambda v: order.get(v, -1))
    names = {**inputs, **{f"outer {n}": Value(v.type) for n, v in enumerate(outer)}}
    now = dict(zip([*inputs.values(), *outer], names.values(), strict=True))
    copies: list[tuple[Node, tuple[Value, ...]]] = []
    scopes: dict[Node, Made] = {}
    for old, results in builder.nodes.items():
        if old not in live:
            continue
        node = Node(old.op, tuple(now[a] if a else None for a in old.args))
        copies.append((node, tuple(Value(r.type, node, r.index) for r in results)))
        now.update(zip(results, copies[-1][1], strict=True))
        # a node of the body keeps the scope and the text it came from, for messages
        if old in builder.made:
            scopes[node] = builder.made[old]
    facts = {name: Input(v.type) for name, v in names.items()}
    given = {name: now[v] for name, v in outputs.items()}
    body = Graph(
        name="body",
        inputs=names,
        input_facts=facts,
        parameters={},
        parameter_facts={},
        nodes=tuple(copies),
        outputs=given,
        made=scopes,
    )
    return body, outer


def _reached(
    inside: Container[Node], inputs: Iterable[Value], outputs: Iterable[Value]
) -> tuple[set[Node], dict[Value, None]]:
    """The nodes inside the loop that its outputs need, and the values from outside that
    these read, each found from the outputs backwards.
    """
    live: set[Node] = set()
    captured: dict[Value, None] = {}
    ends = set(inputs)
    waiting = list(outputs)
    while waiting:
        value = waiting.pop()
        if value in ends:
            continue
        if value.node is None or value.node not in inside:
            captured[value] = None
        elif value.node not in live:
            live.add(value.node)
            waiting += [a for a in value.node.args if a]
    return live, captured


def _values(builder: Builder) -> Iterable[Value]:
    yield from builder.inputs.values()
    yield from builder.parameters.values()
    for results in builder.nodes.values():
        yield from results


def dependent(
    made: dict[Node, tuple[Value, ...]], leaves: Iterable[Value], length: str = ""
) -> dict[Node, None]:
    """Every node that reads one of `leaves`, directly or not, or gives rows of this
    length, in order.
    """
    moved = set(leaves)
    found: dict[Node, None] = {}
    for node, results in made.items():
        if any(a in moved for a in node.args if a) or (
            length and _rows_of(results[0], length)
        ):
            found[node] = None
            moved.update(results)
    return found


def _rows_of(value: Value, length: str) -> bool:
    """Whether an axis of a value follows from this length."""
    return any(d.number is None and length in d.symbols() for d in value.type.shape)
