"""Parameter kinds, which check and convert the values that a parameter accepts."""

from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Literal, TypeAlias, Union, get_args, get_origin

from specc.diagnostics.diagnostic import Span, raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.spec_values import (
    MISSING,
    AttentionFunction,
    BuiltinFunction,
    EvalResult,
    Function,
    MaskExpression,
    MissingValue,
    Number,
    Record,
    Rope,
    RuntimeScalar,
    SpecValue,
    StringChoice,
    Tensor,
    describe_value,
    get_first_result,
)
from specc.ir.dim import Dim


@dataclass(frozen=True, eq=False)
class SimpleParameterKind:
    """A parameter kind that is defined by a conversion function, such as the kind of integers.
    `convert` returns MISSING for a value of another kind, and messages show `name`. Instances are
    compared by identity.
    """

    name: str
    convert: Callable[[SpecValue], SpecValue | MissingValue]


@dataclass(frozen=True)
class ChoiceParameterKind:
    """A parameter kind that accepts one of the strings `values`."""

    values: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the parameter kind in messages."""
        return "one of " + ", ".join(self.values)

    def convert(self, value: SpecValue) -> str | MissingValue:
        """Return the name of a choice value or a string, or MISSING if the name is not allowed."""
        word = value.value if isinstance(value, StringChoice) else value
        return word if isinstance(word, str) and word in self.values else MISSING


@dataclass(frozen=True)
class ListParameterKind:
    """A parameter kind for lists whose items all have the same kind."""

    item: "ParameterKind"

    @property
    def name(self) -> str:
        """The name of the parameter kind in messages."""
        inner = self.item.name.removeprefix("an ").removeprefix("a ")
        if isinstance(self.item, ListParameterKind):
            return f"a list of {inner.replace('list', 'lists', 1)}"
        return f"a list of {inner}s"

    def convert(self, value: SpecValue) -> SpecValue | MissingValue:
        """Convert every item of a list, or return MISSING if an item cannot be converted."""
        if not isinstance(value, tuple):
            return MISSING
        items: list[SpecValue] = []
        for item in value:
            converted = self.item.convert(item)
            if isinstance(converted, MissingValue):
                return MISSING
            items.append(converted)
        return tuple(items)


ParameterKind: TypeAlias = SimpleParameterKind | ChoiceParameterKind | ListParameterKind
ParameterKinds: TypeAlias = tuple[ParameterKind, ...]
"""The kinds of values that a parameter accepts."""


def _make_class_kind(name: str, *classes: type) -> SimpleParameterKind:
    """Return a parameter kind that accepts instances of `classes` without conversion."""

    def match_class(value: SpecValue) -> SpecValue | MissingValue:
        return value if isinstance(value, classes) else MISSING

    return SimpleParameterKind(name, match_class)


def _match_float(value: SpecValue) -> SpecValue | MissingValue:
    """Convert an integer to a float. Return floats, symbols and run-time scalars unchanged, and
    MISSING for other values.
    """
    if isinstance(value, Dim):
        return float(value.number) if value.number is not None else value
    return value if isinstance(value, float | RuntimeScalar) else MISSING


def _match_text(value: SpecValue) -> SpecValue | MissingValue:
    if isinstance(value, StringChoice):
        return value.value
    return value if isinstance(value, str) else MISSING


def _match_mask(value: SpecValue) -> SpecValue | MissingValue:
    """Return a mask (a definition, a bool for `all` or `none`, or a tensor), or MISSING."""
    if isinstance(value, AttentionFunction):
        return value if value.kind == "mask" else MISSING
    return value if isinstance(value, MaskExpression | bool | Tensor) else MISSING


def _match_score(value: SpecValue) -> SpecValue | MissingValue:
    """Return a score (a definition, or a built-in function of two tensors), or MISSING."""
    match value:
        case AttentionFunction() if value.kind == "score":
            return value
        case BuiltinFunction() if value.builtin.is_binary():
            return value
    return MISSING


NORMALIZER_NAMES = ("softmax", "queries", "hard", "sampled", "kernel", "uniform")
"""The names of the built-in normalizers (see `attend_by`)."""


def _match_normalizer(value: SpecValue) -> SpecValue | MissingValue:
    """Return a normalizer (a definition, or a built-in name), or MISSING."""
    if isinstance(value, AttentionFunction):
        return value if value.kind == "normalizer" else MISSING
    word = value.value if isinstance(value, StringChoice) else value
    if isinstance(word, str) and word in NORMALIZER_NAMES:
        return StringChoice(word, NORMALIZER_NAMES)
    return MISSING


TENSOR_KIND = _make_class_kind("a tensor", Tensor)
INTEGER_KIND = _make_class_kind("an integer", Dim)
FLOAT_KIND = SimpleParameterKind("a number", _match_float)
NUMBER_KIND = _make_class_kind("a number", Dim, float, RuntimeScalar)
BOOL_KIND = _make_class_kind("true or false", bool)
TEXT_KIND = SimpleParameterKind("a string", _match_text)
MASK_KIND = SimpleParameterKind("a mask", _match_mask)
SCORE_KIND = SimpleParameterKind("a score", _match_score)
NORMALIZER_KIND = SimpleParameterKind("a normalizer", _match_normalizer)
FUNCTION_KIND = SimpleParameterKind("a function", _make_class_kind("", *get_args(Function)).convert)
ROPE_KIND = _make_class_kind("RoPE frequencies, such as `rope(theta=10000.0)`", Rope)
RECORD_KIND = _make_class_kind("a record", Record)
NONE_KIND = _make_class_kind("none", NoneType)
ANY_KIND = SimpleParameterKind("anything", lambda value: value)

Scalar: TypeAlias = Annotated[Number, NUMBER_KIND]
"""A number that may be known only at run time, whereas `float` requires a compile-time number."""

Mask: TypeAlias = Annotated[AttentionFunction | MaskExpression | bool | Tensor, MASK_KIND]
"""A mask: a definition, a combination of masks, `all`, `none` or a boolean tensor."""

Score: TypeAlias = Annotated[AttentionFunction | BuiltinFunction, SCORE_KIND]
"""A score: a definition, or a built-in function of two vectors such as `dot`."""

Normalizer: TypeAlias = Annotated[AttentionFunction | StringChoice, NORMALIZER_KIND]
"""A normalizer: a definition, or a built-in name such as `softmax`."""

FunctionValue: TypeAlias = Annotated[Function, FUNCTION_KIND]
"""A function value, such as a block, an activation, a norm or a position encoding."""

Activation: TypeAlias = Annotated[Function | str, FUNCTION_KIND]
"""An activation function, or the name of an activation as a default value."""

Anything: TypeAlias = Annotated[SpecValue, ANY_KIND]
"""A value of any type. The built-in function checks the type."""

KINDS_BY_ANNOTATION: dict[object, ParameterKind] = {
    Tensor: TENSOR_KIND,
    Dim: INTEGER_KIND,
    float: FLOAT_KIND,
    bool: BOOL_KIND,
    str: TEXT_KIND,
    Rope: ROPE_KIND,
    Record: RECORD_KIND,
    NoneType: NONE_KIND,
    None: NONE_KIND,
}
"""The parameter kind for each Python class that is used as an annotation."""


def get_annotated_parameter_kinds(annotation: object) -> ParameterKinds:
    """Convert a Python annotation to parameter kinds."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return (arguments[1],)
    if origin in (Union, UnionType):
        return tuple(
            kind for argument in arguments for kind in get_annotated_parameter_kinds(argument)
        )
    if origin is Literal:
        return (ChoiceParameterKind(arguments),)
    if origin is tuple:
        (item,) = get_annotated_parameter_kinds(arguments[0])
        return (ListParameterKind(item),)
    return (KINDS_BY_ANNOTATION[annotation],)


def list_choice_values(kinds: ParameterKinds) -> tuple[str, ...]:
    """Return the allowed names of all choice kinds among `kinds`."""
    return tuple(w for kind in kinds if isinstance(kind, ChoiceParameterKind) for w in kind.values)


def convert_to_parameter_kind(
    value: EvalResult, kinds: ParameterKinds, description: str, span: Span | None
) -> SpecValue:
    """Convert `value` with the first kind in `kinds` that accepts it, or raise E0203."""
    first = get_first_result(value)
    for kind in kinds:
        converted = kind.convert(first)
        if not isinstance(converted, MissingValue):
            return converted
    choice_names = list_choice_values(kinds)
    if choice_names and isinstance(first, str | StringChoice):
        # the user probably means a choice value, so list the allowed values in the message
        word = first if isinstance(first, str) else first.value
        helps = suggest_similar_name(
            word, choice_names, f"expected one of {', '.join(choice_names)}"
        )
        raise_error("E0203", f"{description} cannot be `{word}`", span, helps=helps)
    title = (
        f"{description}: expected {describe_parameter_kinds(kinds)}, got {describe_value(first)}"
    )
    if choice_names:
        title = f"{description} must be one of {', '.join(choice_names)}"
    helps = [MASK_HELP] if MASK_KIND in kinds else []
    is_named = {MASK_KIND, SCORE_KIND, NORMALIZER_KIND, FUNCTION_KIND}.intersection(kinds)
    if is_named and isinstance(first, str) and first.isidentifier():
        helps = [f"write a name without quotes: `{first}`"]
    if isinstance(first, str) and description.startswith("`axis`"):
        helps = ["axes are numbered: the first axis is 0, the last axis is -1"]
    raise_error("E0203", title, span, f"this is {describe_value(first)}", helps=helps)


MASK_HELP = (
    "`mask=all` masks out nothing, `mask=causal` later positions, `mask=visible(keep)` padding"
)


def describe_parameter_kinds(kinds: ParameterKinds) -> str:
    """Format the accepted kinds of a parameter for messages."""
    return " or ".join(kind.name for kind in kinds)
