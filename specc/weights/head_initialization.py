"""Initialize a new task head randomly: explain which missing parameters are not part of a head, and
make the warning W0528.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.io.safe_read import escape_text
from specc.weights.binding_errors import MissingParameter
from specc.weights.parameter_names import format_names, get_name_without_numbers
from specc.weights.weight_expressions import Expr, iterate_tensor_names
from specc.weights.weight_rules import ModelParameter


@dataclass(frozen=True, slots=True)
class HeadInitialization:
    """Options of the random initialization of a new task head.

    If `seed` is None, no parameter is initialized. `initializers` maps parameters to the text of
    their initializers. `find_base_parameters` returns the names of the parameters of the base
    model, which are never initialized.
    """

    seed: int | None
    initializers: Mapping[str, str]
    find_base_parameters: Callable[[], Set[str]]


def explain_uninitialized_parameters(
    initialization: HeadInitialization,
    missing: Sequence[MissingParameter],
    bound_parameters: Sequence[ModelParameter],
    exprs: Mapping[str, Expr],
    present: Set[str],
) -> dict[str, str]:
    """Map each missing parameter that is not part of a new task head to the reason.
    `bound_parameters` are the parameters that the checkpoint contains, `present` are the names of
    its tensors, and `exprs` maps parameters to their expressions.
    """
    names_by_skeleton = {get_name_without_numbers(w.name): w.name for w in bound_parameters}
    names_by_call = {_get_call_key(w): w.name for w in bound_parameters}
    # Finding the base model elaborates all graphs, so it is skipped if no parameter is missing.
    base_parameters = initialization.find_base_parameters() if missing else frozenset()
    reasons: dict[str, str] = {}
    for parameter, _ in missing:
        present_tensors = [n for n in iterate_tensor_names(exprs[parameter.name]) if n in present]
        similar_name = names_by_skeleton.get(get_name_without_numbers(parameter.name))
        sibling_name = names_by_call.get(_get_call_key(parameter))
        # The reasons that name an existing tensor come first, because they are the most specific.
        if not bound_parameters:
            reason = "no weight of the model is in the checkpoint"
        elif present_tensors:
            reason = f"`{escape_text(present_tensors[0])}`, a part of it, is in the checkpoint"
        elif similar_name:
            reason = f"`{escape_text(similar_name)}`, of the same kind, is in the checkpoint"
        elif sibling_name:
            reason = f"`{escape_text(sibling_name)}`, of the same call, is in the checkpoint"
        elif parameter.name in base_parameters:
            reason = "it belongs to the base model, which every graph of the spec has"
        else:
            continue
        reasons[parameter.name] = reason
    return reasons


def _get_call_key(parameter: ModelParameter) -> tuple[str, object]:
    """Return the key of the call that declares a parameter: its scope and source location."""
    return parameter.name.rpartition(".")[0], parameter.span


def make_random_init_warning(
    initialization: HeadInitialization, initialized: Sequence[ModelParameter], path: str
) -> Diagnostic:
    """Return the warning W0528, which lists randomly initialized parameters and initializers."""
    names_by_initializer: dict[str, list[str]] = {}
    for parameter in initialized:
        names_by_initializer.setdefault(initialization.initializers[parameter.name], []).append(
            parameter.name
        )
    first = initialized[0]
    is_plural = len(initialized) > 1
    return Diagnostic(
        "W0528",
        f"{len(initialized)} weight{'s are' if is_plural else ' is'} not in the checkpoint and "
        f"{'were' if is_plural else 'was'} initialized with the seed {initialization.seed}",
        Label.from_span(first.span, first.origin),
        notes=(
            *(
                f"{escape_text(format_names(names, 8))}: {initializer}"
                for initializer, names in names_by_initializer.items()
            ),
            f"all others are in `{escape_text(path)}`",
        ),
        helps=("outputs of a new head are meaningless before training",),
        severity="warning",
    )
