"""The checkpoint in docs/demos/learned is found, compiled and run like a user's own directory."""

from pathlib import Path

import numpy as np

import specc

FOLDER = Path(__file__).parents[2] / "docs" / "demos" / "learned" / "llama"
TEXT = 'The "while" statement is used for repeated execution as long as an expression is true'


def test_its_loss_is_below_chance(tmp_path: Path) -> None:
    """Each token of a text like the training data has at most half the loss of a uniform
    distribution.
    """
    specc.compile(FOLDER, tmp_path / "m.onnx")
    model = specc.load(tmp_path / "m.onnx", threads=1)
    ids = model.selected_model.prepare_inputs({"input_ids": TEXT})["input_ids"]
    logits = model.run(input_ids=ids)["logits"][0, :-1].astype(np.float64)
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    of_right = np.take_along_axis(shares, ids[0, 1:, None], axis=-1)
    assert -np.log(of_right).mean() < np.log(1024) / 2


def test_the_checkpoint_is_small() -> None:
    """At most 10 MB of the repository are weights of tests."""
    assert sum(p.stat().st_size for p in FOLDER.iterdir()) < 10_000_000
