"""A token that does not fit → a diagnostic in plain words.

The parser knows which terminals would fit. Said to a person that is: a value, a name,
the closing bracket and where it was opened, or the operator that is missing at the end
of the line before.
"""

from collections.abc import Iterator

from specc.lang.dsl.brackets import Unpaired, brackets, unpaired
from specc.lang.dsl.foreign import of_other_languages
from specc.lang.dsl.fragment import Fragment
from specc.lang.dsl.lalr import Run
from specc.lang.dsl.lexer import Token
from specc.lang.dsl.misplaced import Misplaced, shown
from specc.lang.dsl.terminals import (
    DEFINING,
    HYPHENED,
    ITEMS,
    KEYWORDS,
    OPERATORS,
    RESERVED,
    described,
)
from specc.text.diagnostic import Diagnostic, Label
from specc.text.suggest import did_you_mean, suggestion


class Explainer:
    """Explains faults of one fragment. `what` says what the text should have been:
    `an expression`.
    """

    def __init__(self, fragment: Fragment, what: str) -> None:
        self.fragment = fragment
        self.what = what
        self.loose: Unpaired | None = None

    def __call__(self, run: Run, at: int) -> Diagnostic:
        """Why token `at` does not fit: the most special explanation that holds."""
        if self.loose is None:
            self.loose = unpaired(run.tokens, run.restarts)
        here = Misplaced(self.fragment, run, at)
        return (
            weights_of_no_call(here)
            or brackets(here, self.loose)
            or version(here)
            or of_other_languages(here)
            or reserved(here)
            or doc_behind(here)
            or unfinished_line(here)
            or name_alone(here)
            or plain(here, self.what)
        )


def weights_of_no_call(here: Misplaced) -> Diagnostic | None:
    """`x @ w`."""
    if here.token.kind != "AT":
        return None
    mend = "a product of matrices is `matmul(x, w)`"
    if here.before is not None and here.before.text == ")":
        # `(f(x)) @ name`: a call in parentheses is a value like any other
        mend = "put the name right behind the call, inside the parentheses: `(f(x) @ name)`"
    return Diagnostic(
        "E0107",
        "`@` names the weights of a call; a product is matmul(x, w)",
        Label(here.span(here.token), "nothing before it is a call"),
        notes=(
            "`linear(x, out=d) @ q_proj` puts the weights of this `linear` under "
            "the name `q_proj`",
        ),
        helps=(mend,),
    )


def version(here: Misplaced) -> Diagnostic | None:
    """A file that does not begin with `specc 1` and `model name`."""
    # at most `specc` and the number lie on the stack, above the state it starts with
    if here.run.start != "file" or here.at > 2 or len(here.run.states) > 3:
        return None
    title = "a spec begins with `specc 1` and `model` with its name"
    if here.token.kind == "$END" and here.at == 0:
        title = "this spec is empty"
    label = "`specc 1` belongs here" if here.at == 0 else "this does not fit"
    return Diagnostic(
        "E0113",
        title,
        Label(here.span(here.token), label),
        helps=('begin with\n  specc 1\n  model my_model "what it is"',),
    )


def reserved(here: Misplaced) -> Diagnostic | None:
    """A reserved word where a name is due."""
    token, expected = here.token, here.expected
    # where a number fits too, any value does, and the word was hardly meant as a name
    if token.kind not in RESERVED or "NAME" not in expected or "NUMBER" in expected:
        return None
    return Diagnostic(
        "E0115",
        f"`{token.text}` cannot be used as a name",
        Label(here.span(token), "this word belongs to the language"),
        helps=(f"another name, such as `{token.text}_`",),
    )


def doc_behind(here: Misplaced) -> Diagnostic | None:
    """A doc string where none is allowed."""
    between_items = here.expected >= ITEMS
    in_body = {"RETURN", "RBRACE"} <= here.expected
    if here.token.kind != "STRING" or not (between_items or in_body):
        return None
    place = (
        "first inside the braces of a block or graph, or behind the default "
        "of a config value"
    )
    # tokens that are not yet part of a rule: behind a definition its first word is
    kinds = [p.value.kind for p in here.run.parts if isinstance(p.value, Token)]
    last = next((k for k in reversed(kinds) if k in DEFINING), "")
    if last and between_items:
        word = last.lower()
        place = f'before the `=`: `{word} name(…) "what it is" = …`'
    return Diagnostic(
        "E0117",
        "a text that describes nothing",
        Label(here.span(here.token), "nothing here takes a text"),
        helps=(f"a description stands {place}",),
    )


def unfinished_line(here: Misplaced) -> Diagnostic | None:
    """The line before ends with an operator, and the next begins something new:

    x = a +
    y = b
      ^ the `=` does not fit, but the fault is the `+`
    """
    if here.at < 2:
        return None
    token, name, before = here.token, here.tokens[here.at - 1], here.tokens[here.at - 2]
    starts = token.kind == "EQUAL" or here.at - 1 in here.run.restarts
    unfinished = before.kind in {*OPERATORS, "COMMA", "EQUAL"}
    if not (starts and unfinished and here.on_new_line(name, before)):
        return None
    something_new = here.span(name).to(here.span(token))
    return Diagnostic(
        "E0101",
        f"the line before `{name.text} {token.text}` is not finished",
        Label(here.span(before), "a value is missing after this"),
        (Label(something_new, "here begins something new"),),
        helps=(f"write the value that belongs behind `{before.text}`, or delete it",),
    )


def name_alone(here: Misplaced) -> Diagnostic | None:
    """A name that was read as a result, and no `=` follows: an operator is missing
    before it, or its result has no name.
    """
    if here.at < 2 or not {"EQUAL", "COLON"} <= here.expected:
        return None
    name, before = here.tokens[here.at - 1], here.tokens[here.at - 2]
    if not here.on_new_line(name, before):
        if before.kind in ("LBRACE", "RBRACE", "$END") or name.text == "":
            return no_result_name(here, name)
        return missing_operator(here, name)
    if here.token.text == "(" or before.text in ("{", "}"):
        return no_result_name(here, name)
    return Diagnostic(
        "E0101",
        f"`{name.text}` is neither part of the line before nor a statement",
        Label(here.end_of(before), "is an operator missing at the end of this line?"),
        (
            Label(
                here.span(name),
                "read as the name of a new result, and no `=` follows",
            ),
        ),
        helps=(f"join the lines with an operator, or write `{name.text} = …`",),
    )


def missing_operator(here: Misplaced, name: Token) -> Diagnostic:
    """`y = a b`."""
    mend = "write an operator between the two, or begin a new statement: `name = …`"
    return Diagnostic(
        "E0101",
        f"an operator is missing before `{name.text}`",
        Label(here.span(name), "nothing joins this to what stands before it"),
        helps=(mend,),
    )


def no_result_name(here: Misplaced, name: Token) -> Diagnostic:
    """`f(x)` as a statement."""
    value = f"{name.text}(…)" if here.token.text == "(" else f"{name.text} …"
    return Diagnostic(
        "E0101",
        "a statement must give its result a name",
        Label(here.span(name), "this value has no name"),
        helps=(f"write `name = {value}`, or `return …` for a result",),
    )


def plain(here: Misplaced, what: str) -> Diagnostic:
    """What was expected and what was found."""
    token, before, expected = here.token, here.before, here.expected
    ends = token.kind == "$END"
    wanted = described(expected)
    found = "the text ends" if ends else f"found `{shown(token)}`"
    title = f"expected {wanted}, but {found}"
    if ends and here.at == 0:
        wanted = what
        title = f"nothing is written here; expected {wanted}"
    elif expected - OPERATORS == {"$END"}:
        # a whole value was read and more follows: `a b` where one is due
        wanted = "an operator" if "PLUS" in expected else "the end"
        title = f"{what} ends before `{shown(token)}`, and nothing joins the two"
    label = Label(here.span(token), f"expected {wanted} here")
    if before is not None:
        # what is missing at the end of a line is shown there, unless the next may begin
        # something new and is at fault itself
        new = "BLOCK" in expected or "RETURN" in expected
        if ends or (here.on_new_line(token, before) and not new):
            label = Label(here.end_of(before), f"expected {wanted} after this")
    return Diagnostic("E0101", title, label, helps=tuple(hints(here)))


def hints(here: Misplaced) -> Iterator[str]:
    """Help for slips that people bring from other languages."""
    token = here.token
    before = here.before or Token("", "", 0, 0)
    if token.kind == "NAME" and "NAME" not in here.expected:
        words = [kind.lower() for kind in here.expected if kind in KEYWORDS]
        if meant := did_you_mean(token.text, words):
            yield suggestion(meant)
    yield from _operator_hints(here, token, before)
    if token.kind == "DOT":
        yield "a number starts with a digit: `0.5`"
    if token.kind == "NUMBER" and before.kind == "DOT":
        yield "the parts of a name start with a letter; take an element with `[0]`"
    if here.expected == {"ARROW"}:
        yield "say what it gives: `-> float[batch, n, d]`, or `-> (name: type, …)`"
    if token.kind == "COLON" and "EQUAL" in here.expected:
        yield "a value is given with `=`"
    if here.at >= 2 and here.tokens[here.at - 2].kind == "SCAN":
        rows, turns = "`scan row in x along n`", "`scan step in 8`"
        yield f"a loop has an end: {rows} walks along rows, {turns} turns eight times"


def _operator_hints(here: Misplaced, token: Token, before: Token) -> Iterator[str]:
    """Operators that are spelled otherwise elsewhere."""
    if token.kind == "EQUAL" and "EQ" in here.expected:
        yield "“is equal to” is written `==`"
    if token.text in ("&", "|") and before.text == token.text:
        yield f"one `{token.text}` is enough"
    if (whole := _hyphened(here)) in HYPHENED:
        yield f'write "{whole}" in quotes'
    if token.text == "*" and before.text == "**":
        yield "a power is written `**`"
    if token.kind == "NOT" and "IN" in here.expected:
        yield "`x not in y` is written `not x in y`"


def _hyphened(here: Misplaced) -> str:
    """The text of three tokens, the one that does not fit in the middle."""
    return "".join(t.text for t in here.tokens[max(here.at - 1, 0) : here.at + 2])
