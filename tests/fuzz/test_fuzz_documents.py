"""Every external JSON document with odd or very large values: an error code in limited time, no
traceback.
"""

import json
import random
from pathlib import Path

import pytest
from support.json_mutations import iterate_mutations, iterate_oversized
from support.resource_limits import list_violations, run_command

from specc.api import compile

WRITER = """specc 1
model m
config {
  d: int from "hidden" = 8
  rate: float from "rate" = 0.5
  act: activation from "act" = relu
  flag: bool from "flag" = false
  some: list[int] from "some" = [1, 2]
  name: text from "name" = "a"
  kind: choice(one | two) from "kind" = one
  inner: record { a: int from "a" = 1 } from "inner"
  maybe: int? from "maybe" = none
}
dims batch, src >= 1, seq >= 1
graph lm(memory: int[batch, src], keep: keep[batch, src] = memory != 0, ids: int[batch, seq])
    -> (logits: float[batch, seq, 7]) {
  m = embedding(memory, size=7, dim=d) @ mem
  x = embedding(ids, size=7, dim=d) @ table
  x = x + (attention(x, m, heads=1, mask=visible(keep)) @ cross) + (attention(x, heads=1, mask=causal) @ self)
  x = x + apply(act, embedding(positions(ids), size=64, dim=d) @ pos)
  x = gru(x, hidden=d, reset=after) @ rnn
  return linear(x, out=7) @ head
}
reading { memory = text(characters("v.vocab"))  ids = text(characters("v.vocab")) }
generate text of ids from logits { start = 1  stop = 0 }
"""
CONFIG = {"hidden": 8, "rate": 0.5, "act": "relu", "flag": False, "some": [1, 2], "name": "a", "kind": "one",
          "inner": {"a": 1}, "maybe": None}  # fmt: skip


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("writer")
    (directory / "w.specc").write_text(WRITER)
    (directory / "v.vocab").write_text("<pad>\n<bos>\na\nb\nc\nd\ne\n")
    return directory / "w.specc"


@pytest.fixture(scope="module")
def package(spec: Path) -> Path:
    directory = spec.parent / "package"
    compile(str(spec), str(directory), init=0, graphs=["encode", "step"], target="ort-cpu")
    assert run_command("run", str(directory), "memory=abc", "--max-tokens", "3").status == 0
    return directory


def encode_cases(cases: list[tuple[str, str]], most: int) -> list[tuple[str, bytes]]:
    """Return some of the cases, always the same."""
    random.Random(8).shuffle(cases)
    return [(name, text.encode(errors="surrogatepass")) for name, text in cases[:most]]


def index_faults(package: Path, most: int) -> list[str]:
    index = package / "specc.json"
    sound = index.read_bytes()
    try:
        cases = encode_cases(list(iterate_mutations(json.loads(sound))), most)
        return list_violations(index, cases, "run", str(package), "memory=abc", "--max-tokens", "3")
    finally:
        index.write_bytes(sound)


def test_an_index_with_one_odd_value_is_refused_in_time(package: Path) -> None:
    assert not index_faults(package, 15)


@pytest.mark.slow
def test_an_index_with_every_odd_value_is_refused_in_time(package: Path) -> None:
    assert not index_faults(package, 10**6)
    assert not list_violations(
        package / "specc.json", list(iterate_oversized("graphs")), "run", str(package), "memory=abc"
    )


def test_a_config_with_one_odd_value_is_refused_in_time(spec: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    cases = encode_cases(list(iterate_mutations(CONFIG)), 6)
    assert not list_violations(config, cases, "check", str(spec), "--config", str(config))


@pytest.mark.slow
def test_a_config_with_every_odd_value_is_refused_in_time(spec: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    cases = encode_cases(list(iterate_mutations(CONFIG)), 10**6)
    assert not list_violations(config, cases, "check", str(spec), "--config", str(config))


def test_a_very_large_config_is_refused_in_time(spec: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    usual = ("brackets", "long number", "many items", "escapes")
    cases = [(name, data) for name, data in iterate_oversized("some") if name in usual]
    assert not list_violations(config, cases, "check", str(spec), "--config", str(config))


@pytest.mark.slow
@pytest.mark.parametrize("key", ["hidden", "some", "name", "inner", "other"])
def test_any_very_large_field_is_refused_in_time(key: str, spec: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    assert not list_violations(
        config, list(iterate_oversized(key)), "check", str(spec), "--config", str(config)
    )
