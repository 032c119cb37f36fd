r"""A YAML scalar → a fragment: where each character of its value stands in the file.

Only so can a fault inside `'it''s'` or `"a\\tb"` be underlined where the user wrote it.
"""

from specc.lang.dsl.fragment import Fragment
from specc.lang.yaml.nodes import Scalar

ESCAPES = {
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "t": "\t",
    "\t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "r": "\r",
    "e": "\x1b",
    " ": " ",
    '"': '"',
    "/": "/",
    "\\": "\\",
    "N": "\x85",
    "_": "\xa0",
    "L": "\u2028",
    "P": "\u2029",
}
HEX = {"x": 2, "u": 4, "U": 8}
"""Escapes that are followed by so many hexadecimal digits."""


def fragment(node: Scalar) -> Fragment:
    """The text of a scalar with the place of each of its characters in the file."""
    source, span = node.span.source, node.span
    raw = span.text
    # most scalars: characters and offsets run side by side
    if not node.style and raw == node.value:
        return Fragment(source, node.value, span.start, scalar=True)
    offsets: list[int] | None = None
    if node.style == "'":
        offsets = single(raw, node.value)
    elif node.style == '"':
        offsets = double(raw, node.value)
    if offsets is None:  # folded over lines: point at all of it
        places = (*[span.start] * len(node.value), span.end)
    else:
        places = tuple(span.start + n for n in offsets)
    return Fragment(source, node.value, places=places, scalar=True)


def single(raw: str, value: str) -> list[int] | None:
    """Offsets in `'it''s'` of the characters of `it's` and of the closing quote."""
    places: list[int] = []
    n = 1
    while n < len(raw) - 1:
        if len(places) >= len(value) or raw[n] != value[len(places)]:
            return None
        places.append(n)
        n += 2 if raw[n] == "'" else 1  # a quote is written twice
    return [*places, n] if len(places) == len(value) else None


def double(raw: str, value: str) -> list[int] | None:
    r"""Offsets in `"a\tb"` of the characters of its value and of the closing quote."""
    places: list[int] = []
    n = 1
    while n < len(raw) - 1:
        start = n
        character = raw[n]
        n += 1
        if character == "\\":
            letter = raw[n]
            n += 1 + HEX.get(letter, 0)
            if letter in HEX:
                character = chr(int(raw[start + 2 : n], 16))
            else:
                # an escaped line break stands for nothing, so nothing is found here
                character = ESCAPES.get(letter, "")
        if len(places) >= len(value) or character != value[len(places)]:
            return None
        places.append(start)
    return [*places, n] if len(places) == len(value) else None
