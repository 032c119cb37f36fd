"""A token that does not fit → a diagnostic in plain words.

The parser knows which terminals would fit. Said to a person that is: a value, a name, the closing
bracket and where it was opened, or the operator that is missing at the end of the line before.
"""

from specc.lang.fragment import Fragment
from specc.lang.lalr import Run
from specc.lang.lexer import OPENERS, Token
from specc.text.diagnostic import Diagnostic, Label
from specc.text.source import Span
from specc.text.suggest import did_you_mean

RESERVED = frozenset({"IN", "IF", "ELSE", "FOR", "NOT", "REPEAT", "SCAN", "WHEN", "RETURN", "REQUIRE"})
ITEMS = frozenset([
    "USE", "CONFIG", "DIMS", "REQUIRE", "BLOCK", "GRAPH", "MASK", "SCORE", "BIAS", "READING", "WEIGHTS",
    "GENERATE",
])  # fmt: skip
OPERATORS = frozenset(
    [
        "PLUS",
        "MINUS",
        "STAR",
        "SLASH",
        "SLASHES",
        "PERCENT",
        "STARS",
        "PIPE",
        "AND",
        "EQ",
        "NE",
        "LE",
        "GE",
        "LT",
        "GT",
        "IN",
        "IF",
        "LSQB",
        "DOT",
        "AT",
        "LPAR",
    ]
)
SIGNS = {
    "RPAR": "`)`",
    "RSQB": "`]`",
    "RBRACE": "`}`",
    "COMMA": "`,`",
    "EQUAL": "`=`",
    "COLON": "`:`",
    "ARROW": "`->`",
    "LBRACE": "`{`",
    "LPAR": "`(`",
    "STRING": "a text in quotes",
    "NUMBER": "a number",
    "QUESTION": "`?`",
}
"""What a person is told of the signs, those first that are most often missing."""


class Explainer:
    """Explains faults of one fragment. `what` says what the text should have been: `an expression`."""

    def __init__(self, fragment: Fragment, what: str) -> None:
        self.fragment = fragment
        self.what = what
        self.pairs: tuple[dict[int, int], set[int]] | None = None

    def span(self, token: Token) -> Span:
        """Where a token stands."""
        return self.fragment.span(token.start, token.end)

    def exceeded(self, code: str, title: str, helps: str, first: Token, last: Token) -> Diagnostic:
        """A limit that the text from `first` to `last` passes."""
        del last
        return Diagnostic(code, title, Label(self.span(first), "starts here"), helps=(helps,))

    def __call__(self, run: Run, at: int) -> Diagnostic:
        """Why token `at` does not fit."""
        token = run.tokens[at]
        expected = run.expected()
        return (
            self.weights_of_no_call(run, at)
            or self.brackets(run, at)
            or self.version(run, at)
            or self.reserved(token, expected)
            or self.doc_behind(run, at, expected)
            or self.name_alone(run, at, expected)
            or self.plain(run, at, expected)
        )

    def weights_of_no_call(self, run: Run, at: int) -> Diagnostic | None:
        """`x @ w`."""
        token = run.tokens[at]
        if token.kind != "AT":
            return None
        before = run.tokens[at - 1] if at else token
        called = before.text == ")"
        helps = ["a product of matrices is `matmul(x, w)`"]
        if called:
            helps = ["put the name right behind the call, inside the parentheses: `(f(x) @ name)`"]
        return Diagnostic(
            "E0107",
            "`@` names the weights of a call; a product is matmul(x, w)",
            Label(self.span(token), "nothing before it is a call"),
            notes=("`linear(x, out=d) @ q_proj` puts the weights of this `linear` under the name `q_proj`",),
            helps=tuple(helps),
        )

    def brackets(self, run: Run, at: int) -> Diagnostic | None:
        """A bracket that is never closed although the faulty token is inside it, or one that closes nothing."""
        tokens = run.tokens
        if self.pairs is None:
            self.pairs = unpaired(tokens, run.restarts)
        lost, stray = self.pairs
        token = tokens[at]
        if at in stray and not open_before(tokens, at):
            return Diagnostic("E0103", f"a `{token.text}` without its opening bracket",
                              Label(self.span(token), "closes nothing"),
                              helps=("delete it, or open the bracket before",))  # fmt: skip
        inside = open_before(tokens, at)
        if at in stray and inside and inside[-1] not in lost:
            return Diagnostic("E0103", f"a `{token.text}` without its opening bracket",
                              Label(self.span(token), "closes nothing"),
                              (Label(self.span(tokens[inside[-1]]), "the last bracket that is open"),),
                              helps=("delete it, or open the bracket before",))  # fmt: skip
        if not inside or inside[-1] not in lost:
            return None
        opener = tokens[inside[-1]]
        return self.unclosed(opener, tokens, min(at, lost[inside[-1]]))

    def unclosed(self, opener: Token, tokens: list[Token], at: int) -> Diagnostic:
        """An opening bracket that is not closed before token `at`."""
        wanted = OPENERS[opener.text]
        token, before = tokens[at], tokens[at - 1]
        if token.kind == "$END":
            primary = Label(self.end_of(tokens), f"the text ends without its `{wanted}`")
        elif self.first_on_line(token, before) and opener.text != "{":
            end = self.fragment.span(max(before.start, before.end - 1), before.end)
            primary = Label(end, f"expected `{wanted}` after this")
        else:
            primary = Label(self.span(token), f"expected `{wanted}` before this")
        return Diagnostic("E0102", f"a `{opener.text}` that is never closed", primary,
                          (Label(self.span(opener), "opened here"),),
                          helps=(f"add the missing `{wanted}`",))  # fmt: skip

    def end_of(self, tokens: list[Token]) -> Span:
        """The last character that is not blank."""
        if len(tokens) < 2:
            return self.span(tokens[-1])
        last = tokens[-2]
        return self.fragment.span(max(last.start, last.end - 1), last.end)

    def version(self, run: Run, at: int) -> Diagnostic | None:
        """A file that does not begin with `specc 1` and `model name`."""
        if run.start != "file" or at > 2 or len(run.states) > 3:
            return None
        token = run.tokens[at]
        title = "a spec begins with `specc 1` and `model` with its name"
        if token.kind == "$END" and at == 0:
            title = "this spec is empty"
        label = "`specc 1` belongs here" if at == 0 else "this does not fit"
        return Diagnostic("E0113", title, Label(self.span(token), label),
                          helps=('begin with\n  specc 1\n  model my_model "what it is"',))  # fmt: skip

    def reserved(self, token: Token, expected: frozenset[str]) -> Diagnostic | None:
        """A reserved word where a name is due."""
        if token.kind not in RESERVED or "NAME" not in expected or "NUMBER" in expected:
            return None
        return Diagnostic("E0115", f"`{token.text}` cannot be used as a name",
                          Label(self.span(token), "this word belongs to the language"),
                          helps=(f"another name, such as `{token.text}_`",))  # fmt: skip

    def doc_behind(self, run: Run, at: int, expected: frozenset[str]) -> Diagnostic | None:
        """A doc string where none is allowed."""
        token = run.tokens[at]
        if token.kind != "STRING" or not (expected >= ITEMS or {"RETURN", "RBRACE"} <= expected):
            return None
        kinds = [v.value.kind for v in run.values if isinstance(v.value, Token)]
        last = next((k for k in reversed(kinds) if k in ("MASK", "SCORE", "BIAS")), "")
        place = "first inside the braces of a block or graph, or behind the default of a config value"
        if last and expected >= ITEMS:
            word = last.lower()
            place = f'before the `=`: `{word} name(…) "what it is" = …`'
        return Diagnostic(
            "E0117",
            "a text that describes nothing",
            Label(self.span(token), "nothing here takes a text"),
            helps=(f"a description stands {place}",),
        )

    def name_alone(self, run: Run, at: int, expected: frozenset[str]) -> Diagnostic | None:
        """A statement without `=`: an operator is missing before it, or its result has no name."""
        token = run.tokens[at]
        if at < 2:
            return None
        name, before = run.tokens[at - 1], run.tokens[at - 2]
        starts = token.kind == "EQUAL" or at - 1 in run.restarts
        if starts and self.first_on_line(name, before) and before.kind in {*OPERATORS, "COMMA", "EQUAL"}:
            return Diagnostic(
                "E0101",
                f"the line before `{name.text} {token.text}` is not finished",
                Label(self.span(before), "a value is missing after this"),
                (Label(self.span(name).to(self.span(token)), "here begins something new"),),
                helps=(f"write the value that belongs behind `{before.text}`, or delete it",),
            )
        if "EQUAL" not in expected or "COLON" not in expected:
            return None
        if not self.first_on_line(name, before):
            helps = ["write an operator between the two, or begin a new statement: `name = …`"]
            if name.text in ("and", "or"):
                helps = [f"`{name.text}` is written `{'&' if name.text == 'and' else '|'}`"]
            if before.kind in ("LBRACE", "RBRACE", "$END") or name.text == "":
                return self.gives_no_name(name, token)
            return Diagnostic("E0101", f"an operator is missing before `{name.text}`",
                              Label(self.span(name), "nothing joins this to what stands before it"),
                              helps=tuple(helps))  # fmt: skip
        if token.text == "(" or before.text in ("{", "}"):
            return self.gives_no_name(name, token)
        end = self.fragment.span(max(before.start, before.end - 1), before.end)
        return Diagnostic(
            "E0101",
            f"`{name.text}` is neither part of the line before nor a statement",
            Label(end, "is an operator missing at the end of this line?"),
            (Label(self.span(name), "read as the name of a new result, and no `=` follows"),),
            helps=(f"join the lines with an operator, or write `{name.text} = …`",),
        )

    def gives_no_name(self, name: Token, token: Token) -> Diagnostic:
        """`f(x)` as a statement."""
        return Diagnostic("E0101", "a statement must give its result a name",
                          Label(self.span(name), "this value has no name"),
                          helps=(f"write `name = {name.text}{'(…)' if token.text == '(' else ' …'}`, "
                                 "or `return …` for a result",))  # fmt: skip

    def first_on_line(self, token: Token, before: Token) -> bool:
        """Whether a line ends between two tokens."""
        return "\n" in self.fragment.text[before.end : token.start]

    def plain(self, run: Run, at: int, expected: frozenset[str]) -> Diagnostic:
        """What was expected and what was found."""
        token = run.tokens[at]
        before = run.tokens[at - 1] if at else None
        wanted = described(expected)
        helps = list(hints(run.tokens, at, expected))
        found = "the text ends" if token.kind == "$END" else f"found `{shown(token)}`"
        title = f"expected {wanted}, but {found}"
        starts = "BLOCK" in expected or "RETURN" in expected
        if token.kind == "$END" and at == 0:
            wanted = self.what
            title = f"nothing is written here; expected {wanted}"
        elif expected - OPERATORS == {"$END"}:
            wanted = "an operator" if "PLUS" in expected else "the end"
            title = f"{self.what} ends before `{shown(token)}`, and nothing joins the two"
        label = Label(self.span(token), f"expected {wanted} here")
        if before is not None and (token.kind == "$END" or (self.first_on_line(token, before) and not starts)):
            end = self.fragment.span(max(before.start, before.end - 1), before.end)
            label = Label(end, f"expected {wanted} after this")
        return Diagnostic("E0101", title, label, helps=tuple(helps))


def shown(token: Token) -> str:
    """A token's text, cut if long."""
    return token.text if len(token.text) <= 30 else token.text[:29] + "…"


def unpaired(tokens: list[Token], restarts: list[int]) -> tuple[dict[int, int], set[int]]:
    """Brackets that are never closed, each with the token that shows it, and those that close nothing.

    A new item at the start of a line shows that whatever was open is missing its end.
    """
    lost: dict[int, int] = {}
    stray: set[int] = set()
    stack: list[int] = []
    new_items = set(restarts)
    for n, token in enumerate(tokens):
        if n in new_items or token.kind == "$END":
            lost.update((opener, n) for opener in stack)
            stack.clear()
        if token.kind == "STRING":
            continue
        if token.text in OPENERS:
            stack.append(n)
        elif token.text in (")", "]", "}"):
            fits = [i for i, opener in enumerate(stack) if OPENERS[tokens[opener].text] == token.text]
            if not fits:
                stray.add(n)
                continue
            lost.update((opener, n) for opener in stack[fits[-1] + 1 :])
            del stack[fits[-1] :]
    return lost, stray


def open_before(tokens: list[Token], at: int) -> list[int]:
    """The brackets that are open at a token, outermost first."""
    stack: list[int] = []
    for n, token in enumerate(tokens[:at]):
        if token.kind == "STRING":
            continue
        if token.text in OPENERS:
            stack.append(n)
        elif token.text in (")", "]", "}") and stack and OPENERS[tokens[stack[-1]].text] == token.text:
            stack.pop()
    return stack


def described(expected: frozenset[str]) -> str:
    """A set of terminals in words: brackets and signs first, then kinds of things."""
    left = set(expected)
    words: list[str] = []
    if {"NUMBER", "NAME", "LPAR"} <= left:
        left -= {"STRING", "NUMBER", "LPAR", "LSQB", "LBRACE", "MINUS", "NOT", "NAME"}
        words.append("a value")
    elif OPERATORS & left and len(left - OPERATORS) > 0:
        left -= OPERATORS
    if "RETURN" in left:
        words.append("a statement")
    elif "NAME" in left:
        words.append("a name")
    elif {"BLOCK", "CONFIG"} <= left and not words:
        words.append("an item such as `block`, `graph` or `config`")
        left.discard("STRING")
    elif not words:
        words += [f"`{kind.lower()}`" for kind in sorted(left & KEYWORDS)]
    signs = [SIGNS[kind] for kind in SIGNS if kind in left]
    listed = [*signs, *words] or (["an operator"] if "PLUS" in left else ["the end of the text"])
    if len(listed) == 1:
        return listed[0]
    return f"{', '.join(listed[:4][:-1])} or {listed[:4][-1]}"


KEYWORDS = ITEMS | RESERVED | frozenset([
    "SPECC", "MODEL", "EXTENDS", "AS", "OF", "FROM", "UNDER", "COLLECT", "ALONG", "CARRY", "TIE", "LOAD",
])  # fmt: skip


def hints(tokens: list[Token], at: int, expected: frozenset[str]) -> list[str]:
    """Help for slips that people bring from other languages."""
    token = tokens[at]
    before = tokens[at - 1] if at else None
    near = {t.text for t in tokens[max(0, at - 1) : at + 1]}
    found: list[str] = []
    words = [kind.lower() for kind in expected if kind in KEYWORDS] if "NAME" not in expected else []
    if token.kind == "NAME" and (meant := did_you_mean(token.text, words)):
        found.append(f"did you mean `{meant}`?")
    if token.kind == "EQUAL" and "EQ" in expected:
        found.append("“is equal to” is written `==`")
    if token.text in ("&", "|") and before is not None and before.text == token.text:
        found.append(f"one `{token.text}` is enough")
    if token.text == "*" and before is not None and before.text == "**":
        found.append("a power is written `**`")
    if "and" in near or "or" in near:
        found.append("`and` is written `&`, and `or` is written `|`")
    if token.kind == "NOT" and "IN" in expected:
        found.append("`x not in y` is written `not x in y`")
    if token.kind == "DOT":
        found.append("a number starts with a digit: `0.5`")
    if token.kind == "NUMBER" and before is not None and before.kind == "DOT":
        found.append("the parts of a name start with a letter; take an element with `[0]`")
    if expected == {"ARROW"}:
        found.append("say what it gives: `-> float[batch, n, d]`, or `-> (name: type, …)`")
    if token.kind == "COLON" and "EQUAL" in expected:
        found.append("a value is given with `=`")
    return found
