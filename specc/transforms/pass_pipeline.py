"""The passes of `compile`, keyed by name and in the order in which they run.

    elaborated graph ─ inline ─ fuse_scan ─ split_scan ─┬─ quantize ─ narrow ─ lowering
                       (optional)                       │  (optional, for each graph)
                                                        └─ prove ─ step ─ encode

A pass maps a `CompilerPassState` to a new `CompilerPassState`. If `VERIFY_AFTER_PASSES` is set,
graphs are verified (`specc.ir.ir_verifier`) after each pass, so that the pass that produces an
invalid graph can be identified. `specc show --ir --print-after PASS` prints the result of a pass.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import NoReturn

from specc.analysis.causality import (
    check_causality,
    check_causality_of_defaults,
    check_streaming_causality,
    find_time_symbol,
)
from specc.analysis.time_axis_prefix_and_chunks import compute_chunk_size, express_length_in_chunks
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.incremental.step_graph import (
    DecodeStep,
    build_encoder_and_step_graphs,
    derive_step_graph,
)
from specc.incremental.step_plan import OutputPositions
from specc.ir import ops
from specc.ir.graph import Graph
from specc.ir.input_shapes_and_defaults import inline_defaults
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.model_definition import DerivedGraphs, GenerateSection, KVCacheNames, StreamSection
from specc.ir.ops.quantized import QuantizationPlan
from specc.transforms.fuse_scan import fuse_scan
from specc.transforms.graph_quantization import quantize_graph, quantize_kv_caches
from specc.transforms.graph_rewrite import RewriteRule, rewrite_graph
from specc.transforms.mixed_precision import (
    HalfDtype,
    convert_derived_graphs_to_half,
    convert_graph_to_half,
)
from specc.transforms.quantization_plan import QuantizationOptions, choose_weight_formats
from specc.transforms.split_scan import split_scan
from specc.transforms.transposed_weights_and_norm_folding import (
    find_linear_weights,
    transpose_stored_weights,
)

VERIFY_AFTER_PASSES: ContextVar[bool] = ContextVar("VERIFYING", default=False)
"""If True, graphs are verified after every pass, as with `--debug` and in tests."""


@dataclass(frozen=True, kw_only=True)
class CompilerPassState:
    """The input of a pass: the graph, the compile options, and the results of earlier passes.

    `defaults` is a graph that computes omitted inputs of `graph`. The pass `inline` adds this graph
    to `graph`. `generation` or `streaming` names the input with the time axis. The pass `chunk`
    expresses the size of the time axis in chunks of `chunk_length` positions. `logits_positions`
    selects the positions for which a step returns logits. If `evicts_positions` is False,
    sliding-window attention keeps positions outside the window. If `starts_without_prompt` is True,
    the encoder returns the logits for an empty prompt. `outputs` contains the outputs that a step
    can return, as found by `prove`. `quantization_plan` contains the formats of quantized weights
    (default: int8), and `half_dtype` is the 16-bit dtype of mixed precision. `decode_graph` is the
    result of the pass `step`, and `derived_graphs` is the result of the pass `encode`.
    """

    graph: Graph
    defaults: Graph | None = None
    generation: GenerateSection | None = None
    streaming: StreamSection | None = None
    chunk_length: int = 1
    logits_positions: OutputPositions = "newest"
    evicts_positions: bool = True
    starts_without_prompt: bool = False
    outputs: Mapping[str, OutputPositions] = field(default_factory=dict)
    quantization_plan: QuantizationPlan | None = None
    half_dtype: HalfDtype = "f16"
    decode_graph: DecodeStep | None = None
    derived_graphs: DerivedGraphs | None = None

    def get_sequence_input_and_outputs(self) -> tuple[str, tuple[str, ...]]:
        """Return the name of the input with the time axis, and the names of the generated or
        streamed outputs. Raise E0701 if no input has a time axis.
        """
        if self.generation is not None:
            return self.generation.sequence_input, (self.generation.logits_output,)
        if self.streaming is None:
            _raise_no_generated_sequence(self.graph)
        return self.streaming.sequence_input, self.streaming.streamed_outputs

    def graphs(self) -> tuple[Graph, ...]:
        """Return the graphs that are the result of the most recent passes."""
        if self.derived_graphs is not None:
            encode = (self.derived_graphs.encode,) if self.derived_graphs.encode else ()
            return *encode, self.derived_graphs.step
        if self.decode_graph is not None:
            return (self.decode_graph.graph,)
        return self.graph, *((self.defaults,) if self.defaults else ())


@dataclass(frozen=True)
class CompilerPass:
    """A pass of the compiler. If `is_optional` is True, the pass runs only if it is requested."""

    name: str
    description: str
    run: Callable[[CompilerPassState], CompilerPassState]
    is_optional: bool = False


def _run_inline(state: CompilerPassState) -> CompilerPassState:
    if state.defaults is None:
        return state
    graph = inline_defaults(state.graph, state.defaults)
    return replace(state, graph=graph, defaults=None)


def _rewrite_loops(state: CompilerPassState, rule: RewriteRule) -> CompilerPassState:
    """Apply a rewrite rule for loops to the graph. A graph without loops is returned unchanged."""
    has_loops = any(isinstance(node.op, ops.Scan) for node, _ in state.graph.nodes)
    return replace(state, graph=rewrite_graph(state.graph, [rule])) if has_loops else state


def _run_quantize(state: CompilerPassState) -> CompilerPassState:
    plan = state.quantization_plan
    if plan is None:
        plan = choose_weight_formats(state.graph, QuantizationOptions(kind="int8"), "rows", {}).plan
    return replace(state, graph=quantize_graph(state.graph, plan))


def _run_chunk(state: CompilerPassState) -> CompilerPassState:
    time_input, outputs = state.get_sequence_input_and_outputs()
    if state.streaming is None:
        return state
    symbol = _find_generated_symbol(state.graph, time_input)
    length = compute_chunk_size(state.graph, symbol, outputs)
    return replace(
        state, graph=express_length_in_chunks(state.graph, symbol, length), chunk_length=length
    )


def _find_generated_symbol(graph: Graph, time_axis_input: str, chunk_length: int = 1) -> str:
    """Return the symbolic dimension of the time axis. Raise E0702 if the input has no time axis."""
    symbol = find_time_symbol(graph, time_axis_input, chunk_length)
    if symbol is None:
        raise_error(
            "E0702",
            f"`{time_axis_input}` has no time axis: it has no dynamic axis after the batch axis",
        )
    return symbol


def _run_causality_check(state: CompilerPassState) -> CompilerPassState:
    """Check causality, and find the outputs that a step can return. Raise E0701 or E0702 if there
    is no time axis, and one of E0711 to E0718 if the graph is not causal.
    """
    graph, length = state.graph, state.chunk_length
    time_input, names = state.get_sequence_input_and_outputs()
    symbol = _find_generated_symbol(graph, time_input, length)
    errors = (
        check_causality(graph, symbol, time_input, names)
        if state.streaming is None
        else check_streaming_causality(graph, symbol, time_input, names, length)
    )
    if errors:
        raise SpeccError(*errors)
    if errors := check_causality_of_defaults(graph, state.defaults, symbol, time_input, names):
        raise SpeccError(*errors)
    outputs: dict[str, OutputPositions] = dict.fromkeys(names, state.logits_positions)
    flow = trace_time_dataflow(graph, symbol, length)
    for name, value in graph.outputs.items():
        # In addition to logits, a step can return every causal output that has one time axis.
        # Attention maps have two time axes, so a step cannot return them.
        has_single_axis = len(flow.get_state(value).axes) == 1
        if name in outputs or not has_single_axis:
            continue
        if not check_causality(graph, symbol, time_input, [name], length):
            outputs[name] = "new"
    return replace(state, outputs=outputs)


def _raise_no_generated_sequence(graph: Graph) -> NoReturn:
    """Raise E0701 for a model without generation settings. The help names the graph to use."""
    help_text = "add `generate NAME of INPUT from RESULT { … }` to the spec"
    if graph.name.endswith((" step", " encode")):
        help_text = "use the spec, or the graph `score`, from which it was derived"
    raise_error("E0701", f"`{graph.name}` has no generation settings", helps=[help_text])


def _run_step(state: CompilerPassState) -> CompilerPassState:
    time_input, (logits, *_) = state.get_sequence_input_and_outputs()
    decode_graph = derive_step_graph(
        state.graph,
        time_input,
        state.outputs,
        evicts_positions=state.evicts_positions,
        first_token_logits=logits if state.starts_without_prompt else "",
        chunk_length=state.chunk_length,
    )
    return replace(state, decode_graph=decode_graph)


def _run_encode(state: CompilerPassState) -> CompilerPassState:
    assert state.decode_graph is not None, "`step` runs first"
    return replace(state, derived_graphs=build_encoder_and_step_graphs(state.decode_graph))


ALL_PASSES = (
    CompilerPass("inline", "compute the defaults of inputs inside the graph", _run_inline, True),
    CompilerPass(
        "fuse_scan",
        "replace a loop over an RNN, GRU or LSTM cell with a recurrent layer",
        lambda state: _rewrite_loops(state, fuse_scan),
    ),
    CompilerPass(
        "split_scan",
        "hoist operations that do not depend on loop-carried values out of loops",
        lambda state: _rewrite_loops(state, split_scan),
    ),
    CompilerPass("quantize", "quantize weights", _run_quantize, True),
    CompilerPass(
        "narrow",
        "mixed precision",
        lambda state: replace(state, graph=convert_graph_to_half(state.graph, state.half_dtype)),
        True,
    ),
    CompilerPass(
        "chunk",
        "express the length of the time axis as a number of chunks (the product of the strides)",
        _run_chunk,
    ),
    CompilerPass("prove", "prove causality; does not change the graph", _run_causality_check),
    CompilerPass("step", "derive the decode step", _run_step),
    CompilerPass("encode", "derive the encoder", _run_encode),
)
"""Every pass that changes or checks graphs, in the order in which `compile` runs them."""

SIMPLIFY_PASSES = ("fuse_scan", "split_scan")
"""The passes that rewrite the loops of a graph with unquantized weights."""
LOOP_PASSES = ("split_scan",)
"""The passes that rewrite loops if weights are quantized. Loops over recurrent cells are kept."""
DERIVE_PASSES = ("chunk", "prove", "step", "encode")
"""The passes that derive the step and the encoder graph."""


def run_passes(state: CompilerPassState, names: Sequence[str]) -> CompilerPassState:
    """Run the passes listed in `names` on `state`, in the order of `ALL_PASSES`."""
    verified_graphs: tuple[Graph, ...] = ()
    for each_pass in ALL_PASSES:
        if each_pass.name in names:
            state = each_pass.run(state)
            graphs = state.graphs()
            new_graphs = [g for g in graphs if g not in verified_graphs]
            _verify_graphs(new_graphs, f"the pass `{each_pass.name}`")
            verified_graphs = graphs
    return state


def list_passes_up_to(last_pass: str) -> tuple[str, ...]:
    """Return the passes up to `last_pass`, without the optional passes before `last_pass`."""
    names = [p.name for p in ALL_PASSES]
    earlier_passes = ALL_PASSES[: names.index(last_pass)]
    return *(p.name for p in earlier_passes if not p.is_optional), last_pass


def _verify_graphs(graphs: Iterable[Graph | None], pass_name: str) -> None:
    """Verify the result of the pass `pass_name` if `VERIFY_AFTER_PASSES` is set."""
    for graph in graphs if VERIFY_AFTER_PASSES.get() else ():
        errors = find_graph_errors(graph) if graph else []
        assert not errors, f"after {pass_name}:\n" + "\n".join(errors)


def inline_default_inputs(graph: Graph, defaults: Graph) -> Graph:
    """Return `graph` with the default values of its inputs computed inside the graph."""
    return run_passes(CompilerPassState(graph=graph, defaults=defaults), ("inline",)).graph


def simplify_graph(graph: Graph, *, fuse_loops: bool = True) -> Graph:
    """Fuse loops into recurrent layers if `fuse_loops`, and move invariant nodes out of loops."""
    return run_passes(
        CompilerPassState(graph=graph), SIMPLIFY_PASSES if fuse_loops else LOOP_PASSES
    ).graph


def apply_quantization_plan(graph: Graph, plan: QuantizationPlan) -> Graph:
    """Return `graph` with its weights quantized in the formats of `plan`."""
    return run_passes(CompilerPassState(graph=graph, quantization_plan=plan), ("quantize",)).graph


def apply_int8_kv_cache(step: Graph, caches: Sequence[KVCacheNames]) -> Graph:
    """Return the graph `step` with the KV caches `caches` stored in int8."""
    quantized = quantize_kv_caches(step, caches)
    _verify_graphs([quantized], "the int8 KV caches")
    return quantized


def transpose_linear_weights(graph: Graph, names: Collection[str]) -> tuple[Graph, frozenset[str]]:
    """Return `graph` with transposed weights (layout `[in, out]`), and the names of these weights.
    Weights in `names` are transposed if only linear layers use them.
    """
    linear_names = find_linear_weights(graph) & frozenset(names)
    transposed = transpose_stored_weights(graph, linear_names) if linear_names else graph
    _verify_graphs([transposed], "the transposed matrices")
    return transposed, linear_names


def convert_to_half_precision(graph: Graph, half_dtype: HalfDtype) -> Graph:
    """Convert `graph` to mixed precision with the 16-bit type `half_dtype`."""
    return run_passes(CompilerPassState(graph=graph, half_dtype=half_dtype), ("narrow",)).graph


def convert_derived_graphs_to_half_precision(
    derived_graphs: DerivedGraphs, half_dtype: HalfDtype
) -> DerivedGraphs:
    """Convert the encoder and decode step to mixed precision, with KV caches in `half_dtype`."""
    converted = convert_derived_graphs_to_half(derived_graphs, half_dtype)
    _verify_graphs((converted.encode, converted.step), "the pass `narrow`")
    return converted


def run_decode_step_passes(state: CompilerPassState) -> DerivedGraphs:
    """Derive the encoder and the decode step. Raise E0711 to E0718 if the model is not causal."""
    derived_graphs = run_passes(state, DERIVE_PASSES).derived_graphs
    assert derived_graphs is not None
    return derived_graphs
