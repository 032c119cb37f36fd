"""What an expression of a spec can stand for while a model is elaborated.

Static values are `Dim` (whole numbers, known or symbolic), `float`, `Unknown` (a number that lengths not
known yet decide), `bool`, `str`, `Picked` (one of a choice), `None`, `tuple` (lists), `Record`, and functions
not yet applied. Tensors are `Tensor`; a call that has several results gives `Results`. A value that could
not be made is `POISON`: whoever meets it keeps quiet, so that one cause is one error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from specc.elaborate.needs import NeedsValue
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.ir.types import Type
from specc.lang import tree
from specc.text.source import Origin, Span

if TYPE_CHECKING:
    from specc.elaborate.context import Env


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
class Unknown:
    """A number that lengths decide which nobody knows yet. `value` is that number in the graph, f64[].

    It is known to be unknown: nothing can be decided by it, no number stands in for it. `symbols` are the lengths,
    `text` is how it was written, `whole` says that it surely is a whole number.
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

    values: tuple[Any, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Picked:
    """One of the words of `choice(a | b)`."""

    word: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """`record { … }`: static values by name."""

    fields: Mapping[str, Any]
    path: str = ""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary frequencies: `theta` and the scaling rule with its numbers."""

    theta: float
    kind: str = "default"
    numbers: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """A block, definition or op by name, with the options given so far; not applied yet.

    `kind` is `block`, `mask`, `score`, `bias` or `op`. `given` are options already evaluated; `args`
    positional ones. `env` is where it was written.
    """

    kind: str
    name: str
    target: Any
    args: tuple[Any, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    weights: tree.WeightName | None = None
    env: "Env | None" = None
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """Masks combined by `&`, `|`, `not`, before anyone knows the rows they are about; `a & b & c` is one of three."""

    op: str
    parts: tuple["MaskLike", ...]


@dataclass(frozen=True, slots=True)
class Poison:
    """The result of something already reported."""


POISON = Poison()

MaskLike: TypeAlias = Function | Joined | bool | Tensor


@dataclass(frozen=True, slots=True)
class RawConfig:
    """`config.vision_config`: a part of the configuration file, handed on as it is."""

    path: str
    data: Any


@dataclass(frozen=True, slots=True)
class Given:
    """A config value and where it came from."""

    value: Any
    origin: Origin


def first(value: Any) -> Any:
    """Of several results the first; anything else as it is."""
    return value.values[0] if isinstance(value, Results) else value


def describe(value: Any) -> str:
    """What a value is, for messages: `float[batch, 4]`, `the number 3`, `the text "a"`."""
    match first(value):
        case Tensor() as t:
            return show_type(t.type)
        case Dim() as d:
            return f"the number {d}" if d.number is not None else "a whole number"
        case bool(b):
            return str(b).lower()
        case float(f):
            return f"the number {f:g}"
        case Unknown(text=text):
            return f"a number, `{text}`"
        case str(s):
            return f'the text "{s}"'
        case Picked(word):
            return f"the word `{word}`"
        case None:
            return "none"
        case tuple():
            return "a list"
        case Record() | RawConfig():
            return "a record"
        case Rope():
            return "rotary frequencies"
        case Function(kind="op" | "block", name=name):
            return f"`{name}`, not applied to anything"
        case Function(kind=kind, name=name):
            return f"the {kind} `{name}`"
        case Joined():
            return "a mask"
        case other:
            return str(type(other).__name__).lower()


MOST_SHOWN = 12
"""Axes of a type that messages show."""
WORDS = {"f32": "float", "i64": "int", "bool": "bool"}


def show_type(type: Type) -> str:
    """A type as specs write it: `float[batch, n, 512]`."""
    dims = [str(d) for d in type.shape]
    if len(dims) > MOST_SHOWN:
        dims = [*dims[:4], f"… {len(dims) - 6} more …", *dims[-2:]]
    return f"{WORDS.get(type.dtype, type.dtype)}[{', '.join(dims)}]"
