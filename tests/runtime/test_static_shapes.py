"""Sessions with fixed input lengths give the results of sessions with dynamic lengths."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.small_configs import SMALL_CONFIGS

import specc
from specc.api import Model
from specc.diagnostics.diagnostic import SpeccError
from specc.runtime.random_inputs import make_random_inputs
from specc_onnx.ort_model import can_capture_cuda_graph

LENGTHS = {
    "bert": {"batch": 3, "seq": 5},
    "rnnsearch": {"batch": 2, "src": 5, "tgt": 3},
    "swin": {"batch": 2},
    "vit": {"batch": 3},
}


def compiled(name: str, directory: Path) -> Model:
    path = directory / f"{name}.onnx"
    specc.compile(name, path, set=SMALL_CONFIGS[name], init=1)
    return specc.load(path)


@pytest.mark.parametrize("name", LENGTHS)
def test_results_equal_those_of_dynamic_lengths(name: str, tmp_path: Path) -> None:
    """For several inputs in sequence: no state of an earlier run remains."""
    model = compiled(name, tmp_path)
    fixed = model.with_static_shapes(**LENGTHS[name])
    for seed in range(3):
        rng = np.random.default_rng(seed)
        inputs = make_random_inputs(model.manifest.graph, LENGTHS[name], rng)
        want, got = model.run(**inputs), fixed.run(**inputs)
        for key, value in want.items():
            most = np.abs(value).max(initial=0)
            assert np.abs(got[key] - value).max(initial=0) <= 1e-5 * most


def test_results_are_not_overwritten_by_the_next_run(tmp_path: Path) -> None:
    """The next run overwrites the internal buffers, not the returned arrays."""
    fixed = compiled("xor", tmp_path).with_static_shapes(batch=1)
    first = fixed.run(x=[[0.0, 1.0]])["y"]
    before = first.copy()
    fixed.run(x=[[1.0, 1.0]])
    np.testing.assert_array_equal(first, before)


def test_threads_take_turns(tmp_path: Path) -> None:
    fixed = compiled("xor", tmp_path).with_static_shapes(batch=1)
    given = [[[a / 9, b / 9]] for a in range(10) for b in range(10)]
    alone = [fixed.run(x=x)["y"].item() for x in given]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda x: fixed.run(x=x)["y"].item(), given))
    assert together == alone


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ({}, "missing length of `batch`"),
        ({"batch": 0}, "a positive integer, got 0"),
        ({"batch": True}, "got True"),
        ({"batch": "\x1b[31m"}, "a positive integer"),
        ({"batch": 1, "rows": 2}, "unknown length `rows`"),
    ],
)
def test_invalid_lengths_are_refused(lengths: dict[str, int], words: str, tmp_path: Path) -> None:
    with pytest.raises(SpeccError) as caught:
        compiled("xor", tmp_path).with_static_shapes(**lengths)
    (told,) = caught.value.diagnostics
    assert told.code == "E0981"
    assert words in told.title
    assert "\x1b" not in told.title


def test_another_length_is_refused(tmp_path: Path) -> None:
    fixed = compiled("xor", tmp_path).with_static_shapes(batch=2)
    with pytest.raises(SpeccError, match="E0912"):
        fixed.run(x=[[0.0, 1.0]])


def test_a_length_above_the_position_table_is_refused(tmp_path: Path) -> None:
    """Reported at run time, as for dynamic lengths: a table of 32 positions."""
    model = compiled("bert", tmp_path)
    fixed = model.with_static_shapes(batch=1, seq=4)
    with pytest.raises(SpeccError, match="E0912"):
        fixed.run(input_ids=[[1] * 5])


@pytest.mark.parametrize(("name", "wanted"), [("vit", True), ("lstm_lm", True), ("dates", False)])
def test_models_with_control_flow_are_not_captured(name: str, wanted: bool, tmp_path: Path) -> None:
    """On CUDA, a GRU cell that resets before its product is a loop."""
    path = tmp_path / "model.onnx"
    specc.compile(name, path, set=SMALL_CONFIGS[name], init=1, target="ort-cuda")
    assert can_capture_cuda_graph(onnx.load(path), "cuda") is wanted
    assert not can_capture_cuda_graph(onnx.load(path), "cpu")
