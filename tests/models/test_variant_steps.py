"""The configurable translator in its mask, position, norm and head variants: steps equal the full
pass.
"""

from typing import Any

import numpy as np
import pytest
from support.decode_steps import run_steps
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS

import specc_numpy
from specc.driver.generation_graphs import derive_generation_graphs
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.frontend.spec_inheritance_and_config_overrides import (
    iterate_config_literals as config_literals,
)
from specc.runtime.random_inputs import make_random_inputs
from specc.transforms import pass_pipeline

ROWS = 9
VARIANTS: dict[str, dict[str, Any]] = {
    "post": {"norm": "post"},
    "pre": {"norm": "pre"},
    "sandwich": {"norm": "sandwich"},
    "rms norm": {"normalize": "rms_norm(eps=1e-5)"},
    "sinusoids in halves": {"positions": "sinusoid(layout=halves)"},
    "learned positions": {"positions": "learned(size=40)"},
    "no positions": {"positions": None},
    "rotary halves": {"positions": None, "rope": "rope(theta=100.0)", "pairs": "half"},
    "rotary pairs": {"positions": None, "rope": "rope(theta=100.0)", "pairs": "interleaved"},
    "one key head": {"kv_heads": 1},
    "a window": {"decoder.attention.mask": "window(3)"},
    "a window of one": {"decoder.attention.mask": "window(1)"},
    "chunks": {"decoder.attention.mask": "chunked(4) & causal"},
    "a window and rotary": {
        "decoder.attention.mask": "window(4)",
        "rope": "rope(theta=50.0)",
        "pairs": "half",
    },
    "three layers": {"decoder.layers": 3, "norm": "pre", "decoder.attention.mask": "window(2)"},
    "untied, unscaled": {
        "tied": False,
        "scale_embedding": False,
        "bias": False,
        "target_vocab": 13,
    },
}


@pytest.mark.parametrize("variant", sample_sweep([*VARIANTS]))
def test_steps_equal_the_full_pass(variant: str) -> None:
    sets = {**SMALL_CONFIGS["encoder_decoder"], "decoder.layers": 2, **VARIANTS[variant]}
    model = elaborate_spec(
        open_spec(
            "encoder_decoder",
            config_settings=[f"{key}={text}" for key, text in config_literals("", sets)],
        )
    )
    assert model.generation
    graph = pass_pipeline.simplify_graph(model.graph)
    parts = derive_generation_graphs(graph, model.generation)
    rng = np.random.default_rng(len(variant))
    inputs = make_random_inputs(graph, {"batch": 3, "src": 5, "tgt": ROWS}, rng)
    weights = {
        n: rng.normal(size=[d.number for d in f.type.shape]) * 0.4
        for n, f in graph.parameter_facts.items()
    }
    full = specc_numpy.evaluate_graph(graph, inputs, weights)["logits"]
    for plan in ([ROWS], [1] * ROWS, [2, 2, 5], [5, 4], [8, 1]):
        for end, made in zip(
            np.cumsum(plan), run_steps(parts, graph, inputs, weights, plan), strict=True
        ):
            assert (
                np.abs(made["logits"][:, 0] - full[:, end - 1]).max() <= 1e-11 * np.abs(full).max()
            ), plan
