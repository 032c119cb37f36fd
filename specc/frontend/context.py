"""The state of one elaboration: graph builder, errors, limits (`Context`), names in scope
(`Env`), spec modules, and the call being evaluated.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn, Protocol, TypeVar

from specc.diagnostics.diagnostic import Diagnostic, Failed, Label, raise_error
from specc.diagnostics.source import Span
from specc.frontend.elaboration_state import (
    ErrorLog,
    LengthSymbols,
    ResourceUse,
    ValueFacts,
    WeightNames,
)
from specc.frontend.json_nodes import JsonObject
from specc.frontend.spec_values import EvalResult, Function, NeedsValue, Record, SpecValue, Tensor
from specc.frontend.step_budget import BUDGET_EXCEEDED, StepBudget, count_nested_items
from specc.ir.dim import Dim
from specc.ir.graph import Builder
from specc.syntax import ast

EMPTY_NAMES: Mapping[str, SpecValue] = MappingProxyType({})
"""The config of std, which has none."""
MAX_ERRORS = 20
MAX_GRAPH_NODES = 200_000
MAX_LAYERS = 4096


class AlreadyReported(Exception):
    """Something reported earlier is in the way; say nothing more."""


def raise_undecided_structure(need: NeedsValue) -> NoReturn:
    """E0207: what is built hangs on a length that only an input will tell."""
    names = ", ".join(f"`{s}`" for s in sorted(need.symbols))
    helps = ["counts, conditions and names come from the config: make it a config value"]
    raise_error(
        "E0207",
        f"this is decided while compiling, and {names} is known only at run time",
        need.span,
        helps=helps,
    )


class Library(Protocol):
    """Where blocks that a file does not define itself come from. Reads files, which
    elaboration does not.
    """

    def standard(self, name: str) -> "tuple[ast.Block | ast.Definition, SpecModule] | None":
        """The std block or definition of that name, with the module it stands in."""
        ...

    def standard_names(self) -> tuple[str, ...]:
        """Every name std defines."""
        ...

    def published(self, context: "Context", entry: ast.Field, env: "Env") -> "SpecValue | Absent":
        """A field's value from a published config file (`env.raw`), or `ABSENT`."""
        ...

    def used(self, path: str, user: "SpecModule", span: Span | None) -> "SpecModule":
        """The file that `use` or `extends` names, seen from the file that says so."""
        ...


class Absent:
    """Not in the config file; `none` there is a value like others."""


ABSENT = Absent()


class Evaluator(Protocol):
    """What the modules of elaboration ask of each other in a circle: the value of an
    expression may need a call, a call a block, a block its statements, and these the
    values of expressions. `specc.frontend.spec_to_graph` makes the one there is.
    """

    def evaluate(self, context: "Context", expr: ast.Expr, env: "Env", /) -> EvalResult:
        """The value of an expression."""
        ...

    def call(self, context: "Context", expr: ast.Call, env: "Env", /) -> EvalResult:
        """The value of a call."""
        ...

    def held(self, context: "Context", expr: ast.Expr, env: "Env", /) -> EvalResult:
        """What an expression names, to be applied later: `gelu`, `layer_norm(eps=1e-5)`."""
        ...

    def configure(
        self, context: "Context", module: "SpecModule", given: EvalResult, span: Span | None, /
    ) -> dict[str, SpecValue]:
        """The config of a used spec, from what its caller gives."""
        ...

    def expect(
        self,
        steps: StepBudget,
        item: "ast.Block | ast.Definition",
        module: "SpecModule",
        config: Mapping[str, SpecValue],
        span: Span | None = None,
    ) -> None:
        """E0223 for an item that is sure to take more steps than are left."""
        ...


@dataclass(eq=False, kw_only=True)
class SpecModule:
    """A spec file ready for look-up. `extended` is the module it is an instance of, whose
    lengths and names it shares. What is `shipped` stays as it is, with all that it uses.
    """

    file: ast.File
    path: str
    items: dict[str, "ast.Block | ast.Definition"] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    uses: dict[str, ast.Use] = field(default_factory=dict)
    standard: bool = False
    shipped: bool = False
    folder: Path = field(default_factory=Path)
    extended: "SpecModule | None" = None

    @property
    def root(self) -> "SpecModule":
        """The module that has the graph: of an instance what it extends, else itself."""
        return self.extended.root if self.extended else self

    def found(self, name: str) -> "tuple[ast.Block | ast.Definition, SpecModule] | None":
        """The block or definition of that name, here or in what this extends, with the
        module it stands in.
        """
        if name in self.items:
            return self.items[name], self
        return self.extended.found(name) if self.extended else None

    def user(self, alias: str) -> "tuple[ast.Use, SpecModule] | None":
        """The `use` that gives a file this name, with the module that says so."""
        if alias in self.uses:
            return self.uses[alias], self
        return self.extended.user(alias) if self.extended else None

    def names(self) -> tuple[str, ...]:
        """Every block and definition that can be named here."""
        return (*self.items, *(self.extended.names() if self.extended else ()))


@dataclass(kw_only=True)
class Env:
    """Names in sight at one place of one module, and the weight scope it is under.

    `lengths` is what the run-time lengths of a used file stand for while it is called;
    None in the spec itself, where they stand for themselves. `heads` says whether the
    grid that `rows` are about has a heads axis. `base` is the scope that all weights of
    this file are under.
    """

    module: SpecModule
    config: Mapping[str, SpecValue]
    names: dict[str, SpecValue] = field(default_factory=dict)
    dims: dict[str, Dim] = field(default_factory=dict)
    scope: str = ""
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    heads: bool = True
    raw: JsonObject | None = None
    lengths: dict[str, Dim] | None = None
    base: str = ""

    def find_runtime_length(self, name: str) -> Dim | None:
        """A length that `dims` declares; None for others, and for one that no tensor
        has given a value yet.
        """
        if name not in self.module.root.dims:
            return None
        return Dim.symbol(name) if self.lengths is None else self.lengths.get(name)

    def under(self, path: str) -> "Env":
        """The same names, deeper in the weight scopes."""
        return replace(self, scope=join_weight_path(self.scope, path))


def join_weight_path(scope: str, path: str) -> str:
    """`a.b` and `c` to `a.b.c`; either may be empty."""
    return f"{scope}.{path}" if scope and path else scope or path


Counted = TypeVar("Counted", tuple[SpecValue, ...], Record)
"""What holds other values."""


@dataclass(kw_only=True)
class Context:
    """The state of one elaboration.

    `evaluator` breaks the import cycle between the modules of this package. `calls` are the blocks
    being called, the innermost last; `scope` is the scope of the node being added. `training`
    keeps what only training computes, such as dropout.
    """

    library: Library
    evaluator: Evaluator
    builder: Builder = field(default_factory=Builder)
    errors: ErrorLog = field(default_factory=ErrorLog)
    symbols: LengthSymbols = field(default_factory=LengthSymbols)
    used: ResourceUse = field(default_factory=ResourceUse)
    weights: WeightNames = field(default_factory=WeightNames)
    facts: ValueFacts = field(default_factory=ValueFacts)
    calls: list[str] = field(default_factory=list)
    scope: str = ""
    training: bool = False

    @contextmanager
    def called(self, at: Span | None, *, standard: bool) -> Iterator[None]:
        """While what is called at `at` runs: in the standard library, where every fault
        is shown at the user's text first, or in a file of the user.
        """
        outer = self.errors.caller
        self.errors.caller = (outer or at) if standard else None
        try:
            yield
        except Failed as failed:
            raise Failed(*map(self.placed, failed.diagnostics)) from None
        finally:
            self.errors.caller = outer

    @contextmanager
    def apart(self) -> Iterator[None]:
        """While the body of a loop or of an expert is read: what outside has it may
        use, what it makes is its own.
        """
        outside, self.facts.position_ids = self.facts.position_ids, dict(self.facts.position_ids)
        try:
            yield
        finally:
            self.facts.position_ids = outside

    def at(self, span: Span | None) -> Span | None:
        """A place in the library with the user's text that led there, and one in a
        normalizer with its name.
        """
        if span is None:
            return span
        if self.errors.normalizer and not span.normalizer:
            span = replace(span, normalizer=self.errors.normalizer)
        if self.errors.caller is None or span.source is self.errors.caller.source:
            return span
        return span if span.caller else replace(span, caller=self.errors.caller)

    def placed(self, fault: Diagnostic) -> Diagnostic:
        """A fault in the library at the user's text that led there."""
        if fault.primary is None or (at := self.at(fault.primary.span)) is None:
            return fault
        if at == fault.primary.span:
            return fault
        return replace(fault, primary=Label(at, fault.primary.text))

    def late(self, symbols: frozenset[str]) -> bool:
        """Whether these symbols have a value only when the model runs."""
        return bool(symbols) and (not self.symbols.symbolic or bool(symbols & self.symbols.runtime))

    def work(self, span: Span | None, count: int = 1) -> None:
        """Count steps that are about to be done. E0223 past a limit."""
        self.used.steps.take(count, span)

    def counted(self, value: Counted, span: Span | None, known: int = 0) -> Counted:
        """A list or record just made, what it holds counted: lists of lists are as long
        as what is in them.

        `known` items were counted before.
        """
        self.count_list_items(count_nested_items(value, MAX_GRAPH_NODES) - known, span)
        return value

    def count_list_items(self, count: int, span: Span | None) -> None:
        """Count list items that are made. E0216 past a limit, before they take memory."""
        self.used.list_items += count
        if self.used.list_items > MAX_GRAPH_NODES:
            raise_error(
                "E0216", f"the lists of this spec hold more than {MAX_GRAPH_NODES} items", span
            )

    def report(self, *faults: Diagnostic) -> None:
        """Keep a fault, up to a limit; the same fault from several turns of a loop is one."""
        for fault in map(self.placed, faults):
            if self._known(fault):
                continue
            if len(self.errors.diagnostics) >= MAX_ERRORS:
                self.errors.dropped += 1
            else:
                self.errors.diagnostics.append(fault)

    def _known(self, fault: Diagnostic) -> bool:
        """Whether a fault says nothing new: the same code at the same place. A budget
        that is spent is spent everywhere, and said once.
        """
        if fault.primary is None:
            return False
        # by code and place: turns of a loop meet the same fault with other numbers
        places = [
            d.primary.span for d in self.errors.diagnostics if d.code == fault.code and d.primary
        ]
        spent = bool(places) and fault.code == BUDGET_EXCEEDED
        return spent or fault.primary.span in places

    def collect_errors(self) -> "ErrorCollector":
        """`with context.catching():` faults inside are kept, and the work goes on behind."""
        return ErrorCollector(self)


@dataclass
class ErrorCollector:
    """Keeps what is raised about the user's text; anything else passes."""

    context: Context

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Failed):
            self.context.report(*error.diagnostics)
        return isinstance(error, Failed | AlreadyReported)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """Something that is called with arguments.

    `expr` is the call as written; of `apply(f, x)` the arguments are those behind `f`.
    They are evaluated in `caller`. `inner` is the same place under the weight scope
    that the call opens by `@`.
    """

    target: Function
    expr: ast.Call
    args: Sequence[ast.Expr]
    caller: Env
    inner: Env

    @property
    def options(self) -> Sequence[ast.Option]:
        """What is given by name."""
        return self.expr.options

    @property
    def own_scope(self) -> str:
        """The scope of weights that this call opens; empty where it has no `@`."""
        return self.inner.scope if self.target.weights or self.expr.weights else ""
