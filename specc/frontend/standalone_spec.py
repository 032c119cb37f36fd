"""Build a standalone spec: merge a spec with its base specs, and inline std items."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from specc.diagnostics.diagnostic import raise_error
from specc.frontend.builtins import BUILTINS
from specc.frontend.elaboration_context import SpecLoader
from specc.frontend.spec_inheritance_and_config_overrides import (
    ConfigAssignment,
    iterate_defined_names,
)
from specc.frontend.spec_modules import Program, collect_fields_by_path
from specc.syntax import ast
from specc.syntax.ast import CONTENT_FIELDS, NODE_CLASSES, walk_tree

AnyNode = TypeVar("AnyNode", bound=ast.Node)

SINGLE_ITEMS = (ast.GenerateSection, ast.StreamSection)
"""The sections of a derived spec that override the same section of the base spec."""


def build_standalone_spec(program: Program, *, keep_sources: bool = False) -> ast.File:
    """Build a standalone spec file from a program. Raise E0982 if the program sets values of used
    specs.

    With `keep_sources`, fields with an assigned value keep their `from` clause, so that the value
    in a config.json takes precedence.
    """
    file = merge_extends_chain(program, keep_sources=keep_sources)
    defined_names = _collect_defined_names(file.items)
    # std blocks may use the names in `clashing_names` for local dimensions
    clashing_names = defined_names - _list_inlinable_names(program.library)
    std_items = [
        _rename_lengths(item, clashing_names)
        for item in _list_std_items(file, program.library, defined_names)
    ]
    return replace(file, items=(*file.items, *std_items))


def build_standalone_spec_with_renames(
    program: Program, *, keep_sources: bool = False
) -> tuple[ast.File, dict[str, str]]:
    """Build a standalone spec file from a program. Return the file, and a map from old to new
    names. Config values and blocks are renamed if they would shadow a name that std blocks use.

    If a config value would shadow a name, an underscore is appended to the name of the config value
    in the whole file. The shadowed name is kept, because it may be a built-in function. If a block
    of the file would shadow a std block, the std block is renamed instead.
    """
    file = merge_extends_chain(program, keep_sources=keep_sources)
    items = _list_std_items(file, program.library)
    library_names = {*BUILTINS, *program.library.list_std_names()}
    shadowing_fields = (
        {f.name for f in program.iterate_fields()} & library_names & _collect_free_names(items)
    )
    renamed_fields = {name: f"{name}_" for name in sorted(shadowing_fields)}
    unrenamed_names = _collect_defined_names(file.items) - shadowing_fields
    renamed_items = {
        name: f"{name}_" for name in unrenamed_names.intersection(i.name for i in items)
    }
    file_items = tuple(
        _rename_config_values(i, renamed_fields, _map_renamed_paths(renamed_fields, program))
        for i in file.items
    )
    defined_names = _collect_defined_names(file_items)
    std_items = [
        _rename_names(_rename_lengths(item, defined_names), renamed_items) for item in items
    ]
    std_items = [replace(i, name=renamed_items.get(i.name, i.name)) for i in std_items]
    return replace(file, items=(*file_items, *std_items)), renamed_fields


def _collect_defined_names(items: Iterable[ast.Item]) -> set[str]:
    """Return the names that items define."""
    return {name for item in items for name, _ in iterate_defined_names(item)}


def _collect_free_names(items: Iterable[ast.Block | ast.AttentionDef]) -> set[str]:
    """Return the names to which items refer, except the names of their own parameters."""
    names: set[str] = set()
    for item in items:
        names.update({*_iterate_used_names(item)}.difference(p.name for p in item.params or ()))
    return names


def _rename_config_values(
    item: ast.Item, fields: Mapping[str, str], paths: Mapping[str, str]
) -> ast.Item:
    """Rename config values in an item, including paths that begin with their names."""
    renamed_item = _rename_names(item, paths)
    if not isinstance(renamed_item, ast.ConfigSection):
        return renamed_item
    entries = tuple(
        replace(e, name=fields.get(e.name, e.name)) if isinstance(e, ast.ConfigField) else e
        for e in renamed_item.entries
    )
    return replace(renamed_item, entries=entries)


def _map_renamed_paths(names: Mapping[str, str], program: Program) -> dict[str, str]:
    """Map each config path that begins with a renamed name to the new path."""
    paths = [(*path.split("."),) for path in collect_fields_by_path(program.iterate_fields())]
    new_paths = {
        ".".join(path): ".".join((names[path[0]], *path[1:])) for path in paths if path[0] in names
    }
    return new_paths | {f"config.{old}": f"config.{new}" for old, new in new_paths.items()}


def _list_inlinable_names(library: SpecLoader) -> set[str]:
    """Return the names of the std items, except those that are also names of built-in functions."""
    return {*library.list_std_names()} - BUILTINS.keys()


def _list_std_items(
    file: ast.File, library: SpecLoader, hidden_names: Collection[str] = ()
) -> list[ast.Block | ast.AttentionDef]:
    """Return the std items that a file uses, directly or indirectly, except those in
    `hidden_names`.
    """
    std_names = _list_inlinable_names(library).difference(hidden_names)
    worklist = _list_foreign_names(file)
    items: dict[str, ast.Block | ast.AttentionDef] = {}
    while worklist:
        name = worklist.pop(0)
        if name in items or name not in std_names:
            continue
        item_and_module = library.find_std_item(name)
        assert item_and_module is not None, name
        items[name] = item_and_module[0]
        worklist += _iterate_used_names(item_and_module[0])
    return [*items.values()]


def _list_foreign_names(file: ast.File) -> list[str]:
    """Return the names that a file uses but does not define as a block or definition."""
    file_names = {i.name for i in file.items if isinstance(i, ast.Block | ast.AttentionDef)}
    return [n for item in file.items for n in _iterate_used_names(item) if n not in file_names]


def merge_extends_chain(program: Program, *, keep_sources: bool = False) -> ast.File:
    """Merge a spec with its base specs. Raise E0982 if the program sets values of used specs."""
    base = program.module.file
    _reject_values_of_used_specs(program)
    inherited_items = [i for m in program.chain[:-1] for i in m.file.items]
    # the base spec already contains the values of the derived `config` and `inputs` sections
    inherited_sections = [
        i for i in inherited_items if not isinstance(i, ast.ConfigSection | ast.InputsSection)
    ]
    # the `generate` and `stream` sections of the derived spec take precedence
    overridden_kinds = {
        kind for kind in SINGLE_ITEMS for i in inherited_sections if isinstance(i, kind)
    }
    base_items = [
        i for i in base.items if not isinstance(i, (ast.ConfigSection, *overridden_kinds))
    ]
    configs = [
        _assign_config(i, program.assignments, keep_sources)
        for i in base.items
        if isinstance(i, ast.ConfigSection)
    ]
    return replace(
        base,
        model=program.name,
        doc=program.doc,
        items=(*configs, *inherited_sections, *base_items),
    )


def list_overridden_source_fields(program: Program) -> list[str]:
    """Return the paths of fields with a `from` clause to which a derived spec assigns a value."""
    return [
        path
        for path, field in program.map_fields_by_path().items()
        if field.sources and path in program.assignments
    ]


def _reject_values_of_used_specs(program: Program) -> None:
    """Raise E0982 if a program sets a value of a used spec with a separate config."""
    field_paths = collect_fields_by_path(program.iterate_fields())
    for path, assignment in program.assignments.items():
        if path not in field_paths:
            raise_error(
                "E0982",
                f"`{path}` cannot be set here: the spec that `use` names has its own config",
                assignment.span,
                "only a derived spec can set this value",
                helps=["expand the spec without this value, and set the value in a derived spec"],
            )


def _assign_config(
    config: ast.ConfigSection, assignments: Mapping[str, ConfigAssignment], keeps_sources: bool
) -> ast.ConfigSection:
    """Set the defaults of the fields in a config section to the assigned values."""
    entries = (
        _assign_field(e, assignments, "", keeps_sources) if isinstance(e, ast.ConfigField) else e
        for e in config.entries
    )
    return replace(config, entries=tuple(entries))


def _assign_field(
    field: ast.ConfigField,
    assignments: Mapping[str, ConfigAssignment],
    prefix: str,
    keeps_sources: bool,
) -> ast.ConfigField:
    """Set the default of a field, or the defaults of its record fields, to the assigned values."""
    path = f"{prefix}{field.name}"
    fields = tuple(
        _assign_field(f, assignments, f"{path}.", keeps_sources) for f in field.type.fields
    )
    kind = replace(field.type, fields=fields)
    assignment = assignments.get(path)
    if assignment is None:
        return replace(field, type=kind)
    # an assigned value of a derived spec takes precedence over the value in a config.json
    sources = field.sources if keeps_sources else ()
    return replace(field, type=kind, default=assignment.value, sources=sources)


def _iterate_used_names(item: ast.Node) -> Iterator[str]:
    """Yield the names to which an item refers."""
    return (node.path for node in walk_tree(item) if isinstance(node, ast.Name))


def _rename_lengths(
    item: ast.Block | ast.AttentionDef, clashing_names: Collection[str]
) -> ast.Block | ast.AttentionDef:
    """In a std item, append an underscore to dimension names that clash with names of the file."""
    if isinstance(item, ast.AttentionDef):
        return item
    params = {p.name for p in item.params}
    types = [p.type for p in (*item.params, *item.results)]
    lengths = {name for declared_type in types for name in _iterate_used_names(declared_type)}
    new_names = {name: f"{name}_" for name in (lengths & {*clashing_names}) - params}
    return _rename_names(item, new_names) if new_names else item


def _rename_names(node: AnyNode, names: Mapping[str, str]) -> AnyNode:
    """Replace every name in a syntax tree that is a key of `names` with the value of the key."""
    if isinstance(node, ast.Name):
        return replace(node, path=names.get(node.path, node.path))
    new_fields: dict[str, object] = {}
    same: ast.Node = node
    for key in CONTENT_FIELDS[type(same)]:
        value = getattr(node, key)
        if isinstance(value, NODE_CLASSES):
            new_fields[key] = _rename_names(value, names)
        elif isinstance(value, tuple):
            new_fields[key] = tuple(
                _rename_names(v, names) if isinstance(v, NODE_CLASSES) else v for v in value
            )
    return replace(node, **new_fields)  # type: ignore[arg-type]  # the fields belong to the class of `node`
