"""The DSL lexer: source text fragments with offsets, tokens and comments."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from specc.diagnostics.diagnostic import (
    Diagnostic,
    ErrorCollector,
    Label,
    Source,
    Span,
    raise_error,
)
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.syntax.dsl import dsl_lexer

MAX_SPEC_BYTES = 1 << 20
"""The maximum size of a spec file in bytes, and of the decoded text in characters (E0109)."""

MAX_NESTING = 64
"""The maximum nesting depth of brackets or YAML collections (E0110)."""

MAX_EXPRESSION_DEPTH = 256
"""The maximum nesting depth of operators without brackets, such as `- - - x` (E0110). A
left-associative chain such as `a + b + c` has depth 1, because tree walks iterate over the left
operands (`specc.syntax.ast.flatten_binary_chain`). Tree walks may recurse into all other nodes.
"""

MAX_EXPRESSION_TOKENS = 10_000
"""The maximum number of tokens of one expression (E0111)."""

MAX_INTEGER = 1 << 53
"""The maximum integer in a spec (E0108). Float64 represents all smaller integers exactly."""

MAX_REPORTED_ERRORS = 20
"""The maximum number of errors reported per file."""

MAX_COLLECTED_ERRORS = 40
"""The number of errors after which parsing stops, of which `MAX_REPORTED_ERRORS` are shown."""


@immutable_dataclass
class SourceFragment:
    """A source text fragment to parse. `offsets[n]` is the offset of character `n` in `source`. The
    last entry of `offsets` is the offset of the end of the text.

    If `offsets` is empty, the text is a substring of `source` that begins at `start`. In a YAML
    scalar, `#` does not begin a comment.
    """

    source: Source
    text: str
    start: int = 0
    offsets: tuple[int, ...] | None = None
    is_yaml_scalar: bool = False

    @classmethod
    def from_source(cls, source: Source) -> "SourceFragment":
        """Return the whole text of a source as one fragment."""
        return cls(source, source.text)

    def make_span(self, start: int, end: int) -> Span:
        """Return the source span of the characters `start` to `end` of the fragment."""
        if self.offsets is None:
            return Span(self.source, self.start + start, self.start + end)
        first = self.offsets[start]
        last = self.offsets[end] if end > start else first
        return Span(self.source, first, max(first, last))


class Token(NamedTuple):
    """A token of the terminal `kind`. `start` and `end` are offsets in the fragment."""

    kind: str
    text: str
    start: int
    end: int

    def get_last_character(self) -> "Token":
        """Return a token that spans only the last character. If code is missing after this token,
        the label of the error points to the token's last character.
        """
        return self._replace(start=max(self.start, self.end - 1))


class Comment(NamedTuple):
    """A comment, with the text after `#` and with offsets in the file."""

    start: int
    end: int
    text: str


@dataclass
class LexerResult:
    """The tokens, comments and errors of a fragment. The last token has the kind `$END`."""

    tokens: list[Token] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    errors: list[Diagnostic] = field(default_factory=list)


TOKEN_PATTERN = re.compile(
    r"""(?P<blank>[ \t\r\n\f]+)
      | (?P<comment>\#[^\n]*)
      | (?P<NAME>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<NUMBER>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
      | (?P<STRING>"[^"\\\n]*(?:\\.[^"\\\n]*)*")
      | (?P<sign>\.\.\.|->|\*\*|//|==|!=|<=|>=|[-+*/%&|<>=(){}\[\],.:@?])""",
    re.VERBOSE,
)
WORD_PATTERN = re.compile(r"[A-Za-z0-9_]+(?:\.[0-9][A-Za-z0-9_]*)?")
OPENERS = {"(": ")", "[": "]", "{": "}"}
CLOSERS = frozenset(OPENERS.values())
MAX_NUMBER_LENGTH = 400
"""The maximum number of characters of a number. The longest useful numbers have about 310
characters."""

CHARACTER_HINTS = {
    "'": 'write strings in double quotes: "…"',
    "“": 'write strings in straight double quotes: "…"',
    "”": 'write strings in straight double quotes: "…"',
    ";": "statements need no separator; remove it",
    "!": "negation is `not`; inequality is `!=`",
    "~": "negation is `not`; a missing value is `none`",
    "^": "write a power as `**`",
    "\\": "remove it: lines need no continuation character",
    "−": "write minus as `-`",
    "×": "write a product as `*`",
}
"""The replacements for characters of other languages and word processors."""


def tokenize_fragment(fragment: SourceFragment, keywords: Mapping[str, str]) -> LexerResult:
    """Tokenize a fragment. `keywords` maps keywords and punctuation to their terminals."""
    lexer = Lexer(fragment, keywords)
    offset, size = 0, len(fragment.text)
    while offset < size and len(lexer.result.errors) < MAX_COLLECTED_ERRORS:
        offset = lexer.consume_token(offset)
    lexer.result.tokens.append(Token("$END", "", size, size))
    lexer.check_nesting_depth()
    return lexer.result


class Lexer:
    """A lexer of one fragment, which appends tokens, comments and errors to `result`."""

    def __init__(self, fragment: SourceFragment, keywords: Mapping[str, str]) -> None:
        self.fragment = fragment
        self.keywords = keywords
        self.result = LexerResult()

    def consume_token(self, offset: int) -> int:
        """Consume the token at an offset and return the next offset."""
        match = TOKEN_PATTERN.match(self.fragment.text, offset)
        if match is None:
            return self._report_stray_character(offset)
        text, end = match.group(), match.end()
        match match.lastgroup:
            case "NAME" | "sign":
                self._add_token(self.keywords.get(text, "NAME"), text, offset)
            case "STRING":
                self._add_token("STRING", text, offset)
            case "NUMBER":
                return self._consume_number(text, offset, end)
            case "comment":
                self._consume_comment(text, offset, end)
        # whitespace is not a token
        return end

    def report_error(
        self, code: str, title: str, start: int, end: int, label: str, fix: str
    ) -> None:
        """Report an error in the characters `start` to `end`."""
        primary = Label(self.fragment.make_span(start, end), label)
        self.result.errors.append(Diagnostic(code, title, primary, helps=(fix,)))

    def _add_token(self, kind: str, text: str, start: int) -> None:
        """Append the token with `text`, which starts at offset `start`, to the result."""
        self.result.tokens.append(Token(kind, text, start, start + len(text)))

    def _consume_comment(self, text: str, start: int, end: int) -> None:
        """Append a comment to the result. Report E0106 for a comment inside a YAML scalar."""
        if self.fragment.is_yaml_scalar:
            self.report_error(
                "E0106",
                "comment inside a string",
                start,
                end,
                "this is part of the string",
                "write the comment after the closing quote",
            )
            return
        span = self.fragment.make_span(start, end)
        self.result.comments.append(Comment(span.start, span.end, text[1:].strip()))

    def _consume_number(self, text: str, start: int, end: int) -> int:
        """Consume a number, report an invalid number, and return the next offset."""
        word = WORD_PATTERN.match(self.fragment.text, start)
        assert word is not None
        # in `1_000` and `3d`, the number pattern matches only the text before `_` and `d`
        first_digits = self._find_first_digits(text, start)
        explanation = (
            _explain_invalid_number(word.group())
            if word.end() > end
            else _explain_thousands_separator(first_digits, text)
            or _explain_unsupported_number(text)
        )
        end = max(end, word.end())
        if explanation is not None:
            title, fix = explanation
            number_start = start - len(f"{first_digits},") if first_digits else start
            self.report_error("E0108", title, number_start, end, "here", fix)
            text = "0"  # an invalid number becomes a token, so parsing continues
        self.result.tokens.append(Token("NUMBER", text, start, end))
        return end

    def _find_first_digits(self, text: str, start: int) -> str:
        """Return the digits before the comma (`1` in `1,024`) if `text` contains the digits after
        the comma, otherwise "".
        """
        before = re.search(r"\b([1-9][0-9]{0,2}),\Z", self.fragment.text[max(0, start - 5) : start])
        is_group = len(text) == 3 and text[0] == "0" and text.isdecimal()
        return before[1] if before and is_group else ""

    def _report_stray_character(self, offset: int) -> int:
        """Report E0106 for a character that cannot begin a token. Return the next offset."""
        character = self.fragment.text[offset]
        if character == '"':
            return self._report_unclosed_string(offset)
        title = "a character that is not part of the language"
        self.report_error(
            "E0106", title, offset, offset + 1, "here", _suggest_for_character(character)
        )
        return offset + 1

    def _report_unclosed_string(self, offset: int) -> int:
        """Report E0104 for an unclosed string. Return the offset of the next line."""
        text, fragment = self.fragment.text, self.fragment
        end = text.find("\n", offset)
        end = len(text) if end < 0 else end
        last = fragment.make_span(max(offset, end - 1), end)
        self.result.errors.append(
            Diagnostic(
                "E0104",
                "unterminated string",
                Label(fragment.make_span(offset, offset + 1), "opened here"),
                (Label(last, "the line ends here"),),
                helps=('close it with `"`; write a line break as `\\n`',),
            )
        )
        self.result.tokens.append(Token("STRING", '""', offset, end))
        return end

    def check_nesting_depth(self) -> None:
        """Report E0110 for the first bracket nested more than MAX_NESTING levels deep."""
        depth = 0
        for token in self.result.tokens:
            # the text of a string literal includes its quotes, so it never equals a bracket
            if token.text in OPENERS:
                depth += 1
                if depth > MAX_NESTING:
                    self.report_error(
                        "E0110",
                        f"brackets nested more than {MAX_NESTING} levels deep",
                        token.start,
                        token.end,
                        f"bracket number {depth}",
                        "bind the inner part to a name",
                    )
                    return
            elif token.text in CLOSERS:
                depth = max(0, depth - 1)


def _explain_thousands_separator(first_digits: str, digits: str) -> tuple[str, str] | None:
    """Return the error title and fix for a number such as `1,024`, or None if there is no comma."""
    if not first_digits:
        return None
    title = f"the number `{first_digits},{digits}` has a thousands separator"
    return title, f"write `{first_digits}{digits}`"


def _explain_invalid_number(word: str) -> tuple[str, str]:
    """Return the error title and fix for a malformed number, such as `1_000` or `3d`."""
    digits = word.replace("_", "")
    fix = (
        f"write `{truncate_token_text(digits)}`"  # for a word such as `1_000`
        if digits.isdigit()
        else "a name starts with a letter or `_`"  # for a word such as `3d`
    )
    return f"`{truncate_token_text(word)}` is neither a number nor a name", fix


def _explain_unsupported_number(text: str) -> tuple[str, str] | None:
    """Return the error title and fix if a number has a leading 0 or is out of range, or None."""
    if len(text) > 1 and text[0] == "0" and text[1].isdecimal():
        # a leading 0 is an error, because other languages parse 010 as octal 8
        fix = f"write `{truncate_token_text(text.lstrip('0') or '0')}`"
        return f"the number `{truncate_token_text(text)}` starts with 0", fix
    if len(text) > MAX_NUMBER_LENGTH:
        fix = "numbers are float64, which has 17 significant digits"
        return f"a number of {len(text)} characters", fix
    return _explain_large_number(text)


def _explain_large_number(text: str) -> tuple[str, str] | None:
    """Return the error title and fix if a number is too large, otherwise None."""
    # check the number of digits first, because `int` takes quadratic time
    if text.isdigit() and (len(text) > 16 or int(text) >= MAX_INTEGER):
        title = f"the integer {truncate_token_text(text)} is too large"
        return title, "integers must be less than 2 ** 53"
    if float(text) == float("inf"):
        title = f"the number {truncate_token_text(text)} is too large"
        return title, "numbers are float64, whose maximum is about 1.8e308"
    return None


def _suggest_for_character(character: str) -> str:
    """Return the suggested fix for a character that cannot begin a token."""
    code = ord(character)
    if code < 32 or code == 127:
        return f"this is the control character U+{code:04X}; delete it"
    if character in CHARACTER_HINTS:
        return CHARACTER_HINTS[character]
    if character.isalpha() or code > 127:
        name = unicodedata.name(character, f"U+{code:04X}")
        return f"this is {name}; names consist of the letters a to z, digits and `_`"
    return "not allowed here"


ESCAPE_SEQUENCE = re.compile(r"\\(u\{([0-9a-fA-F]{1,6})\}|.)")
ESCAPED_CHARACTERS = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "r": "\r"}


def unescape_string(token: Token, fragment: SourceFragment, errors: ErrorCollector) -> str:
    """Return the value of a string literal. Report E0118 for an unknown escape sequence."""

    def unescape_character(match: re.Match[str]) -> str:
        letter, digits = match.group(1), match.group(2)
        code = int(digits, 16) if digits is not None else -1
        if 0 <= code < 0xD800 or 0xDFFF < code < 0x110000:  # the code point is not a surrogate
            return chr(code)
        if letter in ESCAPED_CHARACTERS:
            return ESCAPED_CHARACTERS[letter]
        start = token.start + 1 + match.start()  # the offset 1 skips the opening quote
        span = fragment.make_span(start, start + len(match.group()))
        title = f"unknown escape sequence `{match.group()}`"
        help = 'strings support `\\"`, `\\\\`, `\\n`, `\\t`, `\\r` and `\\u{1F4A1}`'
        errors.report_error("E0118", title, span, "here", help)
        return ""

    return ESCAPE_SEQUENCE.sub(unescape_character, token.text[1:-1])


def truncate_token_text(text: str) -> str:
    """Truncate a string to 40 characters."""
    return text if len(text) <= 40 else text[:37] + "…"


CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
"""The characters that specs may not contain. Control characters often indicate a binary file."""


def check_source_characters(source: Source) -> Source:
    """Return `source`. Raise E0109 for a long text, and E0112 for control characters."""
    if len(source.text) > dsl_lexer.MAX_SPEC_BYTES:
        raise_spec_too_long_error(
            f"{len(source.text)} characters", Span(source, 0, 0), "starts here"
        )
    match = CONTROL_CHARACTERS.search(source.text)
    if match:
        code = ord(match.group())
        description = "the control character" if code < 0xD800 else "the character"
        raise_error(
            "E0112",
            f"{description} U+{code:04X} cannot be in a spec",
            Span(source, match.start(), match.end()),
            "here",
            notes=[
                "many of these mean that the file is not text, or is in another encoding than UTF-8"
            ],
            helps=["delete it"],
        )
    return source


def raise_spec_too_long_error(size: str, span: Span, label: str = "") -> NoReturn:
    """Raise E0109 for a spec longer than MAX_SPEC_BYTES."""
    raise_error(
        "E0109",
        f"the spec has {size}, but the maximum is {dsl_lexer.MAX_SPEC_BYTES}",
        span,
        label,
        helps=["repeat layers with `repeat`, and move blocks to separate files with `use`"],
    )
