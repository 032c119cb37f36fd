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

Dim: TypeAlias = ast.Expr | ast.EllipsisDims
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
}
"""The rules whose children are the fields of a node; the others have a function below."""


@register_rule("name")
@register_rule("field_name")
@register_rule("type_name")
@register_rule("component")
@register_rule("soft")
@register_rule("hard")
@register_rule("comparison")
@register_rule("otherwise")
def _only(b: AstBuilder, span: Span, child: object) -> object:
    return child


@register_rule("title")
@register_rule("word")
def _title(b: AstBuilder, span: Span, token: Token) -> ast.TextLiteral:
    text = b.unescape_string(token) if token.kind == "STRING" else token.text
    return ast.TextLiteral(text, span=span)


# --- expressions ----------------------------------------------------------------------


@register_rule("dotted")
def _dotted(b: AstBuilder, span: Span, *parts: Token) -> ast.Name:
    return ast.Name(".".join(t.text for t in parts), span=span)


@register_rule("dotted_path")
def _dotted_path(b: AstBuilder, span: Span, *parts: Token) -> ast.WeightName:
    return ast.WeightName(".".join(t.text for t in parts), span=span)


@register_rule("reference")
def _reference(b: AstBuilder, span: Span, name: ast.Name) -> ast.Name:
    lower = name.path.lower()
    # `True`, `NULL`, `yes`: names that nothing can have, see `AstBuilder.bound`
    meant = FOREIGN_LITERALS.get(lower, lower if lower in LITERAL_WORDS else name.path)
    if meant != name.path:
        b.report_error(
            "E0105",
            f"`{name.path}` is not a value here; {format_suggestion(meant)}",
            span,
            f"write `{meant}`",
            "the literals are `true`, `false` and `none`",
        )
    return name


@register_rule("group")
def _group(b: AstBuilder, span: Span, inner: ast.Expr) -> ast.Expr:
    # parentheses are not a node, but belong to the underlined span
    return replace(inner, span=span)


@register_rule("call")
def _call(b: AstBuilder, span: Span, function: ast.Name, *arguments: Argument | None) -> ast.Call:
    given: tuple[Argument, ...] = drop_absent_options(arguments)
    args = tuple(a for a in given if not isinstance(a, ast.Option))
    options = tuple(a for a in given if isinstance(a, ast.Option))
    b.report_duplicates("the option", options)
    for before, late in pairwise(given):
        behind = isinstance(before, ast.Option) and not isinstance(late, ast.Option)
        if behind and late.span is not None:
            b.report_error(
                "E0119",
                "an input after an option",
                late.span,
                "this has no name",
                "inputs come first, options (`name=value`) after them",
            )
            break
    return ast.Call(function, args, options, span=span)


@register_rule("weighted")
def _weighted(b: AstBuilder, span: Span, call: ast.Call, weights: ast.WeightName) -> ast.Call:
    return replace(call, weights=weights, span=span)


@register_rule("binary")
@register_rule("power")
def _binary(b: AstBuilder, span: Span, left: ast.Expr, op: Token, right: ast.Expr) -> ast.Binary:
    return ast.Binary(op.text, left, right, span=span, op_span=b.span(op))


@register_rule("chain_first")
def _chain_first(
    b: AstBuilder, span: Span, left: ast.Expr, op: Token, right: ast.Expr
) -> ast.Compare:
    return ast.Compare((op.text,), (left, right), span=span)


@register_rule("chain_more")
def _chain_more(
    b: AstBuilder, span: Span, chain: ast.Compare, op: Token, right: ast.Expr
) -> ast.Compare:
    # `0 <= i < n` is one node with two operators, not a comparison of a boolean
    return ast.Compare((*chain.ops, op.text), (*chain.operands, right), span=span)


@register_rule("record_of")
def _record_of(
    b: AstBuilder, span: Span, *children: ast.Option | Token | None
) -> ast.RecordLiteral:
    # the tokens are the braces
    fields = tuple(f for f in children if isinstance(f, ast.Option))
    b.report_duplicates("the field", fields)
    return ast.RecordLiteral(fields, span=span)


# --- types ----------------------------------------------------------------------------


@register_rule("plain_type")
def _plain_type(
    b: AstBuilder, span: Span, name: Token, dims: tuple[Dim, ...] | None, optional: Token | None
) -> ast.TypeName:
    return ast.TypeName(name=name.text, dims=dims, optional=optional is not None, span=span)


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


@register_rule("sided_type")
def _sided_type(b: AstBuilder, span: Span, kind: ast.TypeName, side: Token | None) -> ast.TypeName:
    return kind if side is None else replace(kind, side=side.text, span=span)
