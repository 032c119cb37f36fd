"""Trees as JSON, so that the standard library need not be parsed at every start.

`load(dump(file), source)` equals `file`. Nodes are listed children first and refer to
each other by number, so depth costs no stack; spans are offsets in the source, which is
stored apart.

What is loaded is checked for its form: a damaged table is an assertion, never a
half-made tree.
"""

from dataclasses import fields
from typing import Any

from specc.lang import tree
from specc.lang.walk import NODES
from specc.text.source import Source, Span

VERSION = 1
CLASSES = {c.__name__: c for c in NODES}


NAMES = {c: tuple(f.name for f in fields(c)) for c in NODES}
"""All fields of each tree class, in order."""


def dump(file: tree.File) -> dict[str, Any]:
    """A tree as JSON can hold it.

    `nodes[n]` is `[class, value, …]`; a value is a text, number, bool, None,
    `{"n": node}`, `{"s": [start, end]}` or `{"t": [value, …]}`.
    """
    out: list[list[Any]] = []
    number: dict[int, int] = {}
    stack: list[tuple[Any, bool]] = [(file, False)]
    # Depth is what the text decides, so nodes wait in a list.
    while stack:
        node, ready = stack.pop()
        # one node may be the child of several, such as the shared empty `Remarks`
        if id(node) in number:
            continue
        # Fields in the order of the class, which stands in the table too: a table of
        # other classes is not read.
        values = [getattr(node, name) for name in NAMES[type(node)]]
        if ready:
            number[id(node)] = len(out)
            out.append([type(node).__name__, *(packed(v, number) for v in values)])
            continue
        # its children are written first, then it comes again
        stack.append((node, True))
        for value in values:
            parts = value if isinstance(value, tuple) else (value,)
            stack.extend((p, False) for p in parts if isinstance(p, NODES))
    return {
        "version": VERSION,
        "fields": {c: list(NAMES[CLASSES[c]]) for c in sorted({row[0] for row in out})},
        "nodes": out,
    }


def packed(value: Any, number: dict[int, int]) -> Any:
    """A field's value as JSON."""
    if isinstance(value, NODES):
        return {"n": number[id(value)]}
    if isinstance(value, Span):
        return {"s": [value.start, value.end]}
    if isinstance(value, tuple):
        return {"t": [packed(v, number) for v in value]}
    assert value is None or isinstance(value, str | int | bool)
    return value


def load(data: dict[str, Any], source: Source) -> tree.File:
    """The tree that `dump` wrote; `source` is the text it was read from."""
    assert data["version"] == VERSION, "a table of another version"
    for name, known in data["fields"].items():
        assert tuple(known) == NAMES[CLASSES[name]], f"{name} has other fields now"
    made: list[Any] = []
    for name, *values in data["nodes"]:
        kind = CLASSES[name]
        made.append(
            kind(
                **dict(
                    zip(
                        NAMES[kind],
                        (unpacked(v, made, source) for v in values),
                        strict=True,
                    )
                )
            )
        )
    file = made[-1]
    assert isinstance(file, tree.File)
    return file


def unpacked(value: Any, made: list[Any], source: Source) -> Any:
    """A field's value from JSON."""
    if not isinstance(value, dict):
        return value
    if "n" in value:
        return made[value["n"]]
    if "s" in value:
        start, end = value["s"]
        assert 0 <= start <= end <= len(source.text)
        return Span(source, start, end)
    return tuple(unpacked(v, made, source) for v in value["t"])
