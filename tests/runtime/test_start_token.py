"""A sequence may start with the padding token, as Marian's do: the first token is valid all the
same.

By its default, `target_keep` would mask it out. Models that add the start token mark it as valid: a
package, a model of one graph, and a standalone generator.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.small_configs import SMALL_CONFIGS

import specc
from specc.api import Model

PAD = 0
STARTED: dict[str, Any] = SMALL_CONFIGS["encoder_decoder"] | {"pad": PAD, "bos": PAD, "tied": False}
SOURCE = np.array([[5, 9, 3, 7], [8, 4, PAD, PAD], [11, PAD, PAD, PAD]])
TOKENS = 6
WAYS: dict[str, dict[str, Any]] = {
    "package": {"graphs": ["encode", "step"]},
    "one-graph.onnx": {},
    "by-itself.onnx": {
        "graphs": ["generate"],
        "generation_config": {"strategy": "greedy", "stop": [16]},
    },
}


def compiled(path: Path, **options: Any) -> Model:
    specc.compile("encoder_decoder", path, init=8, set=STARTED, **options)
    return specc.load(path, threads=1)


def generate_by_full_passes(whole: Model, seen: bool) -> NDArray[np.int64]:
    """Return the greedy tokens of full passes with the first token visible or masked out."""
    made = np.full((len(SOURCE), 1), PAD)
    for _ in range(TOKENS):
        keep = np.ones(made.shape, bool)
        keep[:, 0] = seen
        logits = whole.run(source=SOURCE, target=made, target_keep=keep)["logits"]
        made = np.concatenate([made, logits[:, -1].argmax(1)[:, None]], axis=1)
    return made[:, 1:]


@pytest.mark.parametrize("way", WAYS)
def test_the_start_token_is_visible(way: str, tmp_path: Path) -> None:
    whole = compiled(tmp_path / "whole.onnx")
    want = generate_by_full_passes(whole, seen=True)
    assert want.tolist() != generate_by_full_passes(whole, seen=False).tolist()
    model = compiled(tmp_path / way, **WAYS[way])
    made = model.generate(SOURCE, strategy="greedy", stop=[16], max_tokens=TOKENS).results()
    assert [list(row[0].tokens) for row in made] == want.tolist()


def test_an_explicit_start_token_with_a_mask_equals_the_implicit_one(tmp_path: Path) -> None:
    model = compiled(tmp_path / "package", graphs=["encode", "step"])
    given: dict[str, Any] = {
        "source": SOURCE,
        "target": np.full((3, 1), PAD),
        "strategy": "greedy",
        "stop": [16],
    }
    seen = model.generate(**given, target_keep=np.ones((3, 1), bool), max_tokens=TOKENS).results()
    begun = model.generate(SOURCE, strategy="greedy", stop=[16], max_tokens=TOKENS).results()
    assert seen == begun
