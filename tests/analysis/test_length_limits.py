"""Position embeddings limit lengths."""

from specc.analysis.length_limits import find_length_limits, find_min_lengths
from specc.diagnostics.diagnostic import Source
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec

SPEC = """specc 1
model m
dims batch, n
graph g(x: float[batch, n, 4]) -> (y: float[batch, n, 4]) {
  table = parameter(shape=[9, 4]) @ table
  return x + gather(table[:8], positions(x), axis=0)
}
"""


def test_slice_of_a_gathered_table() -> None:
    """Positions gathered from the first eight rows of a table limit the length to eight."""
    graph = elaborate_spec(open_spec(Source("m.specc", SPEC))).graph
    (limit,) = find_length_limits(graph).values()
    assert (limit.symbol, limit.max_length, limit.table_name) == ("n", 8, "table")


def test_argmax_needs_a_position() -> None:
    """An axis of a dynamic length under `argmax` is not empty; an axis of the features is free."""
    text = """specc 1
model m
dims batch, n
graph g(x: float[batch, n, 4]) -> (y: int[batch, 4], w: int[batch, n]) {
  return argmax(x, axis=1), argmax(x)
}
"""
    graph = elaborate_spec(open_spec(Source("m.specc", text))).graph
    assert find_min_lengths(graph) == {"n": 1}
