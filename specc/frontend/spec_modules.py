"""Modules (parsed spec files), and programs (a spec with its base specs, config and used specs)."""

from collections.abc import Hashable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TypeVar

from specc.diagnostics.diagnostic import Label, Span, raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.elaboration_context import SpecLoader, SpecNamespace
from specc.frontend.elaboration_limits_and_errors import ErrorCollectorContext
from specc.frontend.spec_inheritance_and_config_overrides import (
    ConfigAssignment,
    apply_input_overrides,
    check_derived_spec_items,
    check_derived_spec_names,
    flatten_config_assignments,
    iterate_config_entries,
    iterate_defined_names,
    reject_untyped_config_values,
)
from specc.syntax import ast

ItemT = TypeVar("ItemT", bound=ast.Item)


@dataclass(eq=False, kw_only=True)
class Program:
    """A spec, together with its base specs.

    `module` contains the graph. `chain` contains all modules, the derived spec first. The
    `reading`, `weights` and `generate` sections of a derived spec precede the sections of its base
    specs. `used_specs` contains the used specs with separate configs. `library` loads std and the
    used files.
    """

    module: SpecNamespace
    library: SpecLoader
    assignments: dict[str, ConfigAssignment] = field(default_factory=dict)
    name: str = ""
    doc: str = ""
    chain: tuple[SpecNamespace, ...] = ()
    used_specs: "tuple[SubmodelSpec, ...]" = ()

    @property
    def is_builtin(self) -> bool:
        """True if all files of the program are built-in files. Config values are ignored."""
        return all(m.is_builtin for m in self.chain) and all(
            program.is_builtin for used_spec in self.used_specs for program in used_spec.programs
        )

    def get_cache_key(self) -> Hashable:
        """Return a cache key for the program: its syntax trees, config values and used specs."""
        assignments = {
            (path, a.value, id(a.module.file) if a.module else 0)
            for path, a in self.assignments.items()
        }
        used_specs = [
            (used_spec.selected, *(program.get_cache_key() for program in used_spec.programs))
            for used_spec in self.used_specs
        ]
        trees = [id(module.file) for module in self.chain]
        return frozenset(assignments), tuple(used_specs), tuple(trees)

    def map_fields_by_path(
        self, *, include_alternatives: bool = False
    ) -> dict[str, ast.ConfigField]:
        """Return every config field by dotted path. The paths of a used spec's fields begin with
        its alias. A used spec with several alternatives has a choice field and the fields of the
        selected alternative. With `include_alternatives`, the result contains the fields of all
        alternatives.
        """
        fields: dict[str, ast.ConfigField] = {}
        for used_spec in self.used_specs:
            if not used_spec.is_selected or (include_alternatives and len(used_spec.programs) > 1):
                fields[used_spec.name] = used_spec.field
            for program in used_spec.programs if include_alternatives else (used_spec.program,):
                inner_fields = program.map_fields_by_path(include_alternatives=include_alternatives)
                fields |= {
                    f"{used_spec.name}.{path}": entry for path, entry in inner_fields.items()
                }
        return fields | collect_fields_by_path(self.iterate_fields())

    def iterate_fields(self) -> Iterator[ast.ConfigField]:
        """Yield the config fields that the spec declares."""
        return iterate_config_entries(self.module.file, ast.ConfigField)

    def iterate_items(self, item_type: type[ItemT]) -> Iterator[tuple[ItemT, SpecNamespace]]:
        """Yield (item, module) for items of class `item_type`, derived specs first."""
        for module in self.chain:
            for item in module.file.items:
                if isinstance(item, item_type):
                    yield item, module


@dataclass(frozen=True, eq=False)
class SubmodelSpec:
    """A used spec with a separate config and separate weights, such as an image encoder. `programs`
    are the alternative specs, and `selected` is the index of the selected alternative (default 0).
    """

    use: ast.UseStatement
    programs: tuple[Program, ...]
    selected: int | None = None

    @property
    def name(self) -> str:
        """The alias of the used spec."""
        return self.use.name

    @property
    def program(self) -> Program:
        """The program of the selected alternative."""
        return self.programs[self.selected or 0]

    @property
    def path(self) -> str:
        """The path of the selected file in the `use` statement."""
        return self.use.paths[self.selected or 0]

    @property
    def is_selected(self) -> bool:
        """True if an alternative is selected, or if there is only one alternative."""
        return self.selected is not None or len(self.programs) == 1

    @property
    def field(self) -> ast.ConfigField:
        """The config field that selects an alternative. The default is the first alternative."""
        kind = ast.TypeExpr(name="choice", names=self.use.paths)
        first = ast.Name(self.use.path)
        return ast.ConfigField(name=self.name, type=kind, default=first, span=self.use.span)

    def select_alternative(self, name: str) -> "SubmodelSpec | None":
        """Select the alternative whose path, or whose file name without suffix, is `name`. Return
        None for an unknown alternative.
        """
        paths = self.use.paths
        for names in (paths, [PurePosixPath(path).stem for path in paths]):
            if name in names:
                return replace(self, selected=names.index(name))
        return None


def build_module(file: ast.File, path: str, *, is_standard: bool = False) -> SpecNamespace:
    """Build the module of a spec file. Raise E0217 if a name is duplicated."""
    module = SpecNamespace(file=file, path=path, is_standard=is_standard)
    spans_by_name: dict[str, Span | None] = {}
    errors = ErrorCollectorContext()
    for item in file.items:
        for name, span in iterate_defined_names(item):
            with errors:
                if name in spans_by_name:
                    others = Label.tuple_from_span(spans_by_name[name], "first here")
                    title = f"duplicate definition of `{name}`"
                    raise_error("E0217", title, span, "again here", related_labels=others)
            spans_by_name[name] = span
        if isinstance(item, ast.Block | ast.AttentionDef):
            module.items[item.name] = item
        elif isinstance(item, ast.DimsSection):
            module.dims.update({d.name: d.minimum for d in item.dims})
        elif isinstance(item, ast.UseStatement):
            module.uses[item.name] = item
    errors.raise_collected_errors()
    return module


def build_program(
    module: SpecNamespace, library: SpecLoader, importers: tuple[SpecNamespace, ...] = ()
) -> Program:
    """Build the program of a spec, its base specs, and its used specs with separate configs. Raise
    E0218 for a cycle. `importers` are the specs that use the spec.
    """
    chain = [module]
    # follow `extends` from the derived spec to the base spec with the graph
    while chain[-1].file.extends:
        file = chain[-1].file
        base = library.load_imported_module(file.extends, chain[-1], file.extends_span)
        if any(base.path == m.path for m in chain):
            cycle = " → ".join(m.path for m in (*chain, base))
            raise_error("E0218", f"this spec extends itself: {cycle}", file.extends_span)
        chain.append(base)
    assignments: dict[str, ConfigAssignment] = {}
    used_specs = _list_used_specs(chain[-1], library, (*importers, chain[-1]))
    chain[-1] = apply_input_overrides(chain)
    # iterate from the base spec, so that the config values of derived specs take precedence
    for derived_module, base in reversed(list(pairwise(chain))):
        check_derived_spec_items(derived_module)
        check_derived_spec_names(derived_module, base)
        derived_module.base = base
        derived_values: dict[str, ConfigAssignment] = {}
        for entry in iterate_config_entries(derived_module.file, ast.ConfigOverride):
            flatten_config_assignments(
                entry.name, entry.value, entry.span, derived_values, derived_module
            )
        assignments |= _expand_used_spec_values(
            derived_values, {*_iterate_unresolved_paths(used_specs)}
        )
    program = Program(
        module=chain[-1],
        library=library,
        assignments=assignments,
        name=module.file.model,
        doc=module.file.doc or chain[-1].file.doc,
        chain=tuple(chain),
        used_specs=used_specs,
    )
    reject_untyped_config_values(chain[-1])
    _check_assigned_names(program)
    return _select_used_specs(program)


def _list_used_specs(
    module: SpecNamespace, library: SpecLoader, importers: tuple[SpecNamespace, ...]
) -> tuple[SubmodelSpec, ...]:
    """Return the used specs of a file that have a separate config."""
    used_specs: list[SubmodelSpec] = []
    for use in module.uses.values():
        if not use.has_own_config:
            continue
        modules = [library.load_imported_module(path, module, use.span) for path in use.paths]
        for used_module in modules:
            if used_module in importers:
                cycle = " → ".join(m.path for m in (*importers, used_module))
                raise_error("E0218", f"this spec uses itself: {cycle}", use.span)
        _reject_path_pattern(use)
        programs = tuple(build_program(used_module, library, importers) for used_module in modules)
        used_specs.append(SubmodelSpec(use, programs))
    return tuple(used_specs)


def _reject_path_pattern(use: ast.UseStatement) -> None:
    """Raise E0226 if the weight path after `under` contains placeholders. Weight rules apply to all
    names below a path, so the path must be constant.
    """
    if use.under is not None and set("{}*") & set(use.under.text):
        raise_error(
            "E0226",
            "the weights of a used spec must have one path without placeholders",
            use.under.span,
            "this is a pattern",
            helps=["write a path without indices: `under decoder.model`"],
        )


def _select_used_specs(program: Program) -> Program:
    """Select those alternatives of used specs that are named by assigned values. Raise E0203 if a
    value is invalid.
    """
    used_specs: list[SubmodelSpec] = []
    assignments = dict(program.assignments)
    for used_spec in program.used_specs:
        assignment = assignments.pop(used_spec.name, None) if len(used_spec.programs) > 1 else None
        match assignment and assignment.value:
            case None:
                selected: SubmodelSpec | None = used_spec
            case ast.Name(path=text) | ast.StringLiteral(value=text):
                selected = used_spec.select_alternative(text)
            case _:
                selected = None
        if selected is None:
            title = f"`{used_spec.name}` must be one of {', '.join(used_spec.use.paths)}"
            span = assignment.span if assignment else None
            raise_error("E0203", title, span, helps=[f"write `{used_spec.use.path}`"])
        used_specs.append(selected)
    return replace(program, used_specs=tuple(used_specs), assignments=assignments)


def _iterate_unresolved_paths(
    used_specs: tuple[SubmodelSpec, ...], prefix: str = ""
) -> Iterator[str]:
    """Yield the paths of used specs with several alternatives."""
    for used_spec in used_specs:
        path = f"{prefix}{used_spec.name}"
        if len(used_spec.programs) > 1:
            yield path
        for program in used_spec.programs:
            yield from _iterate_unresolved_paths(program.used_specs, f"{path}.")


def _expand_used_spec_values(
    assignments: Mapping[str, ConfigAssignment], paths: Set[str]
) -> dict[str, ConfigAssignment]:
    """Split values such as `encoder = swin(window=7)` into alternatives and config values."""
    expanded: dict[str, ConfigAssignment] = {}
    for path, assignment in assignments.items():
        match assignment.value:
            case ast.Call(function=name, args=(), weights=None) if path in paths:
                inner_values: dict[str, ConfigAssignment] = {}
                values = ast.RecordLiteral(assignment.value.options)
                flatten_config_assignments(
                    path, values, assignment.span, inner_values, assignment.module
                )
                expanded[path] = replace(assignment, value=name)
                expanded |= _expand_used_spec_values(inner_values, paths)
            case _:
                expanded[path] = assignment
    return expanded


def collect_fields_by_path(
    fields: Iterator[ast.ConfigField] | tuple[ast.ConfigField, ...], prefix: str = ""
) -> dict[str, ast.ConfigField]:
    """Return every config field by dotted path, with records flattened."""
    fields_by_path: dict[str, ast.ConfigField] = {}
    for entry in fields:
        path = f"{prefix}{entry.name}"
        fields_by_path[path] = entry
        fields_by_path.update(collect_fields_by_path(entry.type.fields, f"{path}."))
    return fields_by_path


def _check_assigned_names(program: Program) -> None:
    """Raise E0201 if a value is assigned to an unknown config field."""
    fields = program.map_fields_by_path(include_alternatives=True)
    errors = ErrorCollectorContext()
    for path, assignment in program.assignments.items():
        if path in fields:
            continue
        parent, _, key = path.rpartition(".")
        siblings = [k for k in fields if k.rpartition(".")[0] == parent]
        names = [k.rpartition(".")[2] for k in siblings]
        fields_of_key = [k for k in siblings if _has_source_key(fields[k], key)]
        default = f"expected one of {', '.join(siblings) or 'none'}"
        helps = suggest_similar_name(key, names, default)
        if fields_of_key:
            helps = [f"`{key}` in config.json is the config field `{fields_of_key[0]}`"]
        title = f"the config of `{program.module.file.model}` has no `{path}`"
        with errors:
            raise_error("E0201", title, assignment.span, "unknown key", helps=helps)
    errors.raise_collected_errors()


def _has_source_key(field: ast.ConfigField, key: str) -> bool:
    """Return True if the key `key` of config.json is a source of a field."""
    return any(isinstance(s, ast.StringLiteral) and s.value == key for s in field.sources)


def assign_config_values(program: Program, new_assignments: dict[str, ConfigAssignment]) -> Program:
    """Return a copy of the program with additional config values, which take precedence."""
    new_values = _expand_used_spec_values(
        new_assignments, {*_iterate_unresolved_paths(program.used_specs)}
    )
    updated_program = replace(program, assignments={**program.assignments, **new_values})
    _check_assigned_names(updated_program)
    return _select_used_specs(updated_program)
