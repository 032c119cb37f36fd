"""What a package says about generating, beside its graphs: the spec's inputs, the states, how text is read.

It stands in `specc.json` and comes from outside with it, so every part is checked when it is read. E0831 where one is
wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, NoReturn

from specc.input import shown
from specc.ir.derived import State
from specc.ir.graph import Graph
from specc.ir.model import DEFAULTS, Generation
from specc.ir.read import read as read_graphs
from specc.ir.write import write as write_graphs
from specc.reading.check import Bound
from specc.reading.record import Reading
from specc.text.diagnostic import fail

KEY = "generating"
ROLES = ("key", "value", "carry", "rows")


@dataclass(frozen=True)
class Facts:
    """`signature` has the inputs of the spec and nothing else; `context` is the most rows there may be, by `table`.

    `bounds` say what other lengths may be. `in_place` are the states that are buffers, which a step writes into
    (`specc.writers.steppers`).
    """

    generation: Generation
    signature: Graph
    defaults: Graph | None
    reading: Reading
    states: tuple[State, ...]
    handed: tuple[str, ...]
    whole: tuple[str, ...]
    context: int | None = None
    table: str = ""
    seed: int | None = None
    in_place: tuple[str, ...] = ()
    bounds: Mapping[str, Bound] = field(default_factory=dict)

    def dump(self) -> dict[str, Any]:
        """As JSON data."""
        graphs = [self.signature, *([self.defaults] if self.defaults else [])]
        facts = {
            "generation": vars(self.generation),
            "graphs": write_graphs(*graphs),
            "reading": self.reading.to_json(),
            "states": [_state(s) for s in self.states],
            "handed": list(self.handed),
            "whole": list(self.whole),
            "context": self.context,
            "table": self.table,
            "seed": self.seed,
            "in_place": list(self.in_place),
            "bounds": bounds_data(self.bounds),
        }
        return {KEY: facts}


def bounds_data(bounds: Mapping[str, Bound]) -> dict[str, list[Any]]:
    """Bounds as JSON data."""
    return {name: [b.low, b.high, b.why] for name, b in sorted(bounds.items())}


def bounds_from(data: Any) -> dict[str, Bound]:
    """Bounds from JSON data; what is none of ours is left out."""
    found = {}
    for name, said in data.items() if isinstance(data, dict) else ():
        match said:
            case [int() as low, None | int() as high, str() as why]:
                found[name] = Bound(low, high, why[:300])
    return found


def _state(state: State) -> dict[str, Any]:
    return {
        "name": state.name,
        "next": state.next,
        "batch": state.batch,
        "rows": state.rows,
        "most": None if state.most == inf else int(state.most),
        "initial": state.initial,
        "role": state.role,
        "layer": state.layer,
    }


def load(about: Mapping[str, Any], step: Graph, path: str) -> Facts:
    """The facts of a package whose step graph is `step`. E0831 for what does not fit it."""
    data = about.get(KEY)
    if not isinstance(data, dict):
        _damaged(path, "it does not say how it generates")
    said = data.get("generation")
    words = ("name", "growing", "source")
    if not isinstance(said, dict) or not all(isinstance(said.get(w), str) for w in words):
        _damaged(path, "`generation` is broken")
    settings = said.get("settings")
    if not isinstance(settings, dict) or not isinstance(data.get("graphs"), str):
        _damaged(path, "`generation` is broken")
    graphs = read_graphs(data["graphs"], path)
    signature = next((g for n, g in graphs.items() if n != DEFAULTS), None)
    generation = Generation(said["name"], said["growing"], said["source"], settings)
    if signature is None or generation.growing not in signature.inputs or generation.growing not in step.inputs:
        _damaged(path, "the input that grows is missing")
    if generation.source not in step.outputs or signature.inputs[generation.growing].type.rank != 2:
        _damaged(path, "the result that tokens are drawn from is missing")
    context, seed = data.get("context"), data.get("seed")
    states = tuple(_read_state(s, step, path) for s in _list(data, "states", path))
    if len({s.name for s in states}) < len(states) or len({s.next for s in states}) < len(states):
        _damaged(path, "a state is listed twice")
    told = {d.name for value in signature.inputs.values() for d in value.type.shape}
    for state in states:
        fixed = (d for n, d in enumerate(state.type.shape) if n != state.rows)
        if not state.initial and any(d.symbols() - told for d in fixed):
            _damaged(path, f"nothing says how large the state `{shown(state.name)[:200]}` is at the beginning")
    return Facts(
        generation,
        signature,
        graphs.get(DEFAULTS),
        Reading.from_json(data.get("reading")),
        states,
        tuple(_name(n, step, path) for n in _list(data, "handed", path)),
        tuple(_name(n, step, path) for n in _list(data, "whole", path)),
        context if type(context) is int and context > 0 else None,
        str(data.get("table", ""))[:200],
        seed if type(seed) is int else None,
        tuple(_name(n, step, path) for n in _list(data, "in_place", path)),
        bounds_from(data.get("bounds")),
    )


def check_encode(facts: Facts, encode: Any, path: str) -> None:
    """E0831 where what a step is handed, or begins with, comes from no graph of the package."""
    inputs = set(facts.signature.inputs)
    wanted = {*(n for n in facts.handed if n not in inputs), *(s.initial for s in facts.states if s.initial)}
    missing = sorted(wanted - set(encode.outputs if encode is not None else ()))
    missing += sorted(set(encode.inputs if encode is not None else ()) - inputs)
    if missing:
        _damaged(path, f"no `encode` graph gives or takes `{shown(missing[0])[:200]}`")


def _read_state(data: Any, step: Graph, path: str) -> State:
    if not isinstance(data, dict):
        _damaged(path, "a state is broken")
    name, after, most = data.get("name"), data.get("next"), data.get("most")
    if not isinstance(name, str) or not isinstance(after, str) or name not in step.inputs or after not in step.outputs:
        _damaged(path, f"the step has no state `{shown(str(name))[:200]}`")
    type_ = step.inputs[name].type
    axes = [data.get("batch"), data.get("rows")]
    fits = all(a is None or (type(a) is int and 0 <= a < type_.rank) for a in axes)
    initial, role, layer = data.get("initial"), data.get("role"), data.get("layer")
    if not fits or role not in ROLES or not isinstance(initial, str) or type(layer) is not int:
        _damaged(path, f"the state `{shown(name)[:200]}` is broken")
    if most is not None and type(most) is not int:
        _damaged(path, f"the state `{shown(name)[:200]}` is broken")
    return State(name, after, type_, axes[0], axes[1], inf if most is None else most, initial, role, layer)


def _name(name: Any, step: Graph, path: str) -> str:
    if not isinstance(name, str) or name not in step.inputs:
        _damaged(path, f"the step has no input `{shown(str(name))[:200]}`")
    return name


def _list(data: Mapping[str, Any], key: str, path: str) -> list[Any]:
    found = data.get(key)
    if not isinstance(found, list):
        _damaged(path, f"`{key}` is no list")
    return found


def _damaged(path: str, why: str) -> NoReturn:
    fail("E0831", f"the package `{path}` cannot generate", notes=[why], helps=["compile the package again"])
