"""Open a package directory and describe the package's contents."""

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from specc.artifact.generation_metadata import GenerationMetadata, parse_generation_metadata
from specc.artifact.manifest import METADATA_KEY, Manifest
from specc.artifact.package_index_and_integrity import PackageIndex
from specc.backend import Session
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import align_columns, format_repr, format_thousands
from specc.diagnostics.suggest import suggest_similar_name
from specc.io.safe_read import escape_text
from specc.ir.model_definition import DecodeState
from specc.runtime.loaded_model import (
    KVBufferSession,
    LoadedModel,
    load_parsed_model,
    read_file_manifest,
)
from specc.runtime.package_files import PackageFiles, open_package_files

DEFAULT_GRAPHS = ("score", "generate")
"""Roles of the graphs that can be a package's default graph, in order of preference."""


@dataclass(frozen=True)
class ModelPackage(PackageFiles):
    """An opened package whose files have been checked for consistency."""

    def __repr__(self) -> str:
        return format_repr(f"package {self.path}: {', '.join(self.roles)}")

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the graphs, such as `encode`, `score` and `step`, in alphabetical order."""
        return tuple(sorted(self.index.graphs))

    @property
    def default_role(self) -> str:
        """The role of the default graph, or "" if no graph is the default."""
        only_role = self.roles[0] if len(self.roles) == 1 else ""
        return next((role for role in DEFAULT_GRAPHS if role in self.roles), only_role)

    def has_graph(self, name: str) -> bool:
        """Return True if the package has the graph `name` or, if `name` is "", a default graph."""
        return name in self.roles or bool(self.default_role and not name)

    def resolve_role(self, name: str = "") -> str:
        """Return `name` or, if `name` is "", the role of the default graph. Raise E0832 if the
        package has no such graph.
        """
        roles = self.roles
        if name in roles:
            return name
        if self.default_role and not name:
            return self.default_role
        title, hint = "several graphs match", f"select one: {', '.join(map(escape_text, roles))}"
        helps = [hint]
        if name:
            title = f"unknown graph `{escape_text(name)}`"
            helps = [*suggest_similar_name(name, roles, hint)]
        raise_error("E0832", title, helps=helps)

    def has_manifest(self, role: str) -> bool:
        """Return True if the model file of a graph contains a manifest."""
        return METADATA_KEY in self.models[role].metadata

    def read_manifest(self, role: str) -> Manifest:
        """Return the manifest of a graph. Raise E0918 if the graph has no manifest."""
        file = self.models[role]
        manifest = read_file_manifest(file, str(file.path))
        # The package index stores the source of the spec only once for all graphs.
        return manifest if manifest.sources else replace(manifest, sources=self.index.sources)

    def load_graph(self, role: str, *, provider: str = "cpu", threads: int = 0) -> LoadedModel:
        """Load a graph to run it. Raise E0921 or E0922 if the provider is not available."""
        model = load_parsed_model(self.models[role], self.read_manifest(role), provider, threads)
        if role != "step" or not self.index.metadata:
            return model
        graph = model.manifest.graph
        metadata = parse_generation_metadata(self.index.metadata, graph, str(self.path))
        if not metadata.in_place_states:
            return model
        # a step has the inputs of its declared graph, even if its buffers are updated in place
        return replace(model, session=KVBufferSession(model.runtime, graph, metadata))

    def open_session(self, role: str, *, provider: str = "cpu", threads: int = 0) -> Session:
        """Open a session of a graph without reading the manifest. The session checks inputs, but
        does not compute defaults.
        """
        return self.models[role].open(provider, threads)


def open_package(path: str | Path, *, verify_contents: bool = False) -> ModelPackage:
    """Open a package. If `verify_contents` is True, also read all weights and verify their hashes.
    Raise the errors of `open_package_files`.
    """
    return ModelPackage(**vars(open_package_files(Path(path), verify_contents=verify_contents)))


def format_package_overview(package: ModelPackage) -> list[str]:
    """Format an overview of a package: one line per graph and per extra file."""
    rows = _list_files(package.index)
    sizes = [f"{format_thousands(size)} bytes" for _, _, size in rows]
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
    """Return the role, name and size in bytes of every file, graphs first and weights last."""
    named = [*sorted(index.graphs.items()), *sorted(index.extras.items())]
    rows = [(role, name, index.files[name].bytes) for role, name in named]
    others = index.files.keys() - {name for _, name in named}
    rows += [("weights", n, f.bytes) for n, f in index.files.items() if n in others]
    # add the weights that remain in the checkpoint
    rows += [("weights", name, facts.bytes) for name, facts in index.linked_files.items()]
    return rows


def _describe_step_states(package: ModelPackage) -> list[str]:
    """Describe the outputs of `encode` and the states that steps pass on, or return []."""
    metadata = package.index.metadata
    if "step" not in package.roles or not metadata or not package.has_manifest("step"):
        return []
    step_graph = package.read_manifest("step").graph
    generation = parse_generation_metadata(metadata, step_graph, str(package.path))
    rows = [
        ("from `encode`", n, str(step_graph.inputs[n].type), "")
        for n in generation.loop_invariant_inputs
    ]
    for state in generation.states:
        name = state.name.removeprefix("past.")
        rows.append(("kept", name, str(state.type), _describe_state_growth(state, generation)))
    lines = align_columns([*map(escape_text, row)] for row in rows)
    return ["between steps", *(f"  {line}" for line in lines)]


def _describe_state_growth(state: DecodeState, metadata: GenerationMetadata) -> str:
    """Describe how a state grows in each step, or return "" if its shape is fixed."""
    if state.time_axis is None:
        return ""
    if state.max_positions < inf:
        return f"at most {int(state.max_positions)} positions"
    return "a buffer, in place" if state.name in metadata.in_place_states else "grows"
