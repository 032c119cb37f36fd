"""Duplicate diagnostics are shown once with their count, in every format."""

import json

import pytest

from specc.cli.main import main
from specc.cli.terminal import print_diagnostics
from specc.diagnostics.diagnostic import (
    Diagnostic,
    Label,
    Source,
    Span,
    merge_duplicate_diagnostics,
)
from specc.diagnostics.machine_formats_and_exit_codes import format_json_lines, format_sarif
from specc.diagnostics.render import render_full_diagnostic, render_short_diagnostic

SOURCE = Source("a.specc", "one two\n")


def make_diagnostic(
    start: int = 0, title: str = "no such thing", severity: str = "error"
) -> Diagnostic:
    assert severity in ("error", "warning")
    return Diagnostic(
        "E0202", title, Label(Span(SOURCE, start, start + 3)), notes=("a fact",), severity=severity
    )  # type: ignore[arg-type]


def test_duplicates_are_merged_in_order() -> None:
    given = [
        make_diagnostic(),
        make_diagnostic(4),
        make_diagnostic(),
        make_diagnostic(title="another"),
        make_diagnostic(4),
        make_diagnostic(),
        make_diagnostic(severity="warning"),
    ]
    made = merge_duplicate_diagnostics(given)
    assert [d.count for d in made] == [3, 2, 1, 1]
    assert [(d.title, d.primary and d.primary.span.start) for d in made] == [
        ("no such thing", 0), ("no such thing", 4), ("another", 0), ("no such thing", 0),
    ]  # fmt: skip
    assert merge_duplicate_diagnostics(made) == made
    assert sum(d.count for d in merge_duplicate_diagnostics(made + made)) == 14
    assert merge_duplicate_diagnostics([]) == []


def test_count_in_every_format() -> None:
    (many,) = merge_duplicate_diagnostics([make_diagnostic()] * 20)
    assert "= note: the same diagnostic occurs 20 times here" in render_full_diagnostic(many)
    assert render_short_diagnostic(many) == "a.specc:1:1: error[E0202]: no such thing (20 times)"
    assert json.loads(format_json_lines([many]))["count"] == 20
    assert json.loads(format_sarif([many], "1"))["runs"][0]["results"][0]["occurrenceCount"] == 20
    assert "count" not in json.loads(format_json_lines([make_diagnostic()]))
    assert "times" not in render_full_diagnostic(make_diagnostic()) + render_short_diagnostic(
        make_diagnostic()
    )


@pytest.mark.parametrize("form", ["full", "short", "json", "sarif"])
def test_printed_diagnostics_are_merged(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_diagnostics([make_diagnostic()] * 20, form, "never")
    out, err = capsys.readouterr()
    assert (out + err).count("no such thing") == 1


def test_warning_of_every_iteration_is_shown_once(
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
    assert "the same diagnostic occurs 12 times here" in err
