"""Decode quantized weights of GPTQ, AWQ and bitsandbytes (LLM.int8, NF4 and FP4)."""

import json
import math
from typing import Any

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
    subtract_zero_points,
    unpack_codes,
)

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The position of each of eight consecutive output channels in a 32-bit AWQ word."""


def _is_centered(packed: Array, bits: int, settings: QuantizationSettings) -> bool:
    """Return True if all zero points are the middle of the code range (symmetric)."""
    middle = (1 << (bits - 1)) - settings.zero_offset
    return bool((unpack_codes(packed, bits) == middle).all())


def infer_gptq_layout(
    tensors: StoredTensors, lengths: Lengths, settings: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of a GPTQ weight, which has the values `(q - z) * s` and the shape `[in,
    out]`. Codes are packed along `in`, zero points along `out`. `g_idx` is the group index of each
    input channel.
    """
    out, zero_offset = lengths["out"], settings.zero_offset
    bits = infer_bits_per_code(out, lengths["zero_words"], (4, 8, 2, 3), settings.bits)
    width = lengths.get("in", lengths["words"] * 32 // bits)
    infer_bits_per_code(width, lengths["words"], (bits,), 0)
    group_size = infer_group_size(width, lengths["groups"], settings)
    is_ordered = has_ordered_groups(tensors.get(".g_idx"), width, group_size, lengths["groups"])
    max_code = (1 << bits) - 1
    if zero_offset and (unpack_codes(tensors[".qzeros"], bits) == max_code).any():
        raise QuantizedLayoutError(
            f"a stored zero point is {max_code}, which versions of GPTQ read as {max_code + 1} or 0"
        )

    def decode(tensors: StoredTensors, rows: slice) -> Codes:
        groups = tensors.get(".g_idx", np.arange(width) // group_size)
        zeros = unpack_codes(tensors[".qzeros"], bits)[:, :out][:, rows] + np.uint8(zero_offset)
        codes = unpack_codes(tensors[".qweight"][:, rows], bits, axis=0)[:width]
        scales = decode_scales(tensors[".scales"][:, rows])
        return subtract_zero_points(codes, zeros[groups]).T, scales[groups].T

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
    zero points are packed along `out`. Each word packs eight output channels in the order
    `AWQ_ORDER`.
    """
    out, width = lengths["out"], lengths["in"]
    check_element_count("the codes in a row of qweight", lengths["words"] * 8, out)
    group_size = infer_group_size(width, lengths["groups"], settings)

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
        return subtract_zero_points(codes, zeros[groups]).T, scales.T

    return QuantizedLayout(
        shape=(out, width),
        decode=decode,
        bits=4,
        group_size=group_size,
        is_symmetric=_is_centered(tensors[".qzeros"], 4, settings),
    )


def infer_llm_int8_layout(
    _tensors: StoredTensors, lengths: Lengths, _settings: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of an LLM.int8 weight, `[out, in]`, with per-channel absmax scales."""

    def decode(tensors: StoredTensors, rows: slice) -> Codes:
        scales = decode_scales(tensors[".SCB"][rows]) / np.float32(127)
        return tensors[".weight"][rows], scales[:, None]

    shape = lengths["out"], lengths["in"]
    return QuantizedLayout(shape=shape, decode=decode, group_size=lengths["in"])


QUANT_STATES = tuple(f".quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))


def _read_quant_state(tensors: StoredTensors) -> dict[str, Any]:
    """Parse the JSON that bitsandbytes stores in a byte tensor."""
    stored = next(tensors[mark] for mark in QUANT_STATES if mark in tensors)
    try:
        state = json.loads(stored.tobytes().decode())
        sizes = [*state["shape"], state["blocksize"]]
        if ".nested_absmax" in tensors:
            sizes.append(state["nested_blocksize"])
            float(state["nested_offset"])
        if min(map(int, sizes)) < 1 or len(state["shape"]) != 2:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise QuantizedLayoutError("its quant_state does not describe a matrix") from None
    return dict(state)


def infer_bnb4_layout(
    tensors: StoredTensors, lengths: Lengths, _settings: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of an NF4 or FP4 weight of bitsandbytes, `table[q] * absmax`. The codes are
    stored in blocks of the flattened weight. Nested scales are quantized to 8 bits.
    """
    state = _read_quant_state(tensors)
    shape, block_size = tuple(map(int, state["shape"])), int(state["blocksize"])
    count = math.prod(shape)
    check_element_count("the bytes of codes", tensors[""].nbytes, -(-count // 2))
    check_element_count("absmax", lengths["blocks"], -(-count // block_size))
    if (tensors[".absmax"].dtype == np.uint8) != all(
        f".nested_{suffix}" in tensors for suffix in ("absmax", "quant_map")
    ):
        raise QuantizedLayoutError(
            "absmax is quantized, or nested_absmax and nested_quant_map are missing"
        )
    if ".nested_absmax" in tensors:
        block_count = -(-lengths["blocks"] // int(state["nested_blocksize"]))
        check_element_count("nested_absmax", len(tensors[".nested_absmax"]), block_count)

    def decode(tensors: StoredTensors, rows: slice) -> Codes:
        first, stop, _ = rows.indices(shape[0])
        start, end = first * shape[1], stop * shape[1]
        flat = tensors[""].reshape(-1).view(np.uint8)[start // 2 : -(-end // 2)]
        codes = np.stack([flat >> 4, flat & 15], -1).reshape(-1)[start % 2 :][: end - start]
        if ".nested_absmax" not in tensors:
            scales = decode_scales(tensors[".absmax"])
        else:
            scales = tensors[".nested_quant_map"].astype(np.float32)[tensors[".absmax"]]
            outer_blocks = np.arange(len(scales)) // int(state["nested_blocksize"])
            scales = scales * decode_scales(tensors[".nested_absmax"])[outer_blocks]
            scales = scales + np.float32(state["nested_offset"])
        values = tensors[".quant_map"].astype(np.float32)[codes]
        weight_scales = scales[np.arange(start, end) // block_size]
        return values.reshape(-1, shape[1]), weight_scales.reshape(-1, shape[1])

    return QuantizedLayout(shape=shape, decode=decode, is_uniform=False)


GPTQ_AND_AWQ_FORMATS = (
    QuantizedWeightFormat(
        methods=("gptq",),
        marker_suffix=".qweight",
        required_tensors={
            ".qweight": "i32[words, out]",
            ".qzeros": "i32[groups, zero_words]",
            ".scales": "float[groups, out]",
        },
        optional_tensors={".g_idx": "i32[in]"},
        infer_layout=infer_gptq_layout,
    ),
    QuantizedWeightFormat(
        methods=("awq",),
        marker_suffix=".qweight",
        required_tensors={
            ".qweight": "i32[in, words]",
            ".qzeros": "i32[groups, words]",
            ".scales": "float[groups, out]",
        },
        infer_layout=infer_awq_layout,
    ),
)

BITSANDBYTES_FORMATS = (
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
            infer_layout=infer_bnb4_layout,
        )
        for mark in QUANT_STATES
    ),
    QuantizedWeightFormat(
        methods=("bitsandbytes",),
        marker_suffix=".SCB",
        required_tensors={".weight": "i8[out, in]", ".SCB": "float[out]"},
        infer_layout=infer_llm_int8_layout,
    ),
)
