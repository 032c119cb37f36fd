"""Formats of quantized weights: the tensors that make one weight. Each format is an entry of
`WEIGHT_FORMATS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specc.weights.formats.packed_decoders import (
    decode_awq,
    decode_fp4,
    decode_gptq,
    decode_packed,
    describe_awq,
    describe_fp4,
    describe_gptq,
    describe_packed,
)
from specc.weights.formats.quantized_decoders import (
    QUANT_STATES,
    Decode,
    Describe,
    decode_bnb4,
    decode_llm_int8,
    decode_mxfp4,
    describe_bnb4,
    describe_llm_int8,
    describe_mxfp4,
    make_scaled_decoder,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """A format of `methods` (`quant_method` in the config).

    A tensor named `name + mark` belongs to the weight `name + weight`. `parts` are the dimension
    patterns of the tensors by suffix, `options` those of optional tensors.
    """

    methods: tuple[str, ...]
    mark: str
    weight: str
    parts: Mapping[str, str]
    describe: Describe
    decode: Decode
    options: Mapping[str, str] = field(default_factory=dict)


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
        weight=".weight",
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
        weight=".weight",
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
        weight=".weight",
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
        weight=".weight",
        parts={".weight_packed": "u8[out, bytes]", ".weight_scale": "scale[out, groups]"},
        options={".weight_global_scale": "float"},
        describe=describe_fp4,
        decode=decode_fp4,
    ),
    WeightFormat(
        methods=("compressed-tensors", "fbgemm_fp8"),
        mark=".weight_scale",
        weight=".weight",
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
        weight=".weight",
        parts={".weight": "i8[out, in]", ".SCB": "float[out]"},
        describe=describe_llm_int8,
        decode=decode_llm_int8,
    ),
)
"""All formats. Formats with the same marker have different methods, and earlier markers take
precedence: a weight with `.weight_shape` also has `.weight_packed`."""
