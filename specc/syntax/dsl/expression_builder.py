"""Build expressions and types from grammar rules."""

from dataclasses import replace
from itertools import pairwise

from specc.diagnostics.source import Span
from specc.diagnostics.suggest import format_suggestion
from specc.syntax import ast
from specc.syntax.dsl.ast_builder import (
    FOREIGN_LITERALS,
    LITERAL_WORDS,
    AstBuilder,
    drop_absent_options,
    register_rule,
)
from specc.syntax.dsl.lexer import Token

Argument = ast.Expr | ast.Option
Subscript = ast.Expr | ast.Slice | ast.EllipsisDims


@register_rule("number")
def _number(b: AstBuilder, span: Span, token: Token) -> ast.NumberLiteral:
    return ast.NumberLiteral(token.text, span=span)


@register_rule("text")
def _text(b: AstBuilder, span: Span, token: Token) -> ast.TextLiteral:
    return ast.TextLiteral(b.unescape_string(token), span=span)


@register_rule("dotted")
def _dotted(b: AstBuilder, span: Span, *parts: Token) -> ast.Name:
    return ast.Name(".".join(t.text for t in parts), span=span)


@register_rule("reference")
def _reference(b: AstBuilder, span: Span, name: ast.Name) -> ast.Name:
    lower = name.path.lower()
    # `True`, `NULL`, `yes`: a name that nothing can have, see `Build.bound`
    meant = FOREIGN_LITERALS.get(lower, lower if lower in LITERAL_WORDS else name.path)
    if meant != name.path:
        b.fault(
            "E0105",
            f"`{name.path}` is not a value here; {format_suggestion(meant)}",
            span,
            f"write `{meant}`",
            "the values without quotes are `true`, `false` and `none`",
        )
    return name


@register_rule("group")
def _group(b: AstBuilder, span: Span, inner: ast.Expr) -> ast.Expr:
    # parentheses are no node of the tree, but belong to what is underlined
    return replace(inner, span=span)


@register_rule("call")
def _call(b: AstBuilder, span: Span, function: ast.Name, *arguments: Argument | None) -> ast.Call:
    given: tuple[Argument, ...] = drop_absent_options(arguments)
    args = tuple(a for a in given if not isinstance(a, ast.Option))
    options = tuple(a for a in given if isinstance(a, ast.Option))
    b.twice("the option", ((o.name, o.name_span) for o in options))
    late = next((a for o, a in pairwise(given) if _is_late(o, a)), None)
    if late is not None and late.span is not None:
        b.fault(
            "E0119",
            "an input after an option",
            late.span,
            "this has no name",
            "inputs come first, options (`name=value`) after them",
        )
    return ast.Call(function, args, options, span=span)


def _is_late(before: Argument, argument: Argument) -> bool:
    """Whether an input stands behind an option."""
    return isinstance(before, ast.Option) and not isinstance(argument, ast.Option)


@register_rule("option")
@register_rule("record_entry")
def _option(b: AstBuilder, span: Span, name: Token, value: ast.Expr) -> ast.Option:
    return ast.Option(b.bound(name), value, span=span, name_span=b.span(name))


@register_rule("weighted")
def _weighted(b: AstBuilder, span: Span, call: ast.Call, weights: ast.WeightName) -> ast.Call:
    return replace(call, weights=weights, span=span)


@register_rule("dotted_path")
def _dotted_path(b: AstBuilder, span: Span, *parts: Token) -> ast.WeightName:
    return ast.WeightName(".".join(t.text for t in parts), span=span)


@register_rule("quoted_path")
def _quoted_path(b: AstBuilder, span: Span, token: Token) -> ast.WeightName:
    return ast.WeightName(b.unescape_string(token), span=span)


@register_rule("index")
def _index(b: AstBuilder, span: Span, base: ast.Expr, *items: Subscript | None) -> ast.Index:
    return ast.Index(base, drop_absent_options(items), span=span)


@register_rule("slice")
def _slice(
    b: AstBuilder, span: Span, start: ast.Expr | None, stop: ast.Expr | None, step: ast.Expr | None
) -> ast.Slice:
    return ast.Slice(start, stop, step, span=span)


@register_rule("rest")
def _rest(b: AstBuilder, span: Span) -> ast.EllipsisDims:
    return ast.EllipsisDims(span=span)


@register_rule("unary")
def _unary(b: AstBuilder, span: Span, op: Token, operand: ast.Expr) -> ast.Unary:
    return ast.Unary(op.text, operand, span=span)


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
    # `0 <= i < n` is one node with two operators, not a comparison of a truth value
    return ast.Compare((*chain.ops, op.text), (*chain.operands, right), span=span)


@register_rule("choice")
def _choice(
    b: AstBuilder, span: Span, then: ast.Expr, condition: ast.Expr, otherwise: ast.Expr
) -> ast.Conditional:
    return ast.Conditional(then, condition, otherwise, span=span)


@register_rule("list_of")
def _list_of(b: AstBuilder, span: Span, *items: ast.Expr | None) -> ast.ListLiteral:
    return ast.ListLiteral(drop_absent_options(items), span=span)


@register_rule("list_for")
def _list_for(
    b: AstBuilder, span: Span, item: ast.Expr, variable: Token, over: ast.Expr
) -> ast.ListComprehension:
    return ast.ListComprehension(item, b.bound(variable), over, span=span)


@register_rule("record_of")
def _record_of(
    b: AstBuilder, span: Span, *children: ast.Option | Token | None
) -> ast.RecordLiteral:
    # the tokens are the braces
    fields = tuple(f for f in children if isinstance(f, ast.Option))
    b.twice("the field", ((f.name, f.name_span) for f in fields))
    return ast.RecordLiteral(fields, span=span)


@register_rule("plain_type")
def _plain_type(
    b: AstBuilder,
    span: Span,
    name: Token,
    dims: tuple[ast.Expr | ast.EllipsisDims, ...] | None,
    optional: Token | None,
) -> ast.TypeName:
    return ast.TypeName(name=name.text, dims=dims, optional=optional is not None, span=span)


@register_rule("dims_of")
def _dims_of(
    b: AstBuilder, span: Span, *dims: ast.Expr | ast.EllipsisDims | None
) -> tuple[ast.Expr | ast.EllipsisDims, ...]:
    return drop_absent_options(dims)


@register_rule("list_type")
def _list_type(b: AstBuilder, span: Span, of: ast.TypeName, optional: Token | None) -> ast.TypeName:
    return ast.TypeName(name="list", optional=optional is not None, of=of, span=span)


@register_rule("pair_type")
def _pair_type(b: AstBuilder, span: Span, of: ast.TypeName, optional: Token | None) -> ast.TypeName:
    return ast.TypeName(name="pair", optional=optional is not None, of=of, span=span)


@register_rule("choice_type")
def _choice_type(
    b: AstBuilder, span: Span, *children: ast.TextLiteral | Token | None
) -> ast.TypeName:
    titles = [t for t in children if isinstance(t, ast.TextLiteral)]
    b.twice("the choice", ((t.value, t.span) for t in titles))
    return ast.TypeName(
        name="choice",
        optional=isinstance(children[-1], Token),  # the `?`, else None
        names=tuple(t.value for t in titles),
        span=span,
    )


@register_rule("record_type")
def _record_type(b: AstBuilder, span: Span, *children: ast.Field | Token | None) -> ast.TypeName:
    fields = tuple(f for f in children if isinstance(f, ast.Field))
    b.twice("the field", ((f.name, f.span) for f in fields))
    return ast.TypeName(
        name="record",
        optional=isinstance(children[-1], Token),  # the `?`, else None
        fields=fields,
        span=span,
    )


@register_rule("sided_type")
def _sided_type(b: AstBuilder, span: Span, kind: ast.TypeName, side: Token | None) -> ast.TypeName:
    return kind if side is None else replace(kind, side=side.text, span=span)


@register_rule("types")
def _types(b: AstBuilder, span: Span, *types: ast.TypeName) -> tuple[ast.TypeName, ...]:
    return types
