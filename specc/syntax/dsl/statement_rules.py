"""Build statements, items, sections and the file from grammar rules."""

from dataclasses import replace
from typing import TypeAlias

from specc.diagnostics.source import Span
from specc.syntax import ast
from specc.syntax.comments import CommentedBody, attach_file_comments, move_header_comment
from specc.syntax.dsl.ast_builder import (
    RULE_CALLBACKS,
    AstBuilder,
    NodeRule,
    TupleRule,
    drop_absent_options,
    register_rule,
)
from specc.syntax.dsl.lexer import Token

RepeatHeader: TypeAlias = tuple[str, ast.Expr]
"""`i in layers`."""
ScanHeader: TypeAlias = tuple[tuple[str, ...], tuple[ast.Expr, ...]]
"""`y, m in ys, ms`."""
DefinitionHeader: TypeAlias = tuple[str, tuple[ast.DefinitionParameter, ...] | None, Span]
"""A name, its parameters where there are parentheses, and the span of the name."""

RULE_CALLBACKS |= {
    # statements
    "let": NodeRule(ast.Let, "targets value"),
    "targets": TupleRule("the name"),
    "names": TupleRule("the name"),
    "repeat_head": TupleRule(),
    "return": NodeRule(ast.Return, "values"),
    "require": NodeRule(ast.Require, "condition because"),
    # config
    "assign": NodeRule(ast.Assign, "name value"),
    "sources": TupleRule(),
    "unread": NodeRule(ast.IgnoredKeys, "*keys"),
    # blocks, graphs and definitions
    "dims": NodeRule(ast.Dims, "*names", "the length"),
    "files": TupleRule(),
    "keys": TupleRule(),
    "block": NodeRule(ast.Block, "name params results {body}", kind="block"),
    "graph": NodeRule(ast.Block, "name params results where architectures {body}", kind="graph"),
    "params": TupleRule("the input"),
    "param": NodeRule(ast.BlockParameter, "name type default"),
    "named_results": TupleRule("the result"),
    "result": NodeRule(ast.BlockParameter, "name type"),
    "where": TupleRule("the length"),
    "equation": NodeRule(ast.Equation, "name value"),
    "parameters": TupleRule("the parameter"),
    "parameter": NodeRule(ast.DefinitionParameter, "name type default"),
    # other sections
    "reads": NodeRule(ast.InputReading, "name value"),
    "shows": NodeRule(ast.ResultDisplay, "name value"),
    "weights": NodeRule(ast.Weights, "{rules}"),
    "from_file": NodeRule(ast.WeightsFrom, "path"),
    "tie": NodeRule(ast.Tie, "name source condition"),
    "load": NodeRule(ast.Load, "name value condition"),
    "ignore": NodeRule(ast.Ignore, "name condition"),
    "share": NodeRule(ast.Share, "name condition"),
    "stream": NodeRule(ast.Stream, "source input_name"),
    "setting": NodeRule(ast.Setting, "name value"),
    "quantize": NodeRule(ast.Quantize, "{entries}", "the word"),
    "words": TupleRule(),
}
"""The rules whose children are the fields of a node; the others have a function below."""


# --- statements -----------------------------------------------------------------------


@register_rule("target")
def _target(b: AstBuilder, span: Span, name: Token, kind: ast.TypeName | None) -> ast.Target:
    # `_` gives no type, in a list of types where each needs one
    kind = None if kind == ast.TypeName(name="_") else kind
    return ast.Target(b.check_bound_name(name), kind, span=span)


REPEAT = NodeRule(ast.Repeat, "variable iterable under collect {body}")
SCAN = NodeRule(ast.Scan, "variables sequences along carry collect reverse keep until {body}")


@register_rule("repeat")
def _repeat(b: AstBuilder, span: Span, head: RepeatHeader, *children: object) -> ast.Repeat:
    return REPEAT(b, span, *head, *children)


@register_rule("scan")
def _scan(b: AstBuilder, span: Span, head: ScanHeader | None, *children: object) -> ast.Scan:
    node = SCAN(b, span, *(head or (None, None)), *children)
    at = node.until.span if node.until else span
    if head is None and at is not None:
        b.report_error(
            "E0728", "this loop has no bound", at, UNBOUNDED_SCAN_LABEL, UNBOUNDED_SCAN_HELP
        )
    return node


UNBOUNDED_SCAN_LABEL = "the maximum number of iterations is missing"
UNBOUNDED_SCAN_HELP = "add the maximum: `scan step in 8 carry … until all(…) { … }`"


@register_rule("scan_head")
def _scan_head(
    b: AstBuilder, span: Span, variables: tuple[str, ...], over: tuple[ast.Expr, ...]
) -> ScanHeader:
    if len(variables) != len(over):
        b.report_error(
            "E0120",
            f"{len(variables)} names run over {len(over)} sequences",
            span,
            "these do not pair up",
            "write as many names before `in` as sequences after it: `scan x, y in xs, ys`",
        )
    return variables, over


Statements: TypeAlias = CommentedBody[ast.Statement]


@register_rule("when")
def _when(
    b: AstBuilder, span: Span, condition: ast.Expr, body: Statements, otherwise: Statements | None
) -> ast.When:
    # there is no comment position after `else {`
    other, else_end = move_header_comment(otherwise) if otherwise else ((), ())
    return ast.When(
        condition=condition,
        body=body.children,
        otherwise=other,
        comments=ast.Comments(trailing=body.trailing),
        end=body.end,
        else_end=else_end,
        span=span,
    )


@register_rule("body")
def _body(b: AstBuilder, span: Span, opened: Token, *rest: object) -> object:
    return b.body(opened, rest)


# --- items ----------------------------------------------------------------------------


@register_rule("use")
def _use(
    b: AstBuilder,
    span: Span,
    files: tuple[str, ...],
    name: Token,
    keys: tuple[str, ...] | None,
    under: ast.WeightName | None,
) -> ast.Use:
    path, *others = files
    return ast.Use(
        path=path,
        name=b.check_bound_name(name),
        alternatives=tuple(others),
        sources=keys or (),
        under=under,
        span=span,
    )


@register_rule("dim_name")
def _dim_name(b: AstBuilder, span: Span, name: Token, bound: Token | None) -> ast.DimName:
    least = 0
    if bound is not None and bound.text.isdigit():
        least = int(bound.text)
    elif bound is not None:  # `>= 1.5`
        b.report_error(
            "E0108", "the minimum length is not an integer", b.span(bound), "here", "write `>= 1`"
        )
    return ast.DimName(b.check_bound_name(name), least, span=span)


@register_rule("one_result")
def _one_result(b: AstBuilder, span: Span, kind: ast.TypeName) -> tuple[ast.BlockParameter]:
    return (ast.BlockParameter("", kind, span=span),)


@register_rule("made_for")
def _made_for(b: AstBuilder, span: Span, *names: ast.TextLiteral | None) -> tuple[str, ...]:
    return tuple(name.value for name in drop_absent_options(names))


@register_rule("definition")
def _definition(
    b: AstBuilder,
    span: Span,
    kind: Token,
    head: DefinitionHeader,
    doc: Token | None,
    value: ast.Expr,
) -> ast.Definition:
    name, params, name_span = head
    return ast.Definition(
        kind=kind.text,
        name=name,
        params=params,
        value=value,
        doc=b.unescape_string(doc) if doc else "",
        span=span,
        name_span=name_span,
    )


@register_rule("definition_head")
def _definition_head(
    b: AstBuilder, span: Span, name: Token, params: tuple[ast.DefinitionParameter, ...] | None
) -> DefinitionHeader:
    return b.check_bound_name(name), params, b.span(name)


# --- sections -------------------------------------------------------------------------

CONFIG = NodeRule(ast.Config, "{entries}")
FIELD = NodeRule(ast.Field, "name type sources default doc")
READING = NodeRule(ast.Reading, "{entries}")
GENERATE = NodeRule(ast.Generate, "name input_name source {settings}", "the setting")


@register_rule("config")
def _config(b: AstBuilder, span: Span, *children: object) -> ast.Config:
    node = CONFIG(b, span, *children)
    b.report_duplicates(
        "the value", (e for e in node.entries if isinstance(e, ast.Field | ast.Assign))
    )
    b.report_duplicates("the expectation", (e for e in node.entries if isinstance(e, ast.Expect)))
    # one list, as a YAML key can occur only once
    unread = [e for e in node.entries if isinstance(e, ast.IgnoredKeys)]
    keys = ", ".join(f'"{key}"' for key in dict.fromkeys(key for e in unread for key in e.keys))
    b.report_duplicates("the list", unread, f"write one list: `ignore {keys}`")
    return node


@register_rule("field")
def _field(
    b: AstBuilder, span: Span, name: Token, kind: ast.TypeName, *others: object
) -> ast.Field:
    comments = ast.NO_COMMENTS
    if kind.name == "record" and kind.span and not kind.optional and kind.element_type is None:
        # a record's fields are on lines of their own, with comments of their own; other comments
        # are kept above the record
        start = b.fragment.source.text.find("{", kind.span.start, kind.span.end) + 1
        body = b.attacher.body(kind.fields, start, kind.span.end - 1)
        kind = replace(kind, fields=body.children)
        comments = ast.Comments(leading=((body.trailing,) if body.trailing else ()) + body.end)
    node = FIELD(b, span, name, kind, *others)
    return replace(node, comments=comments)


@register_rule("expect")
def _expect(b: AstBuilder, span: Span, key: Token, *values: ast.TextLiteral | None) -> ast.Expect:
    texts = tuple(t.value for t in drop_absent_options(values))
    return ast.Expect(b.unescape_string(key), texts, span=span)


@register_rule("reading")
def _reading(b: AstBuilder, span: Span, *children: object) -> ast.Reading:
    node = READING(b, span, *children)
    # an input and a result may have one name
    b.report_duplicates("the input", (e for e in node.entries if isinstance(e, ast.InputReading)))
    b.report_duplicates("the result", (e for e in node.entries if isinstance(e, ast.ResultDisplay)))
    return node


@register_rule("generate")
def _generate(b: AstBuilder, span: Span, *children: object) -> ast.Generate:
    node = GENERATE(b, span, *children)
    for setting in node.settings:
        if setting.name in ("of", "from") and setting.span is not None:
            b.report_error(
                "E0116",
                f"`{setting.name}` is duplicated",
                setting.span,
                "again here",
                f"`{setting.name} …` belongs in the first line of `generate`",
            )
    return node


@register_rule("rounds")
def _rounds(
    b: AstBuilder,
    span: Span,
    name: ast.TextLiteral,
    values: ast.TextLiteral | tuple[ast.TextLiteral, ...],
) -> ast.QuantizeEntry:
    several = values if isinstance(values, tuple) else (values,)
    return ast.QuantizeEntry(name.value, several, span=span)


@register_rule("below_zero")
def _below_zero(b: AstBuilder, span: Span, minus: Token, number: Token) -> ast.TextLiteral:
    # no setting has such a value: it is parsed so that the error can say which values are allowed
    return ast.TextLiteral(minus.text + number.text, span=span)


# --- the file -------------------------------------------------------------------------


@register_rule("extends")
def _extends(b: AstBuilder, span: Span, title: ast.TextLiteral) -> ast.TextLiteral:
    return replace(title, span=span)


@register_rule("file")
def _file(
    b: AstBuilder,
    span: Span,
    version: Token,
    model: ast.TextLiteral,
    doc: Token | None,
    extends: ast.TextLiteral | None,
    *items: ast.Item,
) -> ast.File:
    if version.text != "1":
        b.report_error(
            "E0113",
            f"unknown language version {version.text}",
            b.span(version),
            "here",
            "this compiler reads version 1: `specc 1`",
        )
    last = extends.span if extends else b.span(doc) if doc else model.span
    assert last is not None, "a parsed node has a span"
    file = ast.File(
        version=1,
        model=model.value,
        doc=b.unescape_string(doc) if doc else "",
        extends=extends.value if extends else "",
        items=items,
        span=span,
        extends_span=extends.span if extends else None,
    )
    return attach_file_comments(b.attacher, file, span.start, last.end)
