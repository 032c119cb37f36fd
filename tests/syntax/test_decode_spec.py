"""Decoding of spec files: UTF-8 or an error; the file name determines the syntax."""

import pytest

from specc.diagnostics.diagnostic import Source, SpeccError
from specc.syntax.parse import decode_spec, detect_syntax, parse_spec

DSL = "specc 1\nmodel m\n"
YAML = "specc: 1\nmodel: m\n"


def get_decode_error(data: bytes) -> SpeccError:
    with pytest.raises(SpeccError) as failed:
        decode_spec(data, "a.specc")
    return failed.value


def test_byte_order_mark_is_dropped() -> None:
    assert decode_spec(b"\xef\xbb\xbf" + DSL.encode(), "a.specc").text == DSL


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings(encoding: str) -> None:
    assert get_decode_error(DSL.encode(encoding)).diagnostics[0].code == "E0112"


def test_invalid_byte_position() -> None:
    diagnostic = get_decode_error(b"specc 1\nmodel \xe9t\xe9\n").diagnostics[0]
    assert diagnostic.code == "E0112"
    assert diagnostic.primary is not None
    assert (diagnostic.primary.span.line, diagnostic.primary.span.column) == (2, 7)


def test_zero_bytes() -> None:
    assert "U+0000" in get_decode_error(b"specc 1\nmodel m\0\n").diagnostics[0].title


def test_lone_surrogates() -> None:
    for name in ("a.specc", "a.yaml"):
        with pytest.raises(SpeccError, match="E0112"):
            parse_spec(Source(name, DSL + "# \ud800"))


@pytest.mark.parametrize("ending", ["\r\n", "\n"])
def test_line_ends(ending: str) -> None:
    assert parse_spec(Source("a.specc", DSL.replace("\n", ending))).model == "m"
    assert parse_spec(Source("a.yaml", YAML.replace("\n", ending))).model == "m"


def test_comments_without_carriage_return() -> None:
    assert parse_spec(Source("a.specc", "# a\r\nspecc 1 # b\r\nmodel m\r\n")).comments.leading == (
        "a",
    )


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.specc", DSL, "specc"), ("a.yaml", YAML, "yaml"), ("a.YML", YAML, "yaml"),
        ("a.json", '{"specc": 1, "model": "m"}', "yaml"), ("-", DSL, "specc"), ("-", "# c\n" + YAML, "yaml"),
        ("-", "---\n" + YAML, "yaml"), ("-", '{"specc": 1}', "yaml"), ("-", "", "specc"),
    ],
)  # fmt: skip
def test_detected_syntax(name: str, text: str, expected: str) -> None:
    assert detect_syntax(Source(name, text)) == expected


def test_json_is_yaml() -> None:
    text = (
        '{"specc": 1, "model": "m", "dims": ["a", "b >= 1"], "config": {"x": 1e-5, "y": "[1, 2]"}}'
    )
    assert parse_spec(Source("a.json", text)) == parse_spec(
        Source("a.specc", "specc 1 model m dims a, b >= 1 config { x = 1e-5 y = [1, 2] }")
    )
