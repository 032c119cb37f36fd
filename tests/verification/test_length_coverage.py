"""`specc verify` compares lengths above every constant of a mask, or lists them as not covered."""

import json
import random
from pathlib import Path

import pytest
from support.parameter_sweeps import sample_sweep

import specc
from specc.cli import main as cli
from specc.verification import length_coverage
from specc.verification.model_verification import verify_graph

HEAD = """specc 1
model m
dims batch >= 1, n >= 1
mask near(w: int) = abs(i - j) < w
mask before(w: int) = j <= i & i - j < w
"""
SHORTEST = HEAD + "graph g(x: float[batch, n, 4]) -> (y: float[batch, _, 4]) {\n"
DECODER = (
    HEAD
    + """graph g(ids: int[batch, n]) -> (logits: float[batch, n, 11]) {
  x = embedding(ids, size=11, dim=8) @ e
  return linear(attention(x, heads=2, mask=causal & window(WIDTH)) @ a, out=11) @ h
}
generate text of ids from logits { max_tokens = 3 }
"""
)


def make_random_spec(seed: int) -> tuple[str, list[int]]:
    """Return a stack of windowed attentions, perhaps after a stride, and the lengths above which
    each window has an effect."""
    rng = random.Random(seed)
    stride = rng.choice([1, 1, 2, 16])
    lines = [f"  x = conv(x, out=4, kernel={stride}, stride={stride}) @ c"] if stride > 1 else []
    lengths = []
    for n in range(rng.randint(1, 3)):
        width = rng.choice([3, 17, 60, 150, 700, 5000, 30_000])
        form = rng.choice(["window(W)", "near(W)", "before(W)"])
        lines.append(f"  x = attention(x, heads=2, mask={form.replace('W', str(width))}) @ a{n}")
        lengths.append(width * stride)
    return SHORTEST + "\n".join([*lines, "  return x", "}"]), lengths


@pytest.mark.parametrize("work", [1e4, 1e7, 3e8])
@pytest.mark.parametrize("seed", sample_sweep(range(6)))
def test_every_window_is_exceeded_or_listed(
    seed: int, work: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(length_coverage, "MAX_WORK", work)
    text, lengths = make_random_spec(seed)
    (tmp_path / "m.specc").write_text(text)
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", init=0)
    found = list(verify_graph(specc.load(tmp_path / "m.onnx").scoring_model))
    longest = max(one.sizes.get("n", 0) for one in found if one.is_compared)
    listed = [name for one in found for name in one.skipped_lengths]
    beyond = [length for length in lengths if length >= longest]
    if beyond:
        (name,) = listed
        assert name.startswith("n above ")
        assert int(name.removeprefix("n above ")) <= min(beyond)
    strict = cli.main(["verify", str(tmp_path / "m.onnx"), "--strict", "-q"])
    assert strict == (5 if listed or any(one.uncovered_subgraphs for one in found) else 0)


@pytest.mark.parametrize("parts", ["score,step", "generate"])
@pytest.mark.parametrize(("width", "covered"), [(40, True), (300_000, False)])
def test_windows_of_generated_sequences(
    parts: str, width: int, covered: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.specc").write_text(DECODER.replace("WIDTH", str(width)))
    path = tmp_path / ("m.onnx" if parts == "generate" else "m.pkg")
    arguments = ["--graphs", parts, "--init", "0", "-o", str(path), "-q"]
    assert cli.main(["compile", str(tmp_path / "m.specc"), *arguments]) == 0
    capsys.readouterr()
    status = cli.main(["verify", str(path), "--strict", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert status == (0 if covered else 5), found
    listed = [name for one in found["rounds"] for name in one["skipped_lengths"]]
    assert bool(listed) != covered
    if not covered:
        assert f"n above {width}" in listed
        assert found["diagnostics"][0]["code"] == "E0933"
