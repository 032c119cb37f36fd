"""Activation names in config.json files."""

from typing import NoReturn

from specc.diagnostics.diagnostic import Failed, raise_error
from specc.diagnostics.source import Span
from specc.diagnostics.suggest import did_you_mean, format_suggestion
from specc.frontend.context import Context, Env
from specc.frontend.parameter_kinds import FUNCTION_KIND, convert_to_kind
from specc.frontend.spec_values import SpecValue
from specc.syntax import ast

HF_ACTIVATION_ALIASES = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "swish": "silu",
    "relu_squared": "relu2",
    "linear": "identity",
}
"""Alternative names of activations in config.json files."""

KNOWN_ACTIVATIONS = frozenset(HF_ACTIVATION_ALIASES) | {
    *("gelu", "gelu_10", "hardswish", "laplace", "leaky_relu", "mish", "quick_gelu"),
    *("relu", "relu2", "relu6", "sigmoid", "silu", "sqrtsoftplus", "tanh"),
}
"""Activation names in config.json files: functions, and blocks of `activations` in std."""


def resolve_hf_activation(context: Context, name: str, env: Env, span: Span | None) -> SpecValue:
    """Return the activation with this name in a config.json. Raise E0403 for an unknown
    one.
    """
    spec_name = ast.Name(HF_ACTIVATION_ALIASES.get(name, name), span=span)
    try:
        value = context.evaluator.evaluate(context, spec_name, env)
    except Failed as failed:
        # the names known in a spec do not help with a config.json
        if any(d.code != "E0202" for d in failed.diagnostics):
            raise
        _raise_unknown_activation(name, span)
    return convert_to_kind(value, (FUNCTION_KIND,), f'the activation "{name}"', span)


def _raise_unknown_activation(name: str, span: Span | None) -> NoReturn:
    known = sorted(KNOWN_ACTIVATIONS)
    close = did_you_mean(name, known)
    raise_error(
        "E0403",
        f'unknown activation "{name[:60]}"',
        span,
        "no activation has this name",
        notes=[f"known activations: {', '.join(known)}"],
        helps=[format_suggestion(close)]
        if close
        else ["define a block with this name in a spec of your own: --spec my.specc"],
    )
