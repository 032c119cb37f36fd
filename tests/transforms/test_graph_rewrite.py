"""Graph rewriting: rules are functions that match a node; names and source positions follow the
replacement."""

from specc.analysis.batch_independence import check_batch_independence, find_batch_symbol
from specc.analysis.check_report import analyze_graph
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Node, Value
from specc.ir.ir_printer_and_lexer import format_ir
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.op import Op
from specc.ir.types import Type
from specc.transforms.graph_rewrite import NodeOperands, NodeResults, rewrite_graph


def merge_transposes(build: GraphBuilder, op: Op, args: NodeOperands) -> NodeResults | None:
    """Merge two consecutive transposes."""
    match op, args:
        case ops.Transpose(order=order), (Value() as x,) if order == tuple(range(len(order))):
            return (x,)
        case ops.Transpose(order=outer), (
            Value(node=Node(op=ops.Transpose(order=inner), args=(Value() as x,))),
        ):
            return build.add_node(ops.Transpose(tuple(inner[n] for n in outer)), x)
    return None


def build_three_transposes() -> Graph:
    build = GraphBuilder()
    x = build.add_input("x", Input(Type.of("f32", Dim.symbol("a"), 2, 3)))
    y = x
    for n in range(3):
        y = build.add_op(ops.Transpose((1, 2, 0)), y, scope=f"turn.{n}")
        build.names[f"turn.{n}"] = y
    return build.build_graph(
        "main", {"y": build.add_op(ops.Pointwise("tanh"), y)}, min_lengths={"a": 1}
    )


def test_three_transposes_cancel_and_keep_their_name() -> None:
    once = rewrite_graph(build_three_transposes(), [merge_transposes])
    done = once
    for _ in range(2):
        done = rewrite_graph(done, [merge_transposes])
    assert find_graph_errors(once) == find_graph_errors(done) == []
    assert [n.op for n, _ in done.nodes] == [ops.Pointwise("tanh")]
    assert done.names["turn.2"] is done.inputs["x"]
    assert done.min_lengths == {"a": 1}


def test_without_rules_nothing_changes() -> None:
    assert format_ir(rewrite_graph(build_three_transposes(), [])) == format_ir(
        build_three_transposes()
    )


def test_graph_errors_are_described() -> None:
    graph = build_three_transposes()
    (node, _), *rest = graph.nodes
    wrong = Graph(
        name=graph.name,
        inputs=graph.inputs,
        input_facts=graph.input_facts,
        parameters={},
        parameter_facts={},
        nodes=tuple(rest),
        outputs=graph.outputs,
        node_origins={node: graph.node_origins[node]},
    )
    said = find_graph_errors(wrong)
    assert any("operand 1 is used before it is defined" in s for s in said)
    assert any("origin of a node that is not in the graph" in s for s in said)


def test_batch_dependence_is_reported() -> None:
    build = GraphBuilder()
    b, t = Dim.symbol("batch"), Dim.symbol("seq")
    x = build.add_input("x", Input(Type.of("f32", b, t)))
    mean = build.add_op(ops.Reduce("mean", 0), x)
    graph = build.build_graph("main", {"y": build.add_op(ops.Arith("sub"), x, mean)})
    assert find_batch_symbol(graph) == "batch"
    (warning,) = check_batch_independence(graph, "batch")
    assert (warning.code, warning.severity) == ("W0602", "warning")
    assert warning.title == "`mean` mixes elements along `batch`: each result depends on the others"
    apart = build.build_graph("main", {"y": build.add_op(ops.Reduce("sum", 1), x)})
    assert check_batch_independence(apart, "batch") == []


def test_analysis_report() -> None:
    build = GraphBuilder()
    x = build.add_input("x", Input(Type.of("f32", Dim.symbol("batch"), Dim.symbol("seq"))))
    build.add_input(
        "keep", Input(Type.of("bool", Dim.symbol("batch"), Dim.symbol("seq")), padding_side="right")
    )
    graph = build.build_graph("main", {"y": build.add_op(ops.Delay(1, 2, 0.0), x)})
    assert analyze_graph(graph, "x", "y").format_lines() == [
        "causal along seq",
        "  y[t] depends on positions t-2 to t",
        "batch elements are independent",
        "padding does not affect the outputs (keep: padding on the right), if padded values are finite "
        "and cause no overflow",
    ]
