"""Heads a checkpoint lacks: random initialization of missing weights."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.io.safe_read import escape_text
from specc.weights.parameter_names import format_names, name_skeleton
from specc.weights.weight_expressions import Expr, list_tensors
from specc.weights.weight_rules import RequiredParameter

Missing = Sequence[tuple[RequiredParameter, str]]
"""Parameters that the files do not give, each with a tensor that is not there."""


@dataclass(frozen=True, slots=True)
class FreshInit:
    """How missing weights are drawn: from `seed`, if anybody asked for it, each as
    `initial` says. `body` gives the names of what is never drawn.
    """

    seed: int | None
    initial: Mapping[str, str]
    body: Callable[[], Set[str]]


def explain_not_fresh(
    fresh: FreshInit,
    missing: Missing,
    found: Sequence[RequiredParameter],
    exprs: Mapping[str, Expr],
    present: Set[str],
) -> dict[str, str]:
    """Why each missing parameter is no part of a new head; those that are one are not in
    the answer. `found` are the parameters that the files give.
    """
    kinds = {name_skeleton(w.name): w.name for w in found}
    calls = {_call(w): w.name for w in found}
    # To know the body all graphs are elaborated: not where nothing is missing.
    body = fresh.body() if missing else frozenset()
    reasons: dict[str, str] = {}
    for wanted, _ in missing:
        made_of = [n for n in list_tensors(exprs[wanted.name]) if n in present]
        like, other = kinds.get(name_skeleton(wanted.name)), calls.get(_call(wanted))
        # The nearest reason first: it names the tensor that somebody may look up.
        if not found:
            why = "nothing of the model is in the checkpoint"
        elif made_of:
            why = f"`{escape_text(made_of[0])}`, a part of it, is in the checkpoint"
        elif like:
            why = f"`{escape_text(like)}`, of the same kind, is in the checkpoint"
        elif other:
            why = f"`{escape_text(other)}`, of the same call, is in the checkpoint"
        elif wanted.name in body:
            why = "it belongs to the body, which every graph of the spec has"
        else:
            continue
        reasons[wanted.name] = why
    return reasons


def _call(wanted: RequiredParameter) -> tuple[str, object]:
    """What weights of one call have in common: the scope, and where the call stands."""
    return wanted.name.rpartition(".")[0], wanted.span


def warn_random_weights(
    fresh: FreshInit, drawn: Sequence[RequiredParameter], path: str
) -> Diagnostic:
    """W0528: which weights were made, and how."""
    ways: dict[str, list[str]] = {}
    for wanted in drawn:
        ways.setdefault(fresh.initial[wanted.name], []).append(wanted.name)
    first = drawn[0]
    many = len(drawn) > 1
    return Diagnostic(
        "W0528",
        f"{len(drawn)} weight{'s are' if many else ' is'} not in the checkpoint and "
        f"{'were' if many else 'was'} drawn from the seed {fresh.seed}",
        Label(first.span, first.made_by) if first.span else None,
        notes=(
            *(f"{escape_text(format_names(names, 8))}: {way}" for way, names in ways.items()),
            f"all others are in `{escape_text(path)}`",
        ),
        helps=("what such a head gives means nothing before it is trained",),
        severity="warning",
    )
