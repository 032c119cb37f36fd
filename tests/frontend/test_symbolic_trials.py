"""Trial sizes of symbolic checks: equal trials are skipped, errors show their sizes, forbidden sizes
are ignored.
"""

from pathlib import Path

import pytest
from support.small_configs import SMALL_CONFIGS

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.frontend import symbolic_check
from specc.frontend.symbolic_check import SymbolicElaboration, check_spec_symbolically
from specc.ir.graph import Graph, Value

FEW = {
    "gru_lm": (),
    "kv_lookup": (),
    "luong": (),
    "seq2seq": (),
    "vit": (),
    "t5": pytest.mark.parity,
}
"""Specs that do not wait for the long sweep."""


def lines(graph: Graph) -> list[str]:
    """Return the nodes of a symbolic graph as text, with their operands by number."""
    known: dict[Value, int] = {}
    for value in (*graph.inputs.values(), *graph.parameters.values()):
        known[value] = len(known)
    found = [f"{list(graph.inputs)} {graph.parameter_facts}"]
    for node, results in graph.nodes:
        known |= {r: len(known) + n for n, r in enumerate(results)}
        read = [known[a] if a else None for a in node.args]
        found.append(f"{node.op} {read} {[r.type for r in results]}")
    return [*found, str({k: known[v] for k, v in graph.outputs.items()})]


def trials_of(spec: str) -> list[SymbolicElaboration]:
    found = open_spec(spec)
    symbolic_check._check_builtin_model.cache_clear()
    return check_spec_symbolically(found.program)


@pytest.mark.parametrize(
    "spec", [pytest.param(n, marks=FEW.get(n, pytest.mark.slow)) for n in SMALL_CONFIGS]
)
def test_skipped_trials_equal_the_first_trial(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saving = trials_of(spec)
    monkeypatch.setattr(symbolic_check, "get_default_choice", lambda entry: None)
    for ours, tried in zip(saving, trials_of(spec), strict=True):
        assert ours.trial_values == tried.trial_values
        assert lines(ours.model.graph) == lines(tried.model.graph)


def test_most_trials_are_skipped() -> None:
    saving = trials_of("luong")
    assert sum(t.model is saving[0].model for t in saving) > 2


TURNED = """specc 1
model turned
config { heads: int = 12  d: int = 96  e: int = 96 }
require d % heads == 0
MORE
dims b, n
graph main(x: float[b, n, e]) -> (y: float[b, n, d]) {
  when e != d {
    x = linear(x, out=d) @ wider
  }
  return merge_heads(rotate(split_heads(x, heads), positions(x), rope(theta=100.0), pairs=half))
}
"""
"""A spec whose structure hangs on how wide it is: small widths are tried."""


def test_error_of_a_trial_shows_its_sizes(tmp_path: Path) -> None:
    """The spec does not contain the number 1, which only the trial uses."""
    path = tmp_path / "turned.specc"
    path.write_text(TURNED.replace("MORE", ""), encoding="utf-8")
    with pytest.raises(SpeccError) as failed:
        trials_of(str(path))
    found = failed.value.diagnostics[0]
    assert found.code == "E0203"
    assert any(n.startswith("with ") and "d = 2" in n for n in found.notes)


def test_errors_of_forbidden_sizes_are_ignored(tmp_path: Path) -> None:
    """`d / heads` has a remainder if `d % heads == 0` does not hold."""
    path = tmp_path / "turned.specc"
    path.write_text(TURNED.replace("MORE", "require d / heads % 2 == 0"), encoding="utf-8")
    assert len(trials_of(str(path))) > 1


ONE_OF = """specc 1
model m
config {
  a: int = 3
  b: int = 4
  shared: bool = false
}
require %s, "one table is of one size"
dims n
graph g(x: float[n, a]) -> (y: float[n, b]) { return x if shared else linear(x, out=b) @ w }
"""


@pytest.mark.parametrize(
    "condition", ["not shared | a == b", "a == b | not shared", "a == b | shared == false"]
)
def test_remaining_operand_of_or_is_required(condition: str, tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text(ONE_OF % condition)
    tried = [t.trial_values for t in trials_of(str(path))]
    assert {"shared": "true"} in tried
    path.write_text(ONE_OF % "not shared | a >= b")
    with pytest.raises(SpeccError, match="E030"):
        trials_of(str(path))


def test_assigned_choice_leaves_others_open() -> None:
    """`order=forward` allows `shared`, which makes the two vocabularies equal."""
    spec = open_spec("seq2seq", config_settings=["order=forward"])
    tried = [t.trial_values for t in check_spec_symbolically(spec.program)]
    assert {"shared": "true"} in tried


def test_choice_that_needs_larger_sizes_is_tried(tmp_path: Path) -> None:
    """`shared` is rejected with two layers, and its error is found with the default size."""
    path = tmp_path / "m.specc"
    text = ONE_OF.replace("b: int = 4", "b: int = 4  layers: int = 8") % "not shared | layers > 4"
    text = text.replace("{ return", "{\n  repeat i in layers { x = x + 1.0 }\n  return")
    path.write_text(text)
    with pytest.raises(SpeccError, match="E030"):
        trials_of(str(path))


def test_requirement_changes_only_the_sizes_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    text = ONE_OF.replace("b: int = 4", "b: int = 4  layers: int = 40  width: int = 64")
    text = text % "width % 32 == 0\nrequire not shared | a == b"
    loops = "repeat i in layers { x = x + 1.0 }\n  repeat i in width { x = x + 1.0 }"
    path.write_text(text.replace("{ return", "{\n  " + loops + "\n  return"))
    assert trials_of(str(path))[0].trial_values == {"layers": "2", "width": "64"}


WINDOWED = """specc 1
model windowed
config { rows: int = 64  sizes: list[int] from "sizes" = [32] }
dims batch

graph g(x: float[batch, rows, 4]) -> (y: float[batch, _, 4]) {
  repeat s in len(sizes) under "{s}" {
    x = conv(x, out=4, kernel=sizes[s], stride=sizes[s])
  }
  return x
}
"""


def test_assigned_length_may_match_only_the_config_file(tmp_path: Path) -> None:
    spec, file = tmp_path / "windowed.specc", tmp_path / "config.json"
    spec.write_text(WINDOWED, encoding="utf-8")
    file.write_text('{"sizes": [2, 3]}', encoding="utf-8")
    sixteen = open_spec(str(spec), config=str(file), config_settings=["rows=16"])
    assert elaborate_spec(sixteen).graph.parameters
    for sets, config in ((["rows=16"], ""), (["rows=1"], str(file))):
        with pytest.raises(SpeccError, match="E0320"):
            elaborate_spec(open_spec(str(spec), config=config, config_settings=sets))
