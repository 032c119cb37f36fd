"""Print graphs as textual IR, one node per line. Source positions are not kept.

    specc-ir 1
    graph "main"
    input "x" %0: f32[batch, seq, 768]
    parameter "norm.weight" %1: f32[768] initial="ones" made_by=""
    %2: f32[batch, seq, 768] = rms_norm(%0, %1) {eps=1e-06} @ "layers.0"
    output "y" %2
    end

Values are numbered in order. An absent operand is `_`. The body of a scan stands
between the scan's line, which ends in `body`, and the next line; it has numbers of its
own. `specc.ir.ir_parser` is the inverse.
"""

import json
from collections.abc import Iterator

from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, NodeOrigin, Value

IR_HEADER = "specc-ir 1"


def format_ir(*graphs: Graph) -> str:
    """Print `graphs`, which must have different names. Equal graphs give equal texts."""
    assert len({g.name for g in graphs}) == len(graphs), "two graphs of one text have the same name"
    lines = [IR_HEADER]
    for graph in graphs:
        lines += _format_graph(graph, 0)
    return "\n".join(lines) + "\n"


def quote_string(text: str) -> str:
    """Quote a string in ASCII, with JSON escapes."""
    return json.dumps(text)


def _format_graph(graph: Graph, depth: int) -> Iterator[str]:
    indent = "  " * depth
    numbers: dict[Value, str] = {}

    def number_value(value: Value) -> str:
        numbers[value] = f"%{len(numbers)}"
        return f"{numbers[value]}: {value.type}"

    yield f"{indent}graph {quote_string(graph.name)}"
    for name, bound in graph.min_lengths.items():
        yield f"{indent}least {name} {bound}"
    for name, dim in graph.length_equations.items():
        yield f"{indent}fact {name} = {dim}"
    for name, value in graph.inputs.items():
        facts = graph.input_facts[name]
        keep = f" keep={quote_string(facts.keep)}" if facts.keep else ""
        below = "" if facts.below is None else f" below={facts.below}"
        yield f"{indent}input {quote_string(name)} {number_value(value)}{keep}{below}"
    for name, value in graph.parameters.items():
        parameter = graph.parameter_facts[name]
        said = (
            f"initial={quote_string(parameter.initial)} made_by={quote_string(parameter.made_by)}"
        )
        yield f"{indent}parameter {quote_string(name)} {number_value(value)} {said}"
    for node, results in graph.nodes:
        args = ", ".join(numbers[a] if a else "_" for a in node.args)
        made = ", ".join(map(number_value, results))
        yield from _format_node(
            node,
            f"{indent}{made} = {node.op.name}({args})",
            graph.node_origins.get(node, NodeOrigin()),
            depth,
        )
    for name, value in graph.names.items():
        yield f"{indent}name {quote_string(name)} {numbers[value]}"
    for name, value in graph.outputs.items():
        yield f"{indent}output {quote_string(name)} {numbers[value]}"
    yield f"{indent}end"


def _format_node(node: Node, start: str, made: NodeOrigin, depth: int) -> Iterator[str]:
    plain, bodies = [], []
    for name, value in node.op.attributes().items():
        if isinstance(value, Graph):
            bodies.append(value)
        else:
            plain.append(f"{name}={_format_attribute(value)}")
    assert len(bodies) <= 1, f"{node.op.name} has two bodies"
    attributes = f" {{{', '.join(plain)}}}" if plain else ""
    scopes = f" @ {', '.join(map(quote_string, made.scopes))}" if made.scopes else ""
    yield f"{start}{attributes}{scopes}{' body' if bodies else ''}"
    for body in bodies:
        yield from _format_graph(body, depth + 1)


def _format_attribute(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return quote_string(value)
        case Dim():
            return f"<{value}>"
        case tuple():
            return f"({', '.join(map(_format_attribute, value))})"
        case _:
            raise AssertionError(f"{value!r} has no text form")
