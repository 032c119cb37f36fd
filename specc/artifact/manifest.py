"""What a compiled model carries about itself: the spec, the graph as text, the config,
where weights came from.

The manifest is JSON in the model's metadata under `specc`. Reading one trusts nothing:
sizes are capped and every part is checked by the reader of that part.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from specc.artifact.chance import Chance
from specc.artifact.precision import Stored, record_of
from specc.data.reading import Reading
from specc.files.fields import Fields, Path
from specc.files.json import finite, parse, whole
from specc.files.read import shown
from specc.ir.graph import Graph
from specc.ir.model import DEFAULTS, Generation, Streaming
from specc.ir.read import read as read_graphs
from specc.ir.types import Type
from specc.ir.write import write as write_graphs
from specc.text.brief import brief
from specc.text.diagnostic import fail
from specc.version import __version__

KEY = "specc"
DOC = "specc.doc"
"""The spec's own line, which models have a place of their own for."""
FORMAT = 1
MOST_BYTES = 64 * 2**20
LONE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """`sources` are the spec files by name; `weights` says where numbers came from
    (`seed`, or file facts, and `drawn` for a new head), `stored` which initializer holds
    each parameter. A model that decodes by itself says in `decodes` with what settings,
    and its `graph` has no more than the inputs of the spec; `scoring` is the graph that it
    decodes. `precision` is told of
    rounded weights as plain data, `rounded` the same once it was read; `graph` reads
    what they stand for.
    """

    name: str
    doc: str
    graph: Graph
    defaults: Graph | None
    reading: Reading
    config: Mapping[str, object]
    generation: Mapping[str, object] | None
    sources: Mapping[str, str]
    weights: Mapping[str, object]
    stored: Mapping[str, str]
    target: str
    opset: int
    version: str = __version__
    attentions: tuple[Mapping[str, str], ...] = field(default=())
    decodes: Mapping[str, object] | None = None
    scoring: Graph | None = None
    streaming: Streaming | None = None
    precision: Mapping[str, object] = field(default_factory=dict)
    rounded: Mapping[str, Stored] = field(default_factory=dict)

    def __repr__(self) -> str:
        return brief(f"manifest {self.name}, {self.graph.signed()}, {self.target}")

    @property
    def chance(self) -> Chance | None:
        """The seed, for a model whose weights, or those of a new head, were drawn."""
        match self.weights:
            case {"seed": int(seed)}:
                return Chance(seed)
            case {"drawn": {"seed": int(seed), "weights": list(names)}}:
                return Chance(seed, len(names))
        return None

    @property
    def generates(self) -> Generation | None:
        """What the spec says in `generate`; None where it says nothing, or nothing that
        makes sense.
        """
        return generation_from(self.generation)

    def dump(self) -> str:
        """As JSON, the same bytes for the same model."""
        graphs = [self.graph, *([self.defaults] if self.defaults else [])]
        # only a model that decodes by itself says that it does, and so of rounding
        some: dict[str, object] = {}
        if self.decodes is not None:
            some["decodes"] = dict(self.decodes)
        if self.scoring is not None:
            some["scoring"] = write_graphs(self.scoring)
        if self.precision:
            some["precision"] = dict(self.precision)
        if self.streaming is not None:
            some["streaming"] = _streaming_data(self.streaming)
        data = {
            "format": FORMAT,
            "specc": self.version,
            "model": self.name,
            "doc": self.doc,
            "target": self.target,
            "opset": self.opset,
            "config": finite(self.config),
            "generation": self.generation,
            "reading": self.reading.to_json(),
            "weights": dict(self.weights),
            "stored": dict(self.stored),
            "attentions": [dict(a) for a in self.attentions],
            **some,
            "sources": dict(self.sources),
            "graphs": write_graphs(*graphs),
        }
        return as_text(data)


def generation_from(data: object) -> Generation | None:
    """What a spec says in `generate`, its settings not looked at yet; None for anything
    else.
    """
    match data:
        case {
            "name": str(name),
            "growing": str(growing),
            "source": str(source),
            "settings": dict(settings),
        }:
            return Generation(name, growing, source, settings)
    return None


def _streaming_data(streaming: Streaming) -> dict[str, object]:
    return {"growing": streaming.growing, "sources": list(streaming.sources)}


def _streaming_from(data: object) -> Streaming | None:
    """What a spec says in `stream`; None for anything else."""
    match data:
        case {"growing": str(growing), "sources": [str(), *_] as sources}:
            return Streaming(growing, tuple(map(str, sources)))
    return None


def as_text(data: Mapping[str, object]) -> str:
    """Compact JSON. The bytes of a file's name that are no UTF-8 are escaped: no file
    can hold them as they are.
    """
    text = json.dumps(data, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return LONE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def load(text: str, path: str) -> Manifest:
    """The manifest of a model. Fails with E0917 where it is none of ours or damaged."""
    if len(text) > MOST_BYTES:
        fail(
            "E0917",
            f"the description inside `{path}` is larger than {MOST_BYTES // 2**20} MiB",
        )
    data = _fields(text, path)
    graphs = read_graphs(data.text("graphs"), path)
    defaults = graphs.pop(DEFAULTS, None)
    # a graph that computes absent inputs stands beside the one that it belongs to;
    # alone it is a model that somebody called so
    graph = next(iter(graphs.values()), defaults)
    if graph is None:
        _damaged(path, "it holds no graph")
    scoring = _scoring(data, path)
    stored = data.texts_by_name("stored")
    names = [*graph.parameters, *(scoring.parameters if scoring else ())]
    if missing := [n for n in names if n not in stored]:
        _damaged(path, f"it does not say where the weight `{shown(missing[0])}` lies")
    return Manifest(
        name=data.text("model"),
        doc=data.text("doc"),
        graph=_with_ties(graph, stored),
        defaults=defaults if defaults is not graph else None,
        reading=Reading.from_json(data.maybe("reading")),
        config=data.table("config"),
        generation=data.table("generation") if data.has("generation") else None,
        sources=data.texts_by_name("sources"),
        weights=data.table("weights"),
        stored=stored,
        target=data.text("target"),
        opset=whole(data.maybe("opset")) or 0,
        version=data.text("specc"),
        attentions=_attentions(data, path),
        decodes=data.table("decodes") if "decodes" in data.names() else None,
        scoring=scoring and _with_ties(scoring, stored),
        streaming=_streaming_from(data.maybe("streaming")),
        precision=data.table("precision") if "precision" in data.names() else {},
        rounded=_rounded(data, scoring or graph, path),
    )


def _scoring(data: Fields, path: str) -> Graph | None:
    """The graph that a model decodes; None where it is not told."""
    if "scoring" not in data.names():
        return None
    return next(iter(read_graphs(data.text("scoring"), path).values()), None)


def _fields(text: str, path: str) -> Fields:
    """The fields of a manifest in a form that this version reads."""

    def complain(place: Path, what: str) -> NoReturn:
        _damaged(path, f"`{'.'.join(place)}` {what}")

    try:
        data = parse(text)
    except json.JSONDecodeError:
        _damaged(path, "it is not JSON")
    except ValueError as error:
        _damaged(path, str(error))
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        _damaged(path, "it has another format; compile the model again")
    return Fields(data, complain=complain)


def _with_ties(graph: Graph, stored: Mapping[str, str]) -> Graph:
    """The graph whose weights note which other one has the numbers that they have: what
    one initializer holds. What a spec ties may have come with numbers of its own.
    """
    first: dict[tuple[str, Type], str] = {}
    facts = {}
    for name, known in graph.parameter_facts.items():
        root = first.setdefault((stored[name], known.type), name)
        facts[name] = replace(known, tied_to="" if root == name else root)
    return replace(graph, parameter_facts=facts)


def _rounded(data: Fields, graph: Graph, path: str) -> Mapping[str, Stored]:
    """The rounded weights; each is a matrix of the graph."""
    found = record_of(data).rounded
    for name in found:
        value = graph.parameters.get(name)
        # a stack of matrices has one for each expert
        if value is None or value.type.rank not in (2, 3):
            _damaged(path, f"it has no matrix `{shown(name)}` that could be rounded")
    return found


def _attentions(data: Fields, path: str) -> tuple[dict[str, str], ...]:
    """What is told of each attention. Models of before taps have no such list."""
    found = []
    for one in data.listed("attentions") if "attentions" in data.names() else ():
        if not isinstance(one, dict):
            _damaged(path, "its list of attentions is broken")
        if not all(isinstance(text, str) for text in one.values()):
            _damaged(path, "its list of attentions is broken")
        found.append(one)
    return tuple(found)


def _damaged(path: str, why: str) -> NoReturn:
    fail("E0917", f"the description inside `{path}` cannot be used: {why}")
