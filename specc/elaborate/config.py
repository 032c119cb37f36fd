"""Config values: from the command line, an instance, a config file, or the field's default, in that order.

In a symbolic reading every number of the config that nothing fixes stays a symbol named by its path.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from specc.elaborate.budget import Steps
from specc.elaborate.config_json import JsonObject
from specc.elaborate.context import Context, Env, Poisoned
from specc.elaborate.lookup import lookup
from specc.elaborate.modules import Assigned, Program
from specc.elaborate.numbers import as_float
from specc.elaborate.typing import applied, fit_static
from specc.elaborate.values import POISON, Picked, Record, first
from specc.ir.dim import Dim
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, Label
from specc.text.source import Origin, Span

Published = Callable[[Context, tree.Field, Env], Any]
"""Gives a field's value from a published config file, or `ABSENT`."""


class Absent:
    """Not in the config file."""


ABSENT = Absent()


@dataclass
class Reader:
    """How a program's config is read. `fixed` are trial values for fields that decide structure.

    `steps` counts the work of all readings that share it.
    """

    symbolic: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    published: Published | None = None
    raw: Any = None
    steps: Steps = field(default_factory=Steps)


def read_config(context: Context, program: Program, reader: Reader) -> dict[str, Any]:
    """Every config field's value. Missing ones are all reported at once (E0401)."""
    env = Env(program.module, {}, raw=reader.raw)
    values: dict[str, Any] = {}
    env.config = values
    faults: list[Diagnostic] = []
    for entry in program.fields():
        try:
            values[entry.name] = _value(context, program.assigned, entry, entry.name, env, reader)
        except Failed as failed:
            faults += failed.diagnostics
            values[entry.name] = POISON
        except Poisoned:
            values[entry.name] = POISON
    if faults:
        raise Failed(*faults)
    return values


def _value(
    context: Context, assigned: Mapping[str, Assigned], entry: tree.Field, path: str, env: Env, reader: Reader
) -> Any:
    if entry.type.name == "record" and path in assigned:
        span = assigned[path].span
        helps = (f"it has {', '.join(f'{path}.{f.name}' for f in entry.type.fields)}",)
        raise Failed(Diagnostic("E0203", f"`{path}` is a record: its values are set one by one",
                                Label(span, "one value") if span else None, helps=helps))  # fmt: skip
    if entry.type.name == "record":
        inner = Env(**{**env.__dict__, "names": dict(env.names)})
        made: dict[str, Any] = {}
        for part in entry.type.fields:
            made[part.name] = inner.names[part.name] = _value(
                context, assigned, part, f"{path}.{part.name}", inner, reader
            )
        return Record(made, path)
    what = f"`{path}`"
    if path in assigned:
        given = assigned[path]
        return _fitted(context, given.value, entry, env, what, given.span)
    if path in reader.fixed:
        return reader.fixed[path]
    if reader.published is not None:
        found = reader.published(context, entry, env)
        if found is not ABSENT:
            return found
    if reader.symbolic and entry.type.name == "int" and not entry.type.optional:
        return Dim.symbol(path, Origin(entry.span, f"the config value `{path}`"))
    if entry.default is not None:
        return _fitted(context, entry.default, entry, env, what, entry.default.span)
    if entry.type.optional:
        return None
    if reader.symbolic and entry.type.name == "float":
        return as_float(context, Dim.symbol(path, Origin(entry.span, f"the config value {what}")), entry.span)
    if reader.symbolic and (usual := _usual(entry.type)) is not None:
        return usual
    _missing(entry, path, reader)


def _fitted(context: Context, expr: Any, entry: tree.Field, env: Env, what: str, span: Span | None) -> Any:
    if entry.type.name == "choice" and isinstance(expr, tree.Name) and expr.path in entry.type.names:
        return Picked(expr.path, entry.type.names)
    if entry.type.name == "choice" and isinstance(expr, tree.Name) and lookup(context, expr, env, quiet=True) is POISON:
        return fit_static(context, expr.path, entry.type, what, span, env)  # refused, with the words it may be
    evaluate = context.held if applied(entry.type) else context.evaluate
    value = fit_static(context, first(evaluate(context, expr, env)), entry.type, what, span, env)
    if isinstance(value, Dim):
        return value.since(Origin(span, f"the config value {what}"))
    return value


def _usual(type: tree.TypeName) -> Any:
    """The value that a field without one is tried with first; `specc.elaborate.check` tries the others."""
    return {
        "bool": True,
        "text": "",
        "choice": Picked(type.names[0], type.names) if type.names else None,
    }.get(type.name)


def _missing(entry: tree.Field, path: str, reader: Reader) -> NoReturn:
    helps = [f"give it: `--set {path}=…`, or in an instance `{path}: …`"]
    keys = [s.value for s in entry.sources if isinstance(s, tree.Text)]
    title, notes = f"`{path}` has no value", []
    if entry.sources and reader.raw is None:
        helps.append("it can come from a config file: `--config DIR`")
    elif keys and isinstance(reader.raw, JsonObject):
        file = reader.raw.span.source.name
        quoted = [f'"{k}"' for k in keys]
        title = f"`{path}` has no value: {' or '.join(quoted)} is not in {file}"
        ends = {k.rpartition(".")[2] for k in keys}
        nested = [p for p, _ in reader.raw.walk() if p.rpartition(".")[2] in ends]
        if nested:
            notes.append(f"{file} has {', '.join(nested[:4])}")
            both = dict.fromkeys([*nested[:2], *keys])
            helps.insert(0, "write  from " + " | ".join(f'"{k}"' for k in both))
    primary = Label(entry.span, "declared here, without a default") if entry.span else None
    raise Failed(Diagnostic("E0401", title, primary, notes=tuple(notes), helps=tuple(helps)))
