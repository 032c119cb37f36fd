"""Prompts with an image: one image is one sequence, for any form of the argument."""

from pathlib import Path

import numpy as np
import pytest

import specc

SPEC = """specc 1
model told
dims batch, n

graph g(pixels: float[batch, 3, 4, 6], ids: int[batch, n]) -> (logits: float[batch, n, 11]) {
  seen = linear(merge(pixels, axis=1, count=3), out=8) @ eye
  x = (embedding(ids, size=11, dim=8) @ words) + insert(seen, axis=1)
  return 9.0 * (linear(x, out=11) @ out)
}

reading { pixels = image(size=[4, 6]) }

generate text of ids from logits { start = 1  max_tokens = 5 }
"""


def test_one_image_is_one_sequence(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    (tmp_path / "told.specc").write_text(SPEC, encoding="utf-8")
    specc.compile(tmp_path / "told.specc", tmp_path / "out", init=3, graphs=["step"])
    model = specc.load(tmp_path / "out", threads=1)
    drawn = np.random.default_rng(0).integers(0, 256, (2, 4, 6, 3), np.uint8)
    pictures = [pillow.fromarray(one) for one in drawn]
    picture, path = pictures[0], tmp_path / "1.png"
    pictures[1].save(path)
    numbers = drawn.transpose(0, 3, 1, 2).astype(np.float32) / 255
    written = {
        name: [row[0].tokens for row in model.generate(pixels=given).results()]
        for name, given in {
            "numbers": numbers,
            "both": pictures,
            "one": picture,
            "a path": path,
        }.items()
    }
    assert len(written["numbers"]) == 2
    assert written["both"] == written["numbers"]
    assert written["one"] + written["a path"] == written["numbers"]
