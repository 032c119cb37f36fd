"""Causality reports along axes without generation."""

from pathlib import Path

import pytest

from specc.analysis.check_report import analyze_graph
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec

LEAK = """specc 1
model leak
dims batch, seq
mask window(w: int) = abs(i - j) <= w
mask later = j <= i + 1

graph g(x: float[batch, seq, 8]) -> (y: float[batch, seq, 8]) {
  x = x + (attention(x, heads=2, mask=FIRST) @ first)
  return x + (attention(x, heads=2, mask=all) @ second)
}
"""
"""The second attention layer attends to later positions."""
SMALL = {"bert": ["layers=1", "d=16", "heads=2"], "gpt2": ["layers=1", "d=16", "heads=2"]}


def list_analysis_lines(
    name: str, *, growing: str | None = None, source: str | None = None
) -> list[str]:
    graph = elaborate_spec(open_spec(name, config_settings=SMALL.get(name, []))).graph
    return analyze_graph(graph, growing, source).format_lines()


def test_encoder_is_not_causal() -> None:
    lines = list_analysis_lines("bert")
    assert "bidirectional along seq: outputs may depend on later positions" in lines
    assert not [line for line in lines if "causal" in line]


@pytest.mark.parametrize(
    ("first_mask", "line"),
    [
        ("causal", "not causal along seq: `attend` ("),
        ("causal & window(2)", "not causal along seq: `attend` ("),
        ("later", "not causal along seq: `attend` ("),
        ("window(2)", "bidirectional along seq: "),
        ("all", "bidirectional along seq: "),
    ],
)
def test_reason_is_given_if_another_mask_is_causal(
    first_mask: str, line: str, tmp_path: Path
) -> None:
    spec = tmp_path / "leak.specc"
    spec.write_text(LEAK.replace("FIRST", first_mask))
    assert any(found.startswith(line) for found in list_analysis_lines(str(spec)))


CONV = "conv(x, out=8, kernel=3, padding=same) @ conv"


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (CONV, "not causal along seq: `conv` (leak.specc:7:"),
        ("attention(x, heads=2, mask=all) @ attn", "bidirectional along seq: outputs may depend"),
        (f"attention({CONV}, heads=2, mask=all) @ attn", "not causal along seq: `conv` ("),
    ],
)
def test_text_and_json_name_the_op_that_is_not_attention(
    result: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    head = LEAK.partition("  x = x")[0].replace("mask window(w: int) = abs(i - j) <= w\n", "")
    Path("leak.specc").write_text(f"{head}  return {result}\n}}\n")
    report = analyze_graph(elaborate_spec(open_spec("leak.specc")).graph)
    (axis,) = report.other_axes
    assert axis.format_line().startswith(line)
    assert axis.format_line().endswith(f": {axis.reason}")


def test_decoder_is_causal_with_and_without_generation() -> None:
    assert "causal along seq" in list_analysis_lines("gpt2")
    written = list_analysis_lines("gpt2", growing="input_ids", source="logits")
    assert written.count("causal along seq") == 1


def test_source_axis_of_a_generator() -> None:
    said = list_analysis_lines("transformer", growing="target", source="logits")
    assert "causal along tgt" in said
    assert "every output depends on all positions of src" in said


def test_image_model_has_no_time_axis() -> None:
    assert not [
        line for line in list_analysis_lines("digits") if "causal" in line or "reads" in line
    ]


@pytest.mark.parametrize("name", ["lstm_lm", "gru_lm"])
def test_unidirectional_rnn_is_causal(name: str) -> None:
    assert "causal along seq" in list_analysis_lines(name)
