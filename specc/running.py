"""`specc run` and `specc.load`: a compiled model, what it reads and what it shows.

Inputs are checked against the graph in the manifest before ONNX Runtime sees them, because it does not.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specc import backend
from specc.entrance import Entrance, bounds_of
from specc.input import shown
from specc.manifest import KEY, Manifest, load
from specc.reading.arrays import nested_array, read_array, read_arrays
from specc.reading.check import InputSpec
from specc.reading.files import read_bytes
from specc.reading.image import read_image
from specc.reading.record import Image, Numbers, TextBytes, TextCharacters
from specc.reading.text import encode
from specc.reading.tokenizer import TextTokenizer
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

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What it takes."""
        return self.entrance.specs

    def run(self, **inputs: Array) -> dict[str, Array]:
        """The results for these inputs: arrays, nested lists, and texts where the spec reads text.

        Fails with E09xx on inputs it cannot take.
        """
        made: dict[str, Array] = self.session.run(self.prepared(inputs))
        return made

    def attention(self, **inputs: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        """The results, and the weights of every attention by its scope: [batch, heads, query, key]."""
        session, names = self.file.open_with_attention(self.provider, self.manifest.attentions)
        made = session.run(self.prepared(inputs))
        return {n: made[n] for n in self.session.outputs}, {scope: made[n] for scope, n in names.items()}

    @property
    def entrance(self) -> Entrance:
        """What may be given to it."""
        manifest = self.manifest
        growing = str((manifest.generation or {}).get("growing", ""))
        return Entrance(manifest.graph, manifest.reading, manifest.defaults, growing, bounds_of(manifest.graph))

    def prepared(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Checked arrays for every input, defaults filled in."""
        return self.entrance.prepared(inputs)

    def weights(self) -> dict[str, Array]:
        """The model's parameters by the spec's names."""
        found: dict[str, Array] = self.file.weights(self.manifest.stored)
        return found


def open_model(path: str, *, provider: str = "cpu", threads: int = 0) -> Loaded:
    """A compiled model. E0918 for one without our manifest, E0921 and E0922 for a provider that is not there."""
    file = backend.load("onnx").file.read_model(Path(path))
    return loaded(file, manifest_in(file, path), provider, threads)


def loaded(file: Any, manifest: Manifest, provider: str, threads: int = 0) -> Loaded:
    """A model file with its manifest and what lies beside it, ready to run.

    E0921 and E0922 for a provider that is not there, E0942 for a tokenizer that is not the model's.
    """
    manifest = replace(manifest, reading=manifest.reading.opened(file.path.parent))
    return Loaded(file.path, manifest, provider, file, file.open(provider, threads))


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


def read_arguments(model: Entrance, arguments: Sequence[str]) -> dict[str, Array]:
    """Words of the command line as arrays: `name=value` or in the order of the inputs that are asked for."""
    reading, specs = model.reading, model.specs
    names = [s.name for s in specs]
    asked = [s.name for s in specs if not s.optional]
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
        case TextCharacters() | TextBytes() | TextTokenizer():
            return encode(_text(text), record)[None]
    if text[:1] in "[{0123456789-" and not Path(text).exists():
        try:
            return nested_array(json.loads(text), f"the JSON text in {name}")
        except ValueError:
            fail("E0906", f"the input `{name}` is neither a file nor a list of numbers", helps=[f"`{shown(text)}`"])
    if not Path(text).suffix and not Path(text).exists():
        fail(
            "E0906",
            f"the input `{name}` takes numbers, and `{shown(text)[:60]}` is neither a file nor a list of them",
            notes=["the spec does not say that it is read as text"],
            helps=['give numbers, "[[1, 2, 3]]", or an array in a file (.npy, .npz, .json)'],
        )
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
