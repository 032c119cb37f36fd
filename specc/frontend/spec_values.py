"""Values of expressions during elaboration: tensors, scalars, records, functions and masks."""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, NoReturn, TypeAlias

from specc.diagnostics.diagnostic import Span
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.frontend.json_parser_with_spans import JsonObject
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.ir.types import Type
from specc.syntax import ast

if TYPE_CHECKING:
    from specc.frontend.builtins.registry import Builtin
    from specc.frontend.elaboration_context import LexicalScope, SpecNamespace


class MissingValue:
    """The type of MISSING, a sentinel for missing values where `none` is a valid value."""


MISSING = MissingValue()


class UnresolvedValueError(Exception):
    """Raised if the graph structure depends on symbolic config values."""

    def __init__(self, symbols: frozenset[str], span: Span | None) -> None:
        super().__init__(", ".join(sorted(symbols)))
        self.symbols = symbols
        self.span = span


@immutable_dataclass
class Tensor:
    """A graph value, together with the source location of the last expression that refers to it."""

    value: Value
    source_span: Span | None = None

    @property
    def type(self) -> Type:
        """The element type and shape of the tensor."""
        return self.value.type

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of the tensor."""
        return self.value.type.shape


@immutable_dataclass
class RuntimeScalar:
    """A scalar that depends on dynamic dimensions, so that the graph computes it in float64.

    A `RuntimeScalar` cannot be compared or converted at compile time. The number depends on the
    dimensions `symbols`, has the formula `text`, and is guaranteed to be an integer if `is_integer`
    is True.
    """

    value: Value
    symbols: frozenset[str]
    text: str = field(compare=False)
    is_integer: bool = field(default=False, compare=False)

    def _raise_unresolved_value(self, *other: object) -> NoReturn:
        raise UnresolvedValueError(self.symbols, None)

    __bool__ = __float__ = __int__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = (
        _raise_unresolved_value
    )


@immutable_dataclass
class ResultTuple:
    """The named results of a call. The first result is used where a single value is expected."""

    values: tuple[Tensor, ...]
    names: tuple[str, ...] = ()


@immutable_dataclass
class StringChoice:
    """A value of a type `choice(a | b)`."""

    value: str
    allowed_values: tuple[str, ...]


@immutable_dataclass
class Record:
    """A record of compile-time values, or the config of the used spec `used_spec`."""

    fields: Mapping[str, "SpecValue"]
    path: str = ""
    used_spec: "SubmodelConfig | None" = None


@immutable_dataclass
class SubmodelConfig:
    """The module and the config file section of a used spec with a separate config."""

    module: "SpecNamespace"
    config_file: JsonObject | None = None


RopeNumber: TypeAlias = float | bool | tuple[float, ...] | RuntimeScalar | None
"""A parameter of RoPE scaling: one number, one number per feature pair, a bool, or none."""


@immutable_dataclass
class Rope:
    """The settings of RoPE frequencies: `theta`, the scaling kind and the scaling parameters."""

    theta: float | RuntimeScalar
    kind: str = "default"
    parameters: tuple[tuple[str, RopeNumber], ...] = ()

    def with_max_length(self, max_length: int) -> "Rope":
        """Return the settings for sequences of at most `max_length` tokens. If the frequencies do
        not depend on the sequence length, the settings are unchanged.
        """
        parameters = dict(self.parameters)
        if "longest" not in parameters:
            return self
        return replace(self, parameters=tuple({**parameters, "longest": max_length}.items()))


UnevaluatedOption: TypeAlias = tuple[ast.NamedArg, "LexicalScope"]
"""An option bound to a block, and the scope in which a call of the block evaluates the option."""


@immutable_dataclass(slots=True, kw_only=True)
class BlockFunction:
    """A block or graph as a function value, with the options that are already bound.

    `module` defines the block, and `env` is the scope of the reference. If a used spec has separate
    weights, `weight_scope` is the path of its weights in every call.
    """

    name: str
    block: ast.Block
    module: "SpecNamespace"
    bound_arguments: Mapping[str, UnevaluatedOption] = field(default_factory=dict)
    weight_path: ast.WeightPath | None = None
    env: "LexicalScope | None" = None
    span: Span | None = None
    weight_scope: str | None = None

    @property
    def kind(self) -> str:
        """The kind of the function, as shown in messages."""
        return "block"


@immutable_dataclass(slots=True, kw_only=True)
class AttentionFunction:
    """A mask, score, bias or normalizer definition as a function value, with the arguments that are
    already bound. The definition is expanded when the query and key axes are known.
    """

    name: str
    definition: ast.AttentionDef
    module: "SpecNamespace"
    bound_arguments: Mapping[str, "SpecValue"] = field(default_factory=dict)
    weight_path: ast.WeightPath | None = None
    env: "LexicalScope | None" = None
    span: Span | None = None

    @property
    def kind(self) -> str:
        """The kind of the definition: `mask`, `score`, `bias` or `normalizer`."""
        return self.definition.kind


@immutable_dataclass(slots=True, kw_only=True)
class BuiltinFunction:
    """A built-in function as a function value, with the options that are already bound."""

    name: str
    builtin: "Builtin"
    bound_arguments: Mapping[str, "SpecValue"] = field(default_factory=dict)
    weight_path: ast.WeightPath | None = None
    env: "LexicalScope | None" = None
    span: Span | None = None

    @property
    def kind(self) -> str:
        """The kind of the function, as shown in messages."""
        return "op"


Function: TypeAlias = BlockFunction | AttentionFunction | BuiltinFunction
"""A function value, i.e. a value that can be called."""


@immutable_dataclass
class MaskExpression:
    """A boolean expression (`&`, `|` or `not`) over masks that are not in the graph yet. `a & b &
    c` has three operands.
    """

    op: Literal["&", "|", "not"]
    operands: tuple["MaskLike", ...]


@immutable_dataclass
class ErrorValue:
    """The value of an expression whose error has already been reported."""


ERROR_VALUE = ErrorValue()


class AlreadyReportedError(Exception):
    """Raised for an expression that depends on a value whose error has already been reported."""


MaskLike: TypeAlias = (
    BlockFunction | AttentionFunction | BuiltinFunction | MaskExpression | bool | Tensor
)
"""An operand of a mask operator: `&`, `|` or `not`."""


@immutable_dataclass
class RawConfigSection:
    """An unconverted section of the config file, such as `config.vision_config`."""

    path: str
    data: JsonObject | None


Number: TypeAlias = Dim | float | RuntimeScalar
"""A scalar: an integer, a float, or a number known only at run time."""

SpecValue: TypeAlias = (
    Tensor
    | Dim
    | float
    | RuntimeScalar
    | bool
    | str
    | StringChoice
    | Record
    | RawConfigSection
    | Rope
    | BlockFunction
    | AttentionFunction
    | BuiltinFunction
    | MaskExpression
    | ErrorValue
    | tuple["SpecValue", ...]
    | None
)
"""The values that a name in a spec can have."""

EvalResult: TypeAlias = SpecValue | ResultTuple
"""The result of an expression: a single value, or the results of a call."""


def get_first_result(value: EvalResult) -> SpecValue:
    """Return the first result of `ResultTuple`, or any other value unchanged."""
    return value.values[0] if isinstance(value, ResultTuple) else value


def describe_value(value: EvalResult) -> str:
    """Describe a value for messages, as in `float[batch, 4]` or `the integer 3`. Raise
    AlreadyReportedError for ERROR_VALUE, whose error has already been reported.
    """
    first_value = get_first_result(value)
    if first_value is ERROR_VALUE:
        raise AlreadyReportedError
    return VALUE_DESCRIPTIONS[type(first_value)](first_value)


VALUE_DESCRIPTIONS: Mapping[type[object], Callable[..., str]] = {
    Tensor: lambda x: format_type(x.type),
    tuple: lambda x: f"the pair [{x[0]}, {x[1]}]" if _is_pair(x) else "a list",
    Record: lambda _: "a record",
    RawConfigSection: lambda _: "a record",
    Rope: lambda _: "RoPE frequencies",
    BlockFunction: lambda x: f"the block `{x.name}`",
    BuiltinFunction: lambda x: f"the function `{x.name}`",
    AttentionFunction: lambda x: f"the {x.kind} `{x.name}`",
    MaskExpression: lambda _: "a mask",
    bool: lambda x: str(x).lower(),
    Dim: lambda x: f"the integer {x}" if x.number is not None else "an integer",
    float: lambda x: f"the float {float(f'{x:g}')}",
    RuntimeScalar: lambda x: f"the run-time number `{x.text}`",
    str: lambda x: f'the string "{x}"',
    StringChoice: lambda x: f"the word `{x.value}`",
    type(None): lambda _: "none",
}


def format_value(value: SpecValue) -> str:
    """Format a compile-time value in spec syntax."""
    match value:
        case StringChoice(word):
            return word
        case bool() | None:
            return "none" if value is None else str(value).lower()
    return str(value)


def _is_pair(items: tuple[SpecValue, ...]) -> bool:
    return len(items) == 2 and all(isinstance(item, Dim) for item in items)


MAX_SHOWN_ITEMS = 12
"""The maximum number of dimensions of a type in messages."""
DTYPE_DESCRIPTIONS = {"f32": "float", "i64": "int", "bool": "bool"}


def format_type(type: Type) -> str:
    """Format a type in spec syntax, as in `float[batch, n, 512]`."""
    dims = [str(d) for d in type.shape]
    if len(dims) > MAX_SHOWN_ITEMS:
        dims = [*dims[:4], f"… {len(dims) - 6} more …", *dims[-2:]]
    return f"{DTYPE_DESCRIPTIONS.get(type.dtype, type.dtype)}[{', '.join(dims)}]"
