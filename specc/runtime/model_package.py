"""Open a package directory and describe its contents."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import NoReturn

from specc import backend
from specc.artifact.generation_facts import GenerationMetadata
from specc.artifact.generation_facts import parse_generation_metadata as load_facts
from specc.artifact.manifest import METADATA_KEY, Manifest
from specc.artifact.package_index import (
    INDEX_FILE,
    PackageIndex,
    WeightFileMetadata,
    explain_mismatch,
    find_misplaced_tensors,
    get_regular_file_size,
    read_index,
)
from specc.backend import ModelFile, Session
from specc.diagnostics.diagnostic import Failed, raise_error
from specc.diagnostics.render import align_columns, format_repr, group_thousands
from specc.diagnostics.suggest import suggest_similar_name
from specc.io.atomic_write import FileDigest
from specc.io.safe_read import (
    UnreadableFileError,
    compute_file_sha256,
    escape_text,
    read_regular_file,
)
from specc.ir.model import DecodeState
from specc.runtime.loaded_model import LoadedModel, load_parsed_model, read_file_manifest
from specc.runtime.steppers import BufferedStep

DEFAULT_GRAPHS = ("score", "generate")
"""The default graphs in order of preference."""


@dataclass(frozen=True)
class ModelPackage:
    """A package whose files are consistent. `models` holds each graph's parsed model by role."""

    path: Path
    index: PackageIndex
    models: Mapping[str, ModelFile] = field(repr=False)

    def __repr__(self) -> str:
        return format_repr(f"package {self.path}: {', '.join(self.roles)}")

    @property
    def roles(self) -> tuple[str, ...]:
        """The graphs in alphabetical order: `encode`, `score`, `step`."""
        return tuple(sorted(self.index.graphs))

    @property
    def default_role(self) -> str:
        """The default graph, or "" if it is ambiguous."""
        alone = self.roles[0] if len(self.roles) == 1 else ""
        return next((role for role in DEFAULT_GRAPHS if role in self.roles), alone)

    def has_graph(self, name: str) -> bool:
        """Return True if there is a graph with that name, or a default graph."""
        return name in self.roles or bool(self.default_role and not name)

    def resolve_role(self, name: str = "") -> str:
        """Return the graph with that name, or the default graph. Raise E0832 if there is none."""
        roles = self.roles
        if name in roles:
            return name
        if self.default_role and not name:
            return self.default_role
        title, advice = "several graphs match", f"select one: {', '.join(map(escape_text, roles))}"
        helps = [advice]
        if name:
            title = f"the package has no graph called `{escape_text(name)}`"
            helps = [*suggest_similar_name(name, roles, advice)]
        raise_error("E0832", title, helps=helps)

    def has_manifest(self, role: str) -> bool:
        """Return True if a graph carries a manifest."""
        return METADATA_KEY in self.models[role].metadata

    def read_manifest(self, role: str) -> Manifest:
        """Return the manifest of a graph. Raise E0918 if it has none."""
        file = self.models[role]
        found = read_file_manifest(file, str(file.path))
        # The texts of a spec are stored once in the index, not in every graph.
        return found if found.sources else replace(found, sources=self.index.sources)

    def load_graph(self, role: str, *, provider: str = "cpu", threads: int = 0) -> LoadedModel:
        """Load a graph so that it is ready to run. Raise E0921 or E0922 if the provider is not
        available.
        """
        model = load_parsed_model(self.models[role], self.read_manifest(role), provider, threads)
        if role != "step" or not self.index.metadata:
            return model
        graph = model.manifest.graph
        facts = load_facts(self.index.metadata, graph, str(self.path))
        if not facts.in_place_states:
            return model
        # the step takes the inputs of its declared graph, with or without buffers
        return replace(model, session=BufferedStep(model.runtime, graph, facts))

    def open_session(self, role: str, *, provider: str = "cpu", threads: int = 0) -> Session:
        """Open a graph without its manifest: names and shapes are checked, but no defaults are
        computed.
        """
        return self.models[role].open(provider, threads)

    def read_extra_file(self, role: str) -> bytes | None:
        """Return the content of an extra file by role after a hash check, or None if absent."""
        name = self.index.extras.get(role)
        return None if name is None else _check_file(self.path, name, self.index.files[name])


def open_package(path: str | Path, *, verify_contents: bool = False) -> ModelPackage:
    """Open a package. `verify_contents` also compares the weights with their hashes, which reads
    them once.

    Raise E0802 if there is no index, E0831 if the index is invalid, and E0830 if the files are
    inconsistent.
    """
    directory = Path(path)
    index = read_index(directory)
    # A different process may write the package while it is opened. Its index is written last, so
    # files that do not match a changed index are read again.
    while True:
        try:
            opened = _open_files(directory, index, verify_contents)
            if verify_contents:
                read_index(directory, verifies_contents=True)
            return opened
        except Failed:
            found = read_index(directory)
            if found == index:
                raise
            index = found  # the package was replaced in the meantime


def _open_files(directory: Path, index: PackageIndex, verify_contents: bool) -> ModelPackage:
    verify_contents = verify_contents or index.checks_hashes_on_open
    graphs = set(index.graphs.values())
    for name, facts in index.files.items():
        _check_size(directory, name, facts)
        # Graphs are always hashed below, when they are read.
        if (
            verify_contents
            and name not in graphs
            and compute_file_sha256(directory / name) != facts.sha256
        ):
            _fail_inconsistent(
                directory, name, "its content has changed since the package was written"
            )
    for name, linked in index.linked_files.items():
        if reason := explain_mismatch(directory, name, linked, verifies_contents=verify_contents):
            _fail_inconsistent(directory, name, reason)
    reader = backend.load_runner()
    models: dict[str, ModelFile] = {}
    for role, name in index.graphs.items():
        models[role] = reader.parse_model(
            _check_file(directory, name, index.files[name]), directory / name
        )
        _check_weights(directory, name, models[role], index)
    return ModelPackage(directory, index, models)


def _check_size(directory: Path, name: str, digest: FileDigest) -> None:
    size = get_regular_file_size(directory / name)
    if size is None:
        _fail_inconsistent(directory, name, "it is missing, or it is not a regular file")
    if size != digest.bytes:
        _fail_inconsistent(
            directory,
            name,
            f"it has {size} bytes, and had {digest.bytes} when the package was written",
        )


def _check_file(directory: Path, name: str, digest: FileDigest) -> bytes:
    """Return the content of a file, verified by its hash."""
    _check_size(directory, name, digest)
    try:
        data = read_regular_file(directory / name, digest.bytes)
    except UnreadableFileError as error:
        _fail_inconsistent(directory, name, f"it cannot be read: {error.reason}")
    if hashlib.sha256(data).hexdigest() != digest.sha256:
        _fail_inconsistent(directory, name, "its content has changed since the package was written")
    return data


def _check_weights(directory: Path, name: str, file: ModelFile, index: PackageIndex) -> None:
    """Check that a graph reads its weights within the files that the index lists."""
    # Linked checkpoints are listed too; a file in neither list would be read unchecked.
    sizes = {n: f.bytes for n, f in index.files.items()}
    sizes |= {n: f.bytes for n, f in index.linked_files.items()}
    if reason := find_misplaced_tensors(file.list_external_files(), sizes):
        _fail_inconsistent(directory, name, reason)
    for location, _ in file.list_external_files():
        if (found := index.files.get(location)) is not None:
            facts = WeightFileMetadata(found.bytes, found.sha256)
            if reason := explain_mismatch(directory, location, facts):
                _fail_inconsistent(directory, location, reason)


def _fail_inconsistent(directory: Path, name: str, reason: str) -> NoReturn:
    raise_error(
        "E0830",
        f"`{escape_text(name)[:200]}` does not belong to the package `{escape_text(directory)}`",
        notes=[reason, f"its files are listed in `{INDEX_FILE}`"],
        helps=["compile the package again, or copy its whole directory"],
    )


def format_package_overview(package: ModelPackage) -> list[str]:
    """Format the files of a package, one line per graph and per extra file."""
    rows = _list_files(package.index)
    sizes = [f"{group_thousands(size)} bytes" for _, _, size in rows]
    width = max(map(len, sizes))
    files = align_columns(
        (escape_text(role), escape_text(name), size.rjust(width))
        for (role, name, _), size in zip(rows, sizes, strict=True)
    )
    graphs = package.index.graphs
    count = f"{len(graphs)} graph{'' if len(graphs) == 1 else 's'}"
    title = f"package of `{escape_text(package.index.model)}`, {count}"
    return [title, *(f"  {line}" for line in files), *_describe_step_states(package)]


def _list_files(index: PackageIndex) -> list[tuple[str, str, int]]:
    """Return role, name and bytes of every file: graphs first, weights last."""
    named = [*sorted(index.graphs.items()), *sorted(index.extras.items())]
    rows = [(role, name, index.files[name].bytes) for role, name in named]
    others = index.files.keys() - {name for _, name in named}
    rows += [("weights", n, f.bytes) for n, f in index.files.items() if n in others]
    # Weights that remain in the files of the checkpoint.
    rows += [("weights", name, facts.bytes) for name, facts in index.linked_files.items()]
    return rows


def _describe_step_states(package: ModelPackage) -> list[str]:
    """Describe the outputs of `encode` and the states between steps, if the package
    declares them.
    """
    about = package.index.metadata
    if "step" not in package.roles or not about or not package.has_manifest("step"):
        return []
    step = package.read_manifest("step").graph
    facts = load_facts(about, step, str(package.path))
    rows = [("from `encode`", n, str(step.inputs[n].type), "") for n in facts.static_inputs]
    for state in facts.states:
        name = state.name.removeprefix("past.")
        rows.append(("kept", name, str(state.type), _describe_growth(state, facts)))
    lines = align_columns([*map(escape_text, row)] for row in rows)
    return ["between steps", *(f"  {line}" for line in lines)]


def _describe_growth(state: DecodeState, metadata: GenerationMetadata) -> str:
    """Describe how a state grows per step, or return "" if its size is constant."""
    if state.time_axis is None:
        return ""
    if state.max_positions < inf:
        return f"at most {int(state.max_positions)} positions"
    return "a buffer, in place" if state.name in metadata.in_place_states else "grows"
