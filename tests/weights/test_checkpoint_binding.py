"""Binding: every parameter found, every tensor used or ignored, and messages that say
what to write.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import Diagnostic, Failed
from specc.diagnostics.source import Source, Span
from specc.weights.checkpoint import Checkpoint, open_weights
from specc.weights.checkpoint_binding import bind_parameters
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.parameter_values import ByteRange, CheckpointBinding, read_parameter
from specc.weights.weight_expressions import (
    ConcatExpr,
    FirstPresentExpr,
    PartExpr,
    TensorExpr,
    TransposeExpr,
)
from specc.weights.weight_rules import IgnoreRule, LoadRule, RequiredParameter, TieRule, WeightRules

Arrays = Mapping[str, NDArray[Any]]


def saved(directory: Path, tensors: Arrays) -> Checkpoint:
    write_safetensors(directory / "model.safetensors", tensors)
    return open_weights(directory)


def numbers(*shape: int, start: float = 0, dtype: Any = np.float32) -> NDArray[Any]:
    return (np.arange(np.prod(shape, dtype=np.int64)) + start).reshape(shape).astype(dtype)


def wanted(**shapes: tuple[int, ...]) -> list[RequiredParameter]:
    return [
        RequiredParameter(name=name.replace("_", "."), shape=shape)
        for name, shape in shapes.items()
    ]


NO_RULES = WeightRules()


def faults(
    directory: Path, want: list[RequiredParameter], tensors: Arrays, rules: WeightRules = NO_RULES
) -> list[Diagnostic]:
    with saved(directory, tensors) as checkpoint, pytest.raises(Failed) as failed:
        bind_parameters(want, rules, checkpoint)
    return list(failed.value.diagnostics)


def text(diagnostic: Diagnostic) -> str:
    return "\n".join((diagnostic.title, *diagnostic.notes, *diagnostic.helps))


def layers(n: int, **shapes: tuple[int, ...]) -> list[RequiredParameter]:
    return [
        RequiredParameter(name=f"h.{i}.{name}", shape=shape)
        for i in range(n)
        for name, shape in shapes.items()
    ]


def test_parameters_are_the_tensors_of_the_same_name(tmp_path: Path) -> None:
    with saved(tmp_path, {"a": numbers(2, 3), "b": numbers(4)}) as checkpoint:
        binding = bind_parameters(wanted(a=(2, 3), b=(4,)), WeightRules(), checkpoint)
        assert read_parameter(binding, "a").tolist() == [[0, 1, 2], [3, 4, 5]]
        entry = checkpoint.tensors["b"]
        assert binding.find_byte_range("b") == ByteRange(
            tmp_path / "model.safetensors", entry.offset, 16
        )


def test_load_rules_with_holes(tmp_path: Path) -> None:
    tensors = {f"h.{i}.c_attn.weight": numbers(4, 6, start=10 * i) for i in range(2)}
    want = [
        RequiredParameter(name=f"h.{i}.{n}.weight", shape=(2, 4)) for i in range(2) for n in "qkv"
    ]
    rules = WeightRules(
        loads=tuple(
            LoadRule(
                f"h.{{i}}.{n}.weight",
                PartExpr(TransposeExpr(TensorExpr("h.{i}.c_attn.weight")), 0, k, 3),
            )
            for k, n in enumerate("qkv")
        )
    )
    with saved(tmp_path, tensors) as checkpoint:
        binding = bind_parameters(want, rules, checkpoint)
        for i in range(2):
            for k, n in enumerate("qkv"):
                expected = tensors[f"h.{i}.c_attn.weight"].T[2 * k : 2 * k + 2]
                assert np.array_equal(read_parameter(binding, f"h.{i}.{n}.weight"), expected)
        assert binding.find_byte_range("h.0.q.weight") is None


def test_an_old_spelling_is_one_rule(tmp_path: Path) -> None:
    rule = LoadRule(
        "*norm.weight", FirstPresentExpr((TensorExpr("*norm.weight"), TensorExpr("*norm.gamma")))
    )
    want = [
        RequiredParameter(name="a.norm.weight", shape=(2,)),
        RequiredParameter(name="b.norm.weight", shape=(2,)),
    ]
    with saved(
        tmp_path, {"a.norm.weight": numbers(2), "b.norm.gamma": numbers(2, start=5)}
    ) as checkpoint:
        binding = bind_parameters(want, WeightRules(loads=(rule,)), checkpoint)
        assert read_parameter(binding, "b.norm.weight").tolist() == [5, 6]


@pytest.mark.parametrize("held", ["wte", "head", "both"])
def test_of_tied_weights_any_copy_will_do(tmp_path: Path, held: str) -> None:
    names = ["wte", "head"] if held == "both" else [held]
    with saved(tmp_path, dict.fromkeys(names, numbers(3, 2))) as checkpoint:
        binding = bind_parameters(
            wanted(head=(3, 2), wte=(3, 2)), WeightRules(ties=(TieRule("head", "wte"),)), checkpoint
        )
        assert binding.get_tied_source("head") == "wte"
        assert np.array_equal(read_parameter(binding, "wte"), numbers(3, 2))
        assert np.array_equal(read_parameter(binding, "head"), numbers(3, 2))
        assert not binding.warnings


def test_tied_weights_with_different_values_are_each_kept_with_a_warning(tmp_path: Path) -> None:
    with saved(tmp_path, {"wte": numbers(3, 2), "head": numbers(3, 2, start=1)}) as checkpoint:
        binding = bind_parameters(
            wanted(head=(3, 2), wte=(3, 2)), WeightRules(ties=(TieRule("head", "wte"),)), checkpoint
        )
        assert binding.get_tied_source("head") is None
        assert read_parameter(binding, "head")[0, 0] == 1
        assert [w.code for w in binding.warnings] == ["W0504"]


def test_ties_follow_one_another_but_not_in_a_circle(tmp_path: Path) -> None:
    ties = (TieRule("a", "b"), TieRule("b", "c"))
    want = wanted(a=(2,), b=(2,), c=(2,))
    with saved(tmp_path, {"b": numbers(2)}) as checkpoint:
        binding = bind_parameters(want, WeightRules(ties=ties), checkpoint)
        assert [binding.get_tied_source(n) for n in "abc"] == ["c", "c", None]
        assert read_parameter(binding, "c").tolist() == [0, 1]
    (fault,) = faults(
        tmp_path, want, {"b": numbers(2)}, WeightRules(ties=(*ties, TieRule("c", "a")))
    )
    assert fault.code == "E0510"


def test_a_missing_tensor_is_asked_for_once_for_all_layers(tmp_path: Path) -> None:
    span = Span(Source("gpt2.specc", "linear(x) @ q"), 0, 9)
    want = [
        RequiredParameter(name=f"h.{i}.q.weight", shape=(2, 2), span=span, origin="makes [2, 2]")
        for i in range(4)
    ]
    (fault,) = faults(tmp_path, [*want, RequiredParameter(name="w", shape=(1,))], {"w": numbers(1)})
    assert fault.code == "E0501"
    assert fault.title == "`h.0.q.weight` is not in the checkpoint (and 3 more like it)"
    assert fault.primary
    assert fault.primary.text == "makes [2, 2]"
    assert "h.{0..3}.q.weight" in text(fault)


def test_a_near_name_is_proposed_and_not_reported_twice(tmp_path: Path) -> None:
    tensors = {"w": numbers(1), **{f"h.{i}.LayerNorm.gamma": numbers(2) for i in range(3)}}
    want = [
        RequiredParameter(name="w", shape=(1,)),
        *(RequiredParameter(name=f"h.{i}.LayerNorm.weight", shape=(2,)) for i in range(3)),
    ]
    (fault,) = faults(tmp_path, want, tensors)
    assert 'load "h.{i}.LayerNorm.weight" = "h.{i}.LayerNorm.gamma"' in text(fault)


def test_a_checkpoint_of_another_model_is_one_error(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, layers(3, a=(1,), b=(2,)), {f"x.{i}": numbers(7) for i in range(5)})
    assert fault.code == "E0501"
    assert "x.{0..4}" in text(fault)


def test_wrong_shapes_are_grouped_and_explained(tmp_path: Path) -> None:
    tensors = {**{f"h.{i}.a": numbers(3, 2) for i in range(3)}, "r": numbers(4), "n": numbers(5, 2)}
    want = [
        *layers(3, a=(2, 3)),
        RequiredParameter(name="r", shape=(2, 2)),
        RequiredParameter(name="n", shape=(6, 2)),
    ]
    turned, flat, odd = faults(tmp_path, want, tensors)
    assert {turned.code, flat.code, odd.code} == {"E0503"}
    assert turned.title == "`h.0.a` has the wrong shape (and 2 more like it)"
    assert 'load "h.{i}.a" = transpose("h.{i}.a")' in text(turned)
    assert "model.safetensors holds `h.0.a`: f32[3, 2]" in text(turned)
    assert "reshape" in text(flat)
    assert "axis 0 is 5 in the checkpoint and 6 in the spec" in text(odd)


def test_a_rule_that_cannot_be_applied(tmp_path: Path) -> None:
    rule = LoadRule(
        "a", PartExpr(TensorExpr("qkv"), 0, 0, 3), Span(Source("m.specc", "load a"), 0, 6)
    )
    (fault,) = faults(
        tmp_path, wanted(a=(2, 2)), {"qkv": numbers(4, 2)}, WeightRules(loads=(rule,))
    )
    assert fault.code == "E0511"
    assert "no 3 equal parts" in text(fault)
    assert fault.others[0].span is rule.span


def test_types_must_be_of_one_family(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, wanted(a=(2,)), {"a": numbers(2, dtype=np.int32)})
    assert fault.code == "E0508"
    assert "quantizer" in text(fault)


def test_unused_tensors_are_an_error_unless_ignored(tmp_path: Path) -> None:
    tensors = {"a": numbers(2), **{f"h.{i}.attn.bias": numbers(1) for i in range(3)}}
    (fault,) = faults(tmp_path, wanted(a=(2,)), tensors)
    assert fault.code == "E0505"
    assert fault.title == "3 tensors in the checkpoint are unused"
    assert "h.{0..2}.attn.bias" in text(fault)
    assert 'ignore "h.{i}.attn.bias"' in text(fault)
    rules = WeightRules(ignores=(IgnoreRule("h.{i}.attn.bias"), IgnoreRule("not.there")))
    with open_weights(tmp_path) as checkpoint:
        assert bind_parameters(wanted(a=(2,)), rules, checkpoint).ignored == tuple(
            f"h.{i}.attn.bias" for i in range(3)
        )


def test_how_many_batches_a_norm_has_seen_is_left_aside(tmp_path: Path) -> None:
    """PyTorch stores it beside the mean; anywhere else such a name is used by nothing."""
    want = [RequiredParameter(name="bn.running_mean", shape=(2,))]
    count = numbers(dtype=np.int64)
    tensors = {"bn.running_mean": numbers(2), "bn.num_batches_tracked": count}
    with saved(tmp_path, tensors) as checkpoint:
        bind_parameters(want, NO_RULES, checkpoint)
    (found,) = faults(tmp_path, want, {**tensors, "num_batches_tracked": count})
    assert found.code == "E0505"
    assert "bn.num_batches_tracked" not in text(found)


def test_a_tensor_without_numbers_may_be_left_over(tmp_path: Path) -> None:
    """A published class that has none of something saves it so: [1, 0, d]."""
    tensors = {"a": numbers(2, 2), "registers": numbers(1, 0, 2)}
    with saved(tmp_path, tensors) as checkpoint:
        assert bind_parameters(wanted(a=(2, 2)), NO_RULES, checkpoint).bound.keys() == {"a"}


def test_rules_about_nothing_are_slips(tmp_path: Path) -> None:
    tensors = {"wte": numbers(2)}
    for rules in (
        WeightRules(loads=(LoadRule("wtes", TensorExpr("wte")),)),
        WeightRules(ties=(TieRule("wtes", "wte"),)),
        WeightRules(ties=(TieRule("wte", "wtes"),)),
    ):
        (fault,) = faults(tmp_path, wanted(wte=(2,)), tensors, rules)
        assert fault.code == "E0510"
        assert fault.helps == ("did you mean `wte`?",)


BASE = {f"h.{i}.w": numbers(2) for i in range(3)}


@pytest.mark.parametrize("prefix", ["", "transformer.", "a.b."])
def test_the_prefix_of_the_base_model_is_found_out(tmp_path: Path, prefix: str) -> None:
    bare = [RequiredParameter(name=n, shape=(2,)) for n in BASE]
    with_prefix = [RequiredParameter(name=prefix + n, shape=(2,)) for n in BASE]
    with saved(tmp_path, {prefix + n: t for n, t in BASE.items()}) as checkpoint:
        assert read_parameter(
            bind_parameters(bare, WeightRules(), checkpoint), "h.1.w"
        ).tolist() == [0, 1]
    with saved(tmp_path, {**BASE, "h.0.attn.bias": numbers(1)}) as checkpoint:
        rules = WeightRules(ignores=(IgnoreRule(f"{prefix}h.{{i}}.attn.bias"),))
        assert read_parameter(
            bind_parameters(with_prefix, rules, checkpoint), f"{prefix}h.1.w"
        ).tolist() == [0, 1]


def test_a_head_beside_the_base_keeps_its_own_name(tmp_path: Path) -> None:
    want = [
        *(RequiredParameter(name=n, shape=(2,)) for n in BASE),
        RequiredParameter(name="head", shape=(2,)),
    ]
    with saved(
        tmp_path, {**{f"bert.{n}": t for n, t in BASE.items()}, "head": numbers(2)}
    ) as checkpoint:
        assert (
            str(bind_parameters(want, WeightRules(), checkpoint).naming)
            == "with the prefix `bert.`"
        )


@pytest.mark.parametrize("others", [["decode"], ["decode", "auxiliary"]])
def test_other_heads_of_the_same_name_are_no_prefix_of_the_base(
    tmp_path: Path, others: list[str]
) -> None:
    """What the base is called as it is decides: a new head is not the one of another."""
    tensors = {**BASE, **{f"{head}.classifier": numbers(2) for head in others}}
    want = [RequiredParameter(name=n, shape=(2,)) for n in (*BASE, "classifier")]
    found = faults(tmp_path, want, tensors)
    assert "E0501" in [fault.code for fault in found]


def test_two_prefixes_that_fit_are_not_chosen_between(tmp_path: Path) -> None:
    tensors = {f"{p}.{n}": t for n, t in BASE.items() for p in ("student", "teacher")}
    (fault,) = faults(tmp_path, [RequiredParameter(name=n, shape=(2,)) for n in BASE], tensors)
    assert fault.code == "E0515"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_numbers_that_are_none_stop_the_work(tmp_path: Path, value: float, dtype: Any) -> None:
    array = numbers(3, dtype=dtype)
    array[1] = value
    with saved(tmp_path, {"a": array, "b": array}) as checkpoint:
        rules = WeightRules(loads=(LoadRule("b", ConcatExpr((TensorExpr("b"), TensorExpr("b")))),))
        binding = bind_parameters(wanted(a=(3,), b=(6,)), rules, checkpoint)
        for name in "ab":
            with pytest.raises(Failed, match="E0507") as failed:
                read_parameter(binding, name)
            assert f"`{name}` in `{tmp_path}/model.safetensors`" in text(
                failed.value.diagnostics[0]
            )


def test_truth_values_are_0_or_1(tmp_path: Path) -> None:
    with saved(tmp_path, {"a": np.array([True, False])}) as checkpoint:
        binding = bind_parameters(
            [RequiredParameter(name="a", shape=(2,), dtype="bool")], WeightRules(), checkpoint
        )
        assert read_parameter(binding, "a").tolist() == [True, False]
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x02")
    with open_weights(path) as checkpoint, pytest.raises(Failed, match="E0507"):
        read_parameter(
            bind_parameters(
                [RequiredParameter(name="a", shape=(2,), dtype="bool")], WeightRules(), checkpoint
            ),
            "a",
        )


def test_conversion_on_the_way(tmp_path: Path) -> None:
    with saved(
        tmp_path, {"a": numbers(3, dtype=ml_dtypes.bfloat16), "b": numbers(2, start=70000)}
    ) as checkpoint:
        binding: CheckpointBinding = bind_parameters(
            wanted(a=(3,), b=(2,)), WeightRules(), checkpoint
        )
        assert binding.get_stored_dtype("a") == "bf16"
        assert read_parameter(binding, "a", "f32").dtype == np.float32
        with pytest.raises(Failed, match="E0517") as failed:
            read_parameter(binding, "b", "f16")
        assert "the largest 70001" in text(failed.value.diagnostics[0])
