"""Grammar rules of expressions and types → tree."""

from dataclasses import replace
from typing import Any

from specc.lang import tree
from specc.lang.build import MEANT, Build, present, rule
from specc.lang.lexer import Token
from specc.text.source import Span


@rule("number")
def _number(b: Build, c: list[Any], span: Span) -> tree.Num:
    return tree.Num(c[0].text, span=span)


@rule("text")
def _text(b: Build, c: list[Any], span: Span) -> tree.Text:
    return tree.Text(b.unquoted(c[0]), span=span)


@rule("dotted")
def _dotted(b: Build, c: list[Any], span: Span) -> tree.Name:
    return tree.Name(".".join(t.text for t in c), span=span)


@rule("reference")
def _reference(b: Build, c: list[Any], span: Span) -> tree.Name:
    name: tree.Name = c[0]
    lower = name.path.lower()
    meant = MEANT.get(lower, lower if lower in ("true", "false", "none") else name.path)
    if meant != name.path:
        b.fault("E0105", f"`{name.path}` is not a value here; did you mean `{meant}`?", span,
                f"write `{meant}`", "the values without quotes are `true`, `false` and `none`")  # fmt: skip
    return name


@rule("group")
def _group(b: Build, c: list[Any], span: Span) -> Any:
    return replace(c[0], span=span)


@rule("call")
def _call(b: Build, c: list[Any], span: Span) -> tree.Call:
    given = present(c[1:])
    args = tuple(a for a in given if not isinstance(a, tree.Option))
    options = tuple(a for a in given if isinstance(a, tree.Option))
    b.twice("the option", ((o.name, o.name_span) for o in options))
    late = next((a for n, a in enumerate(given) if n and not isinstance(a, tree.Option)
                 and isinstance(given[n - 1], tree.Option)), None)  # fmt: skip
    if late is not None:
        b.fault("E0119", "an input after an option", late.span, "this has no name",
                "inputs come first, options (`name=value`) after them")  # fmt: skip
    return tree.Call(c[0], args, options, span=span)


@rule("option")
def _option(b: Build, c: list[Any], span: Span) -> tree.Option:
    return tree.Option(b.bound(c[0]), c[1], span=span, name_span=b.span(c[0]))


@rule("weighted")
def _weighted(b: Build, c: list[Any], span: Span) -> tree.Call:
    call: tree.Call = c[0]
    return replace(call, weights=c[1], span=span)


@rule("dotted_path")
def _dotted_path(b: Build, c: list[Any], span: Span) -> tree.WeightName:
    return tree.WeightName(".".join(t.text for t in c), span=span)


@rule("quoted_path")
def _quoted_path(b: Build, c: list[Any], span: Span) -> tree.WeightName:
    return tree.WeightName(b.unquoted(c[0]), span=span)


@rule("index")
def _index(b: Build, c: list[Any], span: Span) -> tree.Index:
    return tree.Index(c[0], tuple(present(c[1:])), span=span)


@rule("slice")
def _slice(b: Build, c: list[Any], span: Span) -> tree.Slice:
    return tree.Slice(c[0], c[1], span=span)


@rule("rest")
def _rest(b: Build, c: list[Any], span: Span) -> tree.Rest:
    return tree.Rest(span=span)


@rule("unary")
def _unary(b: Build, c: list[Any], span: Span) -> tree.Unary:
    return tree.Unary(c[0].text, c[1], span=span)


@rule("binary")
@rule("power")
def _binary(b: Build, c: list[Any], span: Span) -> tree.Binary:
    return tree.Binary(c[1].text, c[0], c[2], span=span, op_span=b.span(c[1]))


@rule("chain_first")
def _chain_first(b: Build, c: list[Any], span: Span) -> tree.Compare:
    return tree.Compare((c[1].text,), (c[0], c[2]), span=span)


@rule("chain_more")
def _chain_more(b: Build, c: list[Any], span: Span) -> tree.Compare:
    chain: tree.Compare = c[0]
    return tree.Compare((*chain.ops, c[1].text), (*chain.operands, c[2]), span=span)


@rule("choice")
def _choice(b: Build, c: list[Any], span: Span) -> tree.Choice:
    return tree.Choice(c[0], c[1], c[2], span=span)


@rule("list_of")
def _list_of(b: Build, c: list[Any], span: Span) -> tree.ListOf:
    return tree.ListOf(tuple(present(c)), span=span)


@rule("list_for")
def _list_for(b: Build, c: list[Any], span: Span) -> tree.ListFor:
    return tree.ListFor(c[0], b.bound(c[1]), c[2], span=span)


@rule("record_entry")
def _record_entry(b: Build, c: list[Any], span: Span) -> tree.Option:
    return tree.Option(b.bound(c[0]), c[1], span=span, name_span=b.span(c[0]))


@rule("record_of")
def _record_of(b: Build, c: list[Any], span: Span) -> tree.RecordOf:
    fields = tuple(f for f in c if isinstance(f, tree.Option))
    b.twice("the field", ((f.name, f.name_span) for f in fields))
    return tree.RecordOf(fields, span=span)


@rule("plain_type")
def _plain_type(b: Build, c: list[Any], span: Span) -> tree.TypeName:
    return tree.TypeName(c[0].text, c[1], c[2] is not None, span=span)


@rule("dims_of")
def _dims_of(b: Build, c: list[Any], span: Span) -> tuple[Any, ...]:
    return tuple(present(c))


@rule("list_type")
def _list_type(b: Build, c: list[Any], span: Span) -> tree.TypeName:
    return tree.TypeName("list", optional=c[1] is not None, of=c[0], span=span)


@rule("choice_type")
def _choice_type(b: Build, c: list[Any], span: Span) -> tree.TypeName:
    titles = [t for t in c if isinstance(t, tree.Text)]
    b.twice("the choice", ((t.value, t.span) for t in titles))
    return tree.TypeName("choice", optional=isinstance(c[-1], Token), names=tuple(t.value for t in titles), span=span)


@rule("record_type")
def _record_type(b: Build, c: list[Any], span: Span) -> tree.TypeName:
    fields = [f for f in c if isinstance(f, tree.Field)]
    b.twice("the field", ((f.name, f.span) for f in fields))
    optional = c[-1] is not None and c[-1].kind == "QUESTION"
    return tree.TypeName("record", optional=optional, fields=tuple(fields), span=span)


@rule("sided_type")
def _sided_type(b: Build, c: list[Any], span: Span) -> tree.TypeName:
    kind: tree.TypeName = c[0]
    return kind if c[1] is None else replace(kind, side=c[1].text, span=span)


@rule("types")
def _types(b: Build, c: list[Any], span: Span) -> tuple[tree.TypeName, ...]:
    return tuple(c)
