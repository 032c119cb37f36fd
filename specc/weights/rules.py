"""What a spec's `weights { … }` says about the parameters of a graph, and what of it is wrong whatever the file.

Nothing here reads a number or a file, so that `specc check` can use it without NumPy.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specc.text.diagnostic import fail
from specc.text.source import Span
from specc.weights.names import Pattern, nearest
from specc.weights.transform import Expr, Shape


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parameter of the model. `made_by` says, for messages, what asks for it and whence its shape."""

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
    """`load name = value`: `name` may be a pattern, whose holes are filled in the names of `value`."""

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


def tied_pairs(wanted: Mapping[str, Wanted], rules: Rules) -> dict[str, str]:
    """Each tied parameter and the untied one it shares its numbers with. Fails with E0510."""
    direct: dict[str, str] = {}
    spans: dict[str, Span | None] = {}
    for rule in rules.ties:
        pattern, hits = Pattern(rule.name), 0
        for name in wanted:
            captures = pattern.captures(name)
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
                notes=[f"they are {list(wanted[name].shape)} and {list(wanted[at].shape)}"],
                helps=["tie only weights of the same shape; a transposed copy is a `load`"],
            )
        roots[name] = at
    return roots


def check_used(wanted: Mapping[str, Wanted], rules: Rules) -> None:
    """A `load` for a parameter that the model does not have is a slip."""
    for rule in rules.loads:
        if not any(map(Pattern(rule.name).matches, wanted)):
            _no_such(rule.name, wanted, rule.span, "load")


def _no_such(name: str, wanted: Mapping[str, Wanted], span: Span | None, what: str) -> None:
    close = nearest(name, wanted)
    fail(
        "E0510",
        f"the model has no weights `{name}`",
        span,
        f"named by this `{what}`",
        helps=[f"did you mean `{close}`?" if close else "`specc show` lists the names of all weights"],
    )
