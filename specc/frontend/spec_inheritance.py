"""Check what a spec that extends another may contain: config values and new names."""

from collections.abc import Iterator

from specc.diagnostics.diagnostic import Diagnostic, Failed, Label, raise_error
from specc.diagnostics.source import Span
from specc.frontend.context import SpecModule
from specc.syntax import ast


def list_config_items(file: ast.File) -> list[ast.Config]:
    """The `config` items of a file."""
    return [i for i in file.items if isinstance(i, ast.Config)]


def iterate_item_names(item: ast.Item) -> Iterator[tuple[str, Span | None]]:
    """The names that an item gives a file, with their places."""
    match item:
        case ast.Block() | ast.Definition():
            yield item.name, item.name_span
        case ast.Dims():
            yield from ((d.name, d.span) for d in item.names)
        case ast.Use():
            yield item.name, item.span
        case ast.Config():
            yield from ((e.name, e.span) for e in item.entries if isinstance(e, ast.Field))


def check_instance_items(module: SpecModule) -> None:
    """E0209 for what would change the meaning of the spec that is extended."""
    for item in module.file.items:
        match item:
            case ast.Block(kind="graph"):
                spoken = "a graph"
            case ast.Dims():
                spoken = "`dims`"
            case ast.Use(owns=True):
                spoken = "a spec with a config and weights of its own"
            case _:
                continue
        raise_error(
            "E0209",
            f"{spoken} cannot stand in a spec that extends another",
            item.span,
            "this belongs into a spec of its own",
            notes=[
                "such a spec gives values to the config of the other, and may define "
                "masks, scores, biases, normalizers and blocks for them; it may also say "
                "what it requires of them, how inputs are read, where weights come from "
                "and what is generated"
            ],
            helps=["drop `extends`, or move this"],
        )


def check_instance_names(module: SpecModule, base: SpecModule) -> None:
    """E0225 for names of an instance that what it extends has already: they would stand
    for one thing in its config values and for another in the graph.
    """
    faults: list[Diagnostic] = []
    for item in module.file.items:
        for name, span in iterate_item_names(item):
            first = _find_definition(name, base)
            if isinstance(first, _NotDefined):
                continue
            title = f"`{name}` is a name of `{base.file.model}`, which this spec extends"
            faults.append(
                Diagnostic(
                    "E0225",
                    title,
                    Label(span, "again here") if span else None,
                    (Label(first, "first here"),) if first else (),
                    (
                        "what an instance defines is for its config values: it replaces "
                        "nothing in the graph of the other",
                    ),
                    (
                        f"give it a name of its own, such as `{name}_here`, and name that "
                        "in `config`",
                    ),
                )
            )
    if faults:
        raise Failed(*faults)


class _NotDefined:
    """No such name. None is for a name whose place is not known."""


def _find_definition(name: str, module: SpecModule) -> Span | _NotDefined | None:
    """Where a module, or what it extends, gives a meaning to a name."""
    for item in module.file.items:
        for known, span in iterate_item_names(item):
            if known == name:
                return span
    return _find_definition(name, module.extended) if module.extended else _NotDefined()


def reject_untyped_assignments(module: SpecModule) -> None:
    """E0220 for a value in a file that extends none, and so must say its type."""
    for config in list_config_items(module.file):
        for entry in config.entries:
            if isinstance(entry, ast.Assign):
                helps = [
                    f"declare it: `{entry.name}: {_format_declaration(entry.value)}`",
                    "or name the spec whose value it is: `extends …`",
                ]
                raise_error(
                    "E0220",
                    f"`{entry.name}` is given a value but has no type",
                    entry.span,
                    helps=helps,
                )


def _format_declaration(value: ast.Expr) -> str:
    """The type that a value would be declared with, and the value."""
    text = value.span.text if value.span else "…"
    match value:
        case ast.NumberLiteral(text=number):
            return f"{'int' if number.isdigit() else 'float'} = {number}"
        case ast.Name(path="true" | "false" as truth):
            return f"bool = {truth}"
        case ast.TextLiteral():
            return f"text = {text}"
    return f"int = {text}" if "\n" not in text else "int = …"
