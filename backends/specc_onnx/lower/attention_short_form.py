"""Operands of the dense form that local attention takes for short sequences.

Mask and added scores are made inside an `If`, so that a long text never has them, and
once for all attentions that share them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from onnx import GraphProto

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.ir.types import Type
from specc_onnx.lower.dense_attention import AttentionParts, can_fuse_attention, emit_combined_mask
from specc_onnx.lower.emitter import Emitter, make_body_graph
from specc_onnx.lower.emitter_state import GraphBody, Tensor
from specc_onnx.lower.grid_slices import lower_grid_slice, make_grid_slice
from specc_onnx.lower.tensor_helpers import emit_full


def prepare_short_parts(
    op: ops.Attend, g: Emitter, parts: AttentionParts, long: str
) -> tuple[AttentionParts, dict[str, str]]:
    """Return the operands of the short form and the names of the masks computed for it; `long`
    is the condition under which they are unused.
    """
    short = ShortForm(g, parts, long)
    if can_fuse_attention(op, g, parts):
        both = short.both()
        return replace(parts, mask=None, add=None, shown=both), {"mask": both}
    mask, add = short.one(parts.mask), short.one(parts.add)
    told = {"mask": mask and mask.name, "added": add and add.name}
    return replace(parts, mask=mask, add=add), {n: t for n, t in told.items() if t}


@dataclass(frozen=True, slots=True)
class ShortForm:
    """What the short form of an attention reads, each made inside an `If`."""

    g: Emitter
    parts: AttentionParts
    long: str

    def both(self) -> str:
        """Mask and added scores as one tensor of all queries and keys."""
        mask, add = self.parts.mask, self.parts.add

        def make() -> Tensor:
            remade = replace(self.parts, mask=self._again(mask), add=self._again(add))
            name = emit_combined_mask(self.g, remade)
            # Nothing is done in blocks that has no mask.
            assert name is not None
            dtype = "bool" if add is None else add.type.dtype
            given = [x.type.shape for x in (mask, add) if x]
            sides = [next((d for d in ds if d != 1), ds[0]) for ds in zip(*given, strict=True)]
            return Tensor(name, Type(dtype, (*sides[:2], *self.parts.grid[2:])))

        return self._hoisted((mask.value if mask else None, add.value if add else None), make)

    def one(self, x: Tensor | None) -> Tensor | None:
        """Return the mask or additive bias for the short form."""
        if x is None:
            return None
        made = self._hoisted((x.value,), lambda: self._again(x) or x)
        return replace(x, name=made)

    def _again(self, x: Tensor | None) -> Tensor | None:
        """Recompute a value in the innermost body."""
        if x is None or x.value is None:
            return x
        n = self.parts.grid[2]
        portion = make_grid_slice(self.g, n, n, lambda value, axes: value)
        return lower_grid_slice(self.g, portion, x)

    def _hoisted(self, key: tuple[Value | None, ...], make: Callable[[], Tensor]) -> str:
        """Emit an `If` outside the loop: the value of `make` for a short sequence, an unused
        tensor of one element for a long one.
        """
        g, known = self.g, (self.long, *key)
        if known in g.layouts.hoisted:
            return g.layouts.hoisted[known]
        with g.body(apart=True) as short:
            made = make()
            otherwise = make_if_branch(g, short, "short", made.name, made.type)
        one = Type(made.type.dtype, (Dim.of(1),) * made.type.rank)
        with g.body() as nothing:
            filled = emit_full(g, 0, one.dtype, one.shape)
            then = make_if_branch(g, nothing, "unused", filled, one)
        result = g.node("If", self.long, then_branch=then, else_branch=otherwise)
        # What stands in a loop's body is seen there alone.
        if len(g.bodies.open) == 1:
            g.layouts.hoisted[known] = result
        return result


def make_if_branch(g: Emitter, body: GraphBody, name: str, result: str, type: Type) -> GraphProto:
    """Build a branch of an `If`, aliasing a result that the branch itself does not compute."""
    if not any(result in node.output for node in body.nodes):
        result = g.alias(result, g.place(name))
    return make_body_graph(name, body, [result], [type])
