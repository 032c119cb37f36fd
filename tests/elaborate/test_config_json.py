"""config.json: every value knows its place, and what other readers let through is
refused at its place.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.elaborate.config_json import config_source, read_config
from specc.elaborate.json_nodes import JsonObject
from specc.library.config_file import config_at, has_config
from specc.text.diagnostic import Diagnostic, Failed
from specc.text.source import Source

TEXT = """{
  "model_type": "gpt2",
  "n_embd": 768, "dropout": 1e-1,
  "rope": {"theta": 10000.0, "a.b": null},
  "layer_types": ["full", true],
  "id.x": -3
}
"""


def read(text: str) -> JsonObject:
    return read_config(Source("ck/config.json", text))


def fault(text: str) -> Diagnostic:
    with pytest.raises(Failed) as failed:
        read(text)
    (found,) = failed.value.diagnostics
    return found


def test_values_and_places() -> None:
    config = read(TEXT)
    assert config.plain() == json.loads(TEXT)
    member = config.find("n_embd")
    assert member
    assert member.origin().text == 'ck/config.json:3 "n_embd"'
    assert member.value.span.text == "768"
    assert member.span.text == '"n_embd": 768'


def test_paths() -> None:
    config = read(TEXT)
    for path, value in {"rope.theta": 10000.0, "rope.a.b": None, "id.x": -3}.items():
        member = config.find(path)
        assert member
        assert member.value.plain() == value
    assert config.find("rope.beta") is None
    assert config.find("n_embd.x") is None
    assert [path for path, _ in config.walk()] == [
        "model_type", "n_embd", "dropout", "rope", "rope.theta", "rope.a.b", "layer_types", "id.x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code", "at"),
    [
        ("", "E0411", ""),
        ('{"a": 1,}', "E0411", ","),
        ('{"a": [1,]}', "E0411", ","),
        ('{"a": 1 "b": 2}', "E0411", '"'),
        ('{"a" 1}', "E0411", "1"),
        ("{'a': 1}", "E0411", "'"),
        ('{"a": True}', "E0411", "T"),
        ('{"a": 010}', "E0411", "0"),
        ('{"a": .5}', "E0411", "."),
        ('{"a": +1}', "E0411", "+"),
        ('{"a": "x', "E0411", '"'),
        ('{"a": "\n"}', "E0411", "\n"),
        ('{"a": "\\x"}', "E0411", "\\"),
        ('{"a": "\\ud800"}', "E0411", '"'),
        ('{"a": 1} x', "E0411", "x"),
        ('{"a": 1', "E0411", "1"),
        ('{"a": \0}', "E0411", "\0"),
        ('{"a": // no\n 1}', "E0411", "/"),
        ('{"a": 1, "a": 2}', "E0412", '"a"'),
        ('{"a": NaN}', "E0413", "NaN"),
        ('{"a": -Infinity}', "E0413", "-Infinity"),
        ('{"a": 1e400}', "E0413", "1e400"),
        ('{"a": 9007199254740992}', "E0413", "9007199254740992"),
        ('{"a": ' + "9" * 5000 + "}", "E0413", "9" * 5000),
        ("[1]", "E0414", "[1]"),
        ("null", "E0414", "null"),
        ('{"a":' + "[" * 100_000, "E0415", "["),
    ],
)
def test_what_is_refused_and_where(text: str, code: str, at: str) -> None:
    found = fault(text)
    assert found.code == code
    assert found.primary
    assert found.primary.span.text == at
    assert found.helps


def test_limits_are_where_they_are_said_to_be() -> None:
    deep = '{"a":' * 63 + "1" + "}" * 63
    assert read(deep).plain() == json.loads(deep)
    assert fault('{"a":' * 64 + "1" + "}" * 64).code == "E0415"
    assert read('{"a": 9007199254740991}').plain() == {"a": (1 << 53) - 1}
    assert read('{"a": 1e308}').plain() == {"a": 1e308}


def test_a_key_given_twice_shows_both_places() -> None:
    found = fault('{"a": 1,\n "a": 2}')
    assert found.primary
    assert (found.primary.span.line, found.others[0].span.line) == (2, 1)


def test_bytes() -> None:
    assert read_config(
        config_source(b'\xef\xbb\xbf{"a": "\xc3\xa9"}', "c")
    ).plain() == {"a": "é"}
    assert read('\ufeff{"a": "\\ud83d\\ude00"}').plain() == {"a": "\U0001f600"}
    for data in (
        b"version https://git-lfs.github.com/spec/v1\n",
        b"<!doctype html>",
        b'{"a": "\xff"}',
        b"PK\x03\x04",
    ):
        with pytest.raises(Failed, match="E0410"):
            config_source(data, "config.json")


def test_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert (
        config_at(tmp_path).plain()
        == config_at(tmp_path / "config.json").plain()
        == {"a": 1}
    )
    assert has_config(str(tmp_path))
    assert not has_config(str(tmp_path / "model.safetensors"))
    assert not has_config("")
    for path in (tmp_path / "absent", "/dev/zero", "a\0b"):
        with pytest.raises(Failed, match="E0802"):
            config_at(path)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(texts, plain, max_size=4),
    st.booleans(),
    st.sampled_from([None, 1, "\t"]),
)
def test_what_json_writes_is_read_as_json_reads_it(
    value: object, ascii: bool, indent: "int | str | None"
) -> None:
    assert read(json.dumps(value, ensure_ascii=ascii, indent=indent)).plain() == value


@settings(max_examples=200, deadline=None)
@given(
    st.text('{}[]",:0123456789.eE+-truefalsn \\u\n/N', max_size=30)
    | st.text(max_size=10)
)
def test_what_is_accepted_is_json(text: str) -> None:
    try:
        found = read(text).plain()
    except Failed:
        return
    assert found == json.loads(text)
