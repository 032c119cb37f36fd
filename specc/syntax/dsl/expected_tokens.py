"""Find the terminals that may follow at an offset of a DSL text, for editor completion."""

from collections.abc import Sequence
from dataclasses import dataclass

from specc.diagnostics.source import Source
from specc.syntax.dsl.dsl_parser import FILE, find_restart_points
from specc.syntax.dsl.lalr import LalrTable, load_lalr_table
from specc.syntax.dsl.lexer import Fragment, Token, tokenize_fragment

HEADER_TERMINALS = ("SPECC", "NUMBER", "MODEL", "NAME")
"""The tokens of a file header: items after an invalid one are parsed as if after this."""


@dataclass(frozen=True)
class ExpectedTokens:
    """The terminals that may follow some tokens, and those of them that are keywords there (`under`
    after `repeat i in n`).
    """

    before: tuple[Token, ...]
    fits: frozenset[str]
    keywords: frozenset[str]


def find_expected_tokens(text: str, offset: int, start: str = FILE.symbol) -> ExpectedTokens | None:
    """Find what may follow at an offset of a text that begins as `start`. None inside a comment or
    string, and after a syntax error.
    """
    source = Source("<input>", text[:offset])
    fragment = Fragment(source, source.text)
    table = load_lalr_table()
    lexed = tokenize_fragment(fragment, table.words)
    if any(fault.code == "E0104" for fault in lexed.faults):
        return None  # the text in quotes that is open here
    if any(c.end == offset for c in lexed.comments):
        return None
    tokens = lexed.tokens[:-1]  # the last one says that the text ends
    states = _run_parser(table, tokens, find_restart_points(fragment, lexed), start)
    if states is None:
        return None
    here = _ParserPosition(table, table.ends[start])
    fits = here.fits(states)
    return ExpectedTokens(tuple(tokens), fits, here.keywords(states, fits))


def _run_parser(
    table: LalrTable, tokens: Sequence[Token], places: Sequence[int], start: str
) -> list[int] | None:
    """Return the parser states after some tokens. After an error it resumes at the next item; None
    if there is none.
    """
    states = [table.starts[start]]
    end = table.ends[start]
    tried: set[int] = set()
    at = 0
    while at < len(tokens):
        kind = tokens[at].kind
        if table.accepts(states, kind, end):
            states = advance_states(table, states, kind)
            at += 1
            continue
        # the word before may have been taken for a name: `mask a = ⏎ graph f(…)`
        restart = next((n for n in places if n >= at - 1 and n not in tried), None)
        if restart is None or start != FILE.symbol:
            return None
        tried.add(restart)
        states, at = [table.starts[start]], restart
        for kind in HEADER_TERMINALS:
            states = advance_states(table, states, kind)
    return states


def advance_states(table: LalrTable, states: Sequence[int], kind: str) -> list[int]:
    """Return the states after one more valid token."""
    stack = list(states)
    while (action := table.action(stack[-1], kind)) is not None and action < 0:
        rule = table.rules[~action]
        if rule.length:
            del stack[-rule.length :]
        state = table.after(stack[-1], rule.origin)
        assert state is not None
        stack.append(state)
    assert action is not None
    return [*stack, action]


@dataclass(frozen=True)
class _ParserPosition:
    """Questions about a place."""

    table: LalrTable
    end: int

    def fits(self, states: Sequence[int]) -> frozenset[str]:
        """Return the terminals that may come next."""
        known = {*self.table.words.values(), "NAME", "NUMBER", "STRING", "$END"}
        return frozenset(k for k in known if self.table.accepts(states, k, self.end))

    def keywords(self, states: Sequence[int], fits: frozenset[str]) -> frozenset[str]:
        """Return the keywords after which other tokens may follow than after a name; if no name
        fits, all.
        """
        words = {kind for text, kind in self.table.words.items() if text.isalpha()}
        if "NAME" not in fits:
            return fits & words
        named = self.fits(advance_states(self.table, states, "NAME"))
        return frozenset(
            kind
            for kind in fits & words
            if self.fits(advance_states(self.table, states, kind)) - named
        )
