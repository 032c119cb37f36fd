"""A stream generates its tokens once: a second iteration yields the same tokens, or the same error."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specc
from specc.api import Model
from specc.decode.token_selection import DecodeStepOutput

SPEC = """
specc 1
model m
dims batch, n
graph g(ids: int[batch, n]) -> (logits: float[batch, n, 128]) {
  x = embedding(ids, size=128, dim=16) @ e
  return 8.0 * linear(x + tanh(cumsum(x)), out=128) @ w
}
generate text of ids from logits { stop = 0 }
reading { ids = text(bytes())  show logits = text(bytes()) }
"""
WAYS: dict[str, dict[str, Any]] = {
    "package": {"graphs": "step"},
    "one.onnx": {"graphs": "generate"},
    "whole.onnx": {},
}


@pytest.fixture(scope="module", params=WAYS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = tmp_path_factory.mktemp("again")
    (directory / "m.specc").write_text(SPEC, encoding="utf-8")
    specc.compile(directory / "m.specc", directory / request.param, init=5, **WAYS[request.param])
    return specc.load(directory / request.param)


def tokens(writing: Any) -> list[list[int]]:
    return [made.tokens.tolist() for made in writing]


def test_a_finished_stream_can_be_read_again(model: Model) -> None:
    writing = model.generate(["ab", "xy"], max_tokens=6)
    first = tokens(writing)
    assert len(first) == 6
    assert tokens(writing) == first
    results = writing.results()
    assert writing.results() == results
    assert [list(r[0].tokens) for r in results] == np.array(first).T.tolist()
    pieces = list(writing.pieces())
    assert list(writing.pieces()) == pieces
    assert ["".join(p[row] for p in pieces) for row in range(2)] == [r[0].text for r in results]


def test_two_readers_of_one_stream_get_equal_tokens(model: Model) -> None:
    writing = model.generate("ab", max_tokens=6)
    one, other = iter(writing), iter(writing)
    seen = [next(one).tokens.tolist() for _ in range(3)]
    assert [m.tokens.tolist() for m in other][:3] == seen
    assert seen + [m.tokens.tolist() for m in one] == tokens(writing)


def test_streamed_text_of_beam_search_ends_before_a_stop_string(tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(SPEC, encoding="utf-8")
    specc.compile(tmp_path / "m.specc", tmp_path / "p", init=5, graphs="step")
    model = specc.load(tmp_path / "p")
    whole = model.generate("ab", max_tokens=6, num_beams=1).results()[0][0].text
    assert whole
    for end in (whole[2:4], whole[3:5]):
        writing = model.generate("ab", max_tokens=6, num_beams=1, stop_strings=end)
        assert (
            "".join(p[0] for p in writing.pieces())
            == writing.results()[0][0].text
            == whole[: whole.index(end)]
        )


def test_suppressing_every_token_has_a_code(model: Model) -> None:
    """No beam can continue; a standalone greedy generator refuses the settings."""
    with pytest.raises(specc.SpeccError, match=r"E0961|E0733"):
        model.generate("ab", max_tokens=3, num_beams=2, suppress_tokens=list(range(128))).results()


def test_an_interrupted_stream_raises_again(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Iterator[DecodeStepOutput]:
        yield DecodeStepOutput(np.array([1]), None, np.array([False]))
        raise KeyboardInterrupt

    writing = model.generate("ab", max_tokens=6)
    monkeypatch.setattr(
        "specc.runtime.generation_stream_and_results.iterate_decode_steps", interrupted
    )
    monkeypatch.setattr(
        "specc.runtime.generation_stream_and_results.run_standalone_generator",
        lambda *_: next(interrupted()) and list(interrupted()),
    )
    with pytest.raises(KeyboardInterrupt):
        writing.results()
    with pytest.raises(specc.SpeccError, match="E0962"):
        writing.results()


NUMPY = [np.float64(2), np.array(3), np.array([[1]], object)]
WRONG: list[Any] = [5, 2.5, True, None, object(), b"x", {"a": 1}, set(), [5], [[5.5]], [["a", 1]], [], [[]], [[1], 2],
                    [[2**70]], [[None]], *NUMPY]  # fmt: skip
NAMES = ["start", "stop", "pad", "stop_strings", "max_tokens", "strategy", "seed", "temperature", "log_probs",
         "num_beams", "early_stopping"]  # fmt: skip


@pytest.mark.parametrize("given", WRONG, ids=lambda v: repr(v)[:20])
def test_an_invalid_prompt_has_a_code(model: Model, given: Any) -> None:
    with pytest.raises(specc.SpeccError, match=r"E09\d\d"):
        model.generate(given, max_tokens=2)


@pytest.mark.parametrize("name", NAMES)
def test_an_invalid_setting_has_a_code(model: Model, name: str) -> None:
    values = [object(), [[]], {}, "9", 1j, 10**400, np.array([1.5, 2]), float("nan"), -1]
    for value in values:
        if name == "stop_strings" and isinstance(value, str):
            continue
        with pytest.raises(specc.SpeccError, match=r"E073[23]"):
            model.generate("ab", **{name: value})
            pytest.fail(f"{name} = {value!r} is accepted")


@pytest.mark.parametrize("settings", [{}, {"stop_strings": ["zz"]}, {"num_beams": 2}], ids=str)
def test_an_abandoned_stream_is_freed_without_garbage_collection(
    model: Model, settings: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    if "num_beams" in settings and "one.onnx" in request.node.name:
        pytest.skip("the strategy of a standalone generator is fixed")
    gc.collect()
    gc.disable()  # a reference cycle would keep the KV cache in memory
    try:
        stream = model.generate(["ab", "xy"], max_tokens=6, **settings)
        next(iter(stream))
        references = weakref.ref(stream), weakref.ref(stream.step_iterator)
        del stream
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()
