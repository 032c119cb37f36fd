"""A table of one rule per op: how a backend says what each op means to it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from specc.ir.op import Op

F = TypeVar("F", bound=Callable[..., object])


@dataclass
class Rules(Generic[F]):
    """`@rules(ops.Softmax)` adds a rule; `rules[op]` finds it, by exact class."""

    backend: str
    table: dict[type[Op], F] = field(default_factory=dict)

    def __call__(self, op: type[Op]) -> Callable[[F], F]:
        """Register the decorated function. A second rule for the same op is a bug."""

        def register(rule: F) -> F:
            assert op not in self.table, f"{self.backend} has two rules for {op.name}"
            self.table[op] = rule
            return rule

        return register

    def __getitem__(self, op: Op) -> F:
        return self.table[type(op)]

    def missing(self, ops: Collection[type[Op]]) -> set[str]:
        """Names of the ops this backend cannot handle. A test keeps it empty."""
        return {op.name for op in ops} - {op.name for op in self.table}
