"""Check input arrays against the declared types and shapes of a model; errors name the input."""

from collections.abc import Mapping

import numpy as np

from specc.backend import TensorSpec
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc_onnx.execution_providers import format_quoted_names


def prepare_ort_input(
    name: str,
    spec: TensorSpec | None,
    required_inputs: Mapping[str, TensorSpec],
    inputs: Mapping[str, Array],
) -> Array:
    """Return the input `name` of `inputs` as a contiguous array in native byte order. `spec` is its
    declared type, or None if the model has no such input; `required_inputs` are listed in messages.
    Raise E0907 for a wrong element type, and E0910 for an unknown or missing input.
    """
    if spec is None:
        helps = suggest_similar_name(
            name, required_inputs, f"expected one of {format_quoted_names(required_inputs)}"
        )
        raise_error("E0910", f"unknown model input `{escape_text(name)}`", helps=helps)
    if name not in inputs:
        raise_error(
            "E0910",
            f"missing model input `{name}`",
            helps=[f"pass {format_quoted_names(required_inputs)}"],
        )
    array = np.asarray(inputs[name])
    # big-endian arrays are valid; they are converted below
    if array.dtype.newbyteorder("=") != spec.dtype:
        raise_error(
            "E0907",
            f"the input `{name}` has element type {array.dtype}, expected {spec.dtype}",
            helps=[f"convert it first: array.astype({str(spec.dtype)!r})"],
        )
    # `np.ascontiguousarray` converts scalars to 1-D arrays
    return np.asarray(array, dtype=spec.dtype, order="C")


def check_input_lengths(specs: Mapping[str, TensorSpec], arrays: Mapping[str, Array]) -> None:
    """Raise E0911 if the rank of an array differs from its declared rank, and E0912 if an axis size
    differs from the declared size or from that of another axis with the same symbolic dimension.
    """
    lengths_by_symbol: dict[str, tuple[int, str, int]] = {}
    for name, spec in specs.items():
        if name not in arrays:
            continue
        shape = arrays[name].shape
        if len(shape) != len(spec.shape):
            raise_error(
                "E0911",
                f"`{name}` has {len(shape)} axes, expected {len(spec.shape)}",
                notes=[_format_declared_type(spec)],
            )
        for axis, (dim, length) in enumerate(zip(spec.shape, shape, strict=True)):
            if isinstance(dim, int) and dim != length:
                raise_error(
                    "E0912",
                    f"`{name}` has length {length} along axis {axis + 1}, expected {dim}",
                    notes=[_format_declared_type(spec)],
                )
            if isinstance(dim, str):
                other_length, other_name, other_axis = lengths_by_symbol.setdefault(
                    dim, (length, name, axis)
                )
                if other_length != length:
                    raise_error(
                        "E0912",
                        f"`{dim}` is {other_length} in `{other_name}` but {length} in `{name}`",
                        notes=[
                            f"axis {other_axis + 1} of `{other_name}` and axis {axis + 1} of "
                            f"`{name}` must have equal lengths"
                        ],
                    )


def _format_declared_type(spec: TensorSpec) -> str:
    return f"`{spec.name}` is declared {spec.dtype}[{', '.join(map(str, spec.shape))}]"
