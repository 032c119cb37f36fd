"""What an emitter knows while it writes a model: names, values, open bodies, layouts, facts."""

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
    """A value by its name in the ONNX graph; `value` is the IR's."""

    name: str
    type: Type
    value: Value | None = None


@dataclass(frozen=True, slots=True)
class LoweringSite:
    """The IR node being lowered: its scope paths, the types of its results, and which are read."""

    scopes: tuple[str, ...] = ()
    types: tuple[Type, ...] = ()
    wanted: tuple[bool, ...] = ()

    @property
    def scope(self) -> str:
        """The path it was first built under."""
        return self.scopes[0] if self.scopes else ""


@dataclass(slots=True)
class GraphBody:
    """The nodes of one ONNX graph (the main one or a loop's), what they were made from,
    and known types.

    The types are written down: ONNX's own inference forgets lengths on the way, and
    they are worth seeing.
    """

    nodes: list[NodeProto] = field(default_factory=list)
    known: dict[Hashable, tuple[str, ...]] = field(default_factory=dict)
    types: dict[str, Type] = field(default_factory=dict)


@dataclass(slots=True)
class NameTable:
    """Names of the model under construction.

    `taken` are all names in use; `preferred` the name that each would have if none were taken
    (written by `Emitter.unique`, read by `specc_onnx.emit.onnx_graph`); `graph` the name of the
    graph, used for nodes without a scope.
    """

    taken: set[str]
    preferred: dict[str, str] = field(default_factory=dict)
    graph: str = ""


@dataclass(slots=True, kw_only=True)
class ValueTable:
    """IR values and their names in the model.

    `tensors` is written by `lower_nodes` for each result. `constants` are shared initializers made
    while lowering. `parameters` are weights by the spec's names; `stored` their types in a file, by
    initializer name; `narrow` the 16-bit initializer that a widened weight was cast from.
    `buffers` are KV buffers that attention appends to in place (`specc_onnx.emit.kv_buffers`).
    """

    tensors: dict[Value, Tensor] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    stored: dict[str, Type] = field(default_factory=dict)
    narrow: dict[str, str] = field(default_factory=dict)
    buffers: set[Value] = field(default_factory=set)


@dataclass(slots=True)
class BodyStack:
    """The open graph bodies, the innermost last.

    `root` is the number of the body in which lengths are known: 0, the main graph, or the body of a
    loop around a whole graph. Nodes written into bodies below number `isolated` are not reused.
    """

    open: list[GraphBody] = field(default_factory=lambda: [GraphBody()])
    root: int = 0
    isolated: int = 0


@dataclass(slots=True)
class LayoutCache:
    """The same values in another layout, kept by one lowering rule for a later one.

    `packed` maps a tensor `[b, h, t, d]` to its `[b, t, h*d]` form (attention heads). `recurrent`
    maps the result of a recurrent layer to its padding mask and its packed sequence, time first.
    `hoisted` are values that one `If` makes for several attentions. `near` are attention weights
    that are zero outside of some keys (local-p attention).
    """

    packed: dict[str, str] = field(default_factory=dict)
    recurrent: dict[str, tuple[str, str]] = field(default_factory=dict)
    hoisted: dict[Hashable, str] = field(default_factory=dict)
    near: dict[str, "NearKeys"] = field(default_factory=dict)


@dataclass(slots=True)
class GraphFacts:
    """What is known of the graph before it is lowered.

    `padding_sides` is the side of the padding of each padding mask, `use_counts` how often a value
    is read, `pieces` where the pieces of concatenated axes end, `max_lengths` an upper bound of
    lengths. `branch_lengths` collects the lengths beyond which the model takes another branch.
    """

    padding_sides: dict[Value, str] = field(default_factory=dict)
    use_counts: dict[Value, int] = field(default_factory=dict)
    pieces: dict[Value, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    max_lengths: Mapping[str, int] = field(default_factory=dict)
    branch_lengths: dict[str, int] = field(default_factory=dict)
