"""The ONNX backend: IR to ONNX models for a target, checked, packed with their weights,
and run.

`lower` has one rule per op. `build` makes a model without weights, `package` writes it,
`package_graphs` writes several as a folder, `check` is the gate after lowering;
`read_model` opens one that was written. What passes to and fro is `specc.backend`'s.
"""

from typing import TYPE_CHECKING

from specc_onnx.emit.build import Built, build
from specc_onnx.emit.caches import caches_of
from specc_onnx.generate.build import build_generating
from specc_onnx.lower import (
    arithmetic,
    attention,
    contraction,
    conv,
    loop,
    nn,
    pointwise,
    position,
    quantized,
    recurrent,
    resize,
    route,
    rows,
    tensor,
    weighing,
)
from specc_onnx.lower.legal import USUAL
from specc_onnx.lower.table import lower
from specc_onnx.lower.targets import TARGETS, target
from specc_onnx.write.directory import package_graphs
from specc_onnx.write.file import parse_model, read_model
from specc_onnx.write.package import package

RULES = (
    arithmetic,
    attention,
    contraction,
    conv,
    loop,
    nn,
    pointwise,
    position,
    quantized,
    recurrent,
    resize,
    rows,
    route,
    tensor,
    weighing,
)
"""The modules that fill `lower`, a family of ops each."""

__all__ = [
    "RULES",
    "TARGETS",
    "USUAL",
    "Built",
    "build",
    "build_generating",
    "caches_of",
    "lower",
    "package",
    "package_graphs",
    "parse_model",
    "read_model",
    "target",
]

if TYPE_CHECKING:
    import specc_onnx
    from specc.backend import Compiler, Runner

    _COMPILER: Compiler = specc_onnx
    _RUNNER: Runner = specc_onnx
