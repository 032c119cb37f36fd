"""What is said of causality along axes on which nothing is generated."""

import pytest

from specc.analysis.analysis_report import analyze_graph
from specc.driver.spec_loader import elaborate_spec, open_spec

SMALL = {"bert": ["layers=1", "d=16", "heads=2"], "gpt2": ["layers=1", "d=16", "heads=2"]}


def lines(name: str, *, growing: str | None = None, source: str | None = None) -> list[str]:
    graph = elaborate_spec(open_spec(name, sets=SMALL.get(name, []))).graph
    return analyze_graph(graph, growing, source).format_lines()


def test_an_encoder_is_not_causal_and_is_told_where() -> None:
    (line,) = [line for line in lines("bert") if "causal" in line]
    assert line.startswith("not causal along seq: `attend` (bert.specc:")


def test_a_decoder_is_causal_whether_it_is_to_write_or_not() -> None:
    assert "causal along seq" in lines("gpt2")
    written = lines("gpt2", growing="input_ids", source="logits")
    assert written.count("causal along seq") == 1


def test_what_a_writer_reads_beside() -> None:
    said = lines("transformer", growing="target", source="logits")
    assert "causal along tgt" in said
    assert "every output depends on all positions of src" in said


def test_a_picture_has_no_such_axis() -> None:
    assert not [line for line in lines("digits") if "causal" in line or "reads" in line]


@pytest.mark.parametrize("name", ["lstm_lm", "gru_lm"])
def test_one_direction_is_causal(name: str) -> None:
    assert "causal along seq" in lines(name)
