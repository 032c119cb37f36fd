"""Opening a package: a folder of several graphs over one set of weights, believed only as `specc.json` describes it.

Every graph is compared with its hash before it is parsed, weights with their size (and their hash on demand), and
no graph reads weights that the index does not list. What does not fit together is refused by the file's name.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, NoReturn

from specc import backend
from specc.beside import Beside, fault, hash_of, out_of_place, size_of
from specc.input import Unreadable, read_regular, shown
from specc.manifest import KEY, Manifest
from specc.output import FileFacts
from specc.package_index import NAME, Index, is_package, read_index
from specc.running import Loaded, loaded, manifest_in, open_model
from specc.text.diagnostic import Failed, fail
from specc.text.suggest import did_you_mean
from specc.verifying import Draw, verify
from specc.writers.buffered import Buffered
from specc.writers.facts import load as load_facts
from specc.writers.prior import Prior

USUAL = ("score", "generate")
"""The graphs that are meant where none is named, the first that there is."""


@dataclass(frozen=True)
class Package:
    """A package whose files fit together. `models` holds each graph's parsed model by role."""

    path: Path
    index: Index
    models: Mapping[str, Any] = field(repr=False)

    @property
    def roles(self) -> tuple[str, ...]:
        """The graphs there are, in alphabetical order: `encode`, `score`, `step`."""
        return tuple(sorted(self.index.graphs))

    def role(self, wanted: str = "") -> str:
        """The graph of that name; without a name the only one, or the one that scores. E0832 where there is none."""
        roles = self.roles
        if wanted in roles:
            return wanted
        usual = next((r for r in USUAL if r in roles), roles[0] if len(roles) == 1 else "")
        if usual and not wanted:
            return usual
        near = did_you_mean(wanted, roles) if wanted else None
        title = f"the package has no graph called `{shown(wanted)}`" if wanted else "it is open which graph is meant"
        helps = [f"did you mean `{near}`?"] if near else [f"name one: {', '.join(map(shown, roles))}"]
        fail("E0832", title, helps=helps)

    def described(self, role: str) -> bool:
        """Whether a graph carries a manifest."""
        return KEY in self.models[role].metadata

    def manifest(self, role: str) -> Manifest:
        """What a graph says of itself. E0918 where it says nothing."""
        file = self.models[role]
        found = manifest_in(file, str(file.path))
        return found if found.sources else replace(found, sources=self.index.sources)

    def load(self, role: str, *, provider: str = "cpu", threads: int = 0) -> Loaded:
        """A graph ready to run. E0921 and E0922 for a provider that is not there."""
        made = loaded(self.models[role], self.manifest(role), provider, threads)
        if role != "step" or not self.index.about:
            return made
        facts = load_facts(self.index.about, made.manifest.graph, str(self.path))
        return replace(made, session=Buffered(made.session, made.manifest.graph, facts)) if facts.in_place else made

    def session(self, role: str, *, provider: str = "cpu", threads: int = 0) -> Any:
        """A graph ready to run as it is, without a manifest: names and lengths are checked, nothing is filled in."""
        return self.models[role].open(provider, threads)

    def extra(self, role: str) -> bytes | None:
        """The content of a further file by its role (`tokenizer.json`), compared with its hash; None: there is none."""
        name = self.index.extras.get(role)
        return None if name is None else _checked(self.path, name, self.index.files[name])


def open_package(path: str | Path, *, contents: bool = False) -> Package:
    """Open a package. `contents` has the weights compared with their hashes too, which reads them once.

    Fails with E0802 (no index), E0831 (an index that cannot be used), E0830 (files that do not belong together).
    """
    folder = Path(path)
    index = read_index(folder)
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


def files_of(path: str | Path, model: Loaded | None) -> list[Path]:
    """The files that an open model consists of, or the package at `path`."""
    path = Path(path)
    if is_package(path):
        index = read_index(path)
        return [path / name for name in (NAME, *index.files, *index.linked)]
    if model is None:
        return [path]
    beside = [name for name, _ in model.file.outside()] + [f.name for f in model.manifest.reading.files if f.name]
    return [path, *(model.path.parent / name for name in beside)]


def _opened(folder: Path, index: Index, contents: bool) -> Package:
    contents = contents or index.every_load
    graphs = set(index.graphs.values())
    for name, facts in index.files.items():
        _check_size(folder, name, facts)
        if contents and name not in graphs and hash_of(folder / name) != facts.sha256:
            _mixed(folder, name, "its content is not what was written with the package")
    for name, linked in index.linked.items():
        if why := fault(folder, name, linked, contents=contents):
            _mixed(folder, name, why)
    reader = backend.load("onnx").file
    models = {}
    for role, name in index.graphs.items():
        models[role] = reader.parse_model(_checked(folder, name, index.files[name]), folder / name)
        _check_weights(folder, name, models[role], index)
    return Package(folder, index, models)


def open_either(
    path: str, *, graph: str = "", provider: str = "cpu", threads: int = 0, contents: bool = False
) -> Loaded:
    """A model, or one graph of a package, ready to run; with `contents` every byte is compared first.

    E0832 where the graph asked for is not there.
    """
    if Path(path).is_dir():
        package = open_package(path, contents=contents)
        return package.load(package.role(graph), provider=provider, threads=threads)
    if graph and Path(path).exists():
        fail("E0832", f"`{shown(path)}` is one model, not a package of several graphs", helps=["leave out --graph"])
    return open_model(path, provider=provider, threads=threads, contents=contents)


def verify_package(
    package: Package, *, graph: str = "", provider: str = "cpu", seed: int = 0, rounds: int = 3
) -> Iterator[str]:
    """A line a graph and round, of the graphs that have a manifest. E0930 at the first difference."""
    for role in (package.role(graph),) if graph else package.roles:
        if not package.described(role):
            yield f"{shown(role)}: not compared, because it does not say what it computes"
            continue
        model = package.load(role, provider=provider)
        draw, most = _as_written(package, model) if role == "step" and package.index.about else (None, None)
        for line in verify(model, seed=seed, rounds=rounds, draw=draw, most=most):
            yield f"{shown(role)}: {line}"


def _as_written(package: Package, model: Loaded) -> tuple[Draw, dict[str, int]]:
    """How inputs of a step are made that writing would give it, and how long they may be."""
    step = model.manifest.graph
    facts = load_facts(package.index.about, step, str(package.path))
    encode = package.load("encode") if "encode" in package.roles else None
    weights = encode.weights() if encode else {}
    prior = Prior(facts, model.weights(), encode.manifest.graph if encode else None, weights)
    return prior.draw, prior.most(step)


def overview(package: Package) -> list[str]:
    """What a package holds, a line a graph and one for each further file."""
    graphs, extras = sorted(package.index.graphs.items()), sorted(package.index.extras.items())
    weights = [n for n in package.index.files if n not in {name for _, name in (*graphs, *extras)}]
    rows = [(role, name, package.index.files[name].bytes) for role, name in (*graphs, *extras)]
    rows += [("weights", name, package.index.files[name].bytes) for name in weights]
    rows += [("weights", name, facts.bytes) for name, facts in package.index.linked.items()]
    shown_rows = [(shown(role), shown(name), f"{size:,} bytes".replace(",", " ")) for role, name, size in rows]
    widths = [max(len(row[n]) for row in shown_rows) for n in range(3)]
    title = f"package of `{shown(package.index.model)}`, {len(graphs)} graph{'' if len(graphs) == 1 else 's'}"
    files = [f"  {a.ljust(widths[0])}  {b.ljust(widths[1])}  {c.rjust(widths[2])}" for a, b, c in shown_rows]
    return [title, *files, *_between_steps(package)]


def _between_steps(package: Package) -> list[str]:
    """What `encode` hands over and what a step hands to the next, where the package says so."""
    if "step" not in package.roles or not package.index.about or not package.described("step"):
        return []
    step = package.manifest("step").graph
    facts = load_facts(package.index.about, step, str(package.path))
    rows = [("handed over", n, str(step.inputs[n].type), "") for n in facts.handed]
    for state in facts.states:
        how = "" if state.rows is None else "a buffer, in place" if state.name in facts.in_place else "grows"
        if state.rows is not None and state.most < inf:
            how = f"at most {int(state.most)} rows"
        rows.append(("kept", state.name.removeprefix("past."), str(state.type), how))
    shown_rows = [tuple(map(shown, row)) for row in rows]
    widths = [max(len(row[n]) for row in shown_rows) for n in range(3)] if rows else []
    return [
        "between steps",
        *("  " + "  ".join(c.ljust(w) for c, w in zip(r, [*widths, 0], strict=True)).rstrip() for r in shown_rows),
    ]


def _check_size(folder: Path, name: str, facts: FileFacts) -> None:
    size = size_of(folder / name)
    if size is None:
        _mixed(folder, name, "it is missing, or it is no regular file")
    if size != facts.bytes:
        _mixed(folder, name, f"it has {size} bytes, {facts.bytes} were written with the package")


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


def _check_weights(folder: Path, name: str, file: Any, index: Index) -> None:
    """A graph reads its weights from the files that the index lists, and from no further than they go."""
    sizes = {n: f.bytes for n, f in index.files.items()} | {n: f.bytes for n, f in index.linked.items()}
    if why := out_of_place(file.outside(), sizes):
        _mixed(folder, name, why)
    for location, _ in file.outside():
        if location in index.files and (why := fault(folder, location, _beside(index.files[location]))):
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
