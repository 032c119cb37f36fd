"""The kinds of values that parameters accept, and conversion to them."""

from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Literal, TypeAlias, Union, get_args, get_origin

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Span
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.spec_values import (
    BuiltinFunction,
    ChoiceValue,
    CombinedMask,
    DefinitionFunction,
    EvalResult,
    Function,
    Number,
    Record,
    Rope,
    RuntimeNumber,
    SpecValue,
    Tensor,
    describe_value,
    take_first_result,
)
from specc.ir.dim import Dim


class NoMatch:
    """Says that a value does not fit; `None` cannot, for `none` is a value of specs."""


NO_MATCH = NoMatch()


@dataclass(frozen=True, eq=False)
class SimpleKind:
    """Values of one class or role. `name` is the kind in words. There is one of each,
    so that each is equal to itself alone.
    """

    name: str
    fit: Callable[[SpecValue], SpecValue | NoMatch]


@dataclass(frozen=True)
class ChoiceKind:
    """One of some words."""

    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """The kind in words."""
        return "one of " + ", ".join(self.words)

    def fit(self, value: SpecValue) -> str | NoMatch:
        """The word alone: a `choice(…)` of the spec and a text are alike."""
        word = value.word if isinstance(value, ChoiceValue) else value
        return word if isinstance(word, str) and word in self.words else NO_MATCH


@dataclass(frozen=True)
class ListKind:
    """A list whose items are of one kind."""

    item: "ParameterKind"

    @property
    def name(self) -> str:
        """The kind in words."""
        if isinstance(self.item, ListKind):
            return f"a list of {self.item.name.removeprefix('a ').replace('list', 'lists', 1)}"
        return f"a list of {self.item.name.removeprefix('a ')}s"

    def fit(self, value: SpecValue) -> SpecValue | NoMatch:
        """The list with every item made to fit; one that does not spoils it."""
        if not isinstance(value, tuple):
            return NO_MATCH
        items: list[SpecValue] = []
        for item in value:
            fitted = self.item.fit(item)
            if isinstance(fitted, NoMatch):
                return NO_MATCH
            items.append(fitted)
        return tuple(items)


ParameterKind: TypeAlias = SimpleKind | ChoiceKind | ListKind
ParameterKinds: TypeAlias = tuple[ParameterKind, ...]
"""The alternatives of one parameter."""


def _make_class_kind(name: str, *classes: type) -> SimpleKind:
    """The kind of all values of some classes, which stay as they are."""

    def fit(value: SpecValue) -> SpecValue | NoMatch:
        return value if isinstance(value, classes) else NO_MATCH

    return SimpleKind(name, fit)


def _match_float(value: SpecValue) -> SpecValue | NoMatch:
    """A whole number does for one with a fraction; one that is still a symbol stays it."""
    if isinstance(value, Dim):
        return float(value.number) if value.number is not None else value
    return value if isinstance(value, float | RuntimeNumber) else NO_MATCH


def _match_text(value: SpecValue) -> SpecValue | NoMatch:
    if isinstance(value, ChoiceValue):
        return value.word
    return value if isinstance(value, str) else NO_MATCH


def _match_mask(value: SpecValue) -> SpecValue | NoMatch:
    """`all` and `none` of a mask are truths, a grid is a tensor; a score is no mask."""
    if isinstance(value, DefinitionFunction):
        return value if value.kind == "mask" else NO_MATCH
    return value if isinstance(value, CombinedMask | bool | Tensor) else NO_MATCH


def _match_score(value: SpecValue) -> SpecValue | NoMatch:
    """A definition of `q` and `k`, or a word that takes two tensors and no more: `dot`."""
    match value:
        case DefinitionFunction() if value.kind == "score":
            return value
        case BuiltinFunction() if value.word.is_pairwise():
            return value
    return NO_MATCH


NORMALIZER_WORDS = ("softmax", "queries", "hard", "sampled", "kernel", "uniform")
"""What makes weights of scores by a word; `attend_by` says what each means."""


def _match_normalizer(value: SpecValue) -> SpecValue | NoMatch:
    """A definition, or one of the words."""
    if isinstance(value, DefinitionFunction):
        return value if value.kind == "normalizer" else NO_MATCH
    word = value.word if isinstance(value, ChoiceValue) else value
    if isinstance(word, str) and word in NORMALIZER_WORDS:
        return ChoiceValue(word, NORMALIZER_WORDS)
    return NO_MATCH


TENSOR = _make_class_kind("a tensor", Tensor)
INTEGER = _make_class_kind("a whole number", Dim)
FLOAT = SimpleKind("a number", _match_float)
NUMBER = _make_class_kind("a number", Dim, float, RuntimeNumber)
BOOL = _make_class_kind("true or false", bool)
TEXT = SimpleKind("a text", _match_text)
MASK = SimpleKind("a mask", _match_mask)
SCORE = SimpleKind("a score", _match_score)
NORMALIZER = SimpleKind("a normalizer", _match_normalizer)
FUNCTION = SimpleKind("something to apply", _make_class_kind("", *get_args(Function)).fit)
ROPE = _make_class_kind("rotary frequencies, as `rope(theta=10000.0)` makes them", Rope)
RECORD = _make_class_kind("a record", Record)
NONE = _make_class_kind("none", NoneType)
ANYTHING = SimpleKind("anything", lambda value: value)

Scalar: TypeAlias = Annotated[Number, NUMBER]
"""A number that may be known only when the model runs; `float` must be known."""

Mask: TypeAlias = Annotated[DefinitionFunction | CombinedMask | bool | Tensor, MASK]
"""A definition, a combination, `all` or `none`, or a boolean grid."""

Score: TypeAlias = Annotated[DefinitionFunction | BuiltinFunction, SCORE]
"""A definition, or a word of two vectors such as `dot`."""

Normalizer: TypeAlias = Annotated[DefinitionFunction | ChoiceValue, NORMALIZER]
"""A definition, or a word such as `softmax`."""

FunctionValue: TypeAlias = Annotated[Function, FUNCTION]
"""Something to apply: a block, an activation, a norm, positions."""

Activation: TypeAlias = Annotated[Function | str, FUNCTION]
"""An activation; its name where the word gives one by default."""

Anything: TypeAlias = Annotated[SpecValue, ANYTHING]
"""Any value; the word itself says what it can use."""

KINDS_BY_ANNOTATION: dict[object, ParameterKind] = {
    Tensor: TENSOR,
    Dim: INTEGER,
    float: FLOAT,
    bool: BOOL,
    str: TEXT,
    Rope: ROPE,
    Record: RECORD,
    NoneType: NONE,
    None: NONE,
}
"""The kinds of annotations that are classes."""


def get_annotated_kinds(annotation: object) -> ParameterKinds:
    """What a parameter annotated so takes."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return (inner[1],)
    if origin in (Union, UnionType):
        return tuple(kind for one in inner for kind in get_annotated_kinds(one))
    if origin is Literal:
        return (ChoiceKind(inner),)
    if origin is tuple:
        (item,) = get_annotated_kinds(inner[0])
        return (ListKind(item),)
    return (KINDS_BY_ANNOTATION[annotation],)


def list_choice_words(kinds: ParameterKinds) -> tuple[str, ...]:
    """The words a choice admits, over all alternatives."""
    return tuple(w for kind in kinds if isinstance(kind, ChoiceKind) for w in kind.words)


def convert_to_kind(
    value: EvalResult, kinds: ParameterKinds, what: str, span: Span | None
) -> SpecValue:
    """`value` as one of some kinds. E0203 says what was expected."""
    one = take_first_result(value)
    for kind in kinds:
        fitted = kind.fit(one)
        if not isinstance(fitted, NoMatch):
            return fitted
    words = list_choice_words(kinds)
    if words and isinstance(one, str | ChoiceValue):
        # a word that is none of these was meant to be one: say which
        word = one if isinstance(one, str) else one.word
        helps = suggest_similar_name(word, words, f"it is one of {', '.join(words)}")
        raise_error("E0203", f"{what} cannot be `{word}`", span, helps=helps)
    title = f"{what} takes {describe_kinds(kinds)}, not {describe_value(one)}"
    if words:
        title = f"{what} is one of {', '.join(words)}"
    raise_error("E0203", title, span, f"this is {describe_value(one)}")


def describe_kinds(kinds: ParameterKinds) -> str:
    """What is admitted, in words."""
    return " or ".join(kind.name for kind in kinds)
