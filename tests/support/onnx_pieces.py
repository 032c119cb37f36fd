"""A few ONNX nodes by themselves: written through the emitter, run with ONNX Runtime."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, helper

from specc_onnx.lower import onnx_targets
from specc_onnx.lower.dynamic_shapes import LengthResolver
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.emitter_state import NameTable
from specc_onnx.lower.onnx_targets import NUMPY_DTYPES, ONNX_TYPE_CODES, get_target
from support.onnx_runtime import open_quietly

Arrays = Mapping[str, NDArray[Any]]
OF_NUMPY = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


class Piece:
    """What `write` writes, as a model of its own: it is given the emitter and gives the
    results' names and types.
    """

    def __init__(
        self,
        write: Callable[[Emitter], Sequence[tuple[str, str]]],
        inputs: Mapping[str, tuple[str, int]],
        opset: int = onnx_targets.DEFAULT_OPSET,
    ) -> None:
        g = Emitter(
            target=get_target("onnx"),
            opset=opset,
            lengths=LengthResolver({}),
            names=NameTable(set(inputs)),
        )
        results = list(write(g))
        outputs = [helper.make_tensor_value_info(n, ONNX_TYPE_CODES[t], None) for n, t in results]
        given = [
            helper.make_tensor_value_info(n, ONNX_TYPE_CODES[t], [f"{n}.{a}" for a in range(r)])
            for n, (t, r) in inputs.items()
        ]
        graph = helper.make_graph(
            g.bodies.open[0].nodes, "piece", given, outputs, list(g.values.constants.values())
        )
        imports = [helper.make_opsetid("", opset)]
        model: ModelProto = helper.make_model(
            graph, opset_imports=imports, ir_version=onnx_targets.get_ir_version(opset)
        )
        self.session = open_quietly(model)

    def run(self, **inputs: Any) -> list[NDArray[Any]]:
        """The results, in order."""
        found: list[NDArray[Any]] = self.session.run(
            None, {k: np.asarray(v) for k, v in inputs.items()}
        )
        return found


def kinds(inputs: Arrays) -> dict[str, tuple[str, int]]:
    """The element types and numbers of axes of arrays, as `Piece` wants them."""
    return {n: (OF_NUMPY[a.dtype], a.ndim) for n, a in inputs.items()}
