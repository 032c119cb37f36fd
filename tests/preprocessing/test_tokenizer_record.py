"""Tokenizer records of a model: the file is embedded or external, and verified by its hash. Needs
no package."""

import json
import sys
from pathlib import Path

import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import TextOutput
from specc.preprocessing.text_codec import encode_text_to_ids
from specc.preprocessing.tokenizer_files import MAX_EMBEDDED_BYTES, HfTokenizer, TokenizerFile
from specc.preprocessing.tokenizer_library import parse_tokenizer_file

SMALL = TokenizerFile.from_text('{"model": {"type": "WordLevel"}}')
LARGE = TokenizerFile.from_text(
    json.dumps({"model": {"note": "é" * MAX_EMBEDDED_BYTES}}, ensure_ascii=False)
)
READING = PreprocessingConfig(
    (
        ("ids", HfTokenizer(file=SMALL, end_token_id=1)),
        (
            "other",
            HfTokenizer(
                file=LARGE,
                start_token_id=2,
                adds_special_tokens=False,
                image_token_repetition=(7, 4),
                placeholder_replacement=("a", "b"),
            ),
        ),
    ),
    (("logits", TextOutput(HfTokenizer(file=SMALL))),),
)


def get_error_code(action) -> str:
    with pytest.raises(SpeccError) as caught:
        action()
    (diagnostic,) = caught.value.diagnostics
    return diagnostic.code


def test_file_is_stored_once():
    data = READING.to_json()
    assert list(data["tokenizers"]) == [SMALL.sha256, LARGE.sha256]
    assert json.dumps(data).count("WordLevel") == 1
    assert PreprocessingConfig.from_json(json.loads(json.dumps(data))) == READING


def test_external_tokenizer_file(tmp_path: Path):
    placed = READING.assign_tokenizer_file_names("m")
    small, large = placed.tokenizer_files
    assert (small.name, large.name) == ("", f"m-{LARGE.sha256[:16]}.tokenizer.json")
    (tmp_path / large.name).write_bytes(large.content)
    closed = PreprocessingConfig.from_json(json.loads(json.dumps(placed.to_json())))
    assert closed != placed
    assert closed.load_tokenizer_files(tmp_path) == placed


def test_tokenizer_names_of_a_package():
    (one, other) = READING.rename_tokenizer_files({SMALL.sha256: "tokenizer.json"}).tokenizer_files
    assert (one.name, other.name) == ("tokenizer.json", "")
    assert (
        PreprocessingConfig.from_json(
            READING.rename_tokenizer_files({SMALL.sha256: "tokenizer.json"}).to_json()
        )
        .tokenizer_files[0]
        .size
        == SMALL.size
    )


@pytest.mark.parametrize(
    "content", [None, b"", b"x" * LARGE.size, LARGE.json_text.encode()[:-1] + b" "]
)
def test_modified_external_file(tmp_path: Path, content):
    placed = READING.assign_tokenizer_file_names("m")
    if content is not None:
        (tmp_path / placed.tokenizer_files[1].name).write_bytes(content)
    closed = PreprocessingConfig.from_json(placed.to_json())
    assert get_error_code(lambda: closed.load_tokenizer_files(tmp_path)) == "E0942"


def make_record_with_file(sha, data) -> object:
    record = {"kind": "tokenizer", "file": sha, "end": None, "start": None, "special": True}
    return {"inputs": {"ids": record}, "shows": {}, "tokenizers": {sha: data}}


SHA = SMALL.sha256


@pytest.mark.parametrize(
    "value",
    [
        make_record_with_file(SHA, {"json": SMALL.json_text + " "}),
        make_record_with_file(SHA, {"json": ""}),
        make_record_with_file(SHA, {"json": "\ud800"}),
        make_record_with_file(SHA, {"json": 3}),
        make_record_with_file(SHA, {}),
        make_record_with_file(SHA, []),
        make_record_with_file(SHA, {"json": SMALL.json_text, "more": 1}),
        make_record_with_file("x" * 64, {"json": SMALL.json_text}),
        make_record_with_file("", {"json": SMALL.json_text}),
        *(
            make_record_with_file(SHA, {"file": name, "bytes": 10})
            for name in (
                "../tokenizer.json",
                "/etc/tokenizer.json",
                "x.json",
                "a/b.tokenizer.json",
                3,
            )
        ),
        *(
            make_record_with_file(SHA, {"file": "m.tokenizer.json", "bytes": size})
            for size in (0, -1, 2**40, "9", True)
        ),
        {**make_record_with_file(SHA, {"json": SMALL.json_text}), "tokenizers": {}},
        {**make_record_with_file(SHA, {"json": SMALL.json_text}), "tokenizers": []},
    ],
)
def test_invalid_tokenizer_records(value):
    assert get_error_code(lambda: PreprocessingConfig.from_json(value)) == "E0915"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"model": 3}',
        b"[" * 100_000,
        b'{"model": {"n": ' + b"9" * 5000 + b"}}",
    ],
)
def test_invalid_tokenizer_files(data):
    assert get_error_code(lambda: parse_tokenizer_file(data, "tokenizer.json")) == "E0941"


def test_missing_tokenizers_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    file = parse_tokenizer_file(SMALL.content, "tokenizer.json")
    assert file == SMALL
    assert (
        get_error_code(lambda: encode_text_to_ids("some words", HfTokenizer(file=file))) == "E0940"
    )
