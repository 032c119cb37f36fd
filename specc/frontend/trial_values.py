"""The config values that the symbolic check of a spec tries: small sizes, defaults, and every
choice.
"""

from collections.abc import Iterator, Mapping

from specc.frontend.config_values import get_first_trial_value
from specc.frontend.spec_modules import Program
from specc.frontend.spec_values import ChoiceValue, SpecValue
from specc.ir.dim import Dim
from specc.syntax import ast

TRIAL_SIZES = (4, 8, 16, 3, 6, 12, 32, 64, 24, 48, 96, 128, 256)
"""The sizes to try if a `require` excludes the default sizes."""


def iterate_trial_sizes(fields: Mapping[str, ast.Field]) -> Iterator[dict[str, SpecValue]]:
    """Yield values to try for fields that determine the structure of the graph: small sizes, the
    defaults, then other sizes for one field at a time and for all fields together.
    """
    small_values: dict[str, SpecValue] = {
        name: _get_trial_number(entry) for name, entry in fields.items()
    }
    yield dict(small_values)
    yield small_values | collect_default_numbers(fields)
    integers = [path for path, entry in fields.items() if entry.type.name == "int"]
    sizes: list[SpecValue] = [Dim.from_value(size) for size in (1, *TRIAL_SIZES)]
    for path in integers:
        yield from (small_values | {path: size} for size in sizes)
    if len(integers) > 1:  # none of the sizes above satisfies `require a == b`
        yield from (small_values | dict.fromkeys(integers, size) for size in sizes)


def collect_default_numbers(fields: Mapping[str, ast.Field]) -> dict[str, SpecValue]:
    """Return the defaults of the fields whose default is a number."""
    defaults = {path: _get_default_number(entry) for path, entry in fields.items()}
    return {path: d for path, d in defaults.items() if d is not None}


def _get_default_number(entry: ast.Field) -> Dim | float | None:
    """Return the default of a field if it is a number literal, otherwise None."""
    if not isinstance(entry.default, ast.NumberLiteral):
        return None
    text = entry.default.text
    return Dim.from_value(int(text)) if text.isdigit() else float(text)


def _get_trial_number(entry: ast.Field) -> Dim | float:
    """Return the first trial value of a number: 0.5 for floats, a default of 0 to 2, or 2."""
    if entry.type.name == "float":
        return 0.5
    value = _get_default_number(entry)
    return value if isinstance(value, Dim) and value.number in (0, 1, 2) else Dim.from_value(2)


def iterate_alternatives(
    program: Program, fixed_values: dict[str, SpecValue]
) -> Iterator[tuple[str, SpecValue]]:
    """Yield (path, value) for each other value to try: both values of a bool, every choice, and 1
    and 2 for integers in `fixed_values`.
    """
    for path, entry in program.map_fields_by_path().items():
        # values for one alternative of a used spec do not apply to the other alternatives
        is_assigned = any(p == path or p.startswith(f"{path}.") for p in program.assignments)
        if is_assigned:
            continue
        match entry.type.name:
            case "bool":
                yield path, True
                yield path, False
            case "choice":
                yield from ((path, ChoiceValue(w, entry.type.names)) for w in entry.type.names)
            case "int" if path in fixed_values:
                yield path, Dim.from_value(1)
                yield path, Dim.from_value(2)


def get_first_choice(entry: ast.Field) -> SpecValue:
    """Return the value of a bool or choice field in the first trial, or None for other fields."""
    if entry.default is None:
        return None if entry.type.optional else get_first_trial_value(entry.type)
    if not isinstance(entry.default, ast.Name):
        return None
    word = entry.default.path
    if entry.type.name == "bool":
        return {"true": True, "false": False}.get(word)
    return ChoiceValue(word, entry.type.names) if word in entry.type.names else None
