"""Caches in place: which models get them; a buffer that grows, is reordered or fed in
pieces says the same.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specc
from specc.run.steppers import StateStepper
from specc.run.writer import Writer

GPT2 = {"vocab": 17, "d": 16, "heads": 2, "layers": 2, "context": 300}


def opened(
    tmp_path: Path,
    spec: str = "gpt2",
    target: str = "ort-cpu",
    opset: int = 0,
    **sets: Any,
) -> Writer:
    path = tmp_path / f"{spec}-{target}-{opset}-{len(list(tmp_path.iterdir()))}"
    specc.compile(
        spec, path, init=1, set=sets, target=target, opset=opset, parts=["step"]
    )
    writer = specc.load(path).writer
    assert writer
    return writer


def stepper(writer: Writer, ids: Any) -> StateStepper:
    made = writer.stepper(writer.entrance.prepared({"input_ids": ids}))
    assert isinstance(made, StateStepper)
    return made


@pytest.mark.parametrize(
    ("spec", "target", "opset", "sets", "count"),
    [
        ("gpt2", "ort-cpu", 0, GPT2, 4),
        ("gpt2", "ort-cpu", 17, GPT2, 0),
        ("gpt2", "onnx", 0, GPT2, 0),
        ("gpt2", "ort-cpu", 0, {**GPT2, "d": 12}, 0),
        (
            "token_shift_lm",
            "ort-cpu",
            0,
            {"vocab": 17, "d": 16, "heads": 2, "layers": 2, "back": 3},
            0,
        ),
    ],
    ids=["ours", "an old opset", "any runtime", "a width the kernel lacks", "a window"],
)
def test_which_models_have_them(
    tmp_path: Path, spec: str, target: str, opset: int, sets: dict[str, Any], count: int
) -> None:
    writer = opened(tmp_path, spec, target, opset, **sets)
    name = writer.entrance.growing
    made = writer.stepper(writer.entrance.prepared({name: np.ones((1, 2), np.int64)}))
    assert isinstance(made, StateStepper)
    assert len(made.buffers) == count


def test_a_buffer_that_is_full_becomes_twice_as_long(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 17, (2, 150))
    ours, grown = opened(tmp_path, **GPT2), opened(tmp_path, target="onnx", **GPT2)
    lengths = set()
    a, b = (stepper(w, ids[:, :1]) for w in (ours, grown))
    for n in range(150):
        np.testing.assert_allclose(
            a.step(ids[:, n : n + 1]), b.step(ids[:, n : n + 1]), atol=2e-6
        )
        lengths.add(a.states[a.buffers[0].name].shape()[2])
    assert lengths == {64, 128, 256}


def test_rows_in_pieces_are_rows_at_once(tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 17, (3, 12))
    writer = opened(tmp_path, **GPT2)
    want = stepper(writer, ids).step(ids)
    for sizes in ([5, 7], [4, 1, 3, 4], [1] * 12):
        pieces = np.split(ids, np.cumsum(sizes)[:-1], axis=1)
        made = stepper(writer, pieces[0])
        np.testing.assert_allclose([made.step(p) for p in pieces][-1], want, atol=2e-6)


def test_rows_that_change_places_take_their_buffers_along(tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(0, 17, (3, 6))
    writer = opened(tmp_path, **GPT2)
    order = np.array([2, 0, 0, 1])
    made = stepper(writer, ids[:, :5])
    made.step(ids[:, :5])
    made.reorder(order)
    got = made.step(ids[order, 5:])
    np.testing.assert_allclose(
        got, stepper(writer, ids[order]).step(ids[order]), atol=2e-6
    )


def test_texts_that_begin_with_padding_are_as_without(tmp_path: Path) -> None:
    writer = opened(tmp_path, **GPT2)
    prompts = [[3, 4, 5, 6, 7], [8, 9]]
    together = writer.generate(
        input_ids=prompts, max_tokens=8, log_probabilities=True
    ).results()
    for prompt, (found,) in zip(prompts, together, strict=True):
        ((alone,),) = writer.generate(
            input_ids=[prompt], max_tokens=8, log_probabilities=True
        ).results()
        assert found.tokens == alone.tokens
        assert found.log_probs == pytest.approx(alone.log_probs, abs=2e-6)
