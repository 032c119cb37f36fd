"""Graphs survive a round trip through IR text, and a modified text is parsed or rejected with a
code.
"""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.op_examples import EXAMPLES, build_example_graph
from support.random_graphs import make_random_graph, sample_graph_values

import specc_numpy
from specc.diagnostics.diagnostic import SpeccError
from specc.ir.graph import Graph
from specc.ir.ir_parser import parse_ir
from specc.ir.ir_printer_and_lexer import format_ir
from specc.ir.ir_verifier import find_graph_errors


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_parsing_inverts_printing(seed: int) -> None:
    graph = make_random_graph(seed)
    text = format_ir(graph)
    again = parse_ir(text)["random"]
    assert format_ir(again) == text
    assert find_graph_errors(again) == []
    inputs, weights = sample_graph_values(graph, seed, 5)
    for name, found in specc_numpy.evaluate_graph(graph, inputs, weights).items():
        np.testing.assert_array_equal(
            specc_numpy.evaluate_graph(again, inputs, weights)[name], found
        )


TEXTS = [format_ir(build_example_graph(e)[0]) for e in EXAMPLES] + [
    format_ir(make_random_graph(s)) for s in range(20)
]


@pytest.mark.parametrize("seed", range(8))
def test_a_mutated_text_is_parsed_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(120):
        text = rng.choice(TEXTS)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(text))
            piece = rng.choice(
                [
                    "",
                    "0",
                    "-1",
                    "9" * 20,
                    '"',
                    "%0",
                    "<",
                    "(",
                    "\n",
                    "é",
                    "\x00",
                    "_",
                    rng.choice(text),
                ]
            )
            text = text[:at] + piece + text[at + rng.choice([0, 0, 1, 5]) :]
        graphs, codes = read_or_refuse(text)
        assert codes <= {"E0927", "E0928"}
        for graph in graphs.values():
            assert find_graph_errors(graph) == []


def read_or_refuse(text: str) -> tuple[dict[str, Graph], set[str]]:
    """Return the graphs of a text, or the codes of its errors; other exceptions fail."""
    try:
        return parse_ir(text), set()
    except SpeccError as refused:
        return {}, {d.code for d in refused.diagnostics}
