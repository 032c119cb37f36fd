"""The values of spec expressions during elaboration: tensors, numbers, records, functions,
masks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NoReturn, TypeAlias

from specc.diagnostics.source import Span
from specc.frontend.json_nodes import JsonObject
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.ir.types import Type
from specc.syntax import ast

if TYPE_CHECKING:
    from specc.frontend.builtins.registry import Builtin
    from specc.frontend.context import Env, SpecModule


class NeedsValue(Exception):
    """A choice of structure hangs on symbols that stand for config values."""

    def __init__(self, symbols: frozenset[str], span: Span | None) -> None:
        super().__init__(", ".join(sorted(symbols)))
        self.symbols = symbols
        self.span = span


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the graph and the text it was last called by."""

    value: Value
    span: Span | None = None

    @property
    def type(self) -> Type:
        """Its element type and lengths."""
        return self.value.type

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Its lengths."""
        return self.value.type.shape


@dataclass(frozen=True, slots=True)
class RuntimeNumber:
    """A number that lengths decide which nobody knows yet. `value` is that number in
    the graph, f64[].

    It is known to be unknown: nothing can be decided by it, no number stands in for it.
    `symbols` are the lengths, `text` is how it was written, `whole` says that it surely
    is a whole number.
    """

    value: Value
    symbols: frozenset[str]
    text: str = field(compare=False)
    whole: bool = field(default=False, compare=False)

    def _asked(self, *other: object) -> NoReturn:
        raise NeedsValue(self.symbols, None)

    __bool__ = __float__ = __int__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _asked


@dataclass(frozen=True, slots=True)
class Results:
    """Named results of a call; where one value is meant it is the first."""

    values: tuple[Tensor, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceValue:
    """One of the words of `choice(a | b)`."""

    word: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """`record { … }`: static values by name. `of` is the used spec whose config they are,
    where they are one.
    """

    fields: Mapping[str, "SpecValue"]
    path: str = ""
    of: "UsedSpecConfig | None" = None


@dataclass(frozen=True, slots=True)
class UsedSpecConfig:
    """A used spec as its config was read: the module that is used, and the part of a
    config file that is its own.
    """

    module: "SpecModule"
    raw: JsonObject | None = None


RopeNumber: TypeAlias = float | bool | tuple[float, ...] | RuntimeNumber | None
"""A number of a scaling rule: one of all pairs, one for each pair, a truth, or none."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary frequencies: `theta` and the scaling rule with its numbers."""

    theta: float | RuntimeNumber
    kind: str = "default"
    numbers: tuple[tuple[str, RopeNumber], ...] = ()

    def over(self, longest: int) -> "Rope":
        """The same, for texts of up to so many rows, where that decides the
        frequencies.
        """
        named = dict(self.numbers)
        if "longest" not in named:
            return self
        return replace(self, numbers=tuple({**named, "longest": longest}.items()))


UnevaluatedOption: TypeAlias = tuple[ast.Option, "Env"]
"""An option that is evaluated when its block is called: the block's declared type says
how. With it goes the place where it was written.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFunction:
    """A block or graph by name, with the options given so far; not applied yet.

    `module` is where it was defined, `env` where it was named. Of a used spec with
    weights of its own, `base` is the path that they stand under, wherever the call does.
    """

    name: str
    block: ast.Block
    module: "SpecModule"
    given: Mapping[str, UnevaluatedOption] = field(default_factory=dict)
    weights: ast.WeightName | None = None
    env: "Env | None" = None
    span: Span | None = None
    base: str | None = None

    @property
    def kind(self) -> str:
        """What it is, for messages."""
        return "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionFunction:
    """A mask, score, bias or normalizer by name, with the values given so far; expanded where the
    rows are known.
    """

    name: str
    definition: ast.Definition
    module: "SpecModule"
    given: Mapping[str, "SpecValue"] = field(default_factory=dict)
    weights: ast.WeightName | None = None
    env: "Env | None" = None
    span: Span | None = None

    @property
    def kind(self) -> str:
        """`mask`, `score`, `bias` or `normalizer`."""
        return self.definition.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinFunction:
    """A word of the vocabulary by name, with the options given so far; not applied yet."""

    name: str
    word: "Builtin"
    given: Mapping[str, "SpecValue"] = field(default_factory=dict)
    weights: ast.WeightName | None = None
    env: "Env | None" = None
    span: Span | None = None

    @property
    def kind(self) -> str:
        """What it is, for messages."""
        return "op"


Function: TypeAlias = BlockFunction | DefinitionFunction | BuiltinFunction
"""What can be called, or handed over to be called later."""


@dataclass(frozen=True, slots=True)
class CombinedMask:
    """Masks combined by `&`, `|`, `not`, before anyone knows the rows they are about;
    `a & b & c` is one of three.
    """

    op: Literal["&", "|", "not"]
    parts: tuple["MaskLike", ...]


@dataclass(frozen=True, slots=True)
class Poison:
    """The result of something already reported."""


POISON = Poison()

MaskLike: TypeAlias = (
    BlockFunction | DefinitionFunction | BuiltinFunction | CombinedMask | bool | Tensor
)
"""What may stand in a combination of masks."""


@dataclass(frozen=True, slots=True)
class RawConfig:
    """`config.vision_config`: a part of the configuration file, handed on as it is."""

    path: str
    data: JsonObject | None


Number: TypeAlias = Dim | float | RuntimeNumber
"""A static number: whole, with a fraction, or not known yet."""

SpecValue: TypeAlias = (
    Tensor
    | Dim
    | float
    | RuntimeNumber
    | bool
    | str
    | ChoiceValue
    | Record
    | RawConfig
    | Rope
    | BlockFunction
    | DefinitionFunction
    | BuiltinFunction
    | CombinedMask
    | Poison
    | tuple["SpecValue", ...]
    | None
)
"""What a name can stand for where one value is meant."""

EvalResult: TypeAlias = SpecValue | Results
"""What an expression can stand for: everything that elaboration knows of a value."""


def take_first_result(value: EvalResult) -> SpecValue:
    """Of several results the first; anything else as it is."""
    return value.values[0] if isinstance(value, Results) else value


def describe_value(value: EvalResult) -> str:
    """What a value is, for messages: `float[batch, 4]`, `the number 3`, `the text "a"`."""
    match take_first_result(value):
        case Tensor(value=made):
            return format_type(made.type)
        case (Dim() as one, Dim() as two):
            return f"the pair [{one}, {two}]"
        case tuple():
            return "a list"
        case Record() | RawConfig():
            return "a record"
        case Rope():
            return "rotary frequencies"
        case BlockFunction(name=name) | BuiltinFunction(name=name):
            return f"`{name}`, not applied to anything"
        case DefinitionFunction(name=name) as held:
            return f"the {held.kind} `{name}`"
        case CombinedMask():
            return "a mask"
        case Poison():
            return "poison"  # only where a fault is met that was reported already
        case constant:
            return _describe_constant(constant)


def _describe_constant(value: Number | bool | str | ChoiceValue | None) -> str:
    match value:
        case bool():  # before the numbers: to Python a truth is a whole number
            return str(value).lower()
        case Dim():
            known = value.number is not None
            return f"the number {value}" if known else "a whole number"
        case float():
            return f"the number {value:g}"
        case RuntimeNumber(text=text):
            return f"a number, `{text}`"
        case str():
            return f'the text "{value}"'
        case ChoiceValue(word):
            return f"the word `{word}`"
        case None:
            return "none"


MAX_SHOWN_ITEMS = 12
"""Axes of a type that messages show."""
DTYPE_WORDS = {"f32": "float", "i64": "int", "bool": "bool"}


def format_type(type: Type) -> str:
    """A type as specs write it: `float[batch, n, 512]`."""
    dims = [str(d) for d in type.shape]
    if len(dims) > MAX_SHOWN_ITEMS:
        dims = [*dims[:4], f"… {len(dims) - 6} more …", *dims[-2:]]
    return f"{DTYPE_WORDS.get(type.dtype, type.dtype)}[{', '.join(dims)}]"
