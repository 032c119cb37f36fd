"""The Python interface takes what a Python user gives it, and refuses the rest with a code."""

from pathlib import Path

import numpy as np
import pytest

import specc

SMALL = {"vocab": 17, "width": 16, "heads": 2, "hidden": 24, "encoder": {"layers": 1}, "decoder": {"layers": 1}}


def test_values_nest_as_in_an_instance(tmp_path: Path) -> None:
    made = specc.compile("encoder_decoder", tmp_path / "m.onnx", init=0, set=SMALL)
    assert made.model.config["encoder"]["layers"] == 1  # type: ignore[index]


def test_a_text_is_an_expression() -> None:
    given = SMALL | {"decoder": {"layers": 1, "attention": {"mask": "causal & window(8)"}}, "norm": "pre"}
    assert specc.check("encoder_decoder", set=given).model is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, b"4"])
def test_values_without_a_form_in_the_language_are_refused(value: object) -> None:
    with pytest.raises(specc.Failed, match="E0203"):
        specc.check("vit", set={"d": value})


def test_numbers_of_numpy_are_numbers() -> None:
    found = specc.check("vit", set={"layers": np.int64(3), "eps": np.float32(0.5)})
    assert found.model is not None
    assert found.model.config["layers"] == 3


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_has_64_bits(seed: int, tmp_path: Path) -> None:
    with pytest.raises(specc.Failed, match="E0525"):
        specc.compile("vit", tmp_path / "m.onnx", init=seed)


def test_weights_come_from_one_place(tmp_path: Path) -> None:
    with pytest.raises(specc.Failed, match="E0525"):
        specc.compile("digits", tmp_path / "m.onnx", init=0, weights=tmp_path)


def test_checking_gives_the_model_and_what_was_tried() -> None:
    found = specc.check("gpt2")
    assert found.model is not None
    assert {tuple(t.values) for t in found.trials} >= {("layers",)}


def test_a_wrong_spec_says_so() -> None:
    with pytest.raises(specc.Failed) as failed:
        specc.check("gpt3")
    assert failed.value.diagnostics[0].code == "E0222"
