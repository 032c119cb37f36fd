"""config.json parser: source spans of all values, and strict errors with spans."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specc
from specc.cli.main import main
from specc.diagnostics.diagnostic import Diagnostic, Source, SpeccError
from specc.frontend.json_parser_with_spans import (
    JsonArray,
    JsonObject,
    JsonScalar,
    decode_config_source,
    parse_config_json,
)
from specc.library.spec_file_lookup import has_config_json, load_config_json

TEXT = """{
  "model_type": "gpt2",
  "n_embd": 768, "dropout": 1e-1,
  "rope": {"theta": 10000.0, "a.b": null},
  "layer_types": ["full", true],
  "id.x": -3
}
"""


def read(text: str) -> JsonObject:
    return parse_config_json(Source("ck/config.json", text))


def parse_invalid(text: str) -> Diagnostic:
    with pytest.raises(SpeccError) as failed:
        read(text)
    (found,) = failed.value.diagnostics
    return found


def test_values_have_source_spans() -> None:
    config = read(TEXT)
    assert config.to_python() == json.loads(TEXT)
    member = config.find_member("n_embd")
    assert member
    assert member.get_source_location().text == 'ck/config.json:3 "n_embd"'
    assert member.value.span.text == "768"
    assert member.span.text == '"n_embd": 768'


def test_find_resolves_dotted_paths() -> None:
    config = read(TEXT)
    for path, value in {"rope.theta": 10000.0, "rope.a.b": None, "id.x": -3}.items():
        member = config.find_member(path)
        assert member
        assert member.value.to_python() == value
    assert config.find_member("rope.beta") is None
    assert config.find_member("n_embd.x") is None
    assert [path for path, _ in config.iterate_members()] == [
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
        ('{"a": nan}', "E0411", "n"),
        ('{"a": +Infinity}', "E0411", "+"),
        ('{"a": 1e400}', "E0413", "1e400"),
        ('{"a": 9007199254740992}', "E0413", "9007199254740992"),
        ('{"a": ' + "9" * 5000 + "}", "E0413", "9" * 5000),
        ("[1]", "E0414", "[1]"),
        ("null", "E0414", "null"),
        ('{"a":' + "[" * 100_000, "E0415", "["),
    ],
)
def test_invalid_json_is_rejected_at_its_span(text: str, code: str, at: str) -> None:
    found = parse_invalid(text)
    assert found.code == code
    assert found.primary
    assert found.primary.span.text == at
    assert found.helps


WORDS = ("NaN", "Infinity", "-Infinity")


@pytest.mark.parametrize("text", ['{"a": %s}', '{"a": [0.0, {"b": %s}], "c": 1}'])
@pytest.mark.parametrize("word", WORDS)
def test_non_finite_numbers_parse_as_in_python_json(text: str, word: str) -> None:
    # repr, since NaN is not equal to itself
    assert repr(read(text % word).to_python()) == repr(json.loads(text % word))


SPEC = """specc 1
model m
config {
  expect "model_type" in (mine)
  high: %s from "high" = none
  eps: float from "eps" = 1e-5
  turn: rope from rope_config(theta=10000.0, context=32) = rope(theta=10000.0)
  ignore "time_step_limit"
}
dims batch
graph g(x: float[batch, 8]) -> (y: float[batch, 8]) {
  return layer_norm(x if high == none else clip(x, low=-9.0, high=%s), eps=eps) @ n
}
"""


def check(text: str, config: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run `specc check` on a spec with a config; return its exit status and messages."""
    spec = config.with_name("m.specc")
    spec.write_text(text)
    code = main(["check", str(spec), "--config", str(config)])
    return code, capsys.readouterr().err


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(
    "key", ["high", "eps", "rope_theta", "time_step_limit", "unknown", "layers"]
)
def test_non_finite_values_are_rejected_only_if_read(
    word: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An upper bound may be infinite; no value that is read may be NaN."""
    text = f'{{"model_type": "mine", "{key}": {word}}}'
    config = tmp_path / "config.json"
    config.write_text(text)
    is_read = key in ("eps", "rope_theta") or (key == "high" and word != "Infinity")
    code, said = check(SPEC % ("float?", "high"), config, capsys)
    assert code == (1 if is_read else 0), said
    assert ("error[" in said) is is_read
    assert "E0986" not in said
    # the same number for a field of another type
    if key == "high":
        code, said = check(SPEC % ("int?", "9.0"), config, capsys)
        assert code == 1
        assert "E0403" in said


def test_infinite_bound_in_config_loads(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "mine", "high": Infinity}')
    spec = tmp_path / "m.specc"
    spec.write_text(SPEC % ("float?", "high"))
    out = tmp_path / "m.onnx"
    specc.compile(spec, out, config=config, init=1)
    x = np.linspace(-30, 30, 16, dtype=np.float32).reshape(2, 8)
    clipped = np.maximum(x.astype(np.float64), -9)
    centered = clipped - clipped.mean(axis=1, keepdims=True)
    due = centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(specc.load(out).run(x=x)["y"], due, atol=1e-5)


def test_depth_and_size_limits() -> None:
    deep = '{"a":' * 63 + "1" + "}" * 63
    assert read(deep).to_python() == json.loads(deep)
    assert parse_invalid('{"a":' * 64 + "1" + "}" * 64).code == "E0415"
    assert read('{"a": 9007199254740991}').to_python() == {"a": (1 << 53) - 1}
    assert read('{"a": 1e308}').to_python() == {"a": 1e308}


def test_duplicate_key_shows_both_spans() -> None:
    found = parse_invalid('{"a": 1,\n "a": 2}')
    assert found.primary
    assert (found.primary.span.line, found.related_labels[0].span.line) == (2, 1)


def test_undecodable_bytes_are_rejected() -> None:
    assert parse_config_json(
        decode_config_source(b'\xef\xbb\xbf{"a": "\xc3\xa9"}', "c")
    ).to_python() == {"a": "é"}
    assert read('\ufeff{"a": "\\ud83d\\ude00"}').to_python() == {"a": "\U0001f600"}
    for data in (
        b"version https://git-lfs.github.com/spec/v1\n",
        b"<!doctype html>",
        b'{"a": "\xff"}',
        b"PK\x03\x04",
    ):
        with pytest.raises(SpeccError, match="E0410"):
            decode_config_source(data, "config.json")


def test_config_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert (
        load_config_json(tmp_path).to_python()
        == load_config_json(tmp_path / "config.json").to_python()
        == {"a": 1}
    )
    assert has_config_json(str(tmp_path))
    assert not has_config_json(str(tmp_path / "model.safetensors"))
    assert not has_config_json("")
    for path in (tmp_path / "absent", "/dev/zero", "a\0b"):
        with pytest.raises(SpeccError, match="E0802"):
            load_config_json(path)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(texts, plain, max_size=4), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_parser_agrees_with_python_json(
    value: object, ascii: bool, indent: "int | str | None"
) -> None:
    assert read(json.dumps(value, ensure_ascii=ascii, indent=indent)).to_python() == value


@settings(max_examples=200, deadline=None)
@given(st.text('{}[]",:0123456789.eE+-truefalsn \\u\n/N', max_size=30) | st.text(max_size=10))
def test_accepted_texts_are_valid_json(text: str) -> None:
    try:
        found = read(text).to_python()
    except SpeccError:
        return
    assert found == json.loads(text)


@pytest.mark.parametrize(("text", "number"), [("Infinity", math.inf), ("-Infinity", -math.inf)])
def test_float_objects_of_transformers_are_decoded(text: str, number: float) -> None:
    for written in (text, f'{{"__float__": "{text}"}}'):
        value = parse_config_json(Source("config.json", f'{{"limit": [0.0, {written}]}}'))
        items = value.members["limit"].value
        assert isinstance(items, JsonArray)
        assert [item.value for item in items.items if isinstance(item, JsonScalar)] == [0.0, number]


@pytest.mark.parametrize(
    "text", ['{"__float__": "true"}', '{"__float__": 1}', '{"__float__": "Infinity", "a": 1}']
)
def test_other_objects_are_unchanged(text: str) -> None:
    value = parse_config_json(Source("config.json", f'{{"limit": {text}}}'))
    assert isinstance(value.members["limit"].value, JsonObject)
