"""Open a spec that a Python caller passes as a path, name or source text, with config values."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path

from specc.diagnostics.diagnostic import Source, SpeccError, raise_error
from specc.driver.spec_loader import LoadedSpec, open_spec
from specc.io.safe_read import escape_text
from specc.library.spec_file_lookup import disambiguate_spec_path
from specc.syntax.dsl.dsl_lexer import MAX_NESTING
from specc.syntax.parse import convert_help_snippets_to_yaml

SPEC_TEXT_NAME = "<spec>"
"""The name that messages use for a spec that a Python caller passes as source text."""


@contextmanager
def translate_errors_to_spec_syntax() -> Iterator[None]:
    """A context manager that translates code in help messages to the syntax of the spec file."""
    try:
        yield
    except SpeccError as failed:
        raise SpeccError(*convert_help_snippets_to_yaml(failed.diagnostics)) from failed.__cause__


def open_spec_argument(
    spec: str | Path,
    *,
    config: str | Path = "",
    config_values: Mapping[str, object] | None = None,
    weights: str = "",
    context_length: int = 0,
) -> LoadedSpec:
    """Open a spec with the given config values.

    A multi-line string is the source text of a spec, whose file paths are relative to the current
    directory. A `Path` is never interpreted as the name of a built-in spec. Raise E0203 if a value
    cannot be written as a literal of the spec language.
    """
    # a `Path` is a file path even if it equals the name of a built-in spec
    spec_name = spec if isinstance(spec, str) else disambiguate_spec_path(str(spec))
    # a path does not contain line breaks
    is_source_text = isinstance(spec, str) and "\n" in spec
    return open_spec(
        Source(SPEC_TEXT_NAME, spec_name) if is_source_text else spec_name,
        config=str(config) if config else "",
        config_settings=[
            f"{name}={value}" for name, value in _iterate_config_literals("", config_values or {})
        ],
        weights=weights,
        context_length=context_length,
    )


def _iterate_config_literals(
    prefix: str, config_values: Mapping[str, object], depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Yield config values by dotted path, as literals of the spec language."""
    if depth > MAX_NESTING:
        raise_error(
            "E0203",
            f"values are nested more than {MAX_NESTING} levels deep",
            helps=["check whether a value contains itself"],
        )
    for key, value in config_values.items():
        path = f"{prefix}{key}"
        if "=" in path:
            raise_error("E0407", f"`{escape_text(path)}` is not the name of a config value")
        if isinstance(value, Mapping):
            yield from _iterate_config_literals(f"{path}.", value, depth + 1)
        else:
            yield path, _format_literal(value, path)


def _format_literal(value: object, path: str, depth: int = 0) -> str:
    """Return a Python value as a literal of the spec language. Raise E0203 for other values."""
    if depth > MAX_NESTING:
        raise_error(
            "E0203",
            f"the value of `{escape_text(path)}` is nested more than {MAX_NESTING} levels deep",
            helps=["check whether it contains itself"],
        )
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case str():
            # a plain string may be an expression, but strings in a list are string literals
            return value if depth == 0 else json.dumps(value, ensure_ascii=False)
        case list() | tuple():
            return f"[{', '.join(_format_literal(item, path, depth + 1) for item in value)}]"
        case Integral():
            return str(int(value))
        case Real() if math.isfinite(value):
            return repr(float(value))
    raise_error(
        "E0203",
        f"`{escape_text(path)}` cannot be set to {escape_text(repr(value))[:60]}",
        helps=["pass a number, a bool, a string, a list or None"],
    )
