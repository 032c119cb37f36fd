"""Tiny checkpoints of most model families give the recorded outputs of transformers, without torch."""

from collections import Counter
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.hf_outputs import (
    ARCHIVE,
    OutputArchive,
    check_compiled_outputs,
    check_reference_outputs,
)
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


def test_recorded_outputs_are_small() -> None:
    """At most 5 kB per case: large inputs are generated, and large outputs are sampled."""
    sizes: Counter[str] = Counter()
    with ZipFile(ARCHIVE) as archive:
        for entry in archive.infolist():
            sizes[entry.filename.partition("/")[0]] += entry.compress_size
    assert {name: size for name, size in sizes.items() if size > 5000} == {
        "index.npy": sizes["index.npy"]
    }


def test_a_changed_weight_is_detected(tmp_path: Path) -> None:
    """The recorded outputs detect a changed weight."""
    answer = ANSWERS["gpt2"]
    moved = {**answer.config, "layer_norm_epsilon": 0.3}
    with pytest.raises(AssertionError, match="off by"):
        check_reference_outputs(type(answer)(**{**vars(answer), "config": moved}), tmp_path)
