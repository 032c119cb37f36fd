"""Grammar rules of expressions and types → tree."""

from dataclasses import replace
from itertools import pairwise

from specc.lang import tree
from specc.lang.dsl.build import MEANT, VALUES, Build, present, rule
from specc.lang.dsl.lexer import Token
from specc.text.source import Span
from specc.text.suggest import suggestion

Argument = tree.Expr | tree.Option
Subscript = tree.Expr | tree.Slice | tree.Rest


@rule("number")
def _number(b: Build, span: Span, token: Token) -> tree.Num:
    return tree.Num(token.text, span=span)


@rule("text")
def _text(b: Build, span: Span, token: Token) -> tree.Text:
    return tree.Text(b.unquoted(token), span=span)


@rule("dotted")
def _dotted(b: Build, span: Span, *parts: Token) -> tree.Name:
    return tree.Name(".".join(t.text for t in parts), span=span)


@rule("reference")
def _reference(b: Build, span: Span, name: tree.Name) -> tree.Name:
    lower = name.path.lower()
    # `True`, `NULL`, `yes`: a name that nothing can have, see `Build.bound`
    meant = MEANT.get(lower, lower if lower in VALUES else name.path)
    if meant != name.path:
        b.fault(
            "E0105",
            f"`{name.path}` is not a value here; {suggestion(meant)}",
            span,
            f"write `{meant}`",
            "the values without quotes are `true`, `false` and `none`",
        )
    return name


@rule("group")
def _group(b: Build, span: Span, inner: tree.Expr) -> tree.Expr:
    # parentheses are no node of the tree, but belong to what is underlined
    return replace(inner, span=span)


@rule("call")
def _call(
    b: Build, span: Span, function: tree.Name, *arguments: Argument | None
) -> tree.Call:
    given: tuple[Argument, ...] = present(arguments)
    args = tuple(a for a in given if not isinstance(a, tree.Option))
    options = tuple(a for a in given if isinstance(a, tree.Option))
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
    return tree.Call(function, args, options, span=span)


def _is_late(before: Argument, argument: Argument) -> bool:
    """Whether an input stands behind an option."""
    return isinstance(before, tree.Option) and not isinstance(argument, tree.Option)


@rule("option")
@rule("record_entry")
def _option(b: Build, span: Span, name: Token, value: tree.Expr) -> tree.Option:
    return tree.Option(b.bound(name), value, span=span, name_span=b.span(name))


@rule("weighted")
def _weighted(
    b: Build, span: Span, call: tree.Call, weights: tree.WeightName
) -> tree.Call:
    return replace(call, weights=weights, span=span)


@rule("dotted_path")
def _dotted_path(b: Build, span: Span, *parts: Token) -> tree.WeightName:
    return tree.WeightName(".".join(t.text for t in parts), span=span)


@rule("quoted_path")
def _quoted_path(b: Build, span: Span, token: Token) -> tree.WeightName:
    return tree.WeightName(b.unquoted(token), span=span)


@rule("index")
def _index(
    b: Build, span: Span, base: tree.Expr, *items: Subscript | None
) -> tree.Index:
    return tree.Index(base, present(items), span=span)


@rule("slice")
def _slice(
    b: Build,
    span: Span,
    start: tree.Expr | None,
    stop: tree.Expr | None,
    step: tree.Expr | None,
) -> tree.Slice:
    return tree.Slice(start, stop, step, span=span)


@rule("rest")
def _rest(b: Build, span: Span) -> tree.Rest:
    return tree.Rest(span=span)


@rule("unary")
def _unary(b: Build, span: Span, op: Token, operand: tree.Expr) -> tree.Unary:
    return tree.Unary(op.text, operand, span=span)


@rule("binary")
@rule("power")
def _binary(
    b: Build, span: Span, left: tree.Expr, op: Token, right: tree.Expr
) -> tree.Binary:
    return tree.Binary(op.text, left, right, span=span, op_span=b.span(op))


@rule("chain_first")
def _chain_first(
    b: Build, span: Span, left: tree.Expr, op: Token, right: tree.Expr
) -> tree.Compare:
    return tree.Compare((op.text,), (left, right), span=span)


@rule("chain_more")
def _chain_more(
    b: Build, span: Span, chain: tree.Compare, op: Token, right: tree.Expr
) -> tree.Compare:
    # `0 <= i < n` is one node with two operators, not a comparison of a truth value
    return tree.Compare((*chain.ops, op.text), (*chain.operands, right), span=span)


@rule("choice")
def _choice(
    b: Build, span: Span, then: tree.Expr, condition: tree.Expr, otherwise: tree.Expr
) -> tree.Choice:
    return tree.Choice(then, condition, otherwise, span=span)


@rule("list_of")
def _list_of(b: Build, span: Span, *items: tree.Expr | None) -> tree.ListOf:
    return tree.ListOf(present(items), span=span)


@rule("list_for")
def _list_for(
    b: Build, span: Span, item: tree.Expr, variable: Token, over: tree.Expr
) -> tree.ListFor:
    return tree.ListFor(item, b.bound(variable), over, span=span)


@rule("record_of")
def _record_of(
    b: Build, span: Span, *children: tree.Option | Token | None
) -> tree.RecordOf:
    # the tokens are the braces
    fields = tuple(f for f in children if isinstance(f, tree.Option))
    b.twice("the field", ((f.name, f.name_span) for f in fields))
    return tree.RecordOf(fields, span=span)


@rule("plain_type")
def _plain_type(
    b: Build,
    span: Span,
    name: Token,
    dims: tuple[tree.Expr | tree.Rest, ...] | None,
    optional: Token | None,
) -> tree.TypeName:
    return tree.TypeName(
        name=name.text, dims=dims, optional=optional is not None, span=span
    )


@rule("dims_of")
def _dims_of(
    b: Build, span: Span, *dims: tree.Expr | tree.Rest | None
) -> tuple[tree.Expr | tree.Rest, ...]:
    return present(dims)


@rule("list_type")
def _list_type(
    b: Build, span: Span, of: tree.TypeName, optional: Token | None
) -> tree.TypeName:
    return tree.TypeName(name="list", optional=optional is not None, of=of, span=span)


@rule("pair_type")
def _pair_type(
    b: Build, span: Span, of: tree.TypeName, optional: Token | None
) -> tree.TypeName:
    return tree.TypeName(name="pair", optional=optional is not None, of=of, span=span)


@rule("choice_type")
def _choice_type(
    b: Build, span: Span, *children: tree.Text | Token | None
) -> tree.TypeName:
    titles = [t for t in children if isinstance(t, tree.Text)]
    b.twice("the choice", ((t.value, t.span) for t in titles))
    return tree.TypeName(
        name="choice",
        optional=isinstance(children[-1], Token),  # the `?`, else None
        names=tuple(t.value for t in titles),
        span=span,
    )


@rule("record_type")
def _record_type(
    b: Build, span: Span, *children: tree.Field | Token | None
) -> tree.TypeName:
    fields = tuple(f for f in children if isinstance(f, tree.Field))
    b.twice("the field", ((f.name, f.span) for f in fields))
    return tree.TypeName(
        name="record",
        optional=isinstance(children[-1], Token),  # the `?`, else None
        fields=fields,
        span=span,
    )


@rule("sided_type")
def _sided_type(
    b: Build, span: Span, kind: tree.TypeName, side: Token | None
) -> tree.TypeName:
    return kind if side is None else replace(kind, side=side.text, span=span)


@rule("types")
def _types(b: Build, span: Span, *types: tree.TypeName) -> tuple[tree.TypeName, ...]:
    return types
