"""The preprocessing record round-trips through JSON, and untrusted JSON is validated."""

import json
from pathlib import Path

import pytest
from support.preprocessing_records import parse_input_record

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.preprocessing_section import find_tokenizer_directories
from specc.preprocessing.preprocessing_config import (
    PreprocessingConfig,
    adapt_output_format_to_rank,
)
from specc.preprocessing.preprocessing_records import (
    ArrayConfig,
    ByteTokenizer,
    CharTokenizer,
    ClassificationOutput,
    ImageConfig,
    ImageOutput,
    SegmentationOutput,
    TextOutput,
    WordTokenizer,
)

EVERYTHING = PreprocessingConfig(
    inputs=(
        (
            "pixels",
            ImageConfig(
                size=(8, 8),
                channels=1,
                resample="box",
                scale=1 / 255,
                mean=(0.5,),
                std=(0.25,),
                invert="auto",
                do_center_crop=True,
            ),
        ),
        ("source", CharTokenizer(("<end>", "a", "b"), end_token_id=0, unknown_token_id=0)),
        ("raw", ByteTokenizer(offset=3, end_token_id=1)),
        ("spoken", WordTokenizer(("<end>", "cat"), end_token_id=0, do_lower_case=True)),
        ("state", ArrayConfig()),
    ),
    outputs=(
        ("logits", ClassificationOutput(("cat", "dog"), top_k=2)),
        ("text", TextOutput(ByteTokenizer(3, 1))),
        ("told", TextOutput(WordTokenizer(("cat", "[UNK]"), unknown_token_id=1))),
        ("spelled", TextOutput(CharTokenizer(("a", "é")))),
        ("score", ArrayConfig(digits=6)),
        ("rebuilt", ImageOutput(ImageConfig(size=(16, 16)))),
        ("mask", SegmentationOutput(("sky", "sea"), ((0, 0, 255), (0, 255, 255)))),
    ),
)


def test_json_round_trip():
    text = json.dumps(EVERYTHING.to_json())
    assert PreprocessingConfig.from_json(json.loads(text)) == EVERYTHING


def test_input_without_a_record_is_an_array():
    assert EVERYTHING.get_input_config("other") == ArrayConfig()


def get_record_error(value: object) -> str:
    with pytest.raises(SpeccError) as caught:
        PreprocessingConfig.from_json(value)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E0915"
    return diagnostic.notes[0]


@pytest.mark.parametrize(
    "value", [None, [], 3, "x", {"inputs": {}}, {"inputs": {}, "shows": {}, "more": 1}]
)
def test_unknown_top_level_keys(value):
    get_record_error(value)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"kind": "pickle"}, "kind"),
        ({"kind": ["image"]}, "kind"),
        ({"size": [8]}, "size"),
        ({"size": [8, 0]}, "size[1]"),
        ({"size": [8, 8193]}, "size[1]"),
        ({"size": [True, 8]}, "size[0]"),
        ({"size": [8.0, 8]}, "size[0]"),
        ({"size": "88"}, "size"),
        ({"channels": 2}, "channels"),
        ({"channels": 4}, "channels"),
        ({"resize": "sinc"}, "resize"),
        ({"scale": 0}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"scale": 10**400}, "scale"),
        ({"mean": [0.1, 0.2]}, "mean"),
        ({"mean": ["0.1"]}, "mean[0]"),
        ({"std": [0.0]}, "std"),
        ({"std": [-1.0]}, "std"),
        ({"invert": 1}, "invert"),
        ({"invert": "maybe"}, "invert"),
        ({"crop": "yes"}, "crop"),
        ({"mystery": 1}, "mystery"),
    ],
)
def test_invalid_fields_are_named(change, what):
    image = {"kind": "image", "size": [8, 8], "channels": 3, **change}
    assert f"`preprocessing.inputs.x.{what}`" in get_record_error(
        {"inputs": {"x": image}, "shows": {}}
    )


@pytest.mark.parametrize(
    "vocabulary",
    [
        {"vocab": []},
        {"vocab": ["a", "a"]},
        {"vocab": ["a", ""]},
        {"vocab": ["a", 3]},
        {"vocab": ["x" * 257]},
        {"vocab": ["\ud800"]},
        {"vocab": ["a"], "end": 1},
        {"vocab": ["a"], "end": -1},
        {"vocab": ["a"], "unknown": True},
    ],
)
def test_invalid_vocabularies(vocabulary):
    get_record_error({"inputs": {"x": {"kind": "characters", **vocabulary}}, "shows": {}})


def test_invalid_palettes():
    for palette in ([[0, 0]], [[0, 0, 256]], [[0, 0, 0], [1, 1, 1]], "red"):
        record = {"kind": "class_map", "labels": ["a"], "palette": palette}
        get_record_error({"inputs": {}, "shows": {"m": record}})


def test_custom_error_callback():
    """The compiler reports a wrong option of a spec at its position with its own code."""
    told = []

    def report_error(path, what):
        told.append((path, what))
        raise KeyError

    with pytest.raises(KeyError):
        parse_input_record({"kind": "image", "size": [8, 8], "resize": "cubic"}, (), report_error)
    assert told == [
        (("resize",), "is not one of bilinear, bicubic, box, nearest, lanczos, hamming")
    ]


def test_labels_depend_on_the_rank():
    """One line of a spec serves a head that classifies an image and one that classifies its
    pixels."""
    labels = ("sky", "sea", "land", "road")
    places = SegmentationOutput(labels)
    assert adapt_output_format_to_rank(ClassificationOutput(labels, top_k=2), 4) == places
    assert adapt_output_format_to_rank(places, 2) == ClassificationOutput(labels, top_k=3)
    assert adapt_output_format_to_rank(SegmentationOutput(labels[:2]), 2) == ClassificationOutput(
        labels[:2], top_k=2
    )
    for record, rank in (
        (ClassificationOutput(labels), 2),
        (ClassificationOutput(labels), 3),
        (places, 4),
        (places, 3),
    ):
        assert adapt_output_format_to_rank(record, rank) is record


def test_directory_of_a_config_file_can_contain_the_tokenizer(tmp_path: Path) -> None:
    """`--config DIR/config.json` finds the same tokenizer as `--config DIR`."""
    (tmp_path / "config.json").touch()
    for path in (tmp_path, tmp_path / "config.json"):
        assert find_tokenizer_directories("", str(path)) == (tmp_path,)
    assert find_tokenizer_directories(str(tmp_path / "model.safetensors")) == ()
