"""For every kind of quantization, an option or setting changes the stored weights, is rejected, or
is reported to have no effect."""

from pathlib import Path

import numpy as np
import pytest

import specc
from specc.cli.main import main
from specc.transforms.quantization_plan import QUANTIZATION_KINDS

LATER = pytest.mark.parity
MODEL = """\
specc 1
model m
dims batch, n

graph g(ids: int[batch, n]) -> (logits: float[batch, n, 48]) {
  x = embedding(ids, size=48, dim=32) @ table
  h = lstm(layer_norm(x, eps=1e-5) @ norm, hidden=32) @ rnn
  return linear(layer_norm(linear(h, out=32) @ map, eps=1e-5) @ last, out=48) @ head
}

generate text of ids from logits { stop = 1 }
"""
NO_HEAD = """\
specc 1
model m
dims batch, n

graph g(x: float[batch, n, 32]) -> (y: float[batch, n, 32]) {
  h = lstm(linear(x, out=32) @ map, hidden=32) @ rnn
  return h
}
"""
OPTIONS = {
    "--group-size 32": {"group_size": 32},
    "--group-size 128": {"group_size": 128},
    "--quantize-all": {"quantize_all": True},
    "--lm-head-bits 4": {"lm_head_bits": 4},
    "--lm-head-bits none": {"lm_head_bits": "none"},
    "--quantize-exclude map": {"quantize_exclude": ["map"]},
    "--fold-norms": {"fold_norms": True},
    "--calibration-samples 2": {"calibration_samples": 2},
    "--calibration-data": {"calibration_data": "x.npz"},
    "--kv-cache int8": {"kv_cache": "int8"},
}
QUICK = {("int8", "--group-size 32"), ("int4", "--quantize-all")}
USUAL = {"--group-size 128"}
"""What says only what is so without it, where it means something."""


def read_stored_weights(path: Path) -> dict[str, object]:
    """Return the format and bytes of each weight."""
    model = specc.load(path)
    rounded = model.manifest.quantized
    return {
        name: (rounded[name].format if name in rounded else None, value.tobytes())
        for name, value in model.weights().items()
    }


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        pytest.param(kind, o, marks=[] if (kind, o) in QUICK else LATER)
        for kind in QUANTIZATION_KINDS
        for o in OPTIONS
    ],
)
def test_every_option_has_an_effect_or_a_remark(
    kind: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.specc").write_text(MODEL)
    np.savez("x.npz", ids=np.arange(12).reshape(2, 6))
    specc.compile("m.specc", "plain.onnx", init=0, quantize=kind)
    try:
        made = specc.compile("m.specc", "m.onnx", init=0, quantize=kind, **OPTIONS[option])
    except specc.SpeccError as failed:
        (told,) = failed.diagnostics
        assert told.code in ("E0753", "E0951")
        # an error mentions the option
        word = option.partition(" ")[0]
        assert word in told.title or word in " ".join(told.helps)
        assert not (tmp_path / "m.onnx").exists()
        return
    remarks = " ".join(made.remarks)
    # random norm weights are all 1, so folding them changes nothing
    said = option.partition(" ")[0] in remarks or "the weights of 1 norm" in remarks
    changed = read_stored_weights(tmp_path / "m.onnx") != read_stored_weights(
        tmp_path / "plain.onnx"
    )
    assert option in USUAL or said != changed


@pytest.mark.parametrize(
    ("kind", "word", "idle"),
    [
        ("int8", "group_size = 32", True),
        ("int8", "all = true", True),
        ("int8", "all = false", False),
        pytest.param("int8-tensor", "group_size = 32", True, marks=LATER),
        pytest.param("int4", "all = true", False, marks=LATER),
        pytest.param("int8-weights", "group_size = 16", False, marks=LATER),
    ],
)
def test_settings_without_effect_are_reported(
    kind: str, word: str, idle: bool, tmp_path: Path
) -> None:
    """The settings may be for another kind that an option selects."""
    spec = tmp_path / "m.specc"
    spec.write_text(f'{MODEL}quantize {{ default = "{kind}"  {word} }}\n')
    made = specc.compile(spec, tmp_path / "m.onnx", init=0)
    line = f"`{word.split()[0]}` in the spec has no effect"
    assert idle == any(line in remark for remark in made.remarks)


def test_lm_head_bits_without_lm_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "m.specc"
    spec.write_text(NO_HEAD)
    given = ["--quantize=int8", "--lm-head-bits=none", "--init=0"]
    assert main(["compile", str(spec), *given, "-o", str(tmp_path / "m.onnx")]) == 0
    assert "`--lm-head-bits` has no effect" in capsys.readouterr().err
