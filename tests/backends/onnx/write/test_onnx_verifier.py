"""The verifier finds errors of a built model before it is written."""

import onnx
import pytest
from support.decoder_graphs import build_decoder

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import GraphBuilder, Input
from specc.ir.types import Type
from specc_onnx import build_model, get_target
from specc_onnx.write.onnx_value_types import InvalidModelError
from specc_onnx.write.onnx_verifier import (
    check_value_types,
    convert_weights_to_inputs,
    verify_built_model,
)


def test_valid_model_passes_without_weights() -> None:
    built = build_model(build_decoder(), get_target("onnx"))
    verify_built_model(built)
    assert len(convert_weights_to_inputs(built).graph.initializer) < len(
        built.model.graph.initializer
    )


def test_unknown_attribute_is_detected() -> None:
    built = build_model(build_decoder(), get_target("onnx"))
    built.model.graph.node[0].attribute.append(onnx.helper.make_attribute("colour", 1))
    with pytest.raises(InvalidModelError, match="is not valid"):
        verify_built_model(built)


@pytest.mark.parametrize(
    ("axis", "dim", "message"),
    [
        (2, {"dim_value": 12}, "axis 2: declared length 12, inferred 16"),
        (0, {"dim_param": "seq"}, "axis 0: declared length 17, inferred 13"),
        (1, {"dim_param": "seq + 1"}, "axis 1: declared length 18, inferred 17"),
    ],
)
def test_contradicting_type_is_detected(axis: int, dim: dict[str, object], message: str) -> None:
    built = build_model(build_decoder(), get_target("onnx"))
    model = convert_weights_to_inputs(built)
    where = next(v for v in model.graph.value_info if v.name == "embed/Gather")
    changed = where.type.tensor_type.shape.dim[axis]
    changed.Clear()
    for key, value in dim.items():
        setattr(changed, key, value)
    with pytest.raises(InvalidModelError, match=message):
        check_value_types(built, model)


@pytest.mark.parametrize("field", ["input", "output"])
def test_changed_interface_is_detected(field: str) -> None:
    built = build_model(build_decoder(), get_target("onnx"))
    for value in getattr(convert_weights_to_inputs(built).graph, field):
        model = convert_weights_to_inputs(built)
        changed = next(v for v in getattr(model.graph, field) if v.name == value.name)
        changed.type.tensor_type.shape.dim[-1].dim_value = 99
        with pytest.raises(InvalidModelError, match="99] in the model"):
            check_value_types(built, model)


def test_missing_kernel_is_detected_at_load() -> None:
    """ONNX defines Swish with a function body; ONNX Runtime 1.31 has no kernel for it at opsets 25
    and 26.
    """
    built = build_model(build_decoder(), get_target("onnx"), 26)
    node = next(n for n in built.model.graph.node if n.op_type == "Gelu")
    node.op_type = "Erf"
    node.domain = "nobody.knows"
    with pytest.raises(InvalidModelError, match="is not valid"):
        verify_built_model(built)


def test_position_vectors_do_not_break_inference() -> None:
    """ONNX's value propagation treats a `Range` as a shape and rejects the subtraction of a column
    from it.
    """
    b = GraphBuilder()
    row = b.add_op(ops.Range(Dim.from_value(32)))
    column = b.add_op(ops.Insert(1), b.add_op(ops.Range(Dim.from_value(512))))
    x = b.add_input("x", Input(Type.of("i64", 1)))
    apart = b.add_op(ops.Arith("add"), b.add_op(ops.Arith("sub"), column, row), x)
    verify_built_model(build_model(b.build_graph("apart", {"y": apart}), get_target("onnx")))
