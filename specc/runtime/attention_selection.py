"""Select attentions by scope, layer and head."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.object_repr import format_repr, render_html_table
from specc.drawing.attention_maps import AttentionMap
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.weights.parameter_names import NamePattern

MOST_NUMBER = 9999
"""No model has as many layers or heads."""


@dataclass(frozen=True, kw_only=True)
class AttentionSelection:
    """A pattern of scopes, and numbers of layers and heads; what is not said picks all."""

    scope: str = ""
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is picked."""
        return bool(self.scope or self.layers or self.heads)


def parse_number_list(text: str, option: str) -> tuple[int, ...]:
    """`0,2-5` as numbers, each once and in order. E0954 for anything else."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        ends = [first, last if dash else first]
        if not all(_is_number(end) for end in ends) or int(ends[0]) > int(ends[1]):
            raise_error(
                "E0954",
                f"`{option} {escape_text(text)[:60]}` is no list of numbers",
                helps=[f"write `{option} 0`, `{option} 0,3` or `{option} 2-5`"],
            )
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(sorted(found))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text[:9]) <= MOST_NUMBER


def select_scopes(scopes: Sequence[str], pattern: str) -> list[str]:
    """The scopes that a pattern fits. E0931 where none is called so."""
    fits = [scope for scope in scopes if not pattern or NamePattern(pattern).matches(scope)]
    if not fits:
        helps = [f"there are {escape_text(', '.join(scopes[:12]))}"]
        title = f"the model has no attention called `{escape_text(pattern)}`"
        raise_error("E0931", title, helps=helps)
    return fits


def select_maps(
    maps: Sequence[AttentionMap], choice: AttentionSelection
) -> tuple[AttentionMap, ...]:
    """The maps that `choice` picks, each with the heads that it picks. E0931 and E0954
    where there are none.
    """
    fits = select_scopes([m.scope for m in maps], choice.scope)
    picked = [m for m in maps if m.scope in fits]
    if choice.layers:
        _know("layer", choice.layers, picked, {m.layer for m in picked} - {None})
        picked = [m for m in picked if m.layer in choice.layers]
    if choice.heads:
        _know("head", choice.heads, picked, {n for m in picked for n in m.heads})
        picked = [select_heads(m, choice.heads) for m in picked]
    return tuple(m for m in picked if m.heads)


def select_heads(attention: AttentionMap, heads: Sequence[int]) -> AttentionMap:
    """The same attention with some of its heads."""
    rows = [n for n, head in enumerate(attention.heads) if head in heads]
    return attention.with_heads(
        attention.weights[rows], attention.hidden[rows], tuple(attention.heads[n] for n in rows)
    )


def _know(
    what: str, asked: Sequence[int], maps: Sequence[AttentionMap], there: Set[int | None]
) -> None:
    """E0954 for a number that nothing has."""
    numbers_there = {n for n in there if n is not None}
    strange = [n for n in asked if n not in numbers_there]
    if not strange:
        return
    names = escape_text(", ".join(m.scope for m in maps[:6]))
    more = f" and {len(maps) - 6} more" if len(maps) > 6 else ""
    has = f"no scope has a {what}: leave it out"
    if numbers_there:
        has = f"there are {what}s {format_number_list(numbers_there)}"
    raise_error(
        "E0954",
        f"`--{what}s` asks for {what} {strange[0]}, which the model does not have",
        notes=[f"it looked among {names}{more}"],
        helps=[has],
    )


def format_number_list(numbers_there: set[int]) -> str:
    """`0 to 5`, or each where some lack."""
    every = sorted(numbers_there)
    if every == list(range(every[0], every[-1] + 1)) and len(every) > 2:
        return f"{every[0]} to {every[-1]}"
    return ", ".join(map(str, every[:24]))


def format_other_scopes(weights: Mapping[str, object], said: str) -> str:
    """What else a model has besides what is drawn: its scopes, the first twelve."""
    more = f" and {len(weights) - 12} more" if len(weights) > 12 else ""
    return f"{said} {escape_text(', '.join(list(weights)[:12]))}{more}"


class AttentionWeights(dict[str, Array]):
    """[batch, heads, query, key] by the scope of the attention, in the model's order."""

    def __repr__(self) -> str:
        first = ", ".join(f"{scope} {list(x.shape)}" for scope, x in self.items())
        return format_repr(f"attention of {len(self)} scopes: {first}")

    def _repr_html_(self) -> str:
        """Scopes and shapes, for a notebook."""
        shapes = [(scope, str(list(x.shape))) for scope, x in self.items()]
        return render_html_table("attention: batch, heads, query, key", shapes)
