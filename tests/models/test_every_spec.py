"""Every shipped spec compiles at the oldest, the usual and the newest opset, for both CPU targets, and agrees.

What a spec needs besides its defaults, to be small, stands in SMALL; a spec that is missing there fails.
"""

from pathlib import Path

import pytest

import specc
from specc.library import shipped
from specc.verifying import verify

TRANSFORMER = {"vocab": 17, "d": 16, "heads": 2, "layers": 2, "hidden": 24}
IMAGE = {"d": 8, "heads": 2, "layers": 2, "hidden": 16, "image": 8, "patch": 4, "channels": 2}
SMALL: dict[str, dict[str, object]] = {
    "bert": TRANSFORMER | {"context": 32},
    "digits": {},
    "encoder_decoder": {"vocab": 17, "width": 16, "heads": 2, "hidden": 24, "encoder.layers": 1, "decoder.layers": 1},
    "feedforward": {"inputs": 5, "hidden": [7, 6], "outputs": 3},
    "gpt2": TRANSFORMER | {"context": 32},
    "small_translator": {"vocab": 17, "width": 16, "heads": 2, "hidden": 24, "encoder.layers": 1, "decoder.layers": 1},
    "transformer": TRANSFORMER | {"pad": 0, "bos": 1, "eos": 2},
    "vit": IMAGE | {"classes": 3},
    "vit_mae": IMAGE | {"decoder_d": 8, "decoder_layers": 1, "decoder_heads": 2, "decoder_hidden": 16},
    "vit_segmenter": IMAGE | {"classes": 3},
    "xor": {},
}
TRAINED = {"digits", "xor"}


def test_every_spec_is_here() -> None:
    assert set(SMALL) == set(shipped())


@pytest.mark.parametrize("opset", [17, 20, 23, 26])
@pytest.mark.parametrize("target", ["onnx", "ort-cpu"])
@pytest.mark.parametrize("spec", SMALL)
def test_it_compiles_loads_and_agrees(spec: str, target: str, opset: int, tmp_path: Path) -> None:
    path = tmp_path / f"{spec}.onnx"
    seed = None if spec in TRAINED else 0
    specc.compile(spec, path, set=SMALL[spec], init=seed, target=target, opset=opset)
    assert list(verify(specc.load(path), rounds=2))
