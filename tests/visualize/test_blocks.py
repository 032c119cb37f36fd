"""Architecture blocks: their weights, cost and data flow."""

import json
from collections.abc import Iterator

import pytest
from support.small_configs import SMALL_CONFIGS

from specc.analysis.model_cost import count_parameters
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.graph import Graph
from specc.library.spec_file_lookup import find_builtin_specs
from specc.visualize.block_dataflow import BlockDataflow
from specc.visualize.block_tree import Block, build_diagram_block_tree
from specc.visualize.scope_summary import summarize_graph

SOME = ("digits", "rnnsearch", "perceiver", "xor", "han")
ALL = [
    pytest.param(name, marks=[] if name in SOME else pytest.mark.slow)
    for name in find_builtin_specs()
]


def elaborate_graph(name: str, *sets: str) -> Graph:
    return elaborate_spec(open_spec(name, config_settings=sets)).graph


def list_named_edges(flow: BlockDataflow) -> Iterator[tuple[str, str]]:
    for a, b in flow.edges:
        yield flow.items[a].name, flow.items[b].name


@pytest.mark.parametrize("name", ALL)
def test_block_weights_and_cost_equal_the_graph(name: str) -> None:
    # some specs have no default vocabulary size
    sets = [
        f"{k}={v if isinstance(v, str) else json.dumps(v)}"
        for k, v in SMALL_CONFIGS.get(name, {}).items()
    ]
    graph = elaborate_graph(name, *([] if name in SOME else sets))
    root = build_diagram_block_tree(graph)
    assert root.parameter_count == count_parameters(graph)
    assert root.multiply_adds == summarize_graph(graph).sum_over_subtree("multiply_adds")
    for block in root.walk_blocks():
        for a, b in block.flow.edges:
            assert {a, b} <= {*range(len(block.flow.items))}
        inside = {item.name for item in block.flow.items if item.role == "block"}
        assert inside <= set(block.inner_blocks)


def find_block(root: Block, path: str) -> Block:
    return next(block for block in root.walk_blocks() if block.path == path)


def test_gpt2_layer_equals_the_paper() -> None:
    """Pre-norm with two residual connections (Radford et al., 2019, sec. 2.3)."""
    layer = find_block(build_diagram_block_tree(elaborate_graph("gpt2", "layers=3")), "h.0")
    assert (layer.name, layer.repeats) == ("h.0 … 2", 3)
    assert list(list_named_edges(layer.flow)) == [
        ("", "ln_1"), ("ln_1", "attn"), ("", "+"), ("attn", "+"), ("+", "ln_2"),
        ("ln_2", "mlp"), ("+", "+"), ("mlp", "+"), ("+", ""),
    ]  # fmt: skip
    assert layer.flow.items[0].role == "port"
    assert layer.kind == "attention"
    assert layer.inner_blocks["mlp"].kind == "linear"


def test_edges_from_encoder_to_decoder() -> None:
    root = build_diagram_block_tree(elaborate_graph("numbers"))
    assert ("encoder", "decoder") in list(list_named_edges(root.flow))
    assert ("target", "decoder") in list(list_named_edges(root.flow))
    cross = find_block(root, "decoder.layers.0.encoder_attn")
    edges = list(list_named_edges(cross.flow))
    assert ("encoder", "k_proj") in edges
    assert ("encoder", "v_proj") in edges
    assert ("encoder", "q_proj") not in edges
    # also if the layers that read it come first
    decoder = list(list_named_edges(find_block(root, "decoder").flow))
    assert ("encoder", "layers.0 … 2") in decoder
    # a shared constant creates no edge
    assert not [e for e in list_named_edges(find_block(root, "decoder").flow) if e[1] == "×"]


def test_blocks_have_source_lines() -> None:
    root = build_diagram_block_tree(elaborate_graph("digits"))
    lines = [line for block in root.walk_blocks() for line in block.lines]
    assert {line.file for line in lines} >= {"vit.specc"}
    for line in lines:
        assert line.line_number >= 1
        assert line.text
    norm = find_block(root, "vit.layernorm")
    assert norm.description.startswith("`(x - mean) / sqrt(var + eps) * g + b`")
    assert norm.output_type == "[batch, 17, 48]"
