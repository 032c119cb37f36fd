"""Read the `quantization_config` of a checkpoint with quantized weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.frontend.json_parser_with_spans import JsonMember, JsonObject
from specc.huggingface.audio_and_ctc_processor_files import get_object_or_empty
from specc.io.json_io import Json
from specc.io.safe_read import escape_text
from specc.weights.formats.gguf_header_and_blocks import GGUF_METHOD
from specc.weights.formats.quantized_layout import QuantizationSettings
from specc.weights.quantized_checkpoint import WEIGHT_FORMATS

QUANTIZATION_KEY = "quantization_config"
QUANTIZATION_METHODS = tuple(
    method
    for method in dict.fromkeys(m for format in WEIGHT_FORMATS for m in format.methods)
    if method != GGUF_METHOD
)
"""Supported values of `quant_method`."""
ACTIVATIONS_NOTE = (
    "the checkpoint also specifies quantized activations, but activations are computed in "
    "float32, so results differ slightly from other runtimes"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointQuantization:
    """The quantization method of a checkpoint, and whether activations are also quantized."""

    method: str
    settings: QuantizationSettings
    quantizes_activations: bool = False

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return remarks about activation quantization. The compiled model does not quantize
        activations.
        """
        return (ACTIVATIONS_NOTE,) if self.quantizes_activations else ()


GGUF_QUANTIZATION = CheckpointQuantization(method=GGUF_METHOD, settings=QuantizationSettings())
"""The quantization of GGUF files, in which each tensor has a separate quantization type."""
COMPRESSED_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
    "dense",
)
"""Supported values of `format` in configs of compressed-tensors."""


class _UnsupportedSettingError(Exception):
    """Raised if a quantization setting is not supported. The message names the setting."""


def read_quantization_config(config: JsonObject | None) -> CheckpointQuantization | None:
    """Read the quantization of a checkpoint, or return None if the weights are not quantized.

    Raise E0421 if the method or a setting is not supported.
    """
    member = _find_section(config) if config is not None else None
    if member is None:
        return None
    fields = member.value.to_python() if isinstance(member.value, JsonObject) else {}
    assert isinstance(fields, dict)
    method = fields.get("quant_method")
    if not method and (fields.get("load_in_4bit") or fields.get("load_in_8bit")):
        method = "bitsandbytes"  # configs from before transformers 4.32 do not name the method
    if not isinstance(method, str) or method not in _METHOD_READERS:
        _raise_unsupported(member, f" by {escape_text(method)[:40]}" if method else "")
    try:
        settings, quantizes_activations = _METHOD_READERS[method](fields)
        return CheckpointQuantization(
            method=method, settings=settings, quantizes_activations=quantizes_activations
        )
    except _UnsupportedSettingError as error:
        _raise_unsupported(member, f" by {method} with {escape_text(error)}")


def _find_section(data: JsonObject) -> JsonMember | None:
    """Return the quantization section of a config, or of its sentence-transformers encoder."""
    for path, member in data.iterate_members():
        if path.rpartition(".")[2] == QUANTIZATION_KEY and not member.is_null:
            return member
    return None


def _raise_unsupported(member: JsonMember, method_text: str) -> NoReturn:
    raise_error(
        "E0421",
        f"the weights of this checkpoint are quantized{method_text}, which is not supported",
        member.span,
        notes=[f"supported: {', '.join(QUANTIZATION_METHODS)}"],
        helps=["use the original checkpoint with 16- or 32-bit weights"],
    )


def _get_integer(fields: Mapping[str, Json], key: str) -> int:
    value = fields.get(key)
    return value if isinstance(value, int) else 0


def _require_value(fields: Mapping[str, Json], key: str, *supported: Json) -> Json:
    """Return the value of `key`, or the first supported value if the value is null. Raise an error
    if the value is not in `supported`.
    """
    value = fields.get(key)
    if isinstance(value, str):
        value = value.lower()
    if value is not None and value not in supported:
        raise _UnsupportedSettingError(f'"{key}": {str(value)[:40]!r}')
    return supported[0] if value is None else value


def _read_fp8(fields: Mapping[str, Json]) -> tuple[QuantizationSettings, bool]:
    value = fields.get("weight_block_size")
    block_shape = _parse_block_shape(value)
    if value is not None and block_shape is None:
        raise _UnsupportedSettingError(f'"weight_block_size": {str(value)[:40]}')
    _require_value(fields, "activation_scheme", "dynamic", "static")
    return QuantizationSettings(block_shape=block_shape), True


def _read_gptq(fields: Mapping[str, Json]) -> tuple[QuantizationSettings, bool]:
    version = _require_value(fields, "checkpoint_format", "gptq", "gptq_v2")
    settings = QuantizationSettings(
        bits=_get_integer(fields, "bits"),
        group_size=_get_integer(fields, "group_size"),
        zero_offset=1 if version == "gptq" else 0,
    )
    return settings, False


def _read_awq(fields: Mapping[str, Json]) -> tuple[QuantizationSettings, bool]:
    _require_value(fields, "version", "gemm")
    _require_value(fields, "bits", 4)
    return QuantizationSettings(group_size=_get_integer(fields, "group_size")), False


def _list_schemes(fields: Mapping[str, Json]) -> list[tuple[str, dict[str, Json]]]:
    """Return the weight and activation quantization schemes of all layer groups."""
    return [
        (key, value)
        for group in get_object_or_empty(fields, "config_groups").values()
        if isinstance(group, dict)
        for key, value in group.items()
        if isinstance(value, dict)
    ]


def _read_compressed_tensors(fields: Mapping[str, Json]) -> tuple[QuantizationSettings, bool]:
    _require_value(fields, "format", *COMPRESSED_FORMATS)
    # sparsity formats and transforms change the meaning of the stored weights
    for key, neutral_key in (("sparsity_config", "format"), ("transform_config", "config_groups")):
        if get_object_or_empty(fields, key).get(neutral_key) not in (None, "dense", {}):
            raise _UnsupportedSettingError(f'"{key}"')
    schemes = _list_schemes(fields)
    weights = [scheme for key, scheme in schemes if key == "weights"]

    # keep only the settings on which all groups agree
    first_scheme = weights[0] if weights else {}
    common = {
        k: v for k, v in first_scheme.items() if all(v == scheme.get(k) for scheme in weights)
    }
    settings = QuantizationSettings(
        block_shape=_parse_block_shape(common.get("block_structure")),
        bits=_get_integer(common, "num_bits"),
        group_size=_get_integer(common, "group_size"),
    )
    return settings, any("activations" in key for key, _ in schemes)


def _parse_block_shape(block: Json) -> tuple[int, int] | None:
    match block:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    return None


_METHOD_READERS: Mapping[str, Callable[[Mapping[str, Json]], tuple[QuantizationSettings, bool]]] = {
    "fp8": _read_fp8,
    "gptq": _read_gptq,
    "awq": _read_awq,
    "compressed-tensors": _read_compressed_tensors,
    "bitsandbytes": lambda fields: (QuantizationSettings(), bool(fields.get("load_in_8bit"))),
    "mxfp4": lambda _: (QuantizationSettings(), False),
    "fbgemm_fp8": lambda _: (QuantizationSettings(), True),
}
"""The function that reads the settings of each quantization method. Each function also returns True
if the checkpoint quantizes activations.
"""
