"""Write a new spec that extends a built-in one, with its config and comments."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Source
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.spec_modules import Program, build_program
from specc.library.spec_files import SpecLibrary, list_builtin_specs
from specc.syntax import ast
from specc.syntax.ast_walk import walk_tree
from specc.syntax.dsl.dsl_parser import parse_expression
from specc.syntax.dsl.expression_printer import print_expression

SCHEMA = "specc.schema.json"
"""The JSON Schema that editors check YAML by, beside the specs that name it."""
SAMPLES = {"int": "16", "float": "1.0", "bool": "false", "list": "[16]"}
"""Values of fields that have no default and must be given."""


@dataclass(kw_only=True)
class SpecInstance:
    """What is known of the instance: its name, what it `extends`, values by path that go
    before the defaults, and the lines above and below.
    """

    name: str
    extends: str
    values: Mapping[str, str] = field(default_factory=dict)
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    only: bool = False
    """Whether nothing but `values` is written."""
    sign: str = ": "
    """What stands between a name and its value where a value is a comment."""


def write_instance(beginning: SpecInstance) -> ast.File:
    """The instance as a tree with comments. E0222 for a spec that is not shipped."""
    library = SpecLibrary()
    if beginning.extends not in list_builtin_specs():
        helps = suggest_similar_name(
            beginning.extends, list_builtin_specs(), "`specc list specs` names them"
        )
        raise_error("E0222", f"there is no shipped spec called `{beginning.extends}`", helps=helps)
    program = build_program(library.open(beginning.extends), library)
    lines = list(_entries(program, beginning))
    return ast.File(
        version=1,
        model=beginning.name,
        doc=program.doc,
        extends=beginning.extends,
        items=(_config(lines),) if any(isinstance(x, ast.Assign) for x in lines) else (),
        remarks=ast.Comments(before=beginning.above),
        end=beginning.below,
    )


def _config(lines: list["ast.Assign | str"]) -> ast.Config:
    """Values, the comments between them belonging to the next."""
    entries: list[ast.ConfigEntry] = []
    waiting: list[str] = []
    for line in lines:
        if isinstance(line, str):
            waiting.append(line)
        else:
            remarks = ast.Comments(tuple(waiting), line.remarks.behind)
            entries.append(ast.Assign(line.name, line.value, remarks))
            waiting = []
    return ast.Config(tuple(entries), end=tuple(waiting))


def _entries(program: Program, beginning: SpecInstance) -> Iterator["ast.Assign | str"]:
    """A value or a comment for each config field, in the spec's order; behind them values
    of the specs that it uses.
    """
    fields = {entry.name: entry for entry in program.fields()}
    for name, entry in fields.items():
        live: dict[str, str] = {}
        for path, one in _leaves(entry, name):
            text, stands = _value(program, beginning, path, one)
            if not text or (beginning.only and path not in beginning.values):
                continue
            if stands:
                live[path] = text
            else:
                doc = f"  ({one.doc})" if one.doc else ""
                yield f"{path}{beginning.sign}{text}{doc}"
        if live:
            yield ast.Assign(name, _joined(live, name), ast.Comments(behind=entry.doc))
    yield from _of_parts(beginning.values, fields)


def _of_parts(values: Mapping[str, str], fields: Container[str]) -> Iterator[ast.Assign]:
    """Values for the specs that this one uses: those that are none of its own fields."""
    others = {p: t for p, t in values.items() if p.split(".")[0] not in fields}
    for name in dict.fromkeys(path.split(".")[0] for path in others):
        inner = {p: t for p, t in others.items() if p.split(".")[0] == name}
        yield ast.Assign(name, _joined(inner, name))


def _joined(values: Mapping[str, str], path: str) -> ast.Expr:
    """The value at a path: itself, a record of what is below, or both as a call."""
    below = [p.removeprefix(f"{path}.") for p in values if p.startswith(f"{path}.")]
    names = dict.fromkeys(p.split(".")[0] for p in below)
    inner = [ast.Option(name, _joined(values, f"{path}.{name}")) for name in names]
    if path not in values:
        return ast.RecordLiteral(tuple(inner))
    if inner:  # of a used spec: which it is, and its values
        return ast.Call(ast.Name(values[path]), options=tuple(inner))
    return _parsed(values[path])


def _leaves(entry: ast.Field, path: str) -> Iterator[tuple[str, ast.Field]]:
    """The fields of records by their paths, any other by its name."""
    if entry.type.name != "record":
        yield path, entry
        return
    for part in entry.type.fields:
        yield from _leaves(part, f"{path}.{part.name}")


def _value(
    program: Program, beginning: SpecInstance, path: str, entry: ast.Field
) -> tuple[str, bool]:
    """A field's value as text, and whether it is to stand there: one that follows from
    others is better left to them, and is a comment.
    """
    if path in beginning.values:
        return beginning.values[path], True
    if path in program.assigned:
        return print_expression(program.assigned[path].value), True
    if entry.default is None:
        sample = "" if entry.type.optional else SAMPLES.get(entry.type.name, "")
        return sample, True
    follows = any(
        isinstance(node, ast.Name) and node.path.split(".")[0] in _names(program)
        for node in walk_tree(entry.default)
    )
    return print_expression(entry.default), not follows


def _names(program: Program) -> set[str]:
    return {path.split(".")[0] for path in program.paths()}


def _parsed(text: str) -> ast.Expr:
    return parse_expression(Source("<value>", text))
