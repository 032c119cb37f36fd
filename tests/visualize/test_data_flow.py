"""Drawings equal the data flow: two parts have an edge if and only if one reads what the other
computes, verified by a graph search from every part."""

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import TypeAlias

import pytest
from support.small_configs import SMALL_CONFIGS

from specc.drawing.drawing_elements import TextElement
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.library.spec_file_lookup import find_builtin_specs
from specc.visualize.block_dataflow import (
    LENGTH_OPERATIONS,
    VIEW_OPERATIONS,
    DiagramItem,
    find_node_scopes,
    is_float_value,
    is_scope_inside,
)
from specc.visualize.block_layout import draw_block
from specc.visualize.block_tree import Block, build_diagram_block_tree, choose_blocks_to_expand

SOME = ("bert", "t5", "rnnsearch", "transformer", "llava", "perceiver")
ALL = [
    pytest.param(name, marks=[] if name in SOME else pytest.mark.slow)
    for name in find_builtin_specs()
]


def elaborate_small(name: str) -> Graph:
    """Return the graph of a built-in spec, small."""
    values = SMALL_CONFIGS.get(name, {}).items()
    sets = [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in values]
    return elaborate_spec(open_spec(name, config_settings=sets)).graph


Homes: TypeAlias = Mapping[Node, str]
NONE: Set[Node] = frozenset()


class DataFlowOracle:
    """The parts that each part of a scope reads, by depth-first search. `part_of` maps a node to
    its part."""

    def __init__(
        self, graph: Graph, part_of: Mapping[Node, DiagramItem], outside: Set[Node] = NONE
    ) -> None:
        self.part_of, self.outside = part_of, outside
        self.results = dict(graph.nodes)
        self.inputs = {*graph.inputs.values()}

    def sources(self, value: Value, *, mask: bool = False) -> Iterator[DiagramItem | Value]:
        """Yield the parts, and graph inputs, from which a value is computed directly."""
        open_, seen = [(value, mask)], set()
        while open_:
            value, mask = open_.pop()
            if (value, mask) in seen:
                continue
            seen.add((value, mask))
            node = value.node
            if node is not None and node in self.part_of:
                if is_float_value(value) or not mask:
                    yield self.part_of[node]
            elif node is None or node in self.outside:
                weight = node is None and value not in self.inputs
                if not weight and (is_float_value(value) or not mask):
                    yield value
            elif not isinstance(node.op, LENGTH_OPERATIONS):
                open_ += [(a, mask or self.hides(a, node)) for a in node.args if a]

    def hides(self, arg: Value, node: Node) -> bool:
        """Return True if a node reads an operand only as a mask."""
        return arg.type.dtype == "bool" and is_float_value(self.results[node][0])


def is_computed(node: Node, results: tuple[Value, ...]) -> bool:
    """Return True if a node computes floats and is not a view."""
    return is_float_value(results[0]) and not isinstance(node.op, VIEW_OPERATIONS)


def list_shown_blocks(root: Block) -> list[Block]:
    """Return the blocks with parts."""
    return [b for b in root.walk_blocks() if b.inner_blocks]


def map_nodes_to_parts(
    graph: Graph, homes: Mapping[Node, str], block: Block
) -> dict[Node, DiagramItem]:
    """Return the part of a block that contains each node: an op, or the innermost block."""
    found = {i.node: i for i in block.flow.items if i.role == "op" and i.node}
    for item in block.flow.items:
        if item.role == "block":
            found |= dict.fromkeys(list_members(graph, homes, block, item.name), item)
    return found


def list_members(graph: Graph, homes: Mapping[Node, str], block: Block, name: str) -> list[Node]:
    """Return the nodes of an inner block and its repetitions."""
    inner = block.inner_blocks[name]
    return [
        node
        for node, results in graph.nodes
        if is_computed(node, results)
        and any(is_scope_inside(homes[node], scope) for scope in inner.members)
    ]


def check_edges(graph: Graph, homes: Homes, root: Block) -> None:
    """An edge exists if and only if data flows between two parts."""
    for block in list_shown_blocks(root):
        part_of = map_nodes_to_parts(graph, homes, block)
        outside = {
            node
            for node, results in graph.nodes
            if is_computed(node, results) and not is_scope_inside(homes[node], block.outer_path)
        }
        oracle = DataFlowOracle(graph, part_of, outside - part_of.keys())
        read = {
            (source, item)
            for node, item in part_of.items()
            for arg in node.args
            if arg
            for source in oracle.sources(arg, mask=oracle.hides(arg, node))
            if source != item
        }
        items = block.flow.items
        drawn = {
            (items[a], items[b])
            for a, b in block.flow.edges
            if {items[a].role, items[b].role} <= {"block", "op"}
        }
        assert drawn == {e for e in read if isinstance(e[0], DiagramItem)}, block.path
        fed = {items[b] for a, b in block.flow.edges if items[a].role == "port"}
        fed -= {item for item in fed if item.role == "result"}
        assert fed == {b for a, b in read if isinstance(a, Value)}, block.path


def check_reachability(graph: Graph, homes: Homes, root: Block) -> None:
    """Every part leads to a result and is reachable from an input, except parts that contain only
    weights, such as position embeddings."""
    for block in root.walk_blocks():
        items, edges = block.flow.items, block.flow.edges
        reached = {n for n, i in enumerate(items) if i.role == "result"}
        while more := {a for a, b in edges if b in reached} - reached:
            reached |= more
        assert reached == {*range(len(items))}, block.path
        oracle = DataFlowOracle(graph, {})
        for number, item in enumerate(items):
            if item.role != "block" or any(b == number for _, b in edges):
                continue
            for node in list_members(graph, homes, block, item.name):
                read = [
                    s for a in node.args if a for s in oracle.sources(a, mask=oracle.hides(a, node))
                ]
                inputs = [v for v in read if v in graph.inputs.values()]
                assert not inputs, (block.path, item.name)


def find_ancestors(value: Value, seen: set[Value]) -> set[Value]:
    """Return the value and all values that it is computed from."""
    open_ = [value]
    while open_:
        if (one := open_.pop()) not in seen:
            seen.add(one)
            open_ += [a for a in one.node.args if a] if one.node else []
    return seen


def reads_inputs(graph: Graph, value: Value) -> bool:
    """Return True if a value depends on an input and not only on weights."""
    return not find_ancestors(value, set()).isdisjoint(graph.inputs.values())


def check_residuals(graph: Graph, homes: Homes, root: Block) -> None:
    """Every residual sum is a `+` of some block."""
    drawn = {i.node for b in root.walk_blocks() for i in b.flow.items if i.role == "op"}
    scopes = {b.outer_path for b in root.walk_blocks() if b.inner_blocks}
    leaves = [b.outer_path for b in root.walk_blocks() if not b.inner_blocks]
    weights = {*graph.parameters.values()}
    for node, _ in graph.nodes:
        if not (isinstance(node.op, ops.Arith) and node.op.fn == "add"):
            continue
        if not all(a and is_float_value(a) and reads_inputs(graph, a) for a in node.args):
            continue
        if homes[node] not in scopes or any(is_scope_inside(homes[node], s) for s in leaves if s):
            continue
        a, b = node.args
        assert a is not None
        assert b is not None
        residual = (a in find_ancestors(b, set()) or b in find_ancestors(a, set())) and a is not b
        made = {v.node for v in find_ancestors(a, set()) ^ find_ancestors(b, set()) if v.node}
        if residual and any(weights.intersection(n.args) for n in made):
            assert node in drawn, homes[node]


def check_labels(graph: Graph, root: Block) -> None:
    """No box is labeled by a number only."""
    drawing = draw_block(root, choose_blocks_to_expand(root, 60), graph.name)
    labels = [element.text for element in drawing.elements if isinstance(element, TextElement)]
    numbers = [t for t in labels if t.strip().replace(" … ", "").isdecimal()]
    assert not numbers


@pytest.mark.parametrize("name", ALL)
def test_drawings_equal_the_data_flow(name: str) -> None:
    graph = elaborate_small(name)
    homes, root = find_node_scopes(graph), build_diagram_block_tree(graph)
    check_edges(graph, homes, root)
    check_reachability(graph, homes, root)
    check_residuals(graph, homes, root)
    check_labels(graph, root)


def test_bert_residual_connections() -> None:
    """Devlin et al., 2018: LayerNorm(x + dense(h)) twice per layer."""
    root = build_diagram_block_tree(elaborate_small("bert"))
    for path in ("bert.encoder.layer.0.attention.output", "bert.encoder.layer.0.output"):
        flow = next(b for b in root.walk_blocks() if b.path == path).flow
        names = [(flow.items[a].name, flow.items[b].name) for a, b in flow.edges]
        assert ("dense", "+") in names
        assert ("+", "LayerNorm") in names
        assert [n for n in names if n[1] == "+"] != [("dense", "+")]


@pytest.mark.parametrize("mistake", ["edge", "extra", "lost"])
def test_planted_bugs_are_found(mistake: str) -> None:
    graph = elaborate_small("bert")
    homes, root = find_node_scopes(graph), build_diagram_block_tree(graph)
    flow = root.inner_blocks["bert"].flow
    _, b = flow.edges[-2]
    blocks = [n for n, item in enumerate(flow.items) if item.role == "block"]
    edges = {
        "edge": flow.edges[:-3],
        "extra": (*flow.edges, (blocks[0], blocks[-1])),
        "lost": tuple(e for e in flow.edges if e[1] != b),
    }[mistake]
    changed = replace(root.inner_blocks["bert"], flow=replace(flow, edges=edges))
    wrong = replace(root, inner_blocks={**root.inner_blocks, "bert": changed})
    with pytest.raises(AssertionError):
        check_edges(graph, homes, wrong)
        check_reachability(graph, homes, wrong)
