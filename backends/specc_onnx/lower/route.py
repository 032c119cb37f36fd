"""Lower mixture of experts: run each used expert once on its tokens.

    rows that chose it ─► Gather ─► its body ─► ScatterND, added

Nothing is as large as tokens times experts, and only weights of used experts are read.
Padded tokens get an expert index out of range. A few experts are one `If` each, whose slices
of the stacked weights are constants that a runtime packs at load time; many are a `Loop`,
which copies them. With 8 experts of 512 to 1 024, one token took 1.4 ms by the loop and 0.7
one by one, 512 tokens 31 and 25 ms (ONNX Runtime 1.31, one core).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from onnx import GraphProto

from specc.ir import ops
from specc.ir.dim import Dim, multiply_dims
from specc.ir.ops.route import Routed
from specc.ir.types import Type
from specc_onnx.lower.dynamic_shapes import LengthResolver
from specc_onnx.lower.emitter import (
    Emitter,
    emit_body_results,
    make_body_graph,
    make_branch,
    make_value_info,
)
from specc_onnx.lower.emitter_state import Tensor
from specc_onnx.lower.onnx_nodes import EXPERT_LOOP_NAME
from specc_onnx.lower.onnx_targets import HALF_DTYPES
from specc_onnx.lower.registry import lower, lower_nodes
from specc_onnx.lower.tensor_helpers import (
    emit_cast,
    emit_flatten,
    emit_full,
    emit_reduce,
    emit_reshape,
    emit_slice,
    emit_unsqueeze,
    emit_where,
)

MAX_INLINE_ELEMENTS = 1 << 26
"""Maximum number of elements of all expert weights together (256 MiB) if the experts are unrolled:
such weights are in memory twice during loading, while a loop reads them from the file."""

MAX_INLINE_NODES = 24
"""Maximum number of nodes of an expert that is unrolled."""


@lower(ops.Route)
def route(op: ops.Route, g: Emitter, *operands: Tensor) -> str:
    """Emit the weighted sums of expert outputs."""
    (made,) = g.site.types
    given = op.parts(operands)
    *lead, width = made.shape
    # 16-bit sums would lose what later experts add, and ONNX Runtime has none.
    dtype = "f32" if made.dtype in HALF_DTYPES else made.dtype
    sums = Type(dtype, (multiply_dims(lead), width))
    experts = _ExpertEmitter(
        op=op,
        g=g,
        given=given,
        rows=emit_flatten(g, given.x.name, given.x.type.shape),
        gates=emit_flatten(g, given.gates.name, given.gates.type.shape),
        ids=_emit_expert_ids(op, g, given),
        sums=sums,
    )
    start = emit_full(g, 0, dtype, sums.shape)
    one_by_one = _can_inline_experts(op, g, given)
    total = experts.in_turn(start) if one_by_one else experts.emit_loop(start)
    return emit_cast(g, emit_reshape(g, total, sums.shape, made.shape), dtype, made.dtype)


def _can_inline_experts(op: ops.Route, g: Emitter, given: Routed[Tensor]) -> bool:
    """Return whether experts are few and small, with static weights."""
    stored = {t.name for t in g.values.parameters.values()} | {*g.values.narrow.values()}
    held = sum(multiply_dims(t.type.shape).number or MAX_INLINE_ELEMENTS for t in given.stacked)
    many = op.experts.number
    return (
        many is not None
        and many <= g.target.few_experts
        and held <= MAX_INLINE_ELEMENTS
        and len(op.body.nodes) <= MAX_INLINE_NODES
        and all(t.name in stored for t in given.stacked)
    )


def _emit_expert_ids(op: ops.Route, g: Emitter, given: Routed[Tensor]) -> str:
    """Emit the experts of each token, i64[n, k]; `experts` means none."""
    nobody, dtype = g.dim(op.experts), given.ids.type.dtype
    ids = emit_cast(g, emit_flatten(g, given.ids.name, given.ids.type.shape), dtype, "i64")
    theirs = g.node("Less", ids, nobody)
    negative = g.node("Less", ids, g.constant(0, "i64"))
    theirs = g.node("And", theirs, g.node("Not", negative))
    if given.keep is not None:
        shape = given.keep.type.shape
        keep = emit_reshape(g, given.keep.name, shape, (multiply_dims(shape), Dim.of(1)))
        theirs = g.node("And", theirs, keep)
    return emit_where(g, "i64", theirs, ids, nobody)


@dataclass(frozen=True, kw_only=True)
class _ExpertEmitter:
    """Experts and their operands: `rows` [n, d], `gates` and `ids` [n, k]; `sums` is the result's
    type.
    """

    op: ops.Route
    g: Emitter
    given: Routed[Tensor]
    rows: str
    gates: str
    ids: str
    sums: Type

    def emit_loop(self, start: str) -> str:
        """Emit a `Loop` over the experts that have tokens."""
        g = self.g
        all_of_them = emit_slice(g, self._emit_used_experts(), 0, Dim.of(0), self.op.experts)
        # in ascending order, so that the summation order does not depend on the other rows
        chosen = g.node("Squeeze", g.node("NonZero", all_of_them), g.vector(0))
        turns = g.node("Size", chosen)
        return g.node("Loop", turns, None, start, body=self._emit_iteration(chosen))

    def _emit_iteration(self, chosen: str) -> GraphProto:
        """The body of the loop: which turn it is, whether to go on, and the sums so far."""
        g = self.g
        with g.body() as opened:
            number, going, before = (
                Tensor(g.unique(g.place(n)), t)
                for n, t in (
                    ("turn", Type("i64", ())),
                    ("go", Type("bool", ())),
                    ("sums", self.sums),
                )
            )
            expert = g.node("Gather", chosen, number.name, axis=0)
            own = [self._slice_expert_weights(t, expert) for t in self.given.stacked]
            results = emit_body_results(
                g, [going.name, *self._add_expert_output(before.name, expert, own)]
            )
        return make_body_graph(
            g.place(EXPERT_LOOP_NAME),
            opened,
            results,
            [going.type, self.sums],
            [make_value_info(t.name, t.type) for t in (number, going, before)],
        )

    def in_turn(self, start: str) -> str:
        """An `If` for each expert."""
        g, total, count = self.g, start, self.op.experts.number or 0
        parts = [self._split_expert_weights(t, count) for t in self.given.stacked]
        for number in range(count):
            expert = g.constant(number, "i64")
            own = [each[number] for each in parts]
            there = g.node("Gather", self._emit_used_experts(), expert, axis=0)
            add = partial(self._add_expert_output, total, expert, own)
            chosen = make_branch(g, g.place("expert"), [self.sums], add)
            nobody = make_branch(g, g.place("nobody"), [self.sums], partial(list, [total]))
            total = g.node("If", there, then_branch=chosen, else_branch=nobody)
        return total

    def _emit_used_experts(self) -> str:
        """Emit which experts have tokens, bool[experts + 1]; the last means none."""
        g, many = self.g, self.op.experts + 1
        named = g.node("Reshape", self.ids, g.vector(-1))
        yes = g.node("Expand", g.constant(True, "bool"), g.node("Shape", named))
        no = emit_full(g, False, "bool", [many])
        return g.node("ScatterElements", no, named, yes, axis=0)

    def _add_expert_output(
        self, before: str, expert: str, own: Sequence[Tensor]
    ) -> tuple[str, ...]:
        """Add the output of one expert to the sums of its tokens."""
        g, site = self.g, self.g.site
        at, share = self._rows_of(g.node("Equal", self.ids, expert))
        made = self._body(at, own)
        g.site = site  # nodes of the body set it to their own
        within, dtype = self.given.gates.type.dtype, self.sums.dtype
        added = g.node("Mul", emit_cast(g, made, within, dtype), emit_cast(g, share, within, dtype))
        rows = emit_unsqueeze(g, at, 1)
        return g.nodes("ScatterND", 1, before, rows, added, reduction="add")

    def _rows_of(self, here: str) -> tuple[str, str]:
        """Return the rows that chose this expert, i64[m], each once so that sums do not race, and
        their weights [m, 1].
        """
        g, dtype = self.g, self.given.gates.type.dtype
        some = emit_reduce(g, "ReduceMax", emit_cast(g, here, "bool", "i64"), 1)
        found = g.node("NonZero", some)
        at = g.node("Squeeze", found, g.vector(0))
        gates = emit_where(g, dtype, here, self.gates, g.constant(0, dtype))
        share = emit_reduce(g, "ReduceSum", gates, 1, keep=True)
        return at, g.node("Gather", share, at, axis=0)

    def _body(self, at: str, own: Sequence[Tensor]) -> str:
        """Emit the output of the expert for the tokens with these indices, [m, o]."""
        op, g = self.op, self.g
        value, *others = op.inner()
        ones = value.type.rank - 2
        name = g.node("Gather", self.rows, at, axis=0)
        x = Tensor(emit_unsqueeze(g, name, *range(ones)), value.type, value)
        g.values.tensors[value] = x
        g.values.tensors.update(zip(others, [*own, *self.given.captured], strict=True))
        # the tokens are counted here, and there is at least one
        with g.enter_graph(LengthResolver({x.name: x.type}, {}, {op.rows: 1})):
            lower_nodes(g, op.body)
        made = g.values.tensors[op.result()]
        if not ones:
            return made.name
        return g.node("Squeeze", made.name, g.vector(*range(ones)))

    def _split_expert_weights(self, stacked: Tensor, count: int) -> list[Tensor]:
        """Split the weights of all experts at once, outside of any loop, so that a runtime can fold
        it.
        """
        g, type = self.g, stacked.type
        stored = g.values.narrow.get(stacked.name)
        found = []
        with g.outside(g.site.scope, level=0):
            ones = g.vector(*[1] * count)
            names = g.nodes("Split", count, stored or stacked.name, ones, axis=0)
            for name in names:
                part = g.node("Squeeze", name, g.vector(0))
                if stored is not None:
                    part = emit_cast(g, part, g.values.stored[stored].dtype, type.dtype)
                found.append(Tensor(part, Type(type.dtype, type.shape[1:])))
        return found

    def _slice_expert_weights(self, stacked: Tensor, expert: str) -> Tensor:
        """Return the expert's slice of a stacked tensor, widened if it is stored in fewer bits."""
        g, type = self.g, stacked.type
        stored = g.values.narrow.get(stacked.name)
        name = g.node("Gather", stored or stacked.name, expert, axis=0)
        if stored is not None:
            name = emit_cast(g, name, g.values.stored[stored].dtype, type.dtype)
        return Tensor(name, Type(type.dtype, type.shape[1:]))
