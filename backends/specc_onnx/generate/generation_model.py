"""Build a self-decoding model: encoder, then an ONNX `Loop` around the decode step.

The step is lowered into the loop's body by the usual rules; the first iteration takes the
whole prompt, later ones one token per row. Caches grow as carries: a body updates nothing in
place, so buffers of fixed size would be copied at every token. Weights and encoder outputs
stay in the main graph, where the body sees them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from onnx import TensorProto

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.model import DecodeState, SelfDecodingGraph
from specc.ir.target import Target
from specc.ir.types import Type
from specc_onnx.emit.onnx_graph import BuiltModel, add_parameters, finish_model
from specc_onnx.generate.decoding_strategies import LoopCarry, StrategyInputs, make_strategy
from specc_onnx.generate.generation_context import (
    MAX_TOKENS_INPUT,
    GenerationContext,
    GenerationParts,
    list_scalar_inputs,
)
from specc_onnx.generate.generation_loop_body import (
    LoopIteration,
    build_generation_body,
    hoist_invariant_nodes,
)
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.dynamic_shapes import LengthResolver
from specc_onnx.lower.emitter import Emitter, make_unique_name
from specc_onnx.lower.emitter_state import LoweringSite, NameTable, Tensor
from specc_onnx.lower.onnx_targets import ONNX_TYPE_CODES
from specc_onnx.lower.rules import lower_nodes
from specc_onnx.lower.tensor_helpers import (
    emit_cast,
    emit_full,
    emit_indices_without_padding,
    make_typed_tensor,
)


def build_generation_model(
    whole: SelfDecodingGraph,
    target: Target,
    opset: int = onnx_targets.DEFAULT_OPSET,
    stored: Mapping[str, str] | None = None,
    ties: Mapping[str, str] | None = None,
) -> BuiltModel:
    """Build the self-decoding model; `stored` and `ties` as in `build_model`. Inputs are
    `GenerationParts.inputs` and `list_scalar_inputs`, outputs `tokens` and `log_probs` or, for beam
    search, `scores`. Names that the spec has already are numbered.
    """
    onnx_targets.check_opset(opset)
    ingredients = GenerationParts.of(whole)
    work = _make_generation_context(ingredients, target, opset)
    g = work.g
    weights = add_parameters(g, ingredients.parameters, stored or {}, ties or {})
    # Reported before anything is written: the loop has no value for such an input.
    for name in work.per_token_inputs:
        if not work.whole.graph.input_facts[name].keep:
            _raise_unknown_symbol(name, work.derived.growing)
    lower_encoder(work)
    turn = _make_loop_iteration(work)
    body = build_generation_body(work, turn)
    g.site = LoweringSite(("generate",))
    # A batch of size 0 has no newest token: the loop is skipped, and the results are the initial
    # carries.
    some = g.node("Greater", g.dim(work.batch), g.constant(0, "i64"))
    firsts = (c.first for c in turn.carries)
    last = g.nodes(
        "Loop", len(turn.carries), work.scalars[MAX_TOKENS_INPUT], some, *firsts, body=body
    )
    outputs = turn.chooser.outputs(g, last[len(turn.feed) + len(turn.states) :])
    inputs = _list_model_inputs(work)
    taken = set(inputs)
    named = {make_unique_name(n, taken): t for n, t in outputs.items()}
    return finish_model(g, work.whole.graph, inputs, named, weights)


def _make_generation_context(
    whole: GenerationParts, target: Target, opset: int
) -> GenerationContext:
    """Return the context before any node is emitted."""
    graph, derived, decoding = whole.graph, whole.derived, whole.decoding
    types = dict(whole.inputs)
    taken = set(types)
    # An input of the spec may be called `seed` or `max_tokens` and keeps its name.
    scalars = {name: make_unique_name(name, taken) for name in list_scalar_inputs(decoding)}
    # An optional input determines no length: it may be absent, with an empty shape.
    told = {n: t for n, t in types.items() if n not in whole.optional}
    lengths = LengthResolver(told, graph.facts, graph.least)
    shape = graph.inputs[derived.growing].type.shape
    assert len(shape) == 2, f"{derived.growing} is not a token sequence per batch element"
    batch = shape[0]
    beams = decoding.num_beams if decoding.strategy == "beam" else 1
    static_inputs = (derived.step.inputs[n].type for n in derived.static_inputs)
    fixed = any(batch in t.shape for t in static_inputs)
    return GenerationContext(
        whole=whole,
        g=Emitter(
            target=target,
            opset=opset,
            lengths=lengths,
            names=NameTable({*types, *scalars.values()}, graph=graph.name),
        ),
        types=types,
        scalars=scalars,
        outer={n: Tensor(n, t) for n, t in types.items()},
        batch=batch,
        repeats=beams if fixed else 1,
    )


def _make_loop_iteration(work: GenerationContext) -> LoopIteration:
    """Return the loop's carries, with initial values emitted into the main graph."""
    g = work.g
    fed = [
        make_prompt_carry(work),
        *(make_mask_carry(work, name) for name in work.per_token_inputs),
    ]
    states = [make_state_carry(work, s) for s in work.derived.states]
    static_inputs = {n: get_encoder_output(work, n) for n in work.derived.static_inputs}
    logits = work.derived.step.outputs[work.decoding.source].type
    vocabulary = logits.shape[-1].number
    assert vocabulary is not None, "the number of tokens is known"
    g.site = LoweringSite(("choose",))
    prompt = emit_cast(g, fed[0].first, fed[0].type.dtype, "i64")
    start = StrategyInputs(
        batch=work.batch,
        vocabulary=vocabulary,
        rows=work.rows,
        scalars=work.scalars,
        prompt=prompt,
        keep=find_prompt_mask(work),
    )
    chooser = make_strategy(g, work.decoding, start)
    first = find_first_logits(work)
    return LoopIteration(
        feed=fed,
        states=states,
        chooser=chooser,
        static_inputs=static_inputs,
        hoisted=hoist_invariant_nodes(work, static_inputs),
        first=first,
        empty=None if first is None else find_empty_prompts(work),
    )


def _list_model_inputs(work: GenerationContext) -> dict[str, Type]:
    """Return the inputs of the model: the spec's, then the scalars."""
    scalars = list_scalar_inputs(work.decoding).items()
    return {**work.types, **{work.scalars[n]: Type(t, ()) for n, t in scalars}}


def _raise_unknown_symbol(name: str, growing: str) -> NoReturn:
    raise_error(
        "E0944",
        f"`{name}` has no value for generated positions of `{growing}`",
        notes=["inside a standalone generator only the padding mask is known"],
        helps=[f"add a default in the spec: `{name}: … = expression of {growing}`"],
    )


def lower_encoder(work: GenerationContext) -> None:
    """Write the first row, absent inputs, and `encode`."""
    g, whole = work.g, work.whole
    begun = _emit_begin_token(work) if whole.started else None
    # Defaults before `encode`, which may read them.
    for graph in (*whole.computed, work.derived.encode):
        if graph is None:
            continue
        work.bind_inputs(graph, work.outer)
        lower_nodes(g, graph)
        for name, value in graph.outputs.items():
            tensor = g.values.tensors[value]
            if begun and name in whole.keeps:
                # the first position exists even if it is the pad token
                either = g.node("Or", tensor.name, begun)
                tensor = replace(tensor, name=either, value=None)
            work.outer[name] = tensor


def _emit_begin_token(work: GenerationContext) -> str | None:
    """Write the first row where no prompt is given, and that it exists; gives whether
    that is so, bool[1]. None where a text begins without a row.
    """
    g = work.g
    g.site = LoweringSite(("start",))
    growing = work.derived.growing
    type, absent = work.types[growing], None
    rows = _emit_optional_input(work, growing)
    if not work.whole.begins:
        absent = g.node("Equal", g.node("Shape", rows, start=1, end=2), g.vector(0))
        # Columns that are prepended or not, without an `If`, whose branches must have one shape.
        tokens = g.constant([list(work.decoding.start)], type.dtype)
        many = g.node("Concat", g.shape([work.batch]), g.vector(1), axis=0)
        count = g.node(
            "Mul", emit_cast(g, absent, "bool", "i64"), g.vector(len(work.decoding.start))
        )
        start = g.node("Expand", tokens, many)
        start = g.node("Slice", start, g.vector(0), count, g.vector(1))
        rows = g.node("Concat", start, rows, axis=1)
    work.outer[growing] = Tensor(rows, type)
    # From here on the prompt length is that of this value: the input's own may be 0 if one position
    # is read.
    g.lengths = replace(g.lengths, inputs={**g.lengths.inputs, rows: type})
    for name in work.whole.optional:
        if name != growing:
            work.outer[name] = _emit_extended_mask(work, name, rows)
    return absent


def _emit_extended_mask(work: GenerationContext, name: str, rows: str) -> Tensor:
    """Emit a mask input extended to the length of `rows`: missing leading positions are True."""
    g = work.g
    known = _emit_optional_input(work, name)
    more = g.node(
        "Sub", g.node("Shape", rows, start=1, end=2), g.node("Shape", known, start=1, end=2)
    )
    front = g.node("Concat", g.shape([work.batch]), more, axis=0)
    exist = g.node("Expand", g.constant(True, "bool"), front)
    return Tensor(g.node("Concat", exist, known, axis=1), work.types[name])


def _emit_optional_input(work: GenerationContext, name: str) -> str:
    """Emit an optional input `[batch, n]`; when it is omitted, n is 0."""
    g = work.g
    # In ONNX an initializer with an input's name is its default, so that callers may omit the
    # input. Its batch of 1 is expanded to the actual one.
    code = ONNX_TYPE_CODES[work.types[name].dtype]
    g.values.constants[name] = TensorProto(name=name, data_type=code, dims=[1, 0])
    shape = g.node("Concat", g.shape([work.batch]), g.vector(1), axis=0)
    return g.node("Expand", name, shape)


def make_prompt_carry(work: GenerationContext) -> LoopCarry:
    """Build the carry of the token ids; its initial value is the whole prompt."""
    growing = work.derived.growing
    ids = work.outer[growing]
    keeps = (n for graph in work.whole.computed for n in graph.outputs)
    for name in keeps:
        # A mask inside the model is computed from the pad id, which may be -1: no valid index of
        # any table. A spec that never uses the ids as indices may read the original ids.
        if name in work.whole.keeps and _is_lookup_index(work.derived.step, growing):
            ids = Tensor(emit_indices_without_padding(work.g, ids, work.outer[name]), ids.type)
    return LoopCarry(growing, work.derived.step.inputs[growing].type, work.repeat_for_beams(ids))


def _is_lookup_index(step: Graph, name: str) -> bool:
    """Return whether an embedding reads the input directly as its indices."""
    ids = step.inputs[name]
    readers = [node.op for node, _ in step.nodes if ids in node.args]
    return any(isinstance(op, ops.Embedding) for op in readers)


def make_mask_carry(work: GenerationContext, name: str) -> LoopCarry:
    """Build the carry of an input other than the token ids, with its value at the first step."""
    type = work.derived.step.inputs[name].type
    return LoopCarry(name, type, work.repeat_for_beams(work.outer[name]))


def make_state_carry(work: GenerationContext, state: DecodeState) -> LoopCarry:
    """Build the carry of a state; its initial value is an output of `encode`, or empty."""
    if state.initial:
        initial = work.repeat_for_beams(work.outer[state.initial], state.batch)
        return LoopCarry(state.name, state.type, initial)
    lengths = {str(work.batch): work.rows}
    # A cache starts empty; a state without a time axis, such as that of a recurrent layer, starts
    # as zeros of its full shape.
    shape = [
        Dim.of(0) if n == state.rows else d.substitute(lengths)
        for n, d in enumerate(state.type.shape)
    ]
    work.g.site = LoweringSite(("states",))
    return LoopCarry(state.name, state.type, emit_full(work.g, 0, state.type.dtype, shape))


def get_encoder_output(work: GenerationContext, name: str) -> Tensor:
    """Return a value that every step reads unchanged, captured from the main graph."""
    type = work.derived.step.inputs[name].type
    known = make_typed_tensor(work.outer[name].name, type.dtype, type.shape)
    return Tensor(work.repeat_for_beams(known), type)


def find_prompt_mask(work: GenerationContext) -> str | None:
    """Return the padding mask of the prompt, bool[rows, n], or None if the model has none."""
    for name in work.whole.keeps:
        if name in work.outer:
            return work.repeat_for_beams(work.outer[name])
    return None


def find_first_logits(work: GenerationContext) -> Tensor | None:
    """Return the logits of the first token of a sequence without a prompt, f32[rows,
    vocabulary], or None if every sequence needs a token.
    """
    name, g = work.derived.first, work.g
    if not work.whole.begins:
        return None
    made = work.outer[name]
    g.site = LoweringSite(("start",))
    logits, shape = work.repeat_for_beams(made), made.type.shape
    if made.type.rank == 3:
        logits = g.node("Squeeze", logits, g.vector(1))
    logits = emit_cast(g, logits, made.type.dtype, "f32")
    return Tensor(logits, Type("f32", (work.rows, shape[-1])))


def find_empty_prompts(work: GenerationContext) -> str | None:
    """Emit bool[rows, 1]: whether a prompt is only padding; None without a padding mask."""
    kept, g = find_prompt_mask(work), work.g
    if kept is None:
        return None
    # the maximum over no tokens is 0
    count = g.node("ReduceSum", emit_cast(g, kept, "bool", "i64"), g.vector(1), keepdims=True)
    return g.node("Equal", count, g.constant(0, "i64"))
