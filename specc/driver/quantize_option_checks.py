"""Check quantization options: unknown values, patterns without a match, options without effect."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Failed, Label, raise_error
from specc.diagnostics.source import Span
from specc.diagnostics.suggest import suggest_similar_name
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.ir.quantization_format import QuantizationPlan
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
    """The one value of a word, empty where it is not said. E0858."""
    entry = words.get(name)
    if entry is None:
        return ""
    known = tuple(known)
    if len(entry.values) != 1 or entry.values[0].value not in known:
        fail_wrong_value(entry, f"`{name}` is one of {', '.join(known)}", known)
    return entry.values[0].value


def parse_integer(entry: ast.QuantizeEntry) -> int | None:
    """The one number that a word has; None where it is something else."""
    text = entry.values[0].value if len(entry.values) == 1 else ""
    # more digits are no count of anything here, whatever they say
    fits = text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if fits else None


def fail_wrong_value(entry: ast.QuantizeEntry, title: str, known: tuple[str, ...]) -> NoReturn:
    """E0858."""
    given = entry.values[0].value if len(entry.values) == 1 else ""
    example = f"{entry.name} = {known[0] if known else DEFAULT_GROUP_SIZE}"
    raise_error(
        "E0858",
        title,
        entry.span,
        "this is something else",
        helps=suggest_similar_name(given, known, f"for example `{example}`"),
    )


NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.|$)")
"""The number of a layer in the name of a weight."""


def check_patterns_match(
    missing: Iterable[str],
    names: tuple[str, ...],
    places: Mapping[str, Span],
    others: Callable[[], Iterable[Graph]],
) -> None:
    """E0850 for the patterns that are `missing` among the `names` of a graph. One that the
    spec has at one of `places` may be for another graph of the spec.
    """
    missing = tuple(missing)
    spec_s = [pattern for pattern in missing if pattern in places]
    for other in others() if spec_s else ():
        elsewhere = list_quantizable_names(pass_pipeline.simplify_graph(other, fused=False))
        spec_s = list(find_unmatched_patterns(spec_s, elsewhere))
    wrong = [p for p in missing if p in spec_s or p not in places]
    if wrong:
        raise Failed(*(_names_nothing(p, names, places.get(p)) for p in wrong))


def _names_nothing(pattern: str, names: tuple[str, ...], at: Span | None) -> Diagnostic:
    known = f"there are {', '.join(names[:8])} …"
    # who writes patterns means all layers: `h.*.attn` is near where `h.0.attn` is not
    near = dict.fromkeys((*names, *(NUMBER.sub("*", name) for name in names)))
    return Diagnostic(
        "E0850",
        f"`{escape_text(pattern)}` names no weight and no part of the model",
        Label(at, "this pattern") if at else None,
        helps=tuple(suggest_similar_name(pattern, near, known)),
    )


BLOCK_WORD, ALL_WORD, HEAD_WORD = "block", "all", "head"
MAY_BE_IDLE = (BLOCK_WORD, ALL_WORD, HEAD_WORD)
"""Words that mean nothing to some kinds, or to some models."""
KNOWN_TO: Mapping[str, tuple[QuantizationKind, ...]] = {
    BLOCK_WORD: ("int4", "int8-weights"),
    ALL_WORD: ("int4",),
}
"""The kinds that a word means something to."""
ABOUT = {BLOCK_WORD: "weights that are rounded in blocks", ALL_WORD: "what `int4` leaves at 8 bits"}
"""What it is about."""
NOT_HERE = {
    BLOCK_WORD: "no weight is rounded in blocks",
    ALL_WORD: "no weight has 8 bits because it is small, a table, or makes results",
    HEAD_WORD: "no weight that could be rounded makes the results",
}
"""Why it changes nothing in a model."""


def requested_options(
    words: Mapping[str, ast.QuantizeEntry], options: Mapping[str, str]
) -> dict[str, str]:
    """The words that the spec or an option says, and what they are called for people."""
    spec = {w: f"`{w}` in the spec" for w in MAY_BE_IDLE if w in words}
    # what is usual says nothing
    if ALL_WORD in spec and words[ALL_WORD].values[0].value == "false":
        del spec[ALL_WORD]
    return spec | {word: f"`{option}`" for word, option in options.items()}


def check_known_options(wish: QuantizationRequest, options: Mapping[str, str]) -> None:
    """E0753 for the first of the `options`, by the words that they stand for, that means
    nothing to any kind that is asked for.
    """
    for word, kinds in KNOWN_TO.items():
        # exceptions are made of what nothing else is said about
        asked = (wish.kind,) if word == ALL_WORD else wish.kinds
        if word not in options or set(kinds) & set(asked):
            continue
        has = ", ".join(f"`{kind}`" for kind in dict.fromkeys(asked) if kind)
        raise_error(
            "E0753",
            f"`{options[word]}` is about {ABOUT[word]}, and {has or 'nothing'} has none",
            helps=[
                f"leave out `{options[word]}`",
                f"or round with {' or '.join(f'`--quantize {kind}`' for kind in kinds)}",
            ],
        )


def find_ineffective_options(
    wish: QuantizationRequest,
    said: Mapping[str, str],
    plan: QuantizationPlan,
    again: Callable[[QuantizationRequest], QuantizationPlan],
) -> Iterator[str]:
    """A line for each word that is `said`, and called so, without which the plan is the
    same; `again` makes that of another wish.
    """
    for word, called in said.items():
        if word == BLOCK_WORD:
            changes = any(form.block for form in plan.values())
        elif word == ALL_WORD:
            changes = again(replace(wish, every=not wish.every)) != plan
        else:
            other: QuantizationKind | None = None if wish.head != "none" else "int8"
            changes = again(replace(wish, head=other or "none")) != plan
        if not changes:
            yield f"{called} changes nothing: {NOT_HERE[word]}"
