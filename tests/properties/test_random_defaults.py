"""A default that is taken for safe while a text is written gives what it gives for the whole text, and no other does.

Random defaults of an input beside the one that grows: of each row, of rows before, of rows to come, of how many there
are; with a row for each token or with one for all. What is accepted writes, token for token, what a full pass over the
whole text writes with the default that Python evaluates; what Python itself sees change is refused.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import specc
import specc_numpy
from specc.analysis import analysis_report
from specc.diagnostics.diagnostic import Failed
from specc.driver.spec_loader import elaborate_spec, open_spec

VOCAB, LENGTH = 6, 5
ROWS = [[3, 1, 4], [1, 5, 2]]

Row = list[float]
Made = Callable[[Row], Row]


@dataclass(frozen=True)
class Default:
    """An expression of `t`, the tokens as numbers, and what it is for one text."""

    text: str
    of: Made


CAUSAL: list[tuple[str, Callable[[Row], Row]]] = [
    ("({a} * 0.5)", lambda a: [v * 0.5 for v in a]),
    ("sin({a})", lambda a: [float(np.sin(v)) for v in a]),
    ("where({a} > 2.0, {a}, -1.0)", lambda a: [v if v > 2.0 else -1.0 for v in a]),
    ("cumsum({a}, axis=1)", lambda a: [sum(a[: n + 1]) for n in range(len(a))]),
    ("delay({a}, by=1, first=2.0)", lambda a: [2.0, *a[:-1]][: len(a)]),
    ("delay({a}, by=2, first=0.0)", lambda a: [0.0, 0.0, *a][: len(a)]),
    ("({a} + float(positions({a})))", lambda a: [v + n for n, v in enumerate(a)]),
    (
        "({a} - delay({a}, by=1, first=0.0))",
        lambda a: [v - w for v, w in zip(a, [0.0, *a], strict=False)],
    ),
]
AHEAD: list[tuple[str, Callable[[Row], Row]]] = [
    ("flip({a}, axis=1)", lambda a: a[::-1]),
    ("({a} - insert(sum({a}, axis=1), axis=1))", lambda a: [v - sum(a) for v in a]),
    ("({a} + insert(max({a}, axis=1), axis=1))", lambda a: [v + max(a) for v in a]),
    ("({a} * insert({a}[:, -1], axis=1))", lambda a: [v * a[-1] for v in a]),
    ("({a} + float(length({a}, axis=1)))", lambda a: [v + len(a) for v in a]),
    (
        "({a} - flip(cumsum(flip({a}, axis=1), axis=1), axis=1))",
        lambda a: [v - sum(a[n:]) for n, v in enumerate(a)],
    ),
    ("({a} + float(size({a})) * 0.25)", lambda a: [v + len(ROWS) * len(a) * 0.25 for v in a]),
]
ONE: list[tuple[str, Callable[[Row], Row]]] = [
    ("sum({a}, axis=1)", lambda a: [sum(a)]),
    ("max({a}, axis=1)", lambda a: [max(a)]),
    ("{a}[:, -1]", lambda a: [a[-1]]),
    ("{a}[:, 0]", lambda a: [a[0]]),
    ("(mean({a}, axis=1) * 0.0 + 1.5)", lambda a: [1.5]),
]


def drawn(rng: random.Random) -> tuple[Default, bool]:
    """A default, and whether it has a row for each token."""
    made = Default("t", lambda a: a)
    for _ in range(rng.randint(1, 3)):
        made = _behind(made, *rng.choice(CAUSAL + CAUSAL + AHEAD))
    if rng.random() < 0.2:
        return _behind(made, *rng.choice(ONE)), False
    return made, True


def _behind(made: Default, text: str, of: Made) -> Default:
    return Default(text.format(a=made.text), lambda a: of(made.of(a)))


SPEC = """specc 1
model m
dims batch, seq
graph g(ids: int[batch, seq], extra: float[batch{axis}] = {default}) -> (logits: float[batch, seq, 6]) {{
  x = embedding(ids, size=6, dim=4) @ table
  x = x + insert({extra}, axis=-1) * 0.7
  x = x + attention(x, heads=1, mask=causal) @ own
  return 5.0 * linear(tanh(x), out=6) @ head
}}
generate text of ids from logits {{ max_tokens = 5 }}
"""


def spec_of(default: Default, rows: bool) -> str:
    """A model that writes by it."""
    return SPEC.format(
        axis=", seq" if rows else "",
        default=re.sub(r"\bt\b", "float(ids)", default.text),
        extra="extra" if rows else "insert(extra, axis=1)",
    )


def changes(default: Default, rows: bool) -> bool:
    """Whether it changes what it said of a text when more comes, by trying."""
    rng = random.Random(0)
    for _ in range(6):
        text = [float(rng.randrange(VOCAB)) for _ in range(7)]
        for n in range(1, 7):
            now, then = default.of(text[:n]), default.of(text)
            if not np.allclose(now, then[:n] if rows else then):
                return True
    return False


def fault(seed: int, directory: Path) -> str:
    """How what is accepted is wrong; empty where it is not."""
    default, rows = drawn(random.Random(seed))
    directory.mkdir(exist_ok=True)
    (directory / "m.specc").write_text(spec_of(default, rows), encoding="utf-8")
    try:
        specc.compile(
            directory / "m.specc", directory / "p", init=seed, graphs="score,step", target="onnx"
        )
    except Failed as error:
        codes = {d.code for d in error.diagnostics}
        return "" if codes == {"E0718"} else f"{seed}, {default.text}: {codes}"
    model = specc.load(directory / "p")
    graph, weights = model.manifest.graph, model.weights()
    results = model.generate(ids=np.array(ROWS)).results()
    for row, (result,) in zip(ROWS, results, strict=True):
        text = list(row)
        for token in result.tokens:
            extra = np.array([default.of([float(t) for t in text])])
            given = {"ids": np.array([text]), "extra": extra if rows else extra[:, 0]}
            logits = specc_numpy.evaluate_graph(graph, given, weights)["logits"][0, -1]
            second, first = np.sort(logits)[-2:]
            if first - second < 1e-3:
                break
            if token != int(logits.argmax()):
                return f"{seed}, {default.text}: writes {result.tokens} behind {row}, {int(logits.argmax())} is due"
            text.append(token)
    return ""


def unsound(seed: int, directory: Path) -> str:
    """A default that is accepted, though it changes what it said."""
    default, rows = drawn(random.Random(seed))
    (directory / "m.specc").write_text(spec_of(default, rows), encoding="utf-8")
    model = elaborate_spec(open_spec(str(directory / "m.specc")))
    assert model.generation
    grows, source = model.generation.growing, model.generation.source
    refused = analysis_report.analyze_graph(model.graph, grows, source, model.defaults).errors
    assert {d.code for d in refused} <= {"E0718"}
    return "" if refused or not changes(default, rows) else f"{seed}: {default.text}"


@pytest.mark.parametrize("seed", range(4))
def test_what_is_accepted_writes_as_the_whole_does(seed: int, tmp_path: Path) -> None:
    assert not fault(seed, tmp_path)


def test_what_changes_is_refused(tmp_path: Path) -> None:
    assert not [f for seed in range(25) if (f := unsound(seed, tmp_path))]


def test_without_the_proof_it_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis_report, "check_default_causality", lambda *_: [])
    assert any(unsound(seed, tmp_path) for seed in range(10))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(4, 204, 20))
def test_hundreds_of_defaults(start: int, tmp_path: Path) -> None:
    seeds = range(start, start + 20)
    assert not [f for seed in seeds if (f := fault(seed, tmp_path / str(seed)))]


@pytest.mark.slow
def test_many_that_change_are_refused(tmp_path: Path) -> None:
    assert not [f for seed in range(25, 1025) if (f := unsound(seed, tmp_path))]
