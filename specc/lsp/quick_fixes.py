"""Quick fixes: edits that the help of a diagnostic suggests, each tried first."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from specc.diagnostics.diagnostic import Diagnostic
from specc.diagnostics.source import Span
from specc.diagnostics.suggest import did_you_mean
from specc.lsp.document_analysis import DocumentAnalysis, analyze_incrementally
from specc.lsp.fix_placement import FixEdit, place_fix, removal_edits

PIECE = re.compile(r"`([^`\n]+)`")
WRITTEN = re.compile(r"[ =(@:&]")
"""What a text that is to be written has."""
LAST = re.compile(r"(?P<add>)[^`]*: `(?P<piece>[^`\n]+)`")
"""Advice that ends with what to write."""
LEFT_OUT = re.compile(r"(?:delete it|leave (?:it|one of the two) out|remove it)\b")
"""How advice begins on what is there and should not be."""
ONE_OF = re.compile(r"it is one of ([\w.-]+(?:, [\w.-]+)*)")
EXACT = re.compile(
    r"(?:write|another name, such as|[^`]+ is written|(?P<add>add|add the missing|"
    r"close it with)) `(?P<piece>[^`\n]+)`"
)
"""Advice on a text that cannot be read: nothing but what to write."""
BEGINS = re.compile(r"(?:(?:write|use|add|declare it:) )?`")
"""How advice begins that says what to write."""
OFFERED = re.compile(r"did you mean `([^`\n]+)`\?")
NAMED = re.compile(r"[\w.-]+")
MOST_TRIED = 16
"""Edits of one message that are tried."""
MOST_SEEN = 64
"""Edits of one message that are thought of."""
MOST_OFFERED = 4
"""Edits of one message that are offered."""


def find_quick_fixes(
    known: DocumentAnalysis, fault: Diagnostic, unsaved: Mapping[Path, str] | None = None
) -> list[FixEdit]:
    """The edits that a message advises, each tried."""
    trial = FixTrial(known, fault, unsaved or {})
    text, found = known.source.text, dict[str, FixEdit]()
    tried = {e.applied(text): e for e in islice(candidate_edits(known, fault), MOST_SEEN)}
    for edit in islice(tried.values(), MOST_TRIED):
        # of one piece of advice the first place that helps is the likeliest
        if edit.title not in found and trial.helps(edit):
            found[edit.title] = edit
        if len(found) == MOST_OFFERED:
            break
    return [*found.values()]


def candidate_edits(known: DocumentAnalysis, fault: Diagnostic) -> Iterator[FixEdit]:
    """The edits that the words of a message may stand for, the surest first."""
    for fix in fault.fixes:
        if known.is_here(fix.span):
            yield FixEdit(f"write `{fix.text}`", fix.span.start, fix.span.end, fix.text)
    labels = [fault.primary, *fault.others] if fault.primary else []
    spans = [label.span for label in labels if label and known.is_here(label.span)]
    # a name that was meant is surer than what a piece of advice may stand for
    for advice in (fault.title, *fault.helps):
        for offered in OFFERED.findall(advice):
            for span in spans[:1]:
                yield from _renamed(fault, span, offered)
    for advice in fault.helps:
        yield from _followed(known, advice, spans)


def _followed(known: DocumentAnalysis, advice: str, spans: Sequence[Span]) -> Iterator[FixEdit]:
    """The edits that one piece of advice may stand for."""
    if LEFT_OUT.match(advice):
        yield from removal_edits(spans)
    if choice := ONE_OF.fullmatch(advice):
        for word in choice[1].split(", "):
            yield from place_fix(known, spans[:1], word, added=False)
    for piece, added in _pieces(advice, read=known.spec is not None):
        yield from place_fix(known, spans, piece, added=added)


def _pieces(advice: str, *, read: bool) -> Iterator[tuple[str, bool]]:
    """The texts that a piece of advice says to write, and whether to add them."""
    exact = EXACT.fullmatch(advice) or LAST.fullmatch(advice)
    if exact is not None:
        yield exact["piece"], bool(exact["add"])
    elif read:
        told = BEGINS.match(advice) is not None
        yield from (
            (piece, advice.startswith("add"))
            for piece in PIECE.findall(advice)
            # a word alone is mostly one that the advice speaks of
            if told or WRITTEN.search(piece)
        )


def _renamed(fault: Diagnostic, span: Span, offered: str) -> Iterator[FixEdit]:
    """The name that is at fault replaced by the one that was meant."""
    if NAMED.fullmatch(span.text):
        yield FixEdit(f"write `{offered}`", span.start, span.end, offered)
    for word in dict.fromkeys(NAMED.findall(span.text)):
        # of `side.linaer` only the last part is wrong
        last = word.rpartition(".")[2] if "." not in offered else word
        near = did_you_mean(last, [offered]) == offered
        if near and last != offered and f"{last}" in fault.title:
            start = span.start + span.text.index(word) + len(word) - len(last)
            title = f"write `{offered}`"
            yield FixEdit(title, start, start + len(last), offered)


@dataclass
class FixTrial:
    """A message and the text it is about, in which edits are tried."""

    known: DocumentAnalysis
    fault: Diagnostic
    unsaved: Mapping[Path, str]

    def helps(self, edit: FixEdit) -> bool:
        """Whether an edit takes the message away and brings no error that was not there."""
        state = self._looked_at(edit.applied(self.known.source.text))
        before, after = _told(self.known), _told(state)
        same = self.fault.code, self.fault.title
        if after.get(same, 0) >= before.get(same, 0):
            return False
        if state.spec is None and self.known.spec is not None:
            return False
        # advice that is an example has names that this text does not have
        new = [
            d
            for d in state.diagnostics
            if d.severity == "error" and (d.code, d.title) not in before
        ]
        # others stood behind the fault, and nobody could see them
        return not any(_touches(state, d, edit) for d in new)

    def _looked_at(self, text: str) -> DocumentAnalysis:
        """Analyze a text up to the graph in which the message was found."""
        states = analyze_incrementally(self.known.path, text, self.unsaved)
        return next(islice(states, self._depth, None), None) or next(
            analyze_incrementally(self.known.path, text, self.unsaved)
        )

    @cached_property
    def _depth(self) -> int:
        """Which of the graphs has the message."""
        text = self.known.source.text
        for n, state in enumerate(analyze_incrementally(self.known.path, text, self.unsaved)):
            if (self.fault.code, self.fault.title) in _told(state):
                return n
        return 0


def _touches(state: DocumentAnalysis, fault: Diagnostic, edit: FixEdit) -> bool:
    """Whether a message is about what an edit wrote."""
    span = fault.primary.span if fault.primary else None
    if span is None or not state.is_here(span):
        return False
    return span.start <= edit.start + len(edit.text) and span.end >= edit.start


def _told(known: DocumentAnalysis) -> dict[tuple[str, str], int]:
    """What is said of a text, with how often each is."""
    found: dict[tuple[str, str], int] = {}
    for d in known.diagnostics:
        found[d.code, d.title] = found.get((d.code, d.title), 0) + d.count
    return found
