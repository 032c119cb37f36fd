"""Tied weights in compiled models: weight counts and changes agree with the spec."""

from pathlib import Path

import numpy as np
import pytest
from support.small_configs import SMALL_CONFIGS

import specc
from specc.cli.main import main
from specc.weights.formats.safetensors import write_safetensors

LATER = pytest.mark.parity


def get_ties(model: Path) -> dict[str, str]:
    facts = specc.load(model).manifest.graph.parameter_facts
    return {p.name: p.tied_to for p in facts.values() if p.tied_to}


@pytest.mark.parametrize("kind", ["none", pytest.param("int8", marks=LATER)])
def test_manifest_records_ties(kind: str, tmp_path: Path) -> None:
    out, sets = tmp_path / "m.onnx", SMALL_CONFIGS["gpt2"]
    specc.compile("gpt2", out, init=0, set=sets, quantize=kind)
    assert get_ties(out) == {"lm_head.weight": "wte.weight"}


def test_different_copies_are_not_tied(tmp_path: Path) -> None:
    """The spec ties them, but the file contains two different tensors."""
    out, sets = tmp_path / "m.onnx", SMALL_CONFIGS["gpt2"]
    specc.compile("gpt2", out, init=0, set={**sets, "tied": False})
    weights = dict(specc.load(out).weights())
    # GPT-2 checkpoints store transposed matrices
    turned = {n: np.ascontiguousarray(w.T) for n, w in weights.items() if ".c_" in n}
    given = tmp_path / "w.safetensors"
    write_safetensors(given, {**weights, **turned})
    specc.compile("gpt2", out, weights=given, set=sets, force=True)
    assert not get_ties(out)


def test_tied_weights_are_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The count of a compiled model equals that of its spec."""
    specs = []
    for layers in (1, 2):
        specs.append(tmp_path / f"m{layers}.specc")
        values = "d = 16  heads = 2  vocab = 64  context = 16  stop = [3]"
        text = f"config {{ layers = {layers}  {values} }}\n"
        specs[-1].write_text(f"specc 1\nmodel m\nextends gpt2\n{text}")
    specc.compile(specs[1], tmp_path / "m.onnx", init=0)
    counts = []
    for other in (specs[1], tmp_path / "m.onnx"):
        main(["diff", str(specs[0]), str(other)])
        lines = capsys.readouterr().out.splitlines()
        counts.append([line for line in lines if "weights" in line.split()])
    assert counts[0]
    assert counts[0] == counts[1]
