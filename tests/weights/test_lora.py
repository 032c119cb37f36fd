"""LoRA adapters merged while weights are read, against W + s·B·A in float64, rounded once."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import SpeccError
from specc.huggingface.adapter_config import open_adapter
from specc.weights import lora
from specc.weights.checkpoint_files import open_checkpoint
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.lora import AdaptedCheckpoint

Arrays = Mapping[str, NDArray[Any]]
RNG = np.random.default_rng(0)


def sample_normal(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    return RNG.standard_normal(shape).astype(dtype)


def open_merged(
    directory: Path, base: Arrays, brought: Arrays, **config: object
) -> AdaptedCheckpoint:
    """Write a checkpoint and an adapter to files and open them."""
    for name, tensors in (("model", base), ("adapter_model", brought)):
        write_safetensors(directory / f"{name}.safetensors", tensors)
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 5, **config}
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return AdaptedCheckpoint(
        open_checkpoint(directory / "model.safetensors"), open_adapter(str(directory))
    )


def make_factors(a: NDArray[Any], b: NDArray[Any], module: str = "m") -> dict[str, Any]:
    start = f"base_model.model.{module}"
    return {f"{start}.lora_A.weight": a, f"{start}.lora_B.weight": b}


def compute_merged(w: NDArray[Any], product: NDArray[Any], scale: float) -> NDArray[Any]:
    return (w.astype(np.float64) + scale * product).astype(np.float32)


@pytest.mark.parametrize("rows", [7, 1 << 20])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_linear(dtype: Any, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "MERGE_CHUNK", rows)
    w, a, b = sample_normal(10, 4, dtype=dtype), sample_normal(3, 4), sample_normal(10, 3)
    with open_merged(tmp_path, {"m.weight": w, "n": sample_normal(2)}, make_factors(a, b)) as found:
        wanted = compute_merged(w, b.astype(np.float64) @ a.astype(np.float64), 5 / 3)
        assert np.array_equal(found.read_tensor("m.weight"), wanted)
        assert found.tensors["m.weight"].dtype == "f32"
        assert found.adapted_tensors == {"m.weight"}


def test_fan_in_fan_out(tmp_path: Path) -> None:
    w, a, b = sample_normal(4, 10), sample_normal(3, 4), sample_normal(10, 3)
    made = open_merged(tmp_path, {"m.weight": w}, make_factors(a, b), fan_in_fan_out=True)
    with made as found:
        product = (b.astype(np.float64) @ a.astype(np.float64)).T
        assert np.array_equal(found.read_tensor("m.weight"), compute_merged(w, product, 5 / 3))


def test_embedding(tmp_path: Path) -> None:
    w, a, b = sample_normal(9, 4), sample_normal(3, 9), sample_normal(4, 3)
    start = "base_model.model.m.lora_embedding_"
    with open_merged(tmp_path, {"m.weight": w}, {f"{start}A": a, f"{start}B": b}) as found:
        product = (b.astype(np.float64) @ a.astype(np.float64)).T
        assert np.array_equal(found.read_tensor("m.weight"), compute_merged(w, product, 5 / 3))


def test_convolution(tmp_path: Path) -> None:
    """B·A is the convolution of A followed by a 1×1 convolution of B."""
    w, a, b = sample_normal(8, 4, 2, 3), sample_normal(3, 4, 2, 3), sample_normal(8, 3, 1, 1)
    with open_merged(tmp_path, {"m.weight": w}, make_factors(a, b)) as found:
        product = np.einsum("or,rihw->oihw", b[:, :, 0, 0].astype("f8"), a.astype("f8"))
        got = found.read_tensor("m.weight")
        assert np.abs(got - compute_merged(w, product, 5 / 3)).max() < 1e-6


def test_rank_and_alpha_patterns(tmp_path: Path) -> None:
    w, a, b = sample_normal(4, 4), sample_normal(2, 4), sample_normal(4, 2)
    base = {"x.m.weight": w, "x.n.weight": w}
    both = {
        **make_factors(a, b, "x.m"),
        **make_factors(sample_normal(3, 4), sample_normal(4, 3), "x.n"),
    }
    how = {"rank_pattern": {"m": 2}, "alpha_pattern": {"x.m": 9}, "use_rslora": True}
    with open_merged(tmp_path, base, both, **how) as found:
        product = b.astype(np.float64) @ a.astype(np.float64)
        got = found.read_tensor("x.m.weight")
        assert np.abs(got - compute_merged(w, product, 9 / np.sqrt(2))).max() < 1e-6


def test_saved_module_and_bias(tmp_path: Path) -> None:
    """A fully trained tensor with a LoRA product on top, a bias of the product, and a head that
    only the adapter has."""
    w, a, b, own, bias, more = (
        sample_normal(6, 4),
        sample_normal(3, 4),
        sample_normal(6, 3),
        sample_normal(6, 4),
        sample_normal(6),
        sample_normal(6),
    )
    brought = {
        **make_factors(a, b),
        "base_model.model.m.base_layer.weight": own,
        "base_model.model.m.lora_B.bias": more,
        "base_model.model.head.weight": own,
    }
    with open_merged(tmp_path, {"m.weight": w, "m.bias": bias}, brought) as found:
        product = b.astype(np.float64) @ a.astype(np.float64)
        assert np.array_equal(found.read_tensor("m.weight"), compute_merged(own, product, 5 / 3))
        assert np.array_equal(
            found.read_tensor("m.bias"), compute_merged(bias, more.astype(np.float64), 5 / 3)
        )
        assert np.array_equal(found.read_tensor("head.weight"), own)
        assert {f.path.name for f in found.all_files} == {
            "model.safetensors",
            "adapter_model.safetensors",
        }


def test_base_model_prefix(tmp_path: Path) -> None:
    w, a, b = sample_normal(4, 4), sample_normal(3, 4), sample_normal(4, 3)
    brought = {**make_factors(a, b, "bert.m"), "base_model.model.head.weight": w}
    with open_merged(tmp_path, {"m.weight": w}, brought) as found:
        assert found.adapted_tensors == {"m.weight", "head.weight"}


@pytest.mark.parametrize(
    "brought",
    [
        {
            "base_model.model.m.lora_A.weight": np.float32(1),
            "base_model.model.m.lora_B.weight": np.float32(1),
        },
        make_factors(sample_normal(3), sample_normal(4)),
        make_factors(sample_normal(3, 4), sample_normal(4, 3, 2)),
        make_factors(sample_normal(3, 4), sample_normal(4)),
        make_factors(np.zeros((3, 4), np.int64), sample_normal(4, 3)),
        {"m.lora_A.weight": sample_normal(3, 4)},
        {"base_model.model..lora_A.weight": sample_normal(3, 4)},
        {
            **make_factors(sample_normal(3, 4), sample_normal(4, 3)),
            "base_model.model.m.lora_B.bias": sample_normal(5),
        },
    ],
)
def test_invalid_adapters(brought: Arrays, tmp_path: Path) -> None:
    base = {"m.weight": sample_normal(4, 4), "m.bias": sample_normal(4)}
    with pytest.raises(SpeccError, match=r"E053[01]"):
        open_merged(tmp_path, base, {n: np.asarray(x) for n, x in brought.items()})


@pytest.mark.parametrize(
    ("config", "taken"),
    [
        ({"target_modules": ["q", "h.1.m"]}, True),
        ({"target_modules": ["m"], "layers_to_transform": 1}, True),
        ({"target_modules": "all-linear"}, True),
        ({"target_modules": ["all-linear"]}, True),
        ({"target_modules": None, "layers_to_transform": [0, 1]}, True),
        ({"target_modules": ["q"]}, False),
        ({"target_modules": ["rm"]}, False),
        ({"exclude_modules": ["m"]}, False),
        ({"layers_to_transform": [0]}, False),
        ({"target_modules": 3}, False),
        ({"target_modules": [["m"]]}, False),
        ({"layers_to_transform": ["1"]}, False),
    ],
)
def test_target_modules(config: dict[str, object], taken: bool, tmp_path: Path) -> None:
    """peft also ignores tensors of modules that the config does not name."""
    base = {"h.1.m.weight": sample_normal(4, 4)}
    brought = make_factors(sample_normal(3, 4), sample_normal(4, 3), "h.1.m")
    if taken:
        with open_merged(tmp_path, base, brought, **config) as found:
            assert found.adapted_tensors == {"h.1.m.weight"}
        return
    with pytest.raises(SpeccError, match="E0530"):
        open_merged(tmp_path, base, brought, **config)


@pytest.mark.parametrize("key", ["use_rslora", "fan_in_fan_out"])
@pytest.mark.parametrize("value", [1, 0, "no", [], {}, 0.0])
def test_flags_must_be_bool(key: str, value: object, tmp_path: Path) -> None:
    """peft accepts every truthy Python value."""
    brought = make_factors(sample_normal(3, 4), sample_normal(4, 3))
    with pytest.raises(SpeccError, match="E0530"):
        open_merged(tmp_path, {"m.weight": sample_normal(4, 4)}, brought, **{key: value})


def test_modules_to_save(tmp_path: Path) -> None:
    """peft also rejects a file without such a module; it ignores names that match no module,
    because it adds the names of all kinds of heads itself."""
    base = {
        "m.weight": sample_normal(4, 4),
        "head.weight": sample_normal(4, 4),
        "head.bias": sample_normal(4),
    }
    brought = make_factors(sample_normal(3, 4), sample_normal(4, 3))
    whole = "base_model.model.head"
    half = {**brought, f"{whole}.weight": sample_normal(4, 4)}
    saved = {**half, f"{whole}.bias": sample_normal(4)}
    said: dict[str, Any] = {"modules_to_save": ["head", "score"]}
    with open_merged(tmp_path, base, saved, **said) as found:
        assert found.adapted_tensors == {"m.weight", "head.weight", "head.bias"}
    with pytest.raises(SpeccError, match=r"E0531(.|\n)*lacks head\.bias"):
        open_merged(tmp_path, base, half, **said)
    with pytest.raises(SpeccError, match="E0531"):
        open_merged(tmp_path, base, brought, **said)
    with pytest.raises(SpeccError, match="E0530"):
        open_merged(tmp_path, base, brought, modules_to_save=3)


def test_empty_adapter(tmp_path: Path) -> None:
    with pytest.raises(SpeccError, match="the file has no tensors"):
        open_merged(tmp_path, {"m.weight": sample_normal(4, 4)}, {})


@pytest.mark.parametrize("is_embedded", [False, True])
def test_adapter_without_weights(is_embedded: bool, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}', encoding="utf-8")
    (tmp_path / "model.safetensors").touch()
    if is_embedded:
        (tmp_path / "config.json").touch()
    with pytest.raises(SpeccError, match=r"has no adapter_model\.safetensors") as failed:
        open_adapter(str(tmp_path))
    (diagnostic,) = failed.value.diagnostics
    assert diagnostic.code == "E0802"
    assert any("delete adapter_config.json" in help for help in diagnostic.helps) == is_embedded
