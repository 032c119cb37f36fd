"""Parse a symbolic length from text: the inverse of `str(dim)`.

The text may come from an untrusted file, so its size, depth and powers are bounded. Every error is
a DimError.
"""

import re
from collections.abc import Callable

from specc.ir.dim import DIM_FUNCTIONS, MAX_DIM_INTEGER, Dim, DimError

MAX_DIM_TEXT_LENGTH = 20_000
MAX_DIM_NESTING = 64
MAX_EXPONENT = 64

TOKEN_PATTERN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][\w.]*)|(//|[-+*^/%(),]))")


def parse_dim(text: str) -> Dim:
    """Parse a length: `parse_dim("2*seq + 1")`. DimError if it is invalid."""
    if len(text) > MAX_DIM_TEXT_LENGTH:
        raise DimError(f"a length of more than {MAX_DIM_TEXT_LENGTH} characters")
    reader = _DimParser(_split_tokens(text))
    dim = reader.sum(0)
    if reader.at != len(reader.tokens):
        raise DimError(f"`{reader.tokens[reader.at]}` is not expected in the length `{text}`")
    return dim


def _split_tokens(text: str) -> list[str]:
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        found = TOKEN_PATTERN.match(text, at)
        if not found:
            raise DimError(f"`{text[at:].strip()[:20]}` is no part of a length")
        tokens.append(found.group().strip())
        at = found.end()
    return tokens


class _DimParser:
    """Recursive descent over tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0

    def next(self) -> str:
        """Return the current token, or "" at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        """Consume and return one of `wanted`; "" if the current token is none."""
        token = self.next()
        if token not in wanted or not token:
            return ""
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        """Consume `token`. DimError if it is missing."""
        if not self.take(token):
            raise DimError(f"`{token}` is expected in a length, `{self.next()}` is found")

    def sum(self, depth: int) -> Dim:
        """Parse `[-] term { (+ | -) term }`."""
        total = -self.product(depth) if self.take("-") else self.product(depth)
        while sign := self.take("+", "-"):
            term = self.product(depth)
            total = total + term if sign == "+" else total - term
        return total

    def product(self, depth: int) -> Dim:
        """Parse `power { * power }`."""
        result = self.power(depth)
        while self.take("*"):
            result = result * self.power(depth)
        return result

    def power(self, depth: int) -> Dim:
        """Parse `atom [^ number]`."""
        base = self.atom(depth)
        if not self.take("^"):
            return base
        power = self.number()
        if power > MAX_EXPONENT:
            raise DimError(f"a length to the power {power}")
        return base**power

    def number(self) -> int:
        """Parse an integer."""
        token = self.next()
        if not token.isdecimal() or len(token) > 16 or int(token) >= MAX_DIM_INTEGER:
            raise DimError(f"`{token[:20]}` is no number below 2^53")
        self.at += 1
        return int(token)

    def atom(self, depth: int) -> Dim:
        """Parse a number, a name, `min(a, b)`, `max(a, b)`, `(a)`, `(a / b)`, `(a // b)` or
        `(a % b)`.
        """
        if depth > MAX_DIM_NESTING:
            raise DimError(f"a length nested more than {MAX_DIM_NESTING} deep")
        if self.take("("):
            inside = self.sum(depth + 1)
            if fn := self.take("/", "//", "%"):
                inside = DIM_FUNCTIONS[fn](inside, self.sum(depth + 1))
            self.expect(")")
            return inside
        token = self.next()
        if token.isdecimal():
            return Dim.of(self.number())
        if not re.match(r"[A-Za-z_]", token):
            raise DimError(f"a number or a name is expected in a length, `{token}` is found")
        self.at += 1
        if token in ("min", "max") and self.take("("):
            return self.pair(DIM_FUNCTIONS[token], depth)
        return Dim.symbol(token)

    def pair(self, fn: Callable[[Dim, Dim], Dim], depth: int) -> Dim:
        """Parse the two arguments of `fn` and the closing bracket."""
        left = self.sum(depth + 1)
        self.expect(",")
        right = self.sum(depth + 1)
        self.expect(")")
        return fn(left, right)
