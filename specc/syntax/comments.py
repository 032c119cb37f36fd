"""Attach the comments of a DSL or YAML source to the nodes of its syntax tree."""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from specc.diagnostics.diagnostic import Span
from specc.syntax import ast
from specc.syntax.dsl.dsl_lexer import Comment

T = TypeVar("T", bound=ast.CommentedNode)
EMPTY_LINE = re.compile(r"\n[ \t\r]*\n")


class CommentedBody(NamedTuple, Generic[T]):
    """The child nodes and comments of a body. `end_comments` are the comments after the last child,
    and `trailing` is the comment after the opening brace or key.
    """

    children: tuple[T, ...]
    end_comments: tuple[str, ...]
    trailing: str


class CommentAttacher:
    """The comments of a file in source order. Each comment is attached to one node of the tree."""

    def __init__(self, text: str, comments: Sequence[Comment]) -> None:
        self.text = text
        self.comments = comments
        self.starts = [c.start for c in comments]
        self._is_attached = [False] * len(comments)

    def pop_comments(self, start: int, stop: int) -> tuple[str, ...]:
        """Remove the unattached comments in a range of offsets and return their texts."""
        return tuple(c.text for c in self._take_unattached(start, stop))

    def attach_comments(self, children: Sequence[T], start: int, stop: int) -> CommentedBody[T]:
        """Attach the comments between `start` and `stop` to `children`. Inner bodies are built
        before outer bodies, and their comments are already attached.
        """
        remaining = deque(self._take_unattached(start, stop))
        builder = CommentedBodyBuilder[T](self.text, start)
        for child in children:
            end = get_node_span(child).end
            comments = []
            while remaining and remaining[0].start < end:
                comments.append(remaining.popleft())
            builder.add_child(child, comments)
        return builder.finish_body(remaining)

    def _take_unattached(self, start: int, stop: int) -> list[Comment]:
        """Remove and return the unattached comments in a range of offsets."""
        first, last = bisect_left(self.starts, start), bisect_left(self.starts, stop)
        unattached = [n for n in range(first, last) if not self._is_attached[n]]
        for n in unattached:
            self._is_attached[n] = True
        return [self.comments[n] for n in unattached]


class CommentedBodyBuilder(Generic[T]):
    """A builder of a `CommentedBody`. `previous_end` is the end offset of the last child or opening
    brace.
    """

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.previous_end = start
        self.children: list[T] = []
        self.trailing = ""

    def add_child(self, child: T, comments: Sequence[Comment]) -> None:
        """Add the next child. `comments` are the comments before the end of `child`."""
        span = get_node_span(child)
        start_offset = span.start
        leading: list[str] = []
        for comment in comments:
            if comment.start >= span.start:
                # a comment inside the child is moved to the header line or above the child
                if self._is_on_header_line(child, comment):
                    child = add_header_comment(child, comment.text)
                else:
                    leading.append(comment.text)
            elif not self._is_after_last_child(comment) or not self._attach_trailing(comment):
                start_offset = min(start_offset, comment.start)
                leading.append(comment.text)
        has_blank_line = bool(self.children) and bool(
            EMPTY_LINE.search(self.text, self.previous_end, start_offset)
        )
        self.children.append(add_leading_comments(child, tuple(leading), has_blank_line))
        self.previous_end = span.end

    def finish_body(self, comments: Sequence[Comment]) -> CommentedBody[T]:
        """Return the complete body. `comments` are the comments after the last child."""
        end_comments: list[str] = []
        for comment in comments:
            # only the first comment can be on the line of the last child
            if (
                end_comments
                or not self._is_after_last_child(comment)
                or not self._attach_trailing(comment)
            ):
                end_comments.append(comment.text)
        return CommentedBody(tuple(self.children), tuple(end_comments), self.trailing)

    def _is_after_last_child(self, comment: Comment) -> bool:
        """Return True if a comment is on the last line of the last child."""
        return self.text.find("\n", self.previous_end, comment.start) < 0

    def _is_on_header_line(self, child: T, comment: Comment) -> bool:
        """Return True if a comment is on the first line of a child that has a body."""
        return (
            has_body(child)
            and not child.comments.trailing
            and self.text.find("\n", get_node_span(child).start, comment.start) < 0
        )

    def _attach_trailing(self, comment: Comment) -> bool:
        """Attach a trailing comment to the last child, or to the opening brace of a body without
        children. Return False if the opening brace already has a comment.
        """
        if self.children:
            self.children[-1] = add_trailing_comment(self.children[-1], comment.text)
        elif not self.trailing:
            self.trailing = comment.text
        else:
            return False
        return True


def attach_file_comments(
    attacher: CommentAttacher, file: ast.File, start: int, header_end: int
) -> ast.File:
    """Attach the comments of a file's items and header. The header spans the offsets `start` to
    `header_end`.

    The syntax tree can represent comments above the header and at the end of the first line.
    Comments on other lines of the header are moved above the header.
    """
    leading = attacher.pop_comments(0, start)
    newline_offset = attacher.text.find("\n", start, header_end)
    first_line_comments = (
        attacher.pop_comments(start, newline_offset) if newline_offset >= 0 else ()
    )
    leading += first_line_comments[1:] + attacher.pop_comments(start, header_end)
    body = attacher.attach_comments(file.items, header_end, len(attacher.text))
    trailing = [*first_line_comments[:1], *([body.trailing] if body.trailing else [])]
    comments = ast.Comments((*leading, *trailing[1:]), trailing[0] if trailing else "")
    return replace(file, items=body.children, comments=comments, end_comments=body.end_comments)


def attach_opening_comment(body: CommentedBody[T]) -> tuple[tuple[T, ...], tuple[str, ...]]:
    """Attach the comment after an opening brace to the first child of the body. Return the
    children and the comments at the end of the body.
    """
    if not body.trailing:
        return body.children, body.end_comments
    if not body.children:
        return (), (body.trailing, *body.end_comments)
    first_child, *other_children = body.children
    first_child = add_leading_comments(first_child, (body.trailing,), False)
    return (first_child, *other_children), body.end_comments


def get_node_span(node: ast.CommentedNode) -> Span:
    """Return the span of a parsed node."""
    assert node.span is not None
    return node.span


def has_body(node: ast.CommentedNode) -> bool:
    """Return True if a node has a body, as in `repeat … {` or `d: record {`."""
    return isinstance(node, ast.CommentedBlock) or (
        isinstance(node, ast.ConfigField) and bool(node.type.fields)
    )


def add_leading_comments(node: T, leading: tuple[str, ...], has_blank_line_before: bool) -> T:
    """Add comments above a node, preceded by a blank line if `has_blank_line_before` is set."""
    if not leading and not has_blank_line_before:
        return node
    comments = node.comments
    return replace(
        node,
        comments=replace(
            comments,
            leading=(*leading, *comments.leading),
            has_blank_line_before=has_blank_line_before,
        ),
    )


def add_header_comment(node: T, text: str) -> T:
    """Add a trailing comment to the first line of a node."""
    return replace(node, comments=replace(node.comments, trailing=text))


def add_trailing_comment(node: T, text: str) -> T:
    """Add a trailing comment to the last line of a node, or a comment at the end of its body."""
    if isinstance(node, ast.CommentedBlock):
        # the first line of a node such as `config { d = 1 } # all` is also its last line
        if not node.comments.trailing and "\n" not in get_node_span(node).text:
            return add_header_comment(node, text)
        if isinstance(node, ast.WhenStatement) and node.otherwise:
            return replace(node, else_end_comments=(*node.else_end_comments, text))
        return replace(node, end_comments=(*node.end_comments, text))
    if node.comments.trailing:
        # the node already has a trailing comment, so the new comment is moved above the node
        comments = replace(node.comments, leading=(*node.comments.leading, text))
        return replace(node, comments=comments)
    return add_header_comment(node, text)
