"""What every part of the YAML reader needs: kinds of nodes, known keys, and faults.

Faults are collected, so that one run shows all that are independent. After a fault the
reader goes on with a stand-in, which nothing sees: a file with faults gives no tree.
"""

from collections.abc import Iterable

from specc.lang import limits
from specc.lang.dsl.lexer import Comment
from specc.lang.dsl.parse import capped
from specc.lang.remarks import Attacher
from specc.lang.yaml.nodes import Entry, Mapping, Node, Scalar, Sequence, empty
from specc.text.diagnostic import Diagnostic, Failed, Label
from specc.text.source import Source, Span
from specc.text.suggest import did_you_mean, listing, suggestion


class Reader:
    """The reading of one YAML file."""

    def __init__(self, source: Source, comments: list[Comment]) -> None:
        self.source = source
        self.comments = comments
        self.attacher = Attacher(source.text, comments)
        self.faults: list[Diagnostic] = []

    def fault(
        self,
        code: str,
        title: str,
        span: Span,
        label: str,
        *helps: str,
        others: Iterable[Label] = (),
    ) -> None:
        """Note a fault and go on."""
        self.add(
            Diagnostic(code, title, Label(span, label), tuple(others), helps=helps)
        )

    def add(self, *faults: Diagnostic) -> None:
        """Note faults; past a number of them nobody reads on."""
        self.faults.extend(faults)
        if len(self.faults) >= limits.COLLECTED:
            raise Failed(*capped(self.faults))

    def mapping(self, node: Node, what: str, example: str) -> list[Entry]:
        """The entries of a map; an empty place is an empty map."""
        if isinstance(node, Mapping):
            return node.entries
        if not empty(node):
            self.wrong_kind(node, what, "a map", example)
        return []

    def items(self, node: Node, what: str, example: str) -> list[Node]:
        """The entries of a list; an empty place is an empty list."""
        if isinstance(node, Sequence):
            return node.items
        if not empty(node):
            self.wrong_kind(node, what, "a list", example)
        return []

    def wrong_kind(self, node: Node, what: str, due: str, example: str) -> None:
        """Note a list where a map is due, or the like."""
        found = KINDS[type(node)]
        self.fault(
            "E0125",
            f"{what} is {due}, not {found}",
            first_line(node.span),
            f"this is {found}",
            f"write {example}",
        )

    def raw(self, node: Node, what: str) -> str:
        """The text of a scalar as it stands."""
        if not isinstance(node, Scalar):
            example = "it as a text, in quotes if it contains `: ` or brackets"
            self.wrong_kind(node, what, "a text", example)
            return ""
        if empty(node):
            self.fault(
                "E0101",
                f"nothing is written for {what}",
                node.span,
                "expected a text here",
                "write the text behind the `:`",
            )
        return node.value

    def raw_of(self, entries: dict[str, Entry], key: str) -> str:
        """The text of a key that may be absent."""
        return self.raw(entries[key].value, f"`{key}`") if key in entries else ""

    def known(
        self,
        node: Node,
        names: Iterable[str],
        what: str,
        required: Iterable[str] = (),
    ) -> dict[str, Entry]:
        """The entries by key. Notes E0201 for a key that is not among `names`, E0126
        for one that is missing.
        """
        allowed = tuple(names)
        entries = node.entries if isinstance(node, Mapping) else []
        found = {e.name: e for e in entries}
        missing = [n for n in required if n not in found]
        for entry in entries:
            if entry.name not in allowed:
                # a key that was misspelled is one fault, not two
                meant = self.unknown(entry, allowed, what)
                if meant in missing:
                    missing.remove(meant)
        for name in missing:
            self.fault(
                "E0126",
                f"{what} has no `{name}`",
                first_line(node.span),
                f"`{name}` is missing here",
                f"add `{name}: …`",
            )
        return found

    def unknown(self, entry: Entry, allowed: Iterable[str], what: str) -> str:
        """Note an unknown key; the key that was probably meant, or an empty text."""
        names = list(allowed)
        meant = did_you_mean(entry.name, names)
        hint = suggestion(meant) if meant else f"{what} takes: {listing(names)}"
        self.fault(
            "E0201",
            f"{what} has no key `{entry.name}`",
            entry.key.span,
            "unknown key",
            hint,
        )
        return meant or ""

    def twice(self, what: str, span: Span, first: Span | None = None) -> None:
        """Note something that is given again."""
        others = [Label(first, "first here")] if first is not None else []
        self.fault(
            "E0116",
            f"{what} is given twice",
            span,
            "again here",
            "leave one of the two out",
            others=others,
        )


KINDS = {Scalar: "a text", Sequence: "a list", Mapping: "a map"}


def whole(entry: Entry) -> Span:
    """From a key to the end of its value; an empty value may stand before its key ends."""
    end = max(entry.key.span.end, entry.value.span.end)
    return Span(entry.key.span.source, entry.key.span.start, end)


def first_line(span: Span) -> Span:
    """The part of a span on its first line."""
    line = span.text.find("\n")
    return Span(span.source, span.start, span.start + line) if line >= 0 else span
