"""What a parameter of an op takes, and how a value is made to fit or refused.

Kinds are plain annotations of the functions in `specc.elaborate.vocabulary`: `Tensor`, `Dim` (a whole
number), `float`, `bool`, `str`, `Literal["half", "interleaved"]`, `tuple[Dim, ...]`, `Mask`, `Score`,
`Callable` (something to apply), `Any`, and unions with `None`.
"""

from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args
from typing import get_origin as typing_origin

from specc.elaborate.values import Function, Joined, Picked, Record, Rope, Tensor, Unknown, describe, first
from specc.ir.dim import Dim
from specc.text.diagnostic import fail
from specc.text.source import Span
from specc.text.suggest import did_you_mean

Kind: TypeAlias = Any


def get_origin(kind: Kind) -> Any:
    """`typing.get_origin`, whose declared result leaves out most of what it gives."""
    return typing_origin(kind)


class Number:
    """Marks a parameter that takes a number which may be known only when the model runs; `float` must be known."""


class Mask:
    """Marks a parameter that takes a mask: a definition, a combination, `all`, or a boolean grid."""


class Score:
    """Marks a parameter that takes a score: a definition, or a word of two vectors such as `dot`."""


class Applied:
    """Marks a parameter that takes something to apply: a block, an activation, a norm, positions."""


def alternatives(kind: Kind) -> tuple[Kind, ...]:
    """The members of a union; a single kind alone."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def words_of(kind: Kind) -> tuple[str, ...]:
    """The words a choice admits, over all alternatives."""
    return tuple(w for k in alternatives(kind) if get_origin(k) is Literal for w in get_args(k))


def takes(kind: Kind, marker: Kind) -> bool:
    """Whether `marker` is one of the alternatives."""
    return any(k is marker for k in alternatives(kind))


def fit(value: Any, kind: Kind, what: str, span: Span | None) -> Any:
    """`value` as one of `kind`'s alternatives. E0203 says what was expected."""
    value = first(value)
    if kind is Any:
        return value
    for one in alternatives(kind):
        fitted = _fits(value, one)
        if fitted is not _NO:
            return fitted
    if (words := words_of(kind)) and isinstance(value, str | Picked):
        word = value if isinstance(value, str) else value.word
        near = did_you_mean(word, words)
        hint = f"did you mean `{near}`?" if near else f"it is one of {', '.join(words)}"
        fail("E0203", f"{what} cannot be `{word}`", span, "", helps=[hint])
    title = f"{what} takes {expected(kind)}, not {describe(value)}"
    if words:
        fail("E0203", f"{what} is one of {', '.join(words)}", span, f"this is {describe(value)}")
    fail("E0203", title, span, f"this is {describe(value)}")


class _No:
    """Nothing fitted."""


_NO = _No()


def _fits(value: Any, kind: Kind) -> Any:
    origin = get_origin(kind)
    if origin is Literal:
        word = value.word if isinstance(value, Picked) else value
        return word if word in get_args(kind) and isinstance(word, str) else _NO
    if origin is tuple:
        item = get_args(kind)[0]
        if not isinstance(value, tuple):
            return _NO
        made = tuple(_fits(first(v), item) for v in value)
        return _NO if any(m is _NO for m in made) else made
    if kind is Any:
        return value
    if kind is None or kind is NoneType:
        return None if value is None else _NO
    if kind is float:
        if isinstance(value, Dim):
            return float(value.number) if value.number is not None else value
        return value if isinstance(value, float | Unknown) else _NO
    if kind is Number:
        return value if isinstance(value, Dim | float | Unknown) else _NO
    if kind is str:
        return value.word if isinstance(value, Picked) else value if isinstance(value, str) else _NO
    if kind is Mask:
        masks = isinstance(value, Joined | bool | Tensor) or (isinstance(value, Function) and value.kind == "mask")
        return value if masks else _NO
    if kind is Score:
        if not isinstance(value, Function):
            return _NO
        return value if value.kind == "score" or (value.kind == "op" and value.target.takes_two()) else _NO
    if kind is Applied:
        return value if isinstance(value, Function) else _NO
    return value if isinstance(kind, type) and isinstance(value, kind) else _NO


def expected(kind: Kind) -> str:
    """A kind in words."""
    names: dict[Kind, str] = {
        Tensor: "a tensor",
        Dim: "a whole number",
        float: "a number",
        Number: "a number",
        bool: "true or false",
        str: "a text",
        Mask: "a mask",
        Score: "a score",
        Applied: "something to apply",
        Rope: "rotary frequencies, as `rope(theta=10000.0)` makes them",
        Record: "a record",
        NoneType: "none",
    }
    found = []
    for one in alternatives(kind):
        if get_origin(one) is tuple:
            found.append(f"a list of {expected(get_args(one)[0]).removeprefix('a ')}s")
        elif get_origin(one) is Literal:
            found.append("one of " + ", ".join(get_args(one)))
        else:
            found.append(names.get(one, str(one)))
    return " or ".join(found)
