"""`specc run` and `specc.load`: a compiled model, what it reads and what it shows.

Inputs are checked against the graph in the manifest before ONNX Runtime sees them, because it does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from specc import backend, beside
from specc.attending import weights_of
from specc.entrance import Entrance, bounds_of
from specc.input import shown
from specc.manifest import KEY, Manifest, load
from specc.reading.check import InputSpec
from specc.text.diagnostic import fail

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
        """The results, and the weights of every attention by its scope: [batch, heads, query, key].

        Where an attention stands in a loop, each turn is a query.
        """
        session, names = self.file.open_with_attention(self.provider, self.manifest.attentions)
        prepared = self.prepared(inputs)
        made = session.run(prepared)
        told = {scope: made[n] for scope, n in names.items()}
        weights = weights_of(self.manifest.graph, prepared, told, self.weights)
        return {n: made[n] for n in self.session.outputs}, weights

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


def open_model(path: str, *, provider: str = "cpu", threads: int = 0, contents: bool = False) -> Loaded:
    """A compiled model, with `contents` once every byte of it is known to be what was written.

    E0918 for one without our manifest, E0929 for weights that are not its own, E0921 and E0922 for a provider that is
    not there.
    """
    file = backend.load("onnx").file.read_model(Path(path))
    manifest = manifest_in(file, path)
    _check_weights(file, manifest, contents or manifest.weights.get("every_load") is True)
    return loaded(file, manifest, provider, threads)


def _check_weights(file: Any, manifest: Manifest, contents: bool) -> None:
    """E0929 where weights beside a model, or with `contents` a byte of the model itself, are not what was compiled."""
    folder, name = file.path.parent, file.path.name
    recorded = beside.load(manifest.weights.get("beside", {}))
    if recorded is None:
        fail("E0917", f"the description inside `{shown(str(file.path))}` cannot be used: `beside` is damaged")
    if why := beside.out_of_place(file.outside(), {n: f.bytes for n, f in recorded.items()}):
        _not_its_own(file.path, name, why)
    if contents and not file.unbroken():
        _not_its_own(file.path, name, "its content is not what was written when it was compiled")
    for location, facts in recorded.items():
        if why := beside.fault(folder, location, facts, contents=contents):
            _not_its_own(file.path, location, why)


def _not_its_own(path: Path, name: str, why: str) -> NoReturn:
    fail(
        "E0929",
        f"`{shown(name)[:200]}` is not as it was when `{shown(str(path))}` was compiled",
        notes=[why],
        helps=["compile the model again, or put back the files it was compiled with"],
    )


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
