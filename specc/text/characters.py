"""What a terminal makes of characters: which are shown, and how wide.

Whatever comes from a file is escaped: control characters are shown, not sent, and
blanks of other widths keep the marks under the right characters.
"""

import unicodedata

TAB = 4


def escaped(text: str) -> str:
    r"""A text whose control characters, direction marks and line separators are shown
    as `\u{1b}`.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == " " else f"\\u{{{ord(c):x}}}" for c in text
    )


def width(text: str) -> int:
    """Columns of an escaped text in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(c)
        else 2
        if unicodedata.east_asian_width(c) in "WF"
        else 1
        for c in text
    )


def columns(line: str) -> tuple[str, list[int]]:
    """A source line as it is shown, and the column at which each of its characters
    starts, and its end.
    """
    shown: list[str] = []
    places = [0]
    for character in line:
        text = (
            " " * (TAB - places[-1] % TAB) if character == "\t" else escaped(character)
        )
        shown.append(text)
        places.append(places[-1] + width(text))
    return "".join(shown), places
