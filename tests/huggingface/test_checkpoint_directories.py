"""Checkpoint directories as users have them: with files of training and other programs next to the
weights, and the Hub cache, whose files are symlinks."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.hf_outputs import OutputArchive, write_checkpoint

import specc
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_loader import open_spec
from specc.weights.formats.safetensors import open_safetensors, write_safetensors

LEFT = [
    "README.md", ".gitattributes", "optimizer.pt", "training_args.bin", "rng_state.pth", "tf_model.h5",
    "flax_model.msgpack", "pytorch_model.bin", "rust_model.ot", "onnx/model.onnx", "onnx/config.json",
    "checkpoint-5/model.safetensors", ".cache/x", "events.out.tfevents.1",
]  # fmt: skip
"""What no checkpoint is read from."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as `save_pretrained` writes it."""
    directory = tmp_path_factory.mktemp("checkpoint") / "ck"
    write_checkpoint(OutputArchive()["gpt2"], directory)
    return directory


def write_hub_cache(checkpoint: Path, hub: Path, *versions: str) -> Path:
    """Write the model `me/tiny` in the layout of the Hub cache; the last version is the newest."""
    model = hub / "models--me--tiny"
    (model / "blobs").mkdir(parents=True)
    for version in versions:
        (model / "snapshots" / version).mkdir(parents=True)
        for number, file in enumerate(sorted(checkpoint.iterdir())):
            shutil.copy(file, model / "blobs" / str(number))
            link = model / "snapshots" / version / file.name
            link.symlink_to(f"../../blobs/{number}")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(versions[-1])
    return model


def compute_logits(directory: Path, out: Path) -> object:
    specc.compile(str(directory), out)
    return specc.load(out).run(input_ids=[[1, 2, 3]])["logits"].tobytes()


@pytest.mark.parity
def test_other_files_are_ignored(checkpoint: Path, tmp_path: Path) -> None:
    wanted = compute_logits(checkpoint, tmp_path / "plain.onnx")
    full = tmp_path / "full"
    shutil.copytree(checkpoint, full)
    for name in LEFT:
        (full / name).parent.mkdir(exist_ok=True)
        (full / name).write_bytes(b"junk \0\xff")
    with open_safetensors(full / "model.safetensors") as file:
        half = {name: file.read_tensor(name).astype(np.float16) / 2 for name in file.tensors}
    write_safetensors(full / "model.fp16.safetensors", half)
    (full / "model.safetensors.index.json").write_text("{}")
    assert compute_logits(full, tmp_path / "full.onnx") == wanted


@pytest.mark.parity
def test_snapshot_of_the_cache(checkpoint: Path, tmp_path: Path) -> None:
    model = write_hub_cache(checkpoint, tmp_path / "hub", "abc")
    before = {p: p.read_bytes() for p in (model / "blobs").iterdir()}
    wanted = compute_logits(checkpoint, tmp_path / "plain.onnx")
    version = model / "snapshots" / "abc"
    assert compute_logits(version, tmp_path / "out.onnx") == wanted
    # output next to the symlinks does not change their targets
    assert compute_logits(version, version / "model.onnx") == wanted
    assert {p: p.read_bytes() for p in (model / "blobs").iterdir()} == before


def get_advice(spec: object) -> str:
    with pytest.raises(SpeccError) as failed:
        open_spec(str(spec))
    (d,) = failed.value.diagnostics
    assert d.code == "E0222"
    return "\n".join(d.helps)


def test_advice_for_other_directories(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_hub_cache(checkpoint, tmp_path / "hub", "fed", "abc", "def")
    newest = f"{model}{os.sep}snapshots{os.sep}def"
    for directory in (model, tmp_path / "hub", tmp_path):
        assert get_advice(directory).endswith(newest)
    (tmp_path / "none").mkdir()
    assert "cache" not in get_advice(tmp_path / "none")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert newest in get_advice("me/tiny")
    for variable, value in (("HF_HUB_CACHE", ""), ("HF_HOME", str(tmp_path))):
        monkeypatch.setenv(variable, value)
    assert newest in get_advice("me/tiny")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    assert "`hf:me/tiny`" in get_advice("me/tiny")
    assert "`hf:" not in get_advice("/me/tiny")
    assert "built-in specs" in get_advice("tinyy-model")
