"""Define a LoRA adapter's target modules and scaling, and check that parameters read all weights
that an adapter changes.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from specc.diagnostics.diagnostic import Diagnostic, raise_error
from specc.io.safe_read import escape_text
from specc.weights.checkpoint_weight_streaming import CheckpointWeights
from specc.weights.parameter_name_patterns import format_name_groups
from specc.weights.weight_expressions import iterate_tensor_names


@dataclass(frozen=True, kw_only=True)
class LoraScaling:
    """The scaling of a LoRA adapter: `rank` and `alpha` for all modules except those in `ranks` and
    `alphas`. If `is_rank_stabilized` is True, alpha is divided by the square root of the rank
    (rsLoRA). If `is_transposed` is True, linear weights are stored as [in, out].
    """

    rank: int
    alpha: float
    is_rank_stabilized: bool = False
    is_transposed: bool = False
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    def get_rank(self, module: str) -> int:
        """Return the LoRA rank of a module."""
        return int(_find_pattern_value(self.ranks, module, self.rank))

    def get_scale(self, module: str) -> float:
        """Return the factor of a module's product B·A (rsLoRA: Kalajdzievski, 2023)."""
        rank = self.get_rank(module)
        alpha = _find_pattern_value(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank)


@dataclass(frozen=True, kw_only=True)
class LoraTargets:
    """The target modules of a LoRA adapter: the modules with the given name suffixes, without the
    excluded modules. If `layer_indices` is set, only modules in the layers with these indices are
    targets.

    An adapter must not contain LoRA matrices of other modules, because training did not use them.
    """

    target_modules: Sequence[str] | None
    modules_to_save: Sequence[str] = ()
    """Fully trained modules (`modules_to_save`). The adapter stores their complete tensors."""
    excluded_modules: Sequence[str] = ()
    layer_indices: Sequence[int] | None = None

    def is_target_module(self, module: str) -> bool:
        """Return True if a module is a target of the adapter."""
        if _has_suffix(module, self.excluded_modules):
            return False
        if self.target_modules is not None and not _has_suffix(module, self.target_modules):
            return False
        numbers = [int(part) for part in module.split(".") if part.isdecimal()]
        return self.layer_indices is None or (bool(numbers) and numbers[-1] in self.layer_indices)

    def is_fully_trained(self, name: str) -> bool:
        """Return True if a tensor belongs to a fully trained module (`modules_to_save`)."""
        return any(f".{module}." in f".{name}" for module in self.modules_to_save)


def _has_suffix(module: str, names: Sequence[str]) -> bool:
    return any(module == name or module.endswith(f".{name}") for name in names)


def _find_pattern_value(
    values_by_suffix: Mapping[str, float], module: str, default: float
) -> float:
    """Return the value of the first key that is a suffix of the module name, or `default`."""
    for key, value in values_by_suffix.items():
        if _has_suffix(module, [key]):
            return value
    return default


def check_adapter_tensors_used(weights: CheckpointWeights) -> CheckpointWeights:
    """Check that a model's parameters read all tensors that the adapter changes. Return the
    weights, with the warning W0534 if a tensor is not read. Raise E0531 if a changed weight is tied
    to another weight.
    """
    changed_tensors = weights.checkpoint.adapted_tensors
    exprs = [bound.expr for bound in weights.bound_parameters.values() if bound.expr is not None]
    used_tensors = {name for expr in exprs for name in iterate_tensor_names(expr)}
    for name, bound in weights.bound_parameters.items():
        root = bound.tied_to
        expr = weights.bound_parameters[root].expr if root is not None else None
        # The adapter was trained on only one of the two modules that share the weight. A single
        # merged tensor cannot represent both modules.
        for tensor in iterate_tensor_names(expr) if expr is not None else ():
            if tensor in changed_tensors:
                _check_tied(weights, name, tensor)
    if unused_names := sorted(changed_tensors - used_tensors):
        warning = Diagnostic(
            "W0534",
            f"the adapter changes {len(unused_names)} weight{'s' if len(unused_names) > 1 else ''} "
            "that this graph does not have",
            notes=(escape_text(format_name_groups(unused_names, 8)),),
            helps=("if it is for another head, select it with `--graph`",),
            severity="warning",
        )
        return replace(weights, warnings=(*weights.warnings, warning))
    return weights


def _check_tied(weights: CheckpointWeights, name: str, tensor: str) -> None:
    parameter = weights.bound_parameters[name].parameter
    raise_error(
        "E0531",
        f"the adapter changes `{escape_text(tensor)}`, to which `{escape_text(name)}` is tied",
        parameter.span,
        parameter.origin,
        notes=["the adapter was trained for only one of the tied weights"],
        helps=["merge it with `merge_and_unload` of peft, which handles tied weights"],
    )


LAYER_NUMBER = re.compile(r"\.\d+\.")
LANGUAGE_WEIGHTS = re.compile(r"lm_head\.|.*\.adapter_layer\.")
"""Names of language-specific weights: the output layer and the adapter layers."""


def find_missing_language_adapter_weights(
    names: Iterable[str], changed_weights: Collection[str]
) -> list[str]:
    """Return the checkpoint weights that are missing in a language adapter: weights that the
    adapter replaces in other layers, biases of replaced weights, and language-specific weights.
    Without these weights, the model would mix two languages.
    """
    changed_modules = {_get_module_name(name) for name in changed_weights}
    return [
        name
        for name in names
        if name not in changed_weights
        and (_get_module_name(name) in changed_modules or LANGUAGE_WEIGHTS.match(name))
    ]


def _get_module_name(name: str) -> str:
    """Return the name of a weight's module, with layer indices replaced by a wildcard."""
    return LAYER_NUMBER.sub(".*.", name).rpartition(".")[0]
