"""Estimate a block's minimum elaboration steps from its syntax tree to raise E0223 early."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeAlias

from specc.diagnostics.diagnostic import Span
from specc.frontend.builtins.registry import BUILTINS, BuiltinParameter
from specc.frontend.declared_types import is_function_type, is_tensor_type
from specc.frontend.elaboration_context import (
    EMPTY_NAMES,
    MAX_LAYERS,
    SpecItem,
    SpecLoader,
    SpecNamespace,
)
from specc.frontend.elaboration_limits_and_errors import (
    EXPANSION_COST,
    MAX_STEPS,
    OPERATION_COST,
    StepBudget,
)
from specc.frontend.parameter_kinds import FUNCTION_KIND, TENSOR_KIND
from specc.frontend.spec_values import SpecValue
from specc.ir.dim import Dim
from specc.syntax import ast
from specc.syntax.ast import flatten_binary_chain, walk_tree

MAX_NESTED_ITEMS = 64
"""The maximum nesting depth of items in an estimate. Steps of deeper items are not estimated."""
STEP_LIMIT = MAX_STEPS + 1
"""The value at which estimates are capped."""

Config: TypeAlias = Mapping[str, SpecValue]


@dataclass
class StepEstimator:
    """A cache of step estimates, keyed by the identities of an item and a config. `steps` counts
    the steps of the elaboration.
    """

    library: SpecLoader
    steps: StepBudget
    estimates: dict[tuple[int, int], tuple[int, SpecItem, Config]] = field(default_factory=dict)
    active_items: list[SpecItem] = field(default_factory=list)

    def check_remaining_steps(
        self, item: SpecItem, module: SpecNamespace, config: Config, span: Span | None
    ) -> None:
        """Raise E0223 if a call of `item` at `span` takes more than the remaining steps. If no span
        is given, the error is shown at the item's statement with the most steps.
        """
        estimate = self.estimate_item_steps(item, module, config)
        if not self.steps.has_steps_left(estimate) and span is None and isinstance(item, ast.Block):
            span = _ItemStepEstimator(self, item, module, config).find_largest_statement()
        self.steps.check_estimated_steps(estimate, span)

    def estimate_item_steps(self, item: SpecItem, module: SpecNamespace, config: Config) -> int:
        """Return the minimum number of steps to run a block or expand a definition with `config`.
        The estimate for an item that is recursive or nested too deeply is 0.
        """
        key = id(item), id(config)
        if key in self.estimates:
            return self.estimates[key][0]
        if len(self.active_items) >= MAX_NESTED_ITEMS or any(i is item for i in self.active_items):
            return 0
        self.active_items.append(item)
        try:
            step_count = min(
                _ItemStepEstimator(self, item, module, config).estimate_steps(), STEP_LIMIT
            )
        finally:
            self.active_items.pop()
        # a cache entry keeps the item and the config alive, so that no other object reuses the key
        self.estimates[key] = step_count, item, config
        return step_count


@dataclass
class _ItemStepEstimator:
    """An estimator of the elaboration steps of one item."""

    estimator: StepEstimator
    item: SpecItem
    module: SpecNamespace
    config: Config

    @cached_property
    def _bound_names(self) -> set[str]:
        return collect_local_names(_ItemKey(id(self.item), self.item))

    def _find_item(self, name: str) -> tuple[SpecItem, SpecNamespace] | None:
        """Return the block or definition `name`, or None if the name may refer to another value."""
        if name in self._bound_names or name in self.config or "." in name:
            return None
        return self.module.find_definition(name) or self.estimator.library.find_std_item(name)

    def _estimate_used_item(self, item_and_module: tuple[SpecItem, SpecNamespace]) -> int:
        """Return the estimated number of steps of a block or definition used by the item."""
        item, module = item_and_module
        config = self.config if module.root is self.module.root else EMPTY_NAMES
        return self.estimator.estimate_item_steps(item, module, config)

    def _count_iterations(self, iterable: ast.Expr) -> int:
        """Return the trip count of a loop, or 0 if the trip count is unknown or too large."""
        match iterable:
            case ast.NumberLiteral(text=text) if text.isdigit():
                return int(text) if int(text) <= MAX_LAYERS else 0
            case ast.ListLiteral(items=items):
                return len(items)
            case ast.Name(path=path) if path not in self._bound_names:
                value = self.config.get(path)
                number = value.number if isinstance(value, Dim) else None
                return number if number and 0 < number <= MAX_LAYERS else 0
        return 0

    def estimate_steps(self) -> int:
        """Return the minimum number of steps to elaborate the item."""
        if isinstance(self.item, ast.Block):
            return self._estimate_body(self.item.body)
        is_mask = self.item.kind == "mask"
        estimate = self._estimate_mask if is_mask else self._estimate_value
        return EXPANSION_COST + estimate(self.item.value)

    def find_largest_statement(self) -> Span | None:
        """Return the span of the statement with the most steps in a block."""
        assert isinstance(self.item, ast.Block)
        return max(self.item.body, key=self._estimate_statement).span

    def _estimate_body(self, body: Iterable[ast.Statement]) -> int:
        """Return the minimum number of elaboration steps for the statements of a body."""
        count = 0
        for statement in body:
            count += self._estimate_statement(statement)
            if isinstance(statement, ast.ReturnStatement) or _can_return(statement):
                break
        return count

    def _estimate_statement(self, statement: ast.Statement) -> int:
        estimate = STATEMENT_STEPS.get(type(statement))
        return estimate(self, statement) if estimate else 1

    def _estimate_repeat(self, statement: ast.RepeatLoop) -> int:
        count = self._count_iterations(statement.iterable)
        return count * (2 + self._estimate_body(statement.body)) if count else 0

    def _estimate_binary(
        self, expr: ast.BinaryOp, estimate: Callable[[ast.Expr], int] | None = None
    ) -> int:
        """Estimate the steps of a chain of operators. `estimate` estimates one operand."""
        leftmost, operations = flatten_binary_chain(expr)
        estimate = estimate or self._estimate_value
        return estimate(leftmost) + sum(OPERATION_COST + estimate(o.right) for o in operations)

    def _estimate_value(self, expr: ast.Expr) -> int:
        """Estimate the steps of evaluating an expression."""
        estimate_operands = EXPRESSION_STEPS.get(type(expr))
        return 1 + (estimate_operands(self, expr) if estimate_operands else 0)

    def _estimate_call(self, expr: ast.Call) -> int:
        name = expr.function.path
        item_and_module = self._find_item(name)
        parameters: Iterable[AnyParameter] = ()
        if item_and_module is None:
            if name in BUILTINS and name not in self._bound_names and name not in self.config:
                parameters = BUILTINS[name].parameters
        elif isinstance(item_and_module[0], ast.Block):
            parameters = item_and_module[0].params
        else:
            return 0
        pairs = _pair_known_arguments(parameters, expr)
        arguments = sum(self._estimate_argument(p, a) for p, a in pairs)
        return arguments + (self._estimate_used_item(item_and_module) if item_and_module else 0)

    def _estimate_argument(self, parameter: "AnyParameter", expr: ast.Expr) -> int:
        """Estimate the steps of an argument. Names and uncalled functions take no steps."""
        if isinstance(parameter, BuiltinParameter):
            is_tensor = TENSOR_KIND in parameter.kinds
            is_function = FUNCTION_KIND in parameter.kinds
        else:
            is_tensor = is_tensor_type(parameter.type)
            is_function = is_function_type(parameter.type)
        if is_function or (isinstance(expr, ast.Name) and not is_tensor):
            return 0
        return self._estimate_value(expr)

    def _estimate_mask(self, expr: ast.Expr) -> int:
        """Estimate the steps of evaluating and expanding a mask."""
        match expr:
            case ast.BinaryOp(op="&" | "|"):
                return 1 + self._estimate_binary(expr, self._estimate_mask)
            case ast.UnaryOp(op="not", operand=operand):
                return 1 + self._estimate_mask(operand)
            case ast.Conditional(then=then, otherwise=otherwise):
                return 1 + min(self._estimate_mask(then), self._estimate_mask(otherwise))
            case ast.Name(path=name) | ast.Call(function=ast.Name(path=name)):
                return 1 + self._estimate_mask_definition(name)
        return self._estimate_value(expr)

    def _estimate_mask_definition(self, name: str) -> int:
        """Estimate the steps of expanding the mask `name`. Return 0 for other functions."""
        match self._find_item(name):
            case (ast.AttentionDef(kind="mask"), _) as item_and_module:
                return self._estimate_used_item(item_and_module)
        return 0


STATEMENT_STEPS: Mapping[type[ast.Node], Callable[..., int]] = {
    ast.Assignment: lambda item, let: item._estimate_value(let.value),
    ast.ReturnStatement: lambda item, node: sum(map(item._estimate_value, node.values)),
    ast.RepeatLoop: _ItemStepEstimator._estimate_repeat,
    ast.WhenStatement: lambda item, node: min(
        item._estimate_body(node.body), item._estimate_body(node.otherwise)
    ),
    ast.ScanLoop: lambda item, scan: 1 + item._estimate_body(scan.body),
}
EXPRESSION_STEPS: Mapping[type[ast.Node], Callable[..., int]] = {
    ast.BinaryOp: _ItemStepEstimator._estimate_binary,
    ast.UnaryOp: lambda item, e: item._estimate_value(e.operand),
    ast.Conditional: lambda item, e: min(
        item._estimate_value(e.then), item._estimate_value(e.otherwise)
    ),
    ast.ListLiteral: lambda item, e: sum(map(item._estimate_value, e.items)),
    ast.ListComprehension: lambda item, e: (
        item._estimate_value(e.item) if item._count_iterations(e.iterable) else 0
    ),
    ast.Index: lambda item, e: item._estimate_value(e.base),
    ast.Call: _ItemStepEstimator._estimate_call,
}
"""The functions that estimate the steps of expressions, by AST class."""


@dataclass(frozen=True, slots=True)
class _ItemKey:
    """A cache key for an item. Items are compared by identity because comparing trees is slow."""

    identity: int
    item: SpecItem = field(compare=False)


@lru_cache(maxsize=4096)
def collect_local_names(item_key: _ItemKey) -> set[str]:
    """Return the names of the parameters and variables of an item."""
    names = {p.name for p in item_key.item.params or ()}
    for node in walk_tree(item_key.item):
        match node:
            case (
                ast.AssignmentTarget(name=name)
                | ast.RepeatLoop(variable=name)
                | ast.ListComprehension(variable=name)
            ):
                names.add(name)
            case ast.ScanLoop():
                names |= {*node.variables, *node.collect}
    return names


def _can_return(statement: ast.Statement) -> bool:
    """Return True if a statement is a `when` statement that contains a `return`."""
    return isinstance(statement, ast.WhenStatement) and any(
        isinstance(n, ast.ReturnStatement) for n in walk_tree(statement)
    )


AnyParameter: TypeAlias = BuiltinParameter | ast.BlockParameter


def _pair_known_arguments(
    parameters: Iterable[AnyParameter], expr: ast.Call
) -> list[tuple[AnyParameter, ast.Expr]]:
    """Pair the arguments of a call with parameters. Skip arguments without a parameter."""
    parameters_by_name = {p.name: p for p in parameters}
    positional = [
        p
        for p in parameters_by_name.values()
        if not isinstance(p, BuiltinParameter) or p.is_positional
    ]
    if positional and isinstance(last := positional[-1], BuiltinParameter) and last.is_variadic:
        positional += [last] * len(expr.args)
    options = [
        (parameters_by_name[o.name], o.value) for o in expr.options if o.name in parameters_by_name
    ]
    return [*zip(positional, expr.args, strict=False), *options]
