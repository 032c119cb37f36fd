"""Dequantize the weights of a compiled model."""

import numpy as np

from specc.artifact.manifest import Manifest
from specc.backend import ModelFile
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.graph import Value
from specc.weights.int_quantization import dequantize

STACK = 3
"""The axes of a stack of matrices."""
KINDS = {"i8": "int8", "u8": "uint8", "i4": "int4"}
"""NumPy's names of the types that whole numbers are stored in."""


def read_dequantized_weights(file: ModelFile, manifest: Manifest) -> dict[str, Array]:
    """Every parameter by the spec's name. E0917 where a rounded one is of another shape
    than the manifest says, E0925 where one cannot be read.
    """
    found = file.weights(manifest.stored)
    scales = file.weights({n: one.scales for n, one in manifest.rounded.items()})
    for name, one in manifest.rounded.items():
        shape = _shape(manifest.graph.parameters[name])
        wanted = one.form.shapes(shape)
        kinds = found[name].dtype.name, scales[name].dtype.name
        shapes = found[name].shape, scales[name].shape
        if shapes != wanted or kinds != (KINDS[one.form.dtype], "float32"):
            raise_error(
                "E0917",
                f"the description inside `{escape_text(str(file.path))}` cannot be used: "
                f"`{escape_text(name)}` is not stored as it says",
            )
        wide = shape[-2] if one.form.turned else shape[-1]
        numbers, own = found[name], scales[name]
        # of a stack one for each expert
        many = len(shape) == STACK
        pairs = zip(numbers, own, strict=True) if many else [(numbers, own)]
        made = [dequantize(n, s, wide, one.form) for n, s in pairs]
        found[name] = np.stack(made) if many else made[0]
    return found


def _shape(value: Value) -> tuple[int, ...]:
    """The lengths of a weight. E0917 is told of one that is no matrix by its numbers."""
    return tuple(d.number or 0 for d in value.type.shape)
