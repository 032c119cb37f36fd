"""How many steps a block or a definition takes at least, told from its text.

Thirty definitions, each made of the one before twice, are a thousand million steps in
thirty lines. Counting them where they are taken stops that after `MOST_STEPS`; here they
are added up before, each definition once, so that what must be refused is refused at
once. What only the work itself can tell counts nothing: turns of a loop over a value that
is not written out, the longer side of a condition, things handed over to be applied. The
sum is never more than the steps that are counted; a test compares.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from specc.elaborate.budget import EXPANDING, MOST_STEPS, OPERATING, Steps
from specc.elaborate.context import MOST_LAYERS, NOTHING
from specc.elaborate.kinds import APPLIED, TENSOR
from specc.elaborate.typing import applied, is_tensor
from specc.elaborate.values import Known
from specc.elaborate.vocabulary.registry import WORDS, Slot
from specc.ir.dim import Dim
from specc.lang import tree
from specc.lang.walk import chain, walk
from specc.text.source import Span

if TYPE_CHECKING:
    from specc.elaborate.context import Library, Module

Item: TypeAlias = "tree.Block | tree.Definition"

DEEPEST = 64
"""Items inside each other that one sum looks into. What is deeper is added up when the
work arrives there.
"""
MOST = MOST_STEPS + 1
"""No sum is larger."""


@dataclass
class Foreseen:
    """Sums of steps, each worked out once. `known` also keeps what its keys are about."""

    library: "Library"
    known: dict[tuple[int, int], tuple[int, "tuple[Item, Mapping[str, Known]]"]] = (
        field(default_factory=dict)
    )
    inside: list[Item] = field(default_factory=list)

    def expect(
        self,
        steps: Steps,
        item: Item,
        module: "Module",
        config: Mapping[str, Known],
        span: Span | None = None,
    ) -> None:
        """E0223 for a call at `span` that takes more steps than are left.

        Without a call, the largest statement of the item is shown.
        """
        least = self.least(item, module, config)
        if not steps.left(least) and span is None and isinstance(item, tree.Block):
            span = _Text(self, item, module, config).largest()
        steps.expect(least, span)

    def least(self, item: Item, module: "Module", config: Mapping[str, Known]) -> int:
        """Steps that running a block, or expanding a definition, takes at least."""
        key = id(item), id(config)
        if key in self.known:
            return self.known[key][0]
        if len(self.inside) >= DEEPEST or any(i is item for i in self.inside):
            return 0
        self.inside.append(item)
        try:
            found = min(_Text(self, item, module, config).steps(), MOST)
        finally:
            self.inside.pop()
        self.known[key] = found, (item, config)
        return found


@dataclass
class _Names:
    """What names mean in the text of one item."""

    sums: Foreseen
    item: Item
    module: "Module"
    config: Mapping[str, Known]

    @cached_property
    def _bound(self) -> set[str]:
        return bound_in(self.item)

    def _item(self, name: str) -> "tuple[Item, Module] | None":
        """The block or definition that a name means; None where it may be something else."""
        if name in self._bound or name in self.config or "." in name:
            return None
        return self.module.found(name) or self.sums.library.standard(name)

    def _inner(self, name: str) -> int:
        """Steps that the block or definition of that name takes, besides naming it."""
        found = self._item(name)
        if found is None:
            return 0
        item, module = found
        here = module.root is self.module.root
        return self.sums.least(item, module, self.config if here else NOTHING)

    def _turns(self, over: tree.Expr) -> int:
        """Turns of a loop, where the text tells them; too many are refused as such."""
        match over:
            case tree.Num(text=text) if text.isdigit():
                return int(text) if int(text) <= MOST_LAYERS else 0
            case tree.ListOf(items=items):
                return len(items)
            case tree.Name(path=path) if path not in self._bound:
                held = self.config.get(path)
                number = held.number if isinstance(held, Dim) else None
                return number if number and 0 < number <= MOST_LAYERS else 0
        return 0


class _Text(_Names):
    """The text of one item, read where it stands."""

    def steps(self) -> int:
        """Steps of all of it."""
        if isinstance(self.item, tree.Block):
            return self._body(self.item.body)
        return EXPANDING + (self._mask if self.item.kind == "mask" else self._value)(
            self.item.value
        )

    def largest(self) -> Span | None:
        """The statement of a block that takes most steps."""
        assert isinstance(self.item, tree.Block)
        return max(self.item.body, key=self._statement).span

    def _body(self, body: Iterable[tree.Statement]) -> int:
        """Steps of statements, as far as they are sure to be run."""
        taken = 0
        for statement in body:
            taken += self._statement(statement)
            if isinstance(statement, tree.Return) or _may_return(statement):
                break
        return taken

    def _statement(self, statement: tree.Statement) -> int:
        match statement:
            case tree.Let():
                return self._value(statement.value)
            case tree.Return():
                return sum(map(self._value, statement.values))
            case tree.Repeat():
                turns = self._turns(statement.over)
                return turns * (2 + self._body(statement.body)) if turns else 0
            case tree.When():
                return min(self._body(statement.body), self._body(statement.otherwise))
            case tree.Scan():
                return 1 + self._body(statement.body)
        return 1

    def _value(self, expr: tree.Expr) -> int:
        """Steps of working out an expression."""
        match expr:
            case tree.Binary():
                leftmost, operations = chain(expr)
                return (
                    1
                    + self._value(leftmost)
                    + sum(OPERATING + self._value(o.right) for o in operations)
                )
            case tree.Unary(operand=operand):
                return 1 + self._value(operand)
            case tree.Choice(then=then, otherwise=otherwise):
                return 1 + min(self._value(then), self._value(otherwise))
            case tree.ListOf(items=items):
                return 1 + sum(map(self._value, items))
            case tree.ListFor(item=item, over=over):
                return 1 + (self._value(item) if self._turns(over) else 0)
            case tree.Index(base=base):
                return 1 + self._value(base)
            case tree.Call():
                return 1 + self._call(expr)
        return 1

    def _call(self, expr: tree.Call) -> int:
        name = expr.function.path
        found = self._item(name)
        if found is None:
            word = (
                WORDS.get(name)
                if name not in self._bound and name not in self.config
                else None
            )
            return (
                sum(self._argument(s, a) for s, a in _paired(word.slots, expr))
                if word
                else 0
            )
        if isinstance(found[0], tree.Definition):
            return 0
        pairs = _paired(found[0].params, expr)
        return sum(self._argument(p, a) for p, a in pairs) + self._inner(name)

    def _argument(self, slot: Slot | tree.Param, expr: tree.Expr) -> int:
        """Steps of an argument; words and what is applied later may take none."""
        if isinstance(slot, Slot):
            tensor, later = TENSOR in slot.kinds, APPLIED in slot.kinds
        else:
            tensor, later = is_tensor(slot.type), applied(slot.type)
        return (
            0
            if later or (isinstance(expr, tree.Name) and not tensor)
            else self._value(expr)
        )

    def _mask(self, expr: tree.Expr) -> int:
        """Steps of working out a mask and of making the grid it stands for."""
        match expr:
            case tree.Binary(op="&" | "|"):
                leftmost, operations = chain(expr)
                return (
                    1
                    + self._mask(leftmost)
                    + sum(OPERATING + self._mask(o.right) for o in operations)
                )
            case tree.Unary(op="not", operand=operand):
                return 1 + self._mask(operand)
            case tree.Choice(then=then, otherwise=otherwise):
                return 1 + min(self._mask(then), self._mask(otherwise))
            case tree.Name(path=name):
                return 1 + self._definition(name)
            case tree.Call(function=tree.Name(path=name)):
                return 1 + self._definition(name)
        return self._value(expr)

    def _definition(self, name: str) -> int:
        found = self._item(name)
        return (
            self._inner(name)
            if found
            and isinstance(found[0], tree.Definition)
            and found[0].kind == "mask"
            else 0
        )


def bound_in(item: Item) -> set[str]:
    """Names that an item gives a meaning of its own, which is not looked at."""
    bound = {p.name for p in item.params or ()}
    for node in walk(item):
        match node:
            case tree.Target(name=name):
                bound.add(name)
            case tree.Repeat(variable=name) | tree.ListFor(variable=name):
                bound.add(name)
            case tree.Scan():
                bound |= {*node.variables, *node.collect}
    return bound


def _may_return(statement: tree.Statement) -> bool:
    return isinstance(statement, tree.When) and any(
        isinstance(n, tree.Return) for n in walk(statement)
    )


Parameter: TypeAlias = Slot | tree.Param


def _paired(
    slots: Iterable[Parameter], expr: tree.Call
) -> list[tuple[Parameter, tree.Expr]]:
    """Each argument with the parameter it is given to, those that fit one."""
    slots = list(slots)
    places = [s for s in slots if not isinstance(s, Slot) or s.positional]
    if places and isinstance(last := places[-1], Slot) and last.many:
        places += [last] * len(expr.args)
    by_name = {s.name: s for s in slots}
    options = [(by_name[o.name], o.value) for o in expr.options if o.name in by_name]
    return [*zip(places, expr.args, strict=False), *options]
