"""Shipped specs, each as two graphs over its parameters: results are those of the models of one file."""

from pathlib import Path

import numpy as np
import pytest
from packed import manifest_text, values_of

import specc
from specc import compiling, readings
from specc.driver import elaborated, open_spec
from specc.packages import open_package, verify_package
from specc.verifying import random_inputs, sizes_for
from specc_onnx import About, Part, package_graphs, target

SMALL = {
    "gpt2": {"layers": 2, "d": 16, "heads": 2, "vocab": 40, "context": 16},
    "lstm_lm": {"width": 8, "vocab": 20},
}
TAPS = {"gpt2": "*.attn", "lstm_lm": "*"}


@pytest.mark.parametrize("name", SMALL)
def test_two_graphs_give_what_two_models_give(name: str, tmp_path: Path) -> None:
    config = SMALL[name]
    spec = open_spec(name, sets=[f"{k}={v}" for k, v in config.items()])
    model = elaborated(spec)
    graphs = {"score": model.graph, "inside": compiling.with_taps(model.graph, (TAPS[name],))}
    reading = readings.reading_of(spec.program, model)
    parts = {
        role: Part(graph, f"{role}.onnx", manifest_text(model, graph, reading, {}, {"seed": 5}))
        for role, graph in graphs.items()
    }
    values = values_of(spec, list(graphs.values()), 5, "")
    written = package_graphs(parts, tmp_path / "both", values, target=target("ort-cpu"), about=About(name))
    alone = tmp_path / "alone.onnx"
    specc.compile(name, alone, init=5, set=config, weights_as="copy")
    assert len(list((tmp_path / "both").glob("*.data"))) == 1
    assert written.data is not None
    # the same parameters of one graph and of two over them are the same bytes
    (other,) = tmp_path.glob("alone-*.data")
    assert (tmp_path / "both" / written.data).read_bytes() == other.read_bytes()

    inputs = random_inputs(model.graph, sizes_for(model.graph, 1), np.random.default_rng(0))
    package = open_package(tmp_path / "both", contents=True)
    want = specc.load(alone).run(**inputs)
    for role in package.roles:
        got = package.load(role).run(**inputs)
        for result, array in want.items():
            np.testing.assert_allclose(got[result], array, rtol=0, atol=1e-5 * np.abs(array).max())
    assert len(package.load("inside").session.outputs) > len(want)
    assert len(list(verify_package(package, rounds=1))) == 2
