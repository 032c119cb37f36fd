"""Evaluate config fields from the command line, an instance, config.json or the default."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Failed, Label, raise_error
from specc.diagnostics.source import Origin
from specc.diagnostics.suggest import did_you_mean, format_suggestion
from specc.frontend.context import Absent, AlreadyReported, Context, Env, SpecModule
from specc.frontend.declared_types import ValueContext, convert_to_declared_type
from specc.frontend.foreign_names import HF_ACTIVATION_ALIASES, KNOWN_ACTIVATIONS
from specc.frontend.json_nodes import JsonObject
from specc.frontend.name_lookup import resolve_name
from specc.frontend.normalizers import evaluate_as_type
from specc.frontend.parameter_kinds import NORMALIZER_WORDS
from specc.frontend.scalar_arithmetic import convert_to_float
from specc.frontend.spec_modules import ConfigAssignment, Program
from specc.frontend.spec_values import (
    POISON,
    ChoiceValue,
    NeedsValue,
    Record,
    Rope,
    SpecValue,
    take_first_result,
)
from specc.frontend.step_budget import StepBudget
from specc.ir.dim import Dim
from specc.syntax import ast

KIND_PLURALS = {
    "activation": "activations",
    "mask": "masks",
    "score": "scores",
    "normalizer": "normalizers",
}
"""Kinds whose names can be listed."""


def raise_unknown_name(context: Context, kind: str, name: ast.Name, env: Env) -> NoReturn:
    """E0202 for a name where one of a kind of `KIND_PLURALS` is due, with the nearest of that
    kind: values of the config have other kinds, and are not what is meant.
    """
    names = list_names_of_kind(context, kind, env)
    # what published files call an activation is known, however far from our word
    meant = HF_ACTIVATION_ALIASES.get(name.path) if kind == "activation" else None
    near = meant or did_you_mean(name.path, names)
    listed = f"{KIND_PLURALS[kind]} are {', '.join(names)}"
    raise_error(
        "E0202",
        f"`{name.path}` is not defined",
        name.span,
        "unknown name",
        helps=[format_suggestion(near) if near else listed],
    )


def list_names_of_kind(context: Context, kind: str, env: Env) -> list[str]:
    """The words and definitions of a kind that a spec can name, its own first."""
    if kind == "activation":
        return sorted({HF_ACTIVATION_ALIASES.get(name, name) for name in KNOWN_ACTIVATIONS})
    known = [*env.module.names(), *context.library.standard_names()]
    found = [name for name in dict.fromkeys(known) if _get_name_kind(context, name, env) == kind]
    return [*found, *NORMALIZER_WORDS] if kind == "normalizer" else found


def _get_name_kind(context: Context, name: str, env: Env) -> str:
    """`mask`, `score`, … of a definition; of a block nothing."""
    found = env.module.found(name) or context.library.standard(name)
    return found[0].kind if found and isinstance(found[0], ast.Definition) else ""


PublishedLookup = Callable[[Context, ast.Field, Env], SpecValue | Absent]
"""Gives a field's value from a published config file, or `ABSENT`."""


@dataclass(kw_only=True)
class ConfigReader:
    """How a program's config is read. `fixed` are trial values for fields that decide
    structure. With `is_derived_field`, whole numbers that follow from others by their default
    are what they follow as: `side = image / patch` is no symbol of its own.

    `steps` counts the work of all readings that share it. `path` is where the config
    stands in that of the spec that uses this one, empty where none does. `longest` is
    how long texts may be, where that decides how positions turn; 0 is what the spec or
    file says. `training` keeps what only training computes, such as dropout.
    """

    symbolic: bool = False
    derived: bool = False
    fixed: Mapping[str, SpecValue] = field(default_factory=dict)
    published: PublishedLookup | None = None
    raw: JsonObject | None = None
    steps: StepBudget = field(default_factory=StepBudget)
    longest: int = 0
    path: str = ""
    training: bool = False

    def full(self, path: str) -> str:
        """What a field is called from outside."""
        return f"{self.path}.{path}" if self.path else path


def evaluate_config(
    context: Context,
    program: Program,
    reader: ConfigReader,
    parts: Mapping[str, SpecValue] | None = None,
) -> dict[str, SpecValue]:
    """Every config field's value, behind those of the specs it uses, `parts`. Missing
    ones are all reported at once (E0401).
    """
    env = Env(module=program.module, config={}, raw=reader.raw)
    values: dict[str, SpecValue] = dict(parts or {})
    env.config = values  # each default sees the fields before it
    faults: list[Diagnostic] = []
    named = program.chain[0] if program.chain else program.module
    reading = _ConfigEvaluation(context, program.assigned, reader, named)
    for entry in program.fields():
        try:
            value = _evaluate_field(reading, entry, entry.name, env)
            values[entry.name] = _limit_rope_length(reader.longest, value)
        except Failed as failed:
            faults += failed.diagnostics
            values[entry.name] = POISON
        # a default that reads a field at fault: that one is reported
        except AlreadyReported:
            values[entry.name] = POISON
    if faults:
        raise Failed(*faults)
    return values


def _limit_rope_length(longest: int, value: SpecValue) -> SpecValue:
    """A value, its rotary settings those for texts of up to so many tokens."""
    match value:
        case Rope() if longest:
            return value.over(longest)
        case Record(fields=fields):
            inner = {name: _limit_rope_length(longest, field) for name, field in fields.items()}
            return replace(value, fields=inner)
    return value


def _evaluate_field(
    reading: "_ConfigEvaluation", entry: ast.Field, path: str, env: Env
) -> SpecValue:
    """A field's value; those of a record see the ones before them by their own names."""
    if entry.type.name != "record" or path in reading.assigned:
        return _evaluate_single(reading, entry, path, env)
    inner = replace(env, names=dict(env.names))
    fields: dict[str, SpecValue] = {}
    for part in entry.type.fields:
        value = _evaluate_field(reading, part, f"{path}.{part.name}", inner)
        fields[part.name] = inner.names[part.name] = value
    return Record(fields, path)


@dataclass(frozen=True, slots=True)
class _ConfigEvaluation:
    """What the values of one config are read by. `named` is the spec the user named,
    whose names those of the command line are.
    """

    context: Context
    assigned: Mapping[str, ConfigAssignment]
    reader: ConfigReader
    named: SpecModule


def _evaluate_single(
    reading: _ConfigEvaluation, entry: ast.Field, path: str, env: Env
) -> SpecValue:
    """The first that there is: given, tried, from the config file, a symbol, the default.

    In a reading with symbols an `int` is one even where it has a default, so that what
    holds for the default alone is found; other defaults decide structure more often
    than sizes, and are taken.
    """
    context, reader = reading.context, reading.reader
    if path in reading.assigned:
        return _evaluate_assigned(reading, entry, path, env)
    if (full := reader.full(path)) in reader.fixed:
        return _repeat_for_pair(entry, reader.fixed[full])
    if reader.published is not None:
        value = reader.published(context, entry, env)
        if not isinstance(value, Absent):
            return value
    return _evaluate_unset_field(reading, entry, path, env)


def _evaluate_unset_field(
    reading: _ConfigEvaluation, entry: ast.Field, path: str, env: Env
) -> SpecValue:
    """A field that nobody gives a value: a symbol, its default, or what is tried first."""
    context, reader = reading.context, reading.reader
    full = reader.full(path)
    origin = Origin(entry.span, f"the config value `{full}`")
    if reader.symbolic and entry.type.name == "int" and not entry.type.optional:
        follows = _evaluate_derived(reading, entry, path, env) if reader.derived else None
        return follows or Dim.symbol(full, origin)
    if reader.symbolic and _is_integer_pair(entry.type):
        return tuple(Dim.symbol(f"{full}[{n}]", origin) for n in range(2))
    if entry.default is not None:
        place = ValueContext(f"`{path}`", entry.default.span)
        return _convert_to_field_type(context, entry.default, entry, env, place)
    if entry.type.optional:
        return None
    if reader.symbolic and entry.type.name == "float":
        return convert_to_float(context, Dim.symbol(full, origin), entry.span)
    if reader.symbolic and (word := get_first_trial_value(entry.type)) is not None:
        return word
    _raise_missing_value(entry, full, reader)


def _is_integer_pair(type: ast.TypeName) -> bool:
    """Whether a field holds two whole numbers, as the sizes of pictures are."""
    whole = type.of is not None and type.of.name == "int"
    return type.name == "pair" and whole and not type.optional


def _repeat_for_pair(entry: ast.Field, value: SpecValue) -> SpecValue:
    """What is tried for a field; one value for both of a pair."""
    pair = entry.type.name == "pair" and not isinstance(value, tuple)
    return (value, value) if pair else value


def is_derived_field(entry: ast.Field) -> bool:
    """Whether a field is a whole number computed from others. `= width` alone is none:
    that says what the value is until another is given.
    """
    if entry.type.name != "int" or isinstance(entry.default, ast.NumberLiteral | ast.Name):
        return False
    return entry.default is not None


def _evaluate_derived(
    reading: _ConfigEvaluation, entry: ast.Field, path: str, env: Env
) -> Dim | None:
    """What a derived field follows as, where symbols can say it."""
    if not is_derived_field(entry) or entry.default is None:
        return None
    place = ValueContext(f"`{path}`", entry.default.span)
    try:
        value = _convert_to_field_type(reading.context, entry.default, entry, env, place)
    # what is decided by numbers is tried with numbers; what is wrong is said of those
    except (NeedsValue, Failed):
        return None
    return value if isinstance(value, Dim) and value.number is None else None


def _evaluate_assigned(
    reading: _ConfigEvaluation, entry: ast.Field, path: str, env: Env
) -> SpecValue:
    """What an instance or the command line says; E0203 for one value for a whole record."""
    given = reading.assigned[path]
    if entry.type.name == "record":
        names = ", ".join(f"{path}.{f.name}" for f in entry.type.fields)
        title = f"`{path}` is a record: its values are set one by one"
        raise_error("E0203", title, given.span, "one value", helps=[f"it has {names}"])
    place = ValueContext(f"`{path}`", given.span)
    there = replace(env, module=given.module or reading.named)
    return _convert_to_field_type(reading.context, given.value, entry, there, place)


def _convert_to_field_type(
    context: Context, expr: ast.Expr, entry: ast.Field, env: Env, place: ValueContext
) -> SpecValue:
    """An expression as a value of the field's type."""
    if entry.type.name == "choice" and isinstance(expr, ast.Name):
        if expr.path in entry.type.names:
            return ChoiceValue(expr.path, entry.type.names)
        if resolve_name(context, expr, env, quiet=True) is POISON:
            # refused, with the words it may be
            return convert_to_declared_type(context, entry.type, expr.path, env, place)
    try:
        value = take_first_result(evaluate_as_type(context, entry.type, expr, env))
    except Failed as failed:
        kind, code = entry.type.name, failed.diagnostics[0].code
        if code == "E0202" and isinstance(expr, ast.Name) and kind in KIND_PLURALS:
            raise_unknown_name(context, kind, expr, env)
        raise
    fitted = convert_to_declared_type(context, entry.type, value, env, place)
    if isinstance(fitted, Dim):
        return fitted.since(Origin(place.span, f"the config value {place.what}"))
    return fitted


def get_first_trial_value(type: ast.TypeName) -> SpecValue:
    """The value that a field without one is tried with first; `specc.frontend.symbolic_check`
    tries the others.
    """
    if type.name == "choice" and type.names:
        return ChoiceValue(type.names[0], type.names)
    usual: dict[str, SpecValue] = {"bool": True, "text": ""}
    return usual.get(type.name)


def _find_similar_keys(keys: Sequence[str], raw: JsonObject) -> list[str]:
    """Where else in the file keys of these names stand: one is probably meant."""
    ends = {k.rpartition(".")[2] for k in keys}
    return [path for path, _ in raw.walk() if path.rpartition(".")[2] in ends]


def _raise_missing_value(entry: ast.Field, path: str, reader: ConfigReader) -> NoReturn:
    helps = [f"give it: `--set {path}=…`, or in an instance `{path}: …`"]
    keys = [s.value for s in entry.sources if isinstance(s, ast.TextLiteral)]
    title, notes = f"`{path}` has no value", []
    # a config file would do, and none was given
    if entry.sources and reader.raw is None:
        helps.append("it can come from a config file: `--config DIR`")
    elif keys and isinstance(reader.raw, JsonObject):
        file = reader.raw.span.source.name
        quoted = [f'"{k}"' for k in keys]
        title = f"`{path}` has no value: {' or '.join(quoted)} is not in {file}"
        if nested := _find_similar_keys(keys, reader.raw):
            notes.append(f"{file} has {', '.join(nested[:4])}")
            both = dict.fromkeys([*nested[:2], *keys])
            helps.insert(0, "write  from " + " | ".join(f'"{k}"' for k in both))
    primary = Label(entry.span, "declared here, without a default") if entry.span else None
    raise Failed(Diagnostic("E0401", title, primary, notes=tuple(notes), helps=tuple(helps)))
