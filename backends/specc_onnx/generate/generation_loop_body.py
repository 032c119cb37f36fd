"""Build the loop body: decode step, choice of the next token, next carries; invariant
nodes are hoisted into the main graph.

ONNX Runtime does not move anything out of a loop's body by itself. For a decoder with
an encoder this is where the keys and values over the encoder's result are computed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from onnx import GraphProto

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.model import DecodeState, DerivedGraphs, extract_tokenwise_default
from specc.ir.types import Type
from specc_onnx.generate.decoding_strategies import DecodingStrategy, LoopCarry, TokenDecision
from specc_onnx.generate.generation_context import GenerationContext
from specc_onnx.lower.dynamic_shapes import LengthResolver
from specc_onnx.lower.emitter import emit_body_results, make_body_graph, make_branch
from specc_onnx.lower.emitter_state import LoweringSite, Tensor
from specc_onnx.lower.rules import lower_nodes
from specc_onnx.lower.tensor_helpers import emit_cast, emit_unsqueeze


def hoist_invariant_nodes(
    work: GenerationContext, static_inputs: Mapping[str, Tensor]
) -> set[Node]:
    """Lower the loop-invariant nodes of the step into the main graph and return them."""
    step, g = work.derived.step, work.g
    fixed = set(find_invariant_nodes(step, static_inputs))
    inputs = {t.name: t.type for t in static_inputs.values()}
    # Only handed-over values have tensors here: the step's other inputs are created in the body.
    known_here = {n: step.inputs[n] for n in static_inputs}
    work.bind_inputs(replace(step, inputs=known_here, outputs={}), static_inputs)
    # The step's symbols differ from those of the spec's graph even if spelled alike: its `batch` is
    # the number of beams of all sequences.
    before = g.lengths
    g.lengths = LengthResolver(inputs, step.facts, work.whole.graph.least)
    types, earlier = g.bodies.open[0].types, set(g.bodies.open[0].types)
    lower_nodes(g, step, fixed)
    for name in types.keys() - earlier:
        # the step's batch is the number of beams, which has its own symbol outside the body
        rows = {str(work.batch): work.rows}
        shape = tuple(d.substitute(rows) for d in types[name].shape)
        types[name] = Type(types[name].dtype, shape)
    g.lengths = before
    return fixed


def find_invariant_nodes(step: Graph, static_inputs: Iterable[str]) -> list[Node]:
    """Return the nodes of `step` that read only weights and encoder outputs, in order."""
    known = {step.inputs[n] for n in static_inputs}
    symbols = {s for v in known for d in v.type.shape for s in d.symbols()}
    known |= set(step.parameters.values())
    found = []
    for node, results in step.nodes:
        # `Range(past)` reads no value but changes at every step: its length must not count as
        # loop-invariant.
        sizes = (d for d in _iterate_node_lengths(node, results) if not d.symbols() <= symbols)
        told = next(sizes, None) is None
        # The values that a `Scan` depends on are in its body, which is not searched here.
        if not told or isinstance(node.op, ops.Scan):
            continue
        if all(a is None or a in known for a in node.args):
            known.update(results)
            found.append(node)
    return found


def _iterate_node_lengths(node: Node, results: Iterable[Value]) -> Iterable[Dim]:
    """Yield the lengths in the results and attributes of a node."""
    for result in results:
        yield from result.type.shape
    yield from _iterate_attribute_dims(node.op.attributes().values())


def _iterate_attribute_dims(attributes: Iterable[object]) -> Iterable[Dim]:
    for value in attributes:
        if isinstance(value, Dim):
            yield value
        elif isinstance(value, tuple):
            yield from _iterate_attribute_dims(value)


def find_token_mask_default(work: GenerationContext, name: str) -> Graph | None:
    """Return the default that decides whether a generated token is valid; None if all are.
    Raise E0944 for a default that reads more than the token.
    """
    defaults, growing = work.whole.defaults, work.derived.growing
    # For inputs with padding on a fixed side, generated positions need no mask: they come after the
    # prompt and are valid.
    sided = work.whole.graph.input_facts[name].keep != "any"
    if defaults is None or name not in defaults.outputs or sided:
        return None
    each = extract_tokenwise_default(defaults, name, growing)
    if each is None:
        _raise_not_tokenwise(name, growing)
    return None if _is_true_for_tokens(each.outputs[name]) else each


def _is_true_for_tokens(value: Value) -> bool:
    """Return True if the condition holds for all token ids >= 0, e.g. `ids >= 0`, `ids != -1`."""
    match value.node:
        case Node(ops.Compare(fn=fn), (Value(node=None), Value(node=Node(op)))):
            least = op.value if isinstance(op, ops.Constant) else math.inf
            return (fn == "ge" and least <= 0) or (fn in ("gt", "ne") and least < 0)
    return False


def _raise_not_tokenwise(name: str, growing: str) -> NoReturn:
    raise_error(
        "E0944",
        f"the default of `{name}` reads other positions of `{growing}` than the generated one",
        notes=["a standalone generator has only the newest token"],
        helps=["compile a package: --graphs step", f"compute `{name}` from one token"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopIteration:
    """One iteration. Carries are `feed` (tokens and masks), `states` (caches), and those of
    `chooser`. `static_inputs` are encoder outputs, `hoisted` the nodes computed from them. `first`
    are logits of sequences without a prompt, which `empty` marks.
    """

    feed: Sequence[LoopCarry]
    states: Sequence[LoopCarry]
    chooser: DecodingStrategy
    static_inputs: Mapping[str, Tensor]
    hoisted: set[Node]
    first: Tensor | None = None
    empty: str | None = None

    @property
    def carries(self) -> list[LoopCarry]:
        """Return every carry, in loop order."""
        return [*self.feed, *self.states, *self.chooser.carries]


def build_generation_body(work: GenerationContext, turn: LoopIteration) -> GraphProto:
    """Build the `Loop` body: iteration, condition and carries to condition and carries."""
    g, step, carries = work.g, work.derived.step, turn.carries
    stateful = len(turn.feed) + len(turn.states)
    with g.body() as opened:
        g.site = LoweringSite(("step",))
        iteration, condition = g.new_loop_inputs("i")
        names = [g.new_tensor(c.wish, c.type) for c in carries]
        inner = {c.wish: t for c, t in zip(carries[:stateful], names, strict=False)}
        told = {t.name: t.type for t in (*inner.values(), *turn.static_inputs.values())}
        # The loop is skipped for a batch of size 0.
        least = {**step.least, str(work.batch): 1}
        with g.enter_graph(LengthResolver(told, step.facts, least)):
            work.bind_inputs(step, {**inner, **turn.static_inputs})
            if turn.first is None:
                logits = _emit_step(work, turn)
            else:
                logits = emit_first_logits(work, turn, turn.first, inner, iteration.name)
            g.site = LoweringSite(("choose",))
            before = [t.name for t in names[stateful:]]
            decision = turn.chooser.step(g, logits, iteration.name, before)
            after = _list_next_carries(work, inner, decision)
        results = emit_body_results(g, [decision.more, *after])
    types = [Type("bool", ()), *(_get_carry_type_after(c) for c in carries)]
    return make_body_graph("step", opened, results, types, [iteration, condition, *names])


def _emit_step(work: GenerationContext, turn: LoopIteration) -> str:
    """Emit the decode step and return its logits."""
    g, step = work.g, work.derived.step
    lower_nodes(g, step, {node for node, _ in step.nodes} - turn.hoisted)
    g.site = LoweringSite(("choose",))
    return _emit_newest_logits(work)


def emit_first_logits(
    work: GenerationContext,
    turn: LoopIteration,
    first: Tensor,
    inner: Mapping[str, Tensor],
    iteration: str,
) -> str:
    """Emit the logits of a turn that may be the first of a sequence without a prompt."""
    g, states = work.g, work.derived.states
    afters = [work.derived.step.outputs[s.next] for s in states]
    row = Type("f32", (work.batch, first.type.shape[-1]))
    tokens = inner[work.derived.growing].name
    count = g.node("Shape", tokens, start=1, end=2)
    some = g.node("Squeeze", g.node("Greater", count, g.vector(0)))
    types = [row, *(value.type for value in afters)]

    def lower_step() -> list[str]:
        logits = _emit_step(work, turn)
        return [logits, *(g.values.tensors[value].name for value in afters)]

    stepped = make_branch(g, "stepped", types, lower_step)
    known = [first.name, *(inner[s.name].name for s in states)]
    waiting = make_branch(g, "begun", [row, *(c.type for c in turn.states)], lambda: known)
    g.site = LoweringSite(("start",))
    logits, *after = g.nodes("If", len(types), some, then_branch=stepped, else_branch=waiting)
    for value, name in zip(afters, after, strict=True):
        g.values.tensors[value] = Tensor(name, value.type, value)
    if turn.empty is None:
        return logits
    # Some sequences of the batch may have a prompt and others none.
    begins = g.node("Equal", iteration, g.constant(0, "i64"))
    operands = turn.empty, first.name, logits
    here = make_branch(g, "mixed", [row], lambda: g.nodes("Where", 1, *operands))
    there = make_branch(g, "going", [row], lambda: [logits])
    return g.node("If", begins, then_branch=here, else_branch=there)


def _emit_newest_logits(work: GenerationContext) -> str:
    """Return the logits of the last position, f32[rows, vocabulary]."""
    tensor, g = work.g.values.tensors[work.derived.step.outputs[work.decoding.source]], work.g
    # A step returns the logits of its last position, with or without an axis of length 1.
    one_row = tensor.type.rank == 2
    name = tensor.name if one_row else g.node("Squeeze", tensor.name, g.vector(1))
    # Scores are f32 in all models: they are sums over many steps.
    return emit_cast(g, name, tensor.type.dtype, "f32")


def _list_next_carries(
    work: GenerationContext, inner: Mapping[str, Tensor], decision: TokenDecision
) -> list[str]:
    """Return the carries after the iteration, in the order of `LoopIteration.carries`."""
    token = _emit_next_tokens(work, decision)
    return [
        token,
        *(_emit_next_mask(work, n, inner[n], token, decision) for n in work.per_token_inputs),
        *(_emit_next_state(work, s, decision) for s in work.derived.states),
        *decision.after,
    ]


def _emit_next_tokens(work: GenerationContext, decision: TokenDecision) -> str:
    dtype = work.derived.step.inputs[work.derived.growing].type.dtype
    return emit_cast(work.g, emit_unsqueeze(work.g, decision.tokens, 1), "i64", dtype)


def _emit_next_mask(
    work: GenerationContext, name: str, x: Tensor, token: str, decision: TokenDecision
) -> str:
    """Return the padding mask with one more position, valid unless the default says no."""
    g, known = work.g, x.name
    each = find_token_mask_default(work, name)
    axis = work.batch_axis(x.type)
    # As long as all generated tokens are valid, the masks of a sequence's beams are equal: it does
    # not matter which one a beam continues.
    alike = work.repeats > 1 and each is None
    if decision.parents is not None and axis is not None and not alike:
        known = g.node("Gather", known, decision.parents, axis=axis)
    at = _find_time_axis_index(x.type, work.derived)
    if each is None:
        # As wide as the existing positions, whatever the other axes are; there may be none yet.
        front, back = (
            g.node("Shape", known, start=0, end=at),
            g.node("Shape", known, start=at + 1),
        )
        row = g.node("Concat", front, g.vector(1), back, axis=0)
        newest = g.node("Expand", g.constant(True, "bool"), row)
    else:
        value = each.inputs[work.derived.growing]
        g.values.tensors[value] = Tensor(token, value.type)
        # Recorded types do not hold here: beams are expanded, so `batch` differs.
        types, g.bodies.open[-1].types = g.bodies.open[-1].types, {}
        lower_nodes(g, each)
        g.bodies.open[-1].types = types
        newest = g.values.tensors[each.outputs[name]].name
    # Some inputs cover all positions, others only those of this step.
    if name in work.derived.whole:
        return g.node("Concat", known, newest, axis=at)
    return newest


def _emit_next_state(work: GenerationContext, state: DecodeState, decision: TokenDecision) -> str:
    name = work.g.values.tensors[work.derived.step.outputs[state.next]].name
    # A beam continues with the cache of its parent. A state without a batch axis is shared by all
    # beams.
    if decision.parents is None or state.batch is None:
        return name
    return work.g.node("Gather", name, decision.parents, axis=state.batch)


def _find_time_axis_index(type: Type, derived: DerivedGraphs) -> int:
    """Return the axis of a step's input with the length of the new, or of all, positions."""
    new = derived.step.inputs[derived.growing].type.shape[1]
    return next(n for n, d in enumerate(type.shape) if d.symbols() & new.symbols())


def _get_carry_type_after(carry: LoopCarry) -> Type:
    """Return the type of a carry after a step; lengths that change get new symbols."""
    # Under its former name, ONNX's shape inference would expect the former length of the axis and
    # refuse the model.
    shape = tuple(
        d if d.number else Dim.symbol(f"{carry.wish}.{n}") for n, d in enumerate(carry.type.shape)
    )
    return Type(carry.type.dtype, shape)
