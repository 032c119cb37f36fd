"""Strings with placeholders, choice words, used files and results, as the ten specs need them."""

from pathlib import Path

import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import check_spec, elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir import ops
from specc.ir.graph import Graph


def graph_of(
    directory: Path, body: str, *, items: str = "", results: str = "float[batch, n, 4]"
) -> Graph:
    path = directory / "words.specc"
    graph = f"graph f(x: float[batch, n, 4]) -> {results} {{ {body} }}"
    path.write_text(f"specc 1\nmodel words\n{items}\ndims batch, n\n{graph}\n")
    return elaborate_spec(open_spec(str(path))).graph


def code_of(directory: Path, body: str, **more: str) -> str:
    with pytest.raises(SpeccError) as failed:
        graph_of(directory, body, **more)
    return failed.value.diagnostics[0].code


def test_string_placeholders_are_filled_in_scope(tmp_path: Path) -> None:
    body = """
      repeat i in 2 {
        names = ["{part}.{i}" for part in ["up", "down"]]
        x = x + mlp(x, hidden=3, act=relu, names=names)
      }
      return x"""
    weights = [n for n in graph_of(tmp_path, body).parameters if n.endswith("weight")]
    assert weights == ["up.0.weight", "down.0.weight", "up.1.weight", "down.1.weight"]


def test_placeholder_needs_a_known_value(tmp_path: Path) -> None:
    assert (
        code_of(tmp_path, 'return mlp(x, hidden=3, act=relu, names=["{nobody}", "b"])') == "E0202"
    )


def test_braces_without_a_name_are_literal(tmp_path: Path) -> None:
    items = (
        "block named(x: float[b, n, d], name: text) -> float[b, n, d] { require "
        'name == "{}", "no"  return x }'
    )
    assert graph_of(tmp_path, 'return named(x, name="{}")', items=items).outputs


def test_a_string_may_contain_a_string(tmp_path: Path) -> None:
    for text, size in (("vit_tiny_patch16", 3), ("vit_base_patch16", 5), ("tiny", 5)):
        body = f'return linear(x, out=3 if "_tiny_" in "{text}" else 5) @ a'
        graph = graph_of(tmp_path, body, results="float[batch, n, _]")
        assert next(iter(graph.outputs.values())).shape[-1] == size
    assert code_of(tmp_path, 'return x if 1 in "text" else -x') == "E0206"
    assert code_of(tmp_path, 'return x if "a" in 3 else -x') == "E0206"


CHOICE = """
block turned(x: float[b, n, d], way: choice(left | right)) -> float[b, n, d] { return x if way == left else -x }
"""


def test_choice_word_as_block_argument(tmp_path: Path) -> None:
    assert len(graph_of(tmp_path, "return turned(x, way=right)", items=CHOICE).nodes) == 1
    assert not graph_of(tmp_path, "return turned(x, way=left)", items=CHOICE).nodes
    assert code_of(tmp_path, "return turned(x, way=up)", items=CHOICE).startswith("E02")


def test_parameters_by_name_and_tied_layers(tmp_path: Path) -> None:
    body = (
        "w = parameter(shape=[4, 4]) @ both  return affine(affine(x, w), w, "
        "parameter(shape=[4]) @ shift)"
    )
    assert set(graph_of(tmp_path, body).parameters) == {"both", "shift"}


def test_return_of_a_call_returns_all_results(tmp_path: Path) -> None:
    body = "return lstm(x, hidden=2)  @ layer"
    graph = graph_of(
        tmp_path,
        body,
        results="(a: float[batch, n, 2], b: float[batch, 1, 2], c: float[batch, 1, 2])",
    )
    assert list(graph.outputs) == ["a", "b", "c"]


def test_operands_bind_lengths_of_a_used_file(tmp_path: Path) -> None:
    (tmp_path / "part.specc").write_text("""
specc 1
model part
config { out: int = 3 }
dims rows, columns
block inner(x: float[rows, columns, d]) -> float[rows, columns, out] { return linear(x, out=out) @ map }
graph whole(x: float[rows, columns, d]) -> float[rows, columns, out] { return inner(x) }
""")
    body = "y = p.whole(concat([x, x], axis=1), config={ out = 4 }) @ part  return y[:, 0:n]"
    graph = graph_of(tmp_path, body, items='use "part.specc" as p')
    assert set(graph.parameters) == {"part.map.weight", "part.map.bias"}


def test_instance_extends_file_in_its_directory(tmp_path: Path) -> None:
    (tmp_path / "base.specc").write_text("""
specc 1
model base
config { d: int }
dims batch
graph f(x: float[batch, d]) -> float[batch, d] { return relu(x) }
""")
    (tmp_path / "small.yaml").write_text("specc: 1\nmodel: small\nextends: base\nconfig:\n  d: 5\n")
    model = elaborate_spec(open_spec(str(tmp_path / "small.yaml")))
    assert model.config == {"d": 5}


def test_longrope_needs_one_divisor_per_pair(tmp_path: Path) -> None:
    body = """
      turn = rope(theta=10000.0, kind=longrope, divisors=[1.0, 2.0, 3.0], factor=4.0, original=8)
      return merge_heads(rotate(split_heads(x, 1), positions(x), turn, pairs=half))"""
    assert code_of(tmp_path, body) == "E0203"


def test_bias_with_symbolic_lengths_is_checked(tmp_path: Path) -> None:
    (tmp_path / "open.specc").write_text("""
specc 1
model open
config { heads: int  buckets: int  longest: int }
require buckets % 2 == 0
dims batch, n
graph f(x: float[batch, n, 4]) -> float[1, heads, n, n] {
  return grid(t5_relative_position_bias(heads, bidirectional=true, buckets=buckets, max_distance=longest), x, x) @ distances
}
""")
    checked = check_spec(open_spec(str(tmp_path / "open.specc")))
    assert checked.model is None
    assert [d.code for d in checked.missing] == ["E0401"] * 3


@pytest.mark.parametrize("old", [True, False])
def test_conditional_choice_word_as_argument(old: bool, tmp_path: Path) -> None:
    """For a built-in function, and for a block whose parameter is a choice."""
    head = f"config {{ old: bool = {str(old).lower()} }}"
    block = """block turned(x: float[b, n, 4], pairs: choice(half | interleaved)) -> float[b, n, 4] {
      at = positions(x)
      y = rotate(insert(x, axis=1), at, rope(theta=100.0), pairs=pairs if old else half)
      return squeeze(y, axis=1)
    }"""
    body = "return turned(x, pairs=half if not old else interleaved)"
    graph = graph_of(tmp_path, body, items=f"{head}\n{block}")
    pairs = [n.op.pairs for n, _ in graph.nodes if isinstance(n.op, ops.Rotate)]
    assert pairs == ["interleaved" if old else "half"]


def test_conditional_choice_word_must_be_valid(tmp_path: Path) -> None:
    block = """block b(x: float[b, n, 4], kind: choice(up | down)) -> float[b, n, 4] { return x }"""
    assert code_of(tmp_path, "return b(x, kind=left if true else up)", items=block) == "E0202"
