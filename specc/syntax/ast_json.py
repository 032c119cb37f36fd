"""Serialize syntax trees as JSON, so that the standard library need not be parsed at startup."""

from typing import Any

from specc.diagnostics.source import Source, Span
from specc.syntax import ast
from specc.syntax.ast_walk import FIELD_NAMES, NODE_CLASSES

TREE_FORMAT_VERSION = 1
CLASSES_BY_NAME = {c.__name__: c for c in NODE_CLASSES}


def tree_to_json(file: ast.File) -> dict[str, Any]:
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
        values = [getattr(node, name) for name in FIELD_NAMES[type(node)]]
        if ready:
            number[id(node)] = len(out)
            out.append([type(node).__name__, *(encode_field(v, number) for v in values)])
            continue
        # its children are written first, then it comes again
        stack.append((node, True))
        for value in values:
            parts = value if isinstance(value, tuple) else (value,)
            stack.extend((p, False) for p in parts if isinstance(p, NODE_CLASSES))
    return {
        "version": TREE_FORMAT_VERSION,
        "fields": {
            c: list(FIELD_NAMES[CLASSES_BY_NAME[c]]) for c in sorted({row[0] for row in out})
        },
        "nodes": out,
    }


def encode_field(value: Any, number: dict[int, int]) -> Any:
    """A field's value as JSON."""
    if isinstance(value, NODE_CLASSES):
        return {"n": number[id(value)]}
    if isinstance(value, Span):
        return {"s": [value.start, value.end]}
    if isinstance(value, tuple):
        return {"t": [encode_field(v, number) for v in value]}
    assert value is None or isinstance(value, str | int | bool)
    return value


def tree_from_json(data: dict[str, Any], source: Source) -> ast.File:
    """The tree that `tree_to_json` wrote; `source` is the text it was read from."""
    assert data["version"] == TREE_FORMAT_VERSION, "a table of another version"
    for name, known in data["fields"].items():
        assert tuple(known) == FIELD_NAMES[CLASSES_BY_NAME[name]], f"{name} has other fields now"
    made: list[Any] = []
    for name, *values in data["nodes"]:
        kind = CLASSES_BY_NAME[name]
        made.append(
            kind(
                **dict(
                    zip(
                        FIELD_NAMES[kind],
                        (decode_field(v, made, source) for v in values),
                        strict=True,
                    )
                )
            )
        )
    file = made[-1]
    assert isinstance(file, ast.File)
    return file


def decode_field(value: Any, made: list[Any], source: Source) -> Any:
    """A field's value from JSON."""
    if not isinstance(value, dict):
        return value
    if "n" in value:
        return made[value["n"]]
    if "s" in value:
        start, end = value["s"]
        assert 0 <= start <= end <= len(source.text)
        return Span(source, start, end)
    return tuple(decode_field(v, made, source) for v in value["t"])
