"""The options of a compilation, and the graphs of a package."""

from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from specc.backend import WeightStorage
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.driver.option_kinds import (
    BOOLEAN_OPTION,
    INTEGER_OPTION,
    OPTIONAL_INTEGER,
    OVERRIDE_OPTION,
    PATH_OPTION,
    SEED_OPTION,
    SPEC_OPTIONS,
    STRING_LIST_OPTION,
    STRING_OPTION,
    Option,
    OptionType,
    is_non_negative_int,
    make_choice_option_type,
    make_int_parser,
)
from specc.driver.quantize_section import (
    KV_CACHE_TYPES,
    LM_HEAD_BITS,
    MAX_SAMPLES,
    UNQUANTIZED,
    QuantizeOptions,
)
from specc.driver.weight_sources import WeightSources
from specc.io.output_paths import FORCE_HELP
from specc.io.safe_read import escape_text
from specc.ir.graph import select_entries
from specc.transforms.quantization_plan import DEFAULT_GROUP_SIZE, QUANTIZATION_KINDS

PACKAGE_GRAPHS = ("score", "encode", "step", "generate")
"""Graphs that a package may contain: the full forward pass, the encoder, the decode step
(decoder-with-past), and a standalone generator with the complete generation loop."""


PROFILES = ("specc", "hf", "genai")
"""Export profiles: `specc`, `hf` (for Optimum and transformers.js), `genai` (for
onnxruntime-genai).
"""


@dataclass(frozen=True, kw_only=True)
class CompileOptions(WeightSources):
    """Options of `compile`, including the sources of parameter values.

    `dtype` is the storage type of float32 matrices: `f16`, `bf16`, `f32`, or "" for the dtype of
    the checkpoint. `weights_as` is the weight storage: `link`, `copy`, `inline`, or "" to choose
    automatically. `graphs` are the graphs of a package (see `PACKAGE_GRAPHS`). If `graphs` is
    empty, a single model file is written. `io_names` is the export profile
    (`specc.driver.genai_config_and_export_profiles`). `generation_config` contains the settings of
    the `generate` graph (`specc.decode.generation_settings`). `precision` overrides the spec's
    `quantize` section. `for_external_quantization` prepares the model for external quantizers.
    """

    output: str
    target: str = "ort-cpu"
    opset: int = 0
    graph: str = ""
    taps: tuple[str, ...] = ()
    inline_defaults: bool = False
    weights_as: WeightStorage | Literal[""] = ""
    dtype: str = ""
    graphs: tuple[str, ...] = ()
    io_names: str = "specc"
    generation_config: Mapping[str, object] = field(default_factory=dict)
    precision: QuantizeOptions = field(default_factory=QuantizeOptions)
    for_external_quantization: bool = False
    hash: str = "header"
    force: bool = False
    no_load: bool = False

    @property
    def writes_standalone_generator(self) -> bool:
        """Return True if the output is a single model file with the `generate` graph."""
        return self.graphs == ("generate",) and self.output.endswith(".onnx")

    @property
    def writes_package(self) -> bool:
        """Return True if the output is a package directory."""
        return bool(self.graphs) and not self.writes_standalone_generator


def parse_graph_names(names_or_text: object) -> tuple[str, ...]:
    """Parse the names of package graphs: a list, a comma-separated string, or `all`. Raise E0754
    for an unknown graph name.
    """
    if names_or_text == "all":
        return PACKAGE_GRAPHS
    items = names_or_text.split(",") if isinstance(names_or_text, str) else names_or_text
    names = items if isinstance(items, list | tuple | set | frozenset) else (items,)
    for name in names:
        if name not in PACKAGE_GRAPHS:
            raise_error(
                "E0754",
                f"unknown graph `{escape_text(name)[:60]}`, expected "
                f"{', '.join(PACKAGE_GRAPHS)} or `all`",
            )
    return tuple(graph for graph in PACKAGE_GRAPHS if graph in names)


def _parse_graphs(text: str) -> tuple[str, ...]:
    try:
        return parse_graph_names(text)
    except SpeccError as failed:
        raise ArgumentTypeError(failed.diagnostics[0].title) from None


TARGETS = ("onnx", "ort-cpu", "ort-cuda", "openvino")
WEIGHTS_AS_OPTION = make_choice_option_type(("link", "copy", "inline"))

QUANTIZE_OPTIONS: Mapping[str, Option] = {
    "quantize": Option(
        make_choice_option_type((*QUANTIZATION_KINDS, UNQUANTIZED)),
        "",
        "weight quantization: int8 (W8A8, per-channel weight scales, dynamic per-token activation "
        "scales), int8-weights and int4 (weight-only, group-wise scales), int8-tensor (recurrent "
        "layers with per-tensor activation scales); none overrides the spec",
    ),
    "quantize_exclude": Option(
        STRING_LIST_OPTION,
        "PATTERN",
        "do not quantize weights whose name or scope matches, for example lm_head or layers.0.*",
    ),
    "group_size": Option(
        OPTIONAL_INTEGER,
        "N",
        f"group size of int4 and int8-weights (default: {DEFAULT_GROUP_SIZE})",
    ),
    "lm_head_bits": Option(
        OptionType(
            'one of 8, 4, "none"',
            lambda value: isinstance(value, int | str) and str(value) in ("", *LM_HEAD_BITS),
            {"choices": LM_HEAD_BITS, "default": ""},
            str,
        ),
        "",
        "with int4: precision of the output projection (default: 8)",
    ),
    "quantize_all": Option(
        OVERRIDE_OPTION,
        "",
        "with int4: also quantize small linear layers and the first attention layer to 4 bits",
    ),
    "fold_norms": Option(
        OVERRIDE_OPTION,
        "",
        "fold norm weights into the following linear layers before quantization, for models with "
        "outlier channels",
    ),
    "calibration_samples": Option(
        OptionType(
            "None or a number of sequences",
            lambda value: value is None or is_non_negative_int(value),
            {"type": make_int_parser(0, MAX_SAMPLES, "a number of sequences")},
            OPTIONAL_INTEGER.convert,
        ),
        "N",
        "with int4 or --kv-cache: number of self-generated calibration sequences (default: 64; 0: "
        "round-to-nearest without calibration)",
    ),
    "calibration_data": Option(
        PATH_OPTION,
        "FILE",
        "with int4 or --kv-cache: file with calibration inputs, .npz or JSON Lines",
    ),
    "kv_cache": Option(
        make_choice_option_type(KV_CACHE_TYPES),
        "",
        "with --graphs step: quantize the KV cache with scales from self-generated data or "
        "--calibration-data; none overrides the spec",
    ),
}
"""The command-line options that set the fields of `QuantizeOptions`."""
COMPILE_OPTIONS: Mapping[str, Option] = {
    "graphs": Option(
        # `parse_graph_names` checks the values that Python callers pass
        OptionType("graphs", lambda value: True, {"type": _parse_graphs}, parse_graph_names),
        "GRAPHS",
        "compile a package with these graphs, comma-separated: score (full forward pass), "
        "encode and step (encoder, decoder with past), generate (standalone generator), or "
        "all; generate alone may be a single .onnx file",
        extra_arguments={"default": ()},
    ),
    "io_names": Option(
        STRING_OPTION,
        "",
        "naming convention of inputs and outputs: specc (default), hf (Optimum and "
        "transformers.js) or genai (onnxruntime-genai)",
        extra_arguments={"choices": PROFILES, "default": "specc"},
    ),
    "weights": Option(
        PATH_OPTION, "FILE|DIR", "load weights from a safetensors file or a checkpoint directory"
    ),
    "adapter": Option(
        PATH_OPTION, "DIR|FILE", "merge a LoRA adapter (peft), or load a language adapter (MMS)"
    ),
    "init": Option(SEED_OPTION, "SEED", "initialize all weights randomly with this seed"),
    "init_missing": Option(
        SEED_OPTION,
        "SEED",
        "if the checkpoint has no weights for the task head, initialize them randomly with this "
        "seed",
    ),
    "target": Option(
        STRING_OPTION,
        "",
        "target runtime: ONNX Runtime on CPU (ort-cpu, default) or CUDA (ort-cuda), OpenVINO, "
        "or any runtime (onnx)",
        extra_arguments={"choices": TARGETS, "default": "ort-cpu"},
    ),
    "opset": Option(INTEGER_OPTION, "N", "ONNX opset, 17 to 26 (default: chosen by the target)"),
    "taps": Option(
        STRING_LIST_OPTION,
        "PATTERN",
        "add outputs for the intermediate values in this scope, for example layers.*.attn",
        "--tap",
    ),
    "inline_defaults": Option(
        BOOLEAN_OPTION, "", "remove optional inputs and compute their defaults inside the model"
    ),
    **QUANTIZE_OPTIONS,
    "for_external_quantization": Option(
        BOOLEAN_OPTION,
        "",
        "with --target onnx: avoid operators that external quantization tools misinterpret",
    ),
    "weights_as": Option(
        WEIGHTS_AS_OPTION._replace(
            accepts=lambda value: WEIGHTS_AS_OPTION.accepts(value) or value == "auto"
        ),
        "",
        "link: external data in the checkpoint; copy: external data next to the model; inline: "
        "inside the model (default: automatic)",
    ),
    "dtype": Option(
        make_choice_option_type(("f32", "f16", "bf16")),
        "",
        "dtype of the stored weight matrices; --target ort-cuda also computes in mixed precision",
    ),
    "hash": Option(
        make_choice_option_type(("header", "full"), "header"),
        "",
        "integrity check of external weights at load time: size and header (default), or the "
        "full content",
    ),
    "force": Option(BOOLEAN_OPTION, "", FORCE_HELP),
    "no_load": Option(BOOLEAN_OPTION, "", "do not test that ONNX Runtime loads the compiled model"),
}
"""The options of `compile`, keyed by name."""
ARGUMENT_TYPES: Mapping[str, OptionType] = {
    **dict.fromkeys(("spec", "output"), PATH_OPTION),
    **{name: option.kind for name, option in {**SPEC_OPTIONS, **COMPILE_OPTIONS}.items()},
}
"""The option type that validates each Python argument of `check` and `compile`, keyed by name."""


COMPILE_GROUPS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights", "adapter", "init", "init_missing", "weights_as", "dtype", "hash"),
    "quantization": (*QUANTIZE_OPTIONS, "for_external_quantization"),
    "output": (
        *("graphs", "io_names", "target", "opset", "taps", "inline_defaults", "force", "no_load"),
    ),
}
"""The names of options in `COMPILE_OPTIONS`, keyed by the option's group in the `--help` output."""


def build_compile_options(arguments: Mapping[str, Any]) -> CompileOptions:
    """Build `CompileOptions` from validated arguments of the Python API or the command line."""
    values = {
        n: ARGUMENT_TYPES[n].convert(value) if n in ARGUMENT_TYPES else value
        for n, value in arguments.items()
    }
    compile_values, quantize_values = (
        select_entries(values, {f.name for f in fields(kind)})
        for kind in (CompileOptions, QuantizeOptions)
    )
    return CompileOptions(**compile_values, precision=QuantizeOptions(**quantize_values))
