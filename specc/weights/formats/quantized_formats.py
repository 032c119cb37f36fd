"""Define the storage formats of quantized weights (`WEIGHT_FORMATS`): the tensors of a weight by
name suffix, and the functions that infer the layout of a weight and decode it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from specc.ir.array import Array
from specc.weights.formats.gguf_header import BlockType
from specc.weights.formats.quantized_decoders import (
    FP4_DOUBLED,
    QUANT_STATES,
    QUANTIZED_TYPES,
    Codes,
    Decode,
    InferLayout,
    LayoutError,
    Lengths,
    Parts,
    QuantizationSettings,
    QuantizedLayout,
    check_entry_count,
    decode_bnb4,
    decode_llm_int8,
    decode_mxfp4,
    infer_bnb4_layout,
    infer_llm_int8_layout,
    infer_mxfp4_layout,
    make_block_decoder,
    make_scaled_decoder,
    read_scales,
    reshape_scale_grid,
    unpack_codes,
)

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""For each of eight consecutive output channels, its position in a 32-bit AWQ word."""


def _subtract_zero_points(codes: Array, zero_points: Array | int) -> Array:
    """Subtract the zero points from codes."""
    return codes.astype(np.int16) - (
        zero_points if isinstance(zero_points, int) else zero_points.astype(np.int16)
    )


def _infer_code_bits(code_count: int, word_count: int, candidates: Sequence[int], bits: int) -> int:
    """Return the first number of bits in `candidates` for which `code_count` codes take exactly
    `word_count` 32-bit words. If `bits`, the config value, is not 0, `bits` is the only candidate.
    Raise LayoutError if no candidate fits.
    """
    matching_bits = [
        b for b in candidates if -(-code_count * b // 32) == word_count and bits in (0, b)
    ]
    if not matching_bits:
        size = f"{bits} bits" if bits else f"{' or '.join(map(str, candidates))} bits"
        raise LayoutError(f"{code_count} codes of {size} do not take {word_count} times 32 bits")
    return matching_bits[0]


def _infer_group_size(width: int, group_count: int, settings: QuantizationSettings) -> int:
    """Infer the group size of a weight with `width` input features and `group_count` groups per
    row. Raise LayoutError if the result differs from the group size in `settings`.
    """
    requested = width if settings.group_size < 0 else settings.group_size
    if requested and -(-width // requested) == group_count:
        return requested
    if requested or group_count < 1 or width % group_count:
        size = f" of {requested}" if requested else ""
        raise LayoutError(f"{group_count} scales per row do not fit {width} values in groups{size}")
    return width // group_count


# --- GPTQ and AWQ -----------------------------------------------------------------------


def _has_ordered_groups(
    group_index: Array | None, width: int, group_size: int, group_count: int
) -> bool:
    """Return True if groups are consecutive input channels, i.e. without act-order."""
    if group_index is None:
        return True
    check_entry_count("g_idx", len(group_index), width)
    if group_index.size and not 0 <= group_index.min() <= group_index.max() < group_count:
        raise LayoutError(f"g_idx names groups outside 0 to {group_count - 1}")
    return bool(np.array_equal(group_index, np.arange(width) // group_size))


def infer_gptq_layout(
    parts: Parts, lengths: Lengths, settings: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of GPTQ: `[in, out]`, codes packed along `in`, zero points along `out`."""
    bits = _infer_code_bits(lengths["out"], lengths["zero_words"], (4, 8, 2, 3), settings.bits)
    width = lengths.get("in", lengths["words"] * 32 // bits)
    _infer_code_bits(width, lengths["words"], (bits,), 0)
    group_size = _infer_group_size(width, lengths["groups"], settings)
    is_ordered = _has_ordered_groups(parts.get(".g_idx"), width, group_size, lengths["groups"])
    max_code = (1 << bits) - 1
    if settings.zero_offset and (unpack_codes(parts[".qzeros"], bits) == max_code).any():
        raise LayoutError(
            f"a stored zero point is {max_code}, which versions of GPTQ read as {max_code + 1} or 0"
        )
    return QuantizedLayout(
        shape=(lengths["out"], width),
        bits=bits,
        group_size=group_size,
        is_uniform=is_ordered,
        is_symmetric=_is_centered(parts[".qzeros"], bits, settings),
        zero_offset=settings.zero_offset,
    )


def _is_centered(packed: Array, bits: int, settings: QuantizationSettings) -> bool:
    """Return True if all zero points are the middle of the code range (symmetric)."""
    middle = (1 << (bits - 1)) - settings.zero_offset
    return bool((unpack_codes(packed, bits) == middle).all())


def decode_gptq(parts: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
    """Decode GPTQ weights `(q - z) * s`; `g_idx` is the group index of each input channel."""
    width, bits = layout.shape[1], layout.bits
    groups = parts.get(".g_idx", np.arange(width) // layout.group_size)
    zeros = unpack_codes(parts[".qzeros"], bits)[:, : layout.shape[0]][:, rows]
    zeros = zeros + np.uint8(layout.zero_offset)
    codes = unpack_codes(parts[".qweight"][:, rows], bits, axis=0)[:width]
    scales = read_scales(parts[".scales"][:, rows])
    return _subtract_zero_points(codes, zeros[groups]).T, scales[groups].T


def infer_awq_layout(
    parts: Parts, lengths: Lengths, settings: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of AWQ (GEMM): `[in, out]`, codes and zero points packed along `out`."""
    check_entry_count("the codes in a row of qweight", lengths["words"] * 8, lengths["out"])
    group_size = _infer_group_size(lengths["in"], lengths["groups"], settings)
    return QuantizedLayout(
        shape=(lengths["out"], lengths["in"]),
        bits=4,
        group_size=group_size,
        is_symmetric=_is_centered(parts[".qzeros"], 4, settings),
    )


def decode_awq(parts: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
    """Decode AWQ weights `(q - z) * s`. Each word has eight outputs in the order `AWQ_ORDER`."""
    first, stop, _ = rows.indices(layout.shape[0])
    words = slice(first // 8, -(-stop // 8))
    columns = slice(first - words.start * 8, stop - words.start * 8)

    def unpack_awq(packed: Array) -> Array:
        codes = unpack_codes(packed[:, words], 4).reshape(len(packed), -1, 8)
        return codes[:, :, AWQ_ORDER].reshape(len(packed), -1)[:, columns]

    groups = np.arange(layout.shape[1]) // layout.group_size
    zeros = unpack_awq(parts[".qzeros"])[groups]
    scales = read_scales(parts[".scales"][:, rows])[groups]
    return _subtract_zero_points(unpack_awq(parts[".qweight"]), zeros).T, scales.T


# --- compressed-tensors -----------------------------------------------------------------


def infer_packed_layout(
    parts: Parts, lengths: Lengths, settings: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of compressed-tensors integers: `[out, in]`, packed along `in`."""
    out, width = (int(length) for length in parts[".weight_shape"])
    check_entry_count("the rows of weight_packed", lengths["out"], out)
    bits = _infer_code_bits(width, lengths["words"], range(1, 9), settings.bits)
    scales = reshape_scale_grid(parts[".weight_scale"], 2)
    groups = scales.shape[1]
    if len(scales) not in (1, out):
        raise LayoutError(f"scales of shape {list(scales.shape)} do not fit {out} rows")
    group_size = _infer_group_size(
        width, groups, settings if groups > 1 else QuantizationSettings()
    )
    is_ordered = _has_ordered_groups(parts.get(".weight_g_idx"), width, group_size, groups)
    if ".weight_zero_point" in parts:
        check_entry_count("the words of a zero point", lengths["zero_words"], -(-out * bits // 32))
        check_entry_count("the groups of zero points", lengths["groups"], groups)
    return QuantizedLayout(
        shape=(out, width),
        bits=bits,
        group_size=group_size,
        is_uniform=is_ordered,
        is_symmetric=".weight_zero_point" not in parts,
    )


def decode_packed(parts: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
    """Decode compressed-tensors weights `(q - z) * s`; codes are stored as unsigned integers."""
    (out, width), bits = layout.shape, layout.bits
    codes = unpack_codes(parts[".weight_packed"][rows], bits)[:, :width]
    groups = parts.get(".weight_g_idx", np.arange(width) // layout.group_size)
    scales = reshape_scale_grid(read_scales(parts[".weight_scale"]), 2)
    scales = np.broadcast_to(scales, (out, scales.shape[1]))
    zeros: Array | int = 1 << (bits - 1)
    if ".weight_zero_point" in parts:
        stored = unpack_codes(parts[".weight_zero_point"], bits, axis=0)[:out]
        zeros = np.broadcast_to(stored, (out, stored.shape[1]))[rows][:, groups]
    return _subtract_zero_points(codes, zeros), scales[rows][:, groups]


def infer_fp4_layout(parts: Parts, lengths: Lengths, _: QuantizationSettings) -> QuantizedLayout:
    """Return the layout of NVFP4 and MXFP4 in compressed-tensors: `[out, in]`, 2 codes per byte."""
    width = lengths["bytes"] * 2
    global_scale = parts.get(".weight_global_scale")
    if global_scale is not None:
        check_entry_count("weight_global_scale", global_scale.size, 1)
    group_size = _infer_group_size(width, lengths["groups"], QuantizationSettings())
    return QuantizedLayout(shape=(lengths["out"], width), group_size=group_size)


def decode_fp4(parts: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
    """Decode NVFP4 or MXFP4 weights `q * s`. NVFP4 scales are divided by the global scale."""
    codes = FP4_DOUBLED[unpack_codes(parts[".weight_packed"][rows], 4)]
    scales = read_scales(parts[".weight_scale"][rows]) / np.float32(2)
    if ".weight_global_scale" in parts:
        with np.errstate(divide="ignore", invalid="ignore"):
            scales = scales / parts[".weight_global_scale"].astype(np.float32).reshape(())
    return codes, np.repeat(scales, layout.group_size, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """A storage format of quantized weights. `methods` lists the quantization methods
    (`quant_method` in the config) that use the format.

    Every tensor `name + marker_suffix` indicates a weight `name + weight_suffix`. `parts` maps the
    suffixes of required tensors to their patterns (`match_tensor`), and `optional_parts` those of
    optional tensors.
    """

    methods: tuple[str, ...]
    marker_suffix: str
    weight_suffix: str = ".weight"
    parts: Mapping[str, str]
    infer_layout: InferLayout
    decode: Decode
    optional_parts: Mapping[str, str] = field(default_factory=dict)


def _make_gguf_format(block_type: BlockType) -> WeightFormat:
    """Return the format of a GGUF block type, whose quantized tensors end in the type name."""
    marker_suffix = f":{block_type.name}"
    describe, decode = make_block_decoder(marker_suffix, block_type)
    return WeightFormat(
        methods=(GGUF_METHOD,),
        marker_suffix=marker_suffix,
        weight_suffix="",
        parts={marker_suffix: "u8"},
        infer_layout=describe,
        decode=decode,
    )


GGUF_METHOD = "gguf"
"""The quantization method of GGUF files, which have no quantization config."""
_INVERSE, _PLAIN = make_scaled_decoder("_scale_inv"), make_scaled_decoder(".weight_scale")

WEIGHT_FORMATS = (
    WeightFormat(
        methods=("fp8",),
        marker_suffix="_scale_inv",
        weight_suffix="",
        parts={"": "f8", "_scale_inv": "scale"},
        infer_layout=_INVERSE[0],
        decode=_INVERSE[1],
    ),
    WeightFormat(
        methods=("gptq",),
        marker_suffix=".qweight",
        parts={
            ".qweight": "i32[words, out]",
            ".qzeros": "i32[groups, zero_words]",
            ".scales": "float[groups, out]",
        },
        optional_parts={".g_idx": "i32[in]"},
        infer_layout=infer_gptq_layout,
        decode=decode_gptq,
    ),
    WeightFormat(
        methods=("awq",),
        marker_suffix=".qweight",
        parts={
            ".qweight": "i32[in, words]",
            ".qzeros": "i32[groups, words]",
            ".scales": "float[groups, out]",
        },
        infer_layout=infer_awq_layout,
        decode=decode_awq,
    ),
    WeightFormat(
        methods=("compressed-tensors",),
        marker_suffix=".weight_shape",
        parts={
            ".weight_shape": "int[2]",
            ".weight_packed": "i32[out, words]",
            ".weight_scale": "float",
        },
        optional_parts={
            ".weight_zero_point": "i32[zero_words, groups]",
            ".weight_g_idx": "int[in]",
        },
        infer_layout=infer_packed_layout,
        decode=decode_packed,
    ),
    WeightFormat(
        methods=("compressed-tensors",),
        marker_suffix=".weight_packed",
        parts={".weight_packed": "u8[out, bytes]", ".weight_scale": "scale[out, groups]"},
        optional_parts={".weight_global_scale": "float"},
        infer_layout=infer_fp4_layout,
        decode=decode_fp4,
    ),
    WeightFormat(
        methods=("compressed-tensors", "fbgemm_fp8"),
        marker_suffix=".weight_scale",
        parts={".weight": "f8|i8", ".weight_scale": "scale"},
        optional_parts={".weight_zero_point": "i8"},
        infer_layout=_PLAIN[0],
        decode=_PLAIN[1],
    ),
    WeightFormat(
        methods=("mxfp4",),
        marker_suffix="_blocks",
        weight_suffix="",
        parts={"_blocks": "u8[experts, out, groups, bytes]", "_scales": "u8[experts, out, groups]"},
        infer_layout=infer_mxfp4_layout,
        decode=decode_mxfp4,
    ),
    *(
        WeightFormat(
            methods=("bitsandbytes",),
            marker_suffix=mark,
            weight_suffix="",
            parts={
                mark: "u8[state]",
                "": "any",
                ".absmax": "float|u8[blocks]",
                ".quant_map": "float[16]",
            },
            optional_parts={".nested_absmax": "float[outer]", ".nested_quant_map": "float[256]"},
            infer_layout=infer_bnb4_layout,
            decode=decode_bnb4,
        )
        for mark in QUANT_STATES
    ),
    WeightFormat(
        methods=("bitsandbytes",),
        marker_suffix=".SCB",
        parts={".weight": "i8[out, in]", ".SCB": "float[out]"},
        infer_layout=infer_llm_int8_layout,
        decode=decode_llm_int8,
    ),
    *map(_make_gguf_format, QUANTIZED_TYPES),
)
"""All storage formats. Formats with the same marker have different methods. Earlier formats take
precedence, because a weight with `.weight_shape` also has `.weight_packed`."""
