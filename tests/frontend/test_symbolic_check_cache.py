"""Symbolic checks of built-in specs are cached per process; changed inputs are checked again."""

from pathlib import Path

import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.driver import spec_check_and_elaboration
from specc.driver.spec_check_and_elaboration import check_spec, elaborate_spec
from specc.driver.spec_loader import LoadedSpec, open_spec
from specc.frontend import symbolic_check
from specc.library.spec_file_lookup import SpecLibrary, find_builtin_specs


def test_builtin_spec_is_checked_once() -> None:
    symbolic_check._check_builtin_model.cache_clear()
    first = check_spec(open_spec("gpt2", config_settings=["d=32", "heads=4"])).model
    made = symbolic_check._check_builtin_model.cache_info().misses
    again = check_spec(open_spec("gpt2", config_settings=["heads=4", "d=32"])).model
    assert symbolic_check._check_builtin_model.cache_info().misses == made
    assert first
    assert again
    assert str(again.graph) == str(first.graph)


def test_compile_does_not_check_builtin_spec_symbolically(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only messages about an invalid config need the symbolic check."""
    with pytest.raises(SpeccError) as checked:
        check_spec(open_spec("gpt2", config_settings=["heads=5"]))
    with pytest.raises(SpeccError) as elaborated:
        elaborate_spec(open_spec("gpt2", config_settings=["heads=5"]))
    assert [*map(str, elaborated.value.diagnostics)] == [*map(str, checked.value.diagnostics)]
    monkeypatch.delattr(spec_check_and_elaboration, "check_spec_symbolically")
    assert elaborate_spec(open_spec("gpt2")).graph.name == "decoder"


def run_trials(spec: LoadedSpec, graph: str = "") -> list[symbolic_check.SymbolicElaboration]:
    return symbolic_check.check_spec_symbolically(spec.program, graph)


def list_trials(spec: LoadedSpec) -> list[str]:
    """Return the trial values and the graphs of the trials."""
    found = []
    for trial in run_trials(spec):
        graph = trial.model.graph
        ops = [str(node.op) for node, _ in graph.nodes]
        found.append(f"{trial.trial_values} {list(graph.parameters)} {ops}")
    return found


OTHERS = [
    ("gpt2", ["tied=false"]),
    ("gpt2", ["scale_attn_weights=false"]),
    pytest.param("vision_encoder_decoder", ["encoder=deit"], marks=pytest.mark.parity),
]


@pytest.mark.parametrize(("name", "sets"), OTHERS)
def test_other_config_values_are_checked_again(name: str, sets: list[str]) -> None:
    """The result is independent of earlier checks."""
    symbolic_check._check_builtin_model.cache_clear()
    alone = list_trials(open_spec(name, config_settings=sets))
    symbolic_check._check_builtin_model.cache_clear()
    usual = list_trials(open_spec(name))
    assert list_trials(open_spec(name, config_settings=sets)) == alone
    assert alone != usual


def test_each_graph_is_checked_separately() -> None:
    spec = open_spec("gpt2")
    for name in ("decoder", "sequence_classification", "decoder"):
        model = run_trials(spec, name)[0].model
        assert f"graph {name}:" in repr(model.graph)


@pytest.mark.parity
def test_open_document_overrides_the_cache() -> None:
    """This holds for the document of a used file too."""
    name = "vision_encoder_decoder"
    assert run_trials(open_spec(name))
    used = find_builtin_specs()["vit"].resolve()
    text = used.read_text(encoding="utf-8").replace("patch_embed(", "pathc_embed(")
    library = SpecLibrary(unsaved_texts={used: text})
    with pytest.raises(SpeccError):
        run_trials(open_spec(name, library=library))
    assert not library.load_spec("vit").is_builtin
    assert not library.load_spec("gpt2").is_builtin


def test_user_files_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "other.specc").write_text(OTHER.format("relu"))
    (tmp_path / "m.specc").write_text(MINE)
    path = str(tmp_path / "m.specc")
    assert run_trials(open_spec(path))
    (tmp_path / "other.specc").write_text(OTHER.format("rleu"))
    with pytest.raises(SpeccError):
        run_trials(open_spec(path))


OTHER = """specc 1
model other
block act(x: float[b, n]) -> float[b, n] {{
  return {}(x)
}}
"""
MINE = """specc 1
model m
use "other.specc" as other
dims batch
graph score(x: float[batch, 4]) -> (y: float[batch, 4]) {
  return other.act(x)
}
"""
