"""What every part of the YAML reader needs: kinds of nodes, known keys, expressions in scalars.

Faults are collected, so that one run shows all that are independent. After a fault the reader goes on
with a stand-in, which nothing sees: a file with faults gives no tree.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from specc.lang import limits, tree
from specc.lang.lexer import Comment
from specc.lang.parse import capped, parse_fragment
from specc.lang.remarks import Dresser
from specc.lang.yaml_nodes import Entry, Mapping, Node, Scalar, Sequence, empty, fragment
from specc.text.diagnostic import Diagnostic, Failed, Label
from specc.text.source import Source, Span
from specc.text.suggest import did_you_mean, listing

STAND_IN: dict[str, Any] = {
    "type": tree.TypeName("_"),
    "sided_type": tree.TypeName("_"),
    "types": (),
    "dim_name": tree.DimName("_"),
    "targets": (tree.Target("_"),),
    "names": [],
    "expr": tree.Name("_"),
    "source": tree.Text(""),
    "dotted": tree.Name("_"),
}


class Reader:
    """The reading of one YAML file."""

    def __init__(self, source: Source, comments: list[Comment]) -> None:
        self.source = source
        self.comments = comments
        self.dresser = Dresser(source.text, comments)
        self.faults: list[Diagnostic] = []

    def fault(self, code: str, title: str, span: Span, label: str, *helps: str, others: Iterable[Label] = ()) -> None:
        """Note a fault and go on."""
        self.add(Diagnostic(code, title, Label(span, label), tuple(others), helps=helps))

    def add(self, *faults: Diagnostic) -> None:
        """Note faults; past a number of them nobody reads on."""
        self.faults.extend(faults)
        if len(self.faults) >= limits.COLLECTED:
            raise Failed(*capped(self.faults))

    # --- kinds ---------------------------------------------------------------------------

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
        found = "a list" if isinstance(node, Sequence) else "a map" if isinstance(node, Mapping) else "a text"
        self.fault(
            "E0125", f"{what} is {due}, not {found}", first_line(node.span), f"this is {found}", f"write {example}"
        )

    def raw(self, node: Node, what: str) -> str:
        """The text of a scalar as it stands."""
        if isinstance(node, Scalar):
            if empty(node):
                self.fault("E0101", f"nothing is written for {what}", node.span, "expected a text here",
                           "write the text behind the `:`")  # fmt: skip
            return node.value
        self.wrong_kind(node, what, "a text", "it as a text, in quotes if it contains `: ` or brackets")
        return ""

    def known(
        self, entries: list[Entry], names: Iterable[str], what: str, required: Iterable[str], span: Span
    ) -> dict[str, Entry]:
        """The entries by key. Notes E0201 for a key that is not among `names`, E0126 for one that is missing."""
        allowed = tuple(names)
        found = {e.name: e for e in entries}
        missing = [n for n in required if n not in found]
        for entry in entries:
            if entry.name not in allowed:
                meant = self.unknown(entry, allowed, what)
                if meant in missing:
                    missing.remove(meant)
        for name in missing:
            self.fault("E0126", f"{what} has no `{name}`", first_line(span), f"`{name}` is missing here",
                       f"add `{name}: …`")  # fmt: skip
        return found

    def unknown(self, entry: Entry, allowed: Iterable[str], what: str) -> str:
        """Note an unknown key; the key that was probably meant, or an empty text."""
        names = list(allowed)
        meant = did_you_mean(entry.name, names)
        hint = f"did you mean `{meant}`?" if meant else f"{what} takes: {listing(names)}"
        self.fault("E0201", f"{what} has no key `{entry.name}`", entry.key.span, "unknown key", hint)
        return meant or ""

    # --- texts in the language of expressions --------------------------------------------

    def parse(self, node: Node, start: str, what: str) -> Any:
        """What the text of a scalar says; `start` is a start of the grammar."""
        if not isinstance(node, Scalar):
            self.wrong_kind(node, what, "a text", "it as a text; quote what contains brackets")
            return STAND_IN.get(start)
        try:
            return parse_fragment(fragment(node), start)
        except Failed as failed:
            self.add(*failed.diagnostics)
            return STAND_IN.get(start)

    def name(self, node: Node, what: str) -> tree.Name:
        """A name, not a dotted one."""
        found = self.parse(node, "targets", what)
        if len(found) == 1 and found[0].type is None:
            return tree.Name(found[0].name, span=node.span)
        self.fault("E0101", f"{what} is one name", node.span, "expected one name", "write a single name")
        return tree.Name("_", span=node.span)

    def names(self, node: Node, what: str) -> tuple[str, ...]:
        """One name, or a list of names."""
        parts = node.items if isinstance(node, Sequence) else [] if empty(node) else [node]
        found: dict[str, Span] = {}
        for part in parts:
            name = self.name(part, what).path
            if name in found and name != "_":
                self.fault("E0116", f"the name `{name}` is given twice", part.span, "again here",
                           "leave one of the two out", others=[Label(found[name], "first here")])  # fmt: skip
            found[name] = part.span
        return tuple(found)

    def expression(self, node: Node) -> Any:
        """A text, a list, or a call as a map: `{linear: {in: x, out: d, weights: q_proj}}`."""
        if isinstance(node, Sequence):
            return tree.ListOf(tuple(self.expression(n) for n in node.items), span=node.span)
        if isinstance(node, Mapping):
            return self.call(node)
        return self.parse(node, "expr", "a value")

    def expressions(self, node: Node) -> tuple[Any, ...]:
        """A list of values, or one: a text that says a list is that list."""
        if isinstance(node, Sequence):
            return tuple(self.expression(n) for n in node.items)
        one = self.expression(node)
        return one.items if isinstance(one, tree.ListOf) else (one,)

    def call(self, node: Mapping) -> Any:
        """`{linear: {in: x, out: d, weights: q_proj}}`."""
        if len(node.entries) != 1:
            names = ", ".join(f"`{e.name}`" for e in node.entries[:4]) or "none"
            self.fault(
                "E0125",
                "a value as a map has one key, the name of what is called",
                first_line(node.span),
                f"its keys are {names}" if node.entries else "it has no key",
                "write `{linear: {in: x, out: d, weights: q_proj}}`",
            )
            return tree.Name("_", span=node.span)
        entry = node.entries[0]
        function = self.parse(entry.key, "dotted", "the name of what is called")
        args: tuple[Any, ...] = ()
        options: list[tree.Option] = []
        weights = None
        example = f"`{{{entry.name}: {{in: x}}}}`"
        for option in self.mapping(entry.value, f"what `{entry.name}` is given", example):
            if option.name == "in":
                args = self.expressions(option.value)
            elif option.name == "weights":
                weights = self.weights(option.value)
            else:
                self.name(option.key, "an option")
                value = self.expression(option.value)
                span = option.key.span.to(option.value.span)
                options.append(tree.Option(option.name, value, span=span, name_span=option.key.span))
        return tree.Call(function, args, tuple(options), weights, span=node.span)

    def weights(self, node: Node) -> tree.WeightName:
        """The name of weights."""
        return tree.WeightName(self.raw(node, "the name of weights"), span=node.span)

    def static(self, node: Node) -> Any:
        """A config value: a map is a record."""
        if isinstance(node, Mapping):
            fields = []
            for entry in node.entries:
                self.name(entry.key, "a field")
                span = entry.key.span.to(entry.value.span)
                fields.append(tree.Option(entry.name, self.static(entry.value), span=span, name_span=entry.key.span))
            return tree.RecordOf(tuple(fields), span=node.span)
        if isinstance(node, Sequence):
            return tree.ListOf(tuple(self.static(n) for n in node.items), span=node.span)
        return self.parse(node, "expr", "a value")

    # --- comments ------------------------------------------------------------------------

    def reach(self, node: Node) -> int:
        """Where a node ends together with the comments after it that are indented like its entries."""
        if isinstance(node, Scalar) or node.flow:
            return node.span.end
        end = node.span.end
        if isinstance(node, Sequence) and node.items:
            end = max(end, self.reach(node.items[-1]))
        elif isinstance(node, Mapping) and node.entries:
            last = node.entries[-1]
            end = max(end, self.below(last) if empty(last.value) else self.reach(last.value))
        return self.after(end, node.column)

    def below(self, entry: Entry) -> int:
        """The end of the comments that stand in place of a value."""
        return self.after(max(entry.key.span.end, entry.value.span.end), self.column(entry.key.span) + 1)

    def reaching(self, entry: Entry) -> Span:
        """From a key to the end of its value and the comments that belong to it."""
        end = self.below(entry) if empty(entry.value) else self.reach(entry.value)
        return Span(self.source, entry.key.span.start, max(entry.key.span.end, entry.value.span.end, end))

    def after(self, end: int, column: int) -> int:
        """The end of the comments behind `end` on its line, and of those below from `column` on."""
        text = self.source.text
        position = end
        for n in range(bisect_left(self.dresser.starts, end), len(self.comments)):
            comment = self.comments[n]
            gap = text[position : comment.start]
            if gap.strip(" \t\r\n,]}"):
                break
            if "\n" in gap and comment.start - (text.rfind("\n", 0, comment.start) + 1) < column:
                break
            end = position = comment.end
        return end

    def body(self, entry: Entry, children: list[Any]) -> tuple[tuple[Any, ...], tuple[str, ...], str]:
        """The statements below a key with their comments, those at the end, and the one behind the key."""
        end = self.below(entry) if empty(entry.value) else self.reach(entry.value)
        return self.dresser.body(children, entry.key.span.end, max(end, entry.key.span.end))

    def column(self, span: Span) -> int:
        """The column of a span, 0 for the first."""
        return span.start - (self.source.text.rfind("\n", 0, span.start) + 1)


def prefixed(node: Any, texts: tuple[str, ...]) -> Any:
    """A node with more comments above it."""
    return replace(node, remarks=replace(node.remarks, before=(*texts, *node.remarks.before)))


def first_line(span: Span) -> Span:
    """The part of a span on its first line."""
    line = span.text.find("\n")
    return Span(span.source, span.start, span.start + line) if line >= 0 else span
