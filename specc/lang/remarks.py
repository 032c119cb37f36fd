"""Comments → `Remarks` of the statements they belong to, the same way in both syntaxes.

A comment belongs to the statement it stands above, or behind. One inside a statement
moves above it, one after the last statement of a body becomes the body's `end`. No
comment is ever dropped.
"""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from specc.lang import tree
from specc.lang.dsl.lexer import Comment
from specc.text.source import Span

T = TypeVar("T", bound=tree.Remarked)
EMPTY_LINE = re.compile(r"\n[ \t\r]*\n")


class Body(NamedTuple, Generic[T]):
    """The children of a body with their comments, those at its end, and the one behind
    what opens it.
    """

    children: tuple[T, ...]
    end: tuple[str, ...]
    behind: str


class Attacher:
    """Hands out the comments of one file; each is taken once."""

    def __init__(self, text: str, comments: Sequence[Comment]) -> None:
        self.text = text
        self.comments = comments
        self.starts = [c.start for c in comments]
        self._taken = [False] * len(comments)

    def take(self, start: int, stop: int) -> tuple[str, ...]:
        """The texts of all comments left in a range."""
        return tuple(c.text for c in self._left(start, stop))

    def body(self, children: Sequence[T], start: int, stop: int) -> Body[T]:
        """Statements between `start` and `stop` with the comments among them.

        Inner bodies are complete before outer ones, so what is left here stands between
        the children, or in the head of one.
        """
        waiting = deque(self._left(start, stop))
        builder = BodyBuilder[T](self.text, start)
        for child in children:
            end = span_of(child).end
            comments = []
            while waiting and waiting[0].start < end:
                comments.append(waiting.popleft())
            builder.add(child, comments)
        return builder.close(waiting)

    def _left(self, start: int, stop: int) -> list[Comment]:
        """Takes the comments in a range that nothing has taken yet."""
        first, last = bisect_left(self.starts, start), bisect_left(self.starts, stop)
        places = [n for n in range(first, last) if not self._taken[n]]
        for n in places:
            self._taken[n] = True
        return [self.comments[n] for n in places]


class BodyBuilder(Generic[T]):
    """A body that grows by a child at a time. `edge` is where the last child ended, or
    the bracket that opens the body.
    """

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.edge = start
        self.children: list[T] = []
        self.behind = ""

    def add(self, child: T, comments: Sequence[Comment]) -> None:
        """The next child; `comments` are those before its end."""
        span = span_of(child)
        first = span.start
        above: list[str] = []
        for comment in comments:
            if comment.start >= span.start:
                # inside the child: `repeat i in n {  # this one`, else it moves above
                if self._in_head(child, comment):
                    child = trail_head(child, comment.text)
                else:
                    above.append(comment.text)
            elif not self._follows(comment) or not self._trail(comment):
                first = min(first, comment.start)
                above.append(comment.text)
        gap = bool(self.children) and bool(
            EMPTY_LINE.search(self.text, self.edge, first)
        )
        self.children.append(lead(child, tuple(above), gap))
        self.edge = span.end

    def close(self, comments: Sequence[Comment]) -> Body[T]:
        """The body; `comments` are those after its last child."""
        end: list[str] = []
        for comment in comments:
            # only the first can stand on the line of the last child
            if end or not self._follows(comment) or not self._trail(comment):
                end.append(comment.text)
        return Body(tuple(self.children), tuple(end), self.behind)

    def _follows(self, comment: Comment) -> bool:
        """Whether a comment stands on the line where the last thing ended."""
        return self.text.find("\n", self.edge, comment.start) < 0

    def _in_head(self, child: T, comment: Comment) -> bool:
        """Whether a comment stands on the first line of a child that has a body."""
        return (
            is_headed(child)
            and not child.remarks.behind
            and self.text.find("\n", span_of(child).start, comment.start) < 0
        )

    def _trail(self, comment: Comment) -> bool:
        """Puts a comment behind the last child, or behind what opens the body; False if
        something stands there already.
        """
        if self.children:
            self.children[-1] = trail(self.children[-1], comment.text)
        elif not self.behind:
            self.behind = comment.text
        else:
            return False
        return True


BODIES = (
    tree.Repeat,
    tree.Scan,
    tree.When,
    tree.Config,
    tree.Block,
    tree.Reading,
    tree.Weights,
    tree.Generate,
    tree.Quantize,
)
"""Classes with an `end`: what is commented behind their first line and behind their
last differs.
"""


def span_of(node: tree.Remarked) -> Span:
    """The span of a node that was read from text."""
    assert node.span is not None
    return node.span


def is_headed(node: tree.Remarked) -> bool:
    """Whether the first line of a node introduces the lines after it."""
    # a record's fields stand in lines of their own too: `d: record {`
    return isinstance(node, BODIES) or (
        isinstance(node, tree.Field) and bool(node.type.fields)
    )


def lead(node: T, before: tuple[str, ...], gap: bool) -> T:
    """A node with more comments above it and perhaps an empty line above those."""
    if not before and not gap:
        return node
    old = node.remarks
    return replace(node, remarks=replace(old, before=(*before, *old.before), gap=gap))


def trail_head(node: T, text: str) -> T:
    """A node with a comment behind its first line."""
    return replace(node, remarks=replace(node.remarks, behind=text))


def trail(node: T, text: str) -> T:
    """A node with a comment behind its last line: inside the body of those that have
    one on lines of its own.
    """
    if isinstance(node, BODIES):
        # `config { d = 1 }  # all` is one line: first and last are the same
        if not node.remarks.behind and "\n" not in span_of(node).text:
            return trail_head(node, text)
        if isinstance(node, tree.When) and node.otherwise:
            return replace(node, else_end=(*node.else_end, text))
        return replace(node, end=(*node.end, text))
    if node.remarks.behind:
        # its line has a comment already, so this one goes above
        remarks = replace(node.remarks, before=(*node.remarks.before, text))
        return replace(node, remarks=remarks)
    return trail_head(node, text)
