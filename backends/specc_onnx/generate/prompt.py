"""The main graph of a model that decodes itself: what is computed once, and what the
first step is given.
"""

from dataclasses import replace

from onnx import TensorProto

from specc.ir import ops
from specc.ir.derived import State
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.types import Type
from specc_onnx.generate.deciding import Carry
from specc_onnx.generate.work import Work
from specc_onnx.lower.arrange import cast, full, typed
from specc_onnx.lower.elements import CODE
from specc_onnx.lower.emitter import Site, Tensor
from specc_onnx.lower.guards import without_padding
from specc_onnx.lower.table import lower_nodes


def compute_once(work: Work) -> None:
    """Write the first row, absent inputs, and `encode`."""
    g, whole = work.g, work.whole
    begun = _begin(work) if whole.started else None
    # Defaults before `encode`, which may read them.
    for graph in (*whole.computed, work.derived.encode):
        if graph is None:
            continue
        work.enter(graph, work.outer)
        lower_nodes(g, graph)
        for name, value in graph.outputs.items():
            tensor = g.tensors[value]
            if begun and name in whole.keeps:
                # the first row exists, even if it is the pad's token
                either = g.node("Or", tensor.name, begun)
                tensor = replace(tensor, name=either, value=None)
            work.outer[name] = tensor


def _begin(work: Work) -> str | None:
    """Write the first row where no prompt is given, and that it exists; gives whether
    that is so, bool[1]. None where a text begins without a row.
    """
    g = work.g
    g.site = Site(("start",))
    growing = work.derived.growing
    type, absent = work.types[growing], None
    rows = _prompt(work, growing)
    if not work.whole.begins:
        absent = g.node("Equal", g.node("Shape", rows, start=1, end=2), g.vector(0))
        # Columns in front that are there or not, without an `If`, whose two branches
        # would have to agree on a shape.
        tokens = g.constant([list(work.decoding.start)], type.dtype)
        many = g.node("Concat", g.shape([work.batch]), g.vector(1), axis=0)
        count = g.node(
            "Mul", cast(g, absent, "bool", "i64"), g.vector(len(work.decoding.start))
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
            work.outer[name] = _with_begun(work, name, rows)
    return absent


def _with_begun(work: Work, name: str, rows: str) -> Tensor:
    """An input that says which rows exist, for as many as `rows` has: those that it
    lacks in front do.
    """
    g = work.g
    known = _prompt(work, name)
    more = g.node(
        "Sub",
        g.node("Shape", rows, start=1, end=2),
        g.node("Shape", known, start=1, end=2),
    )
    front = g.node("Concat", g.shape([work.batch]), more, axis=0)
    exist = g.node("Expand", g.constant(True, "bool"), front)
    return Tensor(g.node("Concat", exist, known, axis=1), work.types[name])


def _prompt(work: Work, name: str) -> str:
    """An input that may be left out, which is then as if it had no rows: `[batch, n]`."""
    g = work.g
    # An initializer of an input's name is that input's default in ONNX, which a caller
    # may leave out then. Its batch of 1 is expanded to the real one.
    code = CODE[work.types[name].dtype]
    g.constants[name] = TensorProto(name=name, data_type=code, dims=[1, 0])
    shape = g.node("Concat", g.shape([work.batch]), g.vector(1), axis=0)
    return g.node("Expand", name, shape)


def feed(work: Work) -> Carry:
    """The tokens that the first step reads: the whole prompt."""
    growing = work.derived.growing
    ids = work.outer[growing]
    keeps = (n for graph in work.whole.computed for n in graph.outputs)
    for name in keeps:
        # A mask that is computed inside is made from the pad's number, which may be -1:
        # that is no row of any table, and the loop would stop at it. A spec that looks
        # nothing up at the tokens as they are may read that number, and is given it.
        if name in work.whole.keeps and _looked_up(work.derived.step, growing):
            ids = Tensor(without_padding(work.g, ids, work.outer[name]), ids.type)
    return Carry(growing, work.derived.step.inputs[growing].type, work.spread(ids))


def _looked_up(step: Graph, name: str) -> bool:
    """Whether an input itself says rows of a table."""
    ids = step.inputs[name]
    readers = [node.op for node, _ in step.nodes if ids in node.args]
    return any(isinstance(op, ops.Embedding) for op in readers)


def first_side(work: Work, name: str) -> Carry:
    """What an input beside the tokens is at the first step."""
    type = work.derived.step.inputs[name].type
    return Carry(name, type, work.spread(work.outer[name]))


def first_state(work: Work, state: State) -> Carry:
    """What a state is before the first step: what `encode` made of it, or nothing yet."""
    if state.initial:
        initial = work.spread(work.outer[state.initial], state.batch)
        return Carry(state.name, state.type, initial)
    lengths = {str(work.batch): work.rows}
    # A cache starts with no rows; a state without rows, as of a recurrent layer, has
    # its whole shape from the start and is zero.
    shape = [
        Dim.of(0) if n == state.rows else d.substitute(lengths)
        for n, d in enumerate(state.type.shape)
    ]
    work.g.site = Site(("states",))
    return Carry(state.name, state.type, full(work.g, 0, state.type.dtype, shape))


def handed_over(work: Work, name: str) -> Tensor:
    """What every step reads as it is. It is no carry: a body sees the main graph, and a
    carry that never changes would be handed round for nothing.
    """
    type = work.derived.step.inputs[name].type
    known = typed(work.outer[name].name, type.dtype, type.shape)
    return Tensor(work.spread(known), type)


def kept_rows(work: Work) -> str | None:
    """Which tokens of the prompt are no padding, bool[rows, n], where that is known."""
    for name in work.whole.keeps:
        if name in work.outer:
            return work.spread(work.outer[name])
    return None


def first_logits(work: Work) -> Tensor | None:
    """What the first token of a text without a prompt is drawn from, f32[rows,
    vocabulary]; None where every text has a token.
    """
    name, g = work.derived.first, work.g
    if not work.whole.begins:
        return None
    made = work.outer[name]
    g.site = Site(("start",))
    logits, shape = work.spread(made), made.type.shape
    if made.type.rank == 3:
        logits = g.node("Squeeze", logits, g.vector(1))
    logits = cast(g, logits, made.type.dtype, "f32")
    return Tensor(logits, Type("f32", (work.rows, shape[-1])))


def without_tokens(work: Work) -> str | None:
    """Which texts of a batch have no token, bool[rows, 1]: their prompt is padding alone.
    None where nothing says what is padding.
    """
    kept, g = kept_rows(work), work.g
    if kept is None:
        return None
    # a maximum of no tokens at all there is none
    count = g.node(
        "ReduceSum", cast(g, kept, "bool", "i64"), g.vector(1), keepdims=True
    )
    return g.node("Equal", count, g.constant(0, "i64"))
