"""The section `inputs`, which declares the inputs of several graphs."""

from pathlib import Path

import pytest

from specc.cli.fmt_convert_expand import expand_spec
from specc.diagnostics.diagnostic import Source, SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.frontend.unused_names_and_share_rules import find_unused_names
from specc.ir.ir_printer_and_lexer import format_ir
from specc.syntax.dsl.dsl_printer import format_dsl
from specc.syntax.parse import parse_spec

SHARED = """specc 1
model shared

config { pad: int = 0 }
dims batch, n

inputs {
  ids: int[batch, n]
  keep: keep[batch, n] right = ids != pad
}

graph first(ids, keep) -> (y: int[batch, n]) {
  return where(keep, ids, positions(keep))
}

graph second(ids, keep: keep[batch, n]) -> (y: int[batch, n]) {
  return where(keep, ids, 7)
}
"""
SPELLED_OUT = SHARED.replace(
    "first(ids, keep)", "first(ids: int[batch, n], keep: keep[batch, n] right = ids != pad)"
).replace("second(ids,", "second(ids: int[batch, n],")
SPELLED_OUT = (
    SPELLED_OUT[: SPELLED_OUT.index("inputs {")] + SPELLED_OUT[SPELLED_OUT.index("graph") :]
)
OVERRIDE = """specc 1
model derived
extends shared

inputs {
  keep: keep[batch, n] left = ids > 3
}
"""


def elaborate(spec: str | Source, graph: str) -> str:
    """Return the IR of a graph and its defaults."""
    model = elaborate_spec(open_spec(spec), graph)
    return format_ir(model.graph) + (format_ir(model.defaults) if model.defaults else "")


@pytest.mark.parametrize("graph", ["first", "second"])
def test_graph_equals_one_with_its_own_declarations(graph: str) -> None:
    shared, alone = (Source("m.specc", text) for text in (SHARED, SPELLED_OUT))
    assert elaborate(shared, graph) == elaborate(alone, graph)


def test_derived_spec_overrides_a_declaration(tmp_path: Path) -> None:
    (tmp_path / "shared.specc").write_text(SHARED)
    path = tmp_path / "derived.specc"
    path.write_text(OVERRIDE)
    expected = SPELLED_OUT.replace("right = ids != pad", "left = ids > 3")
    assert elaborate(str(path), "first") == elaborate(Source("m.specc", expected), "first")
    # an input with a type belongs to its graph
    assert elaborate(str(path), "second") == elaborate(str(tmp_path / "shared.specc"), "second")


def test_expanded_spec_has_the_overridden_declaration(tmp_path: Path) -> None:
    (tmp_path / "shared.specc").write_text(SHARED)
    path = tmp_path / "derived.specc"
    path.write_text(OVERRIDE)
    text = format_dsl(expand_spec(open_spec(str(path)))[0])
    assert text.count("inputs {") == 1
    assert "keep: keep[batch, n] left = ids > 3" in text
    assert "graph first(ids, keep)" in text
    assert elaborate(Source("m.specc", text), "first") == elaborate(str(path), "first")


def test_overridden_default_needs_inputs_of_each_graph(tmp_path: Path) -> None:
    base = SHARED.replace("graph second(ids,", "graph second(other: int[batch, n],")
    (tmp_path / "shared.specc").write_text(
        base.replace("  keep:", "  other: int[batch, n]\n  keep:")
    )
    path = tmp_path / "derived.specc"
    path.write_text(OVERRIDE.replace("ids > 3", "other > 3"))
    with pytest.raises(SpeccError, match="`other` is not defined"):
        elaborate(str(path), "first")


def test_unused_declaration_is_a_warning() -> None:
    unused = SHARED.replace("  keep:", "  extra: int[batch]\n  _extra: int[batch]\n  keep:")
    program = open_spec(Source("m.specc", unused)).program
    assert [d.title for d in find_unused_names(program)] == [
        "input `extra` of `inputs` is never used"
    ]


def test_inputs_is_also_a_name() -> None:
    text = SHARED.replace("ids", "inputs")
    assert parse_spec(Source("m.specc", text)) == parse_spec(
        Source("m.specc", format_dsl(parse_spec(Source("m.specc", text))))
    )


def test_default_may_read_a_config_value_with_the_name_of_an_input() -> None:
    text = """specc 1
model m
config { k: int = 3 }
dims batch, n
inputs {
  k: int[batch, n]
  ids: int[batch, n]
  keep: keep[batch, n] right = ids != k
}
graph first(ids, keep) -> (y: int[batch, n]) { return where(keep, ids, 0) }
graph second(k) -> (y: int[batch, n]) { return k }
"""
    assert "3" in elaborate(Source("m.specc", text), "first")
    assert elaborate(Source("m.specc", text), "second")


def test_default_that_reads_an_input_which_the_graph_lacks() -> None:
    text = SHARED.replace("graph second(ids, keep: keep[batch, n])", "graph second(keep)")
    text = text.replace("return where(keep, ids, 7)", "return positions(keep)")
    elaborate(Source("m.specc", text), "first")
    with pytest.raises(SpeccError) as failed:
        elaborate(Source("m.specc", text), "second")
    assert failed.value.diagnostics[0].code == "E0202"


def test_resolution_takes_linear_time_in_the_number_of_inputs() -> None:
    names = [f"x{i}" for i in range(20_000)]
    entries = "".join(f"  {name}: int[batch]\n" for name in names)
    text = f"specc 1\nmodel m\ndims batch\ninputs {{\n{entries}}}\ngraph g({', '.join(names)}) -> (y: int[batch]) {{ return x0 }}\n"
    (graph,) = [i for i in parse_spec(Source("m.specc", text)).items if hasattr(i, "params")]
    assert len(graph.params) == len(names)
