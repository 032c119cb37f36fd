"""State of an emitter while it builds a model: names, values, open bodies, layouts, facts."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onnx import NodeProto, TensorProto

from specc.ir.graph import Value
from specc.ir.types import Type

if TYPE_CHECKING:
    from specc_onnx.lower.predictive_local_attention import NearKeys


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the ONNX graph by its name; `value` is its IR value, if it has one."""

    name: str
    type: Type
    value: Value | None = None


@dataclass(frozen=True, slots=True)
class LoweringSite:
    """The IR node being lowered: its scope paths, result types, and which results are used."""

    scopes: tuple[str, ...] = ()
    types: tuple[Type, ...] = ()
    is_used: tuple[bool, ...] = ()

    @property
    def scope(self) -> str:
        """Return the scope path under which the node was first built."""
        return self.scopes[0] if self.scopes else ""


@dataclass(slots=True)
class GraphBody:
    """Nodes of a graph or subgraph, their results by hash key (`known`), and the IR types of these,
    which ONNX's shape inference would lose.
    """

    nodes: list[NodeProto] = field(default_factory=list)
    known: dict[Hashable, tuple[str, ...]] = field(default_factory=dict)
    types: dict[str, Type] = field(default_factory=dict)


@dataclass(slots=True)
class NameTable:
    """Names in use (`taken`), their preferred names (set by `Emitter.unique`, read by
    `specc_onnx.emit.onnx_graph`), and the name of the graph.
    """

    taken: set[str]
    preferred: dict[str, str] = field(default_factory=dict)
    graph: str = ""


@dataclass(slots=True, kw_only=True)
class ValueTable:
    """IR values and their names: `tensors` set by `lower_nodes`, shared `constants`, `parameters`
    by the spec's names, their `stored_types`, `narrow_weights` (widened values to their 16-bit
    initializers), and KV `buffers` that attention appends to.
    """

    tensors: dict[Value, Tensor] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    stored_types: dict[str, Type] = field(default_factory=dict)
    narrow_weights: dict[str, str] = field(default_factory=dict)
    buffers: set[Value] = field(default_factory=set)


@dataclass(slots=True)
class BodyStack:
    """The open graph bodies, the innermost last. Lengths are known in number `root` (0, or a loop
    around a whole graph); nodes below number `isolated` are not reused.
    """

    open: list[GraphBody] = field(default_factory=lambda: [GraphBody()])
    root: int = 0
    isolated: int = 0


@dataclass(slots=True)
class LayoutCache:
    """Values in another layout: `packed` heads `[b, t, h*d]` of `[b, h, t, d]`; padding mask and
    packed output of `recurrent` layers; `hoisted` masks; `near_keys` outside which attention
    weights are zero (local-p).
    """

    packed: dict[str, str] = field(default_factory=dict)
    recurrent: dict[str, tuple[str, str]] = field(default_factory=dict)
    hoisted: dict[Hashable, str] = field(default_factory=dict)
    near_keys: dict[str, "NearKeys"] = field(default_factory=dict)


@dataclass(slots=True)
class GraphFacts:
    """Facts known before lowering: sides of padding masks, use counts, ends of the pieces that axes
    are split into, upper bounds of lengths. `branch_lengths` collects lengths beyond which the
    model takes another branch.
    """

    padding_sides: dict[Value, str] = field(default_factory=dict)
    use_counts: dict[Value, int] = field(default_factory=dict)
    split_ends: dict[Value, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    max_lengths: Mapping[str, int] = field(default_factory=dict)
    branch_lengths: dict[str, int] = field(default_factory=dict)
