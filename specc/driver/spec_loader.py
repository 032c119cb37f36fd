"""Open a spec with its config and elaborate it: symbolic check, then the sized model."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Failed, raise_error
from specc.diagnostics.object_repr import format_repr, render_html_table
from specc.diagnostics.source import Source
from specc.driver import reading_section as readings
from specc.driver.config_settings import parse_config_settings
from specc.driver.quantize_section import (
    QuantizeOptions,
    check_quantize_request,
    merge_quantize_options,
)
from specc.driver.sentence_transformers import (
    WrappedEncoder,
    encoder_config_table,
    find_encoder_directory,
    wrapped_spec,
)
from specc.driver.spec_weight_rules import check_rules
from specc.driver.tied_weights import mark_ties
from specc.driver.vocabulary_checks import warn_unreachable_words
from specc.frontend.config_values import ConfigReader
from specc.frontend.context import Env
from specc.frontend.hf_config import check_expected_keys, reject_quantized_checkpoint
from specc.frontend.json_nodes import JsonObject
from specc.frontend.share_rule_check import check_share_rules
from specc.frontend.spec_modules import Program, assign_config_values, build_program
from specc.frontend.spec_to_graph import create_context, elaborate_model, evaluate_and_check_config
from specc.frontend.symbolic_check import SymbolicTrial, check_spec_symbolically
from specc.frontend.unread_config_keys import find_limited_contexts, find_unread_keys
from specc.frontend.unused_names import find_unused_names
from specc.frontend.used_specs import (
    MODEL_TYPE_KEY,
    choose_used_specs,
    get_config_section,
    has_published_fields,
    list_config_entries,
    show_use_in_errors,
)
from specc.huggingface.model_family import find_spec_for_checkpoint, graph_for_architecture
from specc.io.safe_read import escape_text
from specc.ir import ops
from specc.ir.graph import Graph
from specc.ir.model import ModelDefinition
from specc.library.spec_files import (
    SpecLibrary,
    find_shadowed_path,
    format_shadow_note,
    has_config_json,
    is_builtin_spec,
    load_config_json,
)
from specc.syntax import ast


@dataclass
class OpenedSpec:
    """A spec opened: its program, the library it was read through, and how its config
    is to be read.
    """

    program: Program
    library: SpecLibrary
    reader: ConfigReader
    named: str
    config_file: str = ""
    remarks: tuple[str, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    checkpoint: str = ""
    """The folder of weights that was named in place of a spec."""
    repository: str = ""
    """The directory that was named, of which `checkpoint` may be a part."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """The weights of modules behind the checkpoint, by the prefix of their tensors."""


def open_spec(
    spec: str | Source,
    *,
    config: str = "",
    sets: Sequence[str] = (),
    weights: str = "",
    own: str = "",
    longest: int = 0,
    library: SpecLibrary | None = None,
) -> OpenedSpec:
    """Read a spec, what it extends, a config file and the values of `--set`.

    The config.json of a checkpoint folder `weights` is read where the spec takes values
    from one and no other is given. `spec` may be a checkpoint folder itself: then its
    config.json tells the spec, unless that is `own`. `longest` is how long texts may
    be, where that decides how positions turn. A `Source` is the text of a spec.
    `library` is where specs are looked for.
    """
    library = library or SpecLibrary()
    folder = _folder(spec)
    encoder = find_encoder_directory(folder)
    remarks: tuple[str, ...]
    named = _name(spec)
    wrapped = _wrapped(folder, own, library)
    if folder:
        config = config or encoder
        spec = wrapped.source if wrapped else own or find_spec_for_checkpoint(config)
        remarks = wrapped.remarks if wrapped else (_read_by(folder, _name(spec)),)
    else:
        remarks = _of_a_name(_name(spec), own)
    program = build_program(library.open(spec), library)
    if not config and has_published_fields(program) and has_config_json(weights):
        config = weights
        remarks += (f"config values come from the config.json in `{escape_text(weights)}`",)
    data = _config_of(config, wrapped)
    program = program if data is None else choose_used_specs(program, data)
    program = assign_config_values(program, parse_config_settings(sets))
    reader = ConfigReader(longest=longest)
    made = OpenedSpec(program, library, reader, named, config, remarks, checkpoint=encoder)
    made.repository, made.modules = folder, wrapped.weights if wrapped else {}
    return made if data is None else _configured(made, data)


def _of_a_name(name: str, own: str) -> tuple[str, ...]:
    """The notes of a spec that is no directory. E0222 where `own` is given for one."""
    if own:
        _no_folder(name)
    note = format_shadow_note(name)
    return (note,) if note else ()


def _config_of(config: str, wrapped: WrappedEncoder | None) -> JsonObject | None:
    """The config file that is named, as the spec reads it."""
    data = load_config_json(config) if config else None
    return encoder_config_table(data) if data is not None and wrapped else data


def _read_by(folder: str, name: str) -> str:
    return f"`{escape_text(folder)}` is read by the spec `{escape_text(name)}`"


def _wrapped(folder: str, own: str, library: SpecLibrary) -> WrappedEncoder | None:
    """The spec of a sentence-transformers directory, unless one is named."""
    if own:
        return None
    return wrapped_spec(folder, lambda name: build_program(library.open(name), library))


def _name(spec: str | Source) -> str:
    """What messages call a spec."""
    return spec.name if isinstance(spec, Source) else spec


def _folder(spec: str | Source) -> str:
    """Return the checkpoint directory that is given in place of a spec; empty for any
    other path, and for the name of a built-in spec.
    """
    if (
        isinstance(spec, Source)
        or is_builtin_spec(spec)
        or not has_config_json(find_encoder_directory(spec))
    ):
        return ""
    return spec


def _configured(spec: OpenedSpec, data: JsonObject) -> OpenedSpec:
    """The spec with what a config.json says, and keys of it that nobody reads."""
    family = _expected(spec.program, data)
    reject_quantized_checkpoint(data)
    # Only files of a published family have keys that are known to be its own.
    return replace(
        spec,
        reader=replace(spec.reader, published=spec.library.published, raw=data),
        warnings=(
            *(warn_unread_keys(spec.program, data) if family else ()),
            *([] if spec.reader.longest else _limited_contexts(spec.program, data)),
        ),
    )


def _expected(program: Program, data: JsonObject, *, used: bool = False) -> bool:
    """Whether a spec is for files of a family. Fails with E0405 where the file, or a part
    of it that a used spec reads, is none such.
    """
    wanted = [e for e in list_config_entries(program) if isinstance(e, ast.Expect)]
    # A part that does not say what it is about is what the spec that uses it takes it for.
    silent = used and data.given(MODEL_TYPE_KEY) is None
    check_expected_keys([e for e in wanted if not silent or e.key != MODEL_TYPE_KEY], data)
    for part in program.parts:
        if (inner := get_config_section(part, data)) is not None:
            with show_use_in_errors(part.use):
                _expected(part.program, inner, used=True)
    return any(e.key == MODEL_TYPE_KEY for e in wanted)


def warn_unread_keys(program: Program, data: JsonObject) -> Iterator[Diagnostic]:
    """W0418 for the keys that nothing names, in each part of the file on its own."""
    keys = [key for part in program.parts for key in part.use.sources]
    yield from find_unread_keys([*list_config_entries(program), ast.IgnoredKeys(tuple(keys))], data)
    for part in program.parts:
        if (inner := get_config_section(part, data)) is not None:
            yield from warn_unread_keys(part.program, inner)


def _limited_contexts(program: Program, data: JsonObject) -> Iterator[Diagnostic]:
    """Yield W0436 for the rotary settings of the file, in each of its parts."""
    yield from find_limited_contexts(list_config_entries(program), data)
    for part in program.parts:
        if (inner := get_config_section(part, data)) is not None:
            yield from _limited_contexts(part.program, inner)


def _usual(spec: OpenedSpec) -> str:
    """The graph that the config asks for where nobody else does; empty: the first."""
    return graph_for_architecture(spec.program, spec.reader.raw) if spec.reader.raw else ""


def _no_folder(spec: str) -> NoReturn:
    raise_error(
        "E0222",
        f"`{escape_text(spec)}` is no folder with a config.json, and `--spec` is for such",
        helps=[
            f"`{spec}` names the built-in spec; write `{escape_text(path)}` for the directory"
            if (path := find_shadowed_path(spec))
            else "name the spec alone, or the folder of a checkpoint behind --spec"
        ],
    )


@dataclass
class CheckedSpec:
    """What `check_spec` found: the symbolic readings, and the model with numbers where every
    value is known.
    """

    trials: list[SymbolicTrial]
    model: ModelDefinition | None
    missing: tuple[Diagnostic, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return format_repr(f"check: {self._found}, {self._counted}")

    def _repr_html_(self) -> str:
        """What was found, for a notebook."""
        return render_html_table(
            "specc check",
            [
                ("model", self._found),
                ("tried", self._counted),
                *(("missing", d.title) for d in self.missing),
                *(("remark", remark) for remark in self.remarks),
                *(("warning", f"{d.code}: {d.title}") for d in self.warnings),
            ],
        )

    @property
    def _found(self) -> str:
        if self.model is None:
            # a config file would say what is missing
            return f"right for every size, {len(self.missing)} values are missing"
        return f"{self.model.name}, {self.model.graph.signed()}"

    @property
    def _counted(self) -> str:
        warnings = f", {len(self.warnings)} warnings" if self.warnings else ""
        return f"{len(self.trials)} symbolic readings{warnings}"


def check_spec(spec: OpenedSpec, graph: str = "") -> CheckedSpec:
    """Elaborate with symbols, then with numbers where the config is complete."""
    graph = graph or _usual(spec)
    trials = _symbolic(spec, graph)
    # the words of `quantize` need no value of the config, its patterns do
    merge_quantize_options(spec.program, QuantizeOptions())
    try:
        model = elaborate_model(spec.program, spec.library, spec.reader, graph)
    except Failed as failed:
        # Values that only a checkpoint's config would give are no fault of the spec.
        missing = [d for d in failed.diagnostics if d.code == "E0401"]
        if len(missing) < len(failed.diagnostics):
            raise
        warnings = (*spec.warnings, *_unshared(spec, trials), *find_unused_names(spec.program))
        return CheckedSpec(trials, None, tuple(missing), warnings, spec.remarks)
    _check_beside(spec, model)
    check_quantize_request(
        spec.program, model.graph, lambda: elaborate_other_graphs(spec, model.graph.name)
    )
    _check_longest(spec, model)
    unneeded = (*_unshared(spec, trials, model), *find_unused_names(spec.program))
    warnings = (*spec.warnings, *unneeded, *model.warnings, *_unreached(spec, model))
    return CheckedSpec(trials, model, (), warnings, spec.remarks)


def _symbolic(spec: OpenedSpec, graph: str) -> list[SymbolicTrial]:
    """The readings with symbols."""
    filed = spec.reader.raw is not None
    return check_spec_symbolically(spec.program, spec.library, graph, filed=filed)


def _unreached(spec: OpenedSpec, model: ModelDefinition) -> tuple[Diagnostic, ...]:
    """W0756, of vocabularies in the spec and beside it: those beside weights are tables of
    words in general, most of which no text of a model needs.
    """
    try:
        reading = readings.build_record(spec.program, model)
    except Failed:
        return ()
    return tuple(warn_unreachable_words(spec.program, reading))


def _check_beside(spec: OpenedSpec, model: ModelDefinition) -> None:
    """What the spec says beside its graph, about weights and readings: all that is
    wrong with it whatever the files.
    """
    context = create_context(spec.library)
    config = evaluate_and_check_config(context, spec.program, spec.reader)
    check_rules(
        spec.program,
        context,
        Env(module=spec.program.module, config=config),
        model.graph,
        lambda: elaborate_other_graphs(spec, model.graph.name),
    )
    if faults := readings.check_reading(spec.program, model):
        raise Failed(*faults)


def _check_longest(spec: OpenedSpec, model: ModelDefinition) -> None:
    """E0435 for a length of texts that nothing in the model hangs on."""
    wanted = spec.reader.longest
    if not wanted or _turns_up_to(wanted, model.graph):
        return
    raise_error(
        "E0435",
        f"`--context {wanted}` changes nothing: positions of this model do not turn by "
        "frequencies that the length of a text decides",
        helps=["leave it out"],
    )


def _turns_up_to(longest: int, graph: Graph) -> bool:
    """Whether something in a graph, bodies of loops included, turns so far."""
    found = (
        op.most == longest
        if isinstance(op, ops.RopeAngles)
        else isinstance(op, ops.Scan) and _turns_up_to(longest, op.body)
        for op in (node.op for node, _ in graph.nodes)
    )
    return any(found)


def elaborate_other_graphs(spec: OpenedSpec, graph: str) -> Iterator[Graph]:
    """The other graphs of a spec, those that can be made with its config."""
    for block, _ in spec.program.items(ast.Block):
        if block.kind == "graph" and block.name != graph:
            with suppress(Failed):
                yield elaborate_model(spec.program, spec.library, spec.reader, block.name).graph


def elaborate_spec(spec: OpenedSpec, graph: str = "") -> ModelDefinition:
    """The model with numbers, after the symbolic check has passed."""
    graph = graph or _usual(spec)
    trials = _symbolic(spec, graph)
    model = elaborate_model(spec.program, spec.library, spec.reader, graph)
    _check_beside(spec, model)
    _check_longest(spec, model)
    _unshared(spec, trials, model)
    unused = find_unused_names(spec.program)
    told = replace(model, warnings=(*unused, *model.warnings, *_unreached(spec, model)))
    return mark_ties(spec.program, spec.library, spec.reader, told)


def _unshared(
    spec: OpenedSpec, trials: Sequence[SymbolicTrial], *models: ModelDefinition
) -> tuple[Diagnostic, ...]:
    """Warnings about `share` rules that are not needed. Fails with E0527 for one that
    names nothing.
    """
    found = check_share_rules(spec.program, spec.library, [*(t.model for t in trials), *models])
    if errors := [d for d in found if d.severity == "error"]:
        raise Failed(*errors)
    return tuple(found)
