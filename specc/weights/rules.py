"""What a spec's `weights { … }` says about the parameters of a graph, and what of it is
wrong whatever the file.

Nothing here reads a number or a file, so that `specc check` can use it without NumPy.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from specc.text.diagnostic import fail
from specc.text.source import Span
from specc.text.suggest import suggestion
from specc.weights.names import Pattern, nearest
from specc.weights.transform import Expr, Shape


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parameter of the model. `made_by` says, for messages, what asks for it and
    whence its shape.
    """

    name: str
    shape: Shape
    dtype: str = "f32"
    span: Span | None = None
    made_by: str = ""


@dataclass(frozen=True, slots=True)
class TieRule:
    """`tie name = source`: both names may be patterns with the same holes."""

    name: str
    source: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class LoadRule:
    """`load name = value`: `name` may be a pattern, whose holes are filled in the names
    of `value`.
    """

    name: str
    value: Expr
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """`ignore pattern`."""

    pattern: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """What a spec's `weights { … }` says."""

    ties: tuple[TieRule, ...] = ()
    loads: tuple[LoadRule, ...] = ()
    ignores: tuple[IgnoreRule, ...] = ()


def of_graph(
    rules: Rules, wanted: Mapping[str, Wanted], others: Callable[[], Iterable[Wanted]]
) -> Rules:
    """The rules that are about the parameters `wanted`, of one graph of a spec.

    A rule about parameters that only `others` of the spec have is theirs, and is left
    out; one about parameters that none has stays, to be refused. `others` are asked for
    where a rule names something strange.
    """
    strange = [r for r in rules.ties if not _reaches(r, wanted)]
    useless = unused(wanted, rules)
    if not strange and not useless:
        return rules
    every = {**{w.name: w for w in others()}, **wanted}
    ties: list[TieRule] = []
    for rule in rules.ties:
        ties += _in_graph(rule, wanted, every) if rule in strange else [rule]
    nowhere = unused(every, rules)
    loads = [r for r in rules.loads if r not in useless or r in nowhere]
    return Rules(tuple(ties), tuple(loads), rules.ignores)


def _pairs(rule: TieRule, names: Iterable[str]) -> dict[str, str]:
    """The names that a `tie` is about, and what each is tied to."""
    pattern = Pattern(rule.name)
    captured = {name: pattern.captures(name) for name in names}
    return {n: c.fill(rule.source) for n, c in captured.items() if c is not None}


def _reaches(rule: TieRule, wanted: Mapping[str, Wanted]) -> bool:
    """Whether a graph has everything that a `tie` is about."""
    pairs = _pairs(rule, wanted)
    return bool(pairs) and all(source in wanted for source in pairs.values())


def _in_graph(
    rule: TieRule, wanted: Mapping[str, Wanted], every: Mapping[str, Wanted]
) -> list[TieRule]:
    """What a `tie` says of one graph of a spec, name by name: nothing of a name whose
    partner is another graph's. Itself where no graph has what it names.
    """
    pairs = _pairs(rule, every)
    if not pairs:
        return [rule]
    for source in pairs.values():
        if source not in every:
            _no_such(source, every, rule.span, "tie")
    return [
        TieRule(name, source, rule.span)
        for name, source in pairs.items()
        if name in wanted and source in wanted
    ]


def tied_pairs(wanted: Mapping[str, Wanted], rules: Rules) -> dict[str, str]:
    """Each tied parameter and the untied one it shares its numbers with. Fails with E0510."""
    direct: dict[str, str] = {}
    spans: dict[str, Span | None] = {}
    for rule in rules.ties:
        pattern, hits = Pattern(rule.name), 0
        for name in wanted:
            captures = pattern.captures(name)
            # the first rule that fits counts, as for `load`
            if captures is not None and name not in direct:
                direct[name], spans[name] = captures.fill(rule.source), rule.span
                hits += 1
        if not hits and rule.name not in direct:
            _no_such(rule.name, wanted, rule.span, "tie")
    for name, source in direct.items():
        if source not in wanted:
            _no_such(source, wanted, spans[name], "tie")
    roots: dict[str, str] = {}
    for name in direct:
        seen, at = [name], name
        # a tie may lead to a tied one; what counts is where it ends
        while at in direct:
            at = direct[at]
            if at in seen:
                fail(
                    "E0510",
                    f"`{name}` is tied to itself",
                    spans[name],
                    notes=[" = ".join((*seen, at))],
                    helps=["take one of these `tie` rules away"],
                )
            seen.append(at)
        if wanted[name].shape != wanted[at].shape:
            fail(
                "E0510",
                f"`{name}` is tied to `{at}`, which has another shape",
                spans[name],
                notes=[
                    f"they are {list(wanted[name].shape)} and {list(wanted[at].shape)}"
                ],
                helps=[
                    "tie only weights of the same shape; a transposed copy is a `load`"
                ],
            )
        roots[name] = at
    return roots


def unused(wanted: Iterable[str], rules: Rules) -> list[LoadRule]:
    """Each `load` for parameters that are not there."""
    names = list(wanted)
    return [r for r in rules.loads if not any(map(Pattern(r.name).matches, names))]


def check_used(wanted: Mapping[str, Wanted], rules: Rules) -> None:
    """A `load` for a parameter that the model does not have is a slip."""
    for rule in unused(wanted, rules):
        _no_such(rule.name, wanted, rule.span, "load")


def _no_such(
    name: str, wanted: Mapping[str, Wanted], span: Span | None, what: str
) -> None:
    close = nearest(name, wanted)
    fail(
        "E0510",
        f"the model has no weights `{name}`",
        span,
        f"named by this `{what}`",
        helps=[
            suggestion(close)
            if close
            else "`specc show` lists the names of all weights"
        ],
    )
