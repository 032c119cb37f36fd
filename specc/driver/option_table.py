"""The table of compile options: kind, placeholder, help and default of each.

The command line declares its flags by it, Python checks its arguments by it, and both make
`CompileOptions` of the values.
"""

import os
from argparse import ArgumentTypeError, _ActionsContainer
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from typing import Any, NamedTuple

from specc.diagnostics.diagnostic import Diagnostic, Failed
from specc.driver.compile_options import PROFILES, CompileOptions, parse_graph_names
from specc.driver.quantize_section import (
    KV_CACHE_TYPES,
    LM_HEAD_BITS,
    MAX_SAMPLES,
    UNQUANTIZED,
    QuantizeOptions,
)
from specc.io.output_paths import FORCE_HELP
from specc.io.safe_read import escape_text
from specc.transforms.quantization_plan import DEFAULT_GROUP_SIZE, QUANTIZATION_KINDS


class OptionKind(NamedTuple):
    """Kind of option: what Python callers may give, in words and as a predicate; the
    declaration for `argparse`; and the conversion to the value that `CompileOptions` holds.
    """

    words: str
    fits: Callable[[object], bool]
    declaration: Mapping[str, Any]
    convert: Callable[[Any], Any] = lambda value: value


class Option(NamedTuple):
    """One option. `flag` is set where it is not the name, `more` are further arguments of the
    declaration, such as its default.
    """

    kind: OptionKind
    placeholder: str
    help: str
    flag: str = ""
    more: Mapping[str, Any] = {}


def parse_bounded_int(least: int, most: int, what: str) -> Callable[[str], int]:
    """Return a parser of integers within bounds; `what` names them in messages."""

    def parse(text: str) -> int:
        # `isdigit` accepts digits of other scripts, `int` no more than 4300 digits
        plain = text.isascii() and text.isdigit() and len(text) <= 20
        if not plain or not least <= int(text) <= most:
            raise ArgumentTypeError(f"{what} is a whole number from {least} to {most}")
        return int(text)

    return parse


parse_seed = parse_bounded_int(0, 2**64 - 1, "a seed")


def _parse_graphs(text: str) -> tuple[str, ...]:
    try:
        return parse_graph_names(text)
    except Failed as failed:
        raise ArgumentTypeError(failed.diagnostics[0].title) from None


def _is_path(value: object) -> bool:
    # bytes are paths too, but file names are shown in messages, so they must be str
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return isinstance(value, str)


def _is_int(value: object) -> bool:
    # bool is an Integral; nobody means the seed 1 by True
    return not isinstance(value, bool) and isinstance(value, Integral)


def _is_count(value: object) -> bool:
    return not isinstance(value, bool) and value in range(2**31)


def _is_texts(value: object) -> bool:
    # a str is a sequence of str as well
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and all(isinstance(item, str) for item in value)
    )


def _is_int_or_none(value: object) -> bool:
    return value is None or _is_int(value)


def _as_int(value: Any) -> int | None:
    return None if value is None else int(value)


def one_of(words: Iterable[str], default: str = "") -> OptionKind:
    """Return the kind of one of some words; Python callers may give the empty string too."""
    words = tuple(words)
    return OptionKind(
        "one of " + ", ".join(f'"{word}"' for word in words),
        lambda value: isinstance(value, str) and value in ("", *words),
        {"choices": words, "default": default},
    )


PATH_OPTION = OptionKind(
    "a path (str or `Path`)", _is_path, {"default": ""}, lambda v: os.fspath(v) if v else ""
)
TEXT_OPTION = OptionKind("a string", lambda value: isinstance(value, str), {"default": ""})
INTEGER_OPTION = OptionKind("an integer", _is_int, {"type": int, "default": 0}, int)
BOOLEAN_OPTION = OptionKind(
    "True or False", lambda value: isinstance(value, bool), {"action": "store_true"}
)
OVERRIDE_OPTION = BOOLEAN_OPTION._replace(
    declaration={"action": "store_true", "default": None}, convert=lambda value: value or None
)
"""A switch that overrides the spec: False is the default, then the spec decides."""
OPTIONAL_INTEGER = OptionKind("None or an integer", _is_int_or_none, {"type": int}, _as_int)
SEED_OPTION = OPTIONAL_INTEGER._replace(declaration={"type": parse_seed})
TEXTS_OPTION = OptionKind(
    "a list of strings", _is_texts, {"action": "append", "default": []}, tuple
)

TARGETS = ("onnx", "ort-cpu", "ort-cuda", "openvino")
WEIGHTS_AS_OPTION = one_of(("link", "copy", "inline"))

SPEC_OPTIONS: Mapping[str, Option] = {
    "own": Option(TEXT_OPTION, "FILE", "use this spec for a checkpoint directory", "--spec"),
    "config": Option(PATH_OPTION, "FILE|DIR", "read config values from a config.json"),
    "set": Option(
        OptionKind(
            "None or a mapping of config names to values",
            lambda value: value is None or isinstance(value, Mapping),
            TEXTS_OPTION.declaration,
        ),
        "KEY=VALUE",
        "set a config value, for example layers=2",
    ),
    "context_length": Option(
        OptionKind(
            "a number of tokens, or 0",
            _is_count,
            {"type": parse_bounded_int(1, 2**31 - 1, "a length of texts"), "default": 0},
        ),
        "N",
        "context length for dynamic and longrope RoPE scaling",
    ),
    "graph": Option(TEXT_OPTION, "NAME", "select a graph of the spec"),
}
"""How a spec is opened."""
QUANTIZE_OPTIONS: Mapping[str, Option] = {
    "quantize": Option(
        one_of((*QUANTIZATION_KINDS, UNQUANTIZED)),
        "",
        "weight quantization: int8 (W8A8, per-channel weight scales, dynamic per-token activation "
        "scales), int8-weights and int4 (weight-only, group-wise scales), int8-tensor (recurrent "
        "layers with per-tensor activation scales); none overrides the spec",
    ),
    "quantize_exclude": Option(
        TEXTS_OPTION,
        "PATTERN",
        "do not quantize weights that match this name or scope: lm_head, layers.0.*",
    ),
    "group_size": Option(
        OPTIONAL_INTEGER, "N", f"group size of int4 and int8-weights (default {DEFAULT_GROUP_SIZE})"
    ),
    "lm_head_bits": Option(
        OptionKind(
            'one of 8, 4, "none"',
            lambda value: isinstance(value, int | str) and str(value) in ("", *LM_HEAD_BITS),
            {"choices": LM_HEAD_BITS, "default": ""},
            str,
        ),
        "",
        "with int4: precision of the output projection (default: 8)",
    ),
    "quantize_all": Option(
        OVERRIDE_OPTION, "", "with int4: 4 bits for small linear layers and the first attention too"
    ),
    "fold_norms": Option(
        OVERRIDE_OPTION,
        "",
        "fold norm weights into the following linear layers before quantization, for models with "
        "outlier channels",
    ),
    "calibration_samples": Option(
        OptionKind(
            "None or a number of sequences",
            lambda value: value is None or _is_count(value),
            {"type": parse_bounded_int(0, MAX_SAMPLES, "a number of texts")},
            _as_int,
        ),
        "N",
        "with int4 or --kv-cache: number of self-generated calibration sequences; 0: round to "
        "nearest",
    ),
    "calibration_data": Option(
        PATH_OPTION, "FILE", "with int4 or --kv-cache: calibration inputs, .npz or JSON Lines"
    ),
    "kv_cache": Option(
        one_of(KV_CACHE_TYPES),
        "",
        "with --graphs step: quantize the KV cache with scales from self-generated data or "
        "--calibration-data; none overrides the spec",
    ),
}
"""The fields of `QuantizeOptions`."""
COMPILE_OPTIONS: Mapping[str, Option] = {
    "graphs": Option(
        # `parse_graph_names` checks what Python gives
        OptionKind("graphs", lambda value: True, {"type": _parse_graphs}, parse_graph_names),
        "PARTS",
        "compile a package of these graphs, comma-separated: score (full forward pass), encode and "
        "step (encoder, decoder with past), generate (standalone generator), or all; generate "
        "alone may be a single .onnx file",
        more={"default": ()},
    ),
    "io_names": Option(
        TEXT_OPTION,
        "",
        "naming convention of inputs and outputs: specc, Optimum and transformers.js (hf), or "
        "onnxruntime-genai",
        more={"choices": PROFILES, "default": "specc"},
    ),
    "weights": Option(
        PATH_OPTION, "FILE|DIR", "load weights from safetensors or a checkpoint directory"
    ),
    "adapter": Option(
        PATH_OPTION, "DIR|FILE", "merge a LoRA adapter (peft), or load a language adapter (MMS)"
    ),
    "init": Option(SEED_OPTION, "SEED", "initialize weights randomly with this seed"),
    "init_missing": Option(
        SEED_OPTION, "SEED", "initialize weights of a head that the checkpoint lacks with this seed"
    ),
    "target": Option(
        TEXT_OPTION,
        "",
        "target runtime: any (onnx), ONNX Runtime on CPU (default) or CUDA, or OpenVINO",
        more={"choices": TARGETS, "default": "ort-cpu"},
    ),
    "opset": Option(INTEGER_OPTION, "N", "ONNX opset, 17 to 26 (default: chosen by the target)"),
    "taps": Option(
        TEXTS_OPTION,
        "PATTERN",
        "output intermediate values with this scope too: layers.*.attn",
        "--tap",
    ),
    "inline_defaults": Option(BOOLEAN_OPTION, "", "compute inputs with a default inside the model"),
    **QUANTIZE_OPTIONS,
    "for_quantizers": Option(
        BOOLEAN_OPTION,
        "",
        "with --target onnx: prepare the model for other quantization tools (no operators that "
        "they misinterpret)",
    ),
    "weights_as": Option(
        WEIGHTS_AS_OPTION._replace(
            fits=lambda value: WEIGHTS_AS_OPTION.fits(value) or value == "auto"
        ),
        "",
        "link: external data in the checkpoint; copy: external data next to the model; inline: "
        "inside the model (default: automatic)",
    ),
    "dtype": Option(
        one_of(("f32", "f16", "bf16")),
        "",
        "element type of stored matrices; with --target ort-cuda mixed precision",
    ),
    "hash": Option(
        one_of(("header", "full"), "header"),
        "",
        "integrity check of weights at load: size and header, or the full content",
    ),
    "force": Option(BOOLEAN_OPTION, "", FORCE_HELP),
    "no_load": Option(
        BOOLEAN_OPTION, "", "do not load the compiled model in ONNX Runtime as a check"
    ),
}
"""How a model is compiled."""
ARGUMENT_KINDS: Mapping[str, OptionKind] = {
    **dict.fromkeys(("spec", "model", "output"), PATH_OPTION),
    "execution_provider": TEXT_OPTION,
    "threads": INTEGER_OPTION,
    **{name: option.kind for name, option in {**SPEC_OPTIONS, **COMPILE_OPTIONS}.items()},
}
"""The kind of each argument of `check`, `compile` and `load`."""


COMPILE_GROUPS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights", "adapter", "init", "init_missing", "weights_as", "dtype", "hash"),
    "quantization": (*QUANTIZE_OPTIONS, "for_quantizers"),
    "output": (
        *("graphs", "io_names", "target", "opset", "taps", "inline_defaults", "force", "no_load"),
    ),
}
"""The options of `COMPILE_OPTIONS` as the help groups them."""


def add_options(parser: _ActionsContainer, options: Mapping[str, Option]) -> None:
    """Declare the flags of a table."""
    for name, option in options.items():
        shown = {"metavar": option.placeholder} if option.placeholder else {}
        flags = (option.flag or f"--{name.replace('_', '-')}").split()
        given = {**option.kind.declaration, **shown, **option.more}
        parser.add_argument(*flags, dest=name, help=option.help, **given)


def check_arguments(**given: object) -> None:
    """Raise E0820 for every argument of `ARGUMENT_KINDS` that is not of its kind."""
    wrong = [
        n for n, value in given.items() if n in ARGUMENT_KINDS and not ARGUMENT_KINDS[n].fits(value)
    ]
    if wrong:
        # a repr may be arbitrarily long
        shown = {name: escape_text(repr(given[name]))[:60] for name in wrong}
        titles = [f"`{name}` is {ARGUMENT_KINDS[name].words}, not {shown[name]}" for name in wrong]
        raise Failed(*(Diagnostic("E0820", title) for title in titles))


def build_compile_options(given: Mapping[str, Any]) -> CompileOptions:
    """Return the options of `compile` from checked arguments, of Python or the command line."""
    values = {
        n: ARGUMENT_KINDS[n].convert(value) if n in ARGUMENT_KINDS else value
        for n, value in given.items()
    }
    own, quantize = (
        {f.name: values[f.name] for f in fields(kind) if f.name in values}
        for kind in (CompileOptions, QuantizeOptions)
    )
    return CompileOptions(**own, precision=QuantizeOptions(**quantize))
