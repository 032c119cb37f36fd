"""Check that a config.json matches a spec. The checks report unexpected values (E0405), unread keys
(W0418) and limited context lengths (W0436).
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from specc.diagnostics.diagnostic import Diagnostic, Label, raise_error
from specc.frontend.config_json import WHOLE_OBJECT, JsonMember, JsonObject, JsonScalar
from specc.frontend.hf_config import (
    find_unread_config_keys,
    iterate_handled_config_keys,
    warn_about_rope_context_limits,
)
from specc.frontend.spec_modules import Program
from specc.frontend.used_specs import (
    MODEL_TYPE_KEY,
    get_config_section,
    label_use_statement_in_errors,
    list_config_entries,
)
from specc.huggingface.model_family import suggest_spec_for_config_value
from specc.syntax import ast


def check_model_type(program: Program, data: JsonObject, *, is_type_checked: bool = True) -> bool:
    """Return True if the spec declares a model_type. Raise E0405 if the config, or the part of the
    config that a used spec reads, has a different model_type.
    """
    expected = [e for e in list_config_entries(program) if isinstance(e, ast.ExpectedValues)]
    checked = [e for e in expected if is_type_checked or e.key != MODEL_TYPE_KEY]
    module = program.chain[0]
    _check_expected_keys(
        checked, data, Path(module.path).stem if module.is_builtin else module.path
    )
    for part in program.used_specs:
        if (section := get_config_section(part, data)) is not None:
            with label_use_statement_in_errors(part.use):
                # assume the declared model_type if a part of a config has none
                is_typed = section.find_non_null(MODEL_TYPE_KEY) is not None
                check_model_type(
                    part.program, section, is_type_checked=is_typed and section is not data
                )
    return any(e.key == MODEL_TYPE_KEY for e in expected)


def _check_expected_keys(
    expectations: Iterable[ast.ExpectedValues], data: JsonObject, spec: str
) -> None:
    """Raise E0405 if the config file belongs to another model family or variant.

    The value `none` in an `expect` entry matches a key that is absent or null. `spec` is the path
    of a spec file, or the name of a built-in spec.
    """
    for entry in expectations:
        member = data.find_member(entry.key)
        value = _format_member(member)
        if value not in entry.values:
            actual = f"`{value}`" if member and not member.is_null else "missing"
            labels = Label.labels_from_span(entry.span, "expected by this spec")
            raise_error(
                "E0405",
                f'"{entry.key}" is {actual}, expected {" or ".join(entry.values)}',
                member.value.span if member else None,
                helps=suggest_spec_for_config_value(spec, entry.key, value),
                related_labels=labels,
            )


def _format_member(member: JsonMember | None) -> str:
    """Format a config value in the syntax of `expect`: text, a boolean, a number, or `none`."""
    if member is None or member.is_null:
        return "none"
    value = member.value.value if isinstance(member.value, JsonScalar) else None
    return value if isinstance(value, str) else member.value.span.text


def warn_unread_keys(
    program: Program, data: JsonObject, outer_keys: tuple[str, ...] = ()
) -> Iterator[Diagnostic]:
    """Yield a W0418 warning for each part of the config that contains keys that the spec does not
    read. `outer_keys` are the keys that the enclosing spec reads.
    """
    sources = {key for part in program.used_specs for key in part.use.sources}
    entries = [*_list_entries_for_config(program), ast.IgnoredKeys((*sources, *outer_keys))]
    yield from find_unread_config_keys(entries, data)
    known_keys = set(iterate_handled_config_keys(entries))
    for part in program.used_specs:
        section = get_config_section(part, data)
        if section is not None and section is not data:
            prefixes = [f"{key}." for key in part.use.sources]
            read_keys = [k.removeprefix(p) for k in known_keys for p in prefixes if k.startswith(p)]
            yield from warn_unread_keys(part.program, section, tuple(read_keys))


def _list_entries_for_config(program: Program) -> list[ast.ConfigEntry]:
    """Return the `config` entries of a spec and of the used specs that may read the same config."""
    parts = [p.program for p in program.used_specs if WHOLE_OBJECT in p.use.sources]
    return [*list_config_entries(program), *(e for p in parts for e in _list_entries_for_config(p))]


def warn_about_context_limits(program: Program, data: JsonObject) -> Iterator[Diagnostic]:
    """Yield W0436 for each part of the config whose RoPE settings limit the context length."""
    yield from warn_about_rope_context_limits(list_config_entries(program), data)
    for part in program.used_specs:
        if (section := get_config_section(part, data)) is not None:
            yield from warn_about_context_limits(part.program, section)
