"""Folders as users have them: with what training and other programs left beside the
weights, and the hub's cache, whose files are links.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.hf_outputs import OutputArchive, write_checkpoint

import specc
from specc.diagnostics.diagnostic import Failed
from specc.driver.spec_loader import open_spec
from specc.weights.formats.safetensors import open_tensors, write_safetensors

LEFT = [
    "README.md", ".gitattributes", "optimizer.pt", "training_args.bin", "rng_state.pth", "tf_model.h5",
    "flax_model.msgpack", "pytorch_model.bin", "rust_model.ot", "onnx/model.onnx", "onnx/config.json",
    "checkpoint-5/model.safetensors", ".cache/x", "events.out.tfevents.1",
]  # fmt: skip
"""What no checkpoint is read from."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `save_pretrained` writes it."""
    directory = tmp_path_factory.mktemp("plain") / "ck"
    write_checkpoint(OutputArchive()["gpt2"], directory)
    return directory


def cached(plain: Path, hub: Path, *versions: str) -> Path:
    """The model `me/tiny` as the hub's cache has it, of which the last version is the newest."""
    model = hub / "models--me--tiny"
    (model / "blobs").mkdir(parents=True)
    for version in versions:
        (model / "snapshots" / version).mkdir(parents=True)
        for number, file in enumerate(sorted(plain.iterdir())):
            shutil.copy(file, model / "blobs" / str(number))
            link = model / "snapshots" / version / file.name
            link.symlink_to(f"../../blobs/{number}")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(versions[-1])
    return model


def scores(directory: Path, out: Path) -> object:
    specc.compile(str(directory), out)
    return specc.load(out).run(input_ids=[[1, 2, 3]])["logits"].tobytes()


@pytest.mark.parity
def test_what_lies_beside_the_weights_is_left_alone(plain: Path, tmp_path: Path) -> None:
    wanted = scores(plain, tmp_path / "plain.onnx")
    full = tmp_path / "full"
    shutil.copytree(plain, full)
    for name in LEFT:
        (full / name).parent.mkdir(exist_ok=True)
        (full / name).write_bytes(b"junk \0\xff")
    with open_tensors(full / "model.safetensors") as file:
        half = {name: file.read(name).astype(np.float16) / 2 for name in file.tensors}
    write_safetensors(full / "model.fp16.safetensors", half)
    (full / "model.safetensors.index.json").write_text("{}")
    assert scores(full, tmp_path / "full.onnx") == wanted


@pytest.mark.parity
def test_a_version_in_the_cache_is_a_checkpoint(plain: Path, tmp_path: Path) -> None:
    model = cached(plain, tmp_path / "hub", "abc")
    before = {p: p.read_bytes() for p in (model / "blobs").iterdir()}
    wanted = scores(plain, tmp_path / "plain.onnx")
    version = model / "snapshots" / "abc"
    assert scores(version, tmp_path / "out.onnx") == wanted
    # beside the links as well: what they lead to stays as it is
    assert scores(version, version / "model.onnx") == wanted
    assert {p: p.read_bytes() for p in (model / "blobs").iterdir()} == before


def advice(spec: object) -> str:
    with pytest.raises(Failed) as failed:
        open_spec(str(spec))
    (d,) = failed.value.diagnostics
    assert d.code == "E0222"
    return "\n".join(d.helps)


def test_other_folders_of_the_cache_say_which_to_give(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cached(plain, tmp_path / "hub", "fed", "abc", "def")
    newest = f"{model}{os.sep}snapshots{os.sep}def"
    for directory in (model, tmp_path / "hub", tmp_path):
        assert advice(directory).endswith(newest)
    (tmp_path / "none").mkdir()
    assert "cache" not in advice(tmp_path / "none")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert newest in advice("me/tiny")
    for variable, value in (("HF_HUB_CACHE", ""), ("HF_HOME", str(tmp_path))):
        monkeypatch.setenv(variable, value)
    assert newest in advice("me/tiny")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    assert "`hf:me/tiny`" in advice("me/tiny")
    assert "`hf:" not in advice("/me/tiny")
    assert "built-in specs" in advice("tinyy-model")
