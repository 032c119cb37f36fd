"""Multilingual checkpoints (MMS): the adapter weights of a language replace those of the checkpoint
as with transformers' `load_adapter`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from support.elaborated_specs import assert_arrays_close
from support.hf_cases import ModelCase

import specc
from specc.cli.main import main
from specc.diagnostics.diagnostic import SpeccError

pytestmark = pytest.mark.parity

TINY: dict[str, Any] = {
    "vocab_size": 13, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40,
    "conv_dim": [6, 7, 8], "conv_kernel": [5, 3, 2], "conv_stride": [3, 2, 2], "num_conv_pos_embeddings": 5,
    "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True,
    "adapter_attn_dim": 6,
}  # fmt: skip
WORDS = 17
"""How many tokens the other language has."""
Tensors = dict[str, torch.Tensor]


def saved(directory: Path) -> Any:
    """Save a model, and the adapter of another language next to it."""
    case = ModelCase(config="Wav2Vec2Config", model="Wav2Vec2ForCTC", tiny=TINY)
    theirs = case.save_checkpoint(directory)
    source = torch.Generator().manual_seed(4)
    tensors = {}
    for name, weight in theirs._get_adapters().items():
        shape = list(weight.shape)
        if name.startswith("lm_head"):
            shape[0] = WORDS
        tensors[name] = torch.randn(shape, generator=source) * 0.5
    save_file(tensors, directory / "adapter.fra.safetensors")
    return theirs


def sound() -> NDArray[np.float32]:
    drawn = np.random.default_rng(0).standard_normal((2, 171))
    return drawn.astype(np.float32)


def compiled(directory: Path, words: int = WORDS) -> specc.Model:
    out = directory / "fra.onnx"
    file = directory / "adapter.fra.safetensors"
    specc.compile(str(directory), out, adapter=file, set={"vocab": words}, force=True)
    return specc.load(out, threads=1)


def test_language_adapter(tmp_path: Path) -> None:
    theirs = saved(tmp_path)
    theirs.load_adapter("fra")
    with torch.no_grad():
        wanted = theirs.double()(torch.tensor(sound()).double()).logits.numpy()
    assert wanted.shape[-1] == WORDS
    made = compiled(tmp_path).run(input_values=sound())["logits"]
    assert_arrays_close(made, wanted, "logits", 1e-5)


def test_vocabulary_of_the_language(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a vocabulary per language, whichever language the tokenizer was saved with."""
    saved(tmp_path)
    words = {"eng": {f"e{n}": n for n in range(13)}, "fra": {f"f{n}": n for n in range(WORDS)}}
    (tmp_path / "vocab.json").write_text(json.dumps(words))
    (tmp_path / "tokenizer_config.json").write_text('{"target_lang": "eng"}')
    np.save(tmp_path / "x.npy", sound())
    out, file = tmp_path / "m.onnx", tmp_path / "adapter.fra.safetensors"
    told = ["compile", str(tmp_path), "--adapter", str(file), f"--set=vocab={WORDS}"]
    assert main([*told, "-o", str(out)]) == 0
    assert main(["run", str(out), str(tmp_path / "x.npy")]) == 0
    shown = capsys.readouterr().out
    assert "f" in shown
    assert "e1" not in shown


def half(tensors: Tensors) -> Tensors:
    return {n: t for n, t in tensors.items() if "layers.1." not in n}


def strange(tensors: Tensors) -> Tensors:
    return {**tensors, "wav2vec2.more": torch.ones(3)}


def without_vocabulary(tensors: Tensors) -> Tensors:
    return {n: t for n, t in tensors.items() if not n.startswith("lm_head.")}


@pytest.mark.parametrize("change", [half, strange, without_vocabulary])
def test_unsuitable_adapters_are_refused(
    change: Callable[[Tensors], Tensors], tmp_path: Path
) -> None:
    theirs = saved(tmp_path)
    tensors = {n: t.detach().clone() for n, t in theirs._get_adapters().items()}
    save_file(change(tensors), tmp_path / "adapter.fra.safetensors")
    with pytest.raises(SpeccError, match="E0531"):
        compiled(tmp_path, 13)


def test_vocabulary_size_mismatch_is_reported(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(SpeccError, match="E0503") as caught:
        compiled(tmp_path, 13)
    # by the file that has them, and with the value that would fit
    assert "adapter.fra.safetensors contains `lm_head" in str(caught.value)
    assert f"--set vocab={WORDS}" in str(caught.value)
