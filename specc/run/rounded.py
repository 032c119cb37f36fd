"""Rounded weights of a compiled model, as the numbers that they stand for."""

from specc.artifact.manifest import Manifest
from specc.backend import ModelFile
from specc.files.read import shown
from specc.ir.array import Array
from specc.ir.graph import Value
from specc.text.diagnostic import fail
from specc.weights.lowbits import dequantized

KINDS = {"i8": "int8", "u8": "uint8", "i4": "int4"}
"""NumPy's names of the types that whole numbers are stored in."""


def weights_in(file: ModelFile, manifest: Manifest) -> dict[str, Array]:
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
            fail(
                "E0917",
                f"the description inside `{shown(str(file.path))}` cannot be used: "
                f"`{shown(name)}` is not stored as it says",
            )
        wide = shape[0] if one.form.turned else shape[1]
        found[name] = dequantized(found[name], scales[name], wide, one.form)
    return found


def _shape(value: Value) -> tuple[int, int]:
    out, wide = (d.number or 0 for d in value.type.shape)
    return out, wide
