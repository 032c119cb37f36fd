"""Formats of quantized weights: the tensors that make one weight. Each format is an entry of
`WEIGHT_FORMATS`.
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
    Describe,
    Lengths,
    Parts,
    QuantizationSettings,
    QuantizedLayout,
    TensorMisfit,
    as_scale_grid,
    decode_bnb4,
    decode_llm_int8,
    decode_mxfp4,
    describe_bnb4,
    describe_llm_int8,
    describe_mxfp4,
    expect_equal,
    make_block_decoder,
    make_scaled_decoder,
    read_scales,
    unpack_codes,
)

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
        zero_offset=settings.zero_offset,
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
    zeros = zeros + np.uint8(layout.zero_offset)
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
    )


def decode_awq(t: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
    """Decode `(q - z) * s`; the eight outputs of a word are stored in another order."""
    first, stop, _ = rows.indices(layout.shape[0])
    words = slice(first // 8, -(-stop // 8))
    inside = slice(first - words.start * 8, stop - words.start * 8)

    def unpack_awq(packed: Array) -> Array:
        codes = unpack_codes(packed[:, words], 4).reshape(len(packed), -1, 8)
        return codes[:, :, AWQ_ORDER].reshape(len(packed), -1)[:, inside]

    groups = np.arange(layout.shape[1]) // layout.group
    zeros = unpack_awq(t[".qzeros"])[groups]
    scales = read_scales(t[".scales"][:, rows])[groups]
    return _signed(unpack_awq(t[".qweight"]), zeros).T, scales.T


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


def describe_fp4(t: Parts, n: Lengths, _: QuantizationSettings) -> QuantizedLayout:
    """Describe NVFP4 and MXFP4 of compressed-tensors: `[out, in]`, two codes per byte."""
    width = n["bytes"] * 2
    whole = t.get(".weight_global_scale")
    if whole is not None:
        expect_equal("weight_global_scale", whole.size, 1)
    group = _group_size(width, n["groups"], QuantizationSettings())
    return QuantizedLayout(shape=(n["out"], width), group=group)


def decode_fp4(t: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
    """Decode `q * s`, for NVFP4 divided by the global scale."""
    codes = FP4_DOUBLED[unpack_codes(t[".weight_packed"][rows], 4)]
    scales = read_scales(t[".weight_scale"][rows]) / np.float32(2)
    if ".weight_global_scale" in t:
        with np.errstate(divide="ignore", invalid="ignore"):
            scales = scales / t[".weight_global_scale"].astype(np.float32).reshape(())
    return codes, np.repeat(scales, layout.group, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """A format of `methods` (`quant_method` in the config).

    A tensor named `name + mark` belongs to the weight `name + weight`. `parts` are the dimension
    patterns of the tensors by suffix, `options` those of optional tensors.
    """

    methods: tuple[str, ...]
    mark: str
    weight: str = ".weight"
    parts: Mapping[str, str]
    describe: Describe
    decode: Decode
    options: Mapping[str, str] = field(default_factory=dict)


def _gguf_format(kind: BlockType) -> WeightFormat:
    """Return the format of a block type of GGUF; quantized tensors are named after it."""
    mark = f":{kind.name}"
    describe, decode = make_block_decoder(mark, kind)
    return WeightFormat(
        methods=(GGUF_METHOD,),
        mark=mark,
        weight="",
        parts={mark: "u8"},
        describe=describe,
        decode=decode,
    )


GGUF_METHOD = "gguf"
"""The method of a GGUF file, which needs no quantization config."""
_INVERSE, _PLAIN = make_scaled_decoder("_scale_inv"), make_scaled_decoder(".weight_scale")

WEIGHT_FORMATS = (
    WeightFormat(
        methods=("fp8",),
        mark="_scale_inv",
        weight="",
        parts={"": "f8", "_scale_inv": "scale"},
        describe=_INVERSE[0],
        decode=_INVERSE[1],
    ),
    WeightFormat(
        methods=("gptq",),
        mark=".qweight",
        parts={
            ".qweight": "i32[words, out]",
            ".qzeros": "i32[groups, zero_words]",
            ".scales": "float[groups, out]",
        },
        options={".g_idx": "i32[in]"},
        describe=describe_gptq,
        decode=decode_gptq,
    ),
    WeightFormat(
        methods=("awq",),
        mark=".qweight",
        parts={
            ".qweight": "i32[in, words]",
            ".qzeros": "i32[groups, words]",
            ".scales": "float[groups, out]",
        },
        describe=describe_awq,
        decode=decode_awq,
    ),
    WeightFormat(
        methods=("compressed-tensors",),
        mark=".weight_shape",
        parts={
            ".weight_shape": "int[2]",
            ".weight_packed": "i32[out, words]",
            ".weight_scale": "float",
        },
        options={".weight_zero_point": "i32[zero_words, groups]", ".weight_g_idx": "int[in]"},
        describe=describe_packed,
        decode=decode_packed,
    ),
    WeightFormat(
        methods=("compressed-tensors",),
        mark=".weight_packed",
        parts={".weight_packed": "u8[out, bytes]", ".weight_scale": "scale[out, groups]"},
        options={".weight_global_scale": "float"},
        describe=describe_fp4,
        decode=decode_fp4,
    ),
    WeightFormat(
        methods=("compressed-tensors", "fbgemm_fp8"),
        mark=".weight_scale",
        parts={".weight": "f8|i8", ".weight_scale": "scale"},
        options={".weight_zero_point": "i8"},
        describe=_PLAIN[0],
        decode=_PLAIN[1],
    ),
    WeightFormat(
        methods=("mxfp4",),
        mark="_blocks",
        weight="",
        parts={"_blocks": "u8[experts, out, groups, bytes]", "_scales": "u8[experts, out, groups]"},
        describe=describe_mxfp4,
        decode=decode_mxfp4,
    ),
    *(
        WeightFormat(
            methods=("bitsandbytes",),
            mark=mark,
            weight="",
            parts={
                mark: "u8[state]",
                "": "any",
                ".absmax": "float|u8[blocks]",
                ".quant_map": "float[16]",
            },
            options={".nested_absmax": "float[outer]", ".nested_quant_map": "float[256]"},
            describe=describe_bnb4,
            decode=decode_bnb4,
        )
        for mark in QUANT_STATES
    ),
    WeightFormat(
        methods=("bitsandbytes",),
        mark=".SCB",
        parts={".weight": "i8[out, in]", ".SCB": "float[out]"},
        describe=describe_llm_int8,
        decode=decode_llm_int8,
    ),
    *map(_gguf_format, QUANTIZED_TYPES),
)
"""All formats. Formats with the same marker have different methods, and earlier markers take
precedence: a weight with `.weight_shape` also has `.weight_packed`."""
