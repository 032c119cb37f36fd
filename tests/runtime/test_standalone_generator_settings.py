"""Standalone generators run by specc: they generate the tokens of a package of the same spec, and
no setting is ignored.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.verification_lines import list_model_lines, list_opened_lines

import specc
from specc.runtime.inference_model import open_compiled_model

SMALL = {"vocab": 17, "d": 16, "heads": 2, "layers": 1, "context": 20}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"strategy": "greedy"},
    "sample": {"strategy": "sample", "seed": 3, "temperature": 1.5, "top_k": 9},
    "beam": {"strategy": "beam", "num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.6},
}
FIXED = ("strategy", "num_beams", "num_return_sequences", "length_penalty")


@pytest.fixture(scope="module", params=SETTINGS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any, dict[str, Any]]:
    """Return the standalone generator, the package, and generation settings for both."""
    directory = tmp_path_factory.mktemp(request.param)
    said = SETTINGS[request.param]
    settled = {n: v for n, v in said.items() if n in FIXED}
    specc.compile(
        "gpt2",
        directory / "one.onnx",
        init=5,
        set=SMALL,
        graphs=["generate"],
        generation_config=settled,
    )
    specc.compile("gpt2", directory / "package", init=5, set=SMALL, graphs=["step"])
    return specc.load(directory / "one.onnx"), specc.load(directory / "package"), said


def test_a_standalone_generator_generates_the_tokens_of_a_package(
    pair: tuple[Any, Any, dict[str, Any]],
) -> None:
    one, package, said = pair
    prompt = np.array([[1, 2, 3], [4, 5, 6]])
    free = {n: v for n, v in said.items() if n not in FIXED}
    got = one.generate(input_ids=prompt, max_tokens=9, **free).results()
    want = package.generate(input_ids=prompt, max_tokens=9, **said).results()
    assert [[r.tokens for r in row] for row in got] == [[r.tokens for r in row] for row in want]
    if said["strategy"] == "beam":
        for a, b in zip(got, want, strict=True):
            assert [r.score for r in a] == pytest.approx([r.score for r in b], rel=1e-5)


def test_generation_ends_at_the_context_length(pair: tuple[Any, Any, dict[str, Any]]) -> None:
    one, _, _ = pair
    longest = max(
        len(r.tokens)
        for r in one.generate(input_ids=np.ones((1, 15), int), max_tokens=50).results()[0]
    )
    assert longest == 6
    with pytest.raises(specc.SpeccError, match="E0943"):
        one.generate(input_ids=np.ones((1, 21), int))


def test_compiled_settings_cannot_be_changed(pair: tuple[Any, Any, dict[str, Any]]) -> None:
    one, _, said = pair
    other = "beam" if said["strategy"] == "greedy" else "greedy"
    with pytest.raises(specc.SpeccError, match="E0733"):
        one.generate(input_ids=[[1]], strategy=other)
    with pytest.raises(specc.SpeccError, match="E0733"):
        one.generate(input_ids=[[1]], stop=[3])


def test_prompts_of_different_lengths_need_a_package(pair: tuple[Any, Any, dict[str, Any]]) -> None:
    one, _, _ = pair
    with pytest.raises(specc.SpeccError, match="E0912"):
        one.generate(input_ids=[[1, 2], [3]]).results()


def test_verify_compares_tokens_without_a_package(
    pair: tuple[Any, Any, dict[str, Any]], tmp_path: Path
) -> None:
    one, _, _ = pair
    assert ["tokens by" in line for line in list_model_lines(one.scoring_model)] == [True] * 3
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(one.scoring_model.path.read_bytes())
    for part in one.scoring_model.path.parent.glob("*.data"):
        (tmp_path / part.name).write_bytes(part.read_bytes())
    (told,) = list_opened_lines(open_compiled_model(alone), seed=0, rounds=1)
    assert "agree" in told


KINDS = """
specc 1
model m

dims batch, n

graph g(ids: int[batch, n], keep: keep[batch, n] = ids != 0, kinds: int[batch, n] = cumsum(cast(ids == 2, to=int)))
    -> (logits: float[batch, n, 5]) {
  x = (embedding(ids, size=5, dim=8) @ e) + (embedding(clip(kinds, low=0, high=3), size=4, dim=8) @ k)
  mixed = attend(x, x, x, mask=causal & visible(keep))
  return linear(mixed, out=5) @ w
}

generate text of ids from logits { stop = 4 }
"""


def written(tmp_path: Path) -> tuple[Any, Any]:
    spec = tmp_path / "m.specc"
    spec.write_text(KINDS, encoding="utf-8")
    specc.compile(spec, tmp_path / "one.onnx", init=2, graphs=["generate"])
    specc.compile(spec, tmp_path / "package", init=2, graphs=["step"])
    return specc.load(tmp_path / "one.onnx"), specc.load(tmp_path / "package")


def test_defaults_of_the_whole_sequence_are_computed_in_the_model(tmp_path: Path) -> None:
    one, package = written(tmp_path)
    prompt = np.array([[1, 2, 3, 2, 1], [2, 2, 1, 3, 3]])
    tokens = [
        [r[0].tokens for r in m.generate(ids=prompt, max_tokens=8, stop=[4]).results()]
        for m in (one, package)
    ]
    assert tokens[0] == tokens[1]


def test_padding_found_by_the_model_is_masked_out(tmp_path: Path) -> None:
    one, package = written(tmp_path)
    prompts = [[1, 2, 3], [3]]
    tokens = [
        [r[0].tokens for r in m.generate(ids=prompts, max_tokens=6).results()]
        for m in (one, package)
    ]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"repetition_penalty": 1.5}, "E0733"),
        ({"strategy": "beam"}, "E0733"),
        ({"pad": 7}, "E0733"),
    ],
)
def test_an_unsupported_setting_is_refused(
    tmp_path: Path, settings: dict[str, Any], code: str
) -> None:
    one, _ = written(tmp_path)
    with pytest.raises(specc.SpeccError, match=code):
        one.generate(ids=[[1, 2]], **settings).results()


def test_a_seed_out_of_range_is_refused(tmp_path: Path) -> None:
    spec = tmp_path / "m.specc"
    spec.write_text(KINDS, encoding="utf-8")
    specc.compile(
        spec,
        tmp_path / "s.onnx",
        init=2,
        graphs=["generate"],
        generation_config={"strategy": "sample"},
    )
    with pytest.raises(specc.SpeccError, match="E0732"):
        specc.load(tmp_path / "s.onnx").generate(ids=[[1, 2]], seed=2**63).results()


PADDED = """
specc 1
model m
dims batch, seq
graph g(ids: int[batch, seq], keep: keep[batch, seq] = ids >= 0) -> (logits: float[batch, seq, 7]) {
  x = embedding(max(ids, 0), size=7, dim=6) @ table
  seen = insert(float(cumsum(ids)), axis=2)
  return 3.0 * linear(concat([x, seen]), out=7) @ head
}
generate text of ids from logits { stop = 1 }
"""


def test_padding_values_reach_the_spec_unchanged(tmp_path: Path) -> None:
    """Batch elements are distinguished by sums over padding, -1 as given, as in the full graph."""
    (tmp_path / "m.specc").write_text(PADDED)
    specc.compile(tmp_path / "m.specc", tmp_path / "one.onnx", init=2, graphs="generate")
    specc.compile(tmp_path / "m.specc", tmp_path / "package", init=2, graphs="all")
    one = specc.load(tmp_path / "one.onnx")
    whole = specc.load(tmp_path / "package")
    for seed in range(8):
        ids = np.random.default_rng(seed).integers(-1, 7, (3, 4))
        ids[:, -1] = abs(ids[:, -1])
        got = one.generate(ids=ids, max_tokens=1, log_probs=True).results()
        logits = np.float64(whole.run(ids=ids)["logits"][:, -1])
        best = logits.argmax(axis=-1)
        said = np.log(np.exp(logits).sum(axis=-1))
        assert [row[0].tokens[0] for row in got] == best.tolist()
        assert [row[0].log_probs[0] for row in got] == pytest.approx(
            logits.max(axis=-1) - said, abs=1e-4
        )
