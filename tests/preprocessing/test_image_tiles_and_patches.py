"""Images whose size depends on the image: errors, and preprocessor_config.json."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.preprocessing_records import parse_input_record

from specc.batch_inference.row_batches_and_cost_model import _decode_pixels
from specc.diagnostics.diagnostic import SpeccError
from specc.huggingface.image_processor_config import read_image_options
from specc.preprocessing.image_tiles_and_patches import flatten_patches, preprocess_pixels
from specc.preprocessing.preprocessing_records import ImageConfig

AREA: dict[str, Any] = {
    "kind": "image", "sizing": "area", "bounds": [[64, 256]], "multiple": 4, "patches": [2, 2, 1], "channels": 1,
}  # fmt: skip
WITHIN: dict[str, Any] = {"kind": "image", "sizing": "within", "bounds": [[8, 8]], "multiple": 4}


@pytest.mark.parametrize(("options", "size"), [(AREA, (1, 201)), (WITHIN, (400, 1))])
def test_extreme_aspect_ratios(options: dict[str, Any], size: tuple[int, int]) -> None:
    pytest.importorskip("PIL.Image")
    record = parse_input_record(options)
    assert isinstance(record, ImageConfig)
    with pytest.raises(SpeccError, match="E0990"):
        preprocess_pixels(np.zeros((*size, 1), np.uint8), record)


def test_columns_of_data_sets() -> None:
    """`specc map` reads no images of different sizes."""
    record = parse_input_record(AREA)
    assert isinstance(record, ImageConfig)
    with pytest.raises(SpeccError, match="E0911"):
        _decode_pixels("a.png", record)


def test_order_of_patches() -> None:
    """Blocks of merged patches, or rows of patches with channels last."""
    values = np.arange(32, dtype=np.float32).reshape(2, 4, 4)
    merged = flatten_patches(values, 1, 2, 2)
    assert merged[:5, 0].tolist() == [0, 1, 4, 5, 2]
    assert merged[0].tolist() == [0, 0, 16, 16]
    assert flatten_patches(values, 2)[1].tolist() == [2, 18, 3, 19, 6, 22, 7, 23]


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ({"image_processor_type": "ViTImageProcessor"}, "image_processor_type"),
        ({"patch_size": 3}, "patch_size"),
        ({"merge_size": 1}, "merge_size"),
        ({"do_resize": False}, "do_resize"),
        ({"do_center_crop": True}, "do_center_crop"),
        ({"min_pixels": 0}, "min_pixels"),
        ({"size": {"shortest_edge": True}}, "size"),
    ],
)
def test_settings_that_contradict_the_model(file: dict[str, Any], key: str, tmp_path: Path) -> None:
    settings = {
        "patch_size": 2,
        "temporal_patch_size": 1,
        "size": {"shortest_edge": 64, "longest_edge": 128},
    }
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(settings))
    assert read_image_options(AREA, [tmp_path], None)["bounds"] == [[64, 128]]
    path.write_text(json.dumps(settings | file))
    with pytest.raises(SpeccError, match="E0422") as failed:
        read_image_options(AREA, [tmp_path], None)
    assert f'"{key}"' in failed.value.diagnostics[0].title
