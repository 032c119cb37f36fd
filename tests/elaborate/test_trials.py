"""A reading that would be the first one again is not made again: nothing is lost by it."""

import pytest
from support.small import SMALL

from specc.compiler.spec import open_spec
from specc.elaborate import check
from specc.elaborate.check import Trial, check_symbolic
from specc.ir.graph import Graph, Value

FEW = ("gru_lm", "kv_lookup", "luong", "seq2seq", "t5", "vit")


def lines(graph: Graph) -> list[str]:
    """A graph with symbols, by what its nodes are and which values they read."""
    known: dict[Value, int] = {}
    for value in (*graph.inputs.values(), *graph.parameters.values()):
        known[value] = len(known)
    found = [f"{list(graph.inputs)} {graph.parameter_facts}"]
    for node, results in graph.nodes:
        known |= {r: len(known) + n for n, r in enumerate(results)}
        read = [known[a] if a else None for a in node.args]
        found.append(f"{node.op} {read} {[r.type for r in results]}")
    return [*found, str({k: known[v] for k, v in graph.outputs.items()})]


def trials_of(spec: str) -> list[Trial]:
    found = open_spec(spec)
    return check_symbolic(found.program, found.library)


@pytest.mark.parametrize(
    "spec",
    [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in SMALL],
)
def test_what_the_first_reading_takes_is_as_if_it_were_tried(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = trials_of(spec)
    monkeypatch.setattr(check, "_taken", lambda entry: None)
    for ours, tried in zip(saving, trials_of(spec), strict=True):
        assert ours.values == tried.values
        assert lines(ours.model.graph) == lines(tried.model.graph)


def test_much_is_saved() -> None:
    saving = trials_of("luong")
    assert sum(t.model is saving[0].model for t in saving) > 2
