"""Specs used with a config of their own: select one of several, read its config section, and
show the `use` in its errors.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Failed, Label, raise_error
from specc.diagnostics.source import Span
from specc.frontend.config_json import JsonMember, JsonObject, JsonScalar
from specc.frontend.config_values import ConfigReader
from specc.frontend.context import Context, Env, join_weight_path
from specc.frontend.spec_modules import Program, UsedSpec
from specc.frontend.spec_values import ChoiceValue, Record, SpecValue
from specc.syntax import ast


@contextmanager
def show_use_in_errors(use: ast.Use) -> Iterator[None]:
    """Show the `use` in errors of the used spec inside the context."""
    try:
        yield
    except Failed as failed:
        text = f"`{use.name}` is used here"
        found = [add_origin_label(d, use.span, text) for d in failed.diagnostics]
        raise Failed(*found) from None


@contextmanager
def show_call_in_errors(context: Context, span: Span | None, name: str) -> Iterator[None]:
    """Show the call at `span` in errors of a used file's block inside the context."""
    before, text = len(context.errors.diagnostics), f"`{name}` is called here"
    try:
        yield
    except Failed as failed:
        raise Failed(*[add_origin_label(d, span, text) for d in failed.diagnostics]) from None
    finally:
        noted = context.errors.diagnostics[before:]
        context.errors.diagnostics[before:] = [add_origin_label(d, span, text) for d in noted]


def add_origin_label(diagnostic: Diagnostic, span: Span | None, text: str) -> Diagnostic:
    """Add a label to an error, unless the error is in the same file or has the label already."""
    if span is None or (diagnostic.primary and diagnostic.primary.span.source is span.source):
        return diagnostic
    if any(label.span == span for label in diagnostic.others):
        return diagnostic
    return replace(diagnostic, others=(*diagnostic.others, Label(span, text)))


MODEL_TYPE_KEY = "model_type"
"""The key of the model type in a (nested) config."""


def list_config_entries(program: Program) -> list[ast.ConfigEntry]:
    """Return the config entries of a spec and of the specs it extends."""
    return [e for item, _ in program.iterate_items(ast.Config) for e in item.entries]


def get_config_section(part: UsedSpec, data: JsonObject) -> JsonObject | None:
    """Return the section of a config file that a used spec reads; None if it reads none. Raise
    E0227 if the file lacks it.
    """
    keys = part.use.sources
    if not keys:
        return None
    member = next((m for m in map(data.find_non_null, keys) if m is not None), None)
    if member is not None and isinstance(member.value, JsonObject):
        return member.value
    _raise_missing_section(part, data, member)


def _raise_missing_section(part: UsedSpec, data: JsonObject, member: JsonMember | None) -> NoReturn:
    """Raise E0227 for a config file without the section, or with another value there."""
    keys, span = part.use.sources, part.use.span
    quoted = " or ".join(f'"{key}"' for key in keys)
    label = f"`{part.name}` reads its config there"
    raise_error(
        "E0227",
        f"{data.span.source.name} has no object {quoted}",
        member.value.span if member else span,
        "this is not a config" if member else label,
        others=Label.list_at(span, label) if member else (),
        helps=[f'write `"{keys[0]}": {{…}}`, empty for the defaults of the spec'],
    )


def choose_used_specs(program: Program, data: JsonObject) -> Program:
    """Select the alternative of each used spec by the config file. Raise E0228 if none matches."""
    parts: list[UsedSpec] = []
    for part in program.used_specs:
        inner = get_config_section(part, data)
        chosen = part
        if inner and part.is_undecided:
            chosen = _choose_by_type(part, inner.find_non_null(MODEL_TYPE_KEY))
        if inner is not None:
            programs = list(chosen.programs)
            with show_use_in_errors(part.use):
                programs[chosen.selected or 0] = choose_used_specs(chosen.program, inner)
            chosen = replace(chosen, programs=tuple(programs))
        parts.append(chosen)
    return replace(program, used_specs=tuple(parts))


def _choose_by_type(part: UsedSpec, member: JsonMember | None) -> UsedSpec:
    """Select the alternative that reads a model type; the first if the file has no type."""
    if member is None:
        return replace(part, selected=0)
    text = member.value.value if isinstance(member.value, JsonScalar) else None
    kinds = [list_model_types(program) for program in part.programs]
    for number, kind in enumerate(kinds):
        if text in kind:
            return replace(part, selected=number)
    known = ", ".join(dict.fromkeys(k for kind in kinds for k in kind))
    raise_error(
        "E0228",
        f"`{part.name}` cannot be {member.value.span.text[:60]}",
        member.value.span,
        others=Label.list_at(part.use.span, "used here"),
        notes=[f"those read {known}"],
        helps=["add a spec that reads this type to them, or pass your own with --spec"],
    )


def list_model_types(program: Program) -> tuple[str, ...]:
    """Return the model types that a spec reads."""
    return tuple(
        value
        for entry in list_config_entries(program)
        if isinstance(entry, ast.Expect) and entry.key == MODEL_TYPE_KEY
        for value in entry.values
    )


def apply_trial_specs(program: Program, fixed: Mapping[str, SpecValue], path: str = "") -> Program:
    """Select the trial alternative of each used spec that has no choice yet."""
    parts: list[UsedSpec] = []
    for part in program.used_specs:
        here = f"{path}{part.name}"
        word = fixed.get(here)
        found = part
        if part.is_undecided and isinstance(word, ChoiceValue):
            found = part.select_spec(word.word) or part
        programs = list(found.programs)
        programs[found.selected or 0] = apply_trial_specs(found.program, fixed, f"{here}.")
        parts.append(replace(found, programs=tuple(programs)))
    return replace(program, used_specs=tuple(parts))


def enter_used_spec(
    part: UsedSpec, program: Program, reader: ConfigReader
) -> tuple[Program, ConfigReader]:
    """Return the used spec with the values that the using spec sets, and its config reader."""
    start = f"{part.name}."
    # names in a value are resolved in its module
    named = program.chain[0] if program.chain else program.module
    given = {
        path.removeprefix(start): replace(value, module=value.module or named)
        for path, value in program.assignments.items()
        if path.startswith(start)
    }
    known = {*part.program.list_fields_by_path(), *(p.name for p in part.program.used_specs)}
    for path, value in given.items():
        if path not in known:
            raise_error(
                "E0201",
                f"the config of `{part.program.module.file.model}` has no `{path}`",
                value.span,
                "unknown key",
                notes=[f"`{part.name}` is `{part.path}` here"],
            )
    raw = get_config_section(part, reader.config_file) if reader.config_file is not None else None
    inner = replace(part.program, assignments={**part.program.assignments, **given})
    published = reader.published_lookup if raw is not None else None
    path = reader.qualify_path(part.name)
    return inner, replace(reader, config_file=raw, published_lookup=published, path=path)


def iterate_used_specs(
    program: Program, config: Mapping[str, SpecValue], scope: str = ""
) -> Iterator[tuple[Program, ast.Use, Env]]:
    """Yield every used spec, recursively, with its `use` and its scope of config and weights."""
    for part in program.used_specs:
        values = config[part.name]
        assert isinstance(values, Record)  # by `_evaluate_config_values`
        under = join_weight_path(scope, part.use.under.text if part.use.under else "")
        inner = part.program
        yield (inner, part.use, Env(module=inner.module, config=values.fields, scope=under))
        yield from iterate_used_specs(inner, values.fields, under)


def has_published_fields(program: Program) -> bool:
    """Return whether a spec, or one that it uses, reads a config file."""
    mine = any(entry.sources for entry in program.iterate_fields())
    return mine or any(part.use.sources for part in program.used_specs)
