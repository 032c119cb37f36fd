"""Sessions of ONNX Runtime, comparison of their results, models of single emitted nodes, and
changed models with a valid hash.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, helper

from specc_onnx.int8_saturation import convert_weights_to_uint8, has_saturating_int8_products
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.dynamic_shapes import DimResolver
from specc_onnx.lower.emitter import Emitter, NameTable
from specc_onnx.lower.onnx_targets import ONNX_TYPE_CODES, get_target
from specc_onnx.lower.onnx_values import OnnxValue, UnrankedTensor
from specc_onnx.model_reader import BLANK_HASH, HASH_KEY, insert_model_hash

Arrays = Mapping[str, NDArray[Any]]


class EmittedModel:
    """A model of the nodes that `write` emits from the inputs (by name); `write` returns the
    results.
    """

    def __init__(
        self,
        write: Callable[[Mapping[str, OnnxValue]], Sequence[OnnxValue]],
        inputs: Mapping[str, tuple[str, int]],
        opset: int = onnx_targets.DEFAULT_OPSET,
    ) -> None:
        g = Emitter(
            target=get_target("onnx"),
            opset=opset,
            lengths=DimResolver({}),
            name_table=NameTable(set(inputs)),
        )
        results = write({n: UnrankedTensor(g, n, dtype) for n, (dtype, _) in inputs.items()})
        outputs = [
            helper.make_tensor_value_info(x.name, ONNX_TYPE_CODES[x.dtype], None) for x in results
        ]
        given = [
            helper.make_tensor_value_info(n, ONNX_TYPE_CODES[t], [f"{n}.{a}" for a in range(r)])
            for n, (t, r) in inputs.items()
        ]
        graph = helper.make_graph(
            g.bodies.open_bodies[0].nodes,
            "piece",
            given,
            outputs,
            list(g.values.constants.values()),
        )
        imports = [helper.make_opsetid("", opset)]
        model: ModelProto = helper.make_model(
            graph, opset_imports=imports, ir_version=onnx_targets.get_ir_version(opset)
        )
        self.session = open_silent_session(model)

    def run(self, **inputs: Any) -> list[NDArray[Any]]:
        """Return the results in order."""
        found: list[NDArray[Any]] = self.session.run(
            None, {k: np.asarray(v) for k, v in inputs.items()}
        )
        return found


def open_silent_session(model: onnx.ModelProto) -> Any:
    """Return a session with one thread that prints nothing, and whose int8 products are exact."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        serialize_for_this_cpu(model), options, providers=["CPUExecutionProvider"]
    )


def serialize_for_this_cpu(model: onnx.ModelProto) -> bytes:
    """Serialize a model, with uint8 weights if products of int8 weights saturate on this CPU."""
    copy = ModelProto()
    copy.CopyFrom(model)
    if has_saturating_int8_products():
        convert_weights_to_uint8(copy)
    return copy.SerializeToString()


def assert_outputs_match(
    expected: Mapping[str, NDArray[Any]], actual: Sequence[NDArray[Any]]
) -> None:
    """Assert `max|a - b| <= 1e-5 · max|b|`, equal shapes and infinities, for integers equality."""
    for (name, b), a in zip(expected.items(), actual, strict=True):
        assert a.shape == b.shape, f"{name}: {a.shape}, not {b.shape}"
        if b.dtype.kind in "bi":
            assert (a == b).all(), name
            continue
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        scale = np.abs(b[np.isfinite(b)]).max(initial=0)
        gap = np.abs(np.subtract(a, b, where=~same, out=np.zeros(b.shape)))
        assert (gap <= 1e-5 * scale).all(), name


def save_with_hash(model: ModelProto, path: Path) -> None:
    """Write `model` to `path` with a valid hash, so that it can be loaded (E0929)."""
    (entry,) = [p for p in model.metadata_props if p.key == HASH_KEY]
    entry.value = BLANK_HASH
    path.write_bytes(b"".join(insert_model_hash(model.SerializeToString())))
