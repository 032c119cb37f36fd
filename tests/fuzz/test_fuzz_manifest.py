"""Mutated manifests in models, and mutated model files: untrusted input, rejected with a
diagnostic.
"""

import json
import random
from pathlib import Path
from typing import Any

import onnx
import pytest

from specc.api import compile
from specc.artifact import manifest
from specc.diagnostics.diagnostic import SpeccError
from specc.runtime.single_model_file import load_model

SPEC = """specc 1
model small

dims batch, n

graph g(ids: int[batch, n]) -> (y: float[batch, n, 4]) {
  x = embedding(ids, size=5, dim=4) @ table
  y, _ = attend(x, x, x, mask=causal)
  return y
}

reading {
  show y = choice(["a", "b", "c", "d"])
}
"""
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    0.5,
    "",
    "x",
    "specc-ir 1\n",
    [],
    [[]],
    {},
    {"a": 1},
    {"kind": "image"},
    "\ud800",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    (directory / "small.specc").write_text(SPEC)
    compile(str(directory / "small.specc"), str(directory / "m.onnx"), init=0)
    return directory / "m.onnx"


def text_of(model: Path) -> str:
    (entry,) = [e for e in onnx.load(model).metadata_props if e.key == manifest.METADATA_KEY]
    return str(entry.value)


def assert_read_or_refused(text: str) -> None:
    try:
        manifest.parse_manifest(text, "m.onnx")
    except SpeccError as failed:
        assert failed.diagnostics
    except Exception as error:
        error.add_note(text[:2000])
        raise


def mutate_document(rng: random.Random, data: Any) -> Any:
    """Return a document with one value, at any depth, replaced by an odd one or dropped."""
    if isinstance(data, dict) and data and rng.random() < 0.8:
        key = rng.choice(sorted(data))
        if rng.random() < 0.1:
            return {k: v for k, v in data.items() if k != key}
        return {**data, key: mutate_document(rng, data[key])}
    if isinstance(data, list) and data and rng.random() < 0.8:
        at = rng.randrange(len(data))
        return [*data[:at], mutate_document(rng, data[at]), *data[at + 1 :]]
    if isinstance(data, str) and len(data) > 20 and rng.random() < 0.8:
        at, size = rng.randrange(len(data)), rng.choice([1, 1, 5, 40])
        return (
            data[:at]
            + rng.choice(["", "x", "9" * 30, "(", "\n", data[: size * 3]])
            + data[at + size :]
        )
    return rng.choice(ODD)


def test_mutated_manifests_are_read_or_refused(model: Path) -> None:
    data = json.loads(text_of(model))
    for seed in range(1500):
        assert_read_or_refused(json.dumps(mutate_document(random.Random(seed), data)))


def test_unclosed_brackets_are_refused() -> None:
    assert_read_or_refused("[" * 100_000)
    assert_read_or_refused('{"format": 1, "graphs": ' + '{"a":' * 100_000)


def test_mutated_model_files_are_read_or_refused(model: Path, tmp_path: Path) -> None:
    data = model.read_bytes()
    path = tmp_path / "m.onnx"
    for seed in range(150):
        rng = random.Random(seed)
        made = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            made[rng.randrange(len(made))] = rng.randrange(256)
        path.write_bytes(made[: rng.choice([len(made), rng.randrange(len(made))])])
        try:
            load_model(str(path))
        except SpeccError as failed:
            assert failed.diagnostics
