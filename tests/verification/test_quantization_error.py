"""`verify --baseline` reports the quantization error, and `--threshold` limits it."""

from pathlib import Path

import numpy as np
import pytest
from support.small_configs import SMALL_CONFIGS

import specc
from specc.cli.main import main
from specc.runtime.random_inputs import make_random_inputs
from specc.verification.quantization_error import (
    OutputErrorStats,
    choose_verification_axis_sizes,
    compute_log_softmax,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("losses")
    for kind in ("", "int8", "int4"):
        path = directory / f"gpt2{kind}.onnx"
        specc.compile("gpt2", path, set=SMALL_CONFIGS["gpt2"], init=0, quantize=kind)
    specc.compile("gru_lm", directory / "other.onnx", set=SMALL_CONFIGS["gru_lm"], init=0)
    return {p.stem: str(p) for p in directory.glob("*.onnx")}


def test_error_is_reported(models: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for kind in ("int8", "int4"):
        assert main(["verify", models[f"gpt2{kind}"], "--baseline", models["gpt2"]]) == 0
        line = capsys.readouterr().out.splitlines()[-1]
        assert line.startswith("`logits` against the baseline: error ")
        assert " of the largest value, cosine_distance " in line
        told.append(dict(part.split()[:2] for part in line.split(": ")[1].split(", ")))
    for measure in ("error", "cosine_distance", "kl", "top1_changed"):
        assert 0 <= float(told[0][measure]) <= 1
    assert float(told[0]["error"]) > 1e-5


def test_error_per_layer(models: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The error is zero before the first quantized weight; at each weight it equals the error
    computed with NumPy."""
    given = ["verify", models["gpt2int8"], "--per-layer", "--rounds", "1"]
    assert main([*given, "--baseline", models["gpt2"]]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = {
        line.split("`")[1]: float(line.split()[-1]) for line in lines if "relative error" in line
    }
    low, full = (specc.load(models[f"gpt2{kind}"]).weights() for kind in ("int8", ""))
    graph = specc.load(models["gpt2"]).manifest.graph
    inputs = make_random_inputs(
        graph, choose_verification_axis_sizes(graph), np.random.default_rng(0)
    )
    rows = [w["wte.weight"].astype(float)[inputs["input_ids"]] for w in (low, full)]
    lost = np.linalg.norm(rows[0] - rows[1]) / np.linalg.norm(rows[1])
    assert told["wte"] == pytest.approx(lost, rel=0.05)  # two digits are printed
    assert told["h.0.attn.c_attn"] > 0
    assert main(given) == 1
    assert "E0753" in capsys.readouterr().err


def test_baseline_is_the_same_model(models: dict[str, str]) -> None:
    given = ["verify", models["gpt2int8"], "--baseline", models["gpt2int8"]]
    assert main([*given, "--threshold", "error=0", "--threshold", "kl=0"]) == 0


def test_exceeded_threshold(models: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    given = ["verify", models["gpt2int8"], "--baseline", models["gpt2"]]
    assert main([*given, "--threshold", "error=1e-6"]) == 4
    assert "E0856" in capsys.readouterr().err
    assert main([*given, "--threshold", "error=0.5"]) == 0


def test_baseline_is_another_model(
    models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", models["gpt2int8"], "--baseline", models["other"]]) == 1
    assert "E0857" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["kl", "size=1", "kl=-1", "kl=nan", "kl=inf"])
def test_invalid_thresholds(wrong: str, models: dict[str, str]) -> None:
    given = ["verify", models["gpt2"], "--baseline", models["gpt2"], "--threshold", wrong]
    assert main(given) == 2


def test_measures_computed_by_hand() -> None:
    full = np.array([[[0.0, 1.0], [2.0, 0.0]]], np.float32)
    low = np.array([[[0.0, 1.0], [2.0, 3.0]]], np.float32)
    loss = OutputErrorStats()
    loss.add_result(low, full, is_logits=True)
    p, q = (
        compute_log_softmax(full.astype(float)[0, 1]),
        compute_log_softmax(low.astype(float)[0, 1]),
    )
    found = loss.metrics
    assert found["top1_changed"] == 0.5
    assert found["error"] == 1.5
    assert found["kl"] == pytest.approx(float((np.exp(p) * (p - q)).sum()) / 2)
    assert found["cosine_distance"] == pytest.approx(1 - 5 / (14**0.5 * 5**0.5))


def test_package_is_compared_by_its_score_graph(tmp_path: Path) -> None:
    for kind in ("", "int8"):
        path = tmp_path / f"m{kind}"
        specc.compile(
            "gpt2", path, set=SMALL_CONFIGS["gpt2"], init=0, graphs=["score"], quantize=kind
        )
    given = ["verify", str(tmp_path / "mint8"), "--baseline", str(tmp_path / "m")]
    assert main([*given, "--rounds", "1", "--threshold", "top1_changed=1"]) == 0
