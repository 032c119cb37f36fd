"""Select alternatives, config sections and error labels for used specs with their own config."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Label, Span, SpeccError, raise_error
from specc.frontend.config_values import ConfigReadOptions
from specc.frontend.elaboration_context import ElaborationContext, LexicalScope, join_weight_path
from specc.frontend.json_parser_with_spans import JsonMember, JsonObject, JsonScalar
from specc.frontend.spec_inheritance_and_config_overrides import ConfigAssignment
from specc.frontend.spec_modules import Program, SubmodelSpec
from specc.frontend.spec_values import Record, SpecValue, StringChoice
from specc.syntax import ast


@contextmanager
def add_use_label_to_errors(use: ast.UseStatement) -> Iterator[None]:
    """Return a context manager that adds a label at the `use` statement to any error."""
    try:
        yield
    except SpeccError as failed:
        text = f"`{use.name}` is used here"
        labeled = [add_related_label(d, use.span, text) for d in failed.diagnostics]
        raise SpeccError(*labeled) from None


@contextmanager
def add_call_label_to_errors(
    context: ElaborationContext, span: Span | None, name: str
) -> Iterator[None]:
    """Return a context manager that labels errors of a used file with the call at `span`."""
    count, text = len(context.errors.diagnostics), f"`{name}` is called here"
    try:
        yield
    except SpeccError as failed:
        raise SpeccError(*[add_related_label(d, span, text) for d in failed.diagnostics]) from None
    finally:
        reported = context.errors.diagnostics[count:]
        context.errors.diagnostics[count:] = [add_related_label(d, span, text) for d in reported]


def add_related_label(diagnostic: Diagnostic, span: Span | None, text: str) -> Diagnostic:
    """Add a related label to an error, unless the error is in the same file or already has the
    label.
    """
    if span is None or (diagnostic.primary and diagnostic.primary.span.source is span.source):
        return diagnostic
    if any(label.span == span for label in diagnostic.related_labels):
        return diagnostic
    return replace(diagnostic, related_labels=(*diagnostic.related_labels, Label(span, text)))


MODEL_TYPE_KEY = "model_type"
"""The key of the model type in a (nested) config."""


def list_config_entries(program: Program) -> list[ast.ConfigEntry]:
    """Return the `config` entries of a spec and its base specs."""
    return [e for item, _ in program.iterate_items(ast.ConfigSection) for e in item.entries]


def get_config_section(used_spec: SubmodelSpec, data: JsonObject) -> JsonObject | None:
    """Return the config file section of a used spec, or None if the used spec has no section. Raise
    E0227 if the file does not contain the section.
    """
    keys = used_spec.use.sources
    if not keys:
        return None
    member = next((m for m in map(data.find_non_null_member, keys) if m is not None), None)
    if member is not None and isinstance(member.value, JsonObject):
        return member.value
    _raise_missing_section(used_spec, data, member)


def _raise_missing_section(
    used_spec: SubmodelSpec, data: JsonObject, member: JsonMember | None
) -> NoReturn:
    """Raise E0227 for a config section that is missing or is not an object."""
    keys, span = used_spec.use.sources, used_spec.use.span
    keys_text = " or ".join(f'"{key}"' for key in keys)
    label = f"`{used_spec.name}` reads its config there"
    member = member or next(filter(None, map(data.find_member, keys)), None)
    helps = [f"if the model has no `{used_spec.name}`, use a spec without it: docs/families.md"]
    if not (member and member.is_null):
        helps.insert(0, f'write `"{keys[0]}": {{…}}`, empty for the defaults of the spec')
    raise_error(
        "E0227",
        f"{data.span.source.name} has no object {keys_text}",
        member.value.span if member else span,
        "this is not a config object" if member else label,
        related_labels=Label.tuple_from_span(span, label) if member else (),
        helps=helps,
    )


def select_spec_alternatives(program: Program, data: JsonObject) -> Program:
    """Select an alternative of each used spec according to the config file, or raise E0228."""
    used_specs: list[SubmodelSpec] = []
    for used_spec in program.used_specs:
        section = get_config_section(used_spec, data)
        selected_spec = used_spec
        if section and not used_spec.is_selected:
            selected_spec = _choose_by_type(used_spec, section.find_non_null_member(MODEL_TYPE_KEY))
        if section is not None:
            programs = list(selected_spec.programs)
            with add_use_label_to_errors(used_spec.use):
                programs[selected_spec.selected or 0] = select_spec_alternatives(
                    selected_spec.program, section
                )
            selected_spec = replace(selected_spec, programs=tuple(programs))
        used_specs.append(selected_spec)
    return replace(program, used_specs=tuple(used_specs))


def _choose_by_type(used_spec: SubmodelSpec, member: JsonMember | None) -> SubmodelSpec:
    """Select the alternative for the model type of a config file, or the first alternative."""
    if member is None:
        return replace(used_spec, selected=0)
    model_type = member.value.value if isinstance(member.value, JsonScalar) else None
    types_by_program = [list_model_types(program) for program in used_spec.programs]
    for index, types in enumerate(types_by_program):
        if model_type in types:
            return replace(used_spec, selected=index)
    supported_types = ", ".join(dict.fromkeys(k for types in types_by_program for k in types))
    raise_error(
        "E0228",
        f"`{used_spec.name}` does not support the model type {member.value.span.text[:60]}",
        member.value.span,
        related_labels=Label.tuple_from_span(used_spec.use.span, "used here"),
        notes=[f"supported model types: {supported_types}"],
        helps=["add a spec for this type to the `use` statement, or pass your own with --spec"],
    )


def list_model_types(program: Program) -> tuple[str, ...]:
    """Return the model types of config files that a spec can read."""
    return tuple(
        value
        for entry in list_config_entries(program)
        if isinstance(entry, ast.ExpectedConfigValues) and entry.key == MODEL_TYPE_KEY
        for value in entry.values
        if value != "none"  # `none` means that the key `model_type` may be absent
    )


def select_alternatives_to_check(
    program: Program, trial_values: Mapping[str, SpecValue], path: str = ""
) -> Program:
    """Select a trial alternative for each used spec that has no selected alternative yet."""
    used_specs: list[SubmodelSpec] = []
    for used_spec in program.used_specs:
        spec_path = f"{path}{used_spec.name}"
        choice = trial_values.get(spec_path)
        selected = used_spec
        if not used_spec.is_selected and isinstance(choice, StringChoice):
            selected = used_spec.select_alternative(choice.value) or used_spec
        programs = list(selected.programs)
        programs[selected.selected or 0] = select_alternatives_to_check(
            selected.program, trial_values, f"{spec_path}."
        )
        used_specs.append(replace(selected, programs=tuple(programs)))
    return replace(program, used_specs=tuple(used_specs))


def assign_used_spec_values(
    used_spec: SubmodelSpec, program: Program, options: ConfigReadOptions
) -> tuple[Program, ConfigReadOptions]:
    """Return the program of a used spec, with the values that the using spec assigns, and the
    reader of its config.
    """
    prefix = f"{used_spec.name}."
    # names in a value are resolved in the module that sets the value
    user_spec = program.chain[0] if program.chain else program.module
    values_by_path = {
        path.removeprefix(prefix): replace(value, module=value.module or user_spec)
        for path, value in program.assignments.items()
        if path.startswith(prefix)
    }
    _reject_unknown_paths(used_spec, values_by_path)
    section = (
        get_config_section(used_spec, options.config_file)
        if options.config_file is not None
        else None
    )
    used_program = replace(
        used_spec.program, assignments={**used_spec.program.assignments, **values_by_path}
    )
    path = options.qualify_field_path(used_spec.name)
    return used_program, replace(options, config_file=section, path=path)


def _reject_unknown_paths(
    used_spec: SubmodelSpec, values_by_path: Mapping[str, ConfigAssignment]
) -> None:
    """Raise E0201 if a value is assigned to a config field that the used spec lacks."""
    field_paths = {
        *used_spec.program.map_fields_by_path(),
        *(p.name for p in used_spec.program.used_specs),
    }
    for path, value in values_by_path.items():
        if path not in field_paths:
            raise_error(
                "E0201",
                f"the config of `{used_spec.program.module.file.model}` has no `{path}`",
                value.span,
                "unknown key",
                notes=[f"`{used_spec.name}` is `{used_spec.path}` here"],
            )


def iterate_used_specs(
    program: Program, env: LexicalScope
) -> Iterator[tuple[Program, ast.UseStatement, LexicalScope]]:
    """Yield (program, `use` statement, scope) for every used spec, recursively."""
    for used_spec in program.used_specs:
        values = env.config[used_spec.name]
        assert isinstance(values, Record)  # created by `_evaluate_config_values`
        use, used_program = used_spec.use, used_spec.program
        used_env = LexicalScope(
            context=env.context,
            module=used_program.module,
            config=values.fields,
            scope=join_weight_path(env.scope, use.under.text if use.under else ""),
        )
        yield used_program, use, used_env
        yield from iterate_used_specs(used_program, used_env)


def can_read_hf_config(program: Program) -> bool:
    """Return True if a spec or one of the specs that it uses reads a config file."""
    has_own_sources = any(entry.sources for entry in program.iterate_fields())
    return has_own_sources or any(used_spec.use.sources for used_spec in program.used_specs)
