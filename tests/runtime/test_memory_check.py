"""Models that exceed the memory are reported before they are opened, with the options that would
fit.
"""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from support.verification_lines import list_model_lines

import specc
from specc.cli.main import main
from specc.diagnostics.diagnostic import SpeccError
from specc.io import memory_check
from specc.runtime.single_model_file import load_model
from specc.weights.formats.safetensors import write_safetensors

SPEC = """\
specc 1
model m
dims batch, n
graph g(x: float[batch, n, 512]) -> (y: float[batch, n, 512]) {
  return linear(linear(x, out=512, bias=false) @ a, out=512, bias=false) @ b
}
weights { tie b.weight = a.weight }
"""
NUMBERS = 512 * 512
HELD = 4 * NUMBERS


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """Return a model that links 16-bit weights, shared by two layers."""
    (tmp_path / "m.specc").write_text(SPEC, encoding="utf-8")
    w = np.ones((512, 512), ml_dtypes.bfloat16)
    write_safetensors(tmp_path / "w.safetensors", {"a.weight": w})
    out = tmp_path / "m.onnx"
    weights = tmp_path / "w.safetensors"
    specc.compile(tmp_path / "m.specc", out, weights=weights, weights_as="link")
    return out


def set_free_memory(patch: pytest.MonkeyPatch, free: int | None) -> None:
    patch.setattr(memory_check, "get_free_memory", lambda: free)


def test_the_estimate_equals_the_memory_of_the_runtime(halves: Path) -> None:
    room = load_model(str(halves)).file.compute_weight_footprint()
    assert (room.element_count, room.stored_bytes, room.memory_bytes) == (
        NUMBERS,
        2 * NUMBERS,
        HELD,
    )


@pytest.mark.parametrize("free", [HELD, None])
def test_a_model_that_fits_is_opened(
    free: int | None, halves: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_free_memory(monkeypatch, free)
    specc.load(halves)


def test_a_model_that_does_not_fit_is_refused_before_it_is_opened(
    halves: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_free_memory(monkeypatch, HELD - 1)
    monkeypatch.setattr("specc_onnx.ort_session.onnxruntime", None)  # no session is opened
    with pytest.raises(SpeccError, match=r"E0804.*m\.onnx"):
        specc.load(halves)
    for words in (["run", str(halves), "[[[0.5]]]"], ["verify", str(halves)]):
        assert main(words) == 3
        said = capsys.readouterr().err
        assert "needs about 1.05 MB of memory, but only 1.05 MB are free" in said
        assert "this model with weights of 8 bits" in said


def test_the_reference_needs_additional_memory(
    halves: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(str(halves))
    set_free_memory(monkeypatch, 2 * NUMBERS - 1)
    with pytest.raises(SpeccError, match="E0804"):
        list(list_model_lines(model))


def test_compile_needs_less_memory_and_warns(halves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_free_memory(monkeypatch, HELD - 1)
    directory = halves.parent
    made = specc.compile(directory / "m.specc", halves, weights=directory / "w.safetensors")
    assert any("the maximum is" in r for r in made.remarks)
    set_free_memory(monkeypatch, HELD)
    made = specc.compile(directory / "m.specc", halves, weights=directory / "w.safetensors")
    assert not any("the maximum is" in r for r in made.remarks)


def test_quantized_weights_count_with_their_size(
    halves: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Integers are used directly: a model that does not fit in float32 may fit in int8, without an
    error.
    """
    set_free_memory(monkeypatch, HELD // 3)
    directory = halves.parent
    given = {"weights": directory / "w.safetensors", "quantize": "int8"}
    made = specc.compile(directory / "m.specc", halves, **given)  # type: ignore[arg-type]
    assert not any("the maximum is" in r for r in made.remarks)
    specc.load(halves).close()
    set_free_memory(monkeypatch, HELD // 5)
    made = specc.compile(directory / "m.specc", halves, **given)  # type: ignore[arg-type]
    assert any("the maximum is" in r for r in made.remarks)


def test_a_container_limit_counts_if_it_is_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable: 5 kB\nSwapFree: 2 kB\n")
    monkeypatch.setattr(memory_check, "_MEMINFO_FILE", meminfo)
    group = (tmp_path, "memory.max", "memory.current", "inactive_file")
    monkeypatch.setattr(memory_check, "_CGROUP_FILES", (group,))
    assert memory_check.get_free_memory() == 7 * 1024
    (tmp_path / "memory.current").write_text("4000")
    (tmp_path / "memory.stat").write_text("anon 3000\ninactive_file 1000\n")
    (tmp_path / "memory.max").write_text("6000\n")
    assert memory_check.get_free_memory() == 3000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_check.get_free_memory() == 7 * 1024
