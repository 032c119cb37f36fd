"""Build the items of a file (`config`, `block`, `graph`, definitions, …) from grammar rules."""

from dataclasses import replace

from specc.diagnostics.source import Span
from specc.syntax import ast
from specc.syntax.comments import CommentedBody
from specc.syntax.dsl.ast_builder import AstBuilder, drop_absent_options, register_rule
from specc.syntax.dsl.lexer import Token
from specc.syntax.dsl.statement_builder import build_braced_body, make_trailing_comment

Params = tuple[ast.BlockParameter, ...]
DefinitionHeader = tuple[Token, tuple[ast.DefinitionParameter, ...] | None]
"""A name, and its parameters where there are parentheses."""


@register_rule("use")
def _use(
    b: AstBuilder,
    span: Span,
    files: tuple[str, ...],
    name: Token,
    keys: tuple[str, ...] | None,
    under: ast.WeightName | None,
) -> ast.Use:
    file, *others = files
    return ast.Use(
        path=file,
        name=b.bound(name),
        others=tuple(others),
        sources=keys or (),
        under=under,
        span=span,
    )


@register_rule("files")
def _files(b: AstBuilder, span: Span, *names: Token | None) -> tuple[str, ...]:
    return tuple(b.unescape_string(name) for name in drop_absent_options(names))


@register_rule("keys")
def _keys(b: AstBuilder, span: Span, *names: Token | None) -> tuple[str, ...]:
    return tuple(b.unescape_string(name) for name in drop_absent_options(names))


@register_rule("dims")
def _dims(b: AstBuilder, span: Span, *names: ast.DimName) -> ast.Dims:
    b.twice("the length", ((d.name, d.span) for d in names))
    return ast.Dims(names, span=span)


@register_rule("dim_name")
def _dim_name(b: AstBuilder, span: Span, name: Token, bound: Token | None) -> ast.DimName:
    least = 0
    if bound is not None and bound.text.isdigit():
        least = int(bound.text)
    elif bound is not None:  # `>= 1.5`
        b.fault(
            "E0108", "the least length is not a whole number", b.span(bound), "here", "write `>= 1`"
        )
    return ast.DimName(b.bound(name), least, span=span)


@register_rule("require")
def _require(b: AstBuilder, span: Span, condition: ast.Expr, because: Token | None) -> ast.Require:
    return ast.Require(condition, b.text(because), span=span)


# --- config ---------------------------------------------------------------------------


@register_rule("config")
def _config(b: AstBuilder, span: Span, opened: Token, *rest: ast.ConfigEntry | Token) -> ast.Config:
    body: CommentedBody[ast.ConfigEntry] = build_braced_body(b, opened, rest)
    expected = [e for e in body.children if isinstance(e, ast.Expect)]
    named = [e for e in body.children if isinstance(e, ast.Field | ast.Assign)]
    b.twice("the value", ((e.name, e.span) for e in named))
    b.twice("the expectation", ((e.key, e.span) for e in expected))
    # One list, as YAML can have a key but once.
    unread = [e for e in body.children if isinstance(e, ast.IgnoredKeys)]
    keys = dict.fromkeys(key for e in unread for key in e.keys)
    whole = ", ".join(f'"{key}"' for key in keys)
    b.twice(
        "the list",
        (("ignore", e.span) for e in unread),
        f"one list names them all: `ignore {whole}`",
    )
    return ast.Config(body.children, make_trailing_comment(body.behind), body.end, span=span)


@register_rule("field")
def _field(
    b: AstBuilder,
    span: Span,
    name: Token,
    kind: ast.TypeName,
    sources: tuple[ast.Expr, ...] | None,
    default: ast.Expr | None,
    doc: Token | None,
) -> ast.Field:
    remarks = ast.NO_COMMENTS
    if kind.name == "record" and kind.span and not kind.optional and kind.of is None:
        # a record's fields stand in lines of their own, with comments of their own;
        # those that find no field are kept above the record
        start = b.fragment.source.text.find("{", kind.span.start, kind.span.end) + 1
        body = b.attacher.body(kind.fields, start, kind.span.end - 1)
        kind = replace(kind, fields=body.children)
        remarks = ast.Comments(before=((body.behind,) if body.behind else ()) + body.end)
    return ast.Field(
        name=b.bound(name),
        type=kind,
        sources=sources or (),
        default=default,
        doc=b.text(doc),
        remarks=remarks,
        span=span,
    )


@register_rule("sources")
def _sources(b: AstBuilder, span: Span, *sources: ast.Expr) -> tuple[ast.Expr, ...]:
    return sources


@register_rule("expect")
def _expect(b: AstBuilder, span: Span, key: Token, *values: ast.TextLiteral | None) -> ast.Expect:
    texts = tuple(t.value for t in drop_absent_options(values))
    return ast.Expect(b.unescape_string(key), texts, span=span)


@register_rule("unread")
def _unread(b: AstBuilder, span: Span, *keys: Token) -> ast.IgnoredKeys:
    return ast.IgnoredKeys(tuple(b.unescape_string(key) for key in keys), span=span)


@register_rule("assign")
def _assign(b: AstBuilder, span: Span, name: Token, value: ast.Expr) -> ast.Assign:
    return ast.Assign(b.bound(name), value, span=span)


# --- blocks, graphs and definitions ---------------------------------------------------


@register_rule("block")
def _block(
    b: AstBuilder,
    span: Span,
    name: Token,
    params: Params | None,
    results: Params,
    opened: Token,
    doc: Token | None,
    *rest: ast.Statement | Token,
) -> ast.Block:
    head = build_block_header(b, name, params, results)
    body: CommentedBody[ast.Statement] = build_braced_body(b, opened, rest)
    return replace(
        head,
        body=body.children,
        doc=b.text(doc),
        remarks=make_trailing_comment(body.behind),
        end=body.end,
        span=span,
    )


@register_rule("graph")
def _graph(
    b: AstBuilder,
    span: Span,
    name: Token,
    params: Params | None,
    results: Params,
    where: tuple[ast.Equation, ...] | None,
    made_for: tuple[str, ...] | None,
    opened: Token,
    doc: Token | None,
    *rest: ast.Statement | Token,
) -> ast.Block:
    # a graph is a block that models are made of, and may tie lengths to each other
    head = build_block_header(b, name, params, results)
    b.twice("the length", ((e.name, e.span) for e in where or ()))
    body: CommentedBody[ast.Statement] = build_braced_body(b, opened, rest)
    return replace(
        head,
        kind="graph",
        where=where or (),
        made_for=made_for or (),
        body=body.children,
        doc=b.text(doc),
        remarks=make_trailing_comment(body.behind),
        end=body.end,
        span=span,
    )


def build_block_header(
    b: AstBuilder, name: Token, params: Params | None, results: Params
) -> ast.Block:
    """A block without its body; what it is called, takes and gives is named once."""
    params = params or ()
    b.twice("the input", ((p.name, p.span) for p in params))
    b.twice("the result", ((r.name, r.span) for r in results))
    return ast.Block(
        kind="block",
        name=b.bound(name),
        params=params,
        results=results,
        body=(),
        name_span=b.span(name),
    )


@register_rule("params")
@register_rule("named_results")
def _params(b: AstBuilder, span: Span, *params: ast.BlockParameter) -> Params:
    return params


@register_rule("param")
def _param(
    b: AstBuilder, span: Span, name: Token, kind: ast.TypeName, default: ast.Expr | None
) -> ast.BlockParameter:
    return ast.BlockParameter(b.bound(name), kind, default, span=span)


@register_rule("result")
def _result(b: AstBuilder, span: Span, name: Token, kind: ast.TypeName) -> ast.BlockParameter:
    return ast.BlockParameter(b.bound(name), kind, span=span)


@register_rule("one_result")
def _one_result(b: AstBuilder, span: Span, kind: ast.TypeName) -> Params:
    return (ast.BlockParameter("", kind, span=span),)


@register_rule("made_for")
def _made_for(b: AstBuilder, span: Span, *names: ast.TextLiteral | None) -> tuple[str, ...]:
    return tuple(name.value for name in drop_absent_options(names))


@register_rule("where")
def _where(b: AstBuilder, span: Span, *equations: ast.Equation) -> tuple[ast.Equation, ...]:
    return equations


@register_rule("equation")
def _equation(b: AstBuilder, span: Span, name: Token, value: ast.Expr) -> ast.Equation:
    return ast.Equation(b.bound(name), value, span=span)


@register_rule("definition")
def _definition(
    b: AstBuilder,
    span: Span,
    kind: Token,
    head: DefinitionHeader,
    doc: Token | None,
    value: ast.Expr,
) -> ast.Definition:
    name, params = head
    return ast.Definition(
        kind=kind.text,
        name=b.bound(name),
        params=params,
        value=value,
        doc=b.text(doc),
        span=span,
        name_span=b.span(name),
    )


@register_rule("definition_head")
def _definition_head(
    b: AstBuilder, span: Span, name: Token, params: tuple[ast.DefinitionParameter, ...] | None
) -> DefinitionHeader:
    return name, params


@register_rule("parameters")
def _parameters(
    b: AstBuilder, span: Span, *children: ast.DefinitionParameter | None
) -> tuple[ast.DefinitionParameter, ...]:
    parameters = drop_absent_options(children)
    b.twice("the parameter", ((p.name, p.span) for p in parameters))
    return parameters


@register_rule("parameter")
def _parameter(
    b: AstBuilder, span: Span, name: Token, kind: ast.TypeName | None, default: ast.Expr | None
) -> ast.DefinitionParameter:
    return ast.DefinitionParameter(b.bound(name), kind, default, span=span)


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
        b.fault(
            "E0113",
            f"version {version.text} of the language is not known",
            b.span(version),
            "here",
            "this compiler reads version 1: `specc 1`",
        )
    head_end = _find_header_end(b, model, doc, extends)
    # the head has four places for comments: above it, behind its first line, between its
    # lines, and behind its last; the tree has two, so the last two move above
    above = b.attacher.take(0, span.start)
    line = b.fragment.text.find("\n", span.start, head_end)
    first = b.attacher.take(span.start, line) if line >= 0 else ()
    above += first[1:] + b.attacher.take(span.start, head_end)
    body = b.attacher.body(items, head_end, len(b.fragment.source.text))
    after = [*first[:1], *([body.behind] if body.behind else [])]
    return ast.File(
        version=1,
        model=model.value,
        doc=b.text(doc),
        extends=extends.value if extends else "",
        items=body.children,
        remarks=ast.Comments((*above, *after[1:]), after[0] if after else ""),
        end=body.end,
        span=span,
        extends_span=extends.span if extends else None,
    )


def _find_header_end(
    b: AstBuilder, model: ast.TextLiteral, doc: Token | None, extends: ast.TextLiteral | None
) -> int:
    """Where the lines that are no items end."""
    last = model.span
    if extends is not None:
        last = extends.span
    elif doc is not None:
        last = b.span(doc)
    assert last is not None, "what was read has a span"
    return last.end
