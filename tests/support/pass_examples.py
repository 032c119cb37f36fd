"""Results of passes on small graphs as text, for golden files and for worked examples in
docstrings.

An example is a line `$ PASS words…` and graphs in IR text. A pass that changes graphs returns IR
text; an analysis returns one line per value, with its number in the text.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

from specc.analysis.attention_matrices import AttentionMatrix
from specc.analysis.batch_independence import check_batch_independence
from specc.analysis.causality import check_causality, check_causality_of_defaults, find_time_symbol
from specc.analysis.mask_bands import find_query_key_band
from specc.analysis.masked_constants import find_masked_constants
from specc.analysis.padding_check import check_padding
from specc.analysis.padding_dataflow import make_padding_dataflow
from specc.analysis.padding_facts import NO_PADDING_FACTS, PaddingFacts
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.diagnostics.diagnostic import Diagnostic, SpeccError
from specc.incremental.demand_propagation import compute_demanded_positions
from specc.incremental.demanded_positions import NEWEST_ONLY, DemandedPositionsContext
from specc.incremental.state_selection import find_recomputable_values
from specc.incremental.step_plan import StepPlan
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Value
from specc.ir.input_shapes_and_defaults import DEFAULTS_GRAPH_NAME
from specc.ir.ir_parser import parse_ir
from specc.ir.ir_printer_and_lexer import IR_HEADER, format_ir
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.model_definition import GenerateSection
from specc.ir.ops.loop import remove_axis
from specc.ir.ops.quantized import WeightLayout
from specc.ir.types import FULL_INTERVAL, Interval, Type
from specc.transforms import pass_pipeline
from specc.transforms.fuse_scan import fuse_scan
from specc.transforms.graph_quantization import quantize_graph
from specc.transforms.graph_rewrite import rewrite_graph
from specc.transforms.quantization_plan import (
    QUANTIZATION_KINDS,
    QuantizationKind,
    QuantizationOptions,
    choose_weight_formats,
)
from specc.transforms.split_scan import can_vectorize_op, split_scan, vectorize_op

Graphs = Mapping[str, Graph]
Words = Sequence[str]


def run_example(example: str) -> str:
    """Run the pass named in the first line on the graphs below it."""
    first, _, text = example.strip("\n").partition("\n")
    assert first.startswith("$ "), f"an example begins with `$ PASS`, not with {first}"
    name, *words = first[2:].split()
    graphs = parse_ir(f"{IR_HEADER}\n{text}\n")
    for graph in graphs.values():
        assert find_graph_errors(graph) == []
    return "\n".join(PASSES[name](graphs, words))


EXAMPLE_PATTERN = re.compile(r"^    \$ (?:.*\n)(?:    .*\n)+?    gives\n(?:    .*\n?)+", re.M)


def find_examples(docstring: str) -> list[tuple[str, str]]:
    """Return the worked examples of a docstring: the text above the line `gives`, and the text
    below it.
    """
    found = []
    for match in EXAMPLE_PATTERN.finditer(docstring + "\n"):
        # A backslash at the end of a line continues it; the indentation of the next line is kept.
        text = re.sub(r"(?<=\S) {2,}", " ", match.group())
        lines = [line[4:] for line in text.splitlines()]
        at = lines.index("gives")
        found.append(("\n".join(lines[:at]), "\n".join(lines[at + 1 :]).rstrip()))
    return found


def get_main_graph(graphs: Graphs) -> Graph:
    """Return the graph that is not the graph of defaults."""
    return next(g for n, g in graphs.items() if n != DEFAULTS_GRAPH_NAME)


def format_graphs(*graphs: Graph) -> list[str]:
    """Verify graphs and return them as IR text without the first line."""
    for graph in graphs:
        assert find_graph_errors(graph) == [], find_graph_errors(graph)
    return format_ir(*graphs).splitlines()[1:]


def number_values(graph: Graph) -> Iterator[tuple[str, Value]]:
    """Yield each value with its number, in the order of the text."""
    values = [*graph.inputs.values(), *graph.parameters.values()]
    values += [r for _, results in graph.nodes for r in results]
    yield from ((f"%{n}", v) for n, v in enumerate(values))


def get_value_number(graph: Graph, value: Value) -> str:
    """Return the number of a value."""
    return next(n for n, v in number_values(graph) if v is value)


def format_bound(number: float) -> str:
    """Return an interval bound as text: an integer, or infinity."""
    return {inf: "∞", -inf: "-∞"}.get(number) or str(int(number))


def format_interval(reach: Interval) -> str:
    """Return an interval as text, such as `[0, ∞]`."""
    return (
        "nothing" if reach.is_empty else f"[{format_bound(reach.low)}, {format_bound(reach.high)}]"
    )


# Rewrites.


def _inline(graphs: Graphs, words: Words) -> Iterable[str]:
    work = pass_pipeline.CompilerPassState(
        graph=get_main_graph(graphs), defaults=graphs[DEFAULTS_GRAPH_NAME]
    )
    return format_graphs(pass_pipeline.run_passes(work, ("inline",)).graph)


def _rewrite(graphs: Graphs, words: Words) -> Iterable[str]:
    rules = {"fuse_scan": fuse_scan, "split_scan": split_scan}
    return format_graphs(rewrite_graph(get_main_graph(graphs), [rules[w] for w in words]))


def _lift(graphs: Graphs, words: Words) -> Iterable[str]:
    """`$ lift ROWS AXIS INPUT…`: the graph is the body of a loop over these inputs."""
    length, axis, moving = Dim.symbol(words[0]), int(words[1]), set(words[2:])
    graph, b = get_main_graph(graphs), GraphBuilder()
    now: dict[Value, Value] = {}
    fixed = set(graph.parameters.values())
    for name, value in graph.parameters.items():
        now[value] = b.add_parameter(graph.parameter_facts[name])
    for name, value in graph.inputs.items():
        type_ = value.type
        if name in moving:
            shape = (*type_.shape[:axis], length, *type_.shape[axis:])
            type_ = Type(type_.dtype, shape)
            assert remove_axis(type_, axis) == value.type
        else:
            fixed.add(value)
        now[value] = b.add_input(name, Input(type_))
    for node, results in graph.nodes:
        moves = [a is not None and a not in fixed for a in node.args]
        if not can_vectorize_op(node.op, node.args, moves, axis):
            return [f"{get_value_number(graph, results[0])} {node.op.name}: stays in the loop"]
        args = [a and now[a] for a in node.args]
        now[results[0]] = vectorize_op(b, node.op, args, moves, axis, length)
    outputs = {n: now[v] for n, v in graph.outputs.items()}
    return format_graphs(b.build_graph(graph.name, outputs))


# Proofs.


def _flow(graphs: Graphs, words: Words) -> Iterable[str]:
    """`$ flow SYMBOL`."""
    graph = get_main_graph(graphs)
    found = trace_time_dataflow(graph, words[0])
    for name, value in number_values(graph):
        state = found.get_state(value)
        if state.is_time_dependent:
            said = [f"axis {a} reads {format_interval(r)}" for a, r in state.axes.items()]
            said += ["the newest position"] * state.is_last_position_only + [
                "all positions"
            ] * state.depends_on_all
            yield f"{name} {', '.join(said)}"
    for violation in found.violations:
        node, (result, *_) = violation.node, dict(graph.nodes)[violation.node]
        number = get_value_number(graph, result)
        yield f"violation at {number} {node.op.name}: {violation.reason}"


def _bands(graphs: Graphs, words: Words) -> Iterable[str]:
    """`$ bands QUERY KEY`: axes of the outputs."""
    graph, (query, key) = get_main_graph(graphs), map(int, words)
    for name, value in graph.outputs.items():
        true = find_query_key_band(AttentionMatrix(value, query, key))
        false = find_query_key_band(AttentionMatrix(value, query, key), is_negated=True)
        yield f"{name} is true within {format_interval(true)}, false within {format_interval(false)}"


def _beyond(graphs: Graphs, words: Words) -> Iterable[str]:
    """`$ beyond QUERY KEY`: axes of the outputs."""
    graph, (query, key) = get_main_graph(graphs), map(int, words)
    for name, value in graph.outputs.items():
        pairs = find_masked_constants(value, query, key).items()
        said = [f"{n:g} outside {format_interval(i)}" for n, i in pairs if i != FULL_INTERVAL]
        yield f"{name}: {', '.join(said) or 'nothing is seen'}"


def _titles(found: Sequence[Diagnostic], fine: str) -> list[str]:
    return [f"{d.code} {d.title}" for d in found] or [fine]


def _causality(graphs: Graphs, words: Words) -> Iterable[str]:
    """`$ causality INPUT OUTPUT…`."""
    graph, (growing, *outputs) = get_main_graph(graphs), words
    symbol = find_time_symbol(graph, growing)
    assert symbol
    return _titles(check_causality(graph, symbol, growing, outputs), f"causal along {symbol}")


def _defaults(graphs: Graphs, words: Words) -> Iterable[str]:
    """`$ defaults INPUT OUTPUT…`."""
    graph, (growing, *outputs) = get_main_graph(graphs), words
    symbol = find_time_symbol(graph, growing)
    assert symbol
    found = check_causality_of_defaults(
        graph, graphs[DEFAULTS_GRAPH_NAME], symbol, growing, outputs
    )
    return _titles(found, "the defaults stay what they are")


def _batch(graphs: Graphs, words: Words) -> Iterable[str]:
    """`$ batch SYMBOL`."""
    found = check_batch_independence(get_main_graph(graphs), words[0])
    return _titles(found, "batch elements are independent")


def _padding(graphs: Graphs, words: Words) -> Iterable[str]:
    return _titles(check_padding(get_main_graph(graphs)), "padding does not affect the outputs")


def _padded(graphs: Graphs, words: Words) -> Iterable[str]:
    """`$ padded KEEP`: values at padded positions of each value."""
    graph = get_main_graph(graphs)
    keep = graph.inputs[words[0]]
    states = make_padding_dataflow(
        graph, keep, graph.input_facts[words[0]].padding_side
    ).infer_graph_facts(graph)
    for name, value in number_values(graph):
        if said := ", ".join(_rows(states.get(value, NO_PADDING_FACTS))):
            yield f"{name} {said}"


def _rows(rows: PaddingFacts) -> Iterator[str]:
    for word in ("zero_pad_axes", "masked_fill_axes", "minimum_pad_axes", "finite_pad_axes"):
        if axes := getattr(rows, word):
            yield f"{word} {', '.join(map(str, sorted(axes)))}"
    for word in (
        "has_masked_fill",
        "has_masked_fill_at_padding",
        "possible_infinity_signs",
        "can_be_nan",
        "is_valid_index",
    ):
        if getattr(rows, word):
            yield word
    if rows.padding_count is None:
        yield "counts unevenly"
    elif rows.padding_count:
        yield "counts padding"
    if rows.rotary_embedding:
        yield "turned"
    if rows.padding_source:
        yield f"reached by padding through {rows.padding_source.node.op.name}"


# Derived graphs.


def _open(graph: Graph, words: Words) -> tuple[str, str, dict[str, str]]:
    """`INPUT OUTPUT=newest OUTPUT=new`: symbol, input along the time axis, positions of outputs."""
    growing, *rest = words
    symbol = find_time_symbol(graph, growing)
    assert symbol
    return symbol, growing, dict(w.split("=") for w in rest)


def format_demand(rows: float) -> str:
    """Return the number of required positions in words."""
    if rows == NEWEST_ONLY:
        return "the newest position"
    if rows == 0:
        return "the new positions"
    return "all positions" if rows == inf else f"{int(rows)} more"


def _demand(graphs: Graphs, words: Words) -> Iterable[str]:
    graph = get_main_graph(graphs)
    symbol, growing, outputs = _open(graph, words)
    found = trace_time_dataflow(graph, symbol)
    setting = DemandedPositionsContext(
        graph, found, (), frozenset(find_recomputable_values(graph, found, growing))
    )
    asked = {graph.outputs[n]: NEWEST_ONLY if r == "newest" else 0.0 for n, r in outputs.items()}
    needs = compute_demanded_positions(setting, asked)
    for name, value in number_values(graph):
        for axis, rows in needs.get(value, {}).items():
            yield f"{name} axis {axis}: {format_demand(rows)}"


def _plan(graphs: Graphs, words: Words) -> Iterable[str]:
    graph = get_main_graph(graphs)
    symbol, growing, outputs = _open(graph, words)
    plan = StepPlan.from_graph(graph, symbol, growing, outputs)
    yield f"lengths: {plan.new_chunk_count}, and {plan.past_chunk_count} from before"
    for name, value in number_values(graph):
        for axis, rows in plan.needs.get(value, {}).items():
            kept = ", cached" if value in plan.cached_values else ""
            yield f"{name} axis {axis}: {format_demand(rows)}{kept}"


def _keeping(graphs: Graphs, words: Words) -> Iterable[str]:
    graph = get_main_graph(graphs)
    symbol, growing, outputs = _open(graph, words)
    plan = StepPlan.from_graph(graph, symbol, growing, outputs)
    kept = [n for n, v in number_values(graph) if v in plan.cached_values]
    yield f"{', '.join(kept) or 'nothing'} is cached"
    work = _derived(graph, words)
    if work.derived_graphs:
        for name in work.derived_graphs.loop_invariant_inputs:
            yield f'"{name}" is passed to each step'


def _derived(graph: Graph, words: Words, last: str = "encode") -> pass_pipeline.CompilerPassState:
    _, growing, outputs = _open(graph, words)
    drawn, rows = next(iter(outputs.items()))
    work = pass_pipeline.CompilerPassState(
        graph=graph, generation=GenerateSection("t", growing, drawn), logits_positions=rows
    )
    return pass_pipeline.run_passes(work, pass_pipeline.list_passes_up_to(last))


def _step(graphs: Graphs, words: Words) -> Iterable[str]:
    try:
        return format_graphs(*_derived(get_main_graph(graphs), words, "step").graphs())
    except SpeccError as failed:
        return _titles(failed.diagnostics, "")


def _encode(graphs: Graphs, words: Words) -> Iterable[str]:
    encode = _derived(get_main_graph(graphs), words).derived_graphs.encode
    return format_graphs(encode) if encode else ["nothing is computed once"]


def _quantize(graphs: Graphs, words: Words) -> Iterable[str]:
    """`$ quantize KIND LAYOUT [layers]`: the graph, and the reasons why weights are not
    quantized.
    """
    kinds: dict[str, QuantizationKind] = {kind: kind for kind in QUANTIZATION_KINDS}
    layout: WeightLayout = "rows" if words[1] == "rows" else "columns"
    wish = QuantizationOptions(kind=kinds[words[0]])
    found = choose_weight_formats(
        get_main_graph(graphs), wish, layout, {}, has_quantized_lstm="layers" in words
    )
    yield from format_graphs(quantize_graph(get_main_graph(graphs), found.plan))
    yield from (f"{name} is kept: {why}" for name, why in found.unquantized_reasons.items())


PASSES: Mapping[str, Callable[[Graphs, Words], Iterable[str]]] = {
    "quantize": _quantize,
    "inline": _inline,
    "fuse_scan": lambda graphs, _: _rewrite(graphs, ["fuse_scan"]),
    "split_scan": lambda graphs, _: _rewrite(graphs, ["split_scan"]),
    "rewrite": _rewrite,
    "lift": _lift,
    "flow": _flow,
    "bands": _bands,
    "beyond": _beyond,
    "causality": _causality,
    "defaults": _defaults,
    "batch": _batch,
    "padding": _padding,
    "padded": _padded,
    "demand": _demand,
    "keeping": _keeping,
    "plan": _plan,
    "step": _step,
    "encode": _encode,
}
