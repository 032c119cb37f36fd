"""The LALR(1) parser driver: tokens to a tree by table, without recursion, with error recovery."""

import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from specc.diagnostics.diagnostic import Diagnostic
from specc.syntax.dsl import lexer
from specc.syntax.dsl.lexer import Token

LEFT_CHAIN_RULES = frozenset({"binary", "chain_more"})
"""Rules whose first child does not add nesting depth: a sum of 5 000 terms counts as flat."""

CHAIN_RULES = LEFT_CHAIN_RULES | {"power", "choice", "index", "unary"}
"""Rules that lengthen an expression; parsing stops at the limit."""
NESTING_RULES = frozenset(
    {"unary", "power", "choice", "index", "call", "list_of", "list_for", "record_of", "chain_first"}
)
"""Rules that nest one expression in another."""


class LalrRule(NamedTuple):
    """A reduction; see `docs.generators.lalr_table.build_rule_entry`."""

    origin: str
    callback: str
    length: int
    children: list[int | None]
    alone: bool

    @property
    def is_list(self) -> bool:
        """Return whether it is a repetition, `x*`; lark names such rules `__item_star_0`."""
        return self.origin[0] == "_"

    @property
    def renames(self) -> bool:
        """Return whether it only renames a value, e.g. a power to a sign."""
        return self.alone and self.length == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LalrTable:
    """`states[n]` is `~rule` if that is always reduced, else a row: symbol → next state, or
    `~rule`. `chain_cache` caches the ends of chains of renaming rules.
    """

    words: dict[str, str]
    rules: list[LalrRule]
    states: list[int | dict[str, int]]
    starts: dict[str, int]
    ends: dict[str, int]
    chain_cache: dict[tuple[int, int, str], int] = field(default_factory=dict)

    def action(self, state: int, kind: str) -> int | None:
        """Return the action of a state for a token: the next state, `~rule` to reduce by, or None
        if the token does not fit.
        """
        row = self.states[state]
        return row if isinstance(row, int) else row.get(kind)

    def after(self, state: int, origin: str) -> int | None:
        """Return the next state after reducing to `origin`."""
        row = self.states[state]
        assert not isinstance(row, int), "a reduce state reads no token"
        return row.get(origin)

    def renamed(self, below: int, action: int, kind: str) -> int:
        """Return the state over `below` after a chain of renaming reductions: `i` is an atom, a
        power, a product, a sum and so on before it is a condition.
        """
        key = below, action, kind
        if key not in self.chain_cache:
            state = self.after(below, self.rules[~action].origin)
            assert state is not None
            while (action := self._renames(state, kind)) < 0:
                state = self.after(below, self.rules[~action].origin)
                assert state is not None
            self.chain_cache[key] = state
        return self.chain_cache[key]

    def _renames(self, state: int, kind: str) -> int:
        """Return the renaming reduction in `state` before `kind`, else 0."""
        action = self.action(state, kind)
        # in a state that can end the text the parser has to check for its end
        if action is None or action >= 0 or state in self.ends.values():
            return 0
        return action if self.rules[~action].renames else 0

    def accepts(self, states: Sequence[int], kind: str, end: int) -> bool:
        """Return whether `kind` can be shifted after its reductions; for $END, whether they lead to
        the state `end`.

        LALR tables merge states, so the table alone accepts too much: a reduction may be allowed
        whose result does not fit below. So the reductions are simulated without building nodes.
        """
        stack = list(states)
        while (action := self.action(stack[-1], kind)) is not None:
            if action >= 0:
                return True
            rule = self.rules[~action]
            if rule.length:
                del stack[-rule.length :]
            state = self.after(stack[-1], rule.origin)
            if state is None:  # the start symbol itself was reduced
                return kind == "$END"
            stack.append(state)
            if kind == "$END" and state == end:
                return True
        return False


@cache
def load_lalr_table() -> LalrTable:
    """Load the parse table of the language."""
    path = Path(__file__).parent / "grammar.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    symbols = data["symbols"]

    def decode_row(row: list[int]) -> dict[str, int]:
        return {symbols[n]: a for n, a in zip(row[::2], row[1::2], strict=True)}

    return LalrTable(
        words=data["words"],
        rules=[LalrRule(*r) for r in data["rules"]],
        states=[r if isinstance(r, int) else decode_row(r) for r in data["states"]],
        starts=data["starts"],
        ends=data["ends"],
    )


class StackEntry(NamedTuple):
    """A value on the stack, of tokens `first` to `last` (`first` is -1 for none),
    nested `height` deep.
    """

    value: object
    first: int
    last: int
    height: int


RuleBuilder = Callable[[str, list[object], int, int], object]
"""Rule, children, first and last token → value."""


@dataclass(kw_only=True)
class ParseRun:
    """One parse. `explain` builds the diagnostic of an unexpected token, `exceeded` of a passed
    limit. `restarts` are the indices in `tokens`, ascending, where parsing may resume after an
    error. `names` are those of them that were parsed as a name.
    """

    table: LalrTable
    tokens: list[Token]
    start: str
    build: RuleBuilder
    explain: Callable[["ParseRun", int], Diagnostic]
    exceeded: Callable[[str, int], Diagnostic]
    restarts: list[int]
    faults: list[Diagnostic]
    states: list[int] = field(default_factory=list)
    parts: list[StackEntry] = field(default_factory=list)
    names: set[int] = field(default_factory=set)
    stopped: bool = False

    def parse(self) -> object:
        """Return the value of the start symbol; None after errors."""
        self.states = [self.table.starts[self.start]]
        end = self.table.ends[self.start]
        possible = set(self.restarts)
        at = 0
        while not self.stopped:
            token = self.tokens[at]
            action = self.table.action(self.states[-1], token.kind)
            if action is None:
                self.faults.append(self.explain(self, at))
                restart = recover_from_error(self, at)
                if restart is None or len(self.faults) >= lexer.MAX_COLLECTED_ERRORS:
                    return None
                at = restart
            elif action >= 0:
                if at in possible and self.accepts(self.states, "NAME"):
                    self.names.add(at)
                self.states.append(action)
                self.parts.append(StackEntry(token, at, at, 0))
                at += 1
            else:
                self.reduce(action, token.kind)
                if token.kind == "$END" and self.states[-1] == end:
                    return None if self.faults else self.parts[-1].value
        return None

    def accepts(self, states: Sequence[int], kind: str) -> bool:
        """Return whether `kind` fits on top of these states."""
        return self.table.accepts(states, kind, self.table.ends[self.start])

    def expected(self) -> frozenset[str]:
        """Return the terminals that fit here."""
        terminals = {*self.table.words.values(), "NAME", "NUMBER", "STRING", "$END"}
        return frozenset(kind for kind in terminals if self.accepts(self.states, kind))

    def reduce(self, action: int, kind: str) -> None:
        """Replace the parts of a complete rule by the result of its callback."""
        rule = self.table.rules[~action]
        if rule.renames:
            whole = self.parts[-1]
            if whole.last - whole.first < lexer.MAX_EXPRESSION_TOKENS:
                # two of three reductions have one child; a chain of them is one step
                self.states[-1] = self.table.renamed(self.states[-2], action, kind)
                return
            self.states.pop()
        else:
            # not `[-length:]`, which is everything for an empty rule
            below = len(self.parts) - rule.length
            whole = self.value(rule, self.parts[below:])
            self.parts[below:] = [whole]
            del self.states[len(self.states) - rule.length :]
        # a long call is as hard to traverse as a long sum; it is checked at its end
        long = rule.origin == "expr" or rule.callback in CHAIN_RULES
        if long and whole.last - whole.first >= lexer.MAX_EXPRESSION_TOKENS:
            self.stop("E0111", whole.first)
        state = self.table.after(self.states[-1], rule.origin)
        assert state is not None
        self.states.append(state)

    def value(self, rule: LalrRule, parts: list[StackEntry]) -> StackEntry:
        """Build the value of a complete rule."""
        first, last = -1, -1
        for part in parts:
            if part.first >= 0:  # some children matched no tokens
                first, last = first if first >= 0 else part.first, part.last
        children = splice_children(rule, parts)
        height = compute_expression_depth(rule, parts)
        if rule.is_list:
            return StackEntry(children, first, last, height)
        if rule.alone and len(children) == 1:
            return StackEntry(children[0], first, last, height)
        if height > lexer.MAX_EXPRESSION_DEPTH and first >= 0 and not self.stopped:
            self.stop("E0110", first)
        value = self.build(rule.callback, children, first, last)
        return StackEntry(value, first, last, height)

    def stop(self, code: str, first: int) -> None:
        """Report that token `first` passes a limit, and stop parsing."""
        self.faults.append(self.exceeded(code, first))
        self.stopped = True


def splice_children(rule: LalrRule, parts: list[StackEntry]) -> list[object]:
    """Return the children of a rule: parts unchanged, repetitions spliced in, None for absent
    options.
    """
    children: list[object] = []
    chosen = rule.children
    if rule.is_list and chosen[:1] == [~0]:
        # `items: items item`: the first child is the list so far, which is referenced nowhere else
        # and is extended in place; copies would make long lists quadratic
        so_far = parts[0].value
        assert isinstance(so_far, list)
        children, chosen = so_far, chosen[1:]
    for n in chosen:
        if n is None:
            children.append(None)
        elif n >= 0:
            children.append(parts[n].value)
        else:
            more = parts[~n].value
            assert isinstance(more, list)
            children.extend(more)
    return children


def compute_expression_depth(rule: LalrRule, parts: list[StackEntry]) -> int:
    """Return the expression nesting depth of a complete rule."""
    if rule.callback in LEFT_CHAIN_RULES:
        # `a + b + c` is parsed as `(a + b) + c`, but traversed in a loop
        return max(parts[0].height, max(p.height for p in parts[1:]) + 1)
    highest = max((p.height for p in parts), default=0)
    return highest + 1 if rule.callback in NESTING_RULES else highest


def recover_from_error(run: ParseRun, at: int) -> int | None:
    """Recover from an error at token `at`: drop the broken item and resume at the next one
    that starts a line; None if there is none.

    That may be the word before `at`, if it was parsed as a name: in

        x = a +
        block f()

    `block` is parsed as a name that is added to `a`, and the error is at `f`.
    """
    for n in run.restarts[bisect_left(run.restarts, at - 1) :]:
        if n == at or (n < at and n not in run.names):
            continue
        run.names.discard(n)
        # drop states until the item fits; where a name fits too it is still an expression
        for depth in range(len(run.states), 1, -1):
            states = run.states[:depth]
            if run.accepts(states, run.tokens[n].kind) and not run.accepts(states, "NAME"):
                del run.states[depth:]
                del run.parts[depth - 1 :]
                return n
    return None
