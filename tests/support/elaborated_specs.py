"""Built-in specs, elaborated with given config values, with random weights, in the reference and in
ONNX Runtime.

Weights of norms and biases are random too: with the initial ones and zeros, a norm in the wrong
place or a missing bias would have no effect.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

import specc_numpy
from specc.driver.spec_check_and_elaboration import elaborate_spec, iterate_sibling_graphs
from specc.driver.spec_loader import open_spec
from specc.driver.weights_section_and_load_transforms import (
    iterate_graph_parameters,
    list_model_parameters,
    read_weight_rules,
)
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.spec_to_graph import create_context, evaluate_and_check_config
from specc.ir.model_definition import ModelDefinition
from specc.weights.weight_rules_and_initializers import (
    WeightRules,
    resolve_weight_ties,
    select_graph_weight_rules,
)
from specc_onnx import build_model, get_target
from support.onnx_sessions import open_silent_session

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class ElaboratedSpec:
    """A spec with a config, and the rules of its `weights { … }` section."""

    model: ModelDefinition
    rules: WeightRules


def elaborate_with_config(
    spec: str, config: str = "", max_tokens: int = 0, graph: str = "", **sets: object
) -> ElaboratedSpec:
    """Return the spec with config values set: `elaborate_with_config("vit", d=8)`; fields of
    records as `encoder__layers=2`.

    Built-in specs are cached; `graph` selects another graph than the default.
    """
    shipped = spec.isidentifier() and not config
    return (
        _once(spec, _said(sets), graph)
        if shipped
        else _made(spec, config, _said(sets), max_tokens, graph)
    )


def elaborate_uncached(spec: str, **sets: object) -> ElaboratedSpec:
    """Elaborate without the cache, for tests that change how specs are read."""
    return _made(spec, "", _said(sets))


@cache
def _once(spec: str, values: tuple[str, ...], graph: str) -> ElaboratedSpec:
    return _made(spec, "", values, graph=graph)


def _said(sets: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"{name.replace('__', '.')}={_text(value)}" for name, value in sets.items())


def _made(
    spec: str, config: str, given: tuple[str, ...], max_tokens: int = 0, graph: str = ""
) -> ElaboratedSpec:
    found = open_spec(spec, config=config, config_settings=given, context_length=max_tokens)
    model = elaborate_spec(found, graph)
    context = create_context(found.program)
    values = evaluate_and_check_config(context, found.program, found.config_options)
    env = LexicalScope(context=context, module=found.program.module, config=values)
    rules = select_graph_weight_rules(
        read_weight_rules(found.program, env),
        {w.name: w for w in list_model_parameters(model.graph)},
        lambda: iterate_graph_parameters(iterate_sibling_graphs(found, model.graph.name)),
    )
    return ElaboratedSpec(model, rules)


def _text(value: object) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def sample_spec_weights(spec: ElaboratedSpec, seed: int = 0) -> Arrays:
    """Return random float32 values for every parameter; tied parameters are equal."""
    required = list_model_parameters(spec.model.graph)
    ties = resolve_weight_ties({w.name: w for w in required}, spec.rules)
    rng = np.random.default_rng(seed)
    values: Arrays = {}
    for w in required:
        drawn = rng.standard_normal(w.shape)
        if len(w.shape) > 1:
            drawn *= 1.5 / np.sqrt(np.prod(w.shape[1:]))
        else:
            drawn = 0.3 * drawn + (w.name.endswith("weight"))
        values[w.name] = drawn.astype(np.float32)
    return {name: values[ties.get(name, name)] for name in values}


def run_reference(
    spec: ElaboratedSpec, weights: Arrays, inputs: Mapping[str, NDArray[Any]]
) -> Arrays:
    """Return the outputs of the float64 reference."""
    return specc_numpy.evaluate_graph(spec.model.graph, inputs, weights)


class OrtModel:
    """The same model in ONNX Runtime, in float32."""

    def __init__(self, spec: ElaboratedSpec, weights: Arrays, target: str = "ort-cpu") -> None:
        built = build_model(spec.model.graph, get_target(target))
        for name, initializer in built.weights.items():
            initializer.raw_data = weights[name].astype("<f4").tobytes()
        onnx.checker.check_model(built.model, full_check=True)
        self.session = open_silent_session(built.model)
        self.names = list(spec.model.graph.outputs)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the outputs by name. Casts float inputs to float32."""
        given = {k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in inputs.items()}
        return dict(zip(self.names, self.session.run(self.names, given), strict=True))


def assert_arrays_close(
    actual: NDArray[Any], expected: NDArray[Any], name: str, tolerance: float = 1e-5
) -> float:
    """Assert `max|found - wanted| <= within · max|wanted|`, for integers and booleans equality.

    Returns the largest difference relative to the largest absolute value.
    """
    assert actual.shape == expected.shape, f"{name}: {actual.shape}, not {expected.shape}"
    if expected.dtype.kind in "bi":
        assert (actual == expected).all(), name
        return 0.0
    assert np.isfinite(actual).all(), f"{name}: not finite"
    worst = float(np.abs(actual - expected).max(initial=0))
    most = float(np.abs(expected).max(initial=0))
    assert worst <= tolerance * most, f"{name}: off by {worst:.2e} of {most:.2e}"
    return worst / most if most else 0.0
