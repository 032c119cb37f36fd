"""Apply a spec's weight rules (tie, load, ignore), and infer the tensor names of parameters."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NoReturn, TypeAlias

from specc.diagnostics.diagnostic import Span, raise_error
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.suggest import format_suggestion
from specc.io.safe_read import escape_text
from specc.weights.parameter_name_patterns import NamePattern, find_nearest_name
from specc.weights.weight_expressions import Expr, Shape, rename_tensors


@immutable_dataclass(slots=True, kw_only=True)
class ModelParameter:
    """A parameter of the model. `origin` describes, for messages, the call that declares the
    parameter and where its shape comes from. `config_names` are the config values that determine
    the axis sizes, or "".
    """

    name: str
    shape: Shape
    dtype: str = "f32"
    span: Span | None = None
    origin: str = ""
    config_names: tuple[str, ...] = ()


ParameterMap: TypeAlias = Mapping[str, ModelParameter]
"""The parameters of a model by name."""


@immutable_dataclass
class WeightTyingRule:
    """The rule `tie name = source`. `name` and `source` may be patterns with equal placeholders. A
    rule of a used spec (`is_from_used_spec`) is skipped if the model lacks the named parameters.
    """

    name: str
    source: str
    span: Span | None = None
    is_from_used_spec: bool = False


@immutable_dataclass
class LoadRule:
    """The rule `load name = value`. `name` may be a pattern, whose captures fill the placeholders
    in `value`. A rule of a used spec (`is_from_used_spec`) is skipped if the model lacks the named
    parameters.
    """

    name: str
    value: Expr
    span: Span | None = None
    is_from_used_spec: bool = False


@immutable_dataclass
class IgnoreRule:
    """The rule `ignore pattern`: checkpoint tensors that match may remain unused."""

    pattern: str
    span: Span | None = None


@immutable_dataclass
class WeightRules:
    """The rules in the `weights` sections of a spec and of the specs that it uses. The weight names
    of a used spec have one of `used_spec_paths` as prefix.
    """

    ties: tuple[WeightTyingRule, ...] = ()
    loads: tuple[LoadRule, ...] = ()
    ignores: tuple[IgnoreRule, ...] = ()
    used_spec_paths: tuple[str, ...] = ()

    def add_prefix(self, path: str) -> "WeightRules":
        """Return the rules of a spec that is used at `path`, with the path prepended to names."""

        def prefix_name(name: str) -> str:
            return f"{path}.{name}" if path else name

        ties = (
            WeightTyingRule(prefix_name(r.name), prefix_name(r.source), r.span, True)
            for r in self.ties
        )
        loads = (
            LoadRule(prefix_name(r.name), rename_tensors(r.value, prefix_name), r.span, True)
            for r in self.loads
        )
        ignores = (IgnoreRule(prefix_name(r.pattern), r.span) for r in self.ignores)
        return WeightRules(tuple(ties), tuple(loads), tuple(ignores), (path,) if path else ())

    def add_fallback_rules(self, fallback_rules: "WeightRules") -> "WeightRules":
        """Return these rules, followed by `fallback_rules`."""
        return WeightRules(
            self.ties + fallback_rules.ties,
            self.loads + fallback_rules.loads,
            self.ignores + fallback_rules.ignores,
            self.used_spec_paths + fallback_rules.used_spec_paths,
        )


def select_graph_rules(
    rules: WeightRules,
    parameters: ParameterMap,
    list_other_parameters: Callable[[], Iterable[ModelParameter]],
) -> WeightRules:
    """Return the rules for the `parameters` of one graph of a spec.

    Rules for parameters of other graphs are dropped. A rule that matches no graph is kept and
    reported later. `list_other_parameters` returns the parameters of the other graphs and is called
    only if a rule matches no parameter.
    """
    rules = _drop_unused_spec_rules(parameters, rules)
    unused = find_unused_load_rules(parameters, rules)
    if not unused and all(_has_all_parameters(rule, parameters) for rule in rules.ties):
        return rules
    all_parameters = {**{w.name: w for w in list_other_parameters()}, **parameters}
    # a rule that also names other graphs' parameters becomes one rule per tied pair in this graph
    ties: list[WeightTyingRule] = []
    for rule in rules.ties:
        is_complete = _has_all_parameters(rule, parameters)
        ties += [rule] if is_complete else _expand_tie(rule, parameters, all_parameters)
    # A rule whose name is in no graph of the spec is an error, so it is kept.
    unknown_rules = find_unused_load_rules(all_parameters, rules)
    loads = tuple(r for r in rules.loads if r not in unused or r in unknown_rules)
    return replace(rules, ties=tuple(ties), loads=loads)


def _drop_unused_spec_rules(parameters: ParameterMap, rules: WeightRules) -> WeightRules:
    """Drop rules of used specs whose parameters the graph lacks, e.g. of task heads. The names in
    the dropped rules were already checked with the used spec.
    """
    ties = [r for r in rules.ties if not r.is_from_used_spec]
    for rule in rules.ties:
        if rule.is_from_used_spec:
            ties += _expand_tie(rule, parameters, parameters)
    unused = {id(r) for r in find_unused_load_rules(parameters, rules) if r.is_from_used_spec}
    loads = tuple(r for r in rules.loads if id(r) not in unused)
    return replace(rules, ties=tuple(ties), loads=loads)


def _map_tied_names(rule: WeightTyingRule, names: Iterable[str]) -> dict[str, str]:
    """Map each name that a `tie` rule matches to the source that it is tied to."""
    pattern = NamePattern(rule.name)
    captured = {name: pattern.get_captures(name) for name in names}
    return {n: c.fill_template(rule.source) for n, c in captured.items() if c is not None}


def _has_all_parameters(rule: WeightTyingRule, parameters: ParameterMap) -> bool:
    """Return True if `parameters` contains all names of a `tie` rule."""
    pairs = _map_tied_names(rule, parameters)
    return bool(pairs) and all(source in parameters for source in pairs.values())


def _expand_tie(
    rule: WeightTyingRule, parameters: ParameterMap, all_parameters: ParameterMap
) -> list[WeightTyingRule]:
    """Return one `tie` rule per tied pair whose parameters are both in one graph. A rule whose
    names are in no graph is returned unchanged. Raise E0510 if a source is in no graph.
    """
    pairs = _map_tied_names(rule, all_parameters)
    if not pairs and not rule.is_from_used_spec:
        return [rule]
    for source in pairs.values():
        if source not in all_parameters and not rule.is_from_used_spec:
            _raise_unknown_weight(source, all_parameters, rule.span, "tie")
    return [
        WeightTyingRule(name, source, rule.span)
        for name, source in pairs.items()
        if name in parameters and source in parameters
    ]


def resolve_ties(parameters: ParameterMap, rules: WeightRules) -> dict[str, str]:
    """Map each tied parameter to its untied source. Raise E0510 if a tie is invalid."""
    rule_by_name = _map_tie_rules(parameters, rules)
    roots = {name: _find_root(name, rule_by_name) for name in rule_by_name}
    for name, root in roots.items():
        if parameters[name].shape != parameters[root].shape:
            raise_error(
                "E0510",
                f"`{name}` is tied to `{root}` but has a different shape",
                rule_by_name[name].span,
                notes=[
                    f"they are {list(parameters[name].shape)} and {list(parameters[root].shape)}"
                ],
                helps=["tied weights must have the same shape; for a transposed copy use `load`"],
            )
    return roots


def _map_tie_rules(parameters: ParameterMap, rules: WeightRules) -> dict[str, WeightTyingRule]:
    """Map each parameter to its first matching `tie` rule. Raise E0510 for an unknown name."""
    rule_by_name: dict[str, WeightTyingRule] = {}
    for rule in rules.ties:
        pairs = _map_tied_names(rule, parameters)
        new_names = [name for name in pairs if name not in rule_by_name]
        if not new_names and rule.name not in rule_by_name:
            _raise_unknown_weight(rule.name, parameters, rule.span, "tie")
        rule_by_name |= {name: WeightTyingRule(name, pairs[name], rule.span) for name in new_names}
    for tie in rule_by_name.values():
        if tie.source not in parameters:
            _raise_unknown_weight(tie.source, parameters, tie.span, "tie")
    return rule_by_name


def _find_root(name: str, rule_by_name: Mapping[str, WeightTyingRule]) -> str:
    """Return the last parameter in a chain of ties. Raise E0510 if the chain is a cycle."""
    chain = [name]
    while chain[-1] in rule_by_name:
        chain.append(rule_by_name[chain[-1]].source)
        if chain[-1] in chain[:-1]:
            raise_error(
                "E0510",
                f"`{name}` is tied to itself",
                rule_by_name[name].span,
                notes=[" = ".join(chain)],
                helps=["remove one of these `tie` rules"],
            )
    return chain[-1]


def find_unused_load_rules(parameter_names: Iterable[str], rules: WeightRules) -> list[LoadRule]:
    """Return the `load` rules that match no parameter."""
    names = list(parameter_names)
    return [r for r in rules.loads if not any(map(NamePattern(r.name).matches, names))]


def check_load_rules_used(parameters: ParameterMap, rules: WeightRules) -> None:
    """Raise an error if a `load` rule matches no parameter."""
    for rule in find_unused_load_rules(parameters, rules):
        _raise_unknown_weight(rule.name, parameters, rule.span, "load")


def _raise_unknown_weight(
    name: str, parameters: ParameterMap, span: Span | None, rule_kind: str
) -> NoReturn:
    nearest_name = find_nearest_name(name, parameters)
    help_text, notes = "`specc show` lists the names of all weights", []
    if "*" in name or (not nearest_name and "{" in name):
        # a loop with zero iterations creates no weights
        notes = ["no weight matches it; a number of layers in the config may be 0"]
        help_text = "add a layer, or remove the rule"
    raise_error(
        "E0510",
        f"the model has no weights `{name}`",
        span,
        f"named by this `{rule_kind}`",
        notes=notes,
        helps=[format_suggestion(nearest_name) if nearest_name else help_text],
    )


@immutable_dataclass
class ParameterNaming:
    """The mapping from parameter names to tensor names, which strips `removed_prefix` or adds
    `added_prefix`. `part_namings` maps the path of each used spec to its naming, longest path
    first.
    """

    removed_prefix: str = ""
    added_prefix: str = ""
    part_namings: "tuple[tuple[str, ParameterNaming], ...]" = ()

    def resolve_name(self, declared: str, tensors: Set[str], prefix: str = "") -> str:
        """Return the tensor name of the parameter `declared`. If `declared` is the name in a used
        spec, `prefix` is the path of this spec. `tensors` are the full tensor names in the file.
        """
        for path, inner in self.part_namings:
            if declared.startswith(path):
                return path + inner.resolve_name(declared[len(path) :], tensors, prefix + path)
        if self.removed_prefix and declared.startswith(self.removed_prefix):
            stripped = declared[len(self.removed_prefix) :]
            is_kept = {prefix + declared, prefix + stripped} & tensors == {prefix + declared}
            # in some files, only some tensor names have the prefix
            return declared if is_kept else stripped
        # In a file, a task head is a sibling of the base model and lacks its prefix, so the prefix
        # is added only if the file has the resulting name.
        prefixed = self.added_prefix + declared
        return prefixed if self.added_prefix and prefix + prefixed in tensors else declared

    def list_candidate_names(self, tensor: str) -> tuple[str, ...]:
        """Return the parameter names that a tensor name may correspond to."""
        for path, inner in self.part_namings:
            if tensor.startswith(path):
                return tuple(path + n for n in inner.list_candidate_names(tensor[len(path) :]))
        if self.removed_prefix:
            return tensor, self.removed_prefix + tensor
        if tensor.startswith(self.added_prefix):
            return tensor, tensor.removeprefix(self.added_prefix)
        return (tensor,)

    def __str__(self) -> str:
        parts: list[str] = []
        if self.removed_prefix:
            parts.append(f"without the prefix `{escape_text(self.removed_prefix)}`")
        if self.added_prefix:
            parts.append(f"with the prefix `{escape_text(self.added_prefix)}`")
        parts += [f"under `{escape_text(p)}` {inner}" for p, inner in self.part_namings]
        return ", ".join(parts) or "as declared"


def infer_naming(
    names: Iterable[str], tensors: Set[str], path: Path, part_paths: Iterable[str] = ()
) -> ParameterNaming:
    """Infer the naming of a checkpoint. The naming below each path in `part_paths` is inferred
    separately, because a used spec may have the names of its own checkpoint. Raise E0515 if two
    namings match the same number of names.
    """
    remaining_names, remaining_tensors = set(names), set(tensors)
    part_namings: list[tuple[str, ParameterNaming]] = []
    for prefix in sorted({f"{p}." for p in part_paths}, key=lambda p: (-len(p), p)):
        names = {name for name in remaining_names if name.startswith(prefix)}
        tensors = {name for name in remaining_tensors if name.startswith(prefix)}
        # If the file has no names below the path, the whole model may be below a common prefix.
        if not names or not tensors:
            continue
        remaining_names, remaining_tensors = remaining_names - names, remaining_tensors - tensors
        suffixes = [{name.removeprefix(prefix) for name in group} for group in (names, tensors)]
        naming = _infer_one_naming(suffixes[0], suffixes[1], path)
        if naming != ParameterNaming():
            part_namings.append((prefix, naming))
    naming = _infer_one_naming(remaining_names, remaining_tensors, path)
    return replace(naming, part_namings=tuple(part_namings))


def _infer_one_naming(names: Set[str], tensors: Set[str], path: Path) -> ParameterNaming:
    """Infer the naming of the parameters `names` of one spec, without its used specs."""
    plain_count = len(names & tensors)
    if plain_count == len(names):
        return ParameterNaming()

    def resolve_names(naming: ParameterNaming) -> frozenset[str]:
        return frozenset(naming.resolve_name(declared, tensors) for declared in names)

    candidates = [
        naming
        for naming in _list_candidates(names, tensors)
        # next to a task head, the base model may have no prefix, so a prefix must match more names
        if not naming.added_prefix
        or sum(naming.added_prefix + n in tensors for n in names - tensors) > plain_count
    ]
    match_counts = {naming: len(resolve_names(naming) & tensors) for naming in candidates}
    best_count = max(match_counts.values(), default=0)
    # ignore a naming that matches a few names by coincidence
    if best_count <= plain_count or 2 * best_count < len(names):
        return ParameterNaming()
    best_namings = [naming for naming, count in match_counts.items() if count == best_count]
    best_namings.sort(key=lambda n: (n.removed_prefix, n.added_prefix))
    # If several namings resolve to the same tensors, any of them is correct.
    if len(set(map(resolve_names, best_namings))) > 1:
        raise_error(
            "E0515",
            f"`{escape_text(path)}` contains the weights under several prefixes",
            notes=[f"{best_count} of {len(names)} names match {n}" for n in best_namings[:6]],
            helps=[
                "select one: add the prefix to the spec's names with `under`, and `ignore` the "
                "others"
            ],
        )
    return best_namings[0]


def _list_candidates(names: Set[str], tensors: Set[str]) -> list[ParameterNaming]:
    """Return namings with a prefix that match at least one tensor, sorted by decreasing number of
    matches.
    """
    counts: Counter[ParameterNaming] = Counter()
    for longer, shorter in ((names, tensors), (tensors, names)):
        for name in longer:
            # try prefixes that end at one of the first four dots
            for dot in islice(re.finditer(r"\.", name), 4):
                prefix = name[: dot.end()]
                naming = ParameterNaming(removed_prefix=prefix)
                if longer is tensors:
                    naming = ParameterNaming(added_prefix=prefix)
                counts[naming] += name[dot.end() :] in shorter
    # sort by name, so that the result does not depend on the iteration order of sets
    ordered = sorted(+counts, key=lambda n: (-counts[n], n.removed_prefix, n.added_prefix))
    return ordered[:16]
