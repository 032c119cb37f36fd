"""Activations by the names that published config files have."""

from typing import NoReturn

from specc.elaborate.context import Context, Env
from specc.elaborate.kinds import APPLIED, fit
from specc.elaborate.values import Known
from specc.lang import tree
from specc.text.diagnostic import Failed, fail
from specc.text.source import Span
from specc.text.suggest import did_you_mean, suggestion

ACTIVATIONS = {
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
"""Other names of activations in published config files."""

WRITTEN = frozenset(ACTIVATIONS) | {
    *("gelu", "gelu_10", "hardswish", "laplace", "leaky_relu", "mish", "quick_gelu"),
    *("relu", "relu2", "relu6", "sigmoid", "silu", "sqrtsoftplus", "tanh"),
}
"""The names that published config files have: functions, and blocks of `activations` in std."""


def activation(context: Context, name: str, env: Env, span: Span | None) -> Known:
    """An activation by its name in a config file. Unknown ones are refused (E0403), never
    guessed.
    """
    spec_name = tree.Name(ACTIVATIONS.get(name, name), span=span)
    try:
        value = context.evaluator.evaluate(context, spec_name, env)
    except Failed as failed:
        # what a name may be in a spec is no help to who looks at a config file
        if any(d.code != "E0202" for d in failed.diagnostics):
            raise
        _no_activation(name, span)
    return fit(value, (APPLIED,), f'the activation "{name}"', span)


def _no_activation(name: str, span: Span | None) -> NoReturn:
    known = sorted(WRITTEN)
    close = did_you_mean(name, known)
    fail(
        "E0403",
        f'the activation "{name[:60]}" is not known',
        span,
        "no activation has this name",
        notes=[f"there are {', '.join(known)}"],
        helps=[suggestion(close)]
        if close
        else ["a spec of your own may have a block of this name: --spec my.specc"],
    )
