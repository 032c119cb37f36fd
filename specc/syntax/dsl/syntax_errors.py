"""Explain DSL syntax errors: unbalanced brackets (E0102, E0103), missing operators, reserved
words, misplaced docs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.diagnostics.suggest import did_you_mean, format_suggestion
from specc.syntax.dsl.lalr import ParseRun
from specc.syntax.dsl.lexer import CLOSERS, OPENERS, Fragment, Token
from specc.syntax.dsl.unexpected_token import (
    DEFINITION_TERMINALS,
    HYPHENATED_NAMES,
    ITEM_TERMINALS,
    KEYWORD_TERMINALS,
    OPERATOR_TERMINALS,
    RESERVED_TERMINALS,
    UnexpectedToken,
    describe_terminals,
    explain_foreign_syntax,
    format_token,
)


@dataclass(frozen=True)
class UnbalancedBrackets:
    """Places of brackets that have no partner: openers, each with the token that shows
    it, and closers.
    """

    lost: dict[int, int] = field(default_factory=dict)
    stray: set[int] = field(default_factory=set)


def find_unbalanced_brackets(
    tokens: Sequence[Token], restarts: Sequence[int]
) -> UnbalancedBrackets:
    """Find brackets without a partner. A new item at the start of a line shows that open brackets
    lack their end.
    """
    found = UnbalancedBrackets()
    stack: list[int] = []
    new_items = set(restarts)
    for n, token in enumerate(tokens):
        if n in new_items or token.kind == "$END":
            found.lost.update((opener, n) for opener in stack)
            stack.clear()
        if token.text in OPENERS:
            stack.append(n)
        elif token.text in CLOSERS:
            fits = [i for i, opener in enumerate(stack) if _is_bracket_pair(tokens[opener], token)]
            if not fits:
                found.stray.add(n)
                continue
            # `f(a[0)`: the `)` shows that the `[` is never closed
            found.lost.update((opener, n) for opener in stack[fits[-1] + 1 :])
            del stack[fits[-1] :]
    return found


def find_open_brackets(tokens: Sequence[Token], at: int) -> list[int]:
    """Return the brackets that are open at a token, outermost first."""
    stack: list[int] = []
    for n, token in enumerate(tokens[:at]):
        if token.text in OPENERS:
            stack.append(n)
        elif token.text in CLOSERS and stack and _is_bracket_pair(tokens[stack[-1]], token):
            stack.pop()
    return stack


def _is_bracket_pair(opener: Token, closer: Token) -> bool:
    return OPENERS[opener.text] == closer.text


def explain_unbalanced_bracket(
    here: UnexpectedToken, loose: UnbalancedBrackets
) -> Diagnostic | None:
    """Explain an unclosed bracket around the token, or a closing one without an opening."""
    inside = find_open_brackets(here.tokens, here.at)
    if here.at in loose.stray:
        if not inside:
            return _explain_stray_closer(here, None)
        if inside[-1] not in loose.lost:
            return _explain_stray_closer(here, here.tokens[inside[-1]])
    if not inside or inside[-1] not in loose.lost:
        return None
    opener = inside[-1]
    return _explain_unclosed_bracket(here, here.tokens[opener], min(here.at, loose.lost[opener]))


def _explain_stray_closer(here: UnexpectedToken, last_open: Token | None) -> Diagnostic:
    others: list[Label] = []
    if last_open is not None:
        others.append(Label(here.span(last_open), "the last bracket that is open"))
    return Diagnostic(
        "E0103",
        f"a `{here.token.text}` without its opening bracket",
        Label(here.span(here.token), "no bracket to close"),
        tuple(others),
        helps=("delete it, or open the bracket before",),
    )


def _explain_unclosed_bracket(here: UnexpectedToken, opener: Token, at: int) -> Diagnostic:
    """Explain an opening bracket that is not closed before token `at`."""
    wanted = OPENERS[opener.text]
    token, before = here.tokens[at], here.tokens[at - 1]
    if token.kind == "$END":
        last = here.get_end_span(before) if len(here.tokens) > 1 else here.span(token)
        primary = Label(last, f"the file ends without `{wanted}`")
    elif here.is_on_new_line(token, before) and opener.text != "{":
        # a `)` belongs to the line where it is missing, a `}` to a line of its own
        primary = Label(here.get_end_span(before), f"expected `{wanted}` after this")
    else:
        primary = Label(here.span(token), f"expected `{wanted}` before this")
    return Diagnostic(
        "E0102",
        f"a `{opener.text}` that is never closed",
        primary,
        (Label(here.span(opener), "opened here"),),
        helps=(f"add the missing `{wanted}`",),
    )


class SyntaxErrorExplainer:
    """Explains syntax errors of one fragment. `what` names the expected text: `an expression`."""

    def __init__(self, fragment: Fragment, what: str) -> None:
        self.fragment = fragment
        self.what = what
        self.loose: UnbalancedBrackets | None = None

    def __call__(self, run: ParseRun, at: int) -> Diagnostic:
        """Explain why token `at` does not fit, by the most specific explanation."""
        if self.loose is None:
            self.loose = find_unbalanced_brackets(run.tokens, run.restarts)
        here = UnexpectedToken(self.fragment, run, at)
        return (
            explain_weights_without_call(here)
            or explain_unbalanced_bracket(here, self.loose)
            or explain_missing_header(here)
            or explain_foreign_syntax(here)
            or explain_reserved_word(here)
            or explain_misplaced_doc(here)
            or explain_unfinished_line(here)
            or explain_bare_name(here)
            or explain_expected_tokens(here, self.what)
        )


def explain_weights_without_call(here: UnexpectedToken) -> Diagnostic | None:
    """Explain `x @ w`."""
    if here.token.kind != "AT":
        return None
    fix = "a product of matrices is `matmul(x, w)`"
    if here.before is not None and here.before.text == ")":
        # `(f(x)) @ name`: a call in parentheses is a value like any other
        fix = "put the name directly after the call, inside the parentheses: `(f(x) @ name)`"
    return Diagnostic(
        "E0107",
        "`@` names the weights of a call; a product is matmul(x, w)",
        Label(here.span(here.token), "not preceded by a call"),
        notes=(
            "`linear(x, out=d) @ q_proj` puts the weights of this `linear` under the name `q_proj`",
        ),
        helps=(fix,),
    )


def explain_missing_header(here: UnexpectedToken) -> Diagnostic | None:
    """Explain a file that does not begin with `specc 1` and `model name`."""
    # at most `specc` and the version are on the stack, above the start state
    if here.run.start != "file" or here.at > 2 or len(here.run.states) > 3:
        return None
    title = "a spec starts with `specc 1` and `model NAME`"
    if here.token.kind == "$END" and here.at == 0:
        title = "this spec is empty"
    label = "`specc 1` belongs here" if here.at == 0 else "unexpected"
    return Diagnostic(
        "E0113",
        title,
        Label(here.span(here.token), label),
        helps=('start with\n  specc 1\n  model my_model "what it is"',),
    )


def explain_reserved_word(here: UnexpectedToken) -> Diagnostic | None:
    """Explain a reserved word in place of a name."""
    token, expected = here.token, here.expected_terminals
    # where a number fits too, any value does, and the word was hardly meant as a name
    if token.kind not in RESERVED_TERMINALS or "NAME" not in expected or "NUMBER" in expected:
        return None
    return Diagnostic(
        "E0115",
        f"`{token.text}` cannot be used as a name",
        Label(here.span(token), "reserved word"),
        helps=(f"another name, such as `{token.text}_`",),
    )


def explain_misplaced_doc(here: UnexpectedToken) -> Diagnostic | None:
    """Explain a misplaced docstring."""
    between_items = here.expected_terminals >= ITEM_TERMINALS
    in_body = {"RETURN", "RBRACE"} <= here.expected_terminals
    if here.token.kind != "STRING" or not (between_items or in_body):
        return None
    place = "first inside the braces of a block or graph, or after the default of a config value"
    # tokens that are not yet part of a rule: after a definition its first word is
    kinds = [p.value.kind for p in here.run.parts if isinstance(p.value, Token)]
    last = next((k for k in reversed(kinds) if k in DEFINITION_TERMINALS), "")
    if last and between_items:
        word = last.lower()
        place = f'before the `=`: `{word} name(…) "what it is" = …`'
    return Diagnostic(
        "E0117",
        "misplaced description",
        Label(here.span(here.token), "no description is allowed here"),
        helps=(f"write a description {place}",),
    )


def explain_unfinished_line(here: UnexpectedToken) -> Diagnostic | None:
    """Explain a line that ends with an operator before a new statement:

    x = a +
    y = b
      ^ the `=` does not fit, but the error is the `+`
    """
    if here.at < 2:
        return None
    token, name, before = here.token, here.tokens[here.at - 1], here.tokens[here.at - 2]
    starts = token.kind == "EQUAL" or here.at - 1 in here.run.restarts
    unfinished = before.kind in {*OPERATOR_TERMINALS, "COMMA", "EQUAL"}
    if not (starts and unfinished and here.is_on_new_line(name, before)):
        return None
    something_new = here.span(name).to(here.span(token))
    return Diagnostic(
        "E0101",
        f"the line before `{name.text} {token.text}` is not finished",
        Label(here.span(before), "a value is missing after this"),
        (Label(something_new, "a new statement starts here"),),
        helps=(f"write the value after `{before.text}`, or delete it",),
    )


def explain_bare_name(here: UnexpectedToken) -> Diagnostic | None:
    """Explain a name parsed as a result without `=`: an operator is missing before it, or its
    result has no name.
    """
    if here.at < 2 or not {"EQUAL", "COLON"} <= here.expected_terminals:
        return None
    name, before = here.tokens[here.at - 1], here.tokens[here.at - 2]
    if not here.is_on_new_line(name, before):
        if before.kind in ("LBRACE", "RBRACE", "$END") or name.text == "":
            return explain_unnamed_result(here, name)
        return explain_missing_operator(here, name)
    if here.token.text == "(" or before.text in ("{", "}"):
        return explain_unnamed_result(here, name)
    return Diagnostic(
        "E0101",
        f"`{name.text}` is neither part of the line before nor a statement",
        Label(here.get_end_span(before), "is an operator missing at the end of this line?"),
        (Label(here.span(name), "read as the name of a new result, and no `=` follows"),),
        helps=(f"join the lines with an operator, or write `{name.text} = …`",),
    )


def explain_missing_operator(here: UnexpectedToken, name: Token) -> Diagnostic:
    """Explain `y = a b`."""
    fix = "write an operator between the two, or start a new statement: `name = …`"
    return Diagnostic(
        "E0101",
        f"an operator is missing before `{name.text}`",
        Label(here.span(name), "expected an operator before this"),
        helps=(fix,),
    )


def explain_unnamed_result(here: UnexpectedToken, name: Token) -> Diagnostic:
    """Explain `f(x)` as a statement."""
    value = f"{name.text}(…)" if here.token.text == "(" else f"{name.text} …"
    return Diagnostic(
        "E0101",
        "the result of a statement needs a name",
        Label(here.span(name), "this value has no name"),
        helps=(f"write `name = {value}`, or `return …` for a result",),
    )


def explain_expected_tokens(here: UnexpectedToken, what: str) -> Diagnostic:
    """Report the expected and the found token."""
    token, before, expected = here.token, here.before, here.expected_terminals
    ends = token.kind == "$END"
    wanted = describe_terminals(expected)
    found = "the file ends" if ends else f"found `{format_token(token)}`"
    title = f"expected {wanted}, but {found}"
    if ends and here.at == 0:
        wanted = what
        title = f"this is empty; expected {wanted}"
    elif expected - OPERATOR_TERMINALS == {"$END"}:
        # a complete value followed by another: `a b`
        wanted = "an operator" if "PLUS" in expected else "the end"
        title = f"{what} ends before `{format_token(token)}`; expected {wanted} between them"
    label = Label(here.span(token), f"expected {wanted} here")
    if before is not None:
        # a token that is missing at the end of a line is shown there, unless the next line may
        # begin something new and is itself wrong
        new = "BLOCK" in expected or "RETURN" in expected
        if ends or (here.is_on_new_line(token, before) and not new):
            label = Label(here.get_end_span(before), f"expected {wanted} after this")
    return Diagnostic("E0101", title, label, helps=tuple(collect_syntax_hints(here)))


def collect_syntax_hints(here: UnexpectedToken) -> Iterator[str]:
    """Return help for syntax of other languages."""
    token, before = here.token, here.before or Token("", "", 0, 0)
    if token.kind == "NAME" and "NAME" not in here.expected_terminals:
        words = [kind.lower() for kind in here.expected_terminals if kind in KEYWORD_TERMINALS]
        if meant := did_you_mean(token.text, words):
            yield format_suggestion(meant)
    for holds, hint in SYNTAX_HINTS:
        if holds(here, token, before):
            yield hint.format(token=token.text, whole=_join_hyphenated_name(here))


SYNTAX_HINTS: Sequence[tuple[Callable[[UnexpectedToken, Token, Token], bool], str]] = (
    (
        lambda e, t, _: t.kind == "EQUAL" and "EQ" in e.expected_terminals,
        "equality is written `==`",
    ),
    (
        lambda _, t, before: t.text in ("&", "|") and before.text == t.text,
        "one `{token}` is enough",
    ),
    (lambda e, *_: _join_hyphenated_name(e) in HYPHENATED_NAMES, 'write "{whole}" in quotes'),
    (lambda _, t, before: (t.text, before.text) == ("*", "**"), "a power is written `**`"),
    (
        lambda e, t, _: t.kind == "NOT" and "IN" in e.expected_terminals,
        "`x not in y` is written `not x in y`",
    ),
    (lambda _, t, __: t.kind == "DOT", "a number starts with a digit: `0.5`"),
    (
        lambda _, t, before: (t.kind, before.kind) == ("NUMBER", "DOT"),
        "the parts of a name start with a letter; take an element with `[0]`",
    ),
    (
        lambda e, *_: e.expected_terminals == {"ARROW"},
        "add the return type: `-> float[batch, n, d]`, or `-> (name: type, …)`",
    ),
    (lambda e, t, _: t.kind == "COLON" and "EQUAL" in e.expected_terminals, "assign with `=`"),
    (
        lambda e, *_: e.at >= 2 and e.tokens[e.at - 2].kind == "SCAN",
        "a loop needs a bound: `scan row in x along n` iterates over rows, "
        "`scan step in 8` runs eight times",
    ),
)
"""The condition of each hint: a predicate of the error, the unexpected token and the previous one.
"""


def _join_hyphenated_name(here: UnexpectedToken) -> str:
    """Join the unexpected token with its neighbors."""
    return "".join(t.text for t in here.tokens[max(here.at - 1, 0) : here.at + 2])
