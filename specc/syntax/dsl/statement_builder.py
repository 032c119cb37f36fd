"""Build statements, and the sections `reading`, `weights`, `generate`, `stream` and
`quantize`, from grammar rules.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from specc.diagnostics.source import Span
from specc.syntax import ast
from specc.syntax.comments import CommentedBody
from specc.syntax.dsl.ast_builder import AstBuilder, drop_absent_options, register_rule
from specc.syntax.dsl.lexer import Token

T = TypeVar("T", bound=ast.Commentable)
RepeatHeader = tuple[Token, ast.Expr]
"""`i in layers`."""
ScanHeader = tuple[list[Token], tuple[ast.Expr, ...]]
"""`y, m in ys, ms`."""
Statements = CommentedBody[ast.Statement]


def build_braced_body(b: AstBuilder, opened: Token, rest: Sequence[T | Token]) -> CommentedBody[T]:
    """What stands between braces, with its comments. `rest` is what follows the opening
    one; its last is the closing one.
    """
    closed = rest[-1]
    assert isinstance(closed, Token)
    children = [n for n in rest if not isinstance(n, Token)]
    return b.attacher.body(children, b.span(opened).end, b.span(closed).start)


def make_trailing_comment(text: str) -> ast.Comments:
    """The remarks of what has a comment behind its first line, or none."""
    return ast.Comments(behind=text)


def collect_unique_names(b: AstBuilder, tokens: Sequence[Token] | None) -> tuple[str, ...]:
    """A list of names, none twice."""
    tokens = tokens or ()
    b.twice("the name", ((t.text, b.span(t)) for t in tokens))
    return tuple(b.bound(t) for t in tokens)


@register_rule("let")
def _let(b: AstBuilder, span: Span, targets: tuple[ast.Target, ...], value: ast.Expr) -> ast.Let:
    return ast.Let(targets, value, span=span)


@register_rule("targets")
def _targets(b: AstBuilder, span: Span, *targets: ast.Target) -> tuple[ast.Target, ...]:
    b.twice("the name", ((t.name, t.span) for t in targets))
    return targets


@register_rule("target")
def _target(b: AstBuilder, span: Span, name: Token, kind: ast.TypeName | None) -> ast.Target:
    # `_` says nothing about the type, in a list of types where each needs a place
    kind = None if kind == ast.TypeName(name="_") else kind
    return ast.Target(b.bound(name), kind, span=span)


@register_rule("repeat")
def _repeat(
    b: AstBuilder,
    span: Span,
    head: RepeatHeader,
    under: ast.WeightName | None,
    collect: list[Token] | None,
    opened: Token,
    *rest: ast.Statement | Token,
) -> ast.Repeat:
    body: Statements = build_braced_body(b, opened, rest)
    variable, over = head
    return ast.Repeat(
        variable=b.bound(variable),
        over=over,
        under=under,
        collect=collect_unique_names(b, collect),
        body=body.children,
        remarks=make_trailing_comment(body.behind),
        end=body.end,
        span=span,
    )


@register_rule("repeat_head")
def _repeat_head(b: AstBuilder, span: Span, variable: Token, over: ast.Expr) -> RepeatHeader:
    return variable, over


@register_rule("scan")
def _scan(
    b: AstBuilder,
    span: Span,
    head: ScanHeader | None,
    along: ast.Expr | None,
    carry: list[Token] | None,
    collect: list[Token] | None,
    reverse: Token | None,
    keep: ast.Expr | None,
    until: ast.Expr | None,
    opened: Token,
    *rest: ast.Statement | Token,
) -> ast.Scan:
    body: Statements = build_braced_body(b, opened, rest)
    variables, over = head or ([], ())
    if head is None:
        report_unbounded_scan(b, until.span if until else span)
    else:
        check_scan_targets(b, variables, over)
    return ast.Scan(
        variables=collect_unique_names(b, variables),
        over=over,
        along=along,
        carry=collect_unique_names(b, carry),
        collect=collect_unique_names(b, collect),
        body=body.children,
        reverse=reverse is not None,
        keep=keep,
        until=until,
        remarks=make_trailing_comment(body.behind),
        end=body.end,
        span=span,
    )


def report_unbounded_scan(b: AstBuilder, span: Span | None) -> None:
    """Note a scan that says neither what it walks over nor how often it turns."""
    if span is not None:
        b.fault("E0728", "this loop has no bound", span, UNBOUNDED_SCAN_LABEL, UNBOUNDED_SCAN_HELP)


UNBOUNDED_SCAN_LABEL = "nothing says how often it turns at most"
UNBOUNDED_SCAN_HELP = "say how often at most: `scan step in 8 carry … until all(…) { … }`"


def check_scan_targets(b: AstBuilder, variables: Sequence[Token], over: Sequence[ast.Expr]) -> None:
    """Note a scan whose names and sequences do not pair up."""
    last = over[-1].span
    if len(variables) != len(over) and last is not None:
        b.fault(
            "E0120",
            f"{len(variables)} names run over {len(over)} sequences",
            b.span(variables[0]).to(last),
            "these do not pair up",
            "write as many names before `in` as sequences after it: `scan x, y in xs, ys`",
        )


@register_rule("scan_head")
def _scan_head(
    b: AstBuilder, span: Span, variables: list[Token], over: tuple[ast.Expr, ...]
) -> ScanHeader:
    return variables, over


@register_rule("names")
def _names(b: AstBuilder, span: Span, *names: Token) -> list[Token]:
    return list(names)


@register_rule("exprs")
def _exprs(b: AstBuilder, span: Span, *values: ast.Expr) -> tuple[ast.Expr, ...]:
    return values


@register_rule("when")
def _when(
    b: AstBuilder, span: Span, condition: ast.Expr, body: Statements, otherwise: Statements | None
) -> ast.When:
    other, else_end, else_behind = otherwise or CommentedBody((), (), "")
    if else_behind:  # behind the brace of an `else` that is empty
        else_end = (else_behind, *else_end)
    return ast.When(
        condition=condition,
        body=body.children,
        otherwise=other,
        remarks=make_trailing_comment(body.behind),
        end=body.end,
        else_end=else_end,
        span=span,
    )


@register_rule("body")
def _body(b: AstBuilder, span: Span, opened: Token, *rest: ast.Statement | Token) -> Statements:
    return build_braced_body(b, opened, rest)


@register_rule("otherwise")
def _otherwise(b: AstBuilder, span: Span, body: Statements) -> Statements:
    if not body.behind or not body.children:
        return body
    # a `when` has no place for what stands behind `else {`: it goes above what follows
    first, *others = body.children
    remarks = replace(first.remarks, before=(body.behind, *first.remarks.before))
    return CommentedBody((replace(first, remarks=remarks), *others), body.end, "")


@register_rule("return")
def _return(b: AstBuilder, span: Span, values: tuple[ast.Expr, ...]) -> ast.Return:
    return ast.Return(values, span=span)


@register_rule("reading")
def _reading(
    b: AstBuilder, span: Span, opened: Token, *rest: ast.ReadingEntry | Token
) -> ast.Reading:
    body: CommentedBody[ast.ReadingEntry] = build_braced_body(b, opened, rest)
    reads = [e for e in body.children if isinstance(e, ast.InputReading)]
    shows = [e for e in body.children if isinstance(e, ast.ResultDisplay)]
    # an input and a result may have one name
    b.twice("the input", ((e.name, e.span) for e in reads))
    b.twice("the result", ((e.name, e.span) for e in shows))
    return ast.Reading(body.children, make_trailing_comment(body.behind), body.end, span=span)


@register_rule("reads")
def _reads(b: AstBuilder, span: Span, name: Token, value: ast.Expr) -> ast.InputReading:
    return ast.InputReading(b.bound(name), value, span=span)


@register_rule("shows")
def _shows(b: AstBuilder, span: Span, name: Token, value: ast.Expr) -> ast.ResultDisplay:
    return ast.ResultDisplay(b.bound(name), value, span=span)


@register_rule("weights")
def _weights(
    b: AstBuilder, span: Span, opened: Token, *rest: ast.WeightRule | Token
) -> ast.Weights:
    body: CommentedBody[ast.WeightRule] = build_braced_body(b, opened, rest)
    return ast.Weights(body.children, make_trailing_comment(body.behind), body.end, span=span)


@register_rule("from_file")
def _from_file(b: AstBuilder, span: Span, path: Token) -> ast.WeightsFrom:
    return ast.WeightsFrom(b.unescape_string(path), span=span)


@register_rule("tie")
def _tie(
    b: AstBuilder,
    span: Span,
    name: ast.WeightName,
    source: ast.WeightName,
    condition: ast.Expr | None,
) -> ast.Tie:
    return ast.Tie(name, source, condition, span=span)


@register_rule("load")
def _load(
    b: AstBuilder, span: Span, name: ast.WeightName, value: ast.Expr, condition: ast.Expr | None
) -> ast.Load:
    return ast.Load(name, value, condition, span=span)


@register_rule("ignore")
def _ignore(
    b: AstBuilder, span: Span, name: ast.WeightName, condition: ast.Expr | None
) -> ast.Ignore:
    return ast.Ignore(name, condition, span=span)


@register_rule("share")
def _share(
    b: AstBuilder, span: Span, name: ast.WeightName, condition: ast.Expr | None
) -> ast.Share:
    return ast.Share(name, condition, span=span)


@register_rule("generate")
def _generate(
    b: AstBuilder,
    span: Span,
    name: Token,
    growing: Token,
    source: Token,
    opened: Token,
    *rest: ast.Setting | Token,
) -> ast.Generate:
    body: CommentedBody[ast.Setting] = build_braced_body(b, opened, rest)
    b.twice("the setting", ((s.name, s.span) for s in body.children))
    for setting in body.children:
        if setting.name in ("of", "from") and setting.span is not None:
            b.fault(
                "E0116",
                f"`{setting.name}` is given twice",
                setting.span,
                "again here",
                f"`{setting.name} …` stands in the first line of `generate`",
            )
    return ast.Generate(
        name=b.bound(name),
        growing=growing.text,
        source=source.text,
        settings=body.children,
        remarks=make_trailing_comment(body.behind),
        end=body.end,
        span=span,
    )


@register_rule("stream")
def _stream(b: AstBuilder, span: Span, source: Token, growing: Token) -> ast.Stream:
    return ast.Stream(source.text, growing.text, span=span)


@register_rule("setting")
def _setting(b: AstBuilder, span: Span, name: Token, value: ast.Expr) -> ast.Setting:
    return ast.Setting(b.bound(name), value, span=span)


@register_rule("quantize")
def _quantize(
    b: AstBuilder, span: Span, opened: Token, *rest: ast.QuantizeEntry | Token
) -> ast.Quantize:
    body: CommentedBody[ast.QuantizeEntry] = build_braced_body(b, opened, rest)
    b.twice("the word", ((e.name, e.span) for e in body.children))
    return ast.Quantize(body.children, make_trailing_comment(body.behind), body.end, span=span)


@register_rule("rounds")
def _rounds(
    b: AstBuilder,
    span: Span,
    name: ast.TextLiteral,
    values: ast.TextLiteral | tuple[ast.TextLiteral, ...],
) -> ast.QuantizeEntry:
    several = values if isinstance(values, tuple) else (values,)
    return ast.QuantizeEntry(name.value, several, span=span)


@register_rule("words")
def _words(
    b: AstBuilder, span: Span, *values: ast.TextLiteral | None
) -> tuple[ast.TextLiteral, ...]:
    return drop_absent_options(values)


@register_rule("word")
def _word(b: AstBuilder, span: Span, token: Token) -> ast.TextLiteral:
    text = b.unescape_string(token) if token.kind == "STRING" else token.text
    return ast.TextLiteral(text, span=span)


@register_rule("below_zero")
def _below_zero(b: AstBuilder, span: Span, minus: Token, number: Token) -> ast.TextLiteral:
    # no word has such a value: it is read so that the word can say which it has
    return ast.TextLiteral(minus.text + number.text, span=span)
