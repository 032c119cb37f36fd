"""Estimate the minimum steps of a block or definition from its text, to fail before the work."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeAlias

from specc.diagnostics.source import Span
from specc.frontend.builtins.registry import BUILTINS, BuiltinParameter
from specc.frontend.context import EMPTY_NAMES, MAX_LAYERS
from specc.frontend.declared_types import is_function_type, is_tensor_type
from specc.frontend.parameter_kinds import FUNCTION_KIND, TENSOR_KIND
from specc.frontend.spec_values import SpecValue
from specc.frontend.step_budget import EXPANSION_COST, MAX_STEPS, OPERATION_COST, StepBudget
from specc.ir.dim import Dim
from specc.syntax import ast
from specc.syntax.ast import flatten_binary_chain, walk_tree

if TYPE_CHECKING:
    from specc.frontend.context import Library, SpecModule

SpecItem: TypeAlias = "ast.Block | ast.Definition"

MAX_NESTED_ITEMS = 64
"""Maximum nesting depth that an estimate covers; deeper items are counted during elaboration."""
STEP_LIMIT = MAX_STEPS + 1
"""Upper bound of an estimate."""


@dataclass
class StepEstimator:
    """Sums of steps, each computed once. `known` also keeps what its keys are about."""

    library: "Library"
    estimates: dict[tuple[int, int], tuple[int, "tuple[SpecItem, Mapping[str, SpecValue]]"]] = (
        field(default_factory=dict)
    )
    active_items: list[SpecItem] = field(default_factory=list)

    def check_budget(
        self,
        steps: StepBudget,
        item: SpecItem,
        module: "SpecModule",
        config: Mapping[str, SpecValue],
        span: Span | None = None,
    ) -> None:
        """Raise E0223 for a call at `span` that takes more steps than are left.

        Without a call, the largest statement of the item is shown.
        """
        least = self.estimate_item(item, module, config)
        if not steps.has_left(least) and span is None and isinstance(item, ast.Block):
            span = _ItemSteps(self, item, module, config).find_largest_statement()
        steps.check_estimate(least, span)

    def estimate_item(
        self, item: SpecItem, module: "SpecModule", config: Mapping[str, SpecValue]
    ) -> int:
        """Return the minimum number of steps to run a block or expand a definition."""
        key = id(item), id(config)
        if key in self.estimates:
            return self.estimates[key][0]
        if len(self.active_items) >= MAX_NESTED_ITEMS or any(i is item for i in self.active_items):
            return 0
        self.active_items.append(item)
        try:
            found = min(_ItemSteps(self, item, module, config).estimate(), STEP_LIMIT)
        finally:
            self.active_items.pop()
        self.estimates[key] = found, (item, config)
        return found


@dataclass
class _ItemNames:
    """Definitions of names in the text of one item."""

    estimator: StepEstimator
    item: SpecItem
    module: "SpecModule"
    config: Mapping[str, SpecValue]

    @cached_property
    def _bound_names(self) -> set[str]:
        return collect_bound_names(_ItemKey(id(self.item), self.item))

    def _find_item(self, name: str) -> "tuple[SpecItem, SpecModule] | None":
        """Return the block or definition of a name; None if it may be something else."""
        if name in self._bound_names or name in self.config or "." in name:
            return None
        return self.module.find_definition(name) or self.estimator.library.find_standard_item(name)

    def _estimate_inner(self, name: str) -> int:
        """Return the steps of the block or definition of a name."""
        found = self._find_item(name)
        if found is None:
            return 0
        item, module = found
        here = module.root is self.module.root
        return self.estimator.estimate_item(item, module, self.config if here else EMPTY_NAMES)

    def _count_iterations(self, over: ast.Expr) -> int:
        """Return the iterations of a loop if they are literal; too many are refused."""
        match over:
            case ast.NumberLiteral(text=text) if text.isdigit():
                return int(text) if int(text) <= MAX_LAYERS else 0
            case ast.ListLiteral(items=items):
                return len(items)
            case ast.Name(path=path) if path not in self._bound_names:
                held = self.config.get(path)
                number = held.number if isinstance(held, Dim) else None
                return number if number and 0 < number <= MAX_LAYERS else 0
        return 0


class _ItemSteps(_ItemNames):
    """Estimates the elaboration steps of one item."""

    def estimate(self) -> int:
        """Return the minimum number of steps to elaborate the item."""
        if isinstance(self.item, ast.Block):
            return self._estimate_body(self.item.body)
        return EXPANSION_COST + (
            self._estimate_mask if self.item.kind == "mask" else self._estimate_value
        )(self.item.value)

    def find_largest_statement(self) -> Span | None:
        """Return the statement of a block with the most steps."""
        assert isinstance(self.item, ast.Block)
        return max(self.item.body, key=self._estimate_statement).span

    def _estimate_body(self, body: Iterable[ast.Statement]) -> int:
        """Return the minimum number of steps of statements."""
        taken = 0
        for statement in body:
            taken += self._estimate_statement(statement)
            if isinstance(statement, ast.Return) or _can_return(statement):
                break
        return taken

    def _estimate_statement(self, statement: ast.Statement) -> int:
        count = STATEMENT_STEPS.get(type(statement))
        return count(self, statement) if count else 1

    def _estimate_repeat(self, statement: ast.Repeat) -> int:
        turns = self._count_iterations(statement.iterable)
        return turns * (2 + self._estimate_body(statement.body)) if turns else 0

    def _estimate_binary(self, expr: ast.Binary) -> int:
        leftmost, operations = flatten_binary_chain(expr)
        others = sum(OPERATION_COST + self._estimate_value(o.right) for o in operations)
        return self._estimate_value(leftmost) + others

    def _estimate_value(self, expr: ast.Expr) -> int:
        """Estimate the steps of evaluating an expression."""
        inner = EXPRESSION_STEPS.get(type(expr))
        return 1 + (inner(self, expr) if inner else 0)

    def _estimate_call(self, expr: ast.Call) -> int:
        name = expr.function.path
        found = self._find_item(name)
        if found is None:
            word = (
                BUILTINS.get(name)
                if name not in self._bound_names and name not in self.config
                else None
            )
            return (
                sum(
                    self._estimate_argument(s, a)
                    for s, a in _pair_known_arguments(word.parameters, expr)
                )
                if word
                else 0
            )
        if isinstance(found[0], ast.Definition):
            return 0
        pairs = _pair_known_arguments(found[0].params, expr)
        return sum(self._estimate_argument(p, a) for p, a in pairs) + self._estimate_inner(name)

    def _estimate_argument(
        self, slot: BuiltinParameter | ast.BlockParameter, expr: ast.Expr
    ) -> int:
        """Estimate the steps of an argument; names and functions applied later take none."""
        if isinstance(slot, BuiltinParameter):
            tensor, later = TENSOR_KIND in slot.kinds, FUNCTION_KIND in slot.kinds
        else:
            tensor, later = is_tensor_type(slot.type), is_function_type(slot.type)
        return (
            0
            if later or (isinstance(expr, ast.Name) and not tensor)
            else self._estimate_value(expr)
        )

    def _estimate_mask(self, expr: ast.Expr) -> int:
        """Estimate the steps of a mask and of its grid."""
        match expr:
            case ast.Binary(op="&" | "|"):
                leftmost, operations = flatten_binary_chain(expr)
                return (
                    1
                    + self._estimate_mask(leftmost)
                    + sum(OPERATION_COST + self._estimate_mask(o.right) for o in operations)
                )
            case ast.Unary(op="not", operand=operand):
                return 1 + self._estimate_mask(operand)
            case ast.Conditional(then=then, otherwise=otherwise):
                return 1 + min(self._estimate_mask(then), self._estimate_mask(otherwise))
            case ast.Name(path=name) | ast.Call(function=ast.Name(path=name)):
                return 1 + self._estimate_definition(name)
        return self._estimate_value(expr)

    def _estimate_definition(self, name: str) -> int:
        found = self._find_item(name)
        return (
            self._estimate_inner(name)
            if found and isinstance(found[0], ast.Definition) and found[0].kind == "mask"
            else 0
        )


STATEMENT_STEPS: Mapping[type[ast.Node], Callable[..., int]] = {
    ast.Let: lambda item, let: item._estimate_value(let.value),
    ast.Return: lambda item, node: sum(map(item._estimate_value, node.values)),
    ast.Repeat: _ItemSteps._estimate_repeat,
    ast.When: lambda item, node: min(
        item._estimate_body(node.body), item._estimate_body(node.otherwise)
    ),
    ast.Scan: lambda item, scan: 1 + item._estimate_body(scan.body),
}
EXPRESSION_STEPS: Mapping[type[ast.Node], Callable[..., int]] = {
    ast.Binary: _ItemSteps._estimate_binary,
    ast.Unary: lambda item, e: item._estimate_value(e.operand),
    ast.Conditional: lambda item, e: min(
        item._estimate_value(e.then), item._estimate_value(e.otherwise)
    ),
    ast.ListLiteral: lambda item, e: sum(map(item._estimate_value, e.items)),
    ast.ListComprehension: lambda item, e: (
        item._estimate_value(e.item) if item._count_iterations(e.iterable) else 0
    ),
    ast.Index: lambda item, e: item._estimate_value(e.base),
    ast.Call: _ItemSteps._estimate_call,
}
"""Steps of each kind of expression."""


@dataclass(frozen=True, slots=True)
class _ItemKey:
    """An item as the key of a cache: equal to itself alone, since a tree is slow to compare."""

    identity: int
    item: SpecItem = field(compare=False)


@lru_cache(maxsize=4096)
def collect_bound_names(key: _ItemKey) -> set[str]:
    """Return the names that an item redefines."""
    bound = {p.name for p in key.item.params or ()}
    for node in walk_tree(key.item):
        match node:
            case (
                ast.Target(name=name)
                | ast.Repeat(variable=name)
                | ast.ListComprehension(variable=name)
            ):
                bound.add(name)
            case ast.Scan():
                bound |= {*node.variables, *node.collect}
    return bound


def _can_return(statement: ast.Statement) -> bool:
    return isinstance(statement, ast.When) and any(
        isinstance(n, ast.Return) for n in walk_tree(statement)
    )


AnyParameter: TypeAlias = BuiltinParameter | ast.BlockParameter


def _pair_known_arguments(
    slots: Iterable[AnyParameter], expr: ast.Call
) -> list[tuple[AnyParameter, ast.Expr]]:
    """Return each argument with its parameter, if both exist."""
    slots = list(slots)
    places = [s for s in slots if not isinstance(s, BuiltinParameter) or s.is_positional]
    if places and isinstance(last := places[-1], BuiltinParameter) and last.is_variadic:
        places += [last] * len(expr.args)
    by_name = {s.name: s for s in slots}
    options = [(by_name[o.name], o.value) for o in expr.options if o.name in by_name]
    return [*zip(places, expr.args, strict=False), *options]
