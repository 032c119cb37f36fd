"""Mends as edits: what a message advises, put into the text and seen to help.

Some messages carry their edit (`Diagnostic.fixes`). Others say it in words: a name that
was probably meant, a text to write instead. Such a piece is put where the message points,
the changed text is checked, and only what takes the message away and brings no other is
offered. So an edit is never a guess that nobody tried.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from specc.editors.analysis import Analysis, analyses
from specc.text.diagnostic import Diagnostic
from specc.text.source import Span
from specc.text.suggest import did_you_mean

PIECE = re.compile(r"`([^`\n]+)`")
EXACT = re.compile(
    r"(?:write|another name, such as|[^`]+ is written|(?P<add>add|add the missing|"
    r"close it with)) `(?P<piece>[^`\n]+)`"
)
"""Advice on a text that cannot be read: nothing but what to write."""
BEGINS = re.compile(r"(?:(?:write|use|add|declare it:) )?`")
"""How advice begins that says what to write."""
OFFERED = re.compile(r"did you mean `([^`\n]+)`\?")
NAMED = re.compile(r"[\w.-]+")
MOST_TRIED = 8
"""Edits of one message that are tried."""


@dataclass(frozen=True)
class Edit:
    """Characters `start` to `end` replaced by a text; `title` is the advice."""

    title: str
    start: int
    end: int
    text: str

    def applied(self, text: str) -> str:
        """A text with the edit made."""
        return text[: self.start] + self.text + text[self.end :]


def mends(
    known: Analysis, fault: Diagnostic, unsaved: Mapping[Path, str] | None = None
) -> list[Edit]:
    """The edits that a message advises, each tried."""
    tried: list[Edit] = []
    for edit in candidates(known, fault):
        if len(tried) >= MOST_TRIED:
            break
        if edit not in tried:
            tried.append(edit)
    return [edit for edit in tried if _helps(known, fault, edit, unsaved or {})]


def candidates(known: Analysis, fault: Diagnostic) -> Iterator[Edit]:
    """The edits that the words of a message may stand for, the surest first."""
    for fix in fault.fixes:
        if known.is_here(fix.span):
            yield Edit(f"write `{fix.text}`", fix.span.start, fix.span.end, fix.text)
    span = fault.primary.span if fault.primary else None
    if span is None or not known.is_here(span):
        return
    for advice in (fault.title, *fault.helps):
        for offered in OFFERED.findall(advice):
            yield from _renamed(fault, span, offered)
    for advice in fault.helps:
        for piece, added in _pieces(advice, read=known.spec is not None):
            # dots stand for what only the author knows
            if "…" not in piece and "..." not in piece:
                yield from _placed(span, piece, added=added)


def _pieces(advice: str, *, read: bool) -> Iterator[tuple[str, bool]]:
    """The texts that a piece of advice says to write, and whether to add them."""
    exact = EXACT.fullmatch(advice)
    if exact is not None:
        yield exact["piece"], bool(exact["add"])
    elif read and BEGINS.match(advice):
        yield from (
            (piece, advice.startswith("add")) for piece in PIECE.findall(advice)
        )


def _renamed(fault: Diagnostic, span: Span, offered: str) -> Iterator[Edit]:
    """The name that is at fault replaced by the one that was meant."""
    for word in dict.fromkeys(NAMED.findall(span.text)):
        last = word.rpartition(".")[2] if "." not in offered else word
        near = did_you_mean(last, [offered]) == offered
        if near and last != offered and f"{last}" in fault.title:
            start = span.start + span.text.index(word) + len(word) - len(last)
            title = f"write `{offered}`"
            yield Edit(title, start, start + len(last), offered)


def _placed(span: Span, piece: str, *, added: bool) -> Iterator[Edit]:
    """A piece of advice where the message points: instead of the text, behind it, or as
    one more option of the call there.
    """
    if not added and not piece.startswith("@ "):
        yield Edit(f"write `{piece}`", span.start, span.end, piece)
    option = re.fullmatch(r"\w+=\S.*", piece)
    title = f"add `{piece}`"
    if option and span.text.endswith(")"):
        yield Edit(title, span.end - 1, span.end - 1, f", {piece}")
    elif added or piece.startswith("@ "):
        blank = " " if piece[0].isalnum() or piece[0] == "@" else ""
        yield Edit(title, span.end, span.end, blank + piece)
        yield Edit(title, span.start, span.start, f"{piece}\n")


def _helps(
    known: Analysis, fault: Diagnostic, edit: Edit, unsaved: Mapping[Path, str]
) -> bool:
    """Whether an edit takes its message away and brings no error that was not there."""
    # the graph that is meant: others are checked when the edit is made
    state = next(analyses(known.path, edit.applied(known.source.text), unsaved))
    before, after = _told(known), _told(state)
    same = fault.code, fault.title
    if (
        after.get(same, 0) >= before.get(same, 0)
        or state.spec is None is not known.spec
    ):
        return False
    # advice that is an example has names that this text does not have
    new = [d for d in state.diagnostics if (d.code, d.title) not in before]
    # others stood behind the fault, and nobody could see them
    return not any(_touches(state, d, edit) for d in new)


def _touches(state: Analysis, fault: Diagnostic, edit: Edit) -> bool:
    """Whether a message is about what an edit wrote."""
    span = fault.primary.span if fault.primary else None
    if span is None or not state.is_here(span):
        return False
    return span.start <= edit.start + len(edit.text) and span.end >= edit.start


def _told(known: Analysis) -> dict[tuple[str, str], int]:
    """The errors of a text, with how often each is there."""
    found: dict[tuple[str, str], int] = {}
    for d in known.diagnostics:
        if d.severity == "error":
            found[d.code, d.title] = found.get((d.code, d.title), 0) + 1
    return found
