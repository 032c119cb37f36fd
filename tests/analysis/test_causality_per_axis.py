"""Causality reports along axes without generation."""

import pytest

from specc.analysis.check_report import analyze_graph
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec

SMALL = {"bert": ["layers=1", "d=16", "heads=2"], "gpt2": ["layers=1", "d=16", "heads=2"]}


def list_analysis_lines(
    name: str, *, growing: str | None = None, source: str | None = None
) -> list[str]:
    graph = elaborate_spec(open_spec(name, config_settings=SMALL.get(name, []))).graph
    return analyze_graph(graph, growing, source).format_lines()


def test_encoder_is_not_causal() -> None:
    (line,) = [line for line in list_analysis_lines("bert") if "causal" in line]
    assert line.startswith("not causal along seq: `attend` (bert.specc:")


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
