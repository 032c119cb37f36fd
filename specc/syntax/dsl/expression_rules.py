"""Build expressions and types from grammar rules."""

from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

from specc.diagnostics.source import Span
from specc.diagnostics.suggest import format_suggestion
from specc.syntax import ast
from specc.syntax.dsl.ast_builder import (
    FOREIGN_LITERALS,
    LITERAL_WORDS,
    RULE_CALLBACKS,
    AstBuilder,
    NodeRule,
    TupleRule,
    drop_absent_options,
    register_rule,
)
from specc.syntax.dsl.lexer import Token

Argument: TypeAlias = ast.Expr | ast.Option

RULE_CALLBACKS |= {
    "number": NodeRule(ast.NumberLiteral, "text"),
    "text": NodeRule(ast.TextLiteral, "value"),
    "quoted_path": NodeRule(ast.WeightName, "text"),
    "option": NodeRule(ast.Option, "name value"),
    "record_entry": NodeRule(ast.Option, "name value"),
    "index": NodeRule(ast.Index, "base *items"),
    "slice": NodeRule(ast.Slice, "start stop step"),
    "rest": NodeRule(ast.EllipsisDims),
    "unary": NodeRule(ast.Unary, "op operand"),
    "choice": NodeRule(ast.Conditional, "then condition otherwise"),
    "list_of": NodeRule(ast.ListLiteral, "*items"),
    "list_for": NodeRule(ast.ListComprehension, "item variable iterable"),
    "list_type": NodeRule(ast.TypeName, "element_type optional", name="list"),
    "pair_type": NodeRule(ast.TypeName, "element_type optional", name="pair"),
    "dims_of": TupleRule(),
    "types": TupleRule(),
    "exprs": TupleRule(),
    **dict.fromkeys(
        ("name", "field_name", "type_name", "component", "soft", "hard", "comparison", "otherwise"),
        lambda b, span, child: child,
    ),
    "dotted": lambda b, span, *parts: ast.Name(".".join(t.text for t in parts), span=span),
    "dotted_path": lambda b, span, *parts: ast.WeightName(
        ".".join(t.text for t in parts), span=span
    ),
    # parentheses are not a node, but belong to the underlined span
    "group": lambda b, span, inner: replace(inner, span=span),
    "weighted": lambda b, span, call, weights: replace(call, weights=weights, span=span),
    **dict.fromkeys(
        ("binary", "power"),
        lambda b, span, left, op, right: ast.Binary(
            op.text, left, right, span=span, op_span=b.span(op)
        ),
    ),
    "chain_first": lambda b, span, left, op, right: ast.Compare(
        (op.text,), (left, right), span=span
    ),
    # `0 <= i < n` is one node with two operators, not a comparison of a boolean
    "chain_more": lambda b, span, chain, op, right: ast.Compare(
        (*chain.ops, op.text), (*chain.operands, right), span=span
    ),
    "plain_type": lambda b, span, name, dims, optional: ast.TypeName(
        name=name.text, dims=dims, optional=optional is not None, span=span
    ),
    "sided_type": lambda b, span, kind, side: (
        kind if side is None else replace(kind, side=side.text, span=span)
    ),
}


@register_rule("title")
@register_rule("word")
def _title(b: AstBuilder, span: Span, token: Token) -> ast.TextLiteral:
    text = b.unescape_string(token) if token.kind == "STRING" else token.text
    return ast.TextLiteral(text, span=span)


@register_rule("reference")
def _reference(b: AstBuilder, span: Span, name: ast.Name) -> ast.Name:
    lower = name.path.lower()
    # `True`, `NULL`, `yes`: `AstBuilder.check_bound_name` lets nothing have these names
    literal = FOREIGN_LITERALS.get(lower, lower if lower in LITERAL_WORDS else name.path)
    if literal != name.path:
        b.report_error(
            "E0105",
            f"`{name.path}` is not a value here; {format_suggestion(literal)}",
            span,
            f"write `{literal}`",
            "the literals are `true`, `false` and `none`",
        )
    return name


@register_rule("call")
def _call(b: AstBuilder, span: Span, function: ast.Name, *arguments: Argument | None) -> ast.Call:
    present: tuple[Argument, ...] = drop_absent_options(arguments)
    args = tuple(a for a in present if not isinstance(a, ast.Option))
    options = tuple(a for a in present if isinstance(a, ast.Option))
    b.report_duplicates("the option", options)
    for before, after in pairwise(present):
        is_late = isinstance(before, ast.Option) and not isinstance(after, ast.Option)
        if is_late and after.span is not None:
            b.report_error(
                "E0119",
                "an input after an option",
                after.span,
                "this has no name",
                "inputs come first, options (`name=value`) after them",
            )
            break
    return ast.Call(function, args, options, span=span)


@register_rule("record_of")
def _record_of(
    b: AstBuilder, span: Span, *children: ast.Option | Token | None
) -> ast.RecordLiteral:
    # the tokens are the braces
    fields = tuple(f for f in children if isinstance(f, ast.Option))
    b.report_duplicates("the field", fields)
    return ast.RecordLiteral(fields, span=span)


@register_rule("choice_type")
def _choice_type(
    b: AstBuilder, span: Span, *children: ast.TextLiteral | Token | None
) -> ast.TypeName:
    titles = [t for t in children if isinstance(t, ast.TextLiteral)]
    b.report_duplicates("the choice", titles)
    optional = isinstance(children[-1], Token)  # the `?`, else None
    names = tuple(t.value for t in titles)
    return ast.TypeName(name="choice", optional=optional, names=names, span=span)


@register_rule("record_type")
def _record_type(b: AstBuilder, span: Span, *children: ast.Field | Token | None) -> ast.TypeName:
    fields = tuple(f for f in children if isinstance(f, ast.Field))
    b.report_duplicates("the field", fields)
    optional = isinstance(children[-1], Token)  # the `?`, else None
    return ast.TypeName(name="record", optional=optional, fields=fields, span=span)
