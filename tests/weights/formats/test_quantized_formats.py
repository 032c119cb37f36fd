"""Quantized weights decode to the values that the reference packages decode. `tests/kept/quantized`
contains weights written by those packages and the values that they read back: torch and
transformers (fp8, mxfp4), gptqmodel, autoawq, compressed-tensors, bitsandbytes."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep

from specc.diagnostics.diagnostic import SpeccError
from specc.huggingface.quantization_config import CheckpointQuantization, read_quantization_config
from specc.ir.array import Array
from specc.library.spec_file_lookup import load_config_json
from specc.weights.checkpoint_files import Checkpoint, open_checkpoint
from specc.weights.formats.safetensors import open_safetensors, write_safetensors
from specc.weights.quantized_checkpoint import DequantizedCheckpoint

KEPT = Path(__file__).parents[2] / "kept" / "quantized"
EXPECTED = "expected:"


def read_config(directory: Path, text: str) -> CheckpointQuantization:
    (directory / "config.json").write_text(f'{{"quantization_config": {text}}}')
    found = read_quantization_config(load_config_json(str(directory)))
    assert found is not None
    return found


def read_fixture(name: str, directory: Path) -> tuple[CheckpointQuantization, dict[str, Array]]:
    with open_safetensors(KEPT / f"{name}.safetensors") as file:
        config = read_config(directory, file.metadata["quantization_config"])
        return config, {tensor: file.read_tensor(tensor) for tensor in file.tensors}


NAMES = sorted(path.stem for path in KEPT.glob("*.safetensors"))
CHANGES: Mapping[str, Callable[[Array], Array]] = {
    "flat": lambda x: x.reshape(-1),
    "as a row": lambda x: x.reshape(1, -1),
    "cut": lambda x: x[: len(x) // 2] if x.ndim else x,
    "twice": lambda x: np.concatenate([x, x]) if x.ndim else x,
    "narrower": lambda x: x[..., :-1] if x.ndim else x,
    "no elements": lambda x: x[:0] if x.ndim else x,
    "one more axis": lambda x: x[None],
    "of another type": lambda x: np.zeros(
        x.shape, np.float64 if x.dtype.kind in "iu" else np.int64
    ),
    "of ones": lambda x: np.frombuffer(b"\xff" * x.nbytes, x.dtype).reshape(x.shape),
    "of zeros": np.zeros_like,
}


@pytest.mark.parametrize(("name", "change"), sample_sweep(list(product(NAMES, CHANGES))))
def test_damaged_tensor(name: str, change: str, tmp_path: Path) -> None:
    config, arrays = read_fixture(name, tmp_path)
    stored = {n: a for n, a in arrays.items() if not n.startswith(EXPECTED)}
    for tensor in stored:
        write_safetensors(
            tmp_path / "model.safetensors",
            {**stored, tensor: CHANGES[change](stored[tensor])},
            force=True,
        )
        with open_checkpoint(tmp_path) as base:
            checkpoint: Checkpoint = base
            with suppress(SpeccError):
                checkpoint = DequantizedCheckpoint(base, config.method, config.settings)
            for weight, entry in checkpoint.tensors.items():
                assert checkpoint.read_tensor(weight).shape == entry.shape


@pytest.mark.parametrize("name", NAMES)
def test_missing_tensor(name: str, tmp_path: Path) -> None:
    config, arrays = read_fixture(name, tmp_path)
    stored = {n: a for n, a in arrays.items() if not n.startswith(EXPECTED)}
    unneeded = (".g_idx", ".weight_format", ".weight_zero_point", ".weight_global_scale")
    for tensor in [n for n in stored if not n.endswith(unneeded)]:
        rest = {n: a for n, a in stored.items() if n != tensor}
        write_safetensors(tmp_path / "model.safetensors", rest, force=True)
        with open_checkpoint(tmp_path) as base, pytest.raises(SpeccError, match="E0532"):
            DequantizedCheckpoint(base, config.method, config.settings)


@pytest.mark.parametrize("name", NAMES)
def test_values_equal_the_reference_package(name: str, tmp_path: Path) -> None:
    config, arrays = read_fixture(name, tmp_path)
    stored = {n: a for n, a in arrays.items() if not n.startswith(EXPECTED)}
    write_safetensors(tmp_path / "model.safetensors", stored)
    with open_checkpoint(tmp_path) as base:
        checkpoint = DequantizedCheckpoint(base, config.method, config.settings)
        wanted = {n.removeprefix(EXPECTED): a for n, a in arrays.items() if n not in stored}
        assert checkpoint.tensors.keys() == checkpoint.decoded_tensors == wanted.keys()
        for weight, expected in wanted.items():
            found = checkpoint.read_tensor(weight)
            assert found.dtype == np.float32
            assert checkpoint.tensors[weight].shape == expected.shape
            assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()
            # slices along the first axis have the same values
            for rows in (slice(1, 2), slice(1, len(expected)), slice(0, len(expected) - 1)):
                assert np.array_equal(checkpoint.read_tensor(weight, rows), found[rows])
