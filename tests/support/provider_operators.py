"""The operators of a model that the published list of an execution provider does not contain.

A list is a data file in `operator_lists`: its source, the commit and date at which it was read, and
the latest supported version of each standard operator (0 if the list contains no versions).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx

from specc_onnx import build_model, get_target
from support.elaborated_specs import elaborate_with_config
from support.small_configs import SMALL_CONFIGS

LIST_DIRECTORY = Path(__file__).parent / "operator_lists"

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
"""ONNX Runtime implements these itself for every provider; the provider runs their bodies."""


@dataclass(frozen=True)
class OperatorList:
    """A published list; `opset` is the opset at which models are compared with it."""

    provider: str
    source: str
    commit: str
    read: str
    note: str
    opset: int
    operators: Mapping[str, int]

    def find_missing(self, spec: str) -> list[str]:
        """Return the operators of a small built-in spec that the list lacks, or supports in older
        versions only.
        """
        return sorted(
            kind
            for kind, version in list_used_operators(spec, self.opset)
            if kind not in CONTROL_FLOW and not self.has_operator(kind, version)
        )

    def has_operator(self, kind: str, version: int) -> bool:
        """Whether the list contains an operator in the version of an opset."""
        newest = self.operators.get(kind)
        return newest is not None and (newest == 0 or newest >= version)


def read_operator_lists() -> dict[str, OperatorList]:
    """Return every list by the name of its file."""
    return {
        path.stem: OperatorList(**json.loads(path.read_text("utf-8")))
        for path in sorted(LIST_DIRECTORY.glob("*.json"))
    }


@cache
def list_used_operators(spec: str, opset: int) -> frozenset[tuple[str, int]]:
    """Return the operators of a built-in spec for the target `onnx`, each with the opset that last
    defined it.
    """
    sets = {name.replace(".", "__"): value for name, value in SMALL_CONFIGS[spec].items()}
    model = build_model(
        elaborate_with_config(spec, **sets).model.graph, get_target("onnx"), opset
    ).model
    return frozenset(
        (n.op_type, onnx.defs.get_schema(n.op_type, opset, n.domain).since_version)
        for n in iterate_onnx_nodes(model.graph)
    )


def iterate_onnx_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield every node, including nodes of subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from iterate_onnx_nodes(attribute.g)
