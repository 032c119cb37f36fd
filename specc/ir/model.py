"""A model as the compiler knows it: its graph, input defaults, and the `generate` and
`stream` sections.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specc.diagnostics.diagnostic import Diagnostic
from specc.diagnostics.object_repr import format_repr
from specc.ir.graph import Graph

DEFAULTS_GRAPH_NAME = "input defaults"
"""The name of the graph that computes defaults of inputs; it contains a space, so no graph of a
spec has it."""


@dataclass(frozen=True)
class GenerateSection:
    """The `generate` section: input `growing`, output `source` with the logits, and `settings` such
    as `start`, `stop` and `strategy` as plain data.
    """

    name: str
    growing: str
    source: str
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamSection:
    """The `stream` section: the streamed input, and the outputs computed from it."""

    growing: str
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ModelDefinition:
    """`graph` computes the outputs, `defaults` absent inputs. `reading` and `config` are plain data
    for the manifest, `shares` the paths whose weights several calls may use, each with whether
    several do.
    """

    name: str
    doc: str
    graph: Graph
    defaults: Graph | None = None
    generation: GenerateSection | None = None
    streaming: StreamSection | None = None
    reading: Mapping[str, object] = field(default_factory=dict)
    showing: Mapping[str, object] = field(default_factory=dict)
    config: Mapping[str, object] = field(default_factory=dict)
    shares: Mapping[str, bool] = field(default_factory=dict)
    warnings: tuple[Diagnostic, ...] = ()

    def __repr__(self) -> str:
        return format_repr(f"spec {self.name}, {self.graph.signed()}")
