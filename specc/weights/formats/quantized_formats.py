"""Define the storage formats of quantized weights (`WEIGHT_FORMATS`). A format lists a weight's
tensors by name suffix, and the function that opens the weight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from specc.ir.array import Array
from specc.weights.formats.quantized_decoders import (
    FP4_DOUBLED,
    QUANT_STATES,
    QUANTIZED_TYPES,
    Codes,
    LayoutError,
    Lengths,
    OpenWeight,
    QuantizationSettings,
    QuantizedLayout,
    StoredTensors,
    check_element_count,
    decode_scales,
    infer_bnb4_layout,
    infer_llm_int8_layout,
    infer_scaled_layout,
    make_gguf_layout_function,
    reshape_scale_grid,
    unpack_codes,
)

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""For each of eight consecutive output channels, its position in a 32-bit AWQ word."""


def _subtract_zero_points(codes: Array, zero_points: Array | int) -> Array:
    """Return codes minus zero points as int16, so that the difference does not overflow."""
    return codes.astype(np.int16) - (
        zero_points if isinstance(zero_points, int) else zero_points.astype(np.int16)
    )


def _infer_code_bits(code_count: int, word_count: int, candidates: Sequence[int], bits: int) -> int:
    """Return the first number of bits in `candidates` for which `code_count` codes take exactly
    `word_count` 32-bit words. If `bits`, the number of bits in the config, is not 0, it is the only
    candidate. Raise LayoutError if no candidate fits.
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
    check_element_count("g_idx", len(group_index), width)
    if group_index.size and not 0 <= group_index.min() <= group_index.max() < group_count:
        raise LayoutError(f"g_idx names groups outside 0 to {group_count - 1}")
    return bool(np.array_equal(group_index, np.arange(width) // group_size))


def _is_centered(packed: Array, bits: int, settings: QuantizationSettings) -> bool:
    """Return True if all zero points are the middle of the code range (symmetric)."""
    middle = (1 << (bits - 1)) - settings.zero_offset
    return bool((unpack_codes(packed, bits) == middle).all())


def infer_gptq_layout(
    tensors: StoredTensors, lengths: Lengths, settings: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of a GPTQ weight, `(q - z) * s` with shape `[in, out]`. Codes are packed
    along `in`, zero points along `out`. `g_idx` is the group index of each input channel.
    """
    out, zero_offset = lengths["out"], settings.zero_offset
    bits = _infer_code_bits(out, lengths["zero_words"], (4, 8, 2, 3), settings.bits)
    width = lengths.get("in", lengths["words"] * 32 // bits)
    _infer_code_bits(width, lengths["words"], (bits,), 0)
    group_size = _infer_group_size(width, lengths["groups"], settings)
    is_ordered = _has_ordered_groups(tensors.get(".g_idx"), width, group_size, lengths["groups"])
    max_code = (1 << bits) - 1
    if zero_offset and (unpack_codes(tensors[".qzeros"], bits) == max_code).any():
        raise LayoutError(
            f"a stored zero point is {max_code}, which versions of GPTQ read as {max_code + 1} or 0"
        )

    def decode(tensors: StoredTensors, rows: slice) -> Codes:
        groups = tensors.get(".g_idx", np.arange(width) // group_size)
        zeros = unpack_codes(tensors[".qzeros"], bits)[:, :out][:, rows] + np.uint8(zero_offset)
        codes = unpack_codes(tensors[".qweight"][:, rows], bits, axis=0)[:width]
        scales = decode_scales(tensors[".scales"][:, rows])
        return _subtract_zero_points(codes, zeros[groups]).T, scales[groups].T

    return QuantizedLayout(
        shape=(out, width),
        decode=decode,
        bits=bits,
        group_size=group_size,
        is_uniform=is_ordered,
        is_symmetric=_is_centered(tensors[".qzeros"], bits, settings),
    )


def infer_awq_layout(
    tensors: StoredTensors, lengths: Lengths, settings: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of an AWQ (GEMM) weight, `(q - z) * s` with shape `[in, out]`. Codes and
    zero points are packed along `out`. Each word has eight outputs in the order `AWQ_ORDER`.
    """
    out, width = lengths["out"], lengths["in"]
    check_element_count("the codes in a row of qweight", lengths["words"] * 8, out)
    group_size = _infer_group_size(width, lengths["groups"], settings)

    def decode(tensors: StoredTensors, rows: slice) -> Codes:
        first, stop, _ = rows.indices(out)
        words = slice(first // 8, -(-stop // 8))
        columns = slice(first - words.start * 8, stop - words.start * 8)
        codes, zeros = (
            unpack_codes(tensors[suffix][:, words], 4)
            .reshape(len(tensors[suffix]), -1, 8)[:, :, AWQ_ORDER]
            .reshape(len(tensors[suffix]), -1)[:, columns]
            for suffix in (".qweight", ".qzeros")
        )
        groups = np.arange(width) // group_size
        scales = decode_scales(tensors[".scales"][:, rows])[groups]
        return _subtract_zero_points(codes, zeros[groups]).T, scales.T

    return QuantizedLayout(
        shape=(out, width),
        decode=decode,
        bits=4,
        group_size=group_size,
        is_symmetric=_is_centered(tensors[".qzeros"], 4, settings),
    )


# --- compressed-tensors -----------------------------------------------------------------


def infer_pack_quantized_layout(
    tensors: StoredTensors, lengths: Lengths, settings: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of a compressed-tensors integer weight, `(q - z) * s` of shape `[out, in]`.
    Codes are packed along `in` as unsigned integers.
    """
    out, width = (int(length) for length in tensors[".weight_shape"])
    check_element_count("the rows of weight_packed", lengths["out"], out)
    bits = _infer_code_bits(width, lengths["words"], range(1, 9), settings.bits)
    scales = reshape_scale_grid(tensors[".weight_scale"], 2)
    group_count = scales.shape[1]
    if len(scales) not in (1, out):
        raise LayoutError(f"scales of shape {list(scales.shape)} do not fit {out} rows")
    group_size = _infer_group_size(
        width, group_count, settings if group_count > 1 else QuantizationSettings()
    )
    is_ordered = _has_ordered_groups(tensors.get(".weight_g_idx"), width, group_size, group_count)
    has_zero_points = ".weight_zero_point" in tensors
    if has_zero_points:
        check_element_count(
            "the words of a zero point", lengths["zero_words"], -(-out * bits // 32)
        )
        check_element_count("the groups of zero points", lengths["groups"], group_count)

    def decode(tensors: StoredTensors, rows: slice) -> Codes:
        codes = unpack_codes(tensors[".weight_packed"][rows], bits)[:, :width]
        groups = tensors.get(".weight_g_idx", np.arange(width) // group_size)
        scales = reshape_scale_grid(decode_scales(tensors[".weight_scale"]), 2)
        scales = np.broadcast_to(scales, (out, group_count))
        zeros: Array | int = 1 << (bits - 1)
        if has_zero_points:
            stored = unpack_codes(tensors[".weight_zero_point"], bits, axis=0)[:out]
            zeros = np.broadcast_to(stored, (out, group_count))[rows][:, groups]
        return _subtract_zero_points(codes, zeros), scales[rows][:, groups]

    return QuantizedLayout(
        shape=(out, width),
        decode=decode,
        bits=bits,
        group_size=group_size,
        is_uniform=is_ordered,
        is_symmetric=not has_zero_points,
    )


def infer_fp4_layout(
    tensors: StoredTensors, lengths: Lengths, _: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of an NVFP4 or MXFP4 weight in compressed-tensors, `[out, in]`, with two
    codes per byte. NVFP4 scales are divided by the global scale.
    """
    width = lengths["bytes"] * 2
    global_scale = tensors.get(".weight_global_scale")
    if global_scale is not None:
        check_element_count("weight_global_scale", global_scale.size, 1)
    group_size = _infer_group_size(width, lengths["groups"], QuantizationSettings())

    def decode(tensors: StoredTensors, rows: slice) -> Codes:
        codes = FP4_DOUBLED[unpack_codes(tensors[".weight_packed"][rows], 4)]
        scales = decode_scales(tensors[".weight_scale"][rows]) / np.float32(2)
        if ".weight_global_scale" in tensors:
            with np.errstate(divide="ignore", invalid="ignore"):
                scales = scales / tensors[".weight_global_scale"].astype(np.float32).reshape(())
        return codes, np.repeat(scales, group_size, axis=1)

    return QuantizedLayout(shape=(lengths["out"], width), decode=decode, group_size=group_size)


def infer_mxfp4_layout(
    _: StoredTensors, lengths: Lengths, __: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of MXFP4 expert weights, stored as `[out, in]` and used as `[in, out]`.
    Scales of MXFP4 are powers of two.
    """
    group_size = lengths["bytes"] * 2

    def decode(tensors: StoredTensors, rows: slice) -> Codes:
        packed = tensors["_blocks"][rows]
        scales = decode_scales(tensors["_scales"][rows]) / np.float32(2)
        codes = FP4_DOUBLED[unpack_codes(packed, 4)].reshape(*packed.shape[:2], -1)
        return codes.swapaxes(1, 2), np.repeat(scales, group_size, axis=2).swapaxes(1, 2)

    shape = lengths["experts"], lengths["groups"] * group_size, lengths["out"]
    return QuantizedLayout(shape=shape, decode=decode, group_size=group_size, axis=-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeightFormat:
    """A storage format of quantized weights. `methods` lists the quantization methods
    (`quant_method` in the config) that use the format.

    If a tensor `name + marker_suffix` exists, there is a quantized weight `name + weight_suffix`.
    `required_tensors` and `optional_tensors` map suffixes of tensors to patterns (see
    `check_tensor_pattern`).
    """

    methods: tuple[str, ...]
    marker_suffix: str
    weight_suffix: str = ".weight"
    required_tensors: Mapping[str, str]
    open_weight: OpenWeight
    optional_tensors: Mapping[str, str] = field(default_factory=dict)


GGUF_METHOD = "gguf"
"""The quantization method of GGUF files, which have no quantization config."""

WEIGHT_FORMATS = (
    QuantizedWeightFormat(
        methods=("fp8",),
        marker_suffix="_scale_inv",
        weight_suffix="",
        required_tensors={"": "f8", "_scale_inv": "scale"},
        open_weight=infer_scaled_layout,
    ),
    QuantizedWeightFormat(
        methods=("gptq",),
        marker_suffix=".qweight",
        required_tensors={
            ".qweight": "i32[words, out]",
            ".qzeros": "i32[groups, zero_words]",
            ".scales": "float[groups, out]",
        },
        optional_tensors={".g_idx": "i32[in]"},
        open_weight=infer_gptq_layout,
    ),
    QuantizedWeightFormat(
        methods=("awq",),
        marker_suffix=".qweight",
        required_tensors={
            ".qweight": "i32[in, words]",
            ".qzeros": "i32[groups, words]",
            ".scales": "float[groups, out]",
        },
        open_weight=infer_awq_layout,
    ),
    QuantizedWeightFormat(
        methods=("compressed-tensors",),
        marker_suffix=".weight_shape",
        required_tensors={
            ".weight_shape": "int[2]",
            ".weight_packed": "i32[out, words]",
            ".weight_scale": "float",
        },
        optional_tensors={
            ".weight_zero_point": "i32[zero_words, groups]",
            ".weight_g_idx": "int[in]",
        },
        open_weight=infer_pack_quantized_layout,
    ),
    QuantizedWeightFormat(
        methods=("compressed-tensors",),
        marker_suffix=".weight_packed",
        required_tensors={
            ".weight_packed": "u8[out, bytes]",
            ".weight_scale": "scale[out, groups]",
        },
        optional_tensors={".weight_global_scale": "float"},
        open_weight=infer_fp4_layout,
    ),
    QuantizedWeightFormat(
        methods=("compressed-tensors", "fbgemm_fp8"),
        marker_suffix=".weight_scale",
        required_tensors={".weight": "f8|i8", ".weight_scale": "scale"},
        optional_tensors={".weight_zero_point": "i8"},
        open_weight=infer_scaled_layout,
    ),
    QuantizedWeightFormat(
        methods=("mxfp4",),
        marker_suffix="_blocks",
        weight_suffix="",
        required_tensors={
            "_blocks": "u8[experts, out, groups, bytes]",
            "_scales": "u8[experts, out, groups]",
        },
        open_weight=infer_mxfp4_layout,
    ),
    *(
        QuantizedWeightFormat(
            methods=("bitsandbytes",),
            marker_suffix=mark,
            weight_suffix="",
            required_tensors={
                mark: "u8[state]",
                "": "any",
                ".absmax": "float|u8[blocks]",
                ".quant_map": "float[16]",
            },
            optional_tensors={".nested_absmax": "float[outer]", ".nested_quant_map": "float[256]"},
            open_weight=infer_bnb4_layout,
        )
        for mark in QUANT_STATES
    ),
    QuantizedWeightFormat(
        methods=("bitsandbytes",),
        marker_suffix=".SCB",
        required_tensors={".weight": "i8[out, in]", ".SCB": "float[out]"},
        open_weight=infer_llm_int8_layout,
    ),
    *(
        QuantizedWeightFormat(
            methods=(GGUF_METHOD,),
            marker_suffix=f":{block_type.name}",
            weight_suffix="",
            required_tensors={f":{block_type.name}": "u8"},
            open_weight=make_gguf_layout_function(f":{block_type.name}", block_type),
        )
        for block_type in QUANTIZED_TYPES
    ),
)
"""All storage formats of quantized weights. Formats with the same marker have different methods.
Earlier formats take precedence, because a weight with the marker `.weight_shape` also has the
tensor `.weight_packed`.
"""
