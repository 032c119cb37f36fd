"""Config values: from the command line, an instance, a config file, or the field's
default, in that order.

In a symbolic reading every number of the config that nothing fixes stays a symbol named
by its path.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from specc.elaborate.budget import Steps
from specc.elaborate.context import Absent, Context, Env, Module, Poisoned
from specc.elaborate.json_nodes import JsonObject
from specc.elaborate.lookup import lookup
from specc.elaborate.modules import Assigned, Program
from specc.elaborate.named import PLURALS, no_such
from specc.elaborate.needs import NeedsValue
from specc.elaborate.normalizers import of_type
from specc.elaborate.numbers import as_float
from specc.elaborate.typing import Place, fit_static
from specc.elaborate.values import POISON, Known, Picked, Record, Rope, first
from specc.ir.dim import Dim
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, Label, fail
from specc.text.source import Origin

Published = Callable[[Context, tree.Field, Env], Known | Absent]
"""Gives a field's value from a published config file, or `ABSENT`."""


@dataclass(kw_only=True)
class Reader:
    """How a program's config is read. `fixed` are trial values for fields that decide
    structure. With `derived`, whole numbers that follow from others by their default
    are what they follow as: `side = image / patch` is no symbol of its own.

    `steps` counts the work of all readings that share it. `path` is where the config
    stands in that of the spec that uses this one, empty where none does. `longest` is
    how long texts may be, where that decides how positions turn; 0 is what the spec or
    file says.
    """

    symbolic: bool = False
    derived: bool = False
    fixed: Mapping[str, Known] = field(default_factory=dict)
    published: Published | None = None
    raw: JsonObject | None = None
    steps: Steps = field(default_factory=Steps)
    longest: int = 0
    path: str = ""

    def full(self, path: str) -> str:
        """What a field is called from outside."""
        return f"{self.path}.{path}" if self.path else path


def read_config(
    context: Context,
    program: Program,
    reader: Reader,
    parts: Mapping[str, Known] | None = None,
) -> dict[str, Known]:
    """Every config field's value, behind those of the specs it uses, `parts`. Missing
    ones are all reported at once (E0401).
    """
    env = Env(module=program.module, config={}, raw=reader.raw)
    values: dict[str, Known] = dict(parts or {})
    env.config = values  # each default sees the fields before it
    faults: list[Diagnostic] = []
    named = program.chain[0] if program.chain else program.module
    reading = _Reading(context, program.assigned, reader, named)
    for entry in program.fields():
        try:
            value = _value(reading, entry, entry.name, env)
            values[entry.name] = _over(reader.longest, value)
        except Failed as failed:
            faults += failed.diagnostics
            values[entry.name] = POISON
        # a default that reads a field at fault: that one is reported
        except Poisoned:
            values[entry.name] = POISON
    if faults:
        raise Failed(*faults)
    return values


def _over(longest: int, value: Known) -> Known:
    """A value, its rotary settings those for texts of up to so many tokens."""
    match value:
        case Rope() if longest:
            return value.over(longest)
        case Record(fields=fields):
            inner = {name: _over(longest, field) for name, field in fields.items()}
            return replace(value, fields=inner)
    return value


def _value(reading: "_Reading", entry: tree.Field, path: str, env: Env) -> Known:
    """A field's value; those of a record see the ones before them by their own names."""
    if entry.type.name != "record" or path in reading.assigned:
        return _single(reading, entry, path, env)
    inner = replace(env, names=dict(env.names))
    fields: dict[str, Known] = {}
    for part in entry.type.fields:
        value = _value(reading, part, f"{path}.{part.name}", inner)
        fields[part.name] = inner.names[part.name] = value
    return Record(fields, path)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What the values of one config are read by. `named` is the spec the user named,
    whose names those of the command line are.
    """

    context: Context
    assigned: Mapping[str, Assigned]
    reader: Reader
    named: Module


def _single(reading: _Reading, entry: tree.Field, path: str, env: Env) -> Known:
    """The first that there is: given, tried, from the config file, a symbol, the default.

    In a reading with symbols an `int` is one even where it has a default, so that what
    holds for the default alone is found; other defaults decide structure more often
    than sizes, and are taken.
    """
    context, reader = reading.context, reading.reader
    if path in reading.assigned:
        return _assigned(reading, entry, path, env)
    if (full := reader.full(path)) in reader.fixed:
        return _both(entry, reader.fixed[full])
    if reader.published is not None:
        value = reader.published(context, entry, env)
        if not isinstance(value, Absent):
            return value
    return _unsaid(reading, entry, path, env)


def _unsaid(reading: _Reading, entry: tree.Field, path: str, env: Env) -> Known:
    """A field that nobody gives a value: a symbol, its default, or what is tried first."""
    context, reader = reading.context, reading.reader
    full = reader.full(path)
    origin = Origin(entry.span, f"the config value `{full}`")
    if reader.symbolic and entry.type.name == "int" and not entry.type.optional:
        follows = _derived(reading, entry, path, env) if reader.derived else None
        return follows or Dim.symbol(full, origin)
    if reader.symbolic and _whole_pair(entry.type):
        return tuple(Dim.symbol(f"{full}[{n}]", origin) for n in range(2))
    if entry.default is not None:
        place = Place(f"`{path}`", entry.default.span)
        return _fitted(context, entry.default, entry, env, place)
    if entry.type.optional:
        return None
    if reader.symbolic and entry.type.name == "float":
        return as_float(context, Dim.symbol(full, origin), entry.span)
    if reader.symbolic and (word := first_tried(entry.type)) is not None:
        return word
    _missing(entry, full, reader)


def _whole_pair(type: tree.TypeName) -> bool:
    """Whether a field holds two whole numbers, as the sizes of pictures are."""
    whole = type.of is not None and type.of.name == "int"
    return type.name == "pair" and whole and not type.optional


def _both(entry: tree.Field, value: Known) -> Known:
    """What is tried for a field; one value for both of a pair."""
    pair = entry.type.name == "pair" and not isinstance(value, tuple)
    return (value, value) if pair else value


def derived(entry: tree.Field) -> bool:
    """Whether a field is a whole number computed from others. `= width` alone is none:
    that says what the value is until another is given.
    """
    if entry.type.name != "int" or isinstance(entry.default, tree.Num | tree.Name):
        return False
    return entry.default is not None


def _derived(reading: _Reading, entry: tree.Field, path: str, env: Env) -> Dim | None:
    """What a derived field follows as, where symbols can say it."""
    if not derived(entry) or entry.default is None:
        return None
    place = Place(f"`{path}`", entry.default.span)
    try:
        value = _fitted(reading.context, entry.default, entry, env, place)
    # what is decided by numbers is tried with numbers; what is wrong is said of those
    except (NeedsValue, Failed):
        return None
    return value if isinstance(value, Dim) and value.number is None else None


def _assigned(reading: _Reading, entry: tree.Field, path: str, env: Env) -> Known:
    """What an instance or the command line says; E0203 for one value for a whole record."""
    given = reading.assigned[path]
    if entry.type.name == "record":
        names = ", ".join(f"{path}.{f.name}" for f in entry.type.fields)
        title = f"`{path}` is a record: its values are set one by one"
        fail("E0203", title, given.span, "one value", helps=[f"it has {names}"])
    place = Place(f"`{path}`", given.span)
    there = replace(env, module=given.module or reading.named)
    return _fitted(reading.context, given.value, entry, there, place)


def _fitted(
    context: Context, expr: tree.Expr, entry: tree.Field, env: Env, place: Place
) -> Known:
    """An expression as a value of the field's type."""
    if entry.type.name == "choice" and isinstance(expr, tree.Name):
        if expr.path in entry.type.names:
            return Picked(expr.path, entry.type.names)
        if lookup(context, expr, env, quiet=True) is POISON:
            # refused, with the words it may be
            return fit_static(context, entry.type, expr.path, env, place)
    try:
        value = first(of_type(context, entry.type, expr, env))
    except Failed as failed:
        kind, code = entry.type.name, failed.diagnostics[0].code
        if code == "E0202" and isinstance(expr, tree.Name) and kind in PLURALS:
            no_such(context, kind, expr, env)
        raise
    fitted = fit_static(context, entry.type, value, env, place)
    if isinstance(fitted, Dim):
        return fitted.since(Origin(place.span, f"the config value {place.what}"))
    return fitted


def first_tried(type: tree.TypeName) -> Known:
    """The value that a field without one is tried with first; `specc.elaborate.check`
    tries the others.
    """
    if type.name == "choice" and type.names:
        return Picked(type.names[0], type.names)
    usual: dict[str, Known] = {"bool": True, "text": ""}
    return usual.get(type.name)


def _elsewhere(keys: Sequence[str], raw: JsonObject) -> list[str]:
    """Where else in the file keys of these names stand: one is probably meant."""
    ends = {k.rpartition(".")[2] for k in keys}
    return [path for path, _ in raw.walk() if path.rpartition(".")[2] in ends]


def _missing(entry: tree.Field, path: str, reader: Reader) -> NoReturn:
    helps = [f"give it: `--set {path}=…`, or in an instance `{path}: …`"]
    keys = [s.value for s in entry.sources if isinstance(s, tree.Text)]
    title, notes = f"`{path}` has no value", []
    # a config file would do, and none was given
    if entry.sources and reader.raw is None:
        helps.append("it can come from a config file: `--config DIR`")
    elif keys and isinstance(reader.raw, JsonObject):
        file = reader.raw.span.source.name
        quoted = [f'"{k}"' for k in keys]
        title = f"`{path}` has no value: {' or '.join(quoted)} is not in {file}"
        if nested := _elsewhere(keys, reader.raw):
            notes.append(f"{file} has {', '.join(nested[:4])}")
            both = dict.fromkeys([*nested[:2], *keys])
            helps.insert(0, "write  from " + " | ".join(f'"{k}"' for k in both))
    primary = (
        Label(entry.span, "declared here, without a default") if entry.span else None
    )
    raise Failed(
        Diagnostic("E0401", title, primary, notes=tuple(notes), helps=tuple(helps))
    )
