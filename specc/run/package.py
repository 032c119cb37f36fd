"""Opening a package: a folder of several graphs over one set of weights, believed only
as `specc.json` describes it.

Every graph is compared with its hash before it is parsed, weights with their size (and
their hash on demand), and no graph reads weights that the index does not list. What
does not fit together is refused by the file's name.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from specc import backend
from specc.artifact.external import Beside, fault, hash_of, out_of_place, size_of
from specc.artifact.facts import load as load_facts
from specc.artifact.index import NAME, Index, read_index
from specc.artifact.manifest import KEY, Manifest
from specc.backend import ModelFile, Session
from specc.files.read import Unreadable, read_regular, shown
from specc.files.write import FileFacts
from specc.run.buffered import Buffered
from specc.run.loaded import Loaded, loaded, manifest_in
from specc.text.brief import brief
from specc.text.diagnostic import Failed, fail
from specc.text.suggest import suggest

USUAL = ("score", "generate")
"""The graphs that are meant where none is named, the first that there is."""


@dataclass(frozen=True)
class Package:
    """A package whose files fit together. `models` holds each graph's parsed model by role."""

    path: Path
    index: Index
    models: Mapping[str, ModelFile] = field(repr=False)

    def __repr__(self) -> str:
        return brief(f"package {self.path}: {', '.join(self.roles)}")

    @property
    def roles(self) -> tuple[str, ...]:
        """The graphs there are, in alphabetical order: `encode`, `score`, `step`."""
        return tuple(sorted(self.index.graphs))

    @property
    def usual(self) -> str:
        """The graph that is meant where none is named; empty where that is open."""
        alone = self.roles[0] if len(self.roles) == 1 else ""
        return next((role for role in USUAL if role in self.roles), alone)

    def has(self, wanted: str) -> bool:
        """Whether there is a graph of that name, or one that is meant without a name."""
        return wanted in self.roles or bool(self.usual and not wanted)

    def role(self, wanted: str = "") -> str:
        """The graph of that name; without a name the only one, or the one that scores.
        E0832 where there is none.
        """
        roles = self.roles
        if wanted in roles:
            return wanted
        if self.usual and not wanted:
            return self.usual
        title = (
            f"the package has no graph called `{shown(wanted)}`"
            if wanted
            else "it is open which graph is meant"
        )
        choose = f"name one: {', '.join(map(shown, roles))}"
        helps = suggest(wanted, roles, choose) if wanted else [choose]
        fail("E0832", title, helps=helps)

    def described(self, role: str) -> bool:
        """Whether a graph carries a manifest."""
        return KEY in self.models[role].metadata

    def manifest(self, role: str) -> Manifest:
        """What a graph says of itself. E0918 where it says nothing."""
        file = self.models[role]
        found = manifest_in(file, str(file.path))
        # The texts of a spec stand once in the index, not in every graph.
        return found if found.sources else replace(found, sources=self.index.sources)

    def load(self, role: str, *, provider: str = "cpu", threads: int = 0) -> Loaded:
        """A graph ready to run. E0921 and E0922 for a provider that is not there."""
        model = loaded(self.models[role], self.manifest(role), provider, threads)
        if role != "step" or not self.index.about:
            return model
        graph = model.manifest.graph
        facts = load_facts(self.index.about, graph, str(self.path))
        if not facts.in_place:
            return model
        # it is compared and run as its graph says, buffers or not
        return replace(model, session=Buffered(model.runtime, graph, facts))

    def session(self, role: str, *, provider: str = "cpu", threads: int = 0) -> Session:
        """A graph ready to run as it is, without a manifest: names and lengths are
        checked, nothing is filled in.
        """
        return self.models[role].open(provider, threads)

    def extra(self, role: str) -> bytes | None:
        """The content of a further file by its role (`tokenizer.json`), compared with
        its hash; None: there is none.
        """
        name = self.index.extras.get(role)
        return (
            None if name is None else _checked(self.path, name, self.index.files[name])
        )


def open_package(path: str | Path, *, contents: bool = False) -> Package:
    """Open a package. `contents` has the weights compared with their hashes too, which
    reads them once.

    Fails with E0802 (no index), E0831 (an index that cannot be used), E0830 (files that
    do not belong together).
    """
    folder = Path(path)
    index = read_index(folder)
    # Another program may write the package while it is opened. Its index is written
    # last, so one that has changed since explains why files do not fit; then all is
    # read again.
    while True:
        try:
            opened = _opened(folder, index, contents)
            if contents:
                read_index(folder, contents=True)
            return opened
        except Failed:
            found = read_index(folder)
            if found == index:
                raise
            index = found  # it was replaced meanwhile


def _opened(folder: Path, index: Index, contents: bool) -> Package:
    contents = contents or index.every_load
    graphs = set(index.graphs.values())
    for name, facts in index.files.items():
        _check_size(folder, name, facts)
        # Graphs are hashed below in any case, when they are read.
        if contents and name not in graphs and hash_of(folder / name) != facts.sha256:
            _mixed(folder, name, "its content is not what was written with the package")
    for name, linked in index.linked.items():
        if why := fault(folder, name, linked, contents=contents):
            _mixed(folder, name, why)
    reader = backend.runner()
    models: dict[str, ModelFile] = {}
    for role, name in index.graphs.items():
        models[role] = reader.parse_model(
            _checked(folder, name, index.files[name]), folder / name
        )
        _check_weights(folder, name, models[role], index)
    return Package(folder, index, models)


def _check_size(folder: Path, name: str, facts: FileFacts) -> None:
    size = size_of(folder / name)
    if size is None:
        _mixed(folder, name, "it is missing, or it is no regular file")
    if size != facts.bytes:
        _mixed(
            folder,
            name,
            f"it has {size} bytes, {facts.bytes} were written with the package",
        )


def _checked(folder: Path, name: str, facts: FileFacts) -> bytes:
    """The content of a file, once it is known to be what was written with the package."""
    _check_size(folder, name, facts)
    try:
        data = read_regular(folder / name, facts.bytes)
    except Unreadable as error:
        _mixed(folder, name, f"it cannot be read: {error.reason}")
    if hashlib.sha256(data).hexdigest() != facts.sha256:
        _mixed(folder, name, "its content is not what was written with the package")
    return data


def _check_weights(folder: Path, name: str, file: ModelFile, index: Index) -> None:
    """A graph reads its weights from the files that the index lists, and from no
    further than they go.
    """
    # Linked checkpoints count too; what is in neither list would be read unseen.
    sizes = {n: f.bytes for n, f in index.files.items()} | {
        n: f.bytes for n, f in index.linked.items()
    }
    if why := out_of_place(file.outside(), sizes):
        _mixed(folder, name, why)
    for location, _ in file.outside():
        if location in index.files and (
            why := fault(folder, location, _beside(index.files[location]))
        ):
            _mixed(folder, location, why)


def _beside(facts: FileFacts) -> Beside:
    return Beside(facts.bytes, facts.sha256)


def _mixed(folder: Path, name: str, why: str) -> NoReturn:
    fail(
        "E0830",
        f"`{shown(name)[:200]}` does not belong to the package `{shown(str(folder))}`",
        notes=[why, f"what belongs to it stands in its `{NAME}`"],
        helps=["compile the package again, or copy its folder as a whole"],
    )
