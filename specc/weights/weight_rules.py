"""Rules of a spec for weights: tie, load, ignore; the prefix of parameter names in a file."""

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
from specc.weights.parameter_names import NamePattern, nearest_name
from specc.weights.weight_expressions import Expr, Shape, rename_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredParameter:
    """A parameter of the model. `made_by` names, for messages, its call and the source of its
    shape; `sizes` are the config values of its axes, "" for an axis that is no single one.
    """

    name: str
    shape: Shape
    dtype: str = "f32"
    span: Span | None = None
    made_by: str = ""
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TieRule:
    """`tie name = source`: both names may be patterns with the same holes. A `from_used_spec` rule
    is of a used spec, and is skipped if its names are not used.
    """

    name: str
    source: str
    span: Span | None = None
    from_used_spec: bool = False


@dataclass(frozen=True, slots=True)
class LoadRule:
    """`load name = value`: `name` may be a pattern, whose holes are filled in the names
    of `value`. One that is `from_used_spec` is of a used spec, of which not all need be used.
    """

    name: str
    value: Expr
    span: Span | None = None
    from_used_spec: bool = False


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """`ignore pattern`."""

    pattern: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class WeightRules:
    """The rules of a spec's `weights { … }`, and those of the specs it uses, whose weights are
    under the paths of `parts`.
    """

    ties: tuple[TieRule, ...] = ()
    loads: tuple[LoadRule, ...] = ()
    ignores: tuple[IgnoreRule, ...] = ()
    parts: tuple[str, ...] = ()

    def add_prefix(self, path: str) -> "WeightRules":
        """Return the rules of a used spec, prefixed with a path."""

        def prefix_name(name: str) -> str:
            return f"{path}.{name}" if path else name

        ties = (
            replace(r, name=prefix_name(r.name), source=prefix_name(r.source), from_used_spec=True)
            for r in self.ties
        )
        loads = (
            LoadRule(
                prefix_name(r.name),
                rename_tensors(r.value, prefix_name),
                r.span,
                from_used_spec=True,
            )
            for r in self.loads
        )
        ignores = (IgnoreRule(prefix_name(r.pattern), r.span) for r in self.ignores)
        return WeightRules(tuple(ties), tuple(loads), tuple(ignores), (path,) if path else ())

    def add_fallback_rules(self, more: "WeightRules") -> "WeightRules":
        """Return these rules, followed by fallback rules."""
        return WeightRules(
            self.ties + more.ties,
            self.loads + more.loads,
            self.ignores + more.ignores,
            self.parts + more.parts,
        )


def rules_of_graph(
    rules: WeightRules,
    wanted: Mapping[str, RequiredParameter],
    others: Callable[[], Iterable[RequiredParameter]],
) -> WeightRules:
    """Return the rules about the parameters `wanted` of one graph of a spec.

    A rule about parameters that only `others` of the spec have is dropped; one about parameters
    that none has stays, to be rejected. `others` is called only for an unknown name.
    """
    rules = _of_used_specs(wanted, rules)
    useless = find_unused_loads(wanted, rules)
    if not useless and all(_reaches_root(rule, wanted) for rule in rules.ties):
        return rules
    every = {**{w.name: w for w in others()}, **wanted}
    ties: list[TieRule] = []
    for rule in rules.ties:
        ties += [rule] if _reaches_root(rule, wanted) else _in_graph(rule, wanted, every)
    # A name in no graph of the spec is an error and is rejected.
    nowhere = find_unused_loads(every, rules)
    loads = tuple(r for r in rules.loads if r not in useless or r in nowhere)
    return replace(rules, ties=tuple(ties), loads=loads)


def _of_used_specs(wanted: Mapping[str, RequiredParameter], rules: WeightRules) -> WeightRules:
    """Drop rules of used specs that this graph does not need: they are about heads that are not
    called here, and were checked with their own spec.
    """
    ties = [r for r in rules.ties if not r.from_used_spec]
    for rule in rules.ties:
        if rule.from_used_spec:
            ties += _in_graph(rule, wanted, wanted)
    useless = {id(r) for r in find_unused_loads(wanted, rules) if r.from_used_spec}
    loads = tuple(r for r in rules.loads if id(r) not in useless)
    return replace(rules, ties=tuple(ties), loads=loads)


def _list_pairs(rule: TieRule, names: Iterable[str]) -> dict[str, str]:
    """Return the names that a `tie` matches, with their sources."""
    pattern = NamePattern(rule.name)
    captured = {name: pattern.captures(name) for name in names}
    return {n: c.fill(rule.source) for n, c in captured.items() if c is not None}


def _reaches_root(rule: TieRule, wanted: Mapping[str, RequiredParameter]) -> bool:
    """Return whether a graph has all parameters of a `tie`."""
    pairs = _list_pairs(rule, wanted)
    return bool(pairs) and all(source in wanted for source in pairs.values())


def _in_graph(
    rule: TieRule, wanted: Mapping[str, RequiredParameter], every: Mapping[str, RequiredParameter]
) -> list[TieRule]:
    """Expand a `tie` for one graph of a spec, dropping names whose partner is in another graph.
    Unchanged if no graph has its names.
    """
    pairs = _list_pairs(rule, every)
    if not pairs and not rule.from_used_spec:
        return [rule]
    for source in pairs.values():
        if source not in every and not rule.from_used_spec:
            _no_such(source, every, rule.span, "tie")
    return [
        TieRule(name, source, rule.span)
        for name, source in pairs.items()
        if name in wanted and source in wanted
    ]


def find_tied_pairs(wanted: Mapping[str, RequiredParameter], rules: WeightRules) -> dict[str, str]:
    """Map each tied parameter to its untied source. Fails with E0510."""
    direct = _find_direct(wanted, rules)
    roots = {name: _find_root(name, direct) for name in direct}
    for name, root in roots.items():
        if wanted[name].shape != wanted[root].shape:
            raise_error(
                "E0510",
                f"`{name}` is tied to `{root}`, which has a different shape",
                direct[name].span,
                notes=[f"they are {list(wanted[name].shape)} and {list(wanted[root].shape)}"],
                helps=["tie only weights of the same shape; a transposed copy is a `load`"],
            )
    return roots


def _find_direct(wanted: Mapping[str, RequiredParameter], rules: WeightRules) -> dict[str, TieRule]:
    """Return the rule of each tied parameter by name: the first match, as for `load`."""
    direct: dict[str, TieRule] = {}
    for rule in rules.ties:
        pairs = _list_pairs(rule, wanted)
        fresh = [name for name in pairs if name not in direct]
        if not fresh and rule.name not in direct:
            _no_such(rule.name, wanted, rule.span, "tie")
        direct |= {name: TieRule(name, pairs[name], rule.span) for name in fresh}
    for one in direct.values():
        if one.source not in wanted:
            _no_such(one.source, wanted, one.span, "tie")
    return direct


def _find_root(name: str, direct: Mapping[str, TieRule]) -> str:
    """Return the end of a chain of ties."""
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


def find_unused_loads(wanted: Iterable[str], rules: WeightRules) -> list[LoadRule]:
    """Return each `load` whose parameters do not exist."""
    names = list(wanted)
    return [r for r in rules.loads if not any(map(NamePattern(r.name).matches, names))]


def check_loads_used(wanted: Mapping[str, RequiredParameter], rules: WeightRules) -> None:
    """Raise an error for a `load` of a parameter that the model lacks."""
    for rule in find_unused_loads(wanted, rules):
        _no_such(rule.name, wanted, rule.span, "load")


def _no_such(
    name: str, wanted: Mapping[str, RequiredParameter], span: Span | None, what: str
) -> None:
    close = nearest_name(name, wanted)
    otherwise, notes = "`specc show` lists the names of all weights", []
    if not close and "{" in name:
        # a loop with zero iterations creates no weights
        notes = ["no weight matches it; a number of layers in the config may be 0"]
        otherwise = "add a layer, or remove the rule"
    raise_error(
        "E0510",
        f"the model has no weights `{name}`",
        span,
        f"named by this `{what}`",
        notes=notes,
        helps=[format_suggestion(close) if close else otherwise],
    )


@dataclass(frozen=True, slots=True)
class ParameterNaming:
    """Mapping from declared names to tensor names: strips the prefix `minus` or adds `plus`; below
    the path of a used spec as `parts` maps it, longest path first.
    """

    minus: str = ""
    plus: str = ""
    parts: "tuple[tuple[str, ParameterNaming], ...]" = ()

    def name(self, declared: str, present: Set[str], start: str = "") -> str:
        """Return the tensor name of a declared name; `start` is the common prefix of all names."""
        for path, inner in self.parts:
            if declared.startswith(path):
                return path + inner.name(declared[len(path) :], present, start + path)
        if self.minus and declared.startswith(self.minus):
            return declared[len(self.minus) :]
        # A head is next to the base model in a file, not under its prefix: only names under the
        # prefix are considered there.
        behind = self.plus + declared
        return behind if self.plus and start + behind in present else declared

    def get_spellings(self, tensor: str) -> tuple[str, ...]:
        """Return the names a tensor may have in the spec."""
        for path, inner in self.parts:
            if tensor.startswith(path):
                below = inner.get_spellings(tensor[len(path) :])
                return tuple(path + spelling for spelling in below)
        if self.minus:
            return tensor, self.minus + tensor
        if tensor.startswith(self.plus):
            return tensor, tensor.removeprefix(self.plus)
        return (tensor,)

    def __str__(self) -> str:
        said: list[str] = []
        if self.minus:
            said.append(f"without the prefix `{escape_text(self.minus)}`")
        if self.plus:
            said.append(f"with the prefix `{escape_text(self.plus)}`")
        said += [f"under `{escape_text(p)}` {inner}" for p, inner in self.parts]
        return ", ".join(said) or "as declared"


def infer_naming(
    needed: Iterable[str], present: Set[str], path: Path, parts: Iterable[str] = ()
) -> ParameterNaming:
    """Infer the naming of a checkpoint, and that below each path of `parts`, where a used spec may
    be stored as in its own checkpoint. E0515 if two namings match equally many names.
    """
    left, there = set(needed), set(present)
    found: list[tuple[str, ParameterNaming]] = []
    for start in sorted({f"{p}." for p in parts}, key=lambda p: (-len(p), p)):
        names = {name for name in left if name.startswith(start)}
        tensors = {name for name in there if name.startswith(start)}
        # Names that the file lacks may be under a common prefix.
        if not names or not tensors:
            continue
        left, there = left - names, there - tensors
        cut = len(start)
        inner = _infer_one_naming({n[cut:] for n in names}, {t[cut:] for t in tensors}, path)
        if inner != ParameterNaming():
            found.append((start, inner))
    return replace(_infer_one_naming(left, there, path), parts=tuple(found))


def _infer_one_naming(names: Set[str], present: Set[str], path: Path) -> ParameterNaming:
    """Infer the naming of one spec's parameters."""
    plain = len(names & present)
    if plain == len(names):
        return ParameterNaming()

    def list_names(naming: ParameterNaming) -> frozenset[str]:
        return frozenset(naming.name(declared, present) for declared in names)

    candidates = [
        naming
        for naming in _list_candidates(names, present)
        # the base is under a prefix, not one head next to a base stored as declared
        if not naming.plus or sum(naming.plus + n in present for n in names - present) > plain
    ]
    found = {naming: len(list_names(naming) & present) for naming in candidates}
    best = max(found.values(), default=0)
    if best <= plain or 2 * best < len(names):  # a few coincidental matches decide nothing
        return ParameterNaming()
    winners = sorted((n for n in found if found[n] == best), key=lambda n: (n.minus, n.plus))
    # Two spellings of one prefix find the same tensors; then either will do.
    if len(set(map(list_names, winners))) > 1:
        raise_error(
            "E0515",
            f"`{escape_text(path)}` has the weights under several prefixes",
            notes=[f"{best} of {len(names)} names match {n}" for n in winners[:6]],
            helps=[
                "select one: add the prefix to the spec's names with `under`, and `ignore` the "
                "others"
            ],
        )
    return winners[0]


def _list_candidates(names: Set[str], present: Set[str]) -> list[ParameterNaming]:
    """Return prefixes that match at least one more name, most frequent first."""
    counts: Counter[ParameterNaming] = Counter()
    for longer, others in ((names, present), (present, names)):
        for name in longer:
            # prefixes that end at one of the first four dots
            for dot in islice(re.finditer(r"\.", name), 4):
                prefix = name[: dot.end()]
                naming = ParameterNaming(minus=prefix)
                if longer is present:
                    naming = ParameterNaming(plus=prefix)
                counts[naming] += name[dot.end() :] in others
    # deterministic order of equally frequent prefixes, independent of set order
    ordered = sorted(+counts, key=lambda n: (-counts[n], n.minus, n.plus))
    return ordered[:16]
