"""Image preprocessing follows `preprocessor_config.json` and matches the image processors of
transformers.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image
from support.image_files import read_image
from support.preprocessing_records import parse_input_record

import specc
from specc.huggingface.image_processor_config import read_image_options
from specc.preprocessing.preprocessing_records import ImageConfig as Record

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

SIZES = [(60, 40), (37, 91), (16, 16), (9, 5), (128, 128), (301, 17)]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTImageProcessorPil", {"size": {"height": 16, "width": 16}}),
    "vit-oblong": ("ViTImageProcessorPil", {"size": {"height": 16, "width": 24}, "resample": 3}),
    "vit-plain": ("ViTImageProcessorPil", {"size": {"height": 16, "width": 16}, "do_normalize": False, "do_rescale": False}),
    "deit": ("DeiTImageProcessorPil", {"size": {"height": 20, "width": 20}, "crop_size": {"height": 16, "width": 16}}),
    "deit-odd": ("DeiTImageProcessorPil", {"size": {"height": 21, "width": 18}, "crop_size": {"height": 16, "width": 15}}),
    "beit": ("BeitImageProcessorPil", {"size": {"height": 16, "width": 16}}),
    "clip": ("CLIPImageProcessorPil", {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}),
    "clip-small": ("CLIPImageProcessorPil", {"size": {"shortest_edge": 11}, "crop_size": {"height": 16, "width": 17}}),
    "blip": ("BlipImageProcessorPil", {"size": {"height": 16, "width": 16}}),
    "gemma3": ("Gemma3ImageProcessorPil", {"size": {"height": 16, "width": 16}}),
    "internvl": ("GotOcr2ImageProcessorPil", {"size": {"height": 16, "width": 16}}),
    "siglip": ("SiglipImageProcessorPil", {"size": {"height": 16, "width": 16}, "resample": 1}),
    "dinov2": ("BitImageProcessorPil", {"size": {"shortest_edge": 20}, "crop_size": {"height": 16, "width": 16}, "resample": 2}),
    "convnext": ("ConvNextImageProcessorPil", {"size": {"shortest_edge": 16}, "crop_pct": 0.8}),
    "convnext-large": ("ConvNextImageProcessorPil", {"size": {"shortest_edge": 384}}),
    "segformer": ("SegformerImageProcessorPil", {"size": {"height": 16, "width": 16}, "resample": 4}),
    "donut": ("DonutImageProcessorPil", {"size": {"height": 24, "width": 18}}),
    "donut-lying": ("DonutImageProcessorPil", {"size": {"height": 18, "width": 30}, "resample": 3}),
    "donut-turned": ("DonutImageProcessorPil", {"size": {"height": 24, "width": 17}, "do_align_long_axis": True}),
    "donut-turned, lying": ("DonutImageProcessorPil", {"size": {"height": 15, "width": 31}, "do_align_long_axis": True}),
    "donut-square": ("DonutImageProcessorPil", {"size": {"height": 20, "width": 20}, "do_align_long_axis": True}),
    "donut-old": ("DonutImageProcessorPil", {"size": [18, 24]}),
    "nearest": ("ViTImageProcessorPil", {"size": {"height": 16, "width": 16}, "resample": 0}),
    "hamming": ("ViTImageProcessorPil", {"size": {"height": 16, "width": 16}, "resample": 5}),
}  # fmt: skip


def pictures(directory: Path) -> list[Path]:
    """Return images of several aspect ratios, with edges and noise."""
    rng = np.random.default_rng(0)
    paths = []
    for n, (rows, columns) in enumerate(SIZES):
        pixels = rng.integers(0, 256, (rows, columns, 3), dtype=np.uint8)
        pixels[: rows // 2, columns // 3 :] //= 4
        paths.append(directory / f"{n}.png")
        Image.fromarray(pixels).save(paths[-1])
    return paths


def record_of(directory: Path, size: tuple[int, int]) -> Record:
    """Return the image preprocessing of a spec for that size, with the file of a directory."""
    said = {"kind": "image", "size": list(size), "channels": 3}
    made = parse_input_record(read_image_options(said, [directory], None))
    assert isinstance(made, Record)
    return made


@pytest.mark.parametrize("key", ["do_normalize", "do_rescale", "do_center_crop"])
def test_null_disables_a_step(key: str, tmp_path: Path) -> None:
    """An absent key selects the default instead."""
    size = {"height": 16, "width": 16}
    kind = transformers.DeiTImageProcessorPil
    kind(size=size, crop_size={"height": 12, "width": 12}).save_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: None}))
    theirs = kind.from_pretrained(tmp_path)
    path = pictures(tmp_path)[1]
    with Image.open(path) as picture:
        wanted = theirs(picture.convert("RGB"), return_tensors="np")["pixel_values"]
    got = read_image(str(path), record_of(tmp_path, wanted.shape[2:]))
    assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("name", CASES)
def test_published_image_processors(name: str, tmp_path: Path) -> None:
    kind, how = CASES[name]
    theirs = getattr(transformers, kind)(**how)
    theirs.save_pretrained(tmp_path)
    for path in pictures(tmp_path):
        with Image.open(path) as picture:
            wanted = theirs(picture.convert("RGB"), return_tensors="np")["pixel_values"]
        record = record_of(tmp_path, wanted.shape[2:])
        got = read_image(str(path), record)
        assert got.shape == wanted.shape
        most = np.abs(wanted).max()
        assert np.abs(got - wanted).max() <= 1e-5 * most, f"{path.name}, {record}"


def test_file_overrides_the_spec(tmp_path: Path) -> None:
    """The logits equal those after the published processor."""
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        image_size=16, patch_size=8, num_labels=4,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config).eval()
    model.save_pretrained(tmp_path)
    theirs = transformers.ViTImageProcessorPil(
        size={"height": 16, "width": 16}, image_mean=[0.1, 0.2, 0.3], image_std=[0.7, 0.8, 0.9]
    )  # fmt: skip
    theirs.save_pretrained(tmp_path)
    made = specc.compile(tmp_path, tmp_path / "m.onnx")
    assert any("image preprocessing settings are from" in remark for remark in made.remarks)
    ours = specc.load(tmp_path / "m.onnx")
    (name,) = made.model.graph.inputs
    for path in pictures(tmp_path)[:2]:
        with Image.open(path) as picture:
            given = theirs(picture.convert("RGB"), return_tensors="pt")
            got = ours.run(**{name: picture})["logits"]
        wanted = model(given["pixel_values"]).logits.detach().numpy()
        assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("key", ["image_mean", "image_std"])
def test_values_per_channel(key: str, tmp_path: Path) -> None:
    """One value in a list is used for all channels and reported, two are refused."""
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        image_size=16, patch_size=8,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    for values, count in (([0.5], 1), ([0.5] * 3, 0)):
        file.write_text(json.dumps({"size": 16, key: values}))
        made = specc.compile(tmp_path, tmp_path / "m.onnx", force=True)
        assert sum(f"`{key}`" in remark for remark in made.remarks) == count
        record = record_of(tmp_path, (16, 16))
        path = pictures(tmp_path)[0]
        theirs = transformers.ViTImageProcessorPil(**{"size": 16, key: [0.5] * 3})
        with Image.open(path) as picture:
            wanted = theirs(picture, return_tensors="np")["pixel_values"]
        assert np.abs(read_image(str(path), record) - wanted).max() <= 1e-5
    file.write_text(json.dumps({"size": 16, key: [0.5, 0.5]}))
    with pytest.raises(specc.SpeccError, match="E0422"):
        specc.compile(tmp_path, tmp_path / "m.onnx", force=True)


def test_old_files(tmp_path: Path) -> None:
    """A number as size, and no name of a processor."""
    old = {
        "do_normalize": True,
        "do_resize": True,
        "size": 16,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(old))
    record = record_of(tmp_path, (16, 16))
    theirs = transformers.ViTImageProcessorPil(**old)
    (path, *_) = pictures(tmp_path)
    with Image.open(path) as picture:
        wanted = theirs(picture, return_tensors="np")["pixel_values"]
    assert np.abs(read_image(str(path), record) - wanted).max() <= 1e-5
