"""Derive encoder and decode step in one call."""

from collections.abc import Mapping

from specc.incremental.step_graph import build_encoder_and_step_graphs, derive_step_graph
from specc.incremental.step_plan import OutputPositions
from specc.ir.graph import Graph
from specc.ir.model_definition import DerivedGraphs


def derive_encoder_and_step(
    graph: Graph,
    growing: str,
    outputs: Mapping[str, OutputPositions],
    *,
    begins: str = "",
    chunk: int = 1,
) -> DerivedGraphs:
    """Derive `encode` and `step` of `graph` for these outputs."""
    return build_encoder_and_step_graphs(
        derive_step_graph(graph, growing, outputs, first_token_logits=begins, chunk_length=chunk)
    )
