"""Comments → `Remarks` of the statements they belong to, the same way in both syntaxes.

A comment belongs to the statement it stands above, or behind. One inside a statement moves above it, one
after the last statement of a body becomes the body's `end`. No comment is ever dropped.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from specc.lang import tree
from specc.lang.lexer import Comment

T = TypeVar("T")
EMPTY_LINE = re.compile(r"\n[ \t\r]*\n")


class Dresser:
    """Hands out the comments of one file; each is taken once."""

    def __init__(self, text: str, comments: Sequence[Comment]) -> None:
        self.text = text
        self.comments = comments
        self.starts = [c.start for c in comments]
        self.taken = [False] * len(comments)

    def between(self, start: int, stop: int) -> list[int]:
        """The places in `comments` of those in a range that nothing has taken yet."""
        first, last = bisect_left(self.starts, start), bisect_left(self.starts, stop)
        return [n for n in range(first, last) if not self.taken[n]]

    def same_line(self, start: int, stop: int) -> bool:
        """Whether no line ends in a range."""
        return self.text.find("\n", start, stop) < 0

    def take(self, start: int, stop: int) -> tuple[str, ...]:
        """All comments left in a range."""
        places = self.between(start, stop)
        for n in places:
            self.taken[n] = True
        return tuple(self.comments[n].text for n in places)

    def body(self, children: Sequence[T], start: int, stop: int) -> tuple[tuple[T, ...], tuple[str, ...], str]:
        """Statements between `start` and `stop` with their comments, those at the end, the one behind `start`."""
        places = self.between(start, stop)
        dressed: list[T] = []
        behind = ""
        edge = start
        at = 0
        previous: Any = None
        for child in children:
            span = spanned(child)
            before: list[str] = []
            first = span.start
            while at < len(places) and self.comments[places[at]].start < span.end:
                place = places[at]
                at += 1
                if self.taken[place]:
                    continue
                self.taken[place] = True
                comment = self.comments[place]
                if comment.start < span.start and self.same_line(edge, comment.start):
                    if previous is None:
                        behind, before = (comment.text, before) if not behind else (behind, [*before, comment.text])
                    else:
                        previous = dressed[-1] = trail(previous, comment.text)
                elif comment.start < span.start:
                    first = min(first, comment.start)
                    before.append(comment.text)
                elif headed(child) and not before_behind(child) and self.same_line(span.start, comment.start):
                    child = trail_head(child, comment.text)
                else:
                    before.append(comment.text)
            gap = previous is not None and EMPTY_LINE.search(self.text, edge, first) is not None
            child = lead(child, tuple(before), gap)
            dressed.append(child)
            previous, edge = child, span.end
        end: list[str] = []
        for place in places[at:]:
            if self.taken[place]:
                continue
            self.taken[place] = True
            comment = self.comments[place]
            if not end and self.same_line(edge, comment.start):
                if previous is None and not behind:
                    behind = comment.text
                    continue
                if previous is not None:
                    previous = dressed[-1] = trail(previous, comment.text)
                    continue
            end.append(comment.text)
        return tuple(dressed), tuple(end), behind


BODIES = (
    tree.Repeat,
    tree.Scan,
    tree.When,
    tree.Config,
    tree.Block,
    tree.Reading,
    tree.Weights,
    tree.Generate,
)
"""Classes with an `end`: what is commented behind their first line and behind their last differs."""


def spanned(node: Any) -> Any:
    """The span of a node that was read from text."""
    assert node.span is not None
    return node.span


def contains(node: Any) -> bool:
    """Whether a node has a body of its own."""
    return isinstance(node, BODIES)


def headed(node: Any) -> bool:
    """Whether the first line of a node introduces the lines after it."""
    return contains(node) or (isinstance(node, tree.Field) and bool(node.type.fields))


def before_behind(node: Any) -> bool:
    """Whether something stands behind the first line of a node already."""
    return bool(node.remarks.behind)


def lead(node: Any, before: tuple[str, ...], gap: bool) -> Any:
    """A node with comments above it and perhaps an empty line above those."""
    if not before and not gap:
        return node
    old = node.remarks
    return replace(node, remarks=replace(old, before=(*before, *old.before), gap=gap))


def trail_head(node: Any, text: str) -> Any:
    """A node with a comment behind its first line."""
    return replace(node, remarks=replace(node.remarks, behind=text))


def trail(node: Any, text: str) -> Any:
    """A node with a comment behind its last line: inside the body of those that have one on lines of its own."""
    if contains(node) and not node.remarks.behind and "\n" not in spanned(node).text:
        return trail_head(node, text)
    if isinstance(node, tree.When) and node.otherwise:
        return replace(node, else_end=(*node.else_end, text))
    if contains(node):
        return replace(node, end=(*node.end, text))
    if node.remarks.behind:
        return replace(node, remarks=replace(node.remarks, before=(*node.remarks.before, text)))
    return trail_head(node, text)
