"""Lower position encodings.

Angles, sines and cosines are computed in double precision and rounded once. Layers share the
tables, because the emitter reuses equal nodes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from specc.ir import ops
from specc.ir.dim import Dim
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.emitter_state import Tensor
from specc_onnx.lower.registry import lower
from specc_onnx.lower.tensor_helpers import emit_cast, emit_expand, emit_slice, emit_unsqueeze


@lower(ops.Sinusoid)
def sinusoid(op: ops.Sinusoid, g: Emitter, positions: Tensor) -> str:
    """Lower to sines and cosines, interleaved or concatenated."""
    assert op.dim.number is not None, "the width is static"
    half = op.dim.number // 2
    places = np.arange(half, dtype=np.float64)
    # fairseq's last frequency is 1 / base: it divides by half - 1 instead of half.
    if op.layout == "fairseq":
        frequencies = op.base ** (-places / max(half - 1, 1))
    else:
        frequencies = op.base ** (-2 * places / op.dim.number)
    angles = g.node("Mul", _emit_places(g, positions), g.constant(frequencies.tolist(), "f64"))
    sines, cosines = g.node("Sin", angles), g.node("Cos", angles)
    if op.layout == "interleaved":
        rank = positions.type.rank
        sides = [emit_unsqueeze(g, each, rank + 1) for each in (sines, cosines)]
        pairs = g.node("Concat", *sides, axis=rank + 1)
        # 0 copies the length of the input's axis at this index
        joined = g.node("Reshape", pairs, [*[0] * rank, op.dim.number])
    else:
        joined = g.node("Concat", sines, cosines, axis=positions.type.rank)
    return emit_cast(g, joined, "f64", g.site.types[0].dtype)


@lower(ops.RopeAngles)
def rope_angles(op: ops.RopeAngles, g: Emitter, *rows: Tensor) -> tuple[str, str]:
    """Lower to cosines and sines of rotary angles. Several position axes are gathered per pair."""
    assert op.dim.number is not None, "the width is static"
    frequencies: Sequence[float] = op.frequencies
    if not frequencies:
        places = np.arange(0, op.dim.number, 2, dtype=np.float64)
        frequencies = (op.theta ** (-places / op.dim.number)).tolist()
    numbers = [_emit_places(g, row) for row in rows]
    if len(rows) > 1:
        joined = g.node("Concat", *numbers, axis=rows[0].type.rank)
        numbers = [g.node("Gather", joined, [*op.axes], axis=rows[0].type.rank)]
    angles = g.node("Mul", numbers[0], g.constant(frequencies, "f64"))
    results = []
    for kind in ("Cos", "Sin"):
        value = g.node(kind, angles)
        if op.factor != 1.0:
            value = g.node("Mul", value, g.constant(op.factor, "f64"))
        results.append(emit_cast(g, value, "f64", g.site.types[0].dtype))
    return results[0], results[1]


def _emit_places(g: Emitter, positions: Tensor) -> str:
    """Return positions as double [*s, 1]."""
    numbers = emit_cast(g, positions.name, positions.type.dtype, "f64")
    return emit_unsqueeze(g, numbers, positions.type.rank)


@lower(ops.Rotate)
def rotate(op: ops.Rotate, g: Emitter, x: Tensor, cosines: Tensor, sines: Tensor) -> str:
    """Lower to `RotaryEmbedding` if it has a kernel (not for double), else to its formula."""
    if g.has("RotaryEmbedding") and x.type.dtype in ("f32", "f16"):
        return _emit_rotary_embedding(op, g, x, cosines, sines)
    # Features after the rotated ones are unchanged (partial rotary embeddings).
    rotated_width = 2 * cosines.type.shape[-1]
    width = x.type.shape[-1]
    c, s = emit_unsqueeze(g, cosines.name, 1), emit_unsqueeze(g, sines.name, 1)
    head = x.name if rotated_width == width else emit_slice(g, x.name, 3, Dim.of(0), rotated_width)
    emit_rotation = _emit_rotate_half if op.pairs == "half" else _emit_rotate_interleaved
    result = emit_rotation(g, head, c, s, rotated_width)
    if rotated_width == width:
        return result
    return g.node("Concat", result, emit_slice(g, x.name, 3, rotated_width, width), axis=3)


def _emit_rotary_embedding(
    op: ops.Rotate, g: Emitter, x: Tensor, cosines: Tensor, sines: Tensor
) -> str:
    batch, heads, time, width = x.type.shape
    pairs = cosines.type.shape[-1]
    tables = [emit_expand(g, t, (batch, time, pairs)) for t in (cosines, sines)]
    partial = None if 2 * pairs == width else (2 * pairs).number
    options: dict[str, Any] = {
        "interleaved": int(op.pairs == "interleaved"),
        "rotary_embedding_dim": partial,
    }
    result = g.node("RotaryEmbedding", x, *tables, **options)
    # Attention may read packed heads: rotating these too makes the transposes unused.
    packed = g.layouts.packed.get(x.name)
    if packed is not None and heads.number is not None:
        options["num_heads"] = heads.number
        g.layouts.packed[result] = g.node("RotaryEmbedding", packed, *tables, **options)
    return result


def _emit_rotate_half(g: Emitter, x: str, c: str, s: str, width: Dim) -> str:
    middle = Dim.of((width.number or 0) // 2)
    a, b = emit_slice(g, x, 3, Dim.of(0), middle), emit_slice(g, x, 3, middle, width)
    return g.node("Concat", *_emit_rotated_pair(g, a, b, c, s), axis=3)


def _emit_rotate_interleaved(g: Emitter, x: str, c: str, s: str, width: Dim) -> str:
    stop, axis, step = g.vector(width.number or 0), g.vector(3), g.vector(2)
    a = g.node("Slice", x, [0], stop, axis, step)
    b = g.node("Slice", x, [1], stop, axis, step)
    parts = [emit_unsqueeze(g, part, 4) for part in _emit_rotated_pair(g, a, b, c, s)]
    pairs = g.node("Concat", *parts, axis=4)
    return g.node("Reshape", pairs, [0, 0, 0, width.number or 0])


def _emit_rotated_pair(g: Emitter, a: str, b: str, c: str, s: str) -> tuple[str, str]:
    """Emit `(a·c − b·s, b·c + a·s)`."""
    first = g.node("Sub", g.node("Mul", a, c), g.node("Mul", b, s))
    second = g.node("Add", g.node("Mul", b, c), g.node("Mul", a, s))
    return first, second
