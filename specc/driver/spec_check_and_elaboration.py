"""Check a spec symbolically and with its config values, and elaborate a spec."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from specc.analysis.length_limits import is_rope_scaled_for_length
from specc.diagnostics.diagnostic import Diagnostic, SpeccError, raise_error
from specc.diagnostics.render import format_repr, render_html_table
from specc.driver import preprocessing_section
from specc.driver.quantize_section import (
    QuantizeOptions,
    check_quantize_options,
    merge_quantize_options,
)
from specc.driver.spec_loader import LoadedSpec
from specc.driver.weights_section_and_load_transforms import check_weight_rules, mark_tied_weights
from specc.frontend.generate_stream_and_reading_sections import list_graph_blocks
from specc.frontend.spec_to_graph import elaborate_model
from specc.frontend.symbolic_check import SymbolicElaboration, check_spec_symbolically
from specc.frontend.unused_names_and_share_rules import (
    check_weight_sharing_rules,
    find_unused_names,
)
from specc.huggingface import model_family
from specc.ir.graph import Graph
from specc.ir.model_definition import ModelDefinition
from specc.syntax import ast


def _choose_default_graph(spec: LoadedSpec) -> str:
    """Return the graph for the config's `architectures`, or "" for the spec's first graph."""
    file = spec.config_options.config_file
    return model_family.find_graph_for_architecture(spec.program, file) if file else ""


def is_default_graph(spec: LoadedSpec, graph: str) -> bool:
    """Return True if `graph` is the default graph of `specc compile`."""
    try:
        default = _choose_default_graph(spec)
    except SpeccError:  # the spec has no graph for the config's `architectures`
        return False
    return graph == (default or list_graph_blocks(spec.program)[0].name)


@dataclass
class SpecCheckResult:
    """The result of `check_spec`: the symbolic trials and the model for the config. If config
    values are missing, `model` is None, and `missing` contains one error per missing value.
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
            # missing config values are an error only with a config file
            return f"valid for all sizes, but {len(self.missing)} config values are missing"
        return f"{self.model.name}, {self.model.graph.format_signature()}"

    @property
    def _trial_text(self) -> str:
        warnings = f", {len(self.warnings)} warnings" if self.warnings else ""
        return f"{len(self.trials)} symbolic trials{warnings}"


def check_spec(spec: LoadedSpec, graph: str = "") -> SpecCheckResult:
    """Check a spec with symbolic dimensions and, if the config is complete, with the config
    values.
    """
    graph = graph or _choose_default_graph(spec)
    trials = _check_symbolically(spec, graph)
    # check the values of `quantize` entries; checking patterns requires a complete config
    merge_quantize_options(spec.program, QuantizeOptions())
    try:
        model = elaborate_model(spec.program, spec.config_options, graph)
    except SpeccError as failed:
        # config values may be missing, because a checkpoint can provide them
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
    tied_model = mark_tied_weights(spec.program, spec.config_options, model)
    return SpecCheckResult(trials, tied_model, (), warnings, spec.remarks)


def _check_symbolically(spec: LoadedSpec, graph: str) -> list[SymbolicElaboration]:
    """Elaborate the spec with symbolic dimensions and return the symbolic trials."""
    has_file = spec.config_options.config_file is not None
    return check_spec_symbolically(spec.program, graph, has_config_file=has_file)


def _warn_unreachable_tokens(spec: LoadedSpec, model: ModelDefinition) -> tuple[Diagnostic, ...]:
    """Return W0756 for vocabulary tokens of the spec that no text can produce. Vocabularies next to
    weights are not checked, because general word lists have many unused entries.
    """
    try:
        preprocessing = preprocessing_section.build_preprocessing_config(spec.program, model)
    except SpeccError:
        return ()
    return tuple(preprocessing_section.warn_about_unreachable_tokens(spec.program, preprocessing))


def _check_sections(spec: LoadedSpec, model: ModelDefinition) -> None:
    """Raise the errors in the `weights` and `reading` sections that do not depend on other
    files.
    """
    check_weight_rules(
        spec.program,
        spec.config_options,
        model.graph,
        lambda: iterate_sibling_graphs(spec, model.graph.name),
    )
    if errors := preprocessing_section.check_preprocessing_section(spec.program, model):
        raise SpeccError(*errors)


def _check_context_used(spec: LoadedSpec, model: ModelDefinition) -> None:
    """Raise E0435 for a context length that has no effect on the model."""
    if (length := spec.config_options.max_length) and not is_rope_scaled_for_length(
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
                model = elaborate_model(spec.program, spec.config_options, name)
                spec.graphs[name] = model.graph
        if (other_graph := spec.graphs[name]) is not None:
            yield other_graph


def elaborate_spec(spec: LoadedSpec, graph: str = "") -> ModelDefinition:
    """Elaborate a spec with its config values. Raise the same errors as `specc check`.

    For built-in specs, the symbolic check is part of the tests, so it runs here only to explain a
    failed elaboration.
    """
    graph = graph or _choose_default_graph(spec)
    trials = [] if spec.program.is_builtin else _check_symbolically(spec, graph)
    try:
        model = elaborate_model(spec.program, spec.config_options, graph)
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
    return mark_tied_weights(spec.program, spec.config_options, model)


def _check_shares(
    spec: LoadedSpec, trials: Sequence[SymbolicElaboration], *models: ModelDefinition
) -> tuple[Diagnostic, ...]:
    """Return warnings about unnecessary `share` rules. Raise E0527 if a rule has no match."""
    all_models = [*(trial.model for trial in trials), *models]
    diagnostics = check_weight_sharing_rules(spec.program, all_models)
    if errors := [d for d in diagnostics if d.severity == "error"]:
        raise SpeccError(*errors)
    return tuple(diagnostics)
