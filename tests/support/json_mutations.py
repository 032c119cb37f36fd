"""Mutations of JSON documents: one value replaced by another kind, dropped, duplicated, or made
very large.
"""

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

JsonPath: TypeAlias = tuple[str | int, ...]

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**53, 2**63, 2**70, 10**300, -0.0, 0.5, 1e308, float("nan"), float("inf"),
    "", "x", "a\nb", "\x1b[31m", "\ud800", "../x", "/etc/hostname", "a" * 5000, "9" * 5000, "specc-ir 1\n",
    [], [[]], [None], ["x"], [0, 0], {}, {"a": 1}, {"": {}},
)  # fmt: skip
"""Values of every kind, small and large."""


def iterate_paths(data: Any, path: JsonPath = ()) -> Iterator[JsonPath]:
    """Yield the path to every value of a document, including containers."""
    yield path
    if isinstance(data, dict):
        for key, value in data.items():
            yield from iterate_paths(value, (*path, key))
    elif isinstance(data, list):
        for n, value in enumerate(data[:3]):
            yield from iterate_paths(value, (*path, n))


def replace_value(data: Any, path: JsonPath, value: Any) -> Any:
    """Return a document with another value at a path."""
    if not path:
        return value
    head, *rest = path
    if isinstance(data, dict):
        return {**data, head: replace_value(data[head], tuple(rest), value)}
    assert isinstance(head, int)
    return [*data[:head], replace_value(data[head], tuple(rest), value), *data[head + 1 :]]


def drop_value(data: Any, path: JsonPath) -> Any:
    """Return a document without the value at a path."""
    *front, last = path
    held = data
    for step in front:
        held = held[step]
    if isinstance(held, dict):
        return replace_value(data, tuple(front), {k: v for k, v in held.items() if k != last})
    return replace_value(data, tuple(front), [v for n, v in enumerate(held) if n != last])


def iterate_mutations(data: Any) -> Iterator[tuple[str, str]]:
    """Yield a description and the text of each mutation: every value replaced by each odd value,
    and dropped.
    """
    for path in iterate_paths(data):
        where = "/".join(map(str, path))
        for value in ODD_VALUES:
            yield (f"{where} = {str(value)[:30]!r}", json.dumps(replace_value(data, path, value)))
        if path:
            yield f"{where} dropped", json.dumps(drop_value(data, path))
        if path and isinstance(path[-1], str):
            yield f"{where} twice", _twice(data, path)


def _twice(data: Any, path: JsonPath) -> str:
    """Return the text of a document in which one key occurs twice with different values."""
    mark = "\x00mark\x00"
    *front, last = path
    held = data
    for step in front:
        held = held[step]
    marked = json.dumps(replace_value(data, tuple(front), {**held, mark: 0}))
    return marked.replace(json.dumps(mark) + ": 0", json.dumps(last) + ': "again"')


def iterate_oversized(key: str) -> Iterator[tuple[str, bytes]]:
    """Yield texts of a document with `key`, each too large or too deep in another way."""
    head = json.dumps(key).encode()
    yield "brackets", b"[" * 2_000_000
    yield "objects", b'{"a":' * 500_000
    yield "deep value", b"{" + head + b": " + b"[" * 100_000 + b"]" * 100_000 + b"}"
    yield "long number", b"{" + head + b": " + b"9" * 2_000_000 + b"}"
    yield "long fraction", b"{" + head + b": 0." + b"9" * 2_000_000 + b"}"
    yield "large exponent", b"{" + head + b": 1e999999999}"
    yield "small exponent", b"{" + head + b": 1e-999999999}"
    yield "long text", b"{" + head + b': "' + b"a" * 5_000_000 + b'"}'
    yield "many keys", b"{" + b",".join(b'"k%d": 0' % n for n in range(200_000)) + b"}"
    yield ("one key many times", b"{" + b",".join(head + b": 0" for _ in range(200_000)) + b"}")
    yield "many items", b"{" + head + b": [" + b",".join([b"0"] * 1_000_000) + b"]}"
    yield "blanks", b" " * 5_000_000
    yield "no text", b""
    yield "zeros", b"\x00" * 1000
    yield "no UTF-8", b'{"a": "\xff\xfe"}'
    yield "UTF-16", '{"a": 1}'.encode("utf-16")
    yield "marked", b"\xef\xbb\xbf{}"
    yield "escapes", b"{" + head + b': "' + b"\\ud800" * 10_000 + b'"}'
