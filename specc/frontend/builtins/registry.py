"""The registry of built-in functions, and their calls."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from inspect import Parameter, getdoc, signature
from typing import NoReturn, TypeVar

from specc.diagnostics.diagnostic import Origin, Span, raise_error
from specc.frontend.elaboration_context import MAX_LAYERS, LexicalScope, join_weight_path
from specc.frontend.node_builder import NodeBuilder, check_weight_dim, check_weight_size
from specc.frontend.parameter_kinds import (
    TENSOR_KIND,
    Anything,
    ParameterKinds,
    get_annotated_parameter_kinds,
)
from specc.frontend.runtime_scalars import get_static_float
from specc.frontend.spec_values import (
    MISSING,
    EvalResult,
    MissingValue,
    Number,
    SpecValue,
    Tensor,
    UnresolvedValueError,
    describe_value,
    format_value,
)
from specc.frontend.weight_paths_and_sharing import (
    get_expert_weight,
    get_stacked_weight_shape,
    raise_shape_conflict_error,
)
from specc.ir import graph, ops
from specc.ir.dim import Dim
from specc.ir.op import Op
from specc.ir.types import Type
from specc.syntax import ast


@dataclass(frozen=True)
class BuiltinParameter:
    """A parameter of a built-in function. A required parameter has the default MISSING."""

    name: str
    kinds: ParameterKinds
    default: SpecValue | MissingValue
    is_positional: bool
    is_variadic: bool = False


@dataclass(frozen=True)
class Builtin:
    """A built-in function, with its parameters and its implementation.

    `has_weights` is True if calls of the function can have a weight path `@ name`.
    """

    name: str
    parameters: tuple[BuiltinParameter, ...]
    evaluate: Callable[..., EvalResult]
    has_weights: bool
    doc: str

    def format_signature(self) -> str:
        """Format the signature for documentation, as in `linear(x, out=, bias=true) @ name`."""
        texts = []
        for parameter in self.parameters:
            text = f"{parameter.name}…" if parameter.is_variadic else parameter.name
            default = parameter.default
            if not isinstance(default, MissingValue):
                text = f"{parameter.name}={format_value(default)}"
            elif not parameter.is_positional:
                text = f"{parameter.name}="
            texts.append(text)
        return f"{self.name}({', '.join(texts)}){' @ name' if self.has_weights else ''}"

    @property
    def is_variadic(self) -> bool:
        """True if the function accepts any number of inputs."""
        return any(s.is_variadic for s in self.parameters)

    def is_binary(self) -> bool:
        """True if the function requires exactly two tensors, like `dot`."""
        required = [p for p in self.parameters if isinstance(p.default, MissingValue)]
        return len(required) == 2 and all(
            p.kinds == (TENSOR_KIND,) and p.is_positional for p in required
        )


ZERO, ONE = Dim.from_value(0), Dim.from_value(1)
SECOND_AXIS, LAST_AXIS = Dim.from_value(1), Dim.from_value(-1)
"""The default values of the option `axis`."""

BUILTINS: dict[str, Builtin] = {}
F = TypeVar("F", bound=Callable[..., EvalResult])


def register_builtin(*, name: str = "", has_weights: bool = False) -> Callable[[F], F]:
    """Register a function as a built-in. `name` defaults to the name of the Python function."""

    def register(function: F) -> F:
        builtin_name = name or function.__name__.rstrip("_")
        assert builtin_name not in BUILTINS, f"two built-in functions are called {builtin_name}"
        # the first parameter of the Python function is the call context, which specs do not pass
        parameters = tuple(
            BuiltinParameter(
                p.name,
                get_annotated_parameter_kinds(p.annotation),
                MISSING if p.default is Parameter.empty else p.default,
                is_positional=p.kind is not Parameter.KEYWORD_ONLY,
                is_variadic=p.kind is Parameter.VAR_POSITIONAL,
            )
            for p in list(signature(function).parameters.values())[1:]
        )
        doc = getdoc(function) or ""
        BUILTINS[builtin_name] = Builtin(builtin_name, parameters, function, has_weights, doc)
        return function

    return register


@dataclass
class CallContext:
    """The context of a built-in function call: location, arguments, scope and node builder."""

    env: LexicalScope
    expr: ast.Call
    argument_spans: dict[str, Span | None] = field(default_factory=dict)

    @property
    def builder(self) -> NodeBuilder:
        """A builder for nodes in the weight scope of the current statement."""
        return NodeBuilder(self.env.context, self.span)

    def make_node_builder(self, argument: str) -> NodeBuilder:
        """Return a node builder that reports errors at the argument `argument`."""
        return NodeBuilder(self.env.context, self.argument_spans.get(argument))

    @property
    def span(self) -> Span | None:
        """The source span of the call."""
        return self.expr.span

    @property
    def scope(self) -> str:
        """The weight scope of the call, including the weight path after `@`."""
        return self.env.scope

    def add_node(self, op: Op, *operands: Tensor | None) -> tuple[Tensor, ...]:
        """Add a node with `op` and return its results. Errors are reported at this call."""
        nodes = NodeBuilder(self.env.context, self.span, self.scope)
        return nodes.add_node(op, operands, self.expr.function.path)

    def add_op(self, op: Op, *operands: Tensor | None) -> Tensor:
        """Add a node with `op` and return its first result."""
        return self.add_node(op, *operands)[0]

    def add_binary_op(self, fn: str, a: Tensor, b: Tensor) -> Tensor:
        """Add an `Arith` op, such as "add" or "max", and return its result."""
        return self.add_op(ops.Arith(fn), a, b)

    def insert_axis(self, x: Tensor, axis: int) -> Tensor:
        """Return `x` with an axis of size 1 inserted at `axis`."""
        return self.add_op(ops.Insert(axis), x)

    def squeeze_axis(self, x: Tensor, axis: int) -> Tensor:
        """Return `x` without its axis `axis` of size 1."""
        return self.add_op(ops.Squeeze(axis), x)

    def add_constant(self, value: float | int | bool, dtype: str) -> Tensor:
        """Return a scalar constant of `dtype`. Raise E0206 if an integer is infinite or NaN."""
        if not math.isfinite(value) and not dtype.startswith("f"):
            title = f"`{self.expr.function.path}`: expected floats, got integers"
            self.raise_error("E0206", title, helps=["convert them: `cast(x, to=float)`"])
        return self.builder.add_constant(value, dtype)

    def add_weight(
        self, name: str, shape: Sequence[Dim], init: str, size_options: Sequence[str] = ()
    ) -> Tensor:
        """Return the weight `scope.name`. Errors refer to the options `size_options`, which
        determine the shape.
        """
        path = join_weight_path(self.scope, name)
        if not path:
            self.raise_error(
                "E0520",
                f"the weights of this `{self.expr.function.path}` have no name",
                helps=["add `@ name`"],
            )
        dims = [
            _check_weight_dim(self, dim, path, size_options[n] if n < len(size_options) else "")
            for n, dim in enumerate(shape)
        ]
        stacks = self.env.context.weights.expert_stacks
        stored_shape = get_stacked_weight_shape(stacks, dims)
        check_weight_size(self.env.context, stored_shape, path, self.span)
        weight = graph.Parameter(
            name=path,
            type=Type("f32", tuple(dims)),
            initializer=init,
            span=self.env.context.errors.add_call_site_to_span(self.span),
            declared_by=self.expr.function.path,
        )
        existing_weight = self.env.context.builder.parameter_facts.get(path)
        # check the shape first, because calls can share a weight only if they use the same shape
        if existing_weight and existing_weight.type.shape != stored_shape:
            raise_shape_conflict_error(
                existing_weight, replace(weight, type=Type("f32", stored_shape))
            )
        self.env.context.weights.sharing.register_weight(path)
        return Tensor(get_expert_weight(self.env.context.builder, stacks, weight), self.span)

    def require_positive_count(self, value: Dim, option: str) -> int:
        """Return a count known at compile time. Raise E0216 if it is below 1 or above 4096."""
        number = self.require_integer(value, option)
        if not 1 <= number <= MAX_LAYERS:
            self.raise_error(
                "E0216",
                f"`{option}` of `{self.expr.function.path}` must be between 1 and "
                f"{MAX_LAYERS}, got {number}",
                option,
            )
        return number

    def check_range(
        self, value: Number | None, option: str, minimum: float, maximum: float = math.inf
    ) -> None:
        """Raise E0417 if a compile-time value is not finite or out of range."""
        if value is None:
            return
        number = get_static_float(value)
        if number is None or (math.isfinite(number) and minimum <= number <= maximum):
            return
        expected = f"from {minimum:g} to {maximum:g}"
        if maximum == math.inf:
            expected = "finite" if minimum == -math.inf else f"at least {minimum:g}, and finite"
        title = f"`{option}` of `{self.expr.function.path}` is {number:g}, expected {expected}"
        self.raise_error("E0417", title, option)

    def require_integer(self, value: Dim, option: str) -> int:
        """Return `value` as an integer. Raise UnresolvedValueError for a symbol."""
        if value.number is None:
            raise UnresolvedValueError(value.symbols(), self.argument_spans.get(option))
        return value.number

    def resolve_axis(self, x: Tensor, axis: Dim, *, extra_axes: int = 0) -> int:
        """Return the non-negative index of an axis. Negative axes count from the end. Raise E0208
        if `x` has no such axis. `extra_axes=1` allows one more index, to insert an axis at the end.
        """
        rank = len(x.shape) + extra_axes
        n = axis.number
        if n is None or not -rank <= n < rank:
            title = f"axis {axis} is out of range for a tensor with {len(x.shape)} axes"
            range_help = f"write an axis from {-rank} to {rank - 1}; -1 is the last axis"
            helps = [range_help] if rank else []
            self.raise_error("E0208", title, "axis", describe_value(x), helps=helps)
        return n % rank

    def raise_error(
        self,
        code: str,
        title: str,
        argument: str = "",
        label: str = "",
        *,
        helps: Sequence[str] = (),
    ) -> NoReturn:
        """Raise an error at this call, or at the argument `argument` of this call."""
        raise_error(code, title, self.argument_spans.get(argument) or self.span, label, helps=helps)


def _check_weight_dim(ctx: CallContext, dim: Dim, name: str, option: str) -> Dim:
    """Check a dimension of the weight `name`, and return the dimension. The origin of the dimension
    is the option `option` if the call sets this option.
    """
    span = ctx.argument_spans.get(option)
    check_weight_dim(ctx.env.context, dim, name, span or ctx.span)
    return dim.with_origin(Origin(span, f"`{option}=` of the weight `{name}`")) if span else dim


def broadcast_batch_axis(ctx: CallContext, x: Tensor, batch: Dim) -> Tensor:
    """Expand a tensor of batch size 1 to the batch size of other operands."""
    is_single = len(x.shape) > 1 and x.shape[0] == 1 and batch != 1
    return ctx.add_op(ops.Expand(0, batch), x) if is_single else x


@register_builtin()
def apply(ctx: CallContext, f: Anything, *inputs: Anything) -> EvalResult:
    """Call the block, activation, norm or position encoding `f` with `inputs`."""
    raise AssertionError("`apply` is resolved by the caller")
