"""Grammar rules of statements → tree, and what stands between braces."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from specc.lang import tree
from specc.lang.dsl.build import Build, rule
from specc.lang.dsl.lexer import Token
from specc.lang.remarks import Body
from specc.text.source import Span

T = TypeVar("T", bound=tree.Remarked)
RepeatHead = tuple[Token, tree.Expr]
"""`i in layers`."""
ScanHead = tuple[list[Token], tuple[tree.Expr, ...]]
"""`y, m in ys, ms`."""
Statements = Body[tree.Statement]


def braced(b: Build, opened: Token, rest: Sequence[T | Token]) -> Body[T]:
    """What stands between braces, with its comments. `rest` is what follows the opening
    one; its last is the closing one.
    """
    closed = rest[-1]
    assert isinstance(closed, Token)
    children = [n for n in rest if not isinstance(n, Token)]
    return b.attacher.body(children, b.span(opened).end, b.span(closed).start)


def behind(text: str) -> tree.Remarks:
    """The remarks of what has a comment behind its first line, or none."""
    return tree.Remarks(behind=text)


def bound_names(b: Build, tokens: Sequence[Token] | None) -> tuple[str, ...]:
    """A list of names, none twice."""
    tokens = tokens or ()
    b.twice("the name", ((t.text, b.span(t)) for t in tokens))
    return tuple(b.bound(t) for t in tokens)


@rule("let")
def _let(
    b: Build, span: Span, targets: tuple[tree.Target, ...], value: tree.Expr
) -> tree.Let:
    return tree.Let(targets, value, span=span)


@rule("targets")
def _targets(b: Build, span: Span, *targets: tree.Target) -> tuple[tree.Target, ...]:
    b.twice("the name", ((t.name, t.span) for t in targets))
    return targets


@rule("target")
def _target(
    b: Build, span: Span, name: Token, kind: tree.TypeName | None
) -> tree.Target:
    # `_` says nothing about the type, in a list of types where each needs a place
    kind = None if kind == tree.TypeName(name="_") else kind
    return tree.Target(b.bound(name), kind, span=span)


@rule("repeat")
def _repeat(
    b: Build,
    span: Span,
    head: RepeatHead,
    under: tree.WeightName | None,
    collect: list[Token] | None,
    opened: Token,
    *rest: tree.Statement | Token,
) -> tree.Repeat:
    body: Statements = braced(b, opened, rest)
    variable, over = head
    return tree.Repeat(
        variable=b.bound(variable),
        over=over,
        under=under,
        collect=bound_names(b, collect),
        body=body.children,
        remarks=behind(body.behind),
        end=body.end,
        span=span,
    )


@rule("repeat_head")
def _repeat_head(b: Build, span: Span, variable: Token, over: tree.Expr) -> RepeatHead:
    return variable, over


@rule("scan")
def _scan(
    b: Build,
    span: Span,
    head: ScanHead | None,
    along: tree.Expr | None,
    carry: list[Token] | None,
    collect: list[Token] | None,
    reverse: Token | None,
    keep: tree.Expr | None,
    until: tree.Expr | None,
    opened: Token,
    *rest: tree.Statement | Token,
) -> tree.Scan:
    body: Statements = braced(b, opened, rest)
    variables, over = head or ([], ())
    if head is None:
        no_bound(b, until.span if until else span)
    else:
        check_paired(b, variables, over)
    return tree.Scan(
        variables=bound_names(b, variables),
        over=over,
        along=along,
        carry=bound_names(b, carry),
        collect=bound_names(b, collect),
        body=body.children,
        reverse=reverse is not None,
        keep=keep,
        until=until,
        remarks=behind(body.behind),
        end=body.end,
        span=span,
    )


def no_bound(b: Build, span: Span | None) -> None:
    """Note a scan that says neither what it walks over nor how often it turns."""
    if span is not None:
        b.fault("E0728", "this loop has no bound", span, UNBOUNDED, BOUND)


UNBOUNDED = "nothing says how often it turns at most"
BOUND = "say how often at most: `scan step in 8 carry … until all(…) { … }`"


def check_paired(
    b: Build, variables: Sequence[Token], over: Sequence[tree.Expr]
) -> None:
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


@rule("scan_head")
def _scan_head(
    b: Build, span: Span, variables: list[Token], over: tuple[tree.Expr, ...]
) -> ScanHead:
    return variables, over


@rule("names")
def _names(b: Build, span: Span, *names: Token) -> list[Token]:
    return list(names)


@rule("exprs")
def _exprs(b: Build, span: Span, *values: tree.Expr) -> tuple[tree.Expr, ...]:
    return values


@rule("when")
def _when(
    b: Build,
    span: Span,
    condition: tree.Expr,
    body: Statements,
    otherwise: Statements | None,
) -> tree.When:
    other, else_end, else_behind = otherwise or Body((), (), "")
    if else_behind:  # behind the brace of an `else` that is empty
        else_end = (else_behind, *else_end)
    return tree.When(
        condition=condition,
        body=body.children,
        otherwise=other,
        remarks=behind(body.behind),
        end=body.end,
        else_end=else_end,
        span=span,
    )


@rule("body")
def _body(
    b: Build, span: Span, opened: Token, *rest: tree.Statement | Token
) -> Statements:
    return braced(b, opened, rest)


@rule("otherwise")
def _otherwise(b: Build, span: Span, body: Statements) -> Statements:
    if not body.behind or not body.children:
        return body
    # a `when` has no place for what stands behind `else {`: it goes above what follows
    first, *others = body.children
    remarks = replace(first.remarks, before=(body.behind, *first.remarks.before))
    return Body((replace(first, remarks=remarks), *others), body.end, "")


@rule("return")
def _return(b: Build, span: Span, values: tuple[tree.Expr, ...]) -> tree.Return:
    return tree.Return(values, span=span)
