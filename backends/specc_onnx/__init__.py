"""The ONNX backend: IR to ONNX models for a target, checked, packed with their weights, and run.

`lower` has one rule per op. `build` makes a model without weights, `package` writes it, `check` is the
gate after lowering; `specc_onnx.run` opens and runs models and alone needs ONNX Runtime.
"""

from specc_onnx import attention, contraction, file, loop, nn, position, recurrent, tensor
from specc_onnx.build import Built, build
from specc_onnx.legal import USUAL
from specc_onnx.package import package
from specc_onnx.table import lower
from specc_onnx.targets import TARGETS, Target, target

RULES = (attention, contraction, loop, nn, position, recurrent, tensor)
"""The modules that fill `lower`, a family of ops each."""

__all__ = ["RULES", "TARGETS", "USUAL", "Built", "Target", "build", "file", "lower", "package", "target"]
