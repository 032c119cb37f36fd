"""Open a compiled model file or package for a forward pass, a task, generation or streaming."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from specc.artifact.generation_metadata import is_streaming_package
from specc.artifact.manifest import Manifest, RandomInitMetadata
from specc.artifact.package_index_and_format_versions import INDEX_FILE, read_package_index
from specc.decode.setting_names_and_limits import PREFILL_CHUNK_SIZE
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import format_repr, render_html_table
from specc.diagnostics.suggest import format_suggestion
from specc.io.safe_read import Closeable, escape_text, suggest_similar_path
from specc.ir.array import Array
from specc.preprocessing.tasks import Task
from specc.runtime.generation_stream_and_results import GenerationStream
from specc.runtime.generator import Generator, make_generator, open_generator
from specc.runtime.model_inputs import ModelInputs
from specc.runtime.model_package import ModelPackage, open_package
from specc.runtime.package_integrity import PackageFiles
from specc.runtime.single_model_file import LoadedModel, load_model
from specc.runtime.streaming_inference import StreamingModel, open_streaming_model


@dataclass(kw_only=True, eq=False)
class InferenceModel(Closeable):
    """A model file or package at `path`. Graphs are opened on `provider` on first use.

    `graph` restricts a package to one graph. If `graph` is "", each method selects a default graph.
    If `verify_contents` is True, the hashes of all files are verified.
    """

    path: Path
    package: ModelPackage | None
    graph: str = ""
    provider: str = "cpu"
    threads: int = 0
    prefill_chunk_size: int = PREFILL_CHUNK_SIZE
    verify_contents: bool = False
    is_closed: bool = False

    def __repr__(self) -> str:
        return format_repr(f"model {_format_signature(self)}, {self.provider}")

    def _repr_html_(self) -> str:
        """Return an HTML table of the model's inputs and outputs, for notebooks."""
        package, generator = self.package, None if self.is_closed else self.generator
        return render_html_table(
            f"specc model {self.path}",
            [
                ("graph", _format_signature(self)),
                ("writes", generator.generation.name if generator else ""),
                ("graphs of the package", ", ".join(package.graph_names if package else ())),
                ("provider", self.provider),
            ],
        )

    @property
    def has_full_forward(self) -> bool:
        """Return True if the model has a full-forward graph, without opening a session."""
        return self.package is None or "score" in self.package.graph_names

    @property
    def is_streaming_only(self) -> bool:
        """Return True if the model is a streaming model without a full-forward graph."""
        return self.streaming_model is not None and not self.has_full_forward

    @property
    def uses_step_graph(self) -> bool:
        """Return True if generation runs a decode loop over a step graph."""
        return _has_step_graph(self.package, self.graph, is_streaming=False)

    @cached_property
    def streaming_model(self) -> StreamingModel | None:
        """The streaming model, or None if the model does not support streaming."""
        if self.package is None or not _has_step_graph(self.package, self.graph, is_streaming=True):
            return None
        self.check_not_closed()
        return open_streaming_model(self.package, provider=self.provider, threads=self.threads)

    @cached_property
    def selected_model(self) -> LoadedModel:
        """The graph `graph`, or the default graph. Raise E0832 if the default is ambiguous."""
        graph_name = self.package.resolve_graph_name(self.graph) if self.package else ""
        # reuse an open graph, because two copies of the weights may not fit in device memory
        return (graph_name == "score" and self.scoring_model) or self._load_model(graph_name)

    @cached_property
    def scoring_model(self) -> LoadedModel | None:
        """The loaded full-forward graph, or None if the package has no such graph."""
        if self.package is None:
            return self.selected_model
        return self._load_model("score") if self.has_full_forward else None

    @property
    def full_forward_model(self) -> LoadedModel:
        """The loaded full-forward graph. Raise E0832 if the package has no such graph."""
        if self.scoring_model is None:
            helps = ["compile it with `--graphs score,encode,step`"]
            raise_error("E0832", "this package has no `score` graph", helps=helps)
        return self.scoring_model

    @property
    def manifest(self) -> Manifest:
        """The manifest of the full-forward graph."""
        return self.full_forward_model.manifest

    def weights(self) -> dict[str, Array]:
        """Return the dequantized parameters, keyed by name, in the layout that the graph uses.

        Matrices may have the layout [in, out] of the checkpoint.
        """
        return self.full_forward_model.weights()

    @cached_property
    def generator(self) -> Generator | None:
        """The generator, or None if the model or the selected graph is not generative."""
        self.check_not_closed()
        package, chunk = self.package, self.prefill_chunk_size
        if package is not None and self.uses_step_graph:
            return open_generator(package, self.provider, self.threads, chunk)
        if self.is_streaming_only or (package is not None and not package.has_graph(self.graph)):
            return None
        is_full_forward = bool(self.graph) and self.selected_model.manifest.decoding is None
        return None if is_full_forward else make_generator(self.selected_model)

    @property
    def input_signature(self) -> ModelInputs:
        """The inputs of the model with their preprocessing and defaults."""
        if self.streaming_model is not None and self.is_streaming_only:
            return self.streaming_model.input_signature
        return (self.generator or self.selected_model).input_signature

    @property
    def random_init_metadata(self) -> RandomInitMetadata | None:
        """The seed of randomly initialized weights, or None if no weights were initialized."""
        # the package index stores the seed of a package with a step graph, because no single graph
        # has all weights
        stepping_model = self.generator if self.uses_step_graph else self.streaming_model
        if stepping_model is not None:
            return stepping_model.random_init_metadata
        manifest = self.selected_model.manifest
        has_parameters = bool(manifest.graph.parameters) or manifest.decoding is not None
        return manifest.random_init_metadata if has_parameters else None

    def start_generation(
        self, inputs: Mapping[str, object], settings: Mapping[str, object]
    ) -> GenerationStream:
        """Start a generation from inputs by name. Raise E0701 if the model is not generative."""
        if self.generator is None:
            _raise_not_generative(self)
        return self.generator.generate(**inputs, **settings)

    def close(self) -> None:
        """Release the runtime sessions. Later calls raise E0949. Leaving a `with` block closes the
        model. Generations in progress can continue.
        """
        self.is_closed = True
        for name in ("selected_model", "scoring_model", "generator", "streaming_model"):
            self.__dict__.pop(name, None)

    def check_not_closed(self) -> None:
        """Raise E0949 if the model has been closed."""
        if self.is_closed:
            helps = ["load it again, or use it inside its `with` block"]
            raise_error("E0949", f"`{escape_text(self.path)}` is closed", helps=helps)

    def _load_model(self, graph_name: str) -> LoadedModel:
        self.check_not_closed()
        if self.package is not None:
            return self.package.load_graph(graph_name, provider=self.provider, threads=self.threads)
        path, verify = str(self.path), self.verify_contents
        return load_model(
            path, provider=self.provider, threads=self.threads, verify_contents=verify
        )


def _format_signature(model: InferenceModel) -> str:
    """Format the inputs and outputs of a model as text."""
    if model.is_closed:
        return f"at {model.path}, closed"
    if not model.has_full_forward:
        return model.input_signature.graph.format_signature()
    manifest = (
        model.package.read_manifest("score") if model.package else model.selected_model.manifest
    )
    return f"{manifest.name}, {manifest.graph.format_signature()}"


def list_model_files(inference_model: InferenceModel) -> list[Path]:
    """Return the files of a model. Output files must not overwrite these files."""
    if inference_model.package is not None:
        index = read_package_index(inference_model.path)
        return [inference_model.path / n for n in (INDEX_FILE, *index.files, *index.linked_files)]
    model = inference_model.selected_model
    # A model file has no package index, so its external tensors determine its weight files.
    weight_files = [name for name, _ in model.file.list_external_files()]
    tokenizer_files = [f.name for f in model.manifest.preprocessing.tokenizer_files if f.name]
    directory = model.path.parent
    return [inference_model.path, *(directory / name for name in (*weight_files, *tokenizer_files))]


def runs_full_forward(
    model: InferenceModel, input_names: Collection[str], settings: Mapping[str, object]
) -> bool:
    """Return True if `run` computes a full forward pass for the inputs, and False if it generates.

    A model file with a full-forward graph generates only if the caller omits the sequence input or
    passes generation settings. Raise E0701 if settings are passed to a model that is not
    generative.
    """
    if model.uses_step_graph:
        return False
    if model.generator is None and settings:
        _raise_not_generative(model)
    has_full_forward = model.generator is not None and model.generator.standalone_session is None
    # A standalone generator has no full-forward graph, so `run` always generates.
    is_forward_requested = (
        has_full_forward and model.input_signature.sequence_input in input_names and not settings
    )
    return model.generator is None or is_forward_requested


def get_model_for_attention_maps(model: InferenceModel) -> LoadedModel:
    """Return the full-forward graph for attention maps. Raise E0931 if the graph is missing."""
    scoring_model = model.scoring_model
    if scoring_model is None:
        reason = "available only in the graph `score`, which this package does not contain"
    elif scoring_model.manifest.decoding is not None:
        reason = "not available in a standalone generator, whose decode loop is in the graph"
    else:
        return scoring_model
    raise_error(
        "E0931",
        f"attention weights are {reason}",
        helps=["compile it with `--graphs all`, or with `--graphs score,step`"],
    )


def get_model_task(model: InferenceModel) -> Task | None:
    """Return the task of the full-forward graph, or None if the graph has no task."""
    has_no_full_forward = model.uses_step_graph or model.is_streaming_only
    return None if has_no_full_forward else model.selected_model.manifest.preprocessing.task


def has_per_tensor_scales(model: InferenceModel) -> bool:
    """Return True if activation scales are per-tensor, i.e. shared by all batch elements."""
    package = model.package
    files = package.models.values() if package else [model.selected_model.file]
    return any(file.has_per_tensor_scales() for file in files)


def get_streaming_model(model: InferenceModel) -> StreamingModel:
    """Return the streaming model. Raise E0977 if the model does not support streaming."""
    if model.streaming_model is None:
        fix = "compile a spec that declares `stream RESULT of INPUT`, with `--graphs step`"
        raise_error("E0977", "this model is not a streaming model", helps=[fix])
    return model.streaming_model


def _has_step_graph(package: ModelPackage | None, graph: str, *, is_streaming: bool) -> bool:
    """Return True if the package has a step graph, for streaming or for generation."""
    if package is None or graph or "step" not in package.graph_names:
        return False
    metadata = package.index.metadata
    return bool(metadata) and is_streaming_package(metadata) == is_streaming


def open_compiled_model(
    path: str | Path,
    *,
    graph: str = "",
    provider: str = "cpu",
    threads: int = 0,
    prefill_chunk_size: int = PREFILL_CHUNK_SIZE,
    verify_contents: bool = False,
    files: PackageFiles | None = None,
) -> InferenceModel:
    """Open the model file or package at `path`. If `verify_contents` is True, verify the complete
    contents by hash. `files` are the files of the package if they are already open.

    Raise E0802 or E0830 to E0832 if a package cannot be opened or has no graph `graph`.
    """
    if not os.path.lexists(path):
        _raise_missing_model(Path(path))
    is_directory = Path(path).is_dir()
    if graph and not is_directory and Path(path).exists():
        raise_error(
            "E0832",
            f"`{escape_text(path)}` is a single model, not a package",
            helps=["remove --graph"],
        )
    package = ModelPackage(**vars(files)) if files else None
    if is_directory and files is None:
        package = open_package(path, verify_contents=verify_contents)
    return InferenceModel(
        path=Path(path),
        package=package,
        graph=graph,
        provider=provider,
        threads=threads,
        prefill_chunk_size=prefill_chunk_size,
        verify_contents=verify_contents,
    )


def _raise_missing_model(path: Path) -> NoReturn:
    """Raise E0802, and suggest a model with a similar name in the same directory."""
    # also try the path with the suffix `.onnx`, because users often omit the suffix
    with_suffix = path.parent / f"{path.name}.onnx"
    helps = suggest_similar_path(path, _is_model) or suggest_similar_path(with_suffix, _is_model)
    if os.path.lexists(with_suffix):
        helps = [format_suggestion(escape_text(with_suffix))]
    raise_error(
        "E0802",
        f"cannot read the model `{escape_text(path)}`: no such file or directory",
        helps=helps or ["compile a spec first: `specc compile SPEC -o FILE`"],
    )


def _is_model(path: Path) -> bool:
    """Return True if a path refers to a model file or package."""
    return path.suffix == ".onnx" or (path / INDEX_FILE).is_file()


def _raise_not_generative(model: InferenceModel) -> NoReturn:
    """Raise E0701 because the model is not generative."""
    helps = ["remove the generation options"]
    if model.package is None:
        title = "this model is not a generative model, so it has no generation settings"
        raise_error("E0701", title, helps=helps)
    raise_error(
        "E0701",
        f"`{escape_text(model.path)}` has no step graph for generation with specc",
        notes=["packages compiled with `--io-names` are for other libraries"],
        helps=["compile it with `--graphs step`, without `--io-names`", *helps],
    )
