"""Check quantization options: invalid values, patterns without a match, no effect."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Failed, Label, raise_error
from specc.diagnostics.source import Span
from specc.diagnostics.suggest import suggest_similar_name
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.ir.ops.quantized import QuantizationPlan
from specc.syntax import ast
from specc.transforms import pass_pipeline
from specc.transforms.quantization_plan import (
    DEFAULT_GROUP_SIZE,
    QuantizationKind,
    QuantizationRequest,
    find_unmatched_patterns,
    list_quantizable_names,
)


def parse_choice(words: Mapping[str, ast.QuantizeEntry], name: str, known: Iterable[str]) -> str:
    """Return the value of an entry, empty if it is not given. Raise E0858 if it is invalid."""
    entry = words.get(name)
    if entry is None:
        return ""
    known = tuple(known)
    if len(entry.values) != 1 or entry.values[0].value not in known:
        fail_wrong_value(entry, f"`{name}` is one of {', '.join(known)}", known)
    return entry.values[0].value


def parse_integer(entry: ast.QuantizeEntry) -> int | None:
    """Return the integer value of an entry; None if it is anything else."""
    text = entry.values[0].value if len(entry.values) == 1 else ""
    # ten or more digits exceed every index here
    fits = text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if fits else None


def fail_wrong_value(entry: ast.QuantizeEntry, title: str, known: tuple[str, ...]) -> NoReturn:
    """Raise E0858: the entry has an invalid value."""
    given = entry.values[0].value if len(entry.values) == 1 else ""
    example = f"{entry.name} = {known[0] if known else DEFAULT_GROUP_SIZE}"
    raise_error(
        "E0858",
        title,
        entry.span,
        "invalid value",
        helps=suggest_similar_name(given, known, f"for example `{example}`"),
    )


LAYER_INDEX = re.compile(r"(?<=\.)[0-9]+(?=\.|$)")
"""A layer index in the name of a weight."""


def check_patterns_match(
    missing: Iterable[str],
    names: tuple[str, ...],
    places: Mapping[str, Span],
    others: Callable[[], Iterable[Graph]],
) -> None:
    """Raise E0850 for patterns in `missing`, which match none of the `names` of a graph.

    A pattern of the spec (with a span in `places`) may match in another graph of the spec.
    """
    missing = tuple(missing)
    spec_s = [pattern for pattern in missing if pattern in places]
    for other in others() if spec_s else ():
        elsewhere = list_quantizable_names(pass_pipeline.simplify_graph(other, fused=False))
        spec_s = list(find_unmatched_patterns(spec_s, elsewhere))
    wrong = [p for p in missing if p in spec_s or p not in places]
    if wrong:
        raise Failed(*(_build_no_match(p, names, places.get(p)) for p in wrong))


def _build_no_match(pattern: str, names: tuple[str, ...], at: Span | None) -> Diagnostic:
    known = f"names are {', '.join(names[:8])} …"
    # patterns usually cover all layers: suggest `h.*.attn` where `h.0.attn` is not similar
    near = dict.fromkeys((*names, *(LAYER_INDEX.sub("*", name) for name in names)))
    return Diagnostic(
        "E0850",
        f"`{escape_text(pattern)}` matches no weight and no module of the model",
        Label.at(at, "this pattern"),
        helps=tuple(suggest_similar_name(pattern, near, known)),
    )


BLOCK_WORD, ALL_WORD, HEAD_WORD = "group_size", "all", "lm_head_bits"
OPTIONAL_ENTRIES = (BLOCK_WORD, ALL_WORD, HEAD_WORD)
"""Entries that have no effect for some kinds or models."""
KINDS_BY_ENTRY: Mapping[str, tuple[QuantizationKind, ...]] = {
    BLOCK_WORD: ("int4", "int8-weights"),
    ALL_WORD: ("int4",),
}
"""The kinds for which an entry has an effect."""
ENTRY_DESCRIPTIONS = {
    BLOCK_WORD: "group-wise quantization",
    ALL_WORD: "weights that `int4` keeps at 8 bits",
}
"""The effect of an entry."""
NO_EFFECT_REASONS = {
    BLOCK_WORD: "no weight is quantized group-wise",
    ALL_WORD: "`int4` keeps no weight at 8 bits (small, embedding or output layer)",
    HEAD_WORD: "no output layer can be quantized",
}
"""Why an entry has no effect on a model."""


def requested_options(
    words: Mapping[str, ast.QuantizeEntry], options: Mapping[str, str]
) -> dict[str, str]:
    """Return the entries given by the spec or by options, each with its name in messages."""
    spec = {w: f"`{w}` in the spec" for w in OPTIONAL_ENTRIES if w in words}
    # the default value is not a request
    if ALL_WORD in spec and words[ALL_WORD].values[0].value == "false":
        del spec[ALL_WORD]
    return spec | {word: f"`{option}`" for word, option in options.items()}


def check_known_options(wish: QuantizationRequest, options: Mapping[str, str]) -> None:
    """Raise E0753 for the first of the `options`, keyed by entry, that has no effect for
    any of the requested kinds.
    """
    for word, kinds in KINDS_BY_ENTRY.items():
        # `all` applies to the default kind only, not to per-pattern kinds
        asked = (wish.kind,) if word == ALL_WORD else wish.kinds
        if word not in options or set(kinds) & set(asked):
            continue
        has = ", ".join(f"`{kind}`" for kind in dict.fromkeys(asked) if kind)
        raise_error(
            "E0753",
            f"`{options[word]}` is for {ENTRY_DESCRIPTIONS[word]}, "
            f"which {has or 'this compile'} does not use",
            helps=[
                f"leave out `{options[word]}`",
                f"or quantize with {' or '.join(f'`--quantize {kind}`' for kind in kinds)}",
            ],
        )


def find_ineffective_options(
    wish: QuantizationRequest,
    said: Mapping[str, str],
    plan: QuantizationPlan,
    again: Callable[[QuantizationRequest], QuantizationPlan],
) -> Iterator[str]:
    """Yield a line for each requested entry that does not change the plan.

    `said` maps entries to their names in messages; `again` computes the plan of a request.
    """
    for word, called in said.items():
        if word == BLOCK_WORD:
            changes = any(form.group_size for form in plan.values())
        elif word == ALL_WORD:
            changes = again(replace(wish, every=not wish.every)) != plan
        else:
            other: QuantizationKind | None = None if wish.head != "none" else "int8"
            changes = again(replace(wish, head=other or "none")) != plan
        if not changes:
            yield f"{called} has no effect: {NO_EFFECT_REASONS[word]}"


def fail_no_int8_cache(reason: str, span: Span | None) -> NoReturn:
    """Raise E0951; `span` is the `kv_cache` entry of the spec if that requested it."""
    fix = "compile with `--kv-cache none`" if span else "leave out `--kv-cache`"
    raise_error(
        "E0951",
        "the KV cache cannot be int8",
        span,
        "requested here" if span else "",
        notes=[reason],
        helps=[fix],
    )
