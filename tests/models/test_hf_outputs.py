"""Tiny checkpoints of most model families give the recorded outputs of transformers, without torch."""

from pathlib import Path

import pytest
from support.hf_outputs import OutputArchive, check_compiled_outputs, check_reference_outputs
from support.parameter_sweeps import sample_sweep

ANSWERS = OutputArchive()


@pytest.mark.parametrize("name", sample_sweep(ANSWERS.names, stride=6))
def test_a_checkpoint_gives_the_recorded_outputs_in_the_reference(
    name: str, tmp_path: Path
) -> None:
    check_reference_outputs(ANSWERS[name], tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if n % 3 else pytest.mark.parity)
        for n, name in enumerate(ANSWERS.names)
    ],
)
def test_a_compiled_checkpoint_gives_the_recorded_outputs(name: str, tmp_path: Path) -> None:
    """A third in the parity suite, where tests/parity compares compiled checkpoints of every family
    with transformers itself.
    """
    check_compiled_outputs(ANSWERS[name], tmp_path)


def test_a_changed_weight_is_detected(tmp_path: Path) -> None:
    """The recorded outputs detect a changed weight."""
    answer = ANSWERS["gpt2"]
    moved = {**answer.config, "layer_norm_epsilon": 0.3}
    with pytest.raises(AssertionError, match="off by"):
        check_reference_outputs(type(answer)(**{**vars(answer), "config": moved}), tmp_path)
