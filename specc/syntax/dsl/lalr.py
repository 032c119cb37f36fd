"""The LALR(1) parser driver: a table-driven parser without recursion, with error recovery."""

import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from specc.diagnostics.diagnostic import Diagnostic
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.syntax.dsl import dsl_lexer
from specc.syntax.dsl.dsl_lexer import Token

LEFT_CHAIN_RULES = frozenset({"binary", "chain_more"})
"""The rules whose first child does not increase the nesting depth, so a long sum has depth 1."""

CHAIN_RULES = LEFT_CHAIN_RULES | {"power", "choice", "index", "unary"}
"""The rules that lengthen an expression. Each such reduction checks MAX_EXPRESSION_TOKENS."""
NESTING_RULES = frozenset(
    {"unary", "power", "choice", "index", "call", "list_of", "list_for", "record_of", "chain_first"}
)
"""The rules that nest one expression in another."""


class LalrRule(NamedTuple):
    """A grammar rule of the parse table (see `docs.generators.lalr_table.build_rule_entry`)."""

    origin: str
    callback: str
    length: int
    children: list[int | None]
    inlines_single_child: bool

    @property
    def is_list(self) -> bool:
        """True if the rule is a repetition `x*`, which lark names like `__item_star_0`."""
        return self.origin[0] == "_"

    @property
    def is_unit_rule(self) -> bool:
        """True if the rule is a unit production, whose value is its only child's value."""
        return self.inlines_single_child and self.length == 1


@immutable_dataclass(kw_only=True)
class LalrTable:
    """The LALR(1) parse table.

    `states[n]` maps a symbol to the next state, or to `~rule` for a reduction. If state `n` always
    reduces by the same rule, `states[n]` is `~rule`. `unit_reduction_cache` caches chains of unit
    reductions.
    """

    keywords: dict[str, str]
    rules: list[LalrRule]
    states: list[int | dict[str, int]]
    start_states: dict[str, int]
    end_states: dict[str, int]
    unit_reduction_cache: dict[tuple[int, int, str], int] = field(default_factory=dict)

    def get_action(self, state: int, terminal: str) -> int | None:
        """Return the next state to shift a token, `~rule` to reduce, or None for a syntax error."""
        row = self.states[state]
        return row if isinstance(row, int) else row.get(terminal)

    def get_goto_state(self, state: int, origin: str) -> int | None:
        """Return the next state after a reduction to `origin`, or None if there is none."""
        row = self.states[state]
        assert not isinstance(row, int), "a reduce state consumes no token"
        return row.get(origin)

    def reduce_unit_productions(self, state_below: int, action: int, terminal: str) -> int:
        """Return the state on top of `state_below` after a chain of unit reductions. For example, a
        chain reduces a name to an atom, a power, a product and a sum.
        """
        key = state_below, action, terminal
        if key not in self.unit_reduction_cache:
            next_action: int | None = action
            while next_action is not None and next_action < 0:
                rule = self.rules[~next_action]
                if next_action != action and not rule.is_unit_rule:
                    break
                state = self.get_goto_state(state_below, rule.origin)
                assert state is not None
                self.unit_reduction_cache[key] = state
                # in an accepting state, the parser must check for the end of the text
                next_action = (
                    None if state in self.end_states.values() else self.get_action(state, terminal)
                )
        return self.unit_reduction_cache[key]

    def simulate_shift(
        self, states: Sequence[int], terminal: str, end_state: int
    ) -> list[int] | None:
        """Return the states after the parser reduces rules and shifts a token `terminal`, or None
        if the token is unexpected. For $END, return the states after the reductions to the state
        `end_state`.

        The parser builds no nodes. The simulation is necessary because LALR tables merge states: a
        table may allow a reduction after which the token is unexpected.
        """
        stack = list(states)
        while (action := self.get_action(stack[-1], terminal)) is not None:
            if action >= 0:
                return [*stack, action]
            rule = self.rules[~action]
            if rule.length:
                del stack[-rule.length :]
            state = self.get_goto_state(stack[-1], rule.origin)
            if state is None:  # the rule of the start symbol has been reduced
                return stack if terminal == "$END" else None
            stack.append(state)
            if terminal == "$END" and state == end_state:
                return stack
        return None

    def find_expected_terminals(self, states: Sequence[int], end_state: int) -> frozenset[str]:
        """Return the terminals allowed in parser states `states`. `end_state` accepts the text."""
        terminals = {*self.keywords.values(), "NAME", "NUMBER", "STRING", "$END"}
        return frozenset(
            kind for kind in terminals if self.simulate_shift(states, kind, end_state) is not None
        )


@cache
def load_lalr_table() -> LalrTable:
    """Load the parse table of the spec language."""
    path = Path(__file__).parent / "grammar.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    symbols = data["symbols"]

    return LalrTable(
        keywords=data["words"],
        rules=[LalrRule(*r) for r in data["rules"]],
        # each row of the file is `[symbol, action, …]`
        states=[
            row
            if isinstance(row, int)
            else {symbols[n]: a for n, a in zip(row[::2], row[1::2], strict=True)}
            for row in data["states"]
        ],
        start_states=data["starts"],
        end_states=data["ends"],
    )


class StackEntry(NamedTuple):
    """A value on the parser stack, built from the tokens `first_token` to `last_token`. For a value
    without tokens, `first_token` is -1. `depth` is the nesting depth of the expression.
    """

    value: object
    first_token: int
    last_token: int
    depth: int


RuleBuilder = Callable[[str, list[object], int, int], object]
"""A function `(rule, children, first token, last token)` that returns the value of a rule."""


@dataclass(kw_only=True)
class LalrParser:
    """A parser of one token sequence.

    `explain` builds the diagnostic for an unexpected token, and `build_limit_error` builds the
    diagnostic for an exceeded limit. `recovery_points` are the ascending token indices at which
    parsing may resume after an error. `keywords_as_names` are the recovery points whose token was
    parsed as a name.
    """

    table: LalrTable
    tokens: list[Token]
    start: str
    build: RuleBuilder
    explain: Callable[["LalrParser", int], Diagnostic]
    build_limit_error: Callable[[str, int], Diagnostic]
    recovery_points: list[int]
    errors: list[Diagnostic]
    states: list[int] = field(default_factory=list)
    stack: list[StackEntry] = field(default_factory=list)
    keywords_as_names: set[int] = field(default_factory=set)
    is_stopped: bool = False

    def parse(self) -> object:
        """Parse all tokens. Return the value of the start symbol, or None after errors."""
        self.states = [self.table.start_states[self.start]]
        end = self.table.end_states[self.start]
        recovery_points = set(self.recovery_points)
        index = 0
        while not self.is_stopped:
            token = self.tokens[index]
            action = self.table.get_action(self.states[-1], token.kind)
            if action is None:
                self.errors.append(self.explain(self, index))
                recovery_point = recover_from_syntax_error(self, index)
                if recovery_point is None or len(self.errors) >= dsl_lexer.MAX_COLLECTED_ERRORS:
                    return None
                index = recovery_point
            elif action >= 0:
                if index in recovery_points and self.can_accept_token(self.states, "NAME"):
                    self.keywords_as_names.add(index)
                self.states.append(action)
                self.stack.append(StackEntry(token, index, index, 0))
                index += 1
            else:
                self.apply_reduction(action, token.kind)
                if token.kind == "$END" and self.states[-1] == end:
                    return None if self.errors else self.stack[-1].value
        return None

    def can_accept_token(self, states: Sequence[int], terminal: str) -> bool:
        """Return True if a token of the terminal `terminal` is allowed in the states `states`."""
        return (
            self.table.simulate_shift(states, terminal, self.table.end_states[self.start])
            is not None
        )

    def list_expected_terminals(self) -> frozenset[str]:
        """Return the terminals that are allowed in the current parser states."""
        return self.table.find_expected_terminals(self.states, self.table.end_states[self.start])

    def apply_reduction(self, action: int, terminal: str) -> None:
        """Apply the reduction `action`, which replaces a rule's children with the rule's value."""
        rule = self.table.rules[~action]
        if rule.is_unit_rule:
            entry = self.stack[-1]
            if entry.last_token - entry.first_token < dsl_lexer.MAX_EXPRESSION_TOKENS:
                # cache chains of unit productions, because two thirds of all reductions are unit
                # productions
                self.states[-1] = self.table.reduce_unit_productions(
                    self.states[-2], action, terminal
                )
                return
            self.states.pop()
        else:
            first_index = len(self.stack) - rule.length
            entry = self.build_value(rule, self.stack[first_index:])
            self.stack[first_index:] = [entry]
            del self.states[len(self.states) - rule.length :]
        # limit the tokens of a complete expression or call, because a long call is slow to traverse
        is_expression = rule.origin == "expr" or rule.callback in CHAIN_RULES
        if (
            is_expression
            and entry.last_token - entry.first_token >= dsl_lexer.MAX_EXPRESSION_TOKENS
        ):
            self.report_exceeded_limit("E0111", entry.first_token)
        state = self.table.get_goto_state(self.states[-1], rule.origin)
        assert state is not None
        self.states.append(state)

    def build_value(self, rule: LalrRule, entries: list[StackEntry]) -> StackEntry:
        """Build a rule's value from the stack entries of its children."""
        present_entries = [entry for entry in entries if entry.first_token >= 0]
        first, last = (
            (present_entries[0].first_token, present_entries[-1].last_token)
            if present_entries
            else (-1, -1)
        )
        children = flatten_children(rule, entries)
        depth = compute_expression_depth(rule, entries)
        if rule.is_list:
            return StackEntry(children, first, last, depth)
        if rule.inlines_single_child and len(children) == 1:
            return StackEntry(children[0], first, last, depth)
        if depth > dsl_lexer.MAX_EXPRESSION_DEPTH and first >= 0 and not self.is_stopped:
            self.report_exceeded_limit("E0110", first)
        return StackEntry(self.build(rule.callback, children, first, last), first, last, depth)

    def report_exceeded_limit(self, code: str, first_token: int) -> None:
        """Report an exceeded limit at token `first_token`, and stop parsing."""
        self.errors.append(self.build_limit_error(code, first_token))
        self.is_stopped = True


def flatten_children(rule: LalrRule, entries: list[StackEntry]) -> list[object]:
    """Return a rule's children, with repetitions flattened and None for absent symbols."""
    children: list[object] = []
    selectors = rule.children
    if rule.is_list and selectors[:1] == [~0]:
        # extend the list of previous items in place, because copying takes quadratic time
        list_items = entries[0].value
        assert isinstance(list_items, list)
        children, selectors = list_items, selectors[1:]
    for n in selectors:
        if n is None or n >= 0:
            children.append(None if n is None else entries[n].value)
        else:
            items = entries[~n].value
            assert isinstance(items, list)
            children.extend(items)
    return children


def compute_expression_depth(rule: LalrRule, entries: list[StackEntry]) -> int:
    """Return the expression nesting depth of a rule with the children `entries`."""
    if rule.callback in LEFT_CHAIN_RULES:
        # `a + b + c` is parsed as `(a + b) + c`, but tree walks iterate over such a chain
        return max(entries[0].depth, max(e.depth for e in entries[1:]) + 1)
    max_depth = max((e.depth for e in entries), default=0)
    return max_depth + 1 if rule.callback in NESTING_RULES else max_depth


def recover_from_syntax_error(parser: LalrParser, index: int) -> int | None:
    """Drop the item with an error at token `index`. Return the index of the next recovery point, or
    None if there is none.

    The recovery point may be the token before `index` if this token was parsed as a name. In

        x = a +
        block f()

    `block` is parsed as a name that is added to `a`, and the error is at `f`.
    """
    for n in parser.recovery_points[bisect_left(parser.recovery_points, index - 1) :]:
        if n == index or (n < index and n not in parser.keywords_as_names):
            continue
        parser.keywords_as_names.discard(n)
        if _drop_failed_item(parser, parser.tokens[n].kind):
            return n
    return None


def _drop_failed_item(parser: LalrParser, kind: str) -> bool:
    """Drop states until a state accepts an item that begins with `kind`. Return False if no state
    accepts the item.
    """
    # skip states that accept a name, because they are inside an expression
    for depth in range(len(parser.states), 1, -1):
        states = parser.states[:depth]
        if parser.can_accept_token(states, kind) and not parser.can_accept_token(states, "NAME"):
            del parser.states[depth:]
            del parser.stack[depth - 1 :]
            return True
    return False
