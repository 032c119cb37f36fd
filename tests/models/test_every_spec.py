"""Every shipped spec compiles at the oldest, the usual and the newest opset, for both CPU targets, and agrees.

What a spec needs besides its defaults, to be small, stands in SMALL; a spec that is missing there fails.
"""

from pathlib import Path

import pytest

import specc
from specc.cli import main
from specc.library import SUFFIXES, root, shipped
from specc.verifying import verify

TRANSFORMER = {"vocab": 17, "d": 16, "heads": 2, "layers": 2, "hidden": 24}
IMAGE = {"d": 8, "heads": 2, "layers": 2, "hidden": 16, "image": 8, "patch": 4, "channels": 2}
LUONG = {"source_vocab": 13, "words": 5, "hidden": 6, "layers": 2, "reach": 2}
SMALL: dict[str, dict[str, object]] = {
    "autoencoder": {"vocab": 17, "target_vocab": 17, "width": 6, "hidden": 7},
    "bert": TRANSFORMER | {"context": 32},
    "bilstm_tagger": {"vocab": 17, "tags": 5, "width": 6, "hidden": 7, "layers": 2},
    "dates": {},
    "decomposable": {"vocab": 13, "words": 5, "hidden": 6},
    "digits": {},
    "elman": {"inputs": 4, "hidden": 6, "outputs": 3},
    "encoder_decoder": {"vocab": 17, "width": 16, "heads": 2, "hidden": 24, "encoder.layers": 1, "decoder.layers": 1},
    "feedforward": {"inputs": 5, "hidden": [7, 6], "outputs": 3},
    "glove_classifier": {"vocab": 13, "d": 5, "att": 6},
    "gpt2": TRANSFORMER | {"context": 32},
    "graph_attention": {"inputs": 5, "hidden": 3, "classes": 4, "heads": 2},
    "gru_lm": {"vocab": 17, "width": 6, "reset": "before", "update": "new"},
    "jordan": {"inputs": 4, "hidden": 6, "outputs": 3, "decay": 0.5},
    "kernel_regression": {},
    "kv_lookup": {"letters": 3},
    "lstm_lm": {"vocab": 17, "width": 6, "tied": True},
    "luong": LUONG,
    "luong_concat": LUONG | {"score": "additive(7)"},
    "luong_dot": LUONG,
    "luong_general": LUONG,
    "luong_local_m": LUONG,
    "luong_local_p": LUONG,
    "luong_location": LUONG | {"score": "location(3)"},
    "ntm_read": {"inputs": 3, "outputs": 2, "hidden": 6, "cells": 5, "width": 4},
    "rnn_encdec": {"source_vocab": 13, "words": 5, "hidden": 6, "maxout": 4},
    "seq2seq": {"vocab": 17, "target_vocab": 19, "width": 6, "hidden": 7, "layers": 2},
    "rnnsearch": {"src_vocab": 13, "tgt_vocab": 11, "emb": 5, "hid": 6, "att": 4, "readout": 3},
    "show_attend_tell": {"vocab": 13, "regions": 4, "features": 5, "words": 3, "hidden": 6, "att": 4},
    "small_translator": {"vocab": 17, "width": 16, "heads": 2, "hidden": 24, "encoder.layers": 1, "decoder.layers": 1},
    "transformer": TRANSFORMER | {"pad": 0, "bos": 1, "eos": 2},
    "vit": IMAGE | {"classes": 3},
    "vit_mae": IMAGE | {"decoder_d": 8, "decoder_layers": 1, "decoder_heads": 2, "decoder_hidden": 16},
    "vit_segmenter": IMAGE | {"classes": 3},
    "xor": {},
}
TRAINED = {"dates", "digits", "xor"}


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


@pytest.mark.parametrize(
    "path", sorted(p for f in ("std", "models") for p in (root() / f).iterdir()), ids=lambda p: p.name
)
def test_it_stands_in_canonical_form(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if path.suffix in SUFFIXES:
        assert main(["fmt", "--check", str(path)]) == 0, capsys.readouterr().err
