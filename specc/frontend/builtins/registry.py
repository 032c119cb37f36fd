"""Registry of built-in functions, `CallSite`, and built-in functions of static values."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from inspect import getdoc, signature
from typing import NoReturn, TypeVar

from specc.diagnostics.diagnostic import Diagnostic, Failed, Label, raise_error
from specc.diagnostics.source import Origin, Span
from specc.frontend import node_builder
from specc.frontend.context import MAX_LAYERS, Context, Env, join_weight_path
from specc.frontend.node_builder import check_weight_length, check_weight_size
from specc.frontend.parameter_kinds import TENSOR, Anything, ParameterKinds, get_annotated_kinds
from specc.frontend.scalar_arithmetic import convert_to_float, get_known_float, truncate_to_integer
from specc.frontend.spec_values import (
    ChoiceValue,
    EvalResult,
    NeedsValue,
    Number,
    Record,
    RuntimeNumber,
    SpecValue,
    Tensor,
    describe_value,
)
from specc.frontend.weight_sharing import get_expert_weight, get_stacked_shape
from specc.ir.dim import Dim
from specc.ir.graph import Parameter
from specc.ir.op import Op
from specc.ir.ops import Cast
from specc.ir.types import Type
from specc.syntax import ast


class Missing:
    """No default: must be given."""


MISSING = Missing()


@dataclass(frozen=True)
class BuiltinParameter:
    """One parameter of a word."""

    name: str
    kinds: ParameterKinds
    default: SpecValue | Missing
    positional: bool
    many: bool = False


@dataclass(frozen=True)
class Builtin:
    """One word: how it is called and what it makes. `weights` says that it takes `@`."""

    name: str
    slots: tuple[BuiltinParameter, ...]
    make: Callable[..., EvalResult]
    weights: bool
    doc: str

    def shown(self) -> str:
        """`linear(x, out=, bias=true) @`."""
        parts = []
        for slot in self.slots:
            text = f"{slot.name}…" if slot.many else slot.name
            if not slot.positional or slot.default is not MISSING:
                default = slot.default
                shown = "" if isinstance(default, Missing) else _format_default(default)
                text = f"{slot.name}={shown}"
            parts.append(text)
        return f"{self.name}({', '.join(parts)}){' @ name' if self.weights else ''}"

    @property
    def many(self) -> bool:
        """Whether it takes any number of inputs."""
        return any(s.many for s in self.slots)

    def is_pairwise(self) -> bool:
        """Whether it needs two tensors and nothing else, as `dot` does."""
        needed = [s for s in self.slots if s.default is MISSING]
        return len(needed) == 2 and all(s.kinds == (TENSOR,) and s.positional for s in needed)


BUILTINS: dict[str, Builtin] = {}
F = TypeVar("F", bound=Callable[..., EvalResult])


def register_builtin(*, name: str = "", weights: bool = False) -> Callable[[F], F]:
    """Make the decorated function a word of the language, under its own name unless
    another is given.
    """

    def register(make: F) -> F:
        called = name or make.__name__.rstrip("_")
        assert called not in BUILTINS, f"two words are called {called}"
        slots = []
        # the first is the site, which no spec gives
        for p in list(signature(make).parameters.values())[1:]:
            default = MISSING if p.default is inspect.Parameter.empty else p.default
            many = p.kind is inspect.Parameter.VAR_POSITIONAL
            slots.append(
                BuiltinParameter(
                    p.name.rstrip("_"),
                    get_annotated_kinds(p.annotation),
                    default,
                    p.kind is not inspect.Parameter.KEYWORD_ONLY,
                    many,
                )
            )
        BUILTINS[called] = Builtin(called, tuple(slots), make, weights, getdoc(make) or "")
        return make

    return register


@dataclass
class CallSite:
    """One call in a spec, while its word makes nodes: where it stands and under which
    weight scope.
    """

    context: Context
    env: Env
    call: ast.Call
    spans: dict[str, Span | None] = field(default_factory=dict)

    @property
    def span(self) -> Span | None:
        """The text of the call."""
        return self.call.span

    @property
    def scope(self) -> str:
        """The weight scope of this call, its own `@` included."""
        return self.env.scope

    def add(self, op: Op, *operands: Tensor | None) -> tuple[Tensor, ...]:
        """The results of `op`, or a diagnostic at this call."""
        return node_builder.add_node(
            self.context, op, operands, self.span, self.scope, self.call.function.path
        )

    def one(self, op: Op, *operands: Tensor | None) -> Tensor:
        """The first result of `op`."""
        return self.add(op, *operands)[0]

    def constant(self, value: float | int | bool, dtype: str) -> Tensor:
        """A number as a tensor."""
        return node_builder.add_constant(self.context, value, dtype, self.span)

    def parameter(
        self, leaf: str, shape: Sequence[Dim], initial: str, sizes: Sequence[str] = ()
    ) -> Tensor:
        """The weight `scope.leaf`. `sizes` are the options that fixed each length, for messages."""
        name = join_weight_path(self.scope, leaf)
        if not name:
            self.fail(
                "E0520",
                f"these weights of `{self.call.function.path}` have no name",
                helps=["add `@ name`"],
            )
        dims = []
        for n, length in enumerate(shape):
            option = sizes[n] if n < len(sizes) else ""
            at = self.spans.get(option)
            origin = Origin(at, f"`{option}=` of the weight `{name}`") if at else None
            dim = Dim.of(length)
            check_weight_length(self.context, dim, name, at or self.span)
            dims.append(dim.since(origin) if origin else dim)
        stacks = self.context.expert_stacks
        whole = get_stacked_shape(stacks, dims)
        check_weight_size(self.context, whole, name, self.span)
        wanted = Parameter(
            name=name,
            type=Type("f32", tuple(dims)),
            initial=initial,
            span=self.context.at(self.span),
            made_by=self.call.function.path,
        )
        known = self.context.builder.parameter_facts.get(name)
        # before anything is shared: calls of two sizes cannot mean one weight
        if known and known.type.shape != whole:
            _raise_shape_conflict(known, replace(wanted, type=Type("f32", whole)))
        self.context.sharing.claim(name)
        return Tensor(get_expert_weight(self.context.builder, stacks, wanted), self.span)

    def count(self, value: Dim, option: str) -> int:
        """How often something is done: from 1 to 4096, known. E0216 otherwise."""
        number = self.number(value, option)
        if not 1 <= number <= MAX_LAYERS:
            self.fail(
                "E0216",
                f"`{option}` of `{self.call.function.path}` is from 1 to "
                f"{MAX_LAYERS}, not {number}",
                option,
            )
        return number

    def within(
        self, value: Number | None, option: str, least: float, most: float = math.inf
    ) -> None:
        """E0417 unless a number that is known is finite and in the range."""
        if value is None:
            return
        number = get_known_float(value)
        if number is None or (math.isfinite(number) and least <= number <= most):
            return
        told = f"from {least:g} to {most:g}"
        if most == math.inf:
            told = "finite" if least == -math.inf else f"at least {least:g}, and finite"
        word = self.call.function.path
        title = f"`{option}` of `{word}` is {number:g}, and must be {told}"
        self.fail("E0417", title, option)

    def number(self, value: Dim, option: str) -> int:
        """A number that must be known; NeedsValue while it is a symbol."""
        if value.number is None:
            raise NeedsValue(value.symbols(), self.spans.get(option))
        return value.number

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """The same values in another element type."""
        return self.one(Cast(dtype), x)

    def axis(self, x: Tensor, axis: Dim, *, ends: int = 0) -> int:
        """An axis counted from 0; negative ones count from the end. E0208 when there is
        none such.
        """
        rank = len(x.shape) + ends
        n = axis.number
        if n is None or not -rank <= n < rank:
            title = f"there is no axis {axis} in a tensor of {len(x.shape)} axes"
            self.fail("E0208", title, "axis", describe_value(x))
        return n % rank

    def fail(
        self,
        code: str,
        title: str,
        argument: str = "",
        label: str = "",
        *,
        helps: Sequence[str] = (),
    ) -> NoReturn:
        """A diagnostic at this call, or at one of its arguments."""
        raise_error(code, title, self.spans.get(argument) or self.span, label, helps=helps)


def _raise_shape_conflict(known: Parameter, wanted: Parameter) -> NoReturn:
    """E0519 for one name that two calls give to weights of different sizes."""
    others = (Label(known.span, f"here it is {known.type}"),) if known.span else ()
    raise Failed(
        Diagnostic(
            "E0519",
            f"two different weights are called `{wanted.name}`",
            Label(wanted.span, f"here it is {wanted.type}") if wanted.span else None,
            others,
            helps=("give each its own `@` name; weights that calls share are of one size",),
        )
    )


def _format_default(value: SpecValue) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return value.word if isinstance(value, ChoiceValue) else str(value)


@register_builtin(name="len")
def len_(site: CallSite, x: Anything) -> Dim:
    """How many items a list has, or how many letters a text."""
    if isinstance(x, tuple | str):
        return Dim.of(len(x))
    if isinstance(x, Record):
        return Dim.of(len(x.fields))
    helps = ["length(x, axis=1) is the length of a tensor's axis"] if isinstance(x, Tensor) else []
    site.fail("E0203", f"`len` takes a list or a text, not {describe_value(x)}", "x", helps=helps)


@register_builtin(name="int")
def int_(site: CallSite, x: Anything) -> EvalResult:
    """A number cut to a whole one."""
    if not isinstance(x, Number):
        site.fail("E0203", f"`int` takes a number, not {describe_value(x)}", "x")
    if isinstance(x, float) and not math.isfinite(x):
        site.fail("E0310", f"int({x:g}) has no value", "x")
    if isinstance(x, RuntimeNumber):
        return truncate_to_integer(site.context, x, site.span)
    return x if isinstance(x, Dim) else Dim.of(int(x))


@register_builtin()
def at_least(site: CallSite, x: Anything, least: Anything) -> EvalResult:
    """The number itself, which is no less than `least`: for what a definition takes."""
    if not isinstance(x, Number) or not isinstance(least, Number):
        site.fail("E0203", f"`at_least` takes two numbers, not {describe_value(x)}", "x")
    number, lowest = get_known_float(x), get_known_float(least)
    if number is None or lowest is None or number >= lowest:
        return x
    site.fail("E0417", f"{x} is less than {least}, the least that has a meaning here", "x")


@register_builtin(name="float")
def float_(site: CallSite, x: Anything) -> EvalResult:
    """A whole number as one with a fraction; of a tensor, its values so."""
    if isinstance(x, Tensor):
        from_ = {"i64": "f32", "bool": "f32"}.get(x.type.dtype)
        return site.cast(x, from_) if from_ else x
    if not isinstance(x, Number):
        site.fail("E0203", f"`float` takes a number or a tensor, not {describe_value(x)}", "x")
    return convert_to_float(site.context, x, site.span)


@register_builtin()
def apply(site: CallSite, f: Anything, *inputs: Anything) -> EvalResult:
    """What `f` stands for (a block, an activation, a norm, positions), of these inputs."""
    raise AssertionError("`apply` is resolved by the caller")
