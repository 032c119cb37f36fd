"""The LALR(1) driver: tokens → whatever the callbacks build, without recursion.

It runs over the table that lark made of grammar.lark (`specc.lang.table`). Deep and long inputs cost
time in proportion to their length and no stack. A fault is explained by a callback, then the parser
reads on at the next item at the start of a line, so that one run shows independent faults.
"""

import json
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from specc.lang import limits
from specc.lang.lexer import Token
from specc.text.diagnostic import Diagnostic

LEFT_CHAINS = frozenset({"binary", "chain_more"})
"""Rules whose first child adds nothing to the height: sums of 5 000 terms are flat to their readers."""

LONG = LEFT_CHAINS | {"power", "choice", "index", "unary"}
"""Rules that make an expression longer; one that is too long is not read to its end."""
TALL = frozenset({"unary", "power", "choice", "index", "call", "list_of", "list_for", "record_of", "chain_first"})
"""Rules that put one expression inside another."""


class Rule(NamedTuple):
    """What to do when a rule is complete; see `specc.lang.table.rule_entry`."""

    origin: str
    callback: str
    length: int
    children: list[int | None]
    alone: bool


@dataclass(frozen=True, slots=True)
class Table:
    """`states[n]` is `~rule`, or symbol → state or `~rule`."""

    words: dict[str, str]
    rules: list[Rule]
    states: list[int | dict[str, int]]
    starts: dict[str, int]
    ends: dict[str, int]


@cache
def load() -> Table:
    """The table of the language."""
    path = Path(__file__).parent / "grammar.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    symbols = data["symbols"]
    states = [
        row if isinstance(row, int) else {symbols[n]: a for n, a in zip(row[::2], row[1::2], strict=True)}
        for row in data["states"]
    ]
    return Table(data["words"], [Rule(*r) for r in data["rules"]], states, data["starts"], data["ends"])


class Made(NamedTuple):
    """A value on the stack: made of tokens `first` to `last` (`first` is -1 for none), nested `height` deep."""

    value: Any
    first: int
    last: int
    height: int


Callback = Callable[[str, list[Any], int, int], Any]
"""Rule, children, first and last token → value."""


@dataclass
class Run:
    """One parse. `explain` makes the diagnostic for a token that does not fit, `exceeded` for too much.

    `restarts` are the places in `tokens`, ascending, where parsing may go on after a fault.
    """

    table: Table
    tokens: list[Token]
    start: str
    build: Callback
    explain: Callable[["Run", int], Diagnostic]
    exceeded: Callable[[str, int, int], Diagnostic]
    restarts: list[int]
    faults: list[Diagnostic]
    states: list[int] = field(default_factory=list)
    values: list[Made] = field(default_factory=list)
    names: set[int] = field(default_factory=set)
    stopped: bool = False

    def parse(self) -> Any:
        """The value of the start symbol; None if there are faults."""
        self.states = [self.table.starts[self.start]]
        end = self.table.ends[self.start]
        possible = set(self.restarts)
        at = 0
        while True:
            token = self.tokens[at]
            action = self.action(token.kind)
            if action is None:
                self.faults.append(self.explain(self, at))
                restart = self.recover(at)
                if restart is None or len(self.faults) >= limits.COLLECTED:
                    return None
                at = restart
            elif action >= 0:
                if at in possible and self.accepts(self.states, "NAME"):
                    self.names.add(at)
                self.states.append(action)
                self.values.append(Made(token, at, at, 0))
                at += 1
            else:
                self.reduce(self.table.rules[~action])
                if self.stopped:
                    return None
                if token.kind == "$END" and self.states[-1] == end:
                    return None if self.faults else self.values[-1].value

    def action(self, kind: str) -> int | None:
        """What to do in the present state when `kind` comes."""
        state = self.table.states[self.states[-1]]
        return state if isinstance(state, int) else state.get(kind)

    def reduce(self, rule: Rule) -> None:
        """Replace the values of a complete rule by what the callback makes of them."""
        size = rule.length
        parts = self.values[len(self.values) - size :] if size else []
        del self.values[len(self.values) - size :]
        del self.states[len(self.states) - size :]
        made = self.made(rule, parts)
        if made.last - made.first >= limits.TOKENS and (rule.origin == "expr" or rule.callback in LONG):
            self.faults.append(self.exceeded("E0111", made.first, made.last))
            self.stopped = True
        row = self.table.states[self.states[-1]]
        assert isinstance(row, dict)
        self.values.append(made)
        self.states.append(row[rule.origin])

    def made(self, rule: Rule, parts: list[Made]) -> Made:
        """The value of a rule."""
        if rule.alone and rule.length == 1:
            return parts[0]
        spread = [p for p in parts if p.first >= 0]
        first, last = (spread[0].first, spread[-1].last) if spread else (-1, -1)
        listed = rule.origin[0] == "_"
        if listed and rule.children[:1] == [~0]:
            children = parts[0].value  # this list is on no other stack place: growing it keeps long lists linear
            chosen = rule.children[1:]
        else:
            children = []
            chosen = rule.children
        for n in chosen:
            if n is None:
                children.append(None)
            elif n >= 0:
                children.append(parts[n].value)
            else:
                children.extend(parts[~n].value)
        height = max((p.height for p in parts), default=0)
        if listed:
            return Made(children, first, last, height)
        if rule.alone and len(children) == 1:
            return Made(children[0], first, last, height)
        if rule.callback in LEFT_CHAINS:
            height = max(parts[0].height, max(p.height for p in parts[1:]) + 1)
        elif rule.callback in TALL:
            height += 1
        if height > limits.HEIGHT and first >= 0 and not self.stopped:
            self.faults.append(self.exceeded("E0110", first, last))
            self.stopped = True
        return Made(self.build(rule.callback, children, first, last), first, last, height)

    def accepts(self, states: list[int], kind: str) -> bool:
        """Whether `kind` can be shifted after the reductions that it calls for."""
        stack = list(states)
        while True:
            row = self.table.states[stack[-1]]
            action = row if isinstance(row, int) else row.get(kind)
            if action is None:
                return False
            if action >= 0:
                return True
            rule = self.table.rules[~action]
            if rule.length:
                del stack[-rule.length :]
            goto = self.table.states[stack[-1]]
            assert isinstance(goto, dict)
            if rule.origin not in goto:
                return kind == "$END"
            stack.append(goto[rule.origin])
            if kind == "$END" and stack[-1] == self.table.ends[self.start]:
                return True

    def expected(self) -> frozenset[str]:
        """The terminals that fit here."""
        terminals = {*self.table.words.values(), "NAME", "NUMBER", "STRING", "$END"}
        return frozenset(kind for kind in terminals if self.accepts(self.states, kind))

    def recover(self, at: int) -> int | None:
        """After a fault at token `at`: drop the broken item and go on at the next one that starts a line.

        That may be the word before `at`, if it was taken for a name.
        """
        for n in self.restarts[bisect_left(self.restarts, at - 1) :]:
            if n == at or (n < at and n not in self.names):
                continue
            self.names.discard(n)
            for depth in range(len(self.states), 1, -1):
                states = self.states[:depth]
                if self.accepts(states, self.tokens[n].kind) and not self.accepts(states, "NAME"):
                    del self.states[depth:]
                    del self.values[depth - 1 :]
                    return n
        return None
