"""What a compiled model carries about itself: the spec, the graph as text, the config, where weights came from.

The manifest is JSON in the model's metadata under `specc`. Reading one trusts nothing: sizes are capped and
every part is checked by the reader of that part.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from specc import __version__
from specc.input import shown
from specc.ir.graph import Graph
from specc.ir.model import DEFAULTS
from specc.ir.read import read as read_graphs
from specc.ir.write import write as write_graphs
from specc.reading.record import Reading
from specc.text.diagnostic import fail

KEY = "specc"
FORMAT = 1
MOST_BYTES = 64 * 2**20
LONE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Manifest:
    """`sources` are the spec files by name; `weights` says where numbers came from (`seed`, or file
    facts), `stored` which initializer holds each parameter. A model that decodes by itself says in `decodes` with what
    settings, and its `graph` has no more than the inputs of the spec.
    """

    name: str
    doc: str
    graph: Graph
    defaults: Graph | None
    reading: Reading
    config: Mapping[str, Any]
    generation: Mapping[str, Any] | None
    sources: Mapping[str, str]
    weights: Mapping[str, Any]
    stored: Mapping[str, str]
    target: str
    opset: int
    version: str = __version__
    attentions: tuple[Mapping[str, str], ...] = field(default=())
    decodes: Mapping[str, Any] | None = None

    @property
    def seed(self) -> int | None:
        """The seed, for a model whose weights were drawn."""
        seed = self.weights.get("seed")
        return seed if isinstance(seed, int) else None

    def dump(self) -> str:
        """As JSON, the same bytes for the same model."""
        graphs = [self.graph, *([self.defaults] if self.defaults else [])]
        data = {
            "format": FORMAT,
            "specc": self.version,
            "model": self.name,
            "doc": self.doc,
            "target": self.target,
            "opset": self.opset,
            "config": dict(self.config),
            "generation": self.generation,
            "reading": self.reading.to_json(),
            "weights": dict(self.weights),
            "stored": dict(self.stored),
            "attentions": [dict(a) for a in self.attentions],
            **({"decodes": dict(self.decodes)} if self.decodes is not None else {}),
            "sources": dict(self.sources),
            "graphs": write_graphs(*graphs),
        }
        return as_text(data)


def as_text(data: Mapping[str, Any]) -> str:
    """Compact JSON. The bytes of a file's name that are no UTF-8 are escaped: no file can hold them as they are."""
    text = json.dumps(data, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return LONE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def load(text: str, path: str) -> Manifest:
    """The manifest of a model. Fails with E0917 where it is none of ours or damaged."""
    if len(text) > MOST_BYTES:
        fail("E0917", f"the description inside `{path}` is larger than {MOST_BYTES // 2**20} MiB")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        _damaged(path, "it is not JSON")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        _damaged(path, "it has another format; compile the model again")
    graphs = read_graphs(_text(data, "graphs", path), path)
    names = list(graphs)
    if not names:
        _damaged(path, "it holds no graph")
    main = next((n for n in names if n != DEFAULTS), names[0])
    stored = {str(k): str(v) for k, v in _dict(data, "stored", path).items()}
    if missing := [n for n in graphs[main].parameters if n not in stored]:
        _damaged(path, f"it does not say where the weight `{shown(missing[0])}` lies")
    return Manifest(
        _text(data, "model", path),
        _text(data, "doc", path),
        graphs[main],
        graphs.get(DEFAULTS) if main != DEFAULTS else None,
        Reading.from_json(data.get("reading")),
        _dict(data, "config", path),
        None if data.get("generation") is None else _dict(data, "generation", path),
        {str(k): str(v) for k, v in _dict(data, "sources", path).items()},
        _dict(data, "weights", path),
        stored,
        _text(data, "target", path),
        data["opset"] if isinstance(data.get("opset"), int) else 0,
        _text(data, "specc", path),
        tuple(_attention(a, path) for a in _list(data, "attentions", path)),
        _dict(data, "decodes", path) if "decodes" in data else None,
    )


def _attention(data: Any, path: str) -> dict[str, str]:
    if not isinstance(data, dict) or not all(isinstance(v, str) for v in data.values()):
        _damaged(path, "its list of attentions is broken")
    return {str(k): v for k, v in data.items()}


def _list(data: Mapping[str, Any], key: str, path: str) -> list[Any]:
    found = data.get(key, [])
    if not isinstance(found, list):
        _damaged(path, f"`{key}` is no list")
    return found


def _text(data: Mapping[str, Any], key: str, path: str) -> str:
    if not isinstance(data.get(key), str):
        _damaged(path, f"`{key}` is missing")
    return str(data[key])


def _dict(data: Mapping[str, Any], key: str, path: str) -> dict[str, Any]:
    found = data.get(key)
    if not isinstance(found, dict):
        _damaged(path, f"`{key}` is missing")
    return found


def _damaged(path: str, why: str) -> NoReturn:
    fail("E0917", f"the description inside `{path}` cannot be used: {why}")
