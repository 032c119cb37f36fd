"""Decode integers packed into 32-bit words: GPTQ, AWQ, compressed-tensors; and FP4."""

from collections.abc import Sequence

import numpy as np

from specc.ir.array import Array
from specc.weights.formats.quantized_decoders import (
    FP4_DOUBLED,
    Codes,
    Parts,
    QuantizationSettings,
    QuantizedLayout,
    as_scale_grid,
    read_scales,
    unpack_codes,
)
from specc.weights.formats.tensor_patterns import Lengths, TensorMisfit, expect_equal

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position in an AWQ word of each of eight consecutive outputs."""


def _signed(codes: Array, zeros: Array | int) -> Array:
    """Subtract the zero points from codes."""
    return codes.astype(np.int16) - (zeros if isinstance(zeros, int) else zeros.astype(np.int16))


def _code_bits(count: int, words: int, known: Sequence[int], bits: int) -> int:
    """Return the bits of a code if `words` words of 32 bits hold `count` codes; `bits` are
    those of the config (0: not given).
    """
    found = [b for b in known if -(-count * b // 32) == words and bits in (0, b)]
    if not found:
        sized = f"{bits} bits" if bits else f"{' or '.join(map(str, known))} bits"
        raise TensorMisfit(f"{count} codes of {sized} do not take {words} times 32 bits")
    return found[0]


def _group_size(width: int, groups: int, settings: QuantizationSettings) -> int:
    """Return the group size of rows of `width` values in `groups` groups."""
    given = width if settings.group < 0 else settings.group
    if given and -(-width // given) == groups:
        return given
    if given or groups < 1 or width % groups:
        size = f" of {given}" if given else ""
        raise TensorMisfit(f"{groups} scales per row do not fit {width} values in groups{size}")
    return width // groups


# --- GPTQ and AWQ -----------------------------------------------------------------------


def _check_groups(index: Array | None, width: int, group: int, groups: int) -> bool:
    """Return whether the groups of a row are in order. Files without act-order have no index."""
    if index is None:
        return True
    expect_equal("g_idx", len(index), width)
    if index.size and not 0 <= index.min() <= index.max() < groups:
        raise TensorMisfit(f"g_idx names groups outside of 0 to {groups - 1}")
    return bool(np.array_equal(index, np.arange(width) // group))


def describe_gptq(t: Parts, n: Lengths, settings: QuantizationSettings) -> QuantizedLayout:
    """Describe GPTQ: `[in, out]`, codes packed along `in`, zero points along `out`."""
    bits = _code_bits(n["out"], n["zero_words"], (4, 8, 2, 3), settings.bits)
    width = n.get("in", n["words"] * 32 // bits)
    _code_bits(width, n["words"], (bits,), 0)
    group = _group_size(width, n["groups"], settings)
    in_order = _check_groups(t.get(".g_idx"), width, group, n["groups"])
    largest = (1 << bits) - 1
    if settings.zero_offset and (unpack_codes(t[".qzeros"], bits) == largest).any():
        raise TensorMisfit(
            f"a stored zero point is {largest}, which versions of GPTQ read as {largest + 1} or 0"
        )
    return QuantizedLayout(
        shape=(n["out"], width),
        bits=bits,
        group=group,
        kept=in_order,
        centered=_is_centered(t[".qzeros"], bits, settings),
        settings=settings,
    )


def _is_centered(packed: Array, bits: int, settings: QuantizationSettings) -> bool:
    """Return whether every zero point is the middle of the codes, as in symmetric weights."""
    middle = (1 << (bits - 1)) - settings.zero_offset
    return bool((unpack_codes(packed, bits) == middle).all())


def decode_gptq(t: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
    """Decode `(q - z) * s`, with the group of each input channel in `g_idx`."""
    width, bits = layout.shape[1], layout.bits
    groups = t.get(".g_idx", np.arange(width) // layout.group)
    zeros = unpack_codes(t[".qzeros"], bits)[:, : layout.shape[0]][:, rows]
    zeros = zeros + np.uint8(layout.settings.zero_offset)
    codes = unpack_codes(t[".qweight"][:, rows], bits, axis=0)[:width]
    scales = read_scales(t[".scales"][:, rows])
    return _signed(codes, zeros[groups]).T, scales[groups].T


def describe_awq(t: Parts, n: Lengths, settings: QuantizationSettings) -> QuantizedLayout:
    """Describe AWQ (GEMM): `[in, out]`, codes and zero points packed along `out`."""
    expect_equal("the codes in a row of qweight", n["words"] * 8, n["out"])
    group = _group_size(n["in"], n["groups"], settings)
    return QuantizedLayout(
        shape=(n["out"], n["in"]),
        bits=4,
        group=group,
        centered=_is_centered(t[".qzeros"], 4, settings),
        settings=settings,
    )


def decode_awq(t: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
    """Decode `(q - z) * s`; the eight outputs of a word are stored in another order."""
    first, stop, _ = rows.indices(layout.shape[0])
    words = slice(first // 8, -(-stop // 8))
    inside = slice(first - words.start * 8, stop - words.start * 8)

    def unpack(packed: Array) -> Array:
        codes = unpack_codes(packed[:, words], 4).reshape(len(packed), -1, 8)
        return codes[:, :, AWQ_ORDER].reshape(len(packed), -1)[:, inside]

    groups = np.arange(layout.shape[1]) // layout.group
    zeros = unpack(t[".qzeros"])[groups]
    scales = read_scales(t[".scales"][:, rows])[groups]
    return _signed(unpack(t[".qweight"]), zeros).T, scales.T


# --- compressed-tensors -----------------------------------------------------------------


def describe_packed(t: Parts, n: Lengths, settings: QuantizationSettings) -> QuantizedLayout:
    """Describe integers of compressed-tensors: `[out, in]`, packed along `in`."""
    out, width = (int(length) for length in t[".weight_shape"])
    expect_equal("the rows of weight_packed", n["out"], out)
    bits = _code_bits(width, n["words"], range(1, 9), settings.bits)
    scales = as_scale_grid(t[".weight_scale"], 2)
    groups = scales.shape[1]
    if len(scales) not in (1, out):
        raise TensorMisfit(f"scales of shape {list(scales.shape)} do not fit {out} rows")
    group = _group_size(width, groups, settings if groups > 1 else QuantizationSettings())
    in_order = _check_groups(t.get(".weight_g_idx"), width, group, groups)
    if ".weight_zero_point" in t:
        expect_equal("the words of a zero point", n["zero_words"], -(-out * bits // 32))
        expect_equal("the groups of zero points", n["groups"], groups)
    return QuantizedLayout(
        shape=(out, width),
        bits=bits,
        group=group,
        kept=in_order,
        centered=".weight_zero_point" not in t,
        settings=settings,
    )


def decode_packed(t: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
    """Decode `(q - z) * s`; codes and zero points are stored unsigned."""
    (out, width), bits = layout.shape, layout.bits
    codes = unpack_codes(t[".weight_packed"][rows], bits)[:, :width]
    groups = t.get(".weight_g_idx", np.arange(width) // layout.group)
    scales = as_scale_grid(read_scales(t[".weight_scale"]), 2)
    scales = np.broadcast_to(scales, (out, scales.shape[1]))
    zeros: Array | int = 1 << (bits - 1)
    if ".weight_zero_point" in t:
        stored = unpack_codes(t[".weight_zero_point"], bits, axis=0)[:out]
        zeros = np.broadcast_to(stored, (out, stored.shape[1]))[rows][:, groups]
    return _signed(codes, zeros), scales[rows][:, groups]


def describe_fp4(t: Parts, n: Lengths, settings: QuantizationSettings) -> QuantizedLayout:
    """Describe NVFP4 and MXFP4 of compressed-tensors: `[out, in]`, two codes per byte."""
    width = n["bytes"] * 2
    whole = t.get(".weight_global_scale")
    if whole is not None:
        expect_equal("weight_global_scale", whole.size, 1)
    group = _group_size(width, n["groups"], QuantizationSettings())
    return QuantizedLayout(shape=(n["out"], width), group=group, settings=settings)


def decode_fp4(t: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
    """Decode `q * s`, for NVFP4 divided by the global scale."""
    codes = FP4_DOUBLED[unpack_codes(t[".weight_packed"][rows], 4)]
    scales = read_scales(t[".weight_scale"][rows]) / np.float32(2)
    if ".weight_global_scale" in t:
        with np.errstate(divide="ignore", invalid="ignore"):
            scales = scales / t[".weight_global_scale"].astype(np.float32).reshape(())
    return codes, np.repeat(scales, layout.group, axis=1)
