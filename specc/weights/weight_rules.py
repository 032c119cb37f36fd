"""Weight rules of a spec (tie, load, ignore), and the mapping to tensor names."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Span
from specc.diagnostics.suggest import format_suggestion
from specc.io.safe_read import escape_text
from specc.weights.parameter_names import NamePattern, find_nearest_name
from specc.weights.weight_expressions import Expr, Shape, rename_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredParameter:
    """A parameter of the model. `origin` describes its call and the source of its shape, for
    messages. `config_names` are the config values that determine the axis sizes, or "".
    """

    name: str
    shape: Shape
    dtype: str = "f32"
    span: Span | None = None
    origin: str = ""
    config_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TieRule:
    """The rule `tie name = source`; both names may be patterns with the same placeholders. A rule
    that is `is_from_used_spec` is skipped if the model lacks its names.
    """

    name: str
    source: str
    span: Span | None = None
    is_from_used_spec: bool = False


@dataclass(frozen=True, slots=True)
class LoadRule:
    """The rule `load name = value`; `name` may be a pattern, whose captures fill placeholders in
    names of `value`. A rule that is `is_from_used_spec` is skipped if the model lacks its names.
    """

    name: str
    value: Expr
    span: Span | None = None
    is_from_used_spec: bool = False


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """`ignore pattern`: matching tensors of the checkpoint may remain unused."""

    pattern: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class WeightRules:
    """The rules of a spec's `weights` section, and of the specs that it uses. The weights of these
    are below the paths in `used_spec_paths`.
    """

    ties: tuple[TieRule, ...] = ()
    loads: tuple[LoadRule, ...] = ()
    ignores: tuple[IgnoreRule, ...] = ()
    used_spec_paths: tuple[str, ...] = ()

    def add_prefix(self, path: str) -> "WeightRules":
        """Return the rules with a path prefix, for a spec that is used at this path."""

        def prefix_name(name: str) -> str:
            return f"{path}.{name}" if path else name

        ties = (
            replace(
                r, name=prefix_name(r.name), source=prefix_name(r.source), is_from_used_spec=True
            )
            for r in self.ties
        )
        loads = (
            LoadRule(
                prefix_name(r.name),
                rename_tensors(r.value, prefix_name),
                r.span,
                is_from_used_spec=True,
            )
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
    parameters: Mapping[str, RequiredParameter],
    list_other_parameters: Callable[[], Iterable[RequiredParameter]],
) -> WeightRules:
    """Return the rules about the `parameters` of one graph of a spec.

    Rules about parameters of other graphs are dropped. A rule about parameters of no graph is kept
    and reported later. `list_other_parameters` returns the parameters of the other graphs; it is
    called only for an unknown name.
    """
    rules = _drop_unused_spec_rules(parameters, rules)
    unused = find_unused_loads(parameters, rules)
    if not unused and all(_has_all_parameters(rule, parameters) for rule in rules.ties):
        return rules
    all_parameters = {**{w.name: w for w in list_other_parameters()}, **parameters}
    ties = _expand_ties(rules.ties, parameters, all_parameters)
    # It is an error if no graph of the spec has the name.
    nowhere = find_unused_loads(all_parameters, rules)
    loads = tuple(r for r in rules.loads if r not in unused or r in nowhere)
    return replace(rules, ties=ties, loads=loads)


def _expand_ties(
    rules: Iterable[TieRule],
    parameters: Mapping[str, RequiredParameter],
    all_parameters: Mapping[str, RequiredParameter],
) -> tuple[TieRule, ...]:
    """Expand `tie` rules for parameters that this graph lacks."""
    ties: list[TieRule] = []
    for rule in rules:
        ties += (
            [rule]
            if _has_all_parameters(rule, parameters)
            else _expand_tie(rule, parameters, all_parameters)
        )
    return tuple(ties)


def _drop_unused_spec_rules(
    parameters: Mapping[str, RequiredParameter], rules: WeightRules
) -> WeightRules:
    """Drop rules of used specs about parameters that this graph lacks, e.g. of task heads. They
    were checked with their own spec.
    """
    ties = [r for r in rules.ties if not r.is_from_used_spec]
    for rule in rules.ties:
        if rule.is_from_used_spec:
            ties += _expand_tie(rule, parameters, parameters)
    unused = {id(r) for r in find_unused_loads(parameters, rules) if r.is_from_used_spec}
    loads = tuple(r for r in rules.loads if id(r) not in unused)
    return replace(rules, ties=tuple(ties), loads=loads)


def _map_tied_names(rule: TieRule, names: Iterable[str]) -> dict[str, str]:
    """Map each name that a `tie` rule matches to its source."""
    pattern = NamePattern(rule.name)
    captured = {name: pattern.get_captures(name) for name in names}
    return {n: c.fill_template(rule.source) for n, c in captured.items() if c is not None}


def _has_all_parameters(rule: TieRule, parameters: Mapping[str, RequiredParameter]) -> bool:
    """Return True if a graph has all parameters that a `tie` names."""
    pairs = _map_tied_names(rule, parameters)
    return bool(pairs) and all(source in parameters for source in pairs.values())


def _expand_tie(
    rule: TieRule,
    parameters: Mapping[str, RequiredParameter],
    all_parameters: Mapping[str, RequiredParameter],
) -> list[TieRule]:
    """Expand a `tie` rule for one graph of a spec, and drop names whose source is in another graph.
    A rule whose names are in no graph is returned unchanged.
    """
    pairs = _map_tied_names(rule, all_parameters)
    if not pairs and not rule.is_from_used_spec:
        return [rule]
    for source in pairs.values():
        if source not in all_parameters and not rule.is_from_used_spec:
            _raise_unknown_weight(source, all_parameters, rule.span, "tie")
    return [
        TieRule(name, source, rule.span)
        for name, source in pairs.items()
        if name in parameters and source in parameters
    ]


def find_tied_pairs(
    parameters: Mapping[str, RequiredParameter], rules: WeightRules
) -> dict[str, str]:
    """Map each tied parameter to its untied source. Raise E0510 for an invalid tie."""
    direct = _map_tie_rules(parameters, rules)
    roots = {name: _find_root(name, direct) for name in direct}
    for name, root in roots.items():
        if parameters[name].shape != parameters[root].shape:
            raise_error(
                "E0510",
                f"`{name}` is tied to `{root}` but has a different shape",
                direct[name].span,
                notes=[
                    f"they are {list(parameters[name].shape)} and {list(parameters[root].shape)}"
                ],
                helps=["tied weights must have the same shape; for a transposed copy use `load`"],
            )
    return roots


def _map_tie_rules(
    parameters: Mapping[str, RequiredParameter], rules: WeightRules
) -> dict[str, TieRule]:
    """Map each tied parameter to its rule; the first matching rule applies."""
    direct: dict[str, TieRule] = {}
    for rule in rules.ties:
        pairs = _map_tied_names(rule, parameters)
        fresh = [name for name in pairs if name not in direct]
        if not fresh and rule.name not in direct:
            _raise_unknown_weight(rule.name, parameters, rule.span, "tie")
        direct |= {name: TieRule(name, pairs[name], rule.span) for name in fresh}
    for tie in direct.values():
        if tie.source not in parameters:
            _raise_unknown_weight(tie.source, parameters, tie.span, "tie")
    return direct


def _find_root(name: str, direct: Mapping[str, TieRule]) -> str:
    """Follow a chain of ties to the untied source."""
    seen = [name]
    while seen[-1] in direct:
        seen.append(direct[seen[-1]].source)
        if seen[-1] in seen[:-1]:
            raise_error(
                "E0510",
                f"`{name}` is tied to itself",
                direct[name].span,
                notes=[" = ".join(seen)],
                helps=["remove one of these `tie` rules"],
            )
    return seen[-1]


def find_unused_loads(parameter_names: Iterable[str], rules: WeightRules) -> list[LoadRule]:
    """Return the `load` rules that match no parameter."""
    names = list(parameter_names)
    return [r for r in rules.loads if not any(map(NamePattern(r.name).matches, names))]


def check_loads_used(parameters: Mapping[str, RequiredParameter], rules: WeightRules) -> None:
    """Raise an error if a `load` rule matches no parameter."""
    for rule in find_unused_loads(parameters, rules):
        _raise_unknown_weight(rule.name, parameters, rule.span, "load")


def _raise_unknown_weight(
    name: str, parameters: Mapping[str, RequiredParameter], span: Span | None, rule_kind: str
) -> None:
    close = find_nearest_name(name, parameters)
    otherwise, notes = "`specc show` lists the names of all weights", []
    if not close and "{" in name:
        # a loop with zero iterations creates no weights
        notes = ["no weight matches it; a number of layers in the config may be 0"]
        otherwise = "add a layer, or remove the rule"
    raise_error(
        "E0510",
        f"the model has no weights `{name}`",
        span,
        f"named by this `{rule_kind}`",
        notes=notes,
        helps=[format_suggestion(close) if close else otherwise],
    )


@dataclass(frozen=True, slots=True)
class ParameterNaming:
    """The mapping from declared names to tensor names, which strips `removed_prefix` or adds
    `added_prefix`. `part_namings` maps the path of each used spec to its naming, longest path
    first.
    """

    removed_prefix: str = ""
    added_prefix: str = ""
    part_namings: "tuple[tuple[str, ParameterNaming], ...]" = ()

    def resolve_name(self, declared: str, tensors: Set[str], prefix: str = "") -> str:
        """Return the tensor name of a declared name; `prefix` is the prefix of all names."""
        for path, inner in self.part_namings:
            if declared.startswith(path):
                return path + inner.resolve_name(declared[len(path) :], tensors, prefix + path)
        if self.removed_prefix and declared.startswith(self.removed_prefix):
            return declared[len(self.removed_prefix) :]
        # In a file, a task head is next to the base model and lacks its prefix, so the prefix is
        # added only if the file has the resulting name.
        behind = self.added_prefix + declared
        return behind if self.added_prefix and prefix + behind in tensors else declared

    def list_candidate_names(self, tensor: str) -> tuple[str, ...]:
        """Return the possible spec names of a tensor."""
        for path, inner in self.part_namings:
            if tensor.startswith(path):
                below = inner.list_candidate_names(tensor[len(path) :])
                return tuple(path + spelling for spelling in below)
        if self.removed_prefix:
            return tensor, self.removed_prefix + tensor
        if tensor.startswith(self.added_prefix):
            return tensor, tensor.removeprefix(self.added_prefix)
        return (tensor,)

    def __str__(self) -> str:
        said: list[str] = []
        if self.removed_prefix:
            said.append(f"without the prefix `{escape_text(self.removed_prefix)}`")
        if self.added_prefix:
            said.append(f"with the prefix `{escape_text(self.added_prefix)}`")
        said += [f"under `{escape_text(p)}` {inner}" for p, inner in self.part_namings]
        return ", ".join(said) or "as declared"


def infer_naming(
    names: Iterable[str], tensors: Set[str], path: Path, part_paths: Iterable[str] = ()
) -> ParameterNaming:
    """Infer the naming of a checkpoint, and the naming below each path in `part_paths`, where a
    used spec may have the names of its own checkpoint. Raise E0515 if two namings match the same
    number of names.
    """
    left, there = set(names), set(tensors)
    found: list[tuple[str, ParameterNaming]] = []
    for start in sorted({f"{p}." for p in part_paths}, key=lambda p: (-len(p), p)):
        names = {name for name in left if name.startswith(start)}
        tensors = {name for name in there if name.startswith(start)}
        # If the file has no names below the path, they may be below a common prefix.
        if not names or not tensors:
            continue
        left, there = left - names, there - tensors
        cut = len(start)
        inner = _infer_one_naming({n[cut:] for n in names}, {t[cut:] for t in tensors}, path)
        if inner != ParameterNaming():
            found.append((start, inner))
    return replace(_infer_one_naming(left, there, path), part_namings=tuple(found))


def _infer_one_naming(names: Set[str], tensors: Set[str], path: Path) -> ParameterNaming:
    """Infer the naming of one spec's parameters."""
    plain = len(names & tensors)
    if plain == len(names):
        return ParameterNaming()

    def resolve_names(naming: ParameterNaming) -> frozenset[str]:
        return frozenset(naming.resolve_name(declared, tensors) for declared in names)

    candidates = [
        naming
        for naming in _list_candidates(names, tensors)
        # a prefix belongs to a base model, not to a task head next to a base model without a prefix
        if not naming.added_prefix
        or sum(naming.added_prefix + n in tensors for n in names - tensors) > plain
    ]
    found = {naming: len(resolve_names(naming) & tensors) for naming in candidates}
    best = max(found.values(), default=0)
    if best <= plain or 2 * best < len(names):  # ignores a few coincidental matches
        return ParameterNaming()
    winners = sorted(
        (n for n in found if found[n] == best), key=lambda n: (n.removed_prefix, n.added_prefix)
    )
    # Several namings may match the same tensors; any of them is correct.
    if len(set(map(resolve_names, winners))) > 1:
        raise_error(
            "E0515",
            f"`{escape_text(path)}` contains the weights under several prefixes",
            notes=[f"{best} of {len(names)} names match {n}" for n in winners[:6]],
            helps=[
                "select one: add the prefix to the spec's names with `under`, and `ignore` the "
                "others"
            ],
        )
    return winners[0]


def _list_candidates(names: Set[str], tensors: Set[str]) -> list[ParameterNaming]:
    """Return the namings that match at least one additional name, most frequent prefix first."""
    counts: Counter[ParameterNaming] = Counter()
    for longer, others in ((names, tensors), (tensors, names)):
        for name in longer:
            # prefixes that end at one of the first four dots
            for dot in islice(re.finditer(r"\.", name), 4):
                prefix = name[: dot.end()]
                naming = ParameterNaming(removed_prefix=prefix)
                if longer is tensors:
                    naming = ParameterNaming(added_prefix=prefix)
                counts[naming] += name[dot.end() :] in others
    # makes the order of equally frequent prefixes independent of the set order
    ordered = sorted(+counts, key=lambda n: (-counts[n], n.removed_prefix, n.added_prefix))
    return ordered[:16]
