"""Report unused names and config fields (W0202), and useless `share` rules (E0527, W0505)."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from specc.diagnostics.diagnostic import Diagnostic, Label, Span, SpeccError
from specc.diagnostics.suggest import format_suggestion, suggest_similar_name
from specc.frontend.spec_inheritance_and_config_overrides import iterate_config_entries
from specc.frontend.spec_modules import Program, collect_fields_by_path
from specc.frontend.symbolic_check import check_spec_symbolically
from specc.ir.model_definition import ModelDefinition
from specc.syntax import ast
from specc.syntax.ast import walk_tree
from specc.syntax.inputs_section import iterate_declared_inputs
from specc.weights.parameter_name_patterns import NamePattern, find_nearest_name

UsableItem: TypeAlias = ast.Block | ast.AttentionDef
"""An item (block or definition) that other items can use by name."""

PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
DOTTED_NAME = re.compile(r"[A-Za-z_][\w.]*")


def find_unused_names(program: Program) -> list[Diagnostic]:
    """Return W0202 for each unused name that is defined by a spec or its base specs, except
    built-in specs.

    Some names are always considered used: names that begin with `_`, padding masks of graphs, and
    inputs that are the only source of a used dimension.
    """
    user_files = {id(module.file) for module in program.chain if not module.is_builtin}
    if not user_files:
        return []
    warnings = find_unused_names_in_files([m.file for m in program.chain], EXPORT_FIELDS)
    return [d for file, d in warnings if id(file) in user_files]


EXPORT_FIELDS = frozenset({"context"})
"""The config fields that `specc export` reads by name."""


def find_unused_names_in_files(
    files: Sequence[ast.File], external_names: Iterable[str]
) -> list[tuple[ast.File, Diagnostic]]:
    """Return (file, W0202) for each unused name in a chain of files that extend each other.

    `external_names` are names that are used outside `files`.
    """
    items = {item.name: item for file in files for item in _list_items(file)}
    names_by_item = {name: analyze_name_usage(item) for name, item in items.items()}
    sections = (i for file in files for i in file.items if not isinstance(i, UsableItem))
    section_names = set(external_names) | collect_used_names(*sections)
    used_names = section_names.union(*(names.free_names for names in names_by_item.values()))
    unused_items = items.keys() - _find_reachable_items(items, names_by_item, section_names)
    file_warnings: list[tuple[ast.File, Diagnostic]] = []
    for file in files:
        warnings = [*_find_unused_fields(file, used_names), *_find_unused_inputs(file)]
        for item in _list_items(file):
            if item.name not in unused_items:
                warnings += names_by_item[item.name].unused_warnings
            elif item.name[0] != "_":
                name, description = item.name, f"{item.kind} `{item.name}`"
                remedy = "remove it; definitions for other specs belong in a file without a graph"
                warnings.append(
                    make_unused_warning(description, name, item.name_span, used_names, remedy)
                )
        warnings.sort(key=lambda d: d.primary.span.start if d.primary else 0)
        file_warnings += [(file, d) for d in warnings]
    return file_warnings


def _list_items(file: ast.File) -> list[UsableItem]:
    return [i for i in file.items if isinstance(i, UsableItem)]


def collect_used_names(*nodes: ast.Node | None) -> set[str]:
    """Return the dotted names in syntax trees, including names in placeholders of strings."""
    names: set[str] = set()
    for node in nodes:
        for inner in walk_tree(node) if node else ():
            match inner:
                case ast.Name(path=path):
                    names.add(path)
                case ast.StringLiteral(value=text) | ast.WeightPath(text=text):
                    for placeholder in PLACEHOLDER.findall(text):
                        names.update(DOTTED_NAME.findall(placeholder))
    return names


def _remove_names(paths: Iterable[str], names: Iterable[str]) -> set[str]:
    """Return the paths whose first component is not in `names`."""
    excluded_names = set(names)
    return {p for p in paths if p.partition(".")[0] not in excluded_names}


def _is_read(name: str, paths: Iterable[str]) -> bool:
    """Return True if `name` starts with `_` or is the first component of a path."""
    return name[0] == "_" or any(p.partition(".")[0] == name for p in paths)


@dataclass(frozen=True, slots=True)
class NameUsage:
    """The name usage of a block or definition. `free_names` are names that are defined outside the
    item. `unused_warnings` are the warnings for unused names.
    """

    free_names: set[str]
    unused_warnings: list[Diagnostic]


def analyze_name_usage(item: UsableItem) -> NameUsage:
    """Return the outer names that an item uses, and W0202 for each unused name of the item."""
    params = item.params or ()
    warnings: list[Diagnostic] = []
    if isinstance(item, ast.AttentionDef):
        body_names = collect_used_names(item.value)
    else:
        values = LivenessAnalysis(item)
        body_names = values.find_live_names(item.body, set())
        body_names |= collect_used_names(*item.where, *(r.type for r in item.results))
        warnings += values.unused_warnings.values()
    default_names = collect_used_names(*(p.default for p in params))
    type_names = collect_used_names(*(p.type for p in params))
    warnings += _find_unused_parameters(item, body_names, default_names)
    names = body_names | type_names | default_names
    return NameUsage(_remove_names(names, (p.name for p in params)), warnings)


def _find_unused_parameters(
    item: UsableItem, body_names: set[str], default_names: set[str]
) -> Iterator[Diagnostic]:
    """Yield W0202 for each parameter that is used neither by the body nor by another parameter."""
    params = item.params or ()
    names = {p.name for p in params}
    is_graph = isinstance(item, ast.Block) and item.kind == "graph"
    for param in params:
        other_types = collect_used_names(*(p.type for p in params if p is not param))
        # `x: float[batch, n]` may be used only for the dimension `n`
        lengths = (collect_used_names(param.type) & body_names) - other_types - names
        is_mask = is_graph and _is_padding_mask(param)
        if is_mask or lengths or _is_read(param.name, body_names | default_names | other_types):
            continue
        description = f"{'input' if is_graph else 'parameter'} `{param.name}` of `{item.name}`"
        remedy = "use it or remove it" if is_graph else f"remove it, or call it `_{param.name}`"
        yield make_unused_warning(description, param.name, param.span, body_names - names, remedy)


def _is_padding_mask(param: ast.BlockParameter | ast.DefinitionParameter) -> bool:
    """Return True if a parameter is a padding mask, which is always considered used."""
    return param.type is not None and param.type.name == "keep"


@dataclass
class LivenessAnalysis:
    """Liveness analysis of the values that a block assigns.

    `unused_warnings` contains a warning for each assignment whose value no later statement uses, by
    the span of the assigned name.
    """

    block: ast.Block
    unused_warnings: dict[Span | None, Diagnostic] = field(default_factory=dict)

    def find_live_names(self, body: Sequence[ast.Statement], live: set[str]) -> set[str]:
        """Return the names that are live before `body`, given the `live` names after `body`."""
        for statement in reversed(body):
            live = self._visit_statement(statement, live)
        return live

    def _visit_statement(self, statement: ast.Statement, live: set[str]) -> set[str]:
        match statement:
            case ast.Assignment():
                return self._visit_assignment(statement, live)
            case ast.ReturnStatement(values=values):
                return collect_used_names(*values)
            case ast.RequireStatement(condition=condition):
                return live | collect_used_names(condition)
            case ast.WhenStatement(condition=condition):
                body_live = self.find_live_names(statement.body, live)
                otherwise_live = self.find_live_names(statement.otherwise, live)
                return body_live | otherwise_live | collect_used_names(condition)
            case ast.RepeatLoop():
                return self._visit_repeat(statement, live)
            case ast.ScanLoop():
                return self._visit_scan(statement, live)

    def _visit_assignment(self, statement: ast.Assignment, live: set[str]) -> set[str]:
        used_names = collect_used_names(statement.value, *(t.type for t in statement.targets))
        for target in statement.targets:
            if _is_read(target.name, live):
                self.unused_warnings.pop(target.span, None)
                continue
            suggestion = self._suggest_reading(target.name, statement, live)
            self.unused_warnings[target.span] = make_unused_warning(
                f"value `{target.name}` of `{self.block.name}`",
                target.name,
                target.span,
                live | used_names,
                f"{suggestion}remove it, or assign it to `_`",
            )
        return _remove_names(live, (t.name for t in statement.targets)) | used_names

    def _suggest_reading(self, name: str, statement: ast.Assignment, live: set[str]) -> str:
        """If a later statement uses the first operand of `statement`, suggest `name` in its place,
        otherwise return "".
        """
        params = {p.name for p in self.block.params or ()}
        targets = {n.name for n in walk_tree(self.block) if isinstance(n, ast.AssignmentTarget)}
        names = (n.path for n in walk_tree(statement.value) if isinstance(n, ast.Name))
        operand = next((n for n in names if n in params | targets), "")
        return f"use `{name}` instead of `{operand}` below, " if operand in live else ""

    def _visit_repeat(self, statement: ast.RepeatLoop, live: set[str]) -> set[str]:
        live_at_end = live | set(statement.collect)
        # an iteration may read values that the previous iteration assigned
        first_pass = self.find_live_names(statement.body, live_at_end)
        live_at_start = self.find_live_names(statement.body, live_at_end | first_pass)
        live_outside = _remove_names(live, statement.collect)
        header = collect_used_names(statement.iterable, statement.under)
        return _remove_names(live_at_start, [statement.variable]) | live_outside | header

    def _visit_scan(self, statement: ast.ScanLoop, live: set[str]) -> set[str]:
        results = {*statement.carry, *statement.collect}
        live_at_start = self.find_live_names(
            statement.body, results | collect_used_names(statement.until)
        )
        header = collect_used_names(*statement.sequences, statement.along, statement.keep)
        return (
            _remove_names(live_at_start, statement.variables)
            | _remove_names(live, results)
            | set(statement.carry)
            | header
        )


def _find_reachable_items(
    items: dict[str, UsableItem], names_by_item: dict[str, NameUsage], section_names: set[str]
) -> set[str]:
    """Return the items that graphs and other sections use, directly or through other items."""
    graphs = [n for n, i in items.items() if isinstance(i, ast.Block) and i.kind == "graph"]
    roots = {p.partition(".")[0] for p in section_names}
    # all items of a file without a graph are considered used, because other files may use them
    stack = [*graphs, *(roots & items.keys())] if graphs else [*items]
    reachable: set[str] = set()
    while stack:
        name = stack.pop()
        if name not in reachable:
            reachable.add(name)
            stack += {p.partition(".")[0] for p in names_by_item[name].free_names} & items.keys()
    return reachable


def _find_unused_fields(file: ast.File, used_names: set[str]) -> Iterator[Diagnostic]:
    """Yield W0202 for each config field of `file` that is not read."""
    used_paths = {p.removeprefix("config.") for p in used_names}
    fields = collect_fields_by_path(iterate_config_entries(file, ast.ConfigField))
    for path, entry in fields.items():
        if entry.type.fields or entry.name.startswith("_") or _is_field_read(path, used_paths):
            continue
        remedy = f"remove it{_suggest_ignoring_keys(entry)}"
        description = f"config field `{path}`"
        yield make_unused_warning(description, entry.name, entry.span, used_paths, remedy)


def _find_unused_inputs(file: ast.File) -> Iterator[Diagnostic]:
    """Yield W0202 for each input in `inputs` of a spec that no graph of the spec has."""
    params = [node for node in walk_tree(file) if isinstance(node, ast.BlockParameter)]
    used_names = {p.name for p in params if p.is_from_inputs}
    for entry in iterate_declared_inputs(file):
        # a derived spec declares inputs of its base spec's graphs
        if not (file.extends or _is_read(entry.name, used_names)):
            yield make_unused_warning(
                f"input `{entry.name}` of `inputs`",
                entry.name,
                entry.span,
                (p.name for p in params),
                "remove it, or write its name without a type in the inputs of a graph",
            )


def _suggest_ignoring_keys(entry: ast.ConfigField) -> str:
    keys = [f'"{s.value}"' for s in entry.sources if isinstance(s, ast.StringLiteral)]
    return f"; if the key does not change results, write `ignore {', '.join(keys)}`" if keys else ""


def _is_field_read(path: str, used: set[str]) -> bool:
    """Return True if a config field, an enclosing record, or a member of the field is read."""
    parts = path.split(".")
    records = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return bool(records & used) or any(p.startswith(f"{path}.") for p in used)


def make_unused_warning(
    description: str, name: str, span: Span | None, candidates: Iterable[str], remedy: str
) -> Diagnostic:
    """Return W0202 with the help message `remedy`, and suggest a similar name in `candidates`."""
    helps = (*suggest_similar_name(name, sorted(set(candidates) - {name})), remedy)
    return Diagnostic(
        "W0202",
        f"{description} is never used",
        Label.from_span(span, "unused"),
        helps=helps,
        severity="warning",
    )


def check_weight_sharing_rules(
    program: Program, models: Sequence[ModelDefinition]
) -> list[Diagnostic]:
    """Return E0527 for each `share` rule whose path matches no weights of any graph. Return W0505
    for each `share` rule whose weights are used by only one call.

    `models` are the trials of one graph. Other graphs are elaborated only if needed.
    """
    useless_rules = _find_useless_rules(_list_share_rules(program), models)
    all_models = list(models)
    other_models = _iterate_other_graphs(program, models[0].graph.name)
    # stop when every rule has had an effect, because elaborating a graph is slow
    while useless_rules and (new_models := next(other_models, None)) is not None:
        all_models += new_models
        useless_rules = _find_useless_rules(useless_rules, new_models)
    # skip rules whose condition was false in all trials
    paths = {path for model in all_models for path in model.shared_scopes}
    return [_explain_useless_rule(r, all_models) for r in useless_rules if r.name.text in paths]


def _list_share_rules(program: Program) -> list[ast.WeightSharingRule]:
    """Return the `share` rules of a spec."""
    return [
        rule
        for item, _ in program.iterate_items(ast.WeightsSection)
        for rule in item.rules
        if isinstance(rule, ast.WeightSharingRule)
    ]


def _find_useless_rules(
    rules: Iterable[ast.WeightSharingRule], models: Sequence[ModelDefinition]
) -> list[ast.WeightSharingRule]:
    """Return the `share` rules that have no effect in any model."""
    return [r for r in rules if not any(m.shared_scopes.get(r.name.text) for m in models)]


def _iterate_other_graphs(
    program: Program, elaborated_graph: str
) -> Iterator[list[ModelDefinition]]:
    """Yield the trials of the spec's other graphs, omitting graphs with errors."""
    for item in program.module.items.values():
        if isinstance(item, ast.Block) and item.kind == "graph" and item.name != elaborated_graph:
            with suppress(SpeccError):
                trials = check_spec_symbolically(program, item.name)
                yield [t.model for t in trials]


def _explain_useless_rule(
    rule: ast.WeightSharingRule, models: Iterable[ModelDefinition]
) -> Diagnostic:
    """Return W0505 for a `share` rule without effect, or E0527 if it matches no weights."""
    path = rule.name.text
    label = Label.from_span(rule.span, "named by this `share`")
    # list the paths of all weights and their parents, such as `a.b.c`, `a.b` and `a`
    names = {
        ".".join(parts[:n]): None
        for parts in (name.split(".") for m in models for name in m.graph.parameters)
        for n in range(len(parts), 0, -1)
    }
    if any(map(NamePattern(path).matches, names)):
        help_ = "remove it, or give both calls this name with `@`"
        return Diagnostic(
            "W0505", f"no two calls share `{path}`", label, helps=(help_,), severity="warning"
        )
    similar = find_nearest_name(path, names)
    hint = format_suggestion(similar) if similar else "`specc show` lists the names of all weights"
    return Diagnostic("E0527", f"no weights are named `{path}`", label, helps=(hint,))
