"""What a parameter takes, and how a value is made to fit or refused.

A `Kind` is one alternative; a parameter has a tuple of them, its `Kinds`. The words of
`specc.elaborate.vocabulary` say theirs as plain annotations, which `kinds_of` reads:
`Tensor`, `Dim` (a whole number), `float`, `bool`, `str`, `tuple[Dim, ...]`,
`Literal["half", "interleaved"]`, unions with `None`, and the annotated types below. To
mypy a `Mask` is what the function gets when it is called, to us a parameter that admits
certain values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Literal, TypeAlias, Union, get_args, get_origin

from specc.elaborate.values import (
    DefinitionFunction,
    Evaluated,
    Function,
    Joined,
    Known,
    Number,
    Picked,
    Record,
    Rope,
    Tensor,
    Unknown,
    WordFunction,
    describe,
    first,
)
from specc.ir.dim import Dim
from specc.text.diagnostic import fail
from specc.text.source import Span
from specc.text.suggest import suggest


class Misfit:
    """Says that a value does not fit; `None` cannot, for `none` is a value of specs."""


MISFIT = Misfit()


@dataclass(frozen=True, eq=False)
class Simple:
    """Values of one class or role. `name` is the kind in words. There is one of each,
    so that each is equal to itself alone.
    """

    name: str
    fit: Callable[[Known], Known | Misfit]


@dataclass(frozen=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """The kind in words."""
        return "one of " + ", ".join(self.words)

    def fit(self, value: Known) -> str | Misfit:
        """The word alone: a `choice(…)` of the spec and a text are alike."""
        word = value.word if isinstance(value, Picked) else value
        return word if isinstance(word, str) and word in self.words else MISFIT


@dataclass(frozen=True)
class Several:
    """A list whose items are of one kind."""

    item: "Kind"

    @property
    def name(self) -> str:
        """The kind in words."""
        if isinstance(self.item, Several):
            return f"a list of {self.item.name.removeprefix('a ').replace('list', 'lists', 1)}"
        return f"a list of {self.item.name.removeprefix('a ')}s"

    def fit(self, value: Known) -> Known | Misfit:
        """The list with every item made to fit; one that does not spoils it."""
        if not isinstance(value, tuple):
            return MISFIT
        items: list[Known] = []
        for item in value:
            fitted = self.item.fit(item)
            if isinstance(fitted, Misfit):
                return MISFIT
            items.append(fitted)
        return tuple(items)


Kind: TypeAlias = Simple | OneOf | Several
Kinds: TypeAlias = tuple[Kind, ...]
"""The alternatives of one parameter."""


def _of(name: str, *classes: type) -> Simple:
    """The kind of all values of some classes, which stay as they are."""

    def fit(value: Known) -> Known | Misfit:
        return value if isinstance(value, classes) else MISFIT

    return Simple(name, fit)


def _float(value: Known) -> Known | Misfit:
    """A whole number does for one with a fraction; one that is still a symbol stays it."""
    if isinstance(value, Dim):
        return float(value.number) if value.number is not None else value
    return value if isinstance(value, float | Unknown) else MISFIT


def _text(value: Known) -> Known | Misfit:
    if isinstance(value, Picked):
        return value.word
    return value if isinstance(value, str) else MISFIT


def _mask(value: Known) -> Known | Misfit:
    """`all` and `none` of a mask are truths, a grid is a tensor; a score is no mask."""
    if isinstance(value, DefinitionFunction):
        return value if value.kind == "mask" else MISFIT
    return value if isinstance(value, Joined | bool | Tensor) else MISFIT


def _score(value: Known) -> Known | Misfit:
    """A definition of `q` and `k`, or a word that takes two tensors and no more: `dot`."""
    match value:
        case DefinitionFunction() if value.kind == "score":
            return value
        case WordFunction() if value.word.takes_two():
            return value
    return MISFIT


NORMALIZERS = ("softmax", "queries", "hard", "sampled", "kernel", "uniform")
"""What makes weights of scores by a word; `attend_by` says what each means."""


def _normalizer(value: Known) -> Known | Misfit:
    """A definition, or one of the words."""
    if isinstance(value, DefinitionFunction):
        return value if value.kind == "normalizer" else MISFIT
    word = value.word if isinstance(value, Picked) else value
    if isinstance(word, str) and word in NORMALIZERS:
        return Picked(word, NORMALIZERS)
    return MISFIT


TENSOR = _of("a tensor", Tensor)
WHOLE = _of("a whole number", Dim)
FLOAT = Simple("a number", _float)
NUMBER = _of("a number", Dim, float, Unknown)
BOOL = _of("true or false", bool)
TEXT = Simple("a text", _text)
MASK = Simple("a mask", _mask)
SCORE = Simple("a score", _score)
NORMALIZER = Simple("a normalizer", _normalizer)
APPLIED = Simple("something to apply", _of("", *get_args(Function)).fit)
ROPE = _of("rotary frequencies, as `rope(theta=10000.0)` makes them", Rope)
RECORD = _of("a record", Record)
NONE = _of("none", NoneType)
ANYTHING = Simple("anything", lambda value: value)

Scalar: TypeAlias = Annotated[Number, NUMBER]
"""A number that may be known only when the model runs; `float` must be known."""

Mask: TypeAlias = Annotated[DefinitionFunction | Joined | bool | Tensor, MASK]
"""A definition, a combination, `all` or `none`, or a boolean grid."""

Score: TypeAlias = Annotated[DefinitionFunction | WordFunction, SCORE]
"""A definition, or a word of two vectors such as `dot`."""

Normalizer: TypeAlias = Annotated[DefinitionFunction | Picked, NORMALIZER]
"""A definition, or a word such as `softmax`."""

Applied: TypeAlias = Annotated[Function, APPLIED]
"""Something to apply: a block, an activation, a norm, positions."""

Activation: TypeAlias = Annotated[Function | str, APPLIED]
"""An activation; its name where the word gives one by default."""

Anything: TypeAlias = Annotated[Known, ANYTHING]
"""Any value; the word itself says what it can use."""

KINDS: dict[object, Kind] = {
    Tensor: TENSOR,
    Dim: WHOLE,
    float: FLOAT,
    bool: BOOL,
    str: TEXT,
    Rope: ROPE,
    Record: RECORD,
    NoneType: NONE,
    None: NONE,
}
"""The kinds of annotations that are classes."""


def kinds_of(annotation: object) -> Kinds:
    """What a parameter annotated so takes."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return (inner[1],)
    if origin in (Union, UnionType):
        return tuple(kind for one in inner for kind in kinds_of(one))
    if origin is Literal:
        return (OneOf(inner),)
    if origin is tuple:
        (item,) = kinds_of(inner[0])
        return (Several(item),)
    return (KINDS[annotation],)


def words_of(kinds: Kinds) -> tuple[str, ...]:
    """The words a choice admits, over all alternatives."""
    return tuple(w for kind in kinds if isinstance(kind, OneOf) for w in kind.words)


def fit(value: Evaluated, kinds: Kinds, what: str, span: Span | None) -> Known:
    """`value` as one of some kinds. E0203 says what was expected."""
    one = first(value)
    for kind in kinds:
        fitted = kind.fit(one)
        if not isinstance(fitted, Misfit):
            return fitted
    words = words_of(kinds)
    if words and isinstance(one, str | Picked):
        # a word that is none of these was meant to be one: say which
        word = one if isinstance(one, str) else one.word
        helps = suggest(word, words, f"it is one of {', '.join(words)}")
        fail("E0203", f"{what} cannot be `{word}`", span, helps=helps)
    title = f"{what} takes {expected(kinds)}, not {describe(one)}"
    if words:
        title = f"{what} is one of {', '.join(words)}"
    fail("E0203", title, span, f"this is {describe(one)}")


def expected(kinds: Kinds) -> str:
    """What is admitted, in words."""
    return " or ".join(kind.name for kind in kinds)
