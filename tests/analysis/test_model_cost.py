"""The tree that `show` prints: who comes first, and which layers are one line."""

import pytest

from specc.analysis.model_cost import (
    SummaryNode,
    format_dim_formula,
    format_number_runs,
    summarize_graph,
)
from specc.driver.spec_loader import elaborate_spec, open_spec
from specc.ir.dim import Dim


def tree(name: str, *sets: str) -> SummaryNode:
    return summarize_graph(elaborate_spec(open_spec(name, sets=sets)).graph)


def under(part: SummaryNode, path: str) -> list[str]:
    for name in path.split(".") if path else []:
        part = part.parts[name]
    return list(part.parts)


def test_what_is_read_first_comes_first() -> None:
    # the decoder's masks are made ahead of everything
    assert under(tree("small_translator"), "")[:2] == ["encoder", "decoder"]


@pytest.mark.parametrize("name", ["marian", "bart"])
def test_layers_stand_in_order_and_alike(name: str) -> None:
    # what the decoder makes behind the encoder's last layer is no part of that layer
    layers = under(tree(name), "model.encoder.layers")
    assert layers == ["0 … 11"]


def test_layers_that_begin_otherwise_are_alike() -> None:
    assert under(tree("sparsemax_lm"), "layers") == ["0 … 5"]


def test_layers_in_turn_are_two_lines() -> None:
    assert under(tree("gemma2"), "model.layers") == ["0, 2 … 24", "1, 3 … 25"]
    found = tree("gemma3_text").parts["model"].parts["layers"].parts
    assert sum(part.repeats for part in found.values()) == 26


def test_what_stands_behind_a_layer_is_not_in_it() -> None:
    graph = elaborate_spec(open_spec("electra")).graph
    inside = [
        str(results[0].type)
        for node, results in graph.nodes
        if node in graph.node_origins
        and graph.node_origins[node].scopes[:1] == ("electra.encoder.layer.11",)
    ]
    # the sums and the activation of the layer itself, not the head behind it
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
def test_numbers_of_layers_in_few_words(numbers: list[int], text: str) -> None:
    assert format_number_runs(numbers) == text


def test_long_factors_are_grouped_and_names_are_not() -> None:
    length = Dim.symbol("part12345")
    assert format_dim_formula(length * length * 22020096, {}) == "22 020 096·part12345²"
    assert format_dim_formula(length * 6144, {}) == "6 144·part12345"
    assert format_dim_formula(Dim.of(6144), {}) == "6 144"
