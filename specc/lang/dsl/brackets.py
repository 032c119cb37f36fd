"""Brackets that are never closed or close nothing: E0102 and E0103.

The parser sees such a slip late, or at a token that is innocent. So brackets are paired
over the whole text first; what is left over explains the fault.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specc.lang.dsl.lexer import CLOSERS, OPENERS, Token
from specc.lang.dsl.misplaced import Misplaced
from specc.text.diagnostic import Diagnostic, Label


@dataclass(frozen=True)
class Unpaired:
    """Places of brackets that have no partner: openers, each with the token that shows
    it, and closers.
    """

    lost: dict[int, int] = field(default_factory=dict)
    stray: set[int] = field(default_factory=set)


def unpaired(tokens: Sequence[Token], restarts: Sequence[int]) -> Unpaired:
    """The brackets without a partner.

    A new item at the start of a line shows that whatever was open is missing its end.
    """
    found = Unpaired()
    stack: list[int] = []
    new_items = set(restarts)
    for n, token in enumerate(tokens):
        if n in new_items or token.kind == "$END":
            found.lost.update((opener, n) for opener in stack)
            stack.clear()
        if token.text in OPENERS:
            stack.append(n)
        elif token.text in CLOSERS:
            fits = [i for i, opener in enumerate(stack) if _pair(tokens[opener], token)]
            if not fits:
                found.stray.add(n)
                continue
            # `f(a[0)`: the `)` shows that the `[` inside is never closed
            found.lost.update((opener, n) for opener in stack[fits[-1] + 1 :])
            del stack[fits[-1] :]
    return found


def open_before(tokens: Sequence[Token], at: int) -> list[int]:
    """The brackets that are open at a token, outermost first."""
    stack: list[int] = []
    for n, token in enumerate(tokens[:at]):
        if token.text in OPENERS:
            stack.append(n)
        elif token.text in CLOSERS and stack and _pair(tokens[stack[-1]], token):
            stack.pop()
    return stack


def _pair(opener: Token, closer: Token) -> bool:
    return OPENERS[opener.text] == closer.text


def brackets(here: Misplaced, loose: Unpaired) -> Diagnostic | None:
    """A bracket that is never closed although the token is inside it, or one that
    closes nothing.
    """
    inside = open_before(here.tokens, here.at)
    if here.at in loose.stray:
        if not inside:
            return _closes_nothing(here, None)
        if inside[-1] not in loose.lost:
            return _closes_nothing(here, here.tokens[inside[-1]])
    if not inside or inside[-1] not in loose.lost:
        return None
    opener = inside[-1]
    return _unclosed(here, here.tokens[opener], min(here.at, loose.lost[opener]))


def _closes_nothing(here: Misplaced, last_open: Token | None) -> Diagnostic:
    others: list[Label] = []
    if last_open is not None:
        others.append(Label(here.span(last_open), "the last bracket that is open"))
    return Diagnostic(
        "E0103",
        f"a `{here.token.text}` without its opening bracket",
        Label(here.span(here.token), "closes nothing"),
        tuple(others),
        helps=("delete it, or open the bracket before",),
    )


def _unclosed(here: Misplaced, opener: Token, at: int) -> Diagnostic:
    """An opening bracket that is not closed before token `at`."""
    wanted = OPENERS[opener.text]
    token, before = here.tokens[at], here.tokens[at - 1]
    if token.kind == "$END":
        last = here.end_of(before) if len(here.tokens) > 1 else here.span(token)
        primary = Label(last, f"the text ends without its `{wanted}`")
    elif here.on_new_line(token, before) and opener.text != "{":
        # a `)` belongs to the line that it is missing from, a `}` to one of its own
        primary = Label(here.end_of(before), f"expected `{wanted}` after this")
    else:
        primary = Label(here.span(token), f"expected `{wanted}` before this")
    return Diagnostic(
        "E0102",
        f"a `{opener.text}` that is never closed",
        primary,
        (Label(here.span(opener), "opened here"),),
        helps=(f"add the missing `{wanted}`",),
    )
