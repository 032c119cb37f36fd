"""Elaboration state, lexical scopes, modules of spec files, and unevaluated calls."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn, Protocol, TypeAlias, TypeVar

from specc.diagnostics.diagnostic import Span, raise_error
from specc.frontend.elaboration_limits_and_errors import ErrorLog, StepBudget, count_nested_items
from specc.frontend.json_parser_with_spans import JsonObject
from specc.frontend.spec_values import (
    ERROR_VALUE,
    EvalResult,
    Function,
    Record,
    SpecValue,
    Tensor,
    UnresolvedValueError,
    describe_value,
    get_first_result,
)
from specc.frontend.weight_paths_and_sharing import ExpertWeights, WeightSharingTracker
from specc.ir.dim import Dim
from specc.ir.graph import GraphBuilder, Value
from specc.syntax import ast


@dataclass(kw_only=True, slots=True)
class SymbolicDims:
    """The symbolic dimensions that are used in an elaboration.

    With `is_symbolic`, config values are symbols, too. `dynamic_names` are the symbols that are
    known only at run time. `computed_names` maps integers computed from config symbols, such as
    `int(0.25 * d)`, to the names of their symbols. `max_length` is the value of `--context-length`,
    for which RoPE frequencies are computed, or 0.
    """

    is_symbolic: bool = False
    dynamic_names: frozenset[str] = frozenset()
    computed_names: dict[Value, str] = field(default_factory=dict)
    max_length: int = 0


@dataclass(kw_only=True, slots=True)
class ResourceCounters:
    """The resources used by an elaboration, which are limited by E0216, E0223 and E0308.

    `weight_sizes` contains the element counts of the weights of known size, and
    `weight_element_count` is their sum. `list_item_count` is the number of items of all lists, and
    `steps` counts elaboration steps.
    """

    weight_sizes: dict[str, int] = field(default_factory=dict)
    weight_element_count: int = 0
    list_item_count: int = 0
    steps: StepBudget = field(default_factory=StepBudget)


@dataclass(kw_only=True, slots=True)
class WeightNames:
    """The state for weight paths and weight sharing.

    `placeholders` contains the parsed placeholders of weight paths, keyed by the span of the string
    and the text of the placeholder. `sharing` records the calls that use each weight.
    `expert_stacks` contains the experts whose block is being elaborated, the innermost last.
    """

    placeholders: dict[tuple[Span | None, str], ast.Expr] = field(default_factory=dict)
    sharing: WeightSharingTracker = field(default_factory=WeightSharingTracker)
    expert_stacks: list[ExpertWeights] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class ValueFacts:
    """Facts about the values of the graph that is being built.

    `constant_values` contains values that depend neither on inputs nor on weights. `position_ids`
    caches the position ids of masks, keyed by role and by the numbers of queries and keys.
    `sorted_lengths` contains the sizes of sorted axes. The indices that a sort returns may be used
    as position ids of these axes.
    """

    constant_values: set[Value] = field(default_factory=set)
    position_ids: dict[tuple[str, Dim | None, Dim], Tensor] = field(default_factory=dict)
    sorted_lengths: set[Dim] = field(default_factory=set)


MAX_VALUES_PER_SPAN = 4
"""The maximum number of recorded values per name. A block may be called with many shapes."""


@dataclass
class ElaborationRecord:
    """The values of one elaboration, by span. `is_complete` is True if there were no errors."""

    is_symbolic: bool
    values_by_span: dict[Span, list[str]] = field(default_factory=dict)
    is_complete: bool = False

    def add_value(self, span: Span, value: EvalResult) -> None:
        """Record a value of the name or call at `span`, up to `MAX_VALUES_PER_SPAN` values."""
        first_value = get_first_result(value)
        # record the symbolic expression of a dimension
        text = str(first_value) if isinstance(first_value, Dim) else describe_value(value)
        texts = self.values_by_span.setdefault(span, [])
        if text not in texts and len(texts) < MAX_VALUES_PER_SPAN:
            texts.append(text)


RECORDED_VALUES: ContextVar[list[ElaborationRecord] | None] = ContextVar("records", default=None)
"""The records of all elaborations in the current check, or None if nothing is recorded."""


@contextmanager
def record_elaboration_values(*, is_symbolic: bool) -> Iterator[None]:
    """Return a context manager that records the values of an elaboration if enabled."""
    records = RECORDED_VALUES.get()
    if records is None:
        yield
        return
    records.append(ElaborationRecord(is_symbolic))
    yield
    records[-1].is_complete = True


def record_value(span: Span | None, value: EvalResult) -> None:
    """Record `value` for the name or call at `span`, if recording is enabled."""
    records = RECORDED_VALUES.get()
    if records and span is not None and value is not ERROR_VALUE:
        records[-1].add_value(span, value)


EMPTY_NAMES: Mapping[str, SpecValue] = MappingProxyType({})
"""An empty config, such as the config of a std file."""
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


SpecItem: TypeAlias = ast.Block | ast.AttentionDef
"""A named item of a spec: a block or a definition."""


class SpecLoader(Protocol):
    """The interface through which elaboration accesses std and the files that a spec uses."""

    def find_std_item(self, name: str) -> "tuple[SpecItem, SpecNamespace] | None":
        """Return the std block or definition `name` and its module, or None."""
        ...

    def list_std_names(self) -> tuple[str, ...]:
        """Return the names of all std blocks and definitions."""
        ...

    def load_imported_module(
        self, path: str, importer: "SpecNamespace", span: Span | None
    ) -> "SpecNamespace":
        """Return the module of the file `path` in a statement of the module `importer`."""
        ...


@dataclass(frozen=True, slots=True)
class Evaluator:
    """The mutually recursive functions of an elaboration, which are passed as an object to avoid
    import cycles. Elaboration is mutually recursive: expressions contain calls, calls run blocks,
    and blocks contain expressions.

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

    `base` is the module of the base spec, whose dimensions and names this module can use.
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
    base: "SpecNamespace | None" = None

    @property
    def root(self) -> "SpecNamespace":
        """The module with the graph: the root base spec, or this module if there is none."""
        return self.base.root if self.base else self

    def find_definition(self, name: str) -> "tuple[SpecItem, SpecNamespace] | None":
        """Return the item `name` of this module or its base spec, and its module, or None."""
        if name in self.items:
            return self.items[name], self
        return self.base.find_definition(name) if self.base else None

    def find_use_statement(self, alias: str) -> "tuple[ast.UseStatement, SpecNamespace] | None":
        """Return the `use` statement with the alias `alias` and its module, or None."""
        if alias in self.uses:
            return self.uses[alias], self
        return self.base.find_use_statement(alias) if self.base else None

    def list_names(self) -> tuple[str, ...]:
        """Return the names of all blocks and definitions of this module and its base spec."""
        return (*self.items, *(self.base.list_names() if self.base else ()))


@dataclass(kw_only=True)
class LexicalScope:
    """The visible names and the weight scope of a statement or expression.

    `context` is the state of the elaboration. `dynamic_lengths` maps the symbolic dimensions of a
    used file to dimensions of the caller, and is None in the main spec. `has_head_axis` is True if
    masks over `index_variables` have a heads axis. `file_scope` is the weight scope of the file.
    """

    context: "ElaborationContext" = field(repr=False, compare=False)
    module: SpecNamespace
    config: Mapping[str, SpecValue]
    names: dict[str, SpecValue] = field(default_factory=dict)
    dims: dict[str, Dim] = field(default_factory=dict)
    scope: str = ""
    index_variables: Mapping[str, Tensor] = field(default_factory=dict)
    has_head_axis: bool = True
    config_file: JsonObject | None = None
    dynamic_lengths: dict[str, Dim] | None = None
    file_scope: str = ""

    def find_dynamic_length(self, name: str) -> Dim | None:
        """Return the value of the dimension `name`, or None if `dims` does not contain it or it is
        not bound yet.
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
    """Join two weight paths, such as `a.b` and `c` to `a.b.c`. Either path may be empty."""
    return f"{scope}.{path}" if scope and path else scope or path


CollectionValue = TypeVar("CollectionValue", tuple[SpecValue, ...], Record)
"""A type variable for values that contain other values: a list or a record."""


@dataclass(kw_only=True)
class ElaborationContext:
    """The state of one elaboration.

    `call_stack` contains the active block calls, the innermost last. `scope` is the weight scope of
    the statement that is being elaborated. With `is_training`, the graph contains the operations of
    training mode, such as dropout.
    """

    library: SpecLoader
    evaluator: Evaluator
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    errors: ErrorLog = field(default_factory=ErrorLog)
    symbols: SymbolicDims = field(default_factory=SymbolicDims)
    resources: ResourceCounters = field(default_factory=ResourceCounters)
    weights: WeightNames = field(default_factory=WeightNames)
    facts: ValueFacts = field(default_factory=ValueFacts)
    call_stack: list[str] = field(default_factory=list)
    scope: str = ""
    is_training: bool = False

    @contextmanager
    def enter_position_id_scope(self) -> Iterator[None]:
        """Return a context manager for elaborating a loop or expert body. The body can use the
        position ids that are cached in the outer graph. Position ids that are cached while the body
        is elaborated are dropped on exit.
        """
        outer_ids, self.facts.position_ids = self.facts.position_ids, dict(self.facts.position_ids)
        try:
            yield
        finally:
            self.facts.position_ids = outer_ids

    def has_dynamic_symbol(self, symbols: frozenset[str]) -> bool:
        """Return True if any of `symbols` is a dimension that is known only at run time."""
        return bool(symbols) and (
            not self.symbols.is_symbolic or bool(symbols & self.symbols.dynamic_names)
        )

    def consume_steps(self, span: Span | None, count: int = 1) -> None:
        """Count elaboration steps before executing them. Raise E0223 if the limit is exceeded."""
        self.resources.steps.consume_steps(count, span)

    def check_item_limit(
        self, value: CollectionValue, span: Span | None, counted_items: int = 0
    ) -> CollectionValue:
        """Count the items of a new list or record, including nested items, and return `value`.
        `counted_items` is the number of items that have already been counted.
        """
        self.charge_list_items(count_nested_items(value, MAX_GRAPH_NODES) - counted_items, span)
        return value

    def charge_list_items(self, count: int, span: Span | None) -> None:
        """Count list items before they are created. Raise E0216 if a list exceeds the limit."""
        self.resources.list_item_count += count
        if self.resources.list_item_count > MAX_GRAPH_NODES:
            raise_error(
                "E0216", f"the lists of this spec have more than {MAX_GRAPH_NODES} items", span
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevaluatedFunctionCall:
    """A call whose arguments have not been evaluated yet.

    `expr` is the call in the source. `args` are the positional arguments (for `apply(f, x)`, the
    arguments after `f`), which are evaluated in the scope `caller_env`. `inner_env` is
    `caller_env` with the weight path of the call appended to its weight scope.
    """

    target: Function
    expr: ast.Call
    args: Sequence[ast.Expr]
    caller_env: LexicalScope
    inner_env: LexicalScope

    @property
    def options(self) -> Sequence[ast.NamedArg]:
        """The named arguments of the call."""
        return self.expr.options

    @property
    def explicit_weight_scope(self) -> str:
        """The weight scope of a call or applied function that has a weight path, otherwise ""."""
        return self.inner_env.scope if self.target.weight_path or self.expr.weights else ""
