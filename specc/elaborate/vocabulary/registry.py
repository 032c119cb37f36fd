"""The words of the language that are not written in it: each a Python function that
adds nodes.

`@word()` reads the function's own signature: positional parameters come first,
keyword-only ones are options; annotations are kinds (`specc.elaborate.kinds`). The
first parameter is the `Site` of the call.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from inspect import getdoc, signature
from typing import NoReturn, TypeVar

from specc.elaborate import nodes
from specc.elaborate.context import MOST_LAYERS, Context, Env, joined
from specc.elaborate.kinds import TENSOR, Kinds, kinds_of
from specc.elaborate.needs import NeedsValue
from specc.elaborate.numbers import known
from specc.elaborate.sizes import check_length, check_size
from specc.elaborate.stacked import held, whole_shape
from specc.elaborate.values import Evaluated, Known, Number, Picked, Tensor, describe
from specc.ir.dim import Dim
from specc.ir.graph import Parameter
from specc.ir.op import Op
from specc.ir.ops import Cast
from specc.ir.types import Type
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, Label, fail
from specc.text.source import Origin, Span


class Missing:
    """No default: must be given."""


MISSING = Missing()


@dataclass(frozen=True)
class Slot:
    """One parameter of a word."""

    name: str
    kinds: Kinds
    default: Known | Missing
    positional: bool
    many: bool = False


@dataclass(frozen=True)
class Word:
    """One word: how it is called and what it makes. `weights` says that it takes `@`."""

    name: str
    slots: tuple[Slot, ...]
    make: Callable[..., Evaluated]
    weights: bool
    doc: str

    def shown(self) -> str:
        """`linear(x, out=, bias=true) @`."""
        parts = []
        for slot in self.slots:
            text = f"{slot.name}…" if slot.many else slot.name
            if not slot.positional or slot.default is not MISSING:
                default = slot.default
                shown = "" if isinstance(default, Missing) else _shown(default)
                text = f"{slot.name}={shown}"
            parts.append(text)
        return f"{self.name}({', '.join(parts)}){' @ name' if self.weights else ''}"

    @property
    def many(self) -> bool:
        """Whether it takes any number of inputs."""
        return any(s.many for s in self.slots)

    def takes_two(self) -> bool:
        """Whether it needs two tensors and nothing else, as `dot` does."""
        needed = [s for s in self.slots if s.default is MISSING]
        return len(needed) == 2 and all(
            s.kinds == (TENSOR,) and s.positional for s in needed
        )


WORDS: dict[str, Word] = {}
F = TypeVar("F", bound=Callable[..., Evaluated])


def word(*, name: str = "", weights: bool = False) -> Callable[[F], F]:
    """Make the decorated function a word of the language, under its own name unless
    another is given.
    """

    def register(make: F) -> F:
        called = name or make.__name__.rstrip("_")
        assert called not in WORDS, f"two words are called {called}"
        slots = []
        # the first is the site, which no spec gives
        for p in list(signature(make).parameters.values())[1:]:
            default = MISSING if p.default is inspect.Parameter.empty else p.default
            many = p.kind is inspect.Parameter.VAR_POSITIONAL
            slots.append(
                Slot(
                    p.name.rstrip("_"),
                    kinds_of(p.annotation),
                    default,
                    p.kind is not inspect.Parameter.KEYWORD_ONLY,
                    many,
                )
            )
        WORDS[called] = Word(called, tuple(slots), make, weights, getdoc(make) or "")
        return make

    return register


@dataclass
class Site:
    """One call in a spec, while its word makes nodes: where it stands and under which
    weight scope.
    """

    context: Context
    env: Env
    call: tree.Call
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
        return nodes.add(
            self.context, op, operands, self.span, self.scope, self.call.function.path
        )

    def one(self, op: Op, *operands: Tensor | None) -> Tensor:
        """The first result of `op`."""
        return self.add(op, *operands)[0]

    def constant(self, value: float | int | bool, dtype: str) -> Tensor:
        """A number as a tensor."""
        return nodes.constant(self.context, value, dtype, self.span)

    def parameter(
        self,
        leaf: str,
        shape: Sequence[Dim],
        initial: str,
        sizes: Sequence[str] = (),
    ) -> Tensor:
        """The weight `scope.leaf`. `sizes` are the options that fixed each length, for messages."""
        name = joined(self.scope, leaf)
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
            check_length(self.context, dim, name, at or self.span)
            dims.append(dim.since(origin) if origin else dim)
        stacks = self.context.stacks
        whole = whole_shape(stacks, dims)
        check_size(self.context, whole, name, self.span)
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
            _two_shapes(known, replace(wanted, type=Type("f32", whole)))
        self.context.sharing.claim(name)
        return Tensor(held(self.context.builder, stacks, wanted), self.span)

    def count(self, value: Dim, option: str) -> int:
        """How often something is done: from 1 to 4096, known. E0216 otherwise."""
        number = self.number(value, option)
        if not 1 <= number <= MOST_LAYERS:
            self.fail(
                "E0216",
                f"`{option}` of `{self.call.function.path}` is from 1 to "
                f"{MOST_LAYERS}, not {number}",
                option,
            )
        return number

    def within(
        self,
        value: Number | None,
        option: str,
        least: float,
        most: float = math.inf,
    ) -> None:
        """E0417 unless a number that is known is finite and in the range."""
        if value is None:
            return
        number = known(value)
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
            self.fail("E0208", title, "axis", describe(x))
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
        fail(code, title, self.spans.get(argument) or self.span, label, helps=helps)


def _two_shapes(known: Parameter, wanted: Parameter) -> NoReturn:
    """E0519 for one name that two calls give to weights of different sizes."""
    others = (Label(known.span, f"here it is {known.type}"),) if known.span else ()
    raise Failed(
        Diagnostic(
            "E0519",
            f"two different weights are called `{wanted.name}`",
            Label(wanted.span, f"here it is {wanted.type}") if wanted.span else None,
            others,
            helps=(
                "give each its own `@` name; weights that calls share are of one size",
            ),
        )
    )


def _shown(value: Known) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return value.word if isinstance(value, Picked) else str(value)
