"""Binding of parameters to tensors: every parameter is found, every tensor is used or ignored, and
errors suggest rules."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import Diagnostic, Source, Span, SpeccError
from specc.weights.checkpoint_binding import bind_parameters
from specc.weights.checkpoint_files import Checkpoint, open_checkpoint
from specc.weights.checkpoint_weight_streaming import CheckpointWeights
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.parameter_sources import ByteRange, read_parameter
from specc.weights.weight_expressions import (
    ChunkExpr,
    CoalesceExpr,
    ConcatExpr,
    TensorExpr,
    TransposeExpr,
)
from specc.weights.weight_rules_and_initializers import (
    IgnoreRule,
    LoadRule,
    ModelParameter,
    WeightRules,
    WeightTyingRule,
)

Arrays = Mapping[str, NDArray[Any]]


def open_saved(directory: Path, tensors: Arrays) -> Checkpoint:
    write_safetensors(directory / "model.safetensors", tensors)
    return open_checkpoint(directory)


def make_values(*shape: int, start: float = 0, dtype: Any = np.float32) -> NDArray[Any]:
    return (np.arange(np.prod(shape, dtype=np.int64)) + start).reshape(shape).astype(dtype)


def make_parameters(**shapes: tuple[int, ...]) -> list[ModelParameter]:
    return [
        ModelParameter(name=name.replace("_", "."), shape=shape) for name, shape in shapes.items()
    ]


NO_RULES = WeightRules()


def get_binding_errors(
    directory: Path, want: list[ModelParameter], tensors: Arrays, rules: WeightRules = NO_RULES
) -> list[Diagnostic]:
    with open_saved(directory, tensors) as checkpoint, pytest.raises(SpeccError) as failed:
        bind_parameters(want, rules, checkpoint)
    return list(failed.value.diagnostics)


def format_diagnostic(diagnostic: Diagnostic) -> str:
    return "\n".join((diagnostic.title, *diagnostic.notes, *diagnostic.helps))


def make_layer_parameters(n: int, **shapes: tuple[int, ...]) -> list[ModelParameter]:
    return [
        ModelParameter(name=f"h.{i}.{name}", shape=shape)
        for i in range(n)
        for name, shape in shapes.items()
    ]


def test_binding_by_name(tmp_path: Path) -> None:
    with open_saved(tmp_path, {"a": make_values(2, 3), "b": make_values(4)}) as checkpoint:
        binding = bind_parameters(make_parameters(a=(2, 3), b=(4,)), WeightRules(), checkpoint)
        assert read_parameter(binding, "a").tolist() == [[0, 1, 2], [3, 4, 5]]
        entry = checkpoint.tensors["b"]
        assert binding.find_byte_range("b") == ByteRange(
            tmp_path / "model.safetensors", entry.offset, 16
        )


def test_load_rules_with_placeholders(tmp_path: Path) -> None:
    tensors = {f"h.{i}.c_attn.weight": make_values(4, 6, start=10 * i) for i in range(2)}
    want = [ModelParameter(name=f"h.{i}.{n}.weight", shape=(2, 4)) for i in range(2) for n in "qkv"]
    rules = WeightRules(
        loads=tuple(
            LoadRule(
                f"h.{{i}}.{n}.weight",
                ChunkExpr(TransposeExpr(TensorExpr("h.{i}.c_attn.weight")), 0, k, 3),
            )
            for k, n in enumerate("qkv")
        )
    )
    with open_saved(tmp_path, tensors) as checkpoint:
        binding = bind_parameters(want, rules, checkpoint)
        for i in range(2):
            for k, n in enumerate("qkv"):
                expected = tensors[f"h.{i}.c_attn.weight"].T[2 * k : 2 * k + 2]
                assert np.array_equal(read_parameter(binding, f"h.{i}.{n}.weight"), expected)
        assert binding.find_byte_range("h.0.q.weight") is None


def test_one_rule_for_renamed_tensors(tmp_path: Path) -> None:
    rule = LoadRule(
        "*norm.weight", CoalesceExpr((TensorExpr("*norm.weight"), TensorExpr("*norm.gamma")))
    )
    want = [
        ModelParameter(name="a.norm.weight", shape=(2,)),
        ModelParameter(name="b.norm.weight", shape=(2,)),
    ]
    with open_saved(
        tmp_path, {"a.norm.weight": make_values(2), "b.norm.gamma": make_values(2, start=5)}
    ) as checkpoint:
        binding = bind_parameters(want, WeightRules(loads=(rule,)), checkpoint)
        assert read_parameter(binding, "b.norm.weight").tolist() == [5, 6]


@pytest.mark.parametrize("held", ["wte", "head", "both"])
def test_tied_weights_with_any_copy(tmp_path: Path, held: str) -> None:
    names = ["wte", "head"] if held == "both" else [held]
    with open_saved(tmp_path, dict.fromkeys(names, make_values(3, 2))) as checkpoint:
        binding = bind_parameters(
            make_parameters(head=(3, 2), wte=(3, 2)),
            WeightRules(ties=(WeightTyingRule("head", "wte"),)),
            checkpoint,
        )
        assert binding.get_tied_source("head") == "wte"
        assert np.array_equal(read_parameter(binding, "wte"), make_values(3, 2))
        assert np.array_equal(read_parameter(binding, "head"), make_values(3, 2))
        assert not binding.warnings


def test_tied_weights_with_different_values(tmp_path: Path) -> None:
    with open_saved(
        tmp_path, {"wte": make_values(3, 2), "head": make_values(3, 2, start=1)}
    ) as checkpoint:
        binding = bind_parameters(
            make_parameters(head=(3, 2), wte=(3, 2)),
            WeightRules(ties=(WeightTyingRule("head", "wte"),)),
            checkpoint,
        )
        assert binding.get_tied_source("head") is None
        assert read_parameter(binding, "head")[0, 0] == 1
        assert [w.code for w in binding.warnings] == ["W0504"]


def test_chained_and_cyclic_ties(tmp_path: Path) -> None:
    ties = (WeightTyingRule("a", "b"), WeightTyingRule("b", "c"))
    want = make_parameters(a=(2,), b=(2,), c=(2,))
    with open_saved(tmp_path, {"b": make_values(2)}) as checkpoint:
        binding = bind_parameters(want, WeightRules(ties=ties), checkpoint)
        assert [binding.get_tied_source(n) for n in "abc"] == ["c", "c", None]
        assert read_parameter(binding, "c").tolist() == [0, 1]
    (fault,) = get_binding_errors(
        tmp_path, want, {"b": make_values(2)}, WeightRules(ties=(*ties, WeightTyingRule("c", "a")))
    )
    assert fault.code == "E0510"


def test_missing_tensors_of_all_layers_are_one_error(tmp_path: Path) -> None:
    span = Span(Source("gpt2.specc", "linear(x) @ q"), 0, 9)
    want = [
        ModelParameter(name=f"h.{i}.q.weight", shape=(2, 2), span=span, origin="makes [2, 2]")
        for i in range(4)
    ]
    (fault,) = get_binding_errors(
        tmp_path, [*want, ModelParameter(name="w", shape=(1,))], {"w": make_values(1)}
    )
    assert fault.code == "E0501"
    assert fault.title == "`h.0.q.weight` is not in the checkpoint (and 3 more like it)"
    assert fault.primary
    assert fault.primary.text == "makes [2, 2]"
    assert "h.{0..3}.q.weight" in format_diagnostic(fault)


def test_similar_name_is_suggested_once(tmp_path: Path) -> None:
    tensors = {"w": make_values(1), **{f"h.{i}.LayerNorm.gamma": make_values(2) for i in range(3)}}
    want = [
        ModelParameter(name="w", shape=(1,)),
        *(ModelParameter(name=f"h.{i}.LayerNorm.weight", shape=(2,)) for i in range(3)),
    ]
    (fault,) = get_binding_errors(tmp_path, want, tensors)
    assert 'load "h.{i}.LayerNorm.weight" = "h.{i}.LayerNorm.gamma"' in format_diagnostic(fault)


def test_checkpoint_of_another_model(tmp_path: Path) -> None:
    (fault,) = get_binding_errors(
        tmp_path,
        make_layer_parameters(3, a=(1,), b=(2,)),
        {f"x.{i}": make_values(7) for i in range(5)},
    )
    assert fault.code == "E0501"
    assert "x.{0..4}" in format_diagnostic(fault)


def test_shape_errors_are_grouped(tmp_path: Path) -> None:
    tensors = {
        **{f"h.{i}.a": make_values(3, 2) for i in range(3)},
        "r": make_values(4),
        "n": make_values(5, 2),
    }
    want = [
        *make_layer_parameters(3, a=(2, 3)),
        ModelParameter(name="r", shape=(2, 2)),
        ModelParameter(name="n", shape=(6, 2)),
    ]
    turned, flat, odd = get_binding_errors(tmp_path, want, tensors)
    assert {turned.code, flat.code, odd.code} == {"E0503"}
    assert turned.title == "`h.0.a` has the wrong shape (and 2 more like it)"
    assert 'load "h.{i}.a" = transpose("h.{i}.a")' in format_diagnostic(turned)
    assert "model.safetensors contains `h.0.a`: f32[3, 2]" in format_diagnostic(turned)
    assert "reshape" in format_diagnostic(flat)
    assert "axis 0 is 5 in the checkpoint and 6 in the spec" in format_diagnostic(odd)


def test_inapplicable_rule(tmp_path: Path) -> None:
    rule = LoadRule(
        "a", ChunkExpr(TensorExpr("qkv"), 0, 0, 3), Span(Source("m.specc", "load a"), 0, 6)
    )
    (fault,) = get_binding_errors(
        tmp_path, make_parameters(a=(2, 2)), {"qkv": make_values(4, 2)}, WeightRules(loads=(rule,))
    )
    assert fault.code == "E0511"
    assert "cannot be split into 3 equal parts" in format_diagnostic(fault)
    assert fault.related_labels[0].span is rule.span


def test_dtype_mismatch(tmp_path: Path) -> None:
    (fault,) = get_binding_errors(
        tmp_path, make_parameters(a=(2,)), {"a": make_values(2, dtype=np.int32)}
    )
    assert fault.code == "E0508"
    assert "quantizer" in format_diagnostic(fault)


def test_unused_tensors(tmp_path: Path) -> None:
    tensors = {"a": make_values(2), **{f"h.{i}.attn.bias": make_values(1) for i in range(3)}}
    (fault,) = get_binding_errors(tmp_path, make_parameters(a=(2,)), tensors)
    assert fault.code == "E0505"
    assert fault.title == "3 tensors in the checkpoint are unused"
    assert "h.{0..2}.attn.bias" in format_diagnostic(fault)
    assert 'ignore "h.{i}.attn.bias"' in format_diagnostic(fault)
    rules = WeightRules(ignores=(IgnoreRule("h.{i}.attn.bias"), IgnoreRule("not.there")))
    with open_checkpoint(tmp_path) as checkpoint:
        assert bind_parameters(make_parameters(a=(2,)), rules, checkpoint).ignored_tensors == tuple(
            f"h.{i}.attn.bias" for i in range(3)
        )


def test_num_batches_tracked_is_ignored(tmp_path: Path) -> None:
    """PyTorch stores it next to the running mean; elsewhere the name is an unused tensor."""
    want = [ModelParameter(name="bn.running_mean", shape=(2,))]
    count = make_values(dtype=np.int64)
    tensors = {"bn.running_mean": make_values(2), "bn.num_batches_tracked": count}
    with open_saved(tmp_path, tensors) as checkpoint:
        bind_parameters(want, NO_RULES, checkpoint)
    (found,) = get_binding_errors(tmp_path, want, {**tensors, "num_batches_tracked": count})
    assert found.code == "E0505"
    assert "bn.num_batches_tracked" not in format_diagnostic(found)


def test_unused_empty_tensor(tmp_path: Path) -> None:
    """A published model class without register tokens saves them as [1, 0, d]."""
    tensors = {"a": make_values(2, 2), "registers": make_values(1, 0, 2)}
    with open_saved(tmp_path, tensors) as checkpoint:
        assert bind_parameters(
            make_parameters(a=(2, 2)), NO_RULES, checkpoint
        ).bound_parameters.keys() == {"a"}


def test_unmatched_rules(tmp_path: Path) -> None:
    tensors = {"wte": make_values(2)}
    for rules in (
        WeightRules(loads=(LoadRule("wtes", TensorExpr("wte")),)),
        WeightRules(ties=(WeightTyingRule("wtes", "wte"),)),
        WeightRules(ties=(WeightTyingRule("wte", "wtes"),)),
    ):
        (fault,) = get_binding_errors(tmp_path, make_parameters(wte=(2,)), tensors, rules)
        assert fault.code == "E0510"
        assert fault.helps == ("did you mean `wte`?",)


def test_alternative_load_rules(tmp_path: Path) -> None:
    """Of several rules whose patterns match, the first whose tensors are in the file applies."""
    rules = WeightRules(
        loads=(
            LoadRule("*.gate", TensorExpr("*.w1")),
            LoadRule("*.gate", ChunkExpr(TensorExpr("*.gate_up"), 0, 1, 2)),
        )
    )
    want = make_parameters(h_gate=(2,))
    for tensors, values in (
        ({"h.w1": make_values(2)}, [0, 1]),
        ({"h.gate_up": make_values(4)}, [2, 3]),
    ):
        with open_saved(tmp_path, tensors) as checkpoint:
            bound = bind_parameters(want, rules, checkpoint)
            assert read_parameter(bound, "h.gate").tolist() == values


BASE = {f"h.{i}.w": make_values(2) for i in range(3)}


@pytest.mark.parametrize("prefix", ["", "transformer.", "a.b."])
def test_base_model_prefix(tmp_path: Path, prefix: str) -> None:
    bare = [ModelParameter(name=n, shape=(2,)) for n in BASE]
    with_prefix = [ModelParameter(name=prefix + n, shape=(2,)) for n in BASE]
    with open_saved(tmp_path, {prefix + n: t for n, t in BASE.items()}) as checkpoint:
        assert read_parameter(
            bind_parameters(bare, WeightRules(), checkpoint), "h.1.w"
        ).tolist() == [0, 1]
    with open_saved(tmp_path, {**BASE, "h.0.attn.bias": make_values(1)}) as checkpoint:
        rules = WeightRules(ignores=(IgnoreRule(f"{prefix}h.{{i}}.attn.bias"),))
        assert read_parameter(
            bind_parameters(with_prefix, rules, checkpoint), f"{prefix}h.1.w"
        ).tolist() == [0, 1]


def test_part_of_the_names_has_the_base_prefix(tmp_path: Path) -> None:
    """As transformers 5.24 saves ViTMSNForImageClassification."""
    want = [ModelParameter(name=f"vit.{n}", shape=(2,)) for n in (*BASE, "norm")]
    with open_saved(tmp_path, {**BASE, "vit.norm": make_values(2) + 7}) as checkpoint:
        bound = bind_parameters(want, WeightRules(), checkpoint)
        assert read_parameter(bound, "vit.norm").tolist() == [7, 8]
        assert read_parameter(bound, "vit.h.1.w").tolist() == [0, 1]


def test_head_has_no_base_prefix(tmp_path: Path) -> None:
    want = [
        *(ModelParameter(name=n, shape=(2,)) for n in BASE),
        ModelParameter(name="head", shape=(2,)),
    ]
    with open_saved(
        tmp_path, {**{f"bert.{n}": t for n, t in BASE.items()}, "head": make_values(2)}
    ) as checkpoint:
        assert (
            str(bind_parameters(want, WeightRules(), checkpoint).naming)
            == "with the prefix `bert.`"
        )


@pytest.mark.parametrize("others", [["decode"], ["decode", "auxiliary"]])
def test_head_prefix_is_not_the_base_prefix(tmp_path: Path, others: list[str]) -> None:
    """The names of the base weights determine the prefix, so a new head is not bound to the head of
    another task."""
    tensors = {**BASE, **{f"{head}.classifier": make_values(2) for head in others}}
    want = [ModelParameter(name=n, shape=(2,)) for n in (*BASE, "classifier")]
    found = get_binding_errors(tmp_path, want, tensors)
    assert "E0501" in [fault.code for fault in found]


def test_ambiguous_prefix(tmp_path: Path) -> None:
    tensors = {f"{p}.{n}": t for n, t in BASE.items() for p in ("student", "teacher")}
    (fault,) = get_binding_errors(
        tmp_path, [ModelParameter(name=n, shape=(2,)) for n in BASE], tensors
    )
    assert fault.code == "E0515"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_nan_and_infinity_are_errors(tmp_path: Path, value: float, dtype: Any) -> None:
    array = make_values(3, dtype=dtype)
    array[1] = value
    with open_saved(tmp_path, {"a": array, "b": array}) as checkpoint:
        rules = WeightRules(loads=(LoadRule("b", ConcatExpr((TensorExpr("b"), TensorExpr("b")))),))
        binding = bind_parameters(make_parameters(a=(3,), b=(6,)), rules, checkpoint)
        for name in "ab":
            with pytest.raises(SpeccError, match="E0507") as failed:
                read_parameter(binding, name)
            assert f"`{name}` in `{tmp_path}/model.safetensors`" in format_diagnostic(
                failed.value.diagnostics[0]
            )


def test_bool_bytes(tmp_path: Path) -> None:
    with open_saved(tmp_path, {"a": np.array([True, False])}) as checkpoint:
        binding = bind_parameters(
            [ModelParameter(name="a", shape=(2,), dtype="bool")], WeightRules(), checkpoint
        )
        assert read_parameter(binding, "a").tolist() == [True, False]
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x02")
    with open_checkpoint(path) as checkpoint, pytest.raises(SpeccError, match="E0507"):
        read_parameter(
            bind_parameters(
                [ModelParameter(name="a", shape=(2,), dtype="bool")], WeightRules(), checkpoint
            ),
            "a",
        )


def test_dtype_conversion(tmp_path: Path) -> None:
    with open_saved(
        tmp_path, {"a": make_values(3, dtype=ml_dtypes.bfloat16), "b": make_values(2, start=70000)}
    ) as checkpoint:
        binding: CheckpointWeights = bind_parameters(
            make_parameters(a=(3,), b=(2,)), WeightRules(), checkpoint
        )
        assert binding.get_stored_dtype("a") == "bf16"
        assert read_parameter(binding, "a", "f32").dtype == np.float32
        with pytest.raises(SpeccError, match="E0517") as failed:
            read_parameter(binding, "b", "f16")
        assert "the largest 70001" in format_diagnostic(failed.value.diagnostics[0])
