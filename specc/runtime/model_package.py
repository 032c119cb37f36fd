"""Open a package directory and describe the package's contents."""

from dataclasses import dataclass, replace
from pathlib import Path

from specc.artifact.generation_metadata import parse_generation_metadata
from specc.artifact.manifest import METADATA_KEY, Manifest
from specc.backend import Session
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import format_repr
from specc.diagnostics.suggest import suggest_similar_name
from specc.io.safe_read import escape_text
from specc.runtime.package_integrity import PackageFiles, open_package_files
from specc.runtime.single_model_file import (
    KVBufferSession,
    LoadedModel,
    load_parsed_model_file,
    parse_model_file_manifest,
)

DEFAULT_GRAPHS = ("score", "generate")
"""Names of the graphs that can be a package's default graph, in order of preference."""


@dataclass(frozen=True)
class ModelPackage(PackageFiles):
    """An opened package whose files have been checked for consistency."""

    def __repr__(self) -> str:
        return format_repr(f"package {self.path}: {', '.join(self.graph_names)}")

    @property
    def graph_names(self) -> tuple[str, ...]:
        """The names of the graphs, such as `encode`, `score` and `step`, in alphabetical order."""
        return tuple(sorted(self.index.graphs))

    @property
    def default_graph_name(self) -> str:
        """The name of the default graph, or "" if no graph is the default."""
        only_name = self.graph_names[0] if len(self.graph_names) == 1 else ""
        return next((name for name in DEFAULT_GRAPHS if name in self.graph_names), only_name)

    def has_graph(self, name: str) -> bool:
        """Return True if the package has the graph `name` or, if `name` is "", a default graph."""
        return name in self.graph_names or bool(self.default_graph_name and not name)

    def resolve_graph_name(self, name: str = "") -> str:
        """Return `name` or, if `name` is "", the name of the default graph. Raise E0832 if the
        package has no such graph.
        """
        names = self.graph_names
        if name in names:
            return name
        if self.default_graph_name and not name:
            return self.default_graph_name
        title, hint = "several graphs match", f"select one: {', '.join(map(escape_text, names))}"
        helps = [hint]
        if name:
            title = f"unknown graph `{escape_text(name)}`"
            helps = [*suggest_similar_name(name, names, hint)]
        raise_error("E0832", title, helps=helps)

    def has_manifest(self, graph_name: str) -> bool:
        """Return True if the model file of a graph contains a manifest."""
        return METADATA_KEY in self.models[graph_name].metadata

    def read_manifest(self, graph_name: str) -> Manifest:
        """Return the manifest of a graph. Raise E0918 if the graph has no manifest."""
        file = self.models[graph_name]
        manifest = parse_model_file_manifest(file, str(file.path))
        # The package index stores the source of the spec only once for all graphs.
        return manifest if manifest.sources else replace(manifest, sources=self.index.sources)

    def load_graph(
        self, graph_name: str, *, provider: str = "cpu", threads: int = 0
    ) -> LoadedModel:
        """Load a graph to run it. Raise E0921 or E0922 if the provider is not available."""
        model = load_parsed_model_file(
            self.models[graph_name], self.read_manifest(graph_name), provider, threads
        )
        if graph_name != "step" or not self.index.metadata:
            return model
        graph = model.manifest.graph
        metadata = parse_generation_metadata(self.index.metadata, graph, str(self.path))
        if not metadata.in_place_states:
            return model
        # a step session has the inputs of the declared graph, even with in-place buffers
        return replace(model, session=KVBufferSession(model.raw_session, graph, metadata))

    def open_session(self, graph_name: str, *, provider: str = "cpu", threads: int = 0) -> Session:
        """Open a session of a graph without reading the manifest. The session checks inputs, but
        does not compute defaults.
        """
        return self.models[graph_name].open(provider, threads)


def open_package(path: str | Path, *, verify_contents: bool = False) -> ModelPackage:
    """Open a package. If `verify_contents` is True, also read all weights and verify their hashes.
    Raise the errors of `open_package_files`.
    """
    return ModelPackage(**vars(open_package_files(Path(path), verify_contents=verify_contents)))
