"""Every built-in streaming spec: chunks of any sizes give the results of one full pass, in the
float64 reference and compiled.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from support.decode_steps import run_steps
from support.small_configs import SMALL_CONFIGS, list_specs_with

import specc
import specc_numpy
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.frontend.spec_inheritance_and_config_overrides import (
    iterate_config_literals as config_literals,
)
from specc.ir.graph import Graph
from specc.ir.model_definition import StreamSection
from specc.runtime.random_inputs import make_random_inputs
from specc.transforms import pass_pipeline

CHUNKS = 7
PLANS = [[7], [1] * 7, [2, 4, 1], [5, 2]]
STREAMED = list_specs_with("stream")


@cache
def streamed(name: str) -> tuple[Graph, StreamSection, pass_pipeline.CompilerPassState]:
    sets = [f"{key}={text}" for key, text in config_literals("", SMALL_CONFIGS[name])]
    model = elaborate_spec(open_spec(name, config_settings=sets))
    assert model.streaming is not None
    graph = pass_pipeline.simplify_graph(model.graph)
    work = pass_pipeline.CompilerPassState(
        graph=graph, streaming=model.streaming, logits_positions="new"
    )
    return (graph, model.streaming, pass_pipeline.run_passes(work, pass_pipeline.DERIVE_PASSES))


@pytest.mark.parametrize("name", STREAMED)
def test_chunks_equal_the_full_pass(name: str) -> None:
    graph, streaming, work = streamed(name)
    assert work.derived_graphs is not None
    rng = np.random.default_rng(0)
    rows = str(graph.inputs[streaming.sequence_input].type.shape[1])
    inputs = make_random_inputs(graph, {"batch": 3, rows: CHUNKS * work.chunk_length}, rng)
    weights = {
        n: rng.normal(size=[d.number for d in f.type.shape]) * 0.4
        for n, f in graph.parameter_facts.items()
    }
    full = specc_numpy.evaluate_graph(graph, inputs, weights)
    for plan in PLANS:
        counts = [n * work.chunk_length for n in plan]
        made = list(run_steps(work.derived_graphs, work.graph, inputs, weights, counts))
        for result in streaming.streamed_outputs:
            got = np.concatenate([each[result] for each in made], axis=1)
            np.testing.assert_allclose(got, full[result], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", STREAMED)
def test_a_package_gives_the_results_of_the_full_graph(name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    specc.compile(name, out, init=3, set=SMALL_CONFIGS[name], graphs=["score", "step"])
    model = specc.load(out)
    graph, streaming, work = streamed(name)
    rows = str(graph.inputs[streaming.sequence_input].type.shape[1])
    count = CHUNKS * work.chunk_length
    rng = np.random.default_rng(1)
    inputs = make_random_inputs(graph, {"batch": 3, rows: count}, rng)
    full = model.run(**inputs)
    for plan in PLANS:
        stream, made, start = model.stream(), [], 0
        for n in plan:
            stop = start + n * work.chunk_length
            made.append(stream.push(**{k: v[:, start:stop] for k, v in inputs.items()}))
            start = stop
        for result in streaming.streamed_outputs:
            got = np.concatenate([each[result] for each in made], axis=1)
            most = np.abs(full[result]).max()
            assert np.abs(got - full[result]).max() <= 1e-6 * most


def test_streaming_specs_exist() -> None:
    assert "streaming_ctc" in STREAMED
