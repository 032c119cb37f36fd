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
"""A name, its parameters (None without parentheses), and the span of the name."""

REPEAT = NodeRule(ast.Repeat, "variable iterable under collect {body}")
SCAN = NodeRule(ast.Scan, "variables sequences along carry collect reverse keep until {body}")
CONFIG = NodeRule(ast.Config, "{entries}")
FIELD = NodeRule(ast.Field, "name type sources default doc")
READING = NodeRule(ast.Reading, "{entries}")
GENERATE = NodeRule(ast.Generate, "name input_name source {settings}", "the setting")
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
    # `_` leaves a result untyped in a list of types, where each result needs an entry
    "target": lambda b, span, name, kind: ast.Target(
        b.check_bound_name(name), None if kind == ast.TypeName(name="_") else kind, span=span
    ),
    "repeat": lambda b, span, head, *children: REPEAT(b, span, *head, *children),
    "body": lambda b, span, opener, *rest: b.build_body(opener, rest),
    "one_result": lambda b, span, kind: (ast.BlockParameter("", kind, span=span),),
    "made_for": lambda b, span, *names: tuple(n.value for n in drop_absent_options(names)),
    "definition_head": lambda b, span, name, params: (
        b.check_bound_name(name),
        params,
        b.span(name),
    ),
    "expect": lambda b, span, key, *values: ast.Expect(
        b.unescape_string(key), tuple(t.value for t in drop_absent_options(values)), span=span
    ),
    "rounds": lambda b, span, name, values: ast.QuantizeEntry(
        name.value, values if isinstance(values, tuple) else (values,), span=span
    ),
    # no setting has a negative value: it is parsed so that the error can list the allowed ones
    "below_zero": lambda b, span, minus, number: ast.TextLiteral(
        minus.text + number.text, span=span
    ),
    "extends": lambda b, span, title: replace(title, span=span),
}


@register_rule("scan")
def _scan(b: AstBuilder, span: Span, head: ScanHeader | None, *children: object) -> ast.Scan:
    node = SCAN(b, span, *(head or (None, None)), *children)
    location = node.until.span if node.until else span
    if head is None and location is not None:
        b.report_error(
            "E0728",
            "this loop has no bound",
            location,
            "the maximum number of iterations is missing",
            "add the maximum: `scan step in 8 carry … until all(…) { … }`",
        )
    return node


@register_rule("scan_head")
def _scan_head(
    b: AstBuilder, span: Span, variables: tuple[str, ...], sequences: tuple[ast.Expr, ...]
) -> ScanHeader:
    if len(variables) != len(sequences):
        b.report_error(
            "E0120",
            f"{len(variables)} names run over {len(sequences)} sequences",
            span,
            "these do not pair up",
            "write as many names before `in` as sequences after it: `scan x, y in xs, ys`",
        )
    return variables, sequences


Statements: TypeAlias = CommentedBody[ast.Statement]


@register_rule("when")
def _when(
    b: AstBuilder, span: Span, condition: ast.Expr, body: Statements, otherwise: Statements | None
) -> ast.When:
    # the tree has no place for a comment after `else {`
    else_body, else_end = move_header_comment(otherwise) if otherwise else ((), ())
    return ast.When(
        condition=condition,
        body=body.children,
        otherwise=else_body,
        comments=ast.Comments(trailing=body.trailing),
        end=body.end,
        else_end=else_end,
        span=span,
    )


@register_rule("use")
def _use(
    b: AstBuilder,
    span: Span,
    files: tuple[str, ...],
    name: Token,
    keys: tuple[str, ...] | None,
    under: ast.WeightName | None,
) -> ast.Use:
    path, *alternatives = files
    return ast.Use(
        path=path,
        name=b.check_bound_name(name),
        alternatives=tuple(alternatives),
        sources=keys or (),
        under=under,
        span=span,
    )


@register_rule("dim_name")
def _dim_name(b: AstBuilder, span: Span, name: Token, bound: Token | None) -> ast.DimName:
    minimum = 0
    if bound is not None and bound.text.isdigit():
        minimum = int(bound.text)
    elif bound is not None:  # `>= 1.5`
        b.report_error(
            "E0108", "the minimum length is not an integer", b.span(bound), "here", "write `>= 1`"
        )
    return ast.DimName(b.check_bound_name(name), minimum, span=span)


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


@register_rule("config")
def _config(b: AstBuilder, span: Span, *children: object) -> ast.Config:
    node = CONFIG(b, span, *children)
    b.report_duplicates(
        "the value", (e for e in node.entries if isinstance(e, ast.Field | ast.Assign))
    )
    b.report_duplicates("the expectation", (e for e in node.entries if isinstance(e, ast.Expect)))
    # one list, as a YAML key can occur only once
    ignored = [e for e in node.entries if isinstance(e, ast.IgnoredKeys)]
    keys = ", ".join(f'"{key}"' for key in dict.fromkeys(key for e in ignored for key in e.keys))
    b.report_duplicates("the list", ignored, f"write one list: `ignore {keys}`")
    return node


@register_rule("field")
def _field(
    b: AstBuilder, span: Span, name: Token, kind: ast.TypeName, *others: object
) -> ast.Field:
    comments = ast.NO_COMMENTS
    if kind.name == "record" and kind.span and not kind.optional and kind.element_type is None:
        # fields of a record keep their own comments; its other comments move above the record
        start = b.fragment.source.text.find("{", kind.span.start, kind.span.end) + 1
        body = b.attacher.attach(kind.fields, start, kind.span.end - 1)
        kind = replace(kind, fields=body.children)
        comments = ast.Comments(leading=((body.trailing,) if body.trailing else ()) + body.end)
    node = FIELD(b, span, name, kind, *others)
    return replace(node, comments=comments)


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
