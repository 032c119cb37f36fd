"""Parse DSL text: a whole `.specc` file, or a fragment such as an expression or a type."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar, cast

import specc.syntax.dsl.ast_builder  # noqa: F401 — registers callbacks
from specc.diagnostics.diagnostic import Diagnostic, Label, Source, SpeccError
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.syntax import ast
from specc.syntax.dsl import dsl_lexer
from specc.syntax.dsl.ast_builder import DefinitionHeader, RepeatHeader, ScanHeader
from specc.syntax.dsl.dsl_lexer import (
    LexerResult,
    SourceFragment,
    Token,
    check_source_characters,
    tokenize_fragment,
)
from specc.syntax.dsl.grammar_callbacks import AstBuilder
from specc.syntax.dsl.lalr import LalrParser, LalrTable, load_lalr_table
from specc.syntax.dsl.syntax_errors import SyntaxErrorExplainer
from specc.syntax.dsl.unexpected_token import ITEM_TERMINALS

T = TypeVar("T", covariant=True)


@immutable_dataclass
class StartSymbol(Generic[T]):
    """A start symbol of the grammar, and its description for messages. T is the result type."""

    symbol: str
    description: str


FILE: StartSymbol[ast.File] = StartSymbol("file", "a spec")
EXPR: StartSymbol[ast.Expr] = StartSymbol("expr", "an expression")
TYPE: StartSymbol[ast.TypeExpr] = StartSymbol("type", "a type")
SIDED_TYPE: StartSymbol[ast.TypeExpr] = StartSymbol("sided_type", "a type")
TYPES: StartSymbol[tuple[ast.TypeExpr, ...]] = StartSymbol("types", "types")
SOURCE: StartSymbol[ast.StringLiteral | ast.Call] = StartSymbol("source", "a path in config.json")
DIM_NAME: StartSymbol[ast.DimDecl] = StartSymbol("dim_name", "a length")
DEFINITION_HEAD: StartSymbol[DefinitionHeader] = StartSymbol(
    "definition_head", "a name with its parameters"
)
REPEAT_HEAD: StartSymbol[RepeatHeader] = StartSymbol("repeat_head", "`name in count`")
SCAN_HEAD: StartSymbol[ScanHeader] = StartSymbol("scan_head", "`names in sequences`")
TARGETS: StartSymbol[tuple[ast.AssignmentTarget, ...]] = StartSymbol("targets", "names")
DOTTED: StartSymbol[ast.Name] = StartSymbol("dotted", "a name")


def parse_fragment(fragment: SourceFragment, start: StartSymbol[T]) -> T:
    """Parse a fragment as the start symbol `start`. Raise SpeccError (E01xx) for syntax errors."""
    table = load_lalr_table()
    lexer_result = tokenize_fragment(fragment, table.keywords)
    # raise lexer errors first, because the lexer replaces invalid characters before parsing
    if lexer_result.errors:
        raise SpeccError(*_select_lexer_errors(lexer_result, start.symbol))
    builder = AstBuilder(fragment, lexer_result.tokens, lexer_result.comments)

    def make_limit_error(code: str, first: int) -> Diagnostic:
        token = lexer_result.tokens[first]
        title = f"operators nested more than {dsl_lexer.MAX_EXPRESSION_DEPTH} levels deep"
        if code == "E0111":
            title = f"an expression of more than {dsl_lexer.MAX_EXPRESSION_TOKENS} tokens"
        label = Label(fragment.make_span(token.start, token.end), "starts here")
        return Diagnostic(code, title, label, helps=("bind parts of it to names",))

    parser = LalrParser(
        table=table,
        tokens=lexer_result.tokens,
        start=start.symbol,
        build=builder,
        explain=SyntaxErrorExplainer(fragment, start.description),
        build_limit_error=make_limit_error,
        recovery_points=find_recovery_points(fragment, lexer_result),
        errors=builder.errors,
    )
    value = parser.parse()
    if builder.errors:
        raise SpeccError(*truncate_diagnostics(builder.errors))
    # the value of a start symbol is always the result of its callback
    return cast(T, value)


FIRST_TERMINALS = ITEM_TERMINALS | {"MODEL", "EXTENDS"}
"""The keywords that may begin a spec without a version line."""


def _select_lexer_errors(lexer_result: LexerResult, start_symbol: str) -> list[Diagnostic]:
    """Return the first 20 errors, or only the first error of a file that is probably not a spec. A
    file that is probably not a spec has no version line, no item at the start, and no suffix
    `.specc`.
    """
    errors = truncate_diagnostics(lexer_result.errors)
    kinds = [token.kind for token in lexer_result.tokens[:2]]
    begins_like_spec = kinds == ["SPECC", "NUMBER"] or kinds[0] in FIRST_TERMINALS
    name = errors[0].primary.span.source.name if errors[0].primary else ""
    if begins_like_spec or name.lower().endswith(".specc") or start_symbol != FILE.symbol:
        return errors
    help = "a spec begins with the line `specc 1`; if this is another file, pass the spec"
    return [replace(errors[0], helps=(*errors[0].helps, help))]


def find_recovery_points(fragment: SourceFragment, lexer_result: LexerResult) -> list[int]:
    """Return the token indices at which parsing may resume: item keywords in column 1."""
    text = fragment.text
    tokens = lexer_result.tokens
    return [
        n
        for n, t in enumerate(tokens)
        if t.kind in ITEM_TERMINALS
        and (t.start == 0 or text[t.start - 1] == "\n")
        # `mask` is a name in `mask = …` and `mask: type`, because most keywords are not reserved
        and tokens[n + 1].kind not in ("EQUAL", "COLON", "COMMA")
    ]


def truncate_diagnostics(errors: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return the first 20 errors by position in the text. A note states how many are omitted."""
    sorted_errors = sorted(
        errors, key=lambda error: error.primary.span.start if error.primary else 0
    )
    omitted = len(sorted_errors) - dsl_lexer.MAX_REPORTED_ERRORS
    if omitted <= 0:
        return sorted_errors
    # the number of further errors is unknown, because parsing stopped at the limit
    is_truncated = len(sorted_errors) >= dsl_lexer.MAX_COLLECTED_ERRORS
    count = "many more errors" if is_truncated else f"{omitted} more errors"
    last = sorted_errors[dsl_lexer.MAX_REPORTED_ERRORS - 1]
    last = replace(last, notes=(*last.notes, f"{count} are not shown"))
    return [*sorted_errors[: dsl_lexer.MAX_REPORTED_ERRORS - 1], last]


def parse_dsl(source: Source) -> ast.File:
    """Parse a `.specc` text. Raise E01xx with up to 20 independent errors."""
    return parse_fragment(SourceFragment.from_source(check_source_characters(source)), FILE)


def parse_expression(source: Source | str) -> ast.Expr:
    """Parse one expression, e.g. a value from the command line."""
    if isinstance(source, str):
        source = Source("<expression>", source)
    return parse_fragment(SourceFragment.from_source(check_source_characters(source)), EXPR)


HEADER_TERMINALS = ("SPECC", "NUMBER", "MODEL", "NAME")
"""The terminals of a valid file header, which error recovery inserts before the next item."""


@immutable_dataclass
class ExpectedTokens:
    """The terminals that may follow the tokens `preceding`. `keywords` are the terminals that are
    keywords in this context, such as `under` after `repeat i in n`.
    """

    preceding: tuple[Token, ...]
    terminals: frozenset[str]
    keywords: frozenset[str]


def find_expected_tokens(text: str, offset: int, start: str = FILE.symbol) -> ExpectedTokens | None:
    """Return the tokens allowed at an offset of a text, which is parsed as the start symbol
    `start`. Return None inside a comment or string, and after a syntax error.
    """
    source = Source("<input>", text[:offset])
    fragment = SourceFragment.from_source(source)
    table = load_lalr_table()
    lexer_result = tokenize_fragment(fragment, table.keywords)
    if any(error.code == "E0104" for error in lexer_result.errors):
        return None  # the offset is inside a string literal
    if any(c.end == offset for c in lexer_result.comments):
        return None
    tokens = lexer_result.tokens[:-1]  # the last token marks the end of the text
    states = _run_parser(table, tokens, find_recovery_points(fragment, lexer_result), start)
    if states is None:
        return None
    terminals = table.find_expected_terminals(states, table.end_states[start])
    keywords = _find_expected_keywords(table, states, terminals, table.end_states[start])
    return ExpectedTokens(tuple(tokens), terminals, keywords)


def _find_expected_keywords(
    table: LalrTable, states: Sequence[int], terminals: frozenset[str], end: int
) -> frozenset[str]:
    """Return the terminals that are keywords in the parser states `states`. If a name is also
    allowed, a word is a keyword only if it can be followed by a token that cannot follow a name.
    """
    keywords = terminals & {kind for text, kind in table.keywords.items() if text.isalpha()}
    if (name_states := table.simulate_shift(states, "NAME", end)) is None:
        return keywords
    name_followers = table.find_expected_terminals(name_states, end)
    return frozenset(
        kind
        for kind in keywords
        if (keyword_states := table.simulate_shift(states, kind, end)) is not None
        and table.find_expected_terminals(keyword_states, end) - name_followers
    )


def _run_parser(
    table: LalrTable, tokens: Sequence[Token], recovery_points: Sequence[int], start: str
) -> list[int] | None:
    """Return the parser states after `tokens`, or None if error recovery fails."""
    states, end = [table.start_states[start]], table.end_states[start]
    tried_points: set[int] = set()
    index = 0
    while index < len(tokens):
        next_states = table.simulate_shift(states, tokens[index].kind, end)
        if next_states is not None:
            states = next_states
            index += 1
            continue
        recovery_point = _find_next_recovery_point(recovery_points, index, tried_points)
        if recovery_point is None or start != FILE.symbol:
            return None
        tried_points.add(recovery_point)
        states, index = _compute_states_after_header(table, start), recovery_point
    return states


def _find_next_recovery_point(
    recovery_points: Sequence[int], index: int, tried_points: set[int]
) -> int | None:
    """Return the first untried recovery point from the token before `index` on, or None."""
    # the token before `index` may have been parsed as a name, as in `mask a = ⏎ graph f(…)`
    return next((n for n in recovery_points if n >= index - 1 and n not in tried_points), None)


def _compute_states_after_header(table: LalrTable, start: str) -> list[int]:
    """Return the parser states after the tokens of a valid file header."""
    states, end = [table.start_states[start]], table.end_states[start]
    for kind in HEADER_TERMINALS:
        states = table.simulate_shift(states, kind, end) or states
    return states
