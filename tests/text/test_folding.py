"""The same message is shown once, with how often it was there, in every form."""

import json

import pytest

from specc.cli.main import main
from specc.cli.messages import report
from specc.text.diagnostic import Diagnostic, Label, folded
from specc.text.programs import as_json, as_sarif
from specc.text.render import full, short
from specc.text.source import Source, Span

SOURCE = Source("a.specc", "one two\n")


def fault(
    start: int = 0, title: str = "no such thing", severity: str = "error"
) -> Diagnostic:
    assert severity in ("error", "warning")
    return Diagnostic(
        "E0202",
        title,
        Label(Span(SOURCE, start, start + 3)),
        notes=("a fact",),
        severity=severity,
    )  # type: ignore[arg-type]


def test_identical_messages_fold_and_others_stay_in_order() -> None:
    given = [
        fault(),
        fault(4),
        fault(),
        fault(title="another"),
        fault(4),
        fault(),
        fault(severity="warning"),
    ]
    made = folded(given)
    assert [d.count for d in made] == [3, 2, 1, 1]
    assert [(d.title, d.primary and d.primary.span.start) for d in made] == [
        ("no such thing", 0), ("no such thing", 4), ("another", 0), ("no such thing", 0),
    ]  # fmt: skip
    assert folded(made) == made
    assert sum(d.count for d in folded(made + made)) == 14
    assert folded([]) == []


def test_the_count_in_every_form() -> None:
    (many,) = folded([fault()] * 20)
    assert "= note: the same is to be said 20 times here" in full(many)
    assert short(many) == "a.specc:1:1: error[E0202]: no such thing (20 times)"
    assert json.loads(as_json([many]))["count"] == 20
    assert (
        json.loads(as_sarif([many], "1"))["runs"][0]["results"][0]["occurrenceCount"]
        == 20
    )
    assert "count" not in json.loads(as_json([fault()]))
    assert "times" not in full(fault()) + short(fault())


@pytest.mark.parametrize("form", ["full", "short", "json", "sarif"])
def test_what_is_printed_is_folded(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report([fault()] * 20, form, "never")
    out, err = capsys.readouterr()
    assert (out + err).count("no such thing") == 1


def test_a_loop_that_fails_in_every_turn_says_so_once(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """specc 1
model m
dims batch, n
graph g(ids: int[batch, n]) -> (y: float[batch, n, 4]) {
  x = embedding(ids, size=4, dim=4) @ e
  repeat t in 12 { x = x + insert(mean(relu(x), axis=1), axis=1) }
  return x
}
generate t of ids from y { stop = 1 }
"""
    path = f"{tmp_path}/m.specc"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    assert main(["check", path]) == 1
    err = capsys.readouterr().err
    assert err.count("error[") == 1
    assert "the same is to be said 12 times here" in err
