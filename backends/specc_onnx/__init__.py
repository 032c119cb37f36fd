"""The ONNX backend: IR to ONNX models for a target, checked, packed with their weights, and run.

`lower` has one rule per op. `build` makes a model without weights, `package` writes it, `package_graphs` writes
several as a folder, `check` is the gate after lowering; `specc_onnx.run` opens and runs models and alone needs ONNX
Runtime.
"""

from specc_onnx import attention, contraction, file, loop, nn, position, recurrent, tensor
from specc_onnx.build import Built, build
from specc_onnx.caches import InPlace, caches_of
from specc_onnx.decoding import Decoding
from specc_onnx.directory import About, Extra, Part, json_extra, package_graphs
from specc_onnx.generating import build_generating
from specc_onnx.ingredients import Generating
from specc_onnx.legal import USUAL
from specc_onnx.package import package
from specc_onnx.table import lower
from specc_onnx.targets import TARGETS, Target, target

RULES = (attention, contraction, loop, nn, position, recurrent, tensor)
"""The modules that fill `lower`, a family of ops each."""

__all__ = [
    "RULES",
    "TARGETS",
    "USUAL",
    "About",
    "Built",
    "Decoding",
    "Extra",
    "Generating",
    "InPlace",
    "Part",
    "Target",
    "build",
    "build_generating",
    "caches_of",
    "file",
    "json_extra",
    "lower",
    "package",
    "package_graphs",
    "target",
]
