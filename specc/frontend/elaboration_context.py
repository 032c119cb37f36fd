"""The state of an elaboration, lexical scopes, the modules of spec files, and unevaluated calls."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn, Protocol, TypeAlias, TypeVar

from specc.diagnostics.diagnostic import Diagnostic, Label, Span, SpeccError, raise_error
from specc.frontend.config_json import JsonObject
from specc.frontend.elaboration_state import (
    BUDGET_EXCEEDED,
    ErrorLog,
    ResourceCounters,
    SymbolicDims,
    ValueFacts,
    WeightPathState,
    count_value_items,
)
from specc.frontend.spec_values import (
    AlreadyReportedError,
    EvalResult,
    Function,
    Record,
    SpecValue,
    Tensor,
    UnresolvedValueError,
    get_first_result,
)
from specc.ir.dim import Dim
from specc.ir.graph import GraphBuilder
from specc.syntax import ast

EMPTY_NAMES: Mapping[str, SpecValue] = MappingProxyType({})
"""An empty config, e.g. the config of a std file."""
MAX_ERRORS = 20
MAX_GRAPH_NODES = 200_000
MAX_LAYERS = 4096


def raise_dynamic_graph_structure_error(error: UnresolvedValueError) -> NoReturn:
    """Raise E0207 for a graph structure that depends on a dimension known only at run time."""
    names = ", ".join(f"`{s}`" for s in sorted(error.symbols))
    helps = [
        "iteration counts, conditions and names can depend only on the config: use a config value"
    ]
    raise_error(
        "E0207",
        f"this must be known at compile time, but {names} is a dynamic length",
        error.span,
        helps=helps,
    )


SpecItem: TypeAlias = ast.Block | ast.Definition
"""A named item of a spec: a block or a definition."""


class SpecLoader(Protocol):
    """The interface through which elaboration accesses std and the files that a spec uses."""

    def find_std_item(self, name: str) -> "tuple[SpecItem, SpecNamespace] | None":
        """Return the std block or definition `name` and its module, or None."""
        ...

    def list_std_names(self) -> tuple[str, ...]:
        """Return the names of all std blocks and definitions."""
        ...

    def load_used_module(
        self, path: str, user: "SpecNamespace", span: Span | None
    ) -> "SpecNamespace":
        """Return the module of the file `path`, which a statement in the module `user` names."""
        ...


@dataclass(frozen=True, slots=True)
class EvaluationFunctions:
    """The mutually recursive functions of elaboration, which are passed as an object to avoid
    import cycles. Expressions contain calls, calls run blocks, and blocks contain expressions.

    `evaluate` evaluates an expression, `call` evaluates a call, and `evaluate_function` evaluates
    an expression to a function value such as `layer_norm(eps=1e-5)`. `configure_used_spec` returns
    the config of a used spec from a record that the caller passes. `check_step_estimate` raises
    E0223 for a block or definition that exceeds the remaining steps.
    """

    evaluate: Callable[[ast.Expr, "LexicalScope"], EvalResult]
    call: Callable[[ast.Call, "LexicalScope"], EvalResult]
    evaluate_function: Callable[[ast.Expr, "LexicalScope"], EvalResult]
    configure_used_spec: Callable[
        ["ElaborationContext", "SpecNamespace", EvalResult, Span | None], dict[str, SpecValue]
    ]
    check_step_estimate: Callable[
        [SpecItem, "SpecNamespace", Mapping[str, SpecValue], Span | None], None
    ]


@dataclass(eq=False, kw_only=True)
class SpecNamespace:
    """The namespace of a spec file, in which names are looked up.

    `extended` is the module of the base spec, whose dimensions and names this module can use.
    `is_builtin` is True for built-in specs.
    """

    file: ast.File
    path: str
    items: dict[str, SpecItem] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    uses: dict[str, ast.UseStatement] = field(default_factory=dict)
    is_standard: bool = False
    is_builtin: bool = False
    directory: Path = field(default_factory=Path)
    extended: "SpecNamespace | None" = None

    @property
    def root(self) -> "SpecNamespace":
        """The module that contains the graph, which is the root of the base spec or this module."""
        return self.extended.root if self.extended else self

    def find_definition(self, name: str) -> "tuple[SpecItem, SpecNamespace] | None":
        """Return the item `name` of this module or its base spec, and its module, or None."""
        if name in self.items:
            return self.items[name], self
        return self.extended.find_definition(name) if self.extended else None

    def find_use_statement(self, alias: str) -> "tuple[ast.UseStatement, SpecNamespace] | None":
        """Return the `use` statement with the alias `alias` and its module, or None."""
        if alias in self.uses:
            return self.uses[alias], self
        return self.extended.find_use_statement(alias) if self.extended else None

    def list_names(self) -> tuple[str, ...]:
        """Return the names of all blocks and definitions of this module and its base spec."""
        return (*self.items, *(self.extended.list_names() if self.extended else ()))


@dataclass(kw_only=True)
class LexicalScope:
    """The visible names and the weight scope of a statement or expression.

    `context` is the state of the elaboration. `dynamic_lengths` maps the symbolic dimensions of a
    used file to dimensions of the caller, and is None in the main spec. `has_head_axis` is True if
    masks over `pair_indices` have a heads axis. `file_scope` is the weight scope of the file.
    """

    context: "ElaborationContext" = field(repr=False, compare=False)
    module: SpecNamespace
    config: Mapping[str, SpecValue]
    names: dict[str, SpecValue] = field(default_factory=dict)
    dims: dict[str, Dim] = field(default_factory=dict)
    scope: str = ""
    pair_indices: Mapping[str, Tensor] = field(default_factory=dict)
    has_head_axis: bool = True
    config_file: JsonObject | None = None
    dynamic_lengths: dict[str, Dim] | None = None
    file_scope: str = ""

    def find_dynamic_length(self, name: str) -> Dim | None:
        """Return the value of the dimension `name`, or None if `dims` lacks the name or the
        dimension is not bound yet.
        """
        if name not in self.module.root.dims:
            return None
        return Dim.symbol(name) if self.dynamic_lengths is None else self.dynamic_lengths.get(name)

    def evaluate(self, expr: ast.Expr) -> EvalResult:
        """Evaluate an expression, which may have several results."""
        return self.context.evaluator.evaluate(expr, self)

    def evaluate_value(self, expr: ast.Expr) -> SpecValue:
        """Evaluate an expression and return its first result."""
        return get_first_result(self.context.evaluator.evaluate(expr, self))

    def with_weight_scope(self, path: str) -> "LexicalScope":
        """Return a copy of this scope with `path` appended to the weight scope."""
        return replace(self, scope=join_weight_path(self.scope, path))


def join_weight_path(scope: str, path: str) -> str:
    """Join two weight paths, e.g. `a.b` and `c` to `a.b.c`. Either path may be empty."""
    return f"{scope}.{path}" if scope and path else scope or path


CollectionValue = TypeVar("CollectionValue", tuple[SpecValue, ...], Record)
"""The type of a list or record, i.e. a value that contains other values."""


@dataclass(kw_only=True)
class ElaborationContext:
    """The state of one elaboration.

    `call_stack` contains the active block calls, the innermost last. `scope` is the weight scope of
    the statement that is being elaborated. With `is_training`, the graph contains the operations of
    training mode, such as dropout.
    """

    library: SpecLoader
    evaluator: EvaluationFunctions
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    errors: ErrorLog = field(default_factory=ErrorLog)
    symbols: SymbolicDims = field(default_factory=SymbolicDims)
    resources: ResourceCounters = field(default_factory=ResourceCounters)
    weights: WeightPathState = field(default_factory=WeightPathState)
    facts: ValueFacts = field(default_factory=ValueFacts)
    call_stack: list[str] = field(default_factory=list)
    scope: str = ""
    is_training: bool = False

    @contextmanager
    def track_user_call(self, span: Span | None, *, is_standard: bool) -> Iterator[None]:
        """Record a call at `span` in a `with` block. Errors in a block of std (`is_standard`) are
        shown at the user's call that led to the block.
        """
        outer_call = self.errors.user_call
        self.errors.user_call = (outer_call or span) if is_standard else None
        try:
            yield
        except SpeccError as failed:
            raise SpeccError(*map(self.relocate_error_to_user_call, failed.diagnostics)) from None
        finally:
            self.errors.user_call = outer_call

    @contextmanager
    def enter_position_id_scope(self) -> Iterator[None]:
        """Enter a loop or expert body in a `with` block. The body can reuse the outer graph's
        cached position ids. On exit, the position ids that the body has cached are dropped.
        """
        outer_ids, self.facts.position_ids = self.facts.position_ids, dict(self.facts.position_ids)
        try:
            yield
        finally:
            self.facts.position_ids = outer_ids

    def add_call_site_to_span(self, span: Span | None) -> Span | None:
        """Add the user's call to a span in std, and the current normalizer to any span."""
        if span is None:
            return span
        if self.errors.normalizer and not span.normalizer:
            span = replace(span, normalizer=self.errors.normalizer)
        if self.errors.user_call is None or span.source is self.errors.user_call.source:
            return span
        return span if span.caller else replace(span, caller=self.errors.user_call)

    def relocate_error_to_user_call(self, error: Diagnostic) -> Diagnostic:
        """Relocate an error in std to the user's call that led to this error."""
        span = self.add_call_site_to_span(error.primary.span) if error.primary else None
        if error.primary is None or span is None or span == error.primary.span:
            return error
        return replace(error, primary=Label(span, error.primary.text))

    def has_dynamic_symbol(self, symbols: frozenset[str]) -> bool:
        """Return True if any of `symbols` is a dimension that is known only at run time."""
        return bool(symbols) and (
            not self.symbols.is_symbolic or bool(symbols & self.symbols.dynamic_names)
        )

    def count_steps(self, span: Span | None, count: int = 1) -> None:
        """Count elaboration steps before they are executed. Raise E0223 if the limit is
        exceeded.
        """
        self.resources.steps.consume_steps(count, span)

    def count_value_items(
        self, value: CollectionValue, span: Span | None, counted_items: int = 0
    ) -> CollectionValue:
        """Count the items of a new list or record, including nested items, and return `value`.
        `counted_items` is the number of items that have already been counted.
        """
        self.count_list_items(count_value_items(value, MAX_GRAPH_NODES) - counted_items, span)
        return value

    def count_list_items(self, count: int, span: Span | None) -> None:
        """Count list items before they are created. Raise E0216 if a list exceeds the limit."""
        self.resources.list_items += count
        if self.resources.list_items > MAX_GRAPH_NODES:
            raise_error(
                "E0216", f"the lists of this spec have more than {MAX_GRAPH_NODES} items", span
            )

    def report_errors(self, *errors: Diagnostic) -> None:
        """Record errors, up to a limit. Errors that recur in loop iterations are recorded once."""
        for error in map(self.relocate_error_to_user_call, errors):
            if self._is_reported(error):
                continue
            if len(self.errors.diagnostics) >= MAX_ERRORS:
                self.errors.dropped_count += 1
            else:
                self.errors.diagnostics.append(error)

    def _is_reported(self, error: Diagnostic) -> bool:
        """Return True if an error with the same code and location has already been reported. Only
        the numbers in the two messages may differ. An exceeded step limit is reported only once.
        """
        if error.primary is None:
            return False
        spans = [
            d.primary.span for d in self.errors.diagnostics if d.code == error.code and d.primary
        ]
        return error.primary.span in spans or (bool(spans) and error.code == BUDGET_EXCEEDED)

    def raise_reported_errors(self) -> None:
        """Raise all reported errors, and state how many more errors are not shown."""
        errors = self.errors
        if errors.diagnostics:
            overflow_note = Diagnostic("E0100", f"{errors.dropped_count} more errors are not shown")
            raise SpeccError(
                *errors.diagnostics, *([overflow_note] if errors.dropped_count else [])
            )

    def collect_errors(self) -> "ErrorCollectorContext":
        """Return a context manager that reports errors in its block instead of raising them."""
        return ErrorCollectorContext(self)


@dataclass
class ErrorCollectorContext:
    """A context manager that collects errors. Errors are also reported to the `context`, if any."""

    context: ElaborationContext | None = None
    errors: list[Diagnostic] = field(default_factory=list)
    is_poisoned: bool = False

    def __enter__(self) -> None:
        """Enter a `with` block whose errors are collected."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        diagnostics = error.diagnostics if isinstance(error, SpeccError) else ()
        if self.context is not None:
            self.context.report_errors(*diagnostics)
        self.errors += diagnostics
        self.is_poisoned |= isinstance(error, AlreadyReportedError)
        return isinstance(error, SpeccError | AlreadyReportedError)

    def raise_collected(self) -> None:
        """Raise all collected errors, or AlreadyReportedError if all have already been reported."""
        if self.errors:
            raise SpeccError(*self.errors)
        if self.is_poisoned:
            raise AlreadyReportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevaluatedCall:
    """A call whose arguments have not been evaluated yet.

    `expr` is the call in the source. `args` are the positional arguments (for `apply(f, x)`, the
    arguments after `f`), which are evaluated in the scope `caller`. `inner_env` is `caller` with
    the weight path of the call appended to its weight scope.
    """

    target: Function
    expr: ast.Call
    args: Sequence[ast.Expr]
    caller: LexicalScope
    inner_env: LexicalScope

    @property
    def options(self) -> Sequence[ast.Option]:
        """The named arguments of the call."""
        return self.expr.options

    @property
    def explicit_weight_scope(self) -> str:
        """The weight scope if the call or the applied function has a weight path, otherwise ""."""
        return self.inner_env.scope if self.target.weight_path or self.expr.weights else ""
