"""Operators by opset, and the errors for unsupported opsets."""

import onnx
import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc_onnx import get_target
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.onnx_targets import TARGETS


@pytest.mark.parametrize("kind", sorted(onnx_targets.OPERATOR_SINCE))
def test_operator_table_agrees_with_the_schemas(kind: str) -> None:
    versions = [
        s.since_version
        for s in onnx.defs.get_all_schemas_with_history()
        if s.name == kind and not s.domain
    ]
    assert min(versions) == onnx_targets.OPERATOR_SINCE[kind]
    assert not onnx_targets.is_operator_available(kind, onnx_targets.OPERATOR_SINCE[kind] - 1)
    assert onnx_targets.is_operator_available(kind, onnx_targets.OPERATOR_SINCE[kind])


def test_reductions_take_axes_as_an_input_from_opset_18() -> None:
    for kind in ("ReduceMean", "ReduceMax", "ReduceMin"):
        newer = onnx.defs.get_schema(kind, onnx_targets.REDUCE_AXES_INPUT_SINCE)
        assert [i.name for i in newer.inputs] == ["data", "axes"]
        assert (
            "axes"
            in onnx.defs.get_schema(kind, onnx_targets.REDUCE_AXES_INPUT_SINCE - 1).attributes
        )


@pytest.mark.parametrize("opset", [16, 27])
def test_opset_outside_the_range_is_rejected(opset: int) -> None:
    with pytest.raises(SpeccError, match=rf"E0821\]: unsupported opset {opset}: expected 17 to 26"):
        onnx_targets.check_opset(opset)


def test_unknown_target_lists_all_targets() -> None:
    with pytest.raises(SpeccError, match=r"E0822\]: unknown target `ort-gpu`") as caught:
        get_target("ort-gpu")
    helps = caught.value.diagnostics[0].helps
    assert len(helps) == len(TARGETS)
    assert all(name in help_ for name, help_ in zip(TARGETS, helps, strict=True))
