"""Merge the `quantize { ... }` section with the quantization options."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Literal, TypeAlias

from specc.diagnostics.diagnostic import Span, raise_error
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.suggest import suggest_similar_name
from specc.driver.quantize_option_errors import (
    OPTIONAL_ENTRIES,
    check_ineffective_flags,
    check_weight_patterns,
    get_requested_option_labels,
    list_weight_names,
    parse_integer_setting,
    parse_quantize_choice,
    raise_quantize_entry_error,
)
from specc.driver.weights_section_and_load_transforms import resolve_referenced_file
from specc.frontend.elaboration_context import SpecNamespace
from specc.frontend.spec_modules import Program
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.ir.ops.quantized import MAX_GROUP_SIZE, MIN_GROUP_SIZE
from specc.syntax import ast
from specc.transforms.quantization_plan import (
    DEFAULT_GROUP_SIZE,
    QUANTIZATION_KINDS,
    QuantizationKind,
    QuantizationOptions,
    find_unmatched_patterns,
)

KINDS_BY_NAME: Mapping[str, QuantizationKind] = {kind: kind for kind in QUANTIZATION_KINDS}
UNQUANTIZED = "none"
LM_HEAD_BITS = ("8", "4", UNQUANTIZED)
"""Valid values of `lm_head_bits`."""
Head: TypeAlias = QuantizationKind | Literal["none", ""]
LM_HEAD_KINDS: Mapping[str, Head] = {"8": "int8", "4": "int4", UNQUANTIZED: "none", "": ""}
CALIBRATION_SETTINGS = ("calibration_samples", "calibration_data")
"""The settings that select the source of calibration data. At most one of these settings may be
set.
"""
NUMBER_SETTINGS = ("group_size", "lm_head_bits", "all")
QUANTIZE_SETTINGS = (
    "default",
    "exclude",
    *QUANTIZATION_KINDS,
    *NUMBER_SETTINGS,
    *CALIBRATION_SETTINGS,
    "kv_cache",
    "fold_norms",
)
"""The settings of a spec's `quantize` section."""
FOREIGN_SETTING_NAMES = {
    **dict.fromkeys(("keep", "ignore", "skip"), "exclude"),
    "block": "group_size",
    "head": "lm_head_bits",
    "cache": "kv_cache",
    "samples": "calibration_samples",
    "calibrate": "calibration_data",
}
"""Names that other tools use for `quantize` settings, for suggestions."""
GROUP_SIZES = f"a power of two from {MIN_GROUP_SIZE} to {MAX_GROUP_SIZE}"
MAX_SAMPLES = 100_000
"""Maximum number of self-generated calibration sequences."""
BOOLEAN_VALUES = ("true", "false")
KV_CACHE_TYPES = ("int8", UNQUANTIZED)
"""Storage dtypes of the KV cache, where `none` means no quantization."""


def get_option_flag(name: str) -> str:
    """Return the command-line flag of a setting, such as `--group-size` for `group_size`."""
    if name == "default":
        return "--quantize"
    prefix = "quantize-" if name in ("exclude", "all") else ""
    return f"--{prefix}{name.replace('_', '-')}"


@immutable_dataclass(slots=False, kw_only=True)
class QuantizeOptions:
    """The quantization options of a call, named like the parameters of `specc.compile`. An empty
    string, an empty tuple or None means that the option is not set.
    """

    quantize: str = ""
    quantize_exclude: tuple[str, ...] = ()
    group_size: int | None = None
    lm_head_bits: str = ""
    quantize_all: bool | None = None
    calibration_samples: int | None = None
    calibration_data: str = ""
    kv_cache: str = ""
    fold_norms: bool | None = None

    def is_set(self, setting: str) -> bool:
        """Return True if the caller has set the option for a setting of the `quantize` section."""
        name = get_option_flag(setting).removeprefix("--").replace("-", "_")
        value: object = vars(self).get(name)
        return value is not None and value not in ("", ())


@immutable_dataclass()
class CalibrationSource:
    """The source of calibration inputs: `num_samples` self-generated sequences, the file
    `data_file`, or the default source if neither field is set. `flag` is the command-line flag that
    sets the source, or "" if the source is set in the spec, at `span`.
    """

    num_samples: int | None = None
    data_file: str = ""
    flag: str = ""
    span: Span | None = None


@immutable_dataclass()
class KVCacheOption:
    """The storage dtype of the KV cache, or "" for no quantization. `span` is the setting in the
    spec, or None if the dtype is set by a command-line option.
    """

    dtype: str = ""
    span: Span | None = None


@immutable_dataclass(kw_only=True)
class QuantizeRequest:
    """The quantization request of the spec, merged with the options.

    `weight_options` is None if no weight is quantized. `pattern_spans` are the source spans of the
    spec's patterns, and `remarks` lists the entries that options override. `calibration` is the
    source of calibration data, and `kv_cache` is the KV cache dtype. `fold_norms` is true if norm
    weights are folded into linear layers. `option_labels` maps entries to display names, for
    entries that may have no effect. `dequantize_checkpoint` is true if a quantized checkpoint is
    dequantized.
    """

    weight_options: QuantizationOptions | None = None
    option_labels: Mapping[str, str] = field(default_factory=dict)
    pattern_spans: Mapping[str, Span] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    calibration: CalibrationSource = CalibrationSource()
    kv_cache: KVCacheOption = KVCacheOption()
    fold_norms: bool = False
    dequantize_checkpoint: bool = False


def merge_quantize_options(program: Program, options: QuantizeOptions) -> QuantizeRequest:
    """Merge the spec's `quantize` section with the options.

    Raise E0201, E0858, E0950 or a file error if the `quantize` section is invalid, and E0753 if an
    option has no effect.
    """
    entries = _collect_quantize_entries(program)
    weight_options, pattern_spans = _read_section(entries)
    calibration = _choose_calibration(program, options)
    cache = _choose_cache(entries, options)
    remarks = tuple(_describe_overrides(entries, options))
    weight_options = (
        None if options.quantize == UNQUANTIZED else _apply_options(weight_options, options)
    )
    flags = {n: get_option_flag(n) for n in OPTIONAL_ENTRIES if options.is_set(n)}
    if weight_options is None:
        _check_quantization_requested(options, cache)
    else:
        check_ineffective_flags(weight_options, flags)
    fold_norms = parse_quantize_choice(entries, "fold_norms", BOOLEAN_VALUES) == "true"
    if options.fold_norms is not None:
        fold_norms = options.fold_norms
    return QuantizeRequest(
        weight_options=weight_options,
        option_labels=get_requested_option_labels(entries, flags),
        pattern_spans=pattern_spans,
        remarks=remarks,
        calibration=calibration,
        kv_cache=cache,
        fold_norms=fold_norms and weight_options is not None,
        dequantize_checkpoint=options.quantize == UNQUANTIZED,
    )


def check_quantize_options(
    program: Program, graph: Graph, iterate_sibling_graphs: Callable[[], Iterable[Graph]]
) -> None:
    """Raise E0850 if a pattern matches no weight, and the errors of `merge_quantize_options`."""
    request = merge_quantize_options(program, QuantizeOptions())
    if request.weight_options is None:
        return
    names = list_weight_names(graph)
    unmatched = find_unmatched_patterns(request.weight_options.patterns, names)
    check_weight_patterns(unmatched, names, request.pattern_spans, iterate_sibling_graphs)


def _collect_quantize_entries(program: Program) -> dict[str, ast.QuantizeSetting]:
    """Return the `quantize` entries, keyed by name. Entries of a derived spec override those of its
    base spec. Raise E0201 for unknown names.
    """
    entries: dict[str, ast.QuantizeSetting] = {}
    for item, _ in reversed(list(program.iterate_items(ast.QuantizeSection))):
        for entry in item.entries:
            if entry.name not in QUANTIZE_SETTINGS:
                choices = f"expected one of {', '.join(QUANTIZE_SETTINGS)}"
                name = FOREIGN_SETTING_NAMES.get(entry.name, entry.name)
                raise_error(
                    "E0201",
                    f"unknown entry `{escape_text(entry.name)}` of `quantize`",
                    entry.span,
                    "unknown entry",
                    helps=suggest_similar_name(name, QUANTIZE_SETTINGS, choices),
                )
            # append a derived spec's patterns to those of its base spec, because the last matching
            # pattern takes precedence
            entries.pop(entry.name, None)
            entries[entry.name] = entry
    return entries


def _read_section(
    entries: Mapping[str, ast.QuantizeSetting],
) -> tuple[QuantizationOptions | None, dict[str, Span]]:
    """Return the quantization request (None if no weight is quantized) and the pattern spans."""
    kind = parse_quantize_choice(entries, "default", (*QUANTIZATION_KINDS, UNQUANTIZED))
    head = parse_quantize_choice(entries, "lm_head_bits", LM_HEAD_BITS)
    quantizes_all_to_int4 = parse_quantize_choice(entries, "all", BOOLEAN_VALUES)
    excluded = entries["exclude"].values if "exclude" in entries else ()
    # `entries` keep the source order, because the last matching pattern takes precedence
    kind_patterns = [
        (pattern, KINDS_BY_NAME[name])
        for name, entry in entries.items()
        if name in KINDS_BY_NAME
        for pattern in entry.values
    ]
    patterns = (*excluded, *(pattern for pattern, _ in kind_patterns))
    pattern_spans = {p.value: p.span for p in patterns if p.span is not None}
    weight_options = QuantizationOptions(
        kind=KINDS_BY_NAME.get(kind),
        unquantized_patterns=tuple(p.value for p in excluded),
        kind_by_pattern=tuple((pattern.value, name) for pattern, name in kind_patterns),
        group_size=_read_group_size(entries),
        lm_head_kind=LM_HEAD_KINDS[head],
        quantizes_all_to_int4=quantizes_all_to_int4 == "true",
    )
    # `exclude` alone does not request quantization
    return (
        weight_options if weight_options.kind or weight_options.kind_by_pattern else None
    ), pattern_spans


def _choose_cache(
    entries: Mapping[str, ast.QuantizeSetting], options: QuantizeOptions
) -> KVCacheOption:
    """Return the KV cache dtype in the options or, if the options set none, in the spec.
    `--quantize none` disables KV cache quantization. Raise E0858 if the dtype is invalid.
    """
    entry = parse_quantize_choice(entries, "kv_cache", KV_CACHE_TYPES)
    if options.kv_cache or options.quantize == UNQUANTIZED:
        return KVCacheOption("" if options.kv_cache == UNQUANTIZED else options.kv_cache)
    return KVCacheOption(entry, entries["kv_cache"].span) if entry == "int8" else KVCacheOption()


def _choose_calibration(program: Program, options: QuantizeOptions) -> CalibrationSource:
    """Return the calibration source that the options set, or else the source that the most derived
    spec sets. Raise E0753 or E0950 if both samples and a file are set.
    """
    if all(map(options.is_set, CALIBRATION_SETTINGS)):
        raise_error(
            "E0753",
            "`--calibration-samples` and `--calibration-data` are mutually exclusive",
            helps=["remove one of them"],
        )
    flag = next(
        (get_option_flag(name) for name in CALIBRATION_SETTINGS if options.is_set(name)), ""
    )
    option_source = CalibrationSource(options.calibration_samples, options.calibration_data, flag)
    for item, module in program.iterate_items(ast.QuantizeSection):
        entries = {e.name: e for e in item.entries if e.name in CALIBRATION_SETTINGS}
        if len(entries) > 1:
            raise_error(
                "E0950",
                "`quantize` sets both `calibration_samples` and `calibration_data`",
                entries["calibration_data"].span,
                "conflicts with `calibration_samples`",
                notes=["calibration inputs are either self-generated or read from a file"],
                helps=["remove one of them"],
            )
        for entry in entries.values():
            # an invalid entry is an error even if an option overrides the entry
            if entry.name == "calibration_samples":
                spec_source = _read_samples(entry)
            else:
                spec_source = _read_calibration_file(entry, module)
            return option_source if flag else spec_source
    return option_source


def _read_samples(entry: ast.QuantizeSetting) -> CalibrationSource:
    """Read the number of self-generated samples. Raise E0858 if the number is invalid."""
    count = parse_integer_setting(entry)
    if count is None or count > MAX_SAMPLES:
        title = f"`calibration_samples` must be an integer from 0 to {MAX_SAMPLES}"
        raise_quantize_entry_error(entry, title, ("64",))
    return CalibrationSource(num_samples=count, span=entry.span)


def _read_calibration_file(entry: ast.QuantizeSetting, module: SpecNamespace) -> CalibrationSource:
    """Read the path of a calibration file. Raise E0858, E0802 or E0803 if the path is invalid."""
    if len(entry.values) != 1 or not entry.values[0].value:
        title = "`calibration_data` must be the path of a file with calibration inputs"
        raise_quantize_entry_error(entry, title, ('"texts.jsonl"',))
    path = resolve_referenced_file(
        module, entry.values[0], "the calibration inputs", "--calibration-data"
    )
    return CalibrationSource(data_file=str(path), span=entry.span)


def _read_group_size(entries: Mapping[str, ast.QuantizeSetting]) -> int:
    """Read the group size. Raise E0858 for a non-integer, and E0853 for an unsupported size."""
    entry = entries.get("group_size")
    if entry is None:
        return DEFAULT_GROUP_SIZE
    number = parse_integer_setting(entry)
    if number is None:
        raise_quantize_entry_error(entry, f"`group_size` must be {GROUP_SIZES}", ())
    check_group_size(number, entry.span)
    return number


def check_group_size(size: int, span: Span | None = None) -> None:
    """Raise E0853 if no kernel supports the group size."""
    # a power of two has exactly one bit set
    if MIN_GROUP_SIZE <= size <= MAX_GROUP_SIZE and size.bit_count() == 1:
        return
    raise_error(
        "E0853",
        f"invalid group size {size}",
        span,
        "this group size",
        helps=[f"the group size must be {GROUP_SIZES}"],
    )


def _apply_options(
    weight_options: QuantizationOptions | None, options: QuantizeOptions
) -> QuantizationOptions | None:
    """Return the quantization request of the spec, with settings overridden by the options."""
    if weight_options is None and not options.quantize:
        return None
    overrides: dict[str, Any] = {
        "kind": KINDS_BY_NAME.get(options.quantize),
        "unquantized_patterns": options.quantize_exclude or None,
        "group_size": options.group_size,
        "lm_head_kind": LM_HEAD_KINDS[options.lm_head_bits] or None,
        "quantizes_all_to_int4": options.quantize_all,
    }
    changes = {name: value for name, value in overrides.items() if value is not None}
    return replace(weight_options or QuantizationOptions(kind=None), **changes)


def _describe_overrides(
    entries: Mapping[str, ast.QuantizeSetting], options: QuantizeOptions
) -> Iterator[str]:
    """Yield a remark for each setting of the spec that an option overrides."""
    if options.quantize == UNQUANTIZED and entries.keys() - {"kv_cache"}:
        yield "`--quantize none`: no weight is quantized, although the spec has `quantize`"
    for name, entry in entries.items():
        if flag := _find_overriding_flag(name, options):
            values = escape_text(", ".join(v.value for v in entry.values)) or "no value"
            yield f"`{flag}` overrides `{name}` in the spec, which has {values}"


def _find_overriding_flag(name: str, options: QuantizeOptions) -> str:
    """Return the flag that overrides a setting of the spec, or "" if no flag does."""
    if options.quantize == UNQUANTIZED:
        none_flag = "--quantize none" if name == "kv_cache" else ""
        return "--kv-cache" if none_flag and options.kv_cache else none_flag
    settings = CALIBRATION_SETTINGS if name in CALIBRATION_SETTINGS else (name,)
    return next((get_option_flag(s) for s in settings if options.is_set(s)), "")


def _check_quantization_requested(options: QuantizeOptions, cache: KVCacheOption) -> None:
    """Raise E0753 if an option applies only to quantized weights and no weight is quantized."""
    # calibration also computes the scales of an int8 KV cache
    allowed = ("default", "kv_cache", *(CALIBRATION_SETTINGS if cache.dtype else ()))
    for name in QUANTIZE_SETTINGS:
        if name not in allowed and options.is_set(name):
            raise_error(
                "E0753",
                f"`{get_option_flag(name)}` has no effect without quantized weights",
                helps=[f"add `--quantize {'int4' if name in CALIBRATION_SETTINGS else 'int8'}`"],
            )
