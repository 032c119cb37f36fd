"""An architecture as blocks: what they hold and cost, and what flows between them."""

import json
from collections.abc import Iterator

import pytest
from support.small_configs import SMALL_CONFIGS

from specc.analysis.model_cost import count_parameters, summarize_graph
from specc.driver.spec_loader import elaborate_spec, open_spec
from specc.ir.graph import Graph
from specc.library.spec_reader import list_builtin_specs
from specc.visualize.block_dataflow import BlockFlow
from specc.visualize.block_tree import Block, build_block_tree

SOME = ("digits", "rnnsearch", "perceiver", "xor", "han")
ALL = [
    pytest.param(name, marks=[] if name in SOME else pytest.mark.slow)
    for name in list_builtin_specs()
]


def graph_of(name: str, *sets: str) -> Graph:
    return elaborate_spec(open_spec(name, sets=sets)).graph


def named(flow: BlockFlow) -> Iterator[tuple[str, str]]:
    for a, b in flow.edges:
        yield flow.items[a].name, flow.items[b].name


@pytest.mark.parametrize("name", ALL)
def test_blocks_hold_and_cost_what_the_graph_does(name: str) -> None:
    # some have no default for how many words there are
    sets = [
        f"{k}={v if isinstance(v, str) else json.dumps(v)}"
        for k, v in SMALL_CONFIGS.get(name, {}).items()
    ]
    graph = graph_of(name, *([] if name in SOME else sets))
    root = build_block_tree(graph)
    assert root.weights == count_parameters(graph)
    assert root.work == summarize_graph(graph).sum_parts("multiply_adds")
    for block in root.all():
        for a, b in block.flow.edges:
            assert {a, b} <= {*range(len(block.flow.items))}
        inside = {item.name for item in block.flow.items if item.role == "block"}
        assert inside <= set(block.inner)


def block_at(root: Block, path: str) -> Block:
    return next(block for block in root.all() if block.path == path)


def test_a_layer_of_gpt2_is_as_its_paper_draws_it() -> None:
    """Norms in front, two residual connections (Radford et al., 2019, sec. 2.3)."""
    layer = block_at(build_block_tree(graph_of("gpt2", "layers=3")), "h.0")
    assert (layer.name, layer.repeats) == ("h.0 … 2", 3)
    assert list(named(layer.flow)) == [
        ("", "ln_1"), ("ln_1", "attn"), ("", "+"), ("attn", "+"), ("+", "ln_2"),
        ("ln_2", "mlp"), ("+", "+"), ("mlp", "+"), ("+", ""),
    ]  # fmt: skip
    assert layer.flow.items[0].role == "port"
    assert layer.kind == "attention"
    assert layer.inner["mlp"].kind == "linear"


def test_a_decoder_reads_its_encoder() -> None:
    root = build_block_tree(graph_of("numbers"))
    assert ("encoder", "decoder") in list(named(root.flow))
    assert ("target", "decoder") in list(named(root.flow))
    cross = block_at(root, "decoder.layers.0.encoder_attn")
    edges = list(named(cross.flow))
    assert ("encoder", "k_proj") in edges
    assert ("encoder", "v_proj") in edges
    assert ("encoder", "q_proj") not in edges
    # also where the layers come first that read it
    decoder = list(named(block_at(root, "decoder").flow))
    assert ("encoder", "layers.0 … 2") in decoder
    # a constant that both sides share comes from neither
    assert not [e for e in named(block_at(root, "decoder").flow) if e[1] == "×"]


def test_blocks_name_the_lines_that_say_so() -> None:
    root = build_block_tree(graph_of("digits"))
    lines = [line for block in root.all() for line in block.lines]
    assert {line.file for line in lines} >= {"vit.specc"}
    for line in lines:
        assert line.number >= 1
        assert line.text
    norm = block_at(root, "vit.layernorm")
    assert norm.description.startswith("`(x - mean) / sqrt(var + eps) * g + b`")
    assert norm.output_type == "[batch, 17, 48]"
