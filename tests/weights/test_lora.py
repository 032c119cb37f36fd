"""Adapters merged while they are read, against the equation: W + s·B·A in float64, rounded
once.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import Failed
from specc.huggingface.adapter_config import open_adapter
from specc.weights import lora
from specc.weights.checkpoint import open_weights
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.lora import AdaptedCheckpoint

Arrays = Mapping[str, NDArray[Any]]
RNG = np.random.default_rng(0)


def drawn(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    return RNG.standard_normal(shape).astype(dtype)


def merged(directory: Path, base: Arrays, brought: Arrays, **config: object) -> AdaptedCheckpoint:
    """A checkpoint and an adapter, written to files and opened."""
    for name, tensors in (("model", base), ("adapter_model", brought)):
        write_safetensors(directory / f"{name}.safetensors", tensors)
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 5, **config}
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return AdaptedCheckpoint(
        open_weights(directory / "model.safetensors"), open_adapter(str(directory))
    )


def halves(a: NDArray[Any], b: NDArray[Any], module: str = "m") -> dict[str, Any]:
    start = f"base_model.model.{module}"
    return {f"{start}.lora_A.weight": a, f"{start}.lora_B.weight": b}


def equation(w: NDArray[Any], product: NDArray[Any], scale: float) -> NDArray[Any]:
    return (w.astype(np.float64) + scale * product).astype(np.float32)


@pytest.mark.parametrize("rows", [7, 1 << 20])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_a_linear_map(
    dtype: Any, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lora, "MERGE_CHUNK", rows)
    w, a, b = drawn(10, 4, dtype=dtype), drawn(3, 4), drawn(10, 3)
    with merged(tmp_path, {"m.weight": w, "n": drawn(2)}, halves(a, b)) as found:
        wanted = equation(w, b.astype(np.float64) @ a.astype(np.float64), 5 / 3)
        assert np.array_equal(found.read("m.weight"), wanted)
        assert found.tensors["m.weight"].dtype == "f32"
        assert found.computed == {"m.weight"}


def test_weights_that_are_stored_turned(tmp_path: Path) -> None:
    w, a, b = drawn(4, 10), drawn(3, 4), drawn(10, 3)
    made = merged(tmp_path, {"m.weight": w}, halves(a, b), fan_in_fan_out=True)
    with made as found:
        product = (b.astype(np.float64) @ a.astype(np.float64)).T
        assert np.array_equal(found.read("m.weight"), equation(w, product, 5 / 3))


def test_a_table(tmp_path: Path) -> None:
    w, a, b = drawn(9, 4), drawn(3, 9), drawn(4, 3)
    start = "base_model.model.m.lora_embedding_"
    with merged(tmp_path, {"m.weight": w}, {f"{start}A": a, f"{start}B": b}) as found:
        product = (b.astype(np.float64) @ a.astype(np.float64)).T
        assert np.array_equal(found.read("m.weight"), equation(w, product, 5 / 3))


def test_a_convolution(tmp_path: Path) -> None:
    """B·A is one convolution behind another: of window 1 behind the one of A."""
    w, a, b = drawn(8, 4, 2, 3), drawn(3, 4, 2, 3), drawn(8, 3, 1, 1)
    with merged(tmp_path, {"m.weight": w}, halves(a, b)) as found:
        product = np.einsum("or,rihw->oihw", b[:, :, 0, 0].astype("f8"), a.astype("f8"))
        got = found.read("m.weight")
        assert np.abs(got - equation(w, product, 5 / 3)).max() < 1e-6


def test_ranks_and_scales_of_their_own(tmp_path: Path) -> None:
    w, a, b = drawn(4, 4), drawn(2, 4), drawn(4, 2)
    base = {"x.m.weight": w, "x.n.weight": w}
    both = {**halves(a, b, "x.m"), **halves(drawn(3, 4), drawn(4, 3), "x.n")}
    how = {"rank_pattern": {"m": 2}, "alpha_pattern": {"x.m": 9}, "use_rslora": True}
    with merged(tmp_path, base, both, **how) as found:
        product = b.astype(np.float64) @ a.astype(np.float64)
        got = found.read("x.m.weight")
        assert np.abs(got - equation(w, product, 9 / np.sqrt(2))).max() < 1e-6


def test_what_stands_instead_and_a_bias(tmp_path: Path) -> None:
    """A tensor that was trained as a whole, with a product on top; a bias of the product;
    a head that only the adapter has.
    """
    w, a, b, own, bias, more = (
        drawn(6, 4),
        drawn(3, 4),
        drawn(6, 3),
        drawn(6, 4),
        drawn(6),
        drawn(6),
    )
    brought = {
        **halves(a, b),
        "base_model.model.m.base_layer.weight": own,
        "base_model.model.m.lora_B.bias": more,
        "base_model.model.head.weight": own,
    }
    with merged(tmp_path, {"m.weight": w, "m.bias": bias}, brought) as found:
        product = b.astype(np.float64) @ a.astype(np.float64)
        assert np.array_equal(found.read("m.weight"), equation(own, product, 5 / 3))
        assert np.array_equal(found.read("m.bias"), equation(bias, more.astype(np.float64), 5 / 3))
        assert np.array_equal(found.read("head.weight"), own)
        assert {f.path.name for f in found.all_files} == {
            "model.safetensors",
            "adapter_model.safetensors",
        }


def test_names_behind_a_prefix_that_the_file_lacks(tmp_path: Path) -> None:
    w, a, b = drawn(4, 4), drawn(3, 4), drawn(4, 3)
    brought = {**halves(a, b, "bert.m"), "base_model.model.head.weight": w}
    with merged(tmp_path, {"m.weight": w}, brought) as found:
        assert found.computed == {"m.weight", "head.weight"}


@pytest.mark.parametrize(
    "brought",
    [
        {
            "base_model.model.m.lora_A.weight": np.float32(1),
            "base_model.model.m.lora_B.weight": np.float32(1),
        },
        halves(drawn(3), drawn(4)),
        halves(drawn(3, 4), drawn(4, 3, 2)),
        halves(drawn(3, 4), drawn(4)),
        halves(np.zeros((3, 4), np.int64), drawn(4, 3)),
        {"m.lora_A.weight": drawn(3, 4)},
        {"base_model.model..lora_A.weight": drawn(3, 4)},
        {**halves(drawn(3, 4), drawn(4, 3)), "base_model.model.m.lora_B.bias": drawn(5)},
    ],
)
def test_nonsense_is_refused(brought: Arrays, tmp_path: Path) -> None:
    base = {"m.weight": drawn(4, 4), "m.bias": drawn(4)}
    with pytest.raises(Failed, match=r"E053[01]"):
        merged(tmp_path, base, {n: np.asarray(x) for n, x in brought.items()})


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
def test_what_its_config_leaves_out_is_not_merged(
    config: dict[str, object], taken: bool, tmp_path: Path
) -> None:
    """peft, too, leaves tensors aside whose modules the config does not name."""
    base = {"h.1.m.weight": drawn(4, 4)}
    brought = halves(drawn(3, 4), drawn(4, 3), "h.1.m")
    if taken:
        with merged(tmp_path, base, brought, **config) as found:
            assert found.computed == {"h.1.m.weight"}
        return
    with pytest.raises(Failed, match="E0530"):
        merged(tmp_path, base, brought, **config)


@pytest.mark.parametrize("key", ["use_rslora", "fan_in_fan_out"])
@pytest.mark.parametrize("value", [1, 0, "no", [], {}, 0.0])
def test_a_flag_is_true_or_false(key: str, value: object, tmp_path: Path) -> None:
    """peft takes anything for true that Python does."""
    brought = halves(drawn(3, 4), drawn(4, 3))
    with pytest.raises(Failed, match="E0530"):
        merged(tmp_path, {"m.weight": drawn(4, 4)}, brought, **{key: value})


def test_a_module_that_was_trained_whole_is_there(tmp_path: Path) -> None:
    """peft, too, refuses a file without it; one that no module is called like, it passes
    over, as it names the heads of all kinds itself.
    """
    base = {"m.weight": drawn(4, 4), "head.weight": drawn(4, 4), "head.bias": drawn(4)}
    brought = halves(drawn(3, 4), drawn(4, 3))
    whole = "base_model.model.head"
    half = {**brought, f"{whole}.weight": drawn(4, 4)}
    saved = {**half, f"{whole}.bias": drawn(4)}
    said: dict[str, Any] = {"modules_to_save": ["head", "score"]}
    with merged(tmp_path, base, saved, **said) as found:
        assert found.computed == {"m.weight", "head.weight", "head.bias"}
    with pytest.raises(Failed, match=r"E0531(.|\n)*lacks head\.bias"):
        merged(tmp_path, base, half, **said)
    with pytest.raises(Failed, match="E0531"):
        merged(tmp_path, base, brought, **said)
    with pytest.raises(Failed, match="E0530"):
        merged(tmp_path, base, brought, modules_to_save=3)


def test_an_adapter_that_changes_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="it has no tensors"):
        merged(tmp_path, {"m.weight": drawn(4, 4)}, {})
