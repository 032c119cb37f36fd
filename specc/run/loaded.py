"""`specc run` and `specc.load`: a compiled model, what it reads and what it shows.

Inputs are checked against the graph in the manifest before ONNX Runtime sees them,
because it does not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from specc import backend
from specc.artifact import external as beside
from specc.artifact.manifest import KEY, Manifest, load
from specc.backend import Computing, ModelFile, Product, Session
from specc.data.check import InputSpec
from specc.files.memory import check_room
from specc.files.read import shown
from specc.ir.array import Array
from specc.run.attention_weights import weights_of
from specc.run.buffered import Buffered
from specc.run.inputs import Entrance, entrance_of
from specc.run.maps import Maps
from specc.run.rounded import weights_in
from specc.text.brief import brief
from specc.text.diagnostic import fail


@dataclass(kw_only=True)
class Loaded:
    """A compiled model ready to run: `runtime` holds it, `session` runs it as its graph
    says, which is the same but for a step that writes into buffers.

    `model.run(pixel_values=array)` gives the results by name; absent inputs that have a
    default are computed.
    """

    path: Path
    manifest: Manifest
    provider: str
    file: ModelFile = field(repr=False)
    session: Computing = field(repr=False)
    runtime: Session = field(repr=False)

    def __repr__(self) -> str:
        return brief(f"graph {self.manifest.graph.signed()}, {self.provider}")

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What it takes."""
        return self.entrance.specs

    def run(self, **inputs: object) -> dict[str, Array]:
        """The results for these inputs: arrays, nested lists, and texts where the spec
        reads text.

        Fails with E09xx on inputs it cannot take.
        """
        return self.session.run(self.prepared(inputs))

    def attention(self, **inputs: object) -> tuple[dict[str, Array], Maps]:
        """The results, and the weights of every attention by its scope: [batch, heads,
        query, key].

        Where an attention stands in a loop, each turn is a query; where it has many
        queries in each, a turn is a map of its own, `self.attn turn 1`.
        """
        session, names = self._attending
        prepared = self.prepared(inputs)
        results = session.run(prepared)
        told = {scope: results[n] for scope, n in names.items()}
        weights = weights_of(self.manifest.graph, prepared, told, self.weights)
        return {n: results[n] for n in self.session.outputs}, Maps(weights)

    @cached_property
    def _attending(self) -> tuple[Session, dict[str, str]]:
        """A copy that gives attention weights too, opened when they are first asked for."""
        return self.file.open_with_attention(self.provider, self.manifest.attentions)

    @property
    def entrance(self) -> Entrance:
        """What may be given to it."""
        manifest = self.manifest
        growing = str((manifest.generation or {}).get("growing", ""))
        return entrance_of(manifest.graph, manifest.reading, manifest.defaults, growing)

    def prepared(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Checked arrays for every input, defaults filled in."""
        return self.entrance.prepared(inputs)

    def exact(self) -> "Loaded":
        """The same with nothing rounded but weights; itself where none are."""
        if not self.manifest.rounded:
            return self
        runtime = self.file.open_exact(self.provider)
        session: Computing = runtime
        if isinstance(self.session, Buffered):
            session = replace(self.session, inner=runtime)
        return replace(self, runtime=runtime, session=session)

    def with_products(self) -> tuple[Computing, tuple[Product, ...]]:
        """A copy that also gives what its products by rounded weights read and make."""
        session, products = self.file.open_with_products(self.provider)
        if isinstance(self.session, Buffered):
            return replace(self.session, inner=session), products
        return session, products

    def with_executions(self, wrap: Callable[[Session], Computing]) -> Computing:
        """A copy that counts executions of its subgraphs; `wrap` is put around what the
        runtime runs.
        """
        counting = wrap(self.file.open_counting(self.provider))
        if isinstance(self.session, Buffered):
            return replace(self.session, inner=counting)
        return counting

    def weights(self) -> dict[str, Array]:
        """The model's parameters by the spec's names; rounded ones as what they stand for."""
        return weights_in(self.file, self.manifest)


def open_model(
    path: str, *, provider: str = "cpu", threads: int = 0, contents: bool = False
) -> Loaded:
    """A compiled model, with `contents` once every byte of it is known to be what was
    written.

    E0918 for one without our manifest, E0929 for weights that are not its own, E0921
    and E0922 for a provider that is not there.
    """
    file = backend.runner().read_model(Path(path))
    manifest = manifest_in(file, path)
    _check_weights(
        file, manifest, contents or manifest.weights.get("every_load") is True
    )
    return loaded(file, manifest, provider, threads)


HASHED_BYTES = 1 << 20
"""A model with its weights inside is hashed at every load up to this size: hashing a
larger one takes more than 5 % of the time to load it.
"""


def _check_weights(file: ModelFile, manifest: Manifest, contents: bool) -> None:
    """Raise E0929 where weights beside a model, or the model itself, are not what was
    compiled. A model larger than HASHED_BYTES with its weights inside is compared only
    with `contents`, and so is what follows the first mebibyte of a file of weights.
    """
    folder, name = file.path.parent, file.path.name
    recorded = beside.load(manifest.weights.get("beside", {}))
    if recorded is None:
        fail(
            "E0917",
            f"the description inside `{shown(str(file.path))}` cannot be used: `beside` is damaged",
        )
    if why := beside.out_of_place(
        file.outside(), {n: f.bytes for n, f in recorded.items()}
    ):
        _not_its_own(file.path, name, why)
    # with weights beside it the file is the graph and their offsets
    cheap = bool(recorded) or file.path.stat().st_size <= HASHED_BYTES
    if (contents or cheap) and not file.unbroken():
        _not_its_own(
            file.path, name, "its content is not what was written when it was compiled"
        )
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


def loaded(
    file: ModelFile, manifest: Manifest, provider: str, threads: int = 0
) -> Loaded:
    """A model file with its manifest and what lies beside it, ready to run.

    E0804 where there is no room for its weights, before any is taken; E0921 and E0922
    for a provider that is not there, E0942 for a tokenizer that is not the model's.
    """
    manifest = replace(manifest, reading=manifest.reading.opened(file.path.parent))
    room = file.room()
    if provider == "cpu":  # what a device can hold only its driver knows
        check_room(str(file.path), room.held, room.stored, room.numbers)
    session = file.open(provider, threads)
    return Loaded(
        path=file.path,
        manifest=manifest,
        provider=provider,
        file=file,
        session=session,
        runtime=session,
    )


def manifest_of(path: str) -> Manifest:
    """What a compiled model says about itself; it is not run."""
    return manifest_in(backend.runner().read_model(Path(path)), path)


def manifest_in(file: ModelFile, path: str) -> Manifest:
    """The manifest of a model file. E0918 where there is none."""
    texts = file.metadata
    if KEY not in texts:
        fail(
            "E0918",
            f"`{shown(path)}` was not made by specc",
            notes=["what its inputs mean is not known"],
            helps=["only specc's own models are run: compile its spec"],
        )
    return load(texts[KEY], shown(path))
