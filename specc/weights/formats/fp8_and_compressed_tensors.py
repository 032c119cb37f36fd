"""Decode FP8 and int8 weights with separate scales, compressed-tensors, and MXFP4 experts."""

import numpy as np

from specc.ir.array import Array
from specc.weights.formats.quantized_layout import (
    Codes,
    Lengths,
    QuantizationSettings,
    QuantizedLayout,
    QuantizedLayoutError,
    QuantizedWeightFormat,
    StoredTensors,
    check_element_count,
    decode_scales,
    has_ordered_groups,
    infer_bits_per_code,
    infer_group_size,
    reshape_scales_to_rank,
    subtract_zero_points,
    unpack_codes,
)
from specc.weights.formats.safetensors_header import Shape


def infer_pack_quantized_layout(
    tensors: StoredTensors, lengths: Lengths, settings: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of a compressed-tensors integer weight, which has the values `(q - z) * s`
    and the shape `[out, in]`. Codes are packed along `in` as unsigned integers.
    """
    out, width = (int(length) for length in tensors[".weight_shape"])
    check_element_count("the rows of weight_packed", lengths["out"], out)
    bits = infer_bits_per_code(width, lengths["words"], range(1, 9), settings.bits)
    scales = reshape_scales_to_rank(tensors[".weight_scale"], 2)
    group_count = scales.shape[1]
    if len(scales) not in (1, out):
        raise QuantizedLayoutError(f"scales of shape {list(scales.shape)} do not fit {out} rows")
    group_size = infer_group_size(
        width, group_count, settings if group_count > 1 else QuantizationSettings()
    )
    is_ordered = has_ordered_groups(tensors.get(".weight_g_idx"), width, group_size, group_count)
    has_zero_points = ".weight_zero_point" in tensors
    if has_zero_points:
        check_element_count(
            "the words of a zero point", lengths["zero_words"], -(-out * bits // 32)
        )
        check_element_count("the groups of zero points", lengths["groups"], group_count)

    def decode(tensors: StoredTensors, rows: slice) -> Codes:
        codes = unpack_codes(tensors[".weight_packed"][rows], bits)[:, :width]
        groups = tensors.get(".weight_g_idx", np.arange(width) // group_size)
        scales = reshape_scales_to_rank(decode_scales(tensors[".weight_scale"]), 2)
        scales = np.broadcast_to(scales, (out, group_count))
        zeros: Array | int = 1 << (bits - 1)
        if has_zero_points:
            stored = unpack_codes(tensors[".weight_zero_point"], bits, axis=0)[:out]
            zeros = np.broadcast_to(stored, (out, group_count))[rows][:, groups]
        return subtract_zero_points(codes, zeros), scales[rows][:, groups]

    return QuantizedLayout(
        shape=(out, width),
        decode=decode,
        bits=bits,
        group_size=group_size,
        is_uniform=is_ordered,
        is_symmetric=not has_zero_points,
    )


def infer_fp4_layout(
    tensors: StoredTensors, lengths: Lengths, _settings: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of an NVFP4 or MXFP4 weight in compressed-tensors, `[out, in]`, with two
    codes per byte. NVFP4 scales are divided by the global scale.
    """
    width = lengths["bytes"] * 2
    global_scale = tensors.get(".weight_global_scale")
    if global_scale is not None:
        check_element_count("weight_global_scale", global_scale.size, 1)
    group_size = infer_group_size(width, lengths["groups"], QuantizationSettings())

    def decode(tensors: StoredTensors, rows: slice) -> Codes:
        codes = FP4_DOUBLED[unpack_codes(tensors[".weight_packed"][rows], 4)]
        scales = decode_scales(tensors[".weight_scale"][rows]) / np.float32(2)
        if ".weight_global_scale" in tensors:
            with np.errstate(divide="ignore", invalid="ignore"):
                scales = scales / tensors[".weight_global_scale"].astype(np.float32).reshape(())
        return codes, np.repeat(scales, group_size, axis=1)

    return QuantizedLayout(shape=(lengths["out"], width), decode=decode, group_size=group_size)


def infer_mxfp4_layout(
    _tensors: StoredTensors, lengths: Lengths, _settings: QuantizationSettings
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


FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.int8)


FP4_DOUBLED = np.concatenate([FP4_VALUES, -FP4_VALUES])
"""Twice the value of each FP4 (E2M1) code, because the doubled values are integers."""


def _infer_block_shape(shape: Shape, grid: Shape, block: tuple[int, int] | None) -> tuple[int, int]:
    """Infer the shape of the blocks that share one scale, from the shape of the matrix and the
    shape of the scales (`grid`). `block` is the block shape in the config, or None if the config
    has none. If the config has a block shape, blocks at the edges may be smaller. Raise
    QuantizedLayoutError if the shapes do not fit.
    """
    sizes = []
    for length, count, requested in zip(shape, grid, block or (0, 0), strict=True):
        if requested and -(-length // requested) == count:
            sizes.append(requested)
        elif count and length % count == 0:
            sizes.append(length // count)
        else:
            raise QuantizedLayoutError(
                f"scales of shape {list(grid)} do not fit a matrix {list(shape)}"
            )
    return sizes[0], sizes[1]


def infer_fp8_or_int8_layout(
    tensors: StoredTensors, _lengths: Lengths, settings: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of FP8 and int8 weights with a separate tensor of scales."""
    weight, suffix = ("", "_scale_inv") if "" in tensors else (".weight", ".weight_scale")
    dtype, shape, rank = tensors[weight].dtype, tensors[weight].shape, tensors[weight].ndim
    if rank < 2:
        raise QuantizedLayoutError(f"the weight has the shape {list(shape)} and is not a matrix")
    grid, zeros = reshape_scales_to_rank(tensors[suffix], rank), tensors.get(".weight_zero_point")
    if grid.shape[:-2] not in ((), shape[:-2]):
        raise QuantizedLayoutError(
            f"scales of shape {list(grid.shape)} do not fit a weight of shape {list(shape)}"
        )
    if zeros is not None and reshape_scales_to_rank(zeros, rank).shape != grid.shape:
        raise QuantizedLayoutError(
            f"zero points of shape {list(zeros.shape)} do not fit the scales"
        )
    block = _infer_block_shape(shape[-2:], grid.shape[-2:], settings.block_shape)

    def expand_grid(grid: Array, rows: slice) -> Array:
        i, j = (np.arange(n) // size for n, size in zip(shape[-2:], block, strict=True))
        if grid.ndim > 2:
            grid = grid[rows]
        return grid[..., i if rank > 2 else i[rows], :][..., j]

    def decode(tensors: StoredTensors, rows: slice) -> Codes:
        scales = expand_grid(reshape_scales_to_rank(decode_scales(tensors[suffix]), rank), rows)
        zeros = reshape_scales_to_rank(tensors.get(".weight_zero_point", np.zeros((1, 1))), rank)
        zeros = zeros.astype(np.float32)
        offset = zeros if zeros.size == 1 else expand_grid(zeros, rows)
        return tensors[weight][rows].astype(np.float32) - offset, scales

    return QuantizedLayout(
        shape=shape,
        decode=decode,
        group_size=block[1],
        is_uniform=dtype == np.int8,
        is_symmetric=zeros is None,
    )


FP8_FORMATS = (
    QuantizedWeightFormat(
        methods=("fp8",),
        marker_suffix="_scale_inv",
        weight_suffix="",
        required_tensors={"": "f8", "_scale_inv": "scale"},
        infer_layout=infer_fp8_or_int8_layout,
    ),
)

COMPRESSED_TENSORS_FORMATS = (
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
        infer_layout=infer_pack_quantized_layout,
    ),
    QuantizedWeightFormat(
        methods=("compressed-tensors",),
        marker_suffix=".weight_packed",
        required_tensors={
            ".weight_packed": "u8[out, bytes]",
            ".weight_scale": "scale[out, groups]",
        },
        optional_tensors={".weight_global_scale": "float"},
        infer_layout=infer_fp4_layout,
    ),
    QuantizedWeightFormat(
        methods=("compressed-tensors", "fbgemm_fp8"),
        marker_suffix=".weight_scale",
        required_tensors={".weight": "f8|i8", ".weight_scale": "scale"},
        optional_tensors={".weight_zero_point": "i8"},
        infer_layout=infer_fp8_or_int8_layout,
    ),
    QuantizedWeightFormat(
        methods=("mxfp4",),
        marker_suffix="_blocks",
        weight_suffix="",
        required_tensors={
            "_blocks": "u8[experts, out, groups, bytes]",
            "_scales": "u8[experts, out, groups]",
        },
        infer_layout=infer_mxfp4_layout,
    ),
)
"""The supported formats of compressed-tensors and MXFP4. Earlier formats take precedence, because a
weight with the marker `.weight_shape` also has the tensor `.weight_packed`.
"""
