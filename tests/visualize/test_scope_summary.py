"""The tree of `show`: order of its parts and grouping of equal layers."""

import pytest

from specc.analysis.model_cost import format_dim_formula
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.dim import Dim
from specc.visualize.scope_summary import ScopeSummary, format_number_ranges, summarize_graph


def summarize_spec(name: str, *sets: str) -> ScopeSummary:
    return summarize_graph(elaborate_spec(open_spec(name, config_settings=sets)).graph)


def list_parts(part: ScopeSummary, path: str) -> list[str]:
    for name in path.split(".") if path else []:
        part = part.children[name]
    return list(part.children)


def test_parts_are_in_reading_order() -> None:
    # the decoder's masks are computed first
    assert list_parts(summarize_spec("small_translator"), "")[:2] == ["encoder", "decoder"]


@pytest.mark.parametrize("name", ["marian", "bart"])
def test_equal_layers_are_grouped(name: str) -> None:
    # values that the decoder computes from the last encoder layer are not part of that layer
    layers = list_parts(summarize_spec(name), "model.encoder.layers")
    assert layers == ["0 … 11"]


def test_layers_with_different_inputs_are_grouped() -> None:
    assert list_parts(summarize_spec("sparsemax_lm"), "layers") == ["0 … 5"]


def test_alternating_layers_are_two_groups() -> None:
    assert list_parts(summarize_spec("gemma2"), "model.layers") == ["0, 2 … 24", "1, 3 … 25"]
    found = summarize_spec("gemma3_text").children["model"].children["layers"].children
    assert sum(part.repeats for part in found.values()) == 26


def test_head_is_not_part_of_the_last_layer() -> None:
    graph = elaborate_spec(open_spec("electra")).graph
    inside = [
        str(results[0].type)
        for node, results in graph.nodes
        if node in graph.node_origins
        and graph.node_origins[node].scopes[:1] == ("electra.encoder.layer.11",)
    ]
    # the sums and the activation of the layer, not the head after it
    assert inside
    assert all(text.startswith("f32[batch, seq, ") for text in inside), inside


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([0, 1], "0 … 1"),
        ([0, 1, 2], "0 … 2"),
        ([0, 2], "0, 2"),
        ([1, 3, 5], "1, 3 … 5"),
        ([0, 1, 2, 4, 5, 6], "0 … 2, 4 … 6"),
        ([0, 1, 3, 5, 6, 8, 9, 10], "0 … 1, 3, 5 … 6, …"),
    ],
)
def test_layer_number_ranges(numbers: list[int], text: str) -> None:
    assert format_number_ranges(numbers) == text


def test_digit_grouping() -> None:
    length = Dim.symbol("part12345")
    assert format_dim_formula(length * length * 22020096, {}) == "22 020 096·part12345²"
    assert format_dim_formula(length * 6144, {}) == "6 144·part12345"
    assert format_dim_formula(Dim.from_value(6144), {}) == "6 144"
