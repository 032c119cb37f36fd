"""A model as the compiler knows it: its graph, what fills absent inputs, and what
stands around it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specc.ir.graph import Graph
from specc.text.brief import brief
from specc.text.diagnostic import Diagnostic

DEFAULTS = "input defaults"
"""The name of the graph that computes absent inputs; with a blank in it, no graph of a
spec can have it.
"""


@dataclass(frozen=True)
class Generation:
    """What `generate` says: `growing` is the input that grows, `source` the result its
    next row is drawn from.

    `settings` holds `start`, `stop`, `strategy` and the like as plain data.
    """

    name: str
    growing: str
    source: str
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Streaming:
    """What `stream` says: `growing` is the input whose rows come one after the other,
    `sources` the results that are made of them meanwhile.
    """

    growing: str
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Model:
    """`graph` computes the results; `defaults` (when some inputs have one) computes
    those inputs.

    `reading` and `config` are plain data (numbers, texts, lists, dicts) for the
    manifest. `shares` are the paths whose weights several calls may use, each with
    whether several do. `warnings` are of what stands around the graph.
    """

    name: str
    doc: str
    graph: Graph
    defaults: Graph | None = None
    generation: Generation | None = None
    streaming: Streaming | None = None
    reading: Mapping[str, object] = field(default_factory=dict)
    showing: Mapping[str, object] = field(default_factory=dict)
    config: Mapping[str, object] = field(default_factory=dict)
    shares: Mapping[str, bool] = field(default_factory=dict)
    warnings: tuple[Diagnostic, ...] = ()

    def __repr__(self) -> str:
        return brief(f"spec {self.name}, {self.graph.signed()}")
