"""Apply a spec's weight rules (tie, load, ignore), and parse initializers like `normal(0.02)`."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeAlias

from specc.diagnostics.diagnostic import Span, raise_error
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.suggest import format_suggestion
from specc.weights.parameter_name_patterns import NamePattern, find_nearest_name
from specc.weights.weight_expressions import Expr, Shape, rename_tensors


@immutable_dataclass(slots=True, kw_only=True)
class ModelParameter:
    """A parameter of the model. `origin` describes, for messages, the call that declares the
    parameter and the source of its shape. `config_names` contains, for each axis, the config value
    that determines the axis size, or "". `find_config_keys` returns the keys of config.json that
    determine the size of an axis of a parameter, such as "`hidden_size`".
    """

    name: str
    shape: Shape
    dtype: str = "f32"
    span: Span | None = None
    origin: str = ""
    config_names: tuple[str, ...] = ()
    find_config_keys: Callable[[str, int], str] | None = field(
        default=None, compare=False, repr=False
    )


ParameterMap: TypeAlias = Mapping[str, ModelParameter]
"""The parameters of a model, keyed by name."""


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
    """The rule `load name = value`. `name` may be a pattern. The captures of the pattern replace
    the placeholders in `value`. A rule of a used spec (`is_from_used_spec`) is skipped if the model
    lacks the named parameters.
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
        """Return the combined rules, in which `fallback_rules` come last."""
        return WeightRules(
            self.ties + fallback_rules.ties,
            self.loads + fallback_rules.loads,
            self.ignores + fallback_rules.ignores,
            self.used_spec_paths + fallback_rules.used_spec_paths,
        )


def select_graph_weight_rules(
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
    # a rule that matches parameters of other graphs becomes one rule per tied pair in this graph
    ties: list[WeightTyingRule] = []
    for rule in rules.ties:
        is_complete = _has_all_parameters(rule, parameters)
        ties += [rule] if is_complete else _expand_tie(rule, parameters, all_parameters)
    # A rule whose name is in no graph of the spec is kept, because it is reported as an error
    # later.
    unknown_rules = find_unused_load_rules(all_parameters, rules)
    loads = tuple(r for r in rules.loads if r not in unused or r in unknown_rules)
    return replace(rules, ties=tuple(ties), loads=loads)


def _drop_unused_spec_rules(parameters: ParameterMap, rules: WeightRules) -> WeightRules:
    """Drop rules of used specs whose parameters the graph lacks, e.g. the parameters of task heads.
    The names in the dropped rules were already checked with the used spec.
    """
    ties = [r for r in rules.ties if not r.is_from_used_spec]
    for rule in rules.ties:
        if rule.is_from_used_spec:
            ties += _expand_tie(rule, parameters, parameters)
    unused = {id(r) for r in find_unused_load_rules(parameters, rules) if r.is_from_used_spec}
    loads = tuple(r for r in rules.loads if id(r) not in unused)
    return replace(rules, ties=tuple(ties), loads=loads)


def _map_tied_names(rule: WeightTyingRule, names: Iterable[str]) -> dict[str, str]:
    """Map each name that matches a `tie` rule to the source that the name is tied to."""
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
    """Return one `tie` rule for each tied pair of parameters that are both in this graph. A rule
    whose names are in no graph is returned unchanged. Raise E0510 if a source is in no graph.
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


def resolve_weight_ties(parameters: ParameterMap, rules: WeightRules) -> dict[str, str]:
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
    """Map each parameter to its first matching `tie` rule. Raise E0510 if a name is unknown."""
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


def reject_unused_load_rules(parameters: ParameterMap, rules: WeightRules) -> None:
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


@dataclass(frozen=True, slots=True)
class Initializer:
    """A parameter initializer. `zeros`, `ones` and `constant` set every element to 0, 1 or `value`.
    `normal` samples with mean 0 and standard deviation `value`. `uniform` samples uniformly within
    ±`value`. `fan_in` samples uniformly within ±value * sqrt(3 / fan_in): the output of a linear
    layer has variance value².

    LeCun et al. 1998, "Efficient BackProp", section 4.6. Weights are stored as [out, in, …], so the
    fan-in is the product of all axis sizes except the first. The fan-in of a vector is 1.
    `fan_in_each` excludes the first axis, along which several weights are stacked.
    """

    kind: str
    value: float = 0.0

    def __str__(self) -> str:
        return self.kind if self.kind in PLAIN_KINDS else f"{self.kind}({self.value!r})"

    def compute_uniform_bound(self, shape: tuple[int, ...]) -> float:
        """Return the bound b of the uniform distribution within ±b for the shape `shape`."""
        if self.kind == "uniform":
            return self.value
        weight = shape[1:] if self.kind == "fan_in_each" else shape
        return self.value * math.sqrt(3 / max(1, math.prod(weight[1:])))


def parse_initializer(text: str, span: Span | None = None) -> Initializer:
    """Parse an initializer such as `normal(0.02)`. Raise E0516 at `span` for an invalid one."""
    match = _INITIALIZER_PATTERN.fullmatch(text)
    kind, number = match.groups() if match else ("", None)
    if kind in PLAIN_KINDS and number is None:
        return Initializer(kind)
    if kind in NUMBER_KINDS and number is not None:
        value = _parse_number(number)
        if math.isfinite(value) and (value >= 0 or kind == "constant"):
            return Initializer(kind, value)
    return raise_error(
        "E0516",
        f"`{text}` is not an initializer",
        span,
        helps=["write one of zeros, ones, constant(0.5), normal(0.02), uniform(0.1), fan_in(1.0)"],
    )


def _parse_number(text: str) -> float:
    """Parse a number, or return NaN if the text is not a number."""
    try:
        return float(text)
    except ValueError:  # the regular expression also matches invalid numbers such as `1e` and `+-`
        return math.nan


PLAIN_KINDS = ("zeros", "ones")


NUMBER_KINDS = ("constant", "normal", "uniform", "fan_in", "fan_in_each")


_INITIALIZER_PATTERN = re.compile(r"\s*([a-z_]+)\s*(?:\(\s*([-+0-9.eE]+)\s*\))?\s*", re.ASCII)
