"""Open a spec with its config, check the spec symbolically, and elaborate it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specc.analysis.length_limits import has_rope_context_length
from specc.diagnostics.diagnostic import Diagnostic, Source, SpeccError, raise_error
from specc.diagnostics.render import format_repr, render_html_table
from specc.driver import preprocessing_section
from specc.driver.config_json_check import (
    check_model_type,
    warn_about_context_limits,
    warn_about_unread_keys,
)
from specc.driver.quantize_section import (
    QuantizeOptions,
    check_quantize_options,
    merge_quantize_options,
)
from specc.driver.sentence_transformers import (
    SentenceTransformersSpec,
    build_sentence_transformers_spec,
    find_encoder_directory,
    nest_encoder_config,
)
from specc.driver.weights_section_and_load_transforms import check_weight_rules, mark_tied_weights
from specc.frontend.config_json_parser import JsonObject
from specc.frontend.config_values import ConfigReadOptions
from specc.frontend.spec_inheritance_and_config_overrides import parse_config_settings
from specc.frontend.spec_modules import Program, assign_config_values, build_program
from specc.frontend.spec_to_graph import elaborate_model
from specc.frontend.symbolic_check import SymbolicElaboration, check_spec_symbolically
from specc.frontend.unused_names_and_share_rules import check_share_rules, find_unused_names
from specc.frontend.used_specs import has_hf_config_fields, select_used_spec_alternatives
from specc.huggingface import model_family
from specc.huggingface.repository_files import download_model
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.ir.model_definition import ModelDefinition
from specc.library.spec_file_lookup import (
    SpecLibrary,
    find_path_shadowed_by_builtin,
    format_shadowing_note,
    is_builtin_spec,
)
from specc.syntax import ast

if TYPE_CHECKING:
    from specc.huggingface.quantization_config import CheckpointQuantization


@dataclass
class LoadedSpec:
    """An opened spec: its syntax trees, its spec library, and the reader of its config."""

    program: Program
    library: SpecLibrary
    config_reader: ConfigReadOptions
    spec_name: str
    config_file: str = ""
    remarks: tuple[str, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    checkpoint: str = ""
    """The checkpoint directory, if the caller passed a directory instead of a spec."""
    repository: str = ""
    """The directory that the caller passed, which contains or equals `checkpoint`."""
    module_weights: Mapping[str, str] = field(default_factory=dict)
    """Weight directories of additional modules, by tensor name prefix."""
    quantization: "CheckpointQuantization | None" = None
    """The quantization of the checkpoint's weights according to its config.json."""
    graphs: dict[str, Graph | None] = field(default_factory=dict, init=False, repr=False)
    """Graphs built by `iterate_sibling_graphs`, by name, or None if a graph cannot be built."""


def open_spec(
    spec: str | Source,
    *,
    config: str = "",
    config_settings: Sequence[str] = (),
    weights: str = "",
    checkpoint_spec: str = "",
    context_length: int = 0,
    library: SpecLibrary | None = None,
) -> LoadedSpec:
    """Read a spec, the specs that it extends, a config file and the values of `--set`.

    The config.json of a checkpoint directory `weights` is used if the spec supports config.json and
    no config file is given. `spec` may itself be a checkpoint directory, whose config.json selects
    the built-in spec unless `checkpoint_spec` is given. A `Source` contains the source text of a
    spec. `context_length` is the maximum sequence length, for RoPE variants that depend on the
    maximum length. `library` resolves the specs that this spec uses.
    """
    library = library or SpecLibrary()
    spec, download_remarks = (spec, ()) if isinstance(spec, Source) else download_model(spec)
    directory = _find_checkpoint_directory(spec)
    encoder = find_encoder_directory(directory)
    remarks: tuple[str, ...]
    spec_name = _get_display_name(spec)
    wrapped = None
    if not checkpoint_spec:
        wrapped = build_sentence_transformers_spec(
            directory, lambda name: build_program(library.open_spec(name), library)
        )
    if directory:
        config = config or encoder
        source = wrapped.source if wrapped else checkpoint_spec
        spec = source or model_family.find_spec_for_checkpoint(config)
        reader_name = escape_text(_get_display_name(spec))
        remark = f"checkpoint `{escape_text(directory)}`: using the spec `{reader_name}`"
        remarks = wrapped.remarks if wrapped else (remark,)
    else:
        remarks = _describe_named_spec(spec_name, checkpoint_spec)
    program = build_program(library.open_spec(spec), library)
    if not config and has_hf_config_fields(program) and model_family.has_checkpoint_config(weights):
        config = weights
        remarks += (f"config values are from {model_family.describe_config_source(weights)}",)
    data = _load_config(config, wrapped)
    program = program if data is None else select_used_spec_alternatives(program, data)
    program = assign_config_values(program, parse_config_settings(config_settings))
    reader, remarks = ConfigReadOptions(max_length=context_length), download_remarks + remarks
    loaded = LoadedSpec(program, library, reader, spec_name, config, remarks, checkpoint=encoder)
    loaded.repository = directory
    loaded.module_weights = wrapped.weight_path_by_prefix if wrapped else {}
    return loaded if data is None else _apply_config(loaded, data)


def _describe_named_spec(name: str, checkpoint_spec: str) -> tuple[str, ...]:
    """Return notes on the origin of a named spec. Raise E0222 if `checkpoint_spec` is set."""
    if checkpoint_spec:
        path = escape_text(find_path_shadowed_by_builtin(name))
        hint = f"`{name}` names the built-in spec; write `{path}` for the directory"
        raise_error(
            "E0222",
            "`--spec` requires a checkpoint directory with a config.json, and "
            f"`{escape_text(name)}` is not one",
            helps=[hint if path else "pass only the spec, or a checkpoint directory with --spec"],
        )
    return (note,) if (note := format_shadowing_note(name)) else ()


def _load_config(
    config: str, wrapped_encoder: SentenceTransformersSpec | None
) -> JsonObject | None:
    """Load the config file, nested as the spec expects. Return None without a config file."""
    data = model_family.load_checkpoint_config(config) if config else None
    return nest_encoder_config(data) if data is not None and wrapped_encoder else data


def _get_display_name(spec: str | Source) -> str:
    """Return the display name of a spec for messages."""
    return spec.name if isinstance(spec, Source) else spec


def _find_checkpoint_directory(spec: str | Source) -> str:
    """Return the checkpoint directory that is passed as a spec, or "" for other paths and names."""
    if isinstance(spec, Source) or is_builtin_spec(spec):
        return ""
    return spec if model_family.has_checkpoint_config(find_encoder_directory(spec)) else ""


def _apply_config(spec: LoadedSpec, data: JsonObject) -> LoadedSpec:
    """Return the spec with the values of a config.json and warnings about unread keys."""
    # import here, because weight formats import NumPy, and a spec without a config.json does not
    # need NumPy
    from specc.huggingface.quantization_config import read_quantization_config

    family = check_model_type(spec.program, data)
    quantization = read_quantization_config(data)
    # the spec must read every key only if the file has a model_type that the spec declares
    return replace(
        spec,
        config_reader=replace(spec.config_reader, config_file=data),
        quantization=quantization,
        remarks=spec.remarks + (quantization.remarks if quantization else ()),
        warnings=(
            *(warn_about_unread_keys(spec.program, data) if family else ()),
            *(
                []
                if spec.config_reader.max_length
                else warn_about_context_limits(spec.program, data)
            ),
        ),
    )


def _choose_default_graph(spec: LoadedSpec) -> str:
    """Return the graph for the config's `architectures`, or "" for the spec's first graph."""
    file = spec.config_reader.config_file
    return model_family.find_graph_for_architecture(spec.program, file) if file else ""


@dataclass
class SpecCheckResult:
    """The result of `check_spec`: the symbolic trials and the model for the config. If config
    values are missing, the model is None, and `missing` contains an error per missing value.
    """

    trials: list[SymbolicElaboration]
    model: ModelDefinition | None
    missing: tuple[Diagnostic, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return a one-line summary of the check."""
        return format_repr(f"check: {self._model_text}, {self._trial_text}")

    def _repr_html_(self) -> str:
        """Return an HTML table of the check result, for notebooks."""
        return render_html_table(
            "specc check",
            [
                ("model", self._model_text),
                ("tried", self._trial_text),
                *(("missing", d.title) for d in self.missing),
                *(("remark", remark) for remark in self.remarks),
                *(("warning", f"{d.code}: {d.title}") for d in self.warnings),
            ],
        )

    @property
    def _model_text(self) -> str:
        if self.model is None:
            # without a config file, missing config values are not an error
            return f"valid for every size, {len(self.missing)} config values are missing"
        return f"{self.model.name}, {self.model.graph.format_signature()}"

    @property
    def _trial_text(self) -> str:
        warnings = f", {len(self.warnings)} warnings" if self.warnings else ""
        return f"{len(self.trials)} symbolic trials{warnings}"


def check_spec(spec: LoadedSpec, graph: str = "") -> SpecCheckResult:
    """Check a spec with symbolic dimensions and, if the config is complete, with its values."""
    graph = graph or _choose_default_graph(spec)
    trials = _check_symbolically(spec, graph)
    # check the values of `quantize` entries; checking patterns requires a complete config
    merge_quantize_options(spec.program, QuantizeOptions())
    try:
        model = elaborate_model(spec.program, spec.config_reader, graph)
    except SpeccError as failed:
        # a valid spec may lack config values that a checkpoint provides
        if any(d.code != "E0401" for d in failed.diagnostics):
            raise
        warnings = (*spec.warnings, *_check_shares(spec, trials), *find_unused_names(spec.program))
        return SpecCheckResult(trials, None, failed.diagnostics, warnings, spec.remarks)
    _check_sections(spec, model)
    check_quantize_options(
        spec.program, model.graph, lambda: iterate_sibling_graphs(spec, model.graph.name)
    )
    _check_context_used(spec, model)
    unused = (*_check_shares(spec, trials, model), *find_unused_names(spec.program))
    warnings = (*spec.warnings, *unused, *model.warnings, *_warn_unreachable_tokens(spec, model))
    tied_model = mark_tied_weights(spec.program, spec.config_reader, model)
    return SpecCheckResult(trials, tied_model, (), warnings, spec.remarks)


def _check_symbolically(spec: LoadedSpec, graph: str) -> list[SymbolicElaboration]:
    """Elaborate the spec with symbolic dimensions and return the symbolic trials."""
    has_file = spec.config_reader.config_file is not None
    return check_spec_symbolically(spec.program, graph, has_config_file=has_file)


def _warn_unreachable_tokens(spec: LoadedSpec, model: ModelDefinition) -> tuple[Diagnostic, ...]:
    """Return W0756 warnings for tokens in the spec's vocabularies that no text can produce.
    Vocabularies next to weights are exempt, because general word lists have many unused entries.
    """
    try:
        preprocessing = preprocessing_section.build_preprocessing_config(spec.program, model)
    except SpeccError:
        return ()
    return tuple(preprocessing_section.warn_unreachable_tokens(spec.program, preprocessing))


def _check_sections(spec: LoadedSpec, model: ModelDefinition) -> None:
    """Raise the errors in the `weights` and `reading` sections that can be found without files."""
    check_weight_rules(
        spec.program,
        spec.config_reader,
        model.graph,
        lambda: iterate_sibling_graphs(spec, model.graph.name),
    )
    if errors := preprocessing_section.check_preprocessing_section(spec.program, model):
        raise SpeccError(*errors)


def _check_context_used(spec: LoadedSpec, model: ModelDefinition) -> None:
    """Raise E0435 if a context length is given but has no effect on the model."""
    if (length := spec.config_reader.max_length) and not has_rope_context_length(
        length, model.graph
    ):
        title = (
            f"`--context-length {length}` has no effect: the rotary frequencies of this model do "
            "not depend on the sequence length"
        )
        raise_error("E0435", title, helps=["remove `--context-length`"])


def iterate_sibling_graphs(spec: LoadedSpec, graph: str) -> Iterator[Graph]:
    """Yield the graphs of a spec, except `graph`, that can be built with the spec's config. The
    graphs are cached in `spec.graphs`.
    """
    blocks = (block for block, _ in spec.program.iterate_items(ast.Block) if block.kind == "graph")
    for name in (block.name for block in blocks if block.name != graph):
        if name not in spec.graphs:
            spec.graphs[name] = None
            with suppress(SpeccError):
                model = elaborate_model(spec.program, spec.config_reader, name)
                spec.graphs[name] = model.graph
        if (other_graph := spec.graphs[name]) is not None:
            yield other_graph


def elaborate_spec(spec: LoadedSpec, graph: str = "") -> ModelDefinition:
    """Elaborate a spec with its config values. Raise the errors of `specc check`.

    Built-in specs are checked symbolically only to explain a failed elaboration, because the tests
    already run the symbolic check.
    """
    graph = graph or _choose_default_graph(spec)
    trials = [] if spec.program.is_builtin else _check_symbolically(spec, graph)
    try:
        model = elaborate_model(spec.program, spec.config_reader, graph)
    except SpeccError:
        if not trials:
            _check_symbolically(spec, graph)
        raise
    _check_sections(spec, model)
    _check_context_used(spec, model)
    if trials:
        _check_shares(spec, trials, model)
    warnings_of_model = (*model.warnings, *_warn_unreachable_tokens(spec, model))
    model = replace(model, warnings=(*find_unused_names(spec.program), *warnings_of_model))
    return mark_tied_weights(spec.program, spec.config_reader, model)


def _check_shares(
    spec: LoadedSpec, trials: Sequence[SymbolicElaboration], *models: ModelDefinition
) -> tuple[Diagnostic, ...]:
    """Return warnings about unnecessary `share` rules. Raise E0527 if a rule has no match."""
    all_models = [*(trial.model for trial in trials), *models]
    diagnostics = check_share_rules(spec.program, all_models)
    if errors := [d for d in diagnostics if d.severity == "error"]:
        raise SpeccError(*errors)
    return tuple(diagnostics)
