"""Rendering of diagnostics for terminals, editors and code scanners."""

import json

from specc.diagnostics.diagnostic import Diagnostic, Fix, Label, Source, Span
from specc.diagnostics.machine_formats_and_exit_codes import format_json_lines, format_sarif
from specc.diagnostics.render import (
    render_diagnostics,
    render_full_diagnostic,
    render_short_diagnostic,
)

SOURCE = Source(
    "nmt.specc", "a = 1\nmemory = encode(src)\n# one\n# two\nx = embed(tgt)\nx = x + memory\n"
)


def label_at(text: str, label: str = "", source: Source = SOURCE, nth: int = 0) -> Label:
    """Return a label on the n-th occurrence of a text."""
    start = -1
    for _ in range(nth + 1):
        start = source.text.index(text, start + 1)
    return Label(Span(source, start, start + len(text)), label)


CLASH = Diagnostic(
    "E0302",
    "`src` and `tgt` meet on the same axis",
    label_at("memory", "axis 1 is `src`", nth=1),
    (label_at("memory", "float[batch, src, d]"), label_at("x", "axis 1 is `tgt`", nth=2)),
    notes=("the two are independent",),
    helps=("write\n  where tgt = src\non the graph",),
)


def test_full_format() -> None:
    assert (
        render_full_diagnostic(CLASH)
        == """\
error[E0302]: `src` and `tgt` meet on the same axis
 --> nmt.specc:6:9
  |
2 | memory = encode(src)
  | ------ float[batch, src, d]
...
6 | x = x + memory
  |     -   ^^^^^^ axis 1 is `src`
  |     axis 1 is `tgt`
  = note: the two are independent
  = help: write
            where tgt = src
          on the graph
"""
    )


def test_short_format() -> None:
    assert (
        render_short_diagnostic(CLASH)
        == "nmt.specc:6:9: error[E0302]: `src` and `tgt` meet on the same axis"
    )


def test_without_a_position() -> None:
    assert render_full_diagnostic(
        Diagnostic("E0801", "nothing to read", helps=("name a file",))
    ) == ("error[E0801]: nothing to read\n  = help: name a file\n")


def test_gap_of_one_line_is_shown() -> None:
    source = Source("a", "one\ntwo\nthree\n")
    shown = render_full_diagnostic(
        Diagnostic("E0101", "t", label_at("three", "", source), (label_at("one", "", source),))
    )
    assert "1 | one\n  | ---\n2 | two\n3 | three\n  | ^^^^^" in shown


def test_labels_in_two_files() -> None:
    config = Source("config.json", '{"d": 500}')
    shown = render_full_diagnostic(
        Diagnostic(
            "E0310", "t", label_at("x + memory", "here"), (label_at("500", "from here", config),)
        )
    )
    assert " --> nmt.specc:6:5\n" in shown
    assert " ::: config.json:1:7\n" in shown


def test_marks_after_tabs_and_wide_characters() -> None:
    source = Source("a", "\tx = 注意 + y\n")
    shown = render_full_diagnostic(Diagnostic("E0101", "t", label_at("y", "", source)))
    assert "1 |     x = 注意 + y\n  |                ^\n" in shown


def test_control_characters_are_escaped() -> None:
    source = Source("a\x1b[2J", "x = \x1b[31m\u202e y\n")
    shown = render_full_diagnostic(
        Diagnostic("E0101", "t\x07", label_at("y", "\x1b", source), notes=("\r",))
    )
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\u{1b}[31m" in shown


def test_color() -> None:
    assert "\x1b[1;31m" in render_diagnostics([CLASH], color=True)
    assert "\x1b" not in render_diagnostics([CLASH])


def test_long_line_is_truncated_around_the_mark() -> None:
    source = Source("a", "a" * 5_000 + " here " + "b" * 5_000)
    lines = render_full_diagnostic(Diagnostic("E0101", "t", label_at("here", "", source))).split(
        "\n"
    )
    assert len(lines[3]) < 180
    assert lines[3][lines[4].index("^") :].startswith("here")


def test_position_at_the_end() -> None:
    source = Source("a", "x =")
    assert "1 | x =\n  |    ^ expected\n" in render_full_diagnostic(
        Diagnostic("E0101", "t", Label(Span(source, 3, 3), "expected"))
    )


def test_json_offsets() -> None:
    source = Source("a", "é = y\n")
    fixed = Diagnostic(
        "E0101", "t", label_at("y", "l", source), fixes=(Fix(label_at("y", "", source).span, "z"),)
    )
    record = json.loads(format_json_lines([fixed]))
    assert record["labels"][0]["column"] == 5
    assert (record["labels"][0]["start"], record["labels"][0]["start_byte"]) == (4, 5)
    assert record["fixes"][0]["text"] == "z"


def test_sarif() -> None:
    log = json.loads(format_sarif([CLASH], "1.0", "https://example.org/{code}"))
    run = log["runs"][0]
    assert log["version"] == "2.1.0"
    assert run["tool"]["driver"]["rules"] == [
        {"id": "E0302", "helpUri": "https://example.org/E0302"}
    ]
    found = run["results"][0]
    region = found["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 6, "startColumn": 9, "endLine": 6, "endColumn": 15}
    assert len(found["relatedLocations"]) == 2
