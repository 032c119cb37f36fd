"""Spec modules and programs: items by name, `extends` chains and config assignments merged."""

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TypeVar

from specc.diagnostics.diagnostic import Label, raise_error
from specc.diagnostics.source import Source, Span
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.context import ErrorCollector, Library, SpecModule
from specc.frontend.spec_inheritance import (
    check_instance_items,
    check_instance_names,
    iterate_config_entries,
    iterate_item_names,
    reject_untyped_assignments,
)
from specc.io.safe_read import escape_text
from specc.syntax import ast
from specc.syntax.parse import parse_expression

AnItem = TypeVar("AnItem", bound=ast.Item)


@dataclass(frozen=True)
class ConfigAssignment:
    """A value that an instance or the command line assigns to a config field. Names in it are
    resolved in `module`, those of the command line in the spec that the user named.
    """

    value: ast.Expr
    span: Span | None
    module: SpecModule | None = None


@dataclass(eq=False, kw_only=True)
class Program:
    """A spec merged with the specs that it extends.

    `module` has the graph, and `chain` all modules, the instance first: its `reading`, `weights`
    and `generate` sections come before those that it extends. `used_specs` have a config of
    their own.
    """

    module: SpecModule
    assignments: dict[str, ConfigAssignment] = field(default_factory=dict)
    name: str = ""
    doc: str = ""
    chain: tuple[SpecModule, ...] = ()
    used_specs: "tuple[UsedSpec, ...]" = ()

    @property
    def is_builtin(self) -> bool:
        """Return whether it is built-in, apart from config values."""
        return all(m.is_builtin for m in self.chain) and all(
            one.is_builtin for part in self.used_specs for one in part.programs
        )

    def get_identity(self) -> Hashable:
        """Return the identity of the program: its trees, which are the same objects when a text is
        read again, the config values, and the used specs.
        """
        given = {
            (path, a.value, id(a.module.file) if a.module else 0)
            for path, a in self.assignments.items()
        }
        parts = [
            (part.selected, *(one.get_identity() for one in part.programs))
            for part in self.used_specs
        ]
        trees = [id(module.file) for module in self.chain]
        return frozenset(given), tuple(parts), tuple(trees)

    def list_fields_by_path(self, *, of_alternatives: bool = False) -> dict[str, ast.Field]:
        """Return every config field by its dotted path, those of used specs below their names,
        and the selection of used specs with several alternatives, whose fields are those of the
        selected one, or of all with `of_alternatives`.
        """
        found: dict[str, ast.Field] = {}
        for part in self.used_specs:
            if part.is_undecided or (of_alternatives and len(part.programs) > 1):
                found[part.name] = part.field
            for one in part.programs if of_alternatives else (part.program,):
                inner = one.list_fields_by_path(of_alternatives=of_alternatives)
                found |= {f"{part.name}.{path}": entry for path, entry in inner.items()}
        return found | collect_field_paths(self.iterate_fields())

    def iterate_fields(self) -> Iterator[ast.Field]:
        """Yield the config fields that the spec declares."""
        return iterate_config_entries(self.module.file, ast.Field)

    def iterate_items(self, kind: type[AnItem]) -> Iterator[tuple[AnItem, SpecModule]]:
        """Return the items of one class, the instance's first, each with its module."""
        for module in self.chain:
            for item in module.file.items:
                if isinstance(item, kind):
                    yield item, module


@dataclass(frozen=True, eq=False)
class UsedSpec:
    """A used spec with a separate config and weights. `programs` are the alternatives; `selected`
    is the index of one, by default the first.
    """

    use: ast.Use
    programs: tuple[Program, ...]
    selected: int | None = None

    @property
    def name(self) -> str:
        """The alias of the used spec."""
        return self.use.name

    @property
    def program(self) -> Program:
        """Return the selected alternative."""
        return self.programs[self.selected or 0]

    @property
    def path(self) -> str:
        """The path of the selected file, as in the `use`."""
        return self.use.paths[self.selected or 0]

    @property
    def is_undecided(self) -> bool:
        """Return whether one of several specs has not been selected yet."""
        return self.selected is None and len(self.programs) > 1

    @property
    def field(self) -> ast.Field:
        """Return the selected spec as a config field: by default the first."""
        kind = ast.TypeName(name="choice", names=self.use.paths)
        first = ast.Name(self.use.path)
        return ast.Field(name=self.name, type=kind, default=first, span=self.use.span)

    def select_spec(self, name: str) -> "UsedSpec | None":
        """Return the used spec with an alternative selected by its path, or by the name of its
        file without the suffix; None if there is no such alternative.
        """
        paths = self.use.paths
        for names in (paths, [PurePosixPath(path).stem for path in paths]):
            if name in names:
                return replace(self, selected=names.index(name))
        return None


def build_module(file: ast.File, path: str, *, standard: bool = False) -> SpecModule:
    """Build the module of a file. Raise E0217 if a name is defined twice."""
    module = SpecModule(file=file, path=path, is_standard=standard)
    seen: dict[str, Span | None] = {}
    errors = ErrorCollector()
    for item in file.items:
        for name, span in iterate_item_names(item):
            with errors:
                if name in seen:
                    others = Label.list_at(seen[name], "first here")
                    title = f"`{name}` is defined twice"
                    raise_error("E0217", title, span, "again here", others=others)
            seen[name] = span
        if isinstance(item, ast.Block | ast.Definition):
            module.items[item.name] = item
        elif isinstance(item, ast.Dims):
            module.dims.update({d.name: d.minimum for d in item.names})
        elif isinstance(item, ast.Use):
            module.uses[item.name] = item
    errors.raise_collected()
    return module


def build_program(
    module: SpecModule, library: Library, users: tuple[SpecModule, ...] = ()
) -> Program:
    """Merge a spec with the chain of specs that it `extends`, and build the specs that it uses with
    a separate config. Raise E0218 for a cycle; `users` are the specs that use this one.
    """
    chain = [module]
    # from the instance to the spec that has the graph
    while chain[-1].file.extends:
        file = chain[-1].file
        base = library.load_used_module(file.extends, chain[-1], file.extends_span)
        if any(base.path == m.path for m in chain):
            loop = " → ".join(m.path for m in (*chain, base))
            raise_error("E0218", f"this spec extends itself: {loop}", file.extends_span)
        chain.append(base)
    assigned: dict[str, ConfigAssignment] = {}
    parts = _list_used_specs(chain[-1], library, (*users, chain[-1]))
    # the base first, so that the nearest file takes precedence
    for instance, base in reversed(list(pairwise(chain))):
        check_instance_items(instance)
        check_instance_names(instance, base)
        instance.extended = base
        given: dict[str, ConfigAssignment] = {}
        for entry in iterate_config_entries(instance.file, ast.Assign):
            flatten_assignments(entry.name, entry.value, entry.span, given, instance)
        assigned |= _expand_used_spec_values(given, {*_iterate_open_paths(parts)})
    program = Program(
        module=chain[-1],
        assignments=assigned,
        name=module.file.model,
        doc=module.file.doc or chain[-1].file.doc,
        chain=tuple(chain),
        used_specs=parts,
    )
    reject_untyped_assignments(chain[-1])
    _check_assigned_names(program)
    return _select_used_specs(program)


def _list_used_specs(
    module: SpecModule, library: Library, users: tuple[SpecModule, ...]
) -> tuple[UsedSpec, ...]:
    """Return the specs that a file uses with a separate config."""
    parts: list[UsedSpec] = []
    for use in module.uses.values():
        if not use.has_own_config:
            continue
        used = [library.load_used_module(path, module, use.span) for path in use.paths]
        for other in used:
            if other in users:
                loop = " → ".join(m.path for m in (*users, other))
                raise_error("E0218", f"this spec uses itself: {loop}", use.span)
        _reject_path_pattern(use)
        programs = tuple(build_program(other, library, users) for other in used)
        parts.append(UsedSpec(use, programs))
    return tuple(parts)


def _reject_path_pattern(use: ast.Use) -> None:
    """Raise E0226 for a weight path with indices: rules apply to names below it."""
    if use.under is not None and set("{}*") & set(use.under.text):
        raise_error(
            "E0226",
            "the weights of a used spec need one plain path",
            use.under.span,
            "this is a pattern",
            helps=["write a path without indices: `under decoder.model`"],
        )


def _select_used_specs(program: Program) -> Program:
    """Select the alternative of each used spec by the values so far. Raise E0203 for an invalid
    choice.
    """
    parts: list[UsedSpec] = []
    assigned = dict(program.assignments)
    for part in program.used_specs:
        given = assigned.pop(part.name, None) if len(part.programs) > 1 else None
        match given and given.value:
            case None:
                found: UsedSpec | None = part
            case ast.Name(path=text) | ast.TextLiteral(value=text):
                found = part.select_spec(text)
            case _:
                found = None
        if found is None:
            title = f"`{part.name}` is one of {', '.join(part.use.paths)}"
            span = given.span if given else None
            raise_error("E0203", title, span, helps=[f"write `{part.use.path}`"])
        parts.append(found)
    return replace(program, used_specs=tuple(parts), assignments=assigned)


def _iterate_open_paths(parts: tuple[UsedSpec, ...], prefix: str = "") -> Iterator[str]:
    """Yield the paths of used specs with several alternatives."""
    for part in parts:
        path = f"{prefix}{part.name}"
        if len(part.programs) > 1:
            yield path
        for program in part.programs:
            yield from _iterate_open_paths(program.used_specs, f"{path}.")


def _expand_used_spec_values(
    given: Mapping[str, ConfigAssignment], paths: Set[str]
) -> dict[str, ConfigAssignment]:
    """Expand values such as `encoder = swin(window=7)` to the choice of a used spec and values for
    it.
    """
    found: dict[str, ConfigAssignment] = {}
    for path, one in given.items():
        match one.value:
            case ast.Call(function=name, args=(), weights=None) if path in paths:
                inner: dict[str, ConfigAssignment] = {}
                values = ast.RecordLiteral(one.value.options)
                flatten_assignments(path, values, one.span, inner, one.module)
                found[path] = replace(one, value=name)
                found |= _expand_used_spec_values(inner, paths)
            case _:
                found[path] = one
    return found


def parse_config_settings(settings: Sequence[str]) -> dict[str, ConfigAssignment]:
    """Return the values given by `--set`, keyed by config path. Raise E0407 if `=` is missing."""
    assigned: dict[str, ConfigAssignment] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            title = f"`--set {escape_text(setting)}` has no value"
            raise_error("E0407", title, helps=["write --set heads=4"])
        expr = parse_expression(Source(f"--set {path}", text))
        flatten_assignments(path.strip(), expr, expr.span, assigned)
    return assigned


def flatten_assignments(
    path: str,
    value: ast.Expr,
    span: Span | None,
    assignments: dict[str, ConfigAssignment],
    module: SpecModule | None = None,
) -> None:
    """Flatten nested values to dotted paths, so that they merge key by key."""
    if isinstance(value, ast.RecordLiteral):
        for option in value.fields:
            at = option.span or span
            flatten_assignments(f"{path}.{option.name}", option.value, at, assignments, module)
    else:
        assignments[path] = ConfigAssignment(value, span, module)


def collect_field_paths(
    fields: Iterator[ast.Field] | tuple[ast.Field, ...], prefix: str = ""
) -> dict[str, ast.Field]:
    """Return every config field by its dotted path, with records flattened."""
    found: dict[str, ast.Field] = {}
    for entry in fields:
        path = f"{prefix}{entry.name}"
        found[path] = entry
        found.update(collect_field_paths(entry.type.fields, f"{path}."))
    return found


def _check_assigned_names(program: Program) -> None:
    """Raise E0201 for values of fields that do not exist."""
    known = program.list_fields_by_path(of_alternatives=True)
    errors = ErrorCollector()
    for path, given in program.assignments.items():
        if path in known:
            continue
        parent, _, last = path.rpartition(".")
        level = [k for k in known if k.rpartition(".")[0] == parent]
        names = [k.rpartition(".")[2] for k in level]
        helps = suggest_similar_name(last, names, f"expected one of {', '.join(level) or 'none'}")
        title = f"the config of `{program.module.file.model}` has no `{path}`"
        with errors:
            raise_error("E0201", title, given.span, "unknown key", helps=helps)
    errors.raise_collected()


def assign_config_values(program: Program, assigned: dict[str, ConfigAssignment]) -> Program:
    """Return the program with further config values, which take precedence."""
    given = _expand_used_spec_values(assigned, {*_iterate_open_paths(program.used_specs)})
    made = replace(program, assignments={**program.assignments, **given})
    _check_assigned_names(made)
    return _select_used_specs(made)
