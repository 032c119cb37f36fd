"""Check quantization options: invalid values, unmatched patterns, options without effect."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Label, Span, SpeccError, raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.ir.ops.quantized import QuantizationPlan
from specc.syntax import ast
from specc.transforms.quantization_plan import (
    DEFAULT_GROUP_SIZE,
    QuantizationKind,
    QuantizationOptions,
    find_unmatched_patterns,
    list_quantizable_names,
)


def list_weight_names(graph: Graph) -> tuple[str, ...]:
    """Return the names of a graph's weights that can be quantized."""
    # import lazily, because most specs are checked without running passes
    from specc.transforms.pass_pipeline import simplify_graph

    return list_quantizable_names(simplify_graph(graph, fuse_loops=False))


def parse_quantize_choice(
    entries: Mapping[str, ast.QuantizeSetting], name: str, choices: Iterable[str]
) -> str:
    """Return a `quantize` entry's value ("" if absent). Raise E0858 for an invalid value."""
    entry = entries.get(name)
    if entry is None:
        return ""
    choices = tuple(choices)
    if len(entry.values) != 1 or entry.values[0].value not in choices:
        raise_quantize_entry_error(entry, f"`{name}` must be one of {', '.join(choices)}", choices)
    return entry.values[0].value


def parse_integer_setting(entry: ast.QuantizeSetting) -> int | None:
    """Return the value of a `quantize` entry if it is an integer, otherwise None."""
    text = entry.values[0].value if len(entry.values) == 1 else ""
    # integers with ten or more digits are always out of range
    is_short_integer = text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if is_short_integer else None


def raise_quantize_entry_error(
    entry: ast.QuantizeSetting, title: str, choices: tuple[str, ...]
) -> NoReturn:
    """Raise E0858 because the entry has an invalid value."""
    value = entry.values[0].value if len(entry.values) == 1 else ""
    example = f"{entry.name} = {choices[0] if choices else DEFAULT_GROUP_SIZE}"
    raise_error(
        "E0858",
        title,
        entry.span,
        "invalid value",
        helps=suggest_similar_name(value, choices, f"for example `{example}`"),
    )


LAYER_INDEX = re.compile(r"(?<=\.)[0-9]+(?=\.|$)")
"""Pattern of a layer index in a parameter name."""


def check_weight_patterns(
    unmatched_patterns: Iterable[str],
    names: tuple[str, ...],
    spans: Mapping[str, Span],
    iterate_sibling_graphs: Callable[[], Iterable[Graph]],
) -> None:
    """Raise E0850 for the patterns in `unmatched_patterns`, which match no weight name in `names`.
    A pattern of the spec, which has a span in `spans`, may match a weight of another graph.
    """
    unmatched_patterns = tuple(unmatched_patterns)
    spec_patterns = [p for p in unmatched_patterns if p in spans]
    for graph in iterate_sibling_graphs() if spec_patterns else ():
        other_names = list_weight_names(graph)
        spec_patterns = list(find_unmatched_patterns(spec_patterns, other_names))
    unmatched = [p for p in unmatched_patterns if p in spec_patterns or p not in spans]
    if unmatched:
        raise SpeccError(*(_make_no_match_error(p, names, spans.get(p)) for p in unmatched))


def _make_no_match_error(pattern: str, names: tuple[str, ...], span: Span | None) -> Diagnostic:
    name_list = f"weight names: {', '.join(names[:8])} …"
    # a pattern usually covers all layers, so the error suggests names such as `h.*.attn`
    suggestions = dict.fromkeys((*names, *(LAYER_INDEX.sub("*", name) for name in names)))
    return Diagnostic(
        "E0850",
        f"`{escape_text(pattern)}` matches no weight and no module of the model",
        Label.from_span(span, "no match"),
        helps=tuple(suggest_similar_name(pattern, suggestions, name_list)),
    )


GROUP_SIZE_ENTRY, ALL_ENTRY, LM_HEAD_ENTRY = "group_size", "all", "lm_head_bits"
OPTIONAL_ENTRIES = (GROUP_SIZE_ENTRY, ALL_ENTRY, LM_HEAD_ENTRY)
"""Entries that have no effect with some quantization kinds or models."""
KINDS_BY_ENTRY: Mapping[str, tuple[QuantizationKind, ...]] = {
    GROUP_SIZE_ENTRY: ("int4", "int8-weights"),
    ALL_ENTRY: ("int4",),
}
"""The quantization kinds that support each entry."""
ENTRY_DESCRIPTIONS = {
    GROUP_SIZE_ENTRY: "group-wise quantization",
    ALL_ENTRY: "weights that `int4` keeps at 8 bits",
}
"""Descriptions of the weights and layers that each entry applies to, for messages."""
NO_EFFECT_REASONS = {
    GROUP_SIZE_ENTRY: "no weight is quantized group-wise",
    ALL_ENTRY: "`int4` keeps no weight at 8 bits (small, embedding or output layer)",
    LM_HEAD_ENTRY: "no output layer can be quantized",
}
"""The reason why each entry may have no effect, for messages."""


def get_requested_option_labels(
    entries: Mapping[str, ast.QuantizeSetting], flags: Mapping[str, str]
) -> dict[str, str]:
    """Return the display name of each `quantize` entry that is set by the spec or an option."""
    labels = {entry: f"`{entry}` in the spec" for entry in OPTIONAL_ENTRIES if entry in entries}
    # an entry with the default value requests nothing, so it is not reported
    if ALL_ENTRY in labels and entries[ALL_ENTRY].values[0].value == "false":
        del labels[ALL_ENTRY]
    return labels | {entry: f"`{option}`" for entry, option in flags.items()}


def check_ineffective_flags(weight_options: QuantizationOptions, flags: Mapping[str, str]) -> None:
    """Raise E0753 for the first entry in `flags` that has no effect for any requested quantization
    kind. `flags` maps entries to command-line flags.
    """
    for entry, kinds in KINDS_BY_ENTRY.items():
        # `--quantize-all` applies only to the default kind, not to kinds chosen by patterns
        requested_kinds = (
            (weight_options.kind,) if entry == ALL_ENTRY else weight_options.weight_kinds
        )
        if entry not in flags or set(kinds) & set(requested_kinds):
            continue
        kind_names = ", ".join(f"`{kind}`" for kind in dict.fromkeys(requested_kinds) if kind)
        raise_error(
            "E0753",
            f"`{flags[entry]}` is for {ENTRY_DESCRIPTIONS[entry]}, "
            f"which {kind_names or 'this compilation'} does not use",
            helps=[
                f"remove `{flags[entry]}`",
                f"or quantize with {' or '.join(f'`--quantize {kind}`' for kind in kinds)}",
            ],
        )


def find_ineffective_options(
    weight_options: QuantizationOptions,
    option_labels: Mapping[str, str],
    plan: QuantizationPlan,
    make_plan: Callable[[QuantizationOptions], QuantizationPlan],
) -> Iterator[str]:
    """Yield a remark for each `quantize` setting that does not change the quantization plan.

    `option_labels` maps entries to their display names. `make_plan` computes the plan of a
    quantization request.
    """
    has_unquantized_head = weight_options.lm_head_kind == "none"
    alternatives = {
        ALL_ENTRY: replace(
            weight_options, quantizes_all_to_int4=not weight_options.quantizes_all_to_int4
        ),
        LM_HEAD_ENTRY: replace(
            weight_options, lm_head_kind="int8" if has_unquantized_head else "none"
        ),
    }
    for entry, label in option_labels.items():
        if entry == GROUP_SIZE_ENTRY:
            has_effect = any(weight_format.group_size for weight_format in plan.values())
        else:
            has_effect = make_plan(alternatives[entry]) != plan
        if not has_effect:
            yield f"{label} has no effect: {NO_EFFECT_REASONS[entry]}"


def raise_int8_kv_cache_error(reason: str, span: Span | None) -> NoReturn:
    """Raise E0951 with the reason why no KV cache can be quantized to int8. `span` is the spec's
    `kv_cache` entry, or None if a command-line option requests int8.
    """
    fix = "compile with `--kv-cache none`" if span else "remove `--kv-cache`"
    raise_error(
        "E0951",
        "the KV cache cannot be int8",
        span,
        "requested here" if span else "",
        notes=[reason],
        helps=[fix],
    )
