"""Tiny checkpoints of most families answer as transformers did, without torch."""

from pathlib import Path

import pytest
from support.hf_outputs import OutputArchive, check_compiled_outputs, check_reference_outputs

ANSWERS = OutputArchive()


@pytest.mark.parametrize("name", ANSWERS.names)
def test_a_folder_means_what_the_published_class_answered(name: str, tmp_path: Path) -> None:
    check_reference_outputs(ANSWERS[name], tmp_path)


@pytest.mark.parity
@pytest.mark.parametrize("name", ANSWERS.names)
def test_what_is_compiled_of_it_answers_so(name: str, tmp_path: Path) -> None:
    check_compiled_outputs(ANSWERS[name], tmp_path)


def test_another_weight_is_another_answer(tmp_path: Path) -> None:
    """What is kept would notice."""
    answer = ANSWERS["gpt2"]
    moved = {**answer.config, "layer_norm_epsilon": 0.3}
    with pytest.raises(AssertionError, match="off by"):
        check_reference_outputs(type(answer)(**{**vars(answer), "config": moved}), tmp_path)
