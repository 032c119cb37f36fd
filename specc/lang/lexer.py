"""Characters → tokens and comments.

The grammar needs no help from the lexer: a word is a keyword terminal whenever it is spelled like one,
and the grammar says where keywords are names too. Faults are collected, so that one run shows them all.
"""

import re
import unicodedata
from dataclasses import dataclass, field
from typing import NamedTuple

from specc.lang import limits
from specc.lang.fragment import Fragment
from specc.text.diagnostic import Diagnostic, Label


class Token(NamedTuple):
    """A terminal of the grammar. `start` and `end` are offsets in the fragment."""

    kind: str
    text: str
    start: int
    end: int


class Comment(NamedTuple):
    """A comment with its text behind `#`; offsets in the file."""

    start: int
    end: int
    text: str


@dataclass
class Tokens:
    """What the lexer found; `tokens` ends with one of kind `$END`."""

    tokens: list[Token] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    faults: list[Diagnostic] = field(default_factory=list)


TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\n\f]+)
      | (?P<comment>\#[^\n]*)
      | (?P<NAME>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<NUMBER>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
      | (?P<STRING>"[^"\\\n]*(?:\\.[^"\\\n]*)*")
      | (?P<sign>\.\.\.|->|\*\*|//|==|!=|<=|>=|[-+*/%&|<>=(){}\[\],.:@?])""",
    re.VERBOSE,
)
WORD = re.compile(r"[A-Za-z0-9_]+(?:\.[0-9][A-Za-z0-9_]*)?")
OPENERS = {"(": ")", "[": "]", "{": "}"}


def lex(fragment: Fragment, words: dict[str, str]) -> Tokens:
    """The tokens of a fragment. `words` maps the text of each fixed terminal to its name."""
    found = Tokens()
    text = fragment.text
    at = 0
    while at < len(text) and len(found.faults) < limits.COLLECTED:
        match = TOKEN.match(text, at)
        if match is None:
            at = stray(fragment, at, found)
            continue
        kind, end = match.lastgroup, match.end()
        if kind == "NAME":
            word = match.group()
            found.tokens.append(Token(words.get(word, "NAME"), word, at, end))
        elif kind == "sign":
            sign = match.group()
            found.tokens.append(Token(words[sign], sign, at, end))
        elif kind == "comment":
            comment(fragment, match.group(), at, end, found)
        elif kind == "NUMBER":
            end = number(fragment, match.group(), at, end, found)
        elif kind == "STRING":
            found.tokens.append(Token("STRING", match.group(), at, end))
        at = end
    found.tokens.append(Token("$END", "", len(text), len(text)))
    too_deep(fragment, found)
    return found


def fault(
    fragment: Fragment, found: Tokens, code: str, title: str, start: int, end: int, label: str, *helps: str
) -> None:
    """Note a fault of characters `start` to `end`."""
    primary = Label(fragment.span(start, end), label)
    found.faults.append(Diagnostic(code, title, primary, helps=helps))


def comment(fragment: Fragment, text: str, start: int, end: int, found: Tokens) -> None:
    """Keep a comment. Inside a quoted YAML scalar it would be lost on the way, so it is refused."""
    if fragment.scalar:
        fault(fragment, found, "E0106", "a comment inside a quoted text", start, end, "this belongs to the text",
              "write the comment behind the closing quote")  # fmt: skip
        return
    span = fragment.span(start, end)
    found.comments.append(Comment(span.start, span.end, text[1:].strip()))


def number(fragment: Fragment, text: str, start: int, end: int, found: Tokens) -> int:
    """Keep a number that is written as the language writes numbers; the end of what was read."""
    word = WORD.match(fragment.text, start)
    assert word is not None
    title, helps = "", ""
    if word.end() > end:
        end = word.end()
        title = f"`{shortened(word.group())}` is neither a number nor a name"
        plain = word.group().replace("_", "")
        helps = f"write `{shortened(plain)}`" if plain.isdigit() else "a name starts with a letter or `_`"
    elif len(text) > 1 and text[0] == "0" and text[1] in "0123456789":
        title, helps = f"the number `{shortened(text)}` starts with 0", f"write `{shortened(text.lstrip('0') or '0')}`"
    elif len(text) > 400:
        title, helps = f"a number of {len(text)} characters", "numbers are doubles: 17 digits say all there is"
    elif text.isdigit() and (len(text) > 16 or int(text) >= limits.INTEGER):
        title, helps = f"the whole number {shortened(text)} is too large", "whole numbers stay below 2 ** 53"
    elif float(text) == float("inf"):
        title, helps = f"the number {shortened(text)} is too large", "numbers are doubles, which end near 1.8e308"
    if title:
        fault(fragment, found, "E0108", title, start, end, "here", helps)
        text = "0"
    found.tokens.append(Token("NUMBER", text, start, end))
    return end


def shortened(text: str) -> str:
    """At most 40 characters of a text."""
    return text if len(text) <= 40 else text[:37] + "…"


def stray(fragment: Fragment, at: int, found: Tokens) -> int:
    """Note a character that starts no token; where to read on."""
    text = fragment.text
    character = text[at]
    if character == '"':
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        primary = Label(fragment.span(at, at + 1), "opened here")
        others = (Label(fragment.span(max(at, end - 1), end), "the line ends before it is closed"),)
        helps = ('close it with `"`; a line break inside a text is written `\\n`',)
        found.faults.append(Diagnostic("E0104", "a text that is never closed", primary, others, helps=helps))
        found.tokens.append(Token("STRING", '""', at, end))
        return end
    known = {
        "'": 'texts stand in double quotes: "…"',
        "“": 'texts stand in straight double quotes: "…"',
        "”": 'texts stand in straight double quotes: "…"',
        ";": "nothing separates statements; leave it out",
        "!": "negation is the word `not`; “differs from” is `!=`",
        "~": "negation is the word `not`; a missing value is `none`",
        "^": "a power is written `**`",
        "\\": "lines need no mark to go on: newlines mean nothing",
        "−": "minus is the hyphen on the keyboard, `-`",
        "×": "a product is written `*`",
    }
    end = at + 1
    if character.isalpha() or ord(character) > 127:
        name = unicodedata.name(character, f"U+{ord(character):04X}")
        mend = known.get(character, f"this is {name}; names are made of the letters a to z, digits and `_`")
    elif ord(character) < 32 or ord(character) == 127:
        mend = f"this is the control character U+{ord(character):04X}; delete it"
    else:
        mend = known.get(character, "it has no meaning here")
    fault(fragment, found, "E0106", "a character that is not part of the language", at, end, "here", mend)
    return end


def too_deep(fragment: Fragment, found: Tokens) -> None:
    """Note brackets inside each other past the limit, once."""
    depth = 0
    for token in found.tokens:
        if token.text in OPENERS and token.kind != "STRING":
            depth += 1
            if depth > limits.NESTING:
                fault(fragment, found, "E0110", f"brackets inside each other more than {limits.NESTING} deep",
                      token.start, token.end, f"bracket number {depth}",
                      "give the inner part a name of its own")  # fmt: skip
                return
        elif token.text in (")", "]", "}") and token.kind != "STRING":
            depth = max(0, depth - 1)
