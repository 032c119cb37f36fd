"""`specc run` and `specc.load`: a compiled model, what it reads and what it shows.

Inputs are checked against the graph in the manifest before ONNX Runtime sees them, because it does not.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from specc import backend
from specc.input import shown
from specc.ir.dim import DimError
from specc.ir.dim_text import parse_dim
from specc.ir.graph import Graph
from specc.manifest import KEY, Manifest, load
from specc.passes.limits import limits
from specc.reading.arrays import exact, nested_array, read_array, read_arrays
from specc.reading.check import Bound, InputSpec, check_inputs
from specc.reading.files import read_bytes
from specc.reading.image import read_image
from specc.reading.record import Image, Numbers, TextBytes, TextCharacters
from specc.reading.text import encode
from specc.text.diagnostic import fail
from specc.text.suggest import did_you_mean

Array = Any


@dataclass
class Loaded:
    """A compiled model ready to run.

    `model.run(pixels=array)` gives the results by name; absent inputs that have a default are computed.
    """

    path: Path
    manifest: Manifest
    provider: str
    file: Any = field(repr=False)
    session: Any = field(repr=False)
    inputs: tuple[InputSpec, ...] = ()

    def run(self, **inputs: Array) -> dict[str, Array]:
        """The results for these inputs, arrays or nested lists. Fails with E09xx on inputs it cannot take."""
        made: dict[str, Array] = self.session.run(self.prepared(inputs))
        return made

    def attention(self, **inputs: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        """The results, and the weights of every attention by its scope: [batch, heads, query, key]."""
        session, names = self.file.open_with_attention(self.provider, self.manifest.attentions)
        made = session.run(self.prepared(inputs))
        return {n: made[n] for n in self.session.outputs}, {scope: made[n] for scope, n in names.items()}

    def prepared(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Checked arrays for every input, defaults filled in."""
        kinds = {s.name: s for s in self.inputs}
        given = {}
        for name, value in inputs.items():
            array = value if isinstance(value, np.ndarray) else nested_array(value, name)
            given[name] = exact(array, kinds[name].dtype, name) if name in kinds else array
        checked = check_inputs(self.inputs, given, bounds=bounds_of(self.manifest.graph), solve=_solve)
        return {**self._filled(checked), **checked}

    def _filled(self, given: Mapping[str, Array]) -> dict[str, Array]:
        defaults = self.manifest.defaults
        absent = tuple(n for n in defaults.outputs if n not in given) if defaults else ()
        if not absent or defaults is None:
            return {}
        known = {n: v for n, v in given.items() if n in defaults.inputs}
        made = backend.load("numpy").run(defaults, known, {}, wanted=absent)
        types = {n: v.type.dtype for n, v in self.manifest.graph.inputs.items()}
        return {n: exact(np.asarray(v), types[n], n) for n, v in made.items()}

    def weights(self) -> dict[str, Array]:
        """The model's parameters by the spec's names."""
        found: dict[str, Array] = self.file.weights(self.manifest.stored)
        return found


def _solve(text: str, env: Mapping[str, int]) -> int | None:
    try:
        return parse_dim(text).at(env)
    except DimError:
        return None


def open_model(path: str, *, provider: str = "cpu", threads: int = 0) -> Loaded:
    """A compiled model. E0918 for one without our manifest, E0921 and E0922 for a provider that is not there."""
    file = backend.load("onnx").file.read_model(Path(path))
    manifest = manifest_in(file, path)
    session = file.open(provider, threads)
    return Loaded(Path(path), manifest, provider, file, session, input_specs(manifest))


def manifest_of(path: str) -> Manifest:
    """What a compiled model says about itself; it is not run."""
    return manifest_in(backend.load("onnx").file.read_model(Path(path)), path)


def manifest_in(file: Any, path: str) -> Manifest:
    """The manifest of a model file. E0918 where there is none."""
    found = file.metadata
    if KEY not in found:
        fail(
            "E0918",
            f"`{shown(path)}` was not made by specc",
            notes=["what its inputs mean is not known"],
            helps=["only specc's own models are run: compile its spec"],
        )
    return load(found[KEY], shown(path))


def bounds_of(graph: Graph) -> dict[str, Bound]:
    """What each length may be: at least what `dims` promises, at most what a table of positions holds."""
    most = limits(graph)
    found = {}
    for symbol in {*graph.least, *most}:
        limit = most.get(symbol)
        reasons = [f"`dims` promises {symbol} >= {graph.least[symbol]}"] if symbol in graph.least else []
        reasons += [f"the table `{limit.table}` has {limit.most} positions"] if limit else []
        why = "; ".join(reasons)
        found[symbol] = Bound(graph.least.get(symbol, 0), limit.most if limit else None, why)
    return found


def input_specs(manifest: Manifest) -> tuple[InputSpec, ...]:
    """What the runner checks of each input."""
    graph = manifest.graph
    absent = set(manifest.defaults.outputs) if manifest.defaults else set()
    specs = []
    for name, value in graph.inputs.items():
        facts = graph.input_facts.get(name)
        dims = tuple(d.number if d.number is not None else str(d) for d in value.type.shape)
        below = facts.below.number if facts and facts.below is not None else None
        specs.append(InputSpec(name, value.type.dtype, dims, below, name in absent))
    return tuple(specs)


def read_arguments(model: Loaded, arguments: Sequence[str]) -> dict[str, Array]:
    """Words of the command line as arrays: `name=value` or in the order of the inputs that are asked for."""
    reading = model.manifest.reading
    names = [s.name for s in model.inputs]
    asked = [s.name for s in model.inputs if not s.optional]
    given: dict[str, Array] = {}
    named = {n for n in names if any(a.startswith(f"{n}=") for a in arguments)}
    for argument in arguments:
        name, equals, rest = argument.partition("=")
        if equals and name in names:
            _give(given, name, _read_one(reading.of_input(name), rest, name))
            continue
        if equals and name.isidentifier() and did_you_mean(name, names) and not Path(argument).exists():
            helps = [f"did you mean `{did_you_mean(name, names)}`?"]
            fail("E0910", f"the model has no input `{shown(name)}`", helps=helps)
        target = next((n for n in asked if n not in given and n not in named), None)
        if argument.endswith((".npz", ".json")) and isinstance(reading.of_input(target or ""), Numbers):
            arrays = read_arrays(argument)
            only = arrays.pop("", None)
            for found, array in arrays.items():
                _give(given, found, array)
            if only is None:
                continue
            given[_asked(target, argument, asked)] = only
            continue
        target = _asked(target, argument, asked)
        given[target] = _read_one(reading.of_input(target), argument, target)
    return given


def _asked(target: str | None, argument: str, asked: list[str]) -> str:
    """The input that a word without a name is for. E0910 where every input has one."""
    if target is None:
        helps = [f"the inputs are {', '.join(asked)}"]
        fail("E0910", f"`{shown(argument)}` is one argument too many", helps=helps)
    return target


def _give(given: dict[str, Array], name: str, array: Array) -> None:
    if name in given:
        fail("E0910", f"the input `{shown(name)}` is given twice")
    given[name] = array


def _read_one(record: Any, text: str, name: str) -> Array:
    match record:
        case Image():
            return read_image(text, record)
        case TextCharacters() | TextBytes():
            return encode(_text(text), record)[None]
    if text[:1] in "[{0123456789-" and not Path(text).exists():
        try:
            return nested_array(json.loads(text), name)
        except ValueError:
            fail("E0906", f"the input `{name}` is neither a file nor a list of numbers", helps=[f"`{shown(text)}`"])
    return read_array(text)


def _text(text: str) -> str:
    """A text itself, or with `@` before it the file that holds it."""
    if not text.startswith("@"):
        return text
    data = read_bytes(text[1:], 2**20)
    try:
        return data.decode("utf-8").rstrip("\n")
    except UnicodeDecodeError:
        fail("E0112", f"`{shown(text[1:])}` is not UTF-8 text")
