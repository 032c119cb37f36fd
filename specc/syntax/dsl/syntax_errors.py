"""Explain DSL syntax errors, e.g. at brackets (E0102, E0103), operators or reserved words."""

from collections.abc import Sequence
from dataclasses import field, replace

from specc.diagnostics.diagnostic import Diagnostic
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.syntax.dsl.dsl_lexer import CLOSERS, OPENERS, SourceFragment, Token
from specc.syntax.dsl.lalr import LalrParser
from specc.syntax.dsl.syntax_hints import collect_syntax_hints, explain_foreign_syntax
from specc.syntax.dsl.unexpected_token import (
    DEFINITION_TERMINALS,
    ITEM_TERMINALS,
    OPERATOR_TERMINALS,
    RESERVED_TERMINALS,
    UnexpectedToken,
    describe_terminals,
    format_token,
)


@immutable_dataclass
class UnbalancedBrackets:
    """The unbalanced brackets of a text, as token indices. `unclosed` maps each unclosed opening
    bracket to the token that reveals the error, and `unopened` contains unmatched closing brackets.
    """

    unclosed: dict[int, int] = field(default_factory=dict)
    unopened: set[int] = field(default_factory=set)


def find_unbalanced_brackets(
    tokens: Sequence[Token], recovery_points: Sequence[int]
) -> UnbalancedBrackets:
    """Find unbalanced brackets. An item keyword inside brackets reveals an unclosed bracket."""
    brackets = UnbalancedBrackets()
    stack: list[int] = []
    new_items = set(recovery_points)
    for n, token in enumerate(tokens):
        if n in new_items or token.kind == "$END":
            brackets.unclosed.update((opener, n) for opener in stack)
            stack.clear()
        if token.text in OPENERS:
            stack.append(n)
        elif token.text in CLOSERS:
            _close_bracket(tokens, n, stack, brackets)
    return brackets


def _close_bracket(
    tokens: Sequence[Token], closer: int, stack: list[int], unbalanced: UnbalancedBrackets
) -> None:
    """Remove the opening bracket of `closer`, and all later brackets, from the stack."""
    text = tokens[closer].text
    pairs = [i for i, opener in enumerate(stack) if OPENERS[tokens[opener].text] == text]
    if not pairs:
        unbalanced.unopened.add(closer)
        return
    # in `f(a[0)`, the `)` reveals that the `[` is never closed
    unbalanced.unclosed.update((opener, closer) for opener in stack[pairs[-1] + 1 :])
    del stack[pairs[-1] :]


def find_open_brackets(tokens: Sequence[Token], index: int) -> list[int]:
    """Return the token indices of the brackets that are open at token `index`, outermost first."""
    stack: list[int] = []
    for n, token in enumerate(tokens[:index]):
        if token.text in OPENERS:
            stack.append(n)
        elif stack and OPENERS[tokens[stack[-1]].text] == token.text:
            stack.pop()
    return stack


def explain_unbalanced_bracket(
    error: UnexpectedToken, unbalanced: UnbalancedBrackets
) -> Diagnostic | None:
    """Return E0102 for an unclosed bracket, E0103 for an unmatched closing bracket, or None."""
    enclosing = find_open_brackets(error.all_tokens, error.index)
    opener = enclosing[-1] if enclosing else None
    if error.index in unbalanced.unopened and opener not in unbalanced.unclosed:
        return _explain_stray_closer(error, None if opener is None else error.all_tokens[opener])
    if opener is None or opener not in unbalanced.unclosed:
        return None
    return _explain_unclosed_bracket(
        error, error.all_tokens[opener], min(error.index, unbalanced.unclosed[opener])
    )


def _explain_stray_closer(error: UnexpectedToken, last_open: Token | None) -> Diagnostic:
    """Return E0103 for an unmatched closing bracket. `last_open` is the innermost open bracket."""
    return error.explain(
        f"a `{error.token.text}` without its opening bracket",
        error.token,
        "no bracket to close",
        "delete it, or write the opening bracket before it",
        code="E0103",
        related_label=(last_open, "the last bracket that is open") if last_open else None,
    )


def _explain_unclosed_bracket(error: UnexpectedToken, opener: Token, index: int) -> Diagnostic:
    """Return E0102 for the bracket `opener`, which is not closed before token `index`."""
    closer = OPENERS[opener.text]
    token, previous = error.all_tokens[index], error.all_tokens[index - 1]
    location, label = token, f"expected `{closer}` before this"
    if token.kind == "$END":
        label = f"the file ends without `{closer}`"
        location = previous.get_last_character() if len(error.all_tokens) > 1 else token
    elif error.is_on_new_line(token, previous) and opener.text != "{":
        # insert a missing `)` at the end of the previous line, but a missing `}` on a new line
        location, label = previous.get_last_character(), f"expected `{closer}` after this"
    return error.explain(
        f"a `{opener.text}` that is never closed",
        location,
        label,
        f"add the missing `{closer}`",
        code="E0102",
        related_label=(opener, "opened here"),
    )


class SyntaxErrorExplainer:
    """A builder of syntax error diagnostics. `description` is the kind of text, such as `an
    expression`.
    """

    def __init__(self, fragment: SourceFragment, description: str) -> None:
        self.fragment = fragment
        self.description = description
        self.unbalanced: UnbalancedBrackets | None = None

    def __call__(self, parser: LalrParser, index: int) -> Diagnostic:
        """Return the most specific diagnostic for the unexpected token with the index `index`."""
        if self.unbalanced is None:
            self.unbalanced = find_unbalanced_brackets(parser.tokens, parser.recovery_points)
        error = UnexpectedToken(self.fragment, parser, index)
        return (
            explain_misplaced_weight_path(error)
            or explain_unbalanced_bracket(error, self.unbalanced)
            or explain_missing_header(error)
            or explain_foreign_syntax(error)
            or explain_reserved_word(error)
            or explain_misplaced_docstring(error)
            or explain_incomplete_line(error)
            or explain_name_without_assignment(error)
            or explain_expected_tokens(error, self.description)
        )


def explain_misplaced_weight_path(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0107 for a weight path after a value that is not a call (`x @ w`), otherwise None."""
    if error.token.kind != "AT":
        return None
    fix = "write a matrix product as `matmul(x, w)`"
    if error.previous_token is not None and error.previous_token.text == ")":
        # in `(f(x)) @ name`, the grammar does not allow a weight path after a call in parentheses
        fix = "put the name directly after the call, inside the parentheses: `(f(x) @ name)`"
    title = "`@` names the weights of a call; a matrix product is matmul(x, w)"
    note = "`linear(x, out=d) @ q_proj` puts the weights of this `linear` under the name `q_proj`"
    diagnostic = error.explain(title, error.token, "not preceded by a call", fix, code="E0107")
    return replace(diagnostic, notes=(note,))


def explain_missing_header(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0113 if a file does not begin with `specc 1` and `model name`, otherwise None."""
    # above the start state, the stack may contain only `specc` and the version
    if error.parser.start != "file" or error.index > 2 or len(error.parser.states) > 3:
        return None
    title = "a spec starts with `specc 1` and `model NAME`"
    if error.token.kind == "$END" and error.index == 0:
        title = "this spec is empty"
    label = "`specc 1` belongs here" if error.index == 0 else "unexpected"
    fix = 'start with\n  specc 1\n  model my_model "what it is"'
    return error.explain(title, error.token, label, fix, code="E0113")


def explain_reserved_word(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0115 if a reserved word is used where a name is expected, otherwise None."""
    token, expected = error.token, error.expected_terminals
    # if a number is also allowed, the reserved word is probably not meant as a name
    if token.kind not in RESERVED_TERMINALS or "NAME" not in expected or "NUMBER" in expected:
        return None
    title, fix = (
        f"`{token.text}` cannot be used as a name",
        f"choose another name, such as `{token.text}_`",
    )
    return error.explain(title, token, "reserved word", fix, code="E0115")


def explain_misplaced_docstring(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0117 if a docstring is at a position where none is allowed, otherwise None."""
    is_between_items = error.expected_terminals >= ITEM_TERMINALS
    is_in_body = {"RETURN", "RBRACE"} <= error.expected_terminals
    if error.token.kind != "STRING" or not (is_between_items or is_in_body):
        return None
    location = "first inside the braces of a block or graph, or after the default of a config value"
    keyword = _find_open_definition(error)
    if keyword and is_between_items:
        example = keyword.lower()
        location = f'before the `=`: `{example} name(…) "what it is" = …`'
    label, fix = "no description is allowed here", f"write a description {location}"
    return error.explain("misplaced description", error.token, label, fix, code="E0117")


def _find_open_definition(error: UnexpectedToken) -> str:
    """Return the keyword terminal of the definition that encloses an error, or "" outside one."""
    # a token that is still on the stack, e.g. the enclosing definition's keyword, is not reduced
    # yet
    kinds = [p.value.kind for p in error.parser.stack if isinstance(p.value, Token)]
    return next((k for k in reversed(kinds) if k in DEFINITION_TERMINALS), "")


def explain_incomplete_line(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0101 if a line ends with an operator before a new statement, otherwise None.

        x = a +
        y = b

    In this example, the unexpected token is the second `=`, but the mistake is the `+`.
    """
    if error.index < 2:
        return None
    token, name, previous = (
        error.token,
        error.all_tokens[error.index - 1],
        error.all_tokens[error.index - 2],
    )
    starts_statement = token.kind == "EQUAL" or error.index - 1 in error.parser.recovery_points
    is_incomplete = previous.kind in {*OPERATOR_TERMINALS, "COMMA", "EQUAL"}
    if not (starts_statement and is_incomplete and error.is_on_new_line(name, previous)):
        return None
    return error.explain(
        f"the line before `{name.text} {token.text}` is not finished",
        previous,
        "a value is missing after this",
        f"write the value after `{previous.text}`, or delete it",
        related_label=(name._replace(end=token.end), "a new statement starts here"),
    )


def explain_name_without_assignment(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0101 if a name is parsed as the target of an assignment without `=`, otherwise None.
    Either an operator is missing before the name, or a result has no name.
    """
    if error.index < 2 or not error.is_assignment_expected:
        return None
    name, previous = error.all_tokens[error.index - 1], error.all_tokens[error.index - 2]
    if not error.is_on_new_line(name, previous):
        if previous.kind in ("LBRACE", "RBRACE", "$END") or name.text == "":
            return explain_unnamed_result(error, name)
        return error.explain(  # the line contains two values, as in `y = a b`
            f"an operator is missing before `{name.text}`",
            name,
            "expected an operator before this",
            "write an operator between the two, or start a new statement: `name = …`",
        )
    if error.token.text == "(" or previous.text in ("{", "}") or name.text in CONFIG_KEYWORDS:
        return explain_unnamed_result(error, name)
    return error.explain(
        f"`{name.text}` is neither part of the line before nor a statement",
        previous.get_last_character(),
        "is an operator missing at the end of this line?",
        f"join the lines with an operator, or write `{name.text} = …`",
        related_label=(name, "parsed as the name of a new result, but not followed by `=`"),
    )


def explain_unnamed_result(error: UnexpectedToken, name: Token) -> Diagnostic:
    """Return E0101 for a call without a result name, as in the statement `f(x)`."""
    value = f"{name.text}(…)" if error.token.text == "(" else f"{name.text} …"
    method = error.all_tokens[error.index + 1].text if error.token.kind == "DOT" else name.text
    default = f"write `name = {value}`, or `return …` for a result"
    fix = UNNAMED_STATEMENT_HELPS.get(method, default)
    title = "the result of a statement needs a name"
    return error.explain(title, name, "this value has no name", fix)


CONFIG_KEYWORDS = ("expect", "ignore")
"""The words that begin a `config` entry with quoted keys of config.json."""

UNNAMED_STATEMENT_HELPS = {
    "assert": 'write a condition on config values as `require d > 2, "why"`',
    "append": "`repeat … collect x { … }` makes a list of the values of `x`",
    "print": "to print values inside a graph, use `specc compile --tap PATTERN` and `run`",
    "expect": 'quote the key of config.json: `expect "model_type" in (bert, none)`',
    "ignore": 'quote the keys of config.json: `ignore "init_std"`',
    "pass": "remove it",
    "global": "remove it: a body can use all names outside it",
}
"""Help messages for statements of other languages without a result, keyed by word or method."""


def explain_expected_tokens(error: UnexpectedToken, description: str) -> Diagnostic:
    """Return E0101 with the expected and the actual token. `description` describes the fragment."""
    token, expected = error.token, error.expected_terminals
    is_at_end = token.kind == "$END"
    missing = describe_terminals(expected)
    is_file = error.fragment.text == error.fragment.source.text
    end = "the file ends" if is_file else "the string ends"
    actual = end if is_at_end else f"found `{format_token(token)}`"
    title = f"expected {missing}, but {actual}"
    if is_at_end and error.index == 0:
        missing = description
        title = f"this is empty; expected {missing}"
    elif expected - OPERATOR_TERMINALS == {"$END"}:
        # a complete value is followed by another value, as in `a b`
        missing = "an operator" if "PLUS" in expected else "the end"
        title = f"{description} ends before `{format_token(token)}`"
        title += "; expected an operator between them" if "PLUS" in expected else ""
    location, preposition = token, "here"
    previous = error.previous_token
    # if no statement or item may begin here, put the label at the end of the previous line
    may_begin = "BLOCK" in expected or "RETURN" in expected
    if previous and (is_at_end or (error.is_on_new_line(token, previous) and not may_begin)):
        location, preposition = previous.get_last_character(), "after this"
    label = f"expected {missing} {preposition}"
    return error.explain(title, location, label, *collect_syntax_hints(error))
