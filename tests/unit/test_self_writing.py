"""A model that decodes by itself, run by specc: what a package of the same spec writes, and no setting passed over."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specc
from specc.verifying import verify

SMALL = {"vocab": 17, "d": 16, "heads": 2, "layers": 1, "context": 20}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"strategy": "greedy"},
    "sample": {"strategy": "sample", "seed": 3, "temperature": 1.5, "top_k": 9},
    "beam": {"strategy": "beam", "beams": 3, "n_best": 2, "length_penalty": 0.6},
}
FIXED = ("strategy", "beams", "n_best", "length_penalty")


@pytest.fixture(scope="module", params=SETTINGS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, dict[str, Any]]:
    """The one file, the package, and how both are to write."""
    folder = tmp_path_factory.mktemp(request.param)
    said = SETTINGS[request.param]
    settled = {n: v for n, v in said.items() if n in FIXED}
    specc.compile("gpt2", folder / "one.onnx", init=5, set=SMALL, parts=["generate"], settings=settled)
    specc.compile("gpt2", folder / "package", init=5, set=SMALL, parts=["step"])
    return specc.load(folder / "one.onnx"), specc.load(folder / "package"), said


def test_it_writes_what_a_package_writes(pair: tuple[Any, Any, dict[str, Any]]) -> None:
    one, package, said = pair
    prompt = np.array([[1, 2, 3], [4, 5, 6]])
    free = {n: v for n, v in said.items() if n not in FIXED}
    got = one.generate(input_ids=prompt, max_tokens=9, **free).results()
    want = package.generate(input_ids=prompt, max_tokens=9, **said).results()
    assert [[r.tokens for r in row] for row in got] == [[r.tokens for r in row] for row in want]
    if said["strategy"] == "beam":
        for a, b in zip(got, want, strict=True):
            assert [r.score for r in a] == pytest.approx([r.score for r in b], rel=1e-5)


def test_it_writes_no_further_than_it_can_see(pair: tuple[Any, Any, dict[str, Any]]) -> None:
    one, _, _ = pair
    longest = max(len(r.tokens) for r in one.generate(input_ids=np.ones((1, 15), int), max_tokens=50).results()[0])
    assert longest == 6
    with pytest.raises(specc.Failed, match="E0943"):
        one.generate(input_ids=np.ones((1, 21), int))


def test_what_was_settled_cannot_be_asked_for_otherwise(pair: tuple[Any, Any, dict[str, Any]]) -> None:
    one, _, said = pair
    other = "beam" if said["strategy"] == "greedy" else "greedy"
    with pytest.raises(specc.Failed, match="E0733"):
        one.generate(input_ids=[[1]], strategy=other)
    with pytest.raises(specc.Failed, match="E0733"):
        one.generate(input_ids=[[1]], stop=[3])


def test_prompts_of_unequal_length_want_a_package(pair: tuple[Any, Any, dict[str, Any]]) -> None:
    one, _, _ = pair
    with pytest.raises(specc.Failed, match="E0912"):
        one.generate(input_ids=[[1, 2], [3]]).results()


def test_it_is_not_compared_as_a_whole(pair: tuple[Any, Any, dict[str, Any]], tmp_path: Path) -> None:
    one, _, _ = pair
    assert ["not compared" in line for line in verify(one.scoring)] == [True]
