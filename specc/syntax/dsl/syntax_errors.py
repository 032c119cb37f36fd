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
    """Brackets without a partner, as token indices: each opener with the token that reveals it,
    and closers.
    """

    unclosed: dict[int, int] = field(default_factory=dict)
    unopened: set[int] = field(default_factory=set)


def find_unbalanced_brackets(
    tokens: Sequence[Token], restart_points: Sequence[int]
) -> UnbalancedBrackets:
    """Find brackets without a partner. A new item at the start of a line reveals that the open
    brackets before it are never closed.
    """
    found = UnbalancedBrackets()
    stack: list[int] = []
    new_items = set(restart_points)
    for n, token in enumerate(tokens):
        if n in new_items or token.kind == "$END":
            found.unclosed.update((opener, n) for opener in stack)
            stack.clear()
        if token.text in OPENERS:
            stack.append(n)
        elif token.text in CLOSERS:
            pairs = [i for i, n in enumerate(stack) if OPENERS[tokens[n].text] == token.text]
            if not pairs:
                found.unopened.add(n)
                continue
            # `f(a[0)`: the `)` shows that the `[` is never closed
            found.unclosed.update((opener, n) for opener in stack[pairs[-1] + 1 :])
            del stack[pairs[-1] :]
    return found


def find_open_brackets(tokens: Sequence[Token], index: int) -> list[int]:
    """Return the brackets that are open at a token, outermost first."""
    stack: list[int] = []
    for n, token in enumerate(tokens[:index]):
        if token.text in OPENERS:
            stack.append(n)
        elif stack and OPENERS[tokens[stack[-1]].text] == token.text:
            stack.pop()
    return stack


def explain_unbalanced_bracket(
    here: UnexpectedToken, unbalanced: UnbalancedBrackets
) -> Diagnostic | None:
    """Explain an unclosed bracket around the token, or a closing one without an opening."""
    enclosing = find_open_brackets(here.tokens, here.index)
    opener = enclosing[-1] if enclosing else None
    if here.index in unbalanced.unopened and opener not in unbalanced.unclosed:
        return _explain_stray_closer(here, None if opener is None else here.tokens[opener])
    if opener is None or opener not in unbalanced.unclosed:
        return None
    return _explain_unclosed_bracket(
        here, here.tokens[opener], min(here.index, unbalanced.unclosed[opener])
    )


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


def _explain_unclosed_bracket(here: UnexpectedToken, opener: Token, index: int) -> Diagnostic:
    """Explain an opening bracket that is not closed before token `index`."""
    closer = OPENERS[opener.text]
    token, before = here.tokens[index], here.tokens[index - 1]
    if token.kind == "$END":
        last = here.get_end_span(before) if len(here.tokens) > 1 else here.span(token)
        primary = Label(last, f"the file ends without `{closer}`")
    elif here.is_on_new_line(token, before) and opener.text != "{":
        # a `)` belongs to the line where it is missing, a `}` to a line of its own
        primary = Label(here.get_end_span(before), f"expected `{closer}` after this")
    else:
        primary = Label(here.span(token), f"expected `{closer}` before this")
    return Diagnostic(
        "E0102",
        f"a `{opener.text}` that is never closed",
        primary,
        (Label(here.span(opener), "opened here"),),
        helps=(f"add the missing `{closer}`",),
    )


class SyntaxErrorExplainer:
    """Explains syntax errors of one fragment. `description` names the expected text, e.g. `an
    expression`.
    """

    def __init__(self, fragment: Fragment, description: str) -> None:
        self.fragment = fragment
        self.description = description
        self.unbalanced: UnbalancedBrackets | None = None

    def __call__(self, run: ParseRun, index: int) -> Diagnostic:
        """Return the most specific explanation of the unexpected token `index`."""
        if self.unbalanced is None:
            self.unbalanced = find_unbalanced_brackets(run.tokens, run.restart_points)
        here = UnexpectedToken(self.fragment, run, index)
        return (
            explain_weights_without_call(here)
            or explain_unbalanced_bracket(here, self.unbalanced)
            or explain_missing_header(here)
            or explain_foreign_syntax(here)
            or explain_reserved_word(here)
            or explain_misplaced_doc(here)
            or explain_unfinished_line(here)
            or explain_bare_name(here)
            or explain_expected_tokens(here, self.description)
        )


def explain_weights_without_call(here: UnexpectedToken) -> Diagnostic | None:
    """Explain `x @ w`."""
    if here.token.kind != "AT":
        return None
    fix = "a product of matrices is `matmul(x, w)`"
    if here.previous is not None and here.previous.text == ")":
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
    if here.parse_run.start != "file" or here.index > 2 or len(here.parse_run.states) > 3:
        return None
    title = "a spec starts with `specc 1` and `model NAME`"
    if here.token.kind == "$END" and here.index == 0:
        title = "this spec is empty"
    label = "`specc 1` belongs here" if here.index == 0 else "unexpected"
    return Diagnostic(
        "E0113",
        title,
        Label(here.span(here.token), label),
        helps=('start with\n  specc 1\n  model my_model "what it is"',),
    )


def explain_reserved_word(here: UnexpectedToken) -> Diagnostic | None:
    """Explain a reserved word in place of a name."""
    token, expected = here.token, here.expected_terminals
    # where a number is allowed too, any value is, and the word was hardly meant as a name
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
    # tokens on the stack are not yet part of a rule, such as the keyword of an open definition
    kinds = [p.value.kind for p in here.parse_run.stack if isinstance(p.value, Token)]
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
    if here.index < 2:
        return None
    token, name, before = here.token, here.tokens[here.index - 1], here.tokens[here.index - 2]
    starts = token.kind == "EQUAL" or here.index - 1 in here.parse_run.restart_points
    unfinished = before.kind in {*OPERATOR_TERMINALS, "COMMA", "EQUAL"}
    if not (starts and unfinished and here.is_on_new_line(name, before)):
        return None
    next_statement = here.span(name).to(here.span(token))
    return Diagnostic(
        "E0101",
        f"the line before `{name.text} {token.text}` is not finished",
        Label(here.span(before), "a value is missing after this"),
        (Label(next_statement, "a new statement starts here"),),
        helps=(f"write the value after `{before.text}`, or delete it",),
    )


def explain_bare_name(here: UnexpectedToken) -> Diagnostic | None:
    """Explain a name parsed as a result without `=`: an operator is missing before it, or its
    result has no name.
    """
    if here.index < 2 or not {"EQUAL", "COLON"} <= here.expected_terminals:
        return None
    name, before = here.tokens[here.index - 1], here.tokens[here.index - 2]
    if not here.is_on_new_line(name, before):
        if before.kind in ("LBRACE", "RBRACE", "$END") or name.text == "":
            return explain_unnamed_result(here, name)
        return Diagnostic(  # `y = a b`
            "E0101",
            f"an operator is missing before `{name.text}`",
            Label(here.span(name), "expected an operator before this"),
            helps=("write an operator between the two, or start a new statement: `name = …`",),
        )
    if here.token.text == "(" or before.text in ("{", "}"):
        return explain_unnamed_result(here, name)
    return Diagnostic(
        "E0101",
        f"`{name.text}` is neither part of the line before nor a statement",
        Label(here.get_end_span(before), "is an operator missing at the end of this line?"),
        (Label(here.span(name), "read as the name of a new result, and no `=` follows"),),
        helps=(f"join the lines with an operator, or write `{name.text} = …`",),
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


def explain_expected_tokens(here: UnexpectedToken, description: str) -> Diagnostic:
    """Report the expected and the found token."""
    token, before, expected = here.token, here.previous, here.expected_terminals
    at_end = token.kind == "$END"
    missing = describe_terminals(expected)
    found = "the file ends" if at_end else f"found `{format_token(token)}`"
    title = f"expected {missing}, but {found}"
    if at_end and here.index == 0:
        missing = description
        title = f"this is empty; expected {missing}"
    elif expected - OPERATOR_TERMINALS == {"$END"}:
        # a complete value followed by another: `a b`
        missing = "an operator" if "PLUS" in expected else "the end"
        shown = format_token(token)
        title = f"{description} ends before `{shown}`; expected {missing} between them"
    label = Label(here.span(token), f"expected {missing} here")
    if before is not None:
        # a missing token is shown at the end of its line, unless the next line may begin a new
        # statement or item and is itself wrong
        may_begin = "BLOCK" in expected or "RETURN" in expected
        if at_end or (here.is_on_new_line(token, before) and not may_begin):
            label = Label(here.get_end_span(before), f"expected {missing} after this")
    return Diagnostic("E0101", title, label, helps=tuple(collect_syntax_hints(here)))


def collect_syntax_hints(here: UnexpectedToken) -> Iterator[str]:
    """Yield help for misspelled keywords and the syntax of other languages."""
    token, before = here.token, here.previous or Token("", "", 0, 0)
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
        lambda e, *_: e.index >= 2 and e.tokens[e.index - 2].kind == "SCAN",
        "a loop needs a bound: `scan row in x along n` iterates over rows, "
        "`scan step in 8` runs eight times",
    ),
)
"""Conditions on the error, its token and the previous token, each with its hint."""


def _join_hyphenated_name(here: UnexpectedToken) -> str:
    """Return the unexpected token joined with its neighbors, e.g. `int8-weights`."""
    return "".join(t.text for t in here.tokens[max(here.index - 1, 0) : here.index + 2])
