"""Build what runs before the loop: encoder, prompt, masks and initial states."""

from dataclasses import replace

from onnx import TensorProto

from specc.ir import ops
from specc.ir.derived_graphs import DecodeState
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.types import Type
from specc_onnx.generate.decoding_strategies import LoopCarry
from specc_onnx.generate.generation_context import GenerationContext
from specc_onnx.lower.element_types import ONNX_TYPE_CODES
from specc_onnx.lower.emitter_state import LoweringSite, Tensor
from specc_onnx.lower.index_checks import emit_indices_without_padding
from specc_onnx.lower.registry import lower_nodes
from specc_onnx.lower.tensor_helpers import emit_cast, emit_full, make_typed_tensor


def lower_encoder(work: GenerationContext) -> None:
    """Write the first row, absent inputs, and `encode`."""
    g, whole = work.g, work.whole
    begun = _emit_begin_token(work) if whole.started else None
    # Defaults before `encode`, which may read them.
    for graph in (*whole.computed, work.derived.encode):
        if graph is None:
            continue
        work.enter(graph, work.outer)
        lower_nodes(g, graph)
        for name, value in graph.outputs.items():
            tensor = g.values.tensors[value]
            if begun and name in whole.keeps:
                # the first row exists, even if it is the pad's token
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
        # Columns in front that are there or not, without an `If`, whose two branches
        # would have to agree on a shape.
        tokens = g.constant([list(work.decoding.start)], type.dtype)
        many = g.node("Concat", g.shape([work.batch]), g.vector(1), axis=0)
        count = g.node(
            "Mul", emit_cast(g, absent, "bool", "i64"), g.vector(len(work.decoding.start))
        )
        start = g.node("Expand", tokens, many)
        start = g.node("Slice", start, g.vector(0), count, g.vector(1))
        rows = g.node("Concat", start, rows, axis=1)
    work.outer[growing] = Tensor(rows, type)
    # The length of the prompt is that of this value from here on: the input's own may
    # be 0 where one row is read.
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
    # An initializer of an input's name is that input's default in ONNX, which a caller
    # may leave out then. Its batch of 1 is expanded to the real one.
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
        # A mask that is computed inside is made from the pad's number, which may be -1:
        # that is no row of any table, and the loop would stop at it. A spec that looks
        # nothing up at the tokens as they are may read that number, and is given it.
        if name in work.whole.keeps and _is_lookup_index(work.derived.step, growing):
            ids = Tensor(emit_indices_without_padding(work.g, ids, work.outer[name]), ids.type)
    return LoopCarry(growing, work.derived.step.inputs[growing].type, work.spread(ids))


def _is_lookup_index(step: Graph, name: str) -> bool:
    """Return whether an embedding reads the input directly as its indices."""
    ids = step.inputs[name]
    readers = [node.op for node, _ in step.nodes if ids in node.args]
    return any(isinstance(op, ops.Embedding) for op in readers)


def make_mask_carry(work: GenerationContext, name: str) -> LoopCarry:
    """Build the carry of an input other than the token ids, with its value at the first step."""
    type = work.derived.step.inputs[name].type
    return LoopCarry(name, type, work.spread(work.outer[name]))


def make_state_carry(work: GenerationContext, state: DecodeState) -> LoopCarry:
    """Build the carry of a state; its initial value is an output of `encode`, or empty."""
    if state.initial:
        initial = work.spread(work.outer[state.initial], state.batch)
        return LoopCarry(state.name, state.type, initial)
    lengths = {str(work.batch): work.rows}
    # A cache starts with no rows; a state without rows, as of a recurrent layer, has
    # its whole shape from the start and is zero.
    shape = [
        Dim.of(0) if n == state.rows else d.substitute(lengths)
        for n, d in enumerate(state.type.shape)
    ]
    work.g.site = LoweringSite(("states",))
    return LoopCarry(state.name, state.type, emit_full(work.g, 0, state.type.dtype, shape))


def get_encoder_output(work: GenerationContext, name: str) -> Tensor:
    """Return a value that every step reads unchanged. It is not a carry: a loop body can
    capture it from the main graph.
    """
    type = work.derived.step.inputs[name].type
    known = make_typed_tensor(work.outer[name].name, type.dtype, type.shape)
    return Tensor(work.spread(known), type)


def find_prompt_mask(work: GenerationContext) -> str | None:
    """Return the padding mask of the prompt, bool[rows, n], or None if the model has none."""
    for name in work.whole.keeps:
        if name in work.outer:
            return work.spread(work.outer[name])
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
    logits, shape = work.spread(made), made.type.shape
    if made.type.rank == 3:
        logits = g.node("Squeeze", logits, g.vector(1))
    logits = emit_cast(g, logits, made.type.dtype, "f32")
    return Tensor(logits, Type("f32", (work.rows, shape[-1])))


def find_empty_prompts(work: GenerationContext) -> str | None:
    """Emit bool[rows, 1]: whether a prompt consists of padding only. Return None if there is no
    padding mask.
    """
    kept, g = find_prompt_mask(work), work.g
    if kept is None:
        return None
    # a maximum of no tokens at all there is none
    count = g.node("ReduceSum", emit_cast(g, kept, "bool", "i64"), g.vector(1), keepdims=True)
    return g.node("Equal", count, g.constant(0, "i64"))
