"""Grammar rules of items, the parts of a file → tree, with their comments."""

from dataclasses import replace

from specc.lang import tree
from specc.lang.dsl.build import Build, present, rule
from specc.lang.dsl.build_statement import behind, braced
from specc.lang.dsl.lexer import Token
from specc.lang.remarks import Body
from specc.text.source import Span

Params = tuple[tree.Param, ...]
DefinitionHead = tuple[Token, tuple[tree.Parameter, ...] | None]
"""A name, and its parameters where there are parentheses."""


@rule("use")
def _use(
    b: Build,
    span: Span,
    files: tuple[str, ...],
    name: Token,
    keys: tuple[str, ...] | None,
    under: tree.WeightName | None,
) -> tree.Use:
    file, *others = files
    return tree.Use(
        path=file,
        name=b.bound(name),
        others=tuple(others),
        sources=keys or (),
        under=under,
        span=span,
    )


@rule("files")
def _files(b: Build, span: Span, *names: Token | None) -> tuple[str, ...]:
    return tuple(b.unquoted(name) for name in present(names))


@rule("keys")
def _keys(b: Build, span: Span, *names: Token | None) -> tuple[str, ...]:
    return tuple(b.unquoted(name) for name in present(names))


@rule("dims")
def _dims(b: Build, span: Span, *names: tree.DimName) -> tree.Dims:
    b.twice("the length", ((d.name, d.span) for d in names))
    return tree.Dims(names, span=span)


@rule("dim_name")
def _dim_name(b: Build, span: Span, name: Token, bound: Token | None) -> tree.DimName:
    least = 0
    if bound is not None and bound.text.isdigit():
        least = int(bound.text)
    elif bound is not None:  # `>= 1.5`
        b.fault(
            "E0108",
            "the least length is not a whole number",
            b.span(bound),
            "here",
            "write `>= 1`",
        )
    return tree.DimName(b.bound(name), least, span=span)


@rule("require")
def _require(
    b: Build, span: Span, condition: tree.Expr, because: Token | None
) -> tree.Require:
    return tree.Require(condition, b.text(because), span=span)


# --- config ---------------------------------------------------------------------------


@rule("config")
def _config(
    b: Build, span: Span, opened: Token, *rest: tree.ConfigEntry | Token
) -> tree.Config:
    body: Body[tree.ConfigEntry] = braced(b, opened, rest)
    expected = [e for e in body.children if isinstance(e, tree.Expect)]
    named = [e for e in body.children if isinstance(e, tree.Field | tree.Assign)]
    b.twice("the value", ((e.name, e.span) for e in named))
    b.twice("the expectation", ((e.key, e.span) for e in expected))
    # One list, as YAML can have a key but once.
    unread = [e for e in body.children if isinstance(e, tree.Unread)]
    keys = dict.fromkeys(key for e in unread for key in e.keys)
    whole = ", ".join(f'"{key}"' for key in keys)
    b.twice(
        "the list",
        (("ignore", e.span) for e in unread),
        f"one list names them all: `ignore {whole}`",
    )
    return tree.Config(body.children, behind(body.behind), body.end, span=span)


@rule("field")
def _field(
    b: Build,
    span: Span,
    name: Token,
    kind: tree.TypeName,
    sources: tuple[tree.Expr, ...] | None,
    default: tree.Expr | None,
    doc: Token | None,
) -> tree.Field:
    remarks = tree.NONE
    if kind.name == "record" and kind.span and not kind.optional and kind.of is None:
        # a record's fields stand in lines of their own, with comments of their own;
        # those that find no field are kept above the record
        start = b.fragment.source.text.find("{", kind.span.start, kind.span.end) + 1
        body = b.attacher.body(kind.fields, start, kind.span.end - 1)
        kind = replace(kind, fields=body.children)
        remarks = tree.Remarks(
            before=((body.behind,) if body.behind else ()) + body.end
        )
    return tree.Field(
        name=b.bound(name),
        type=kind,
        sources=sources or (),
        default=default,
        doc=b.text(doc),
        remarks=remarks,
        span=span,
    )


@rule("sources")
def _sources(b: Build, span: Span, *sources: tree.Expr) -> tuple[tree.Expr, ...]:
    return sources


@rule("expect")
def _expect(b: Build, span: Span, key: Token, *values: tree.Text | None) -> tree.Expect:
    texts = tuple(t.value for t in present(values))
    return tree.Expect(b.unquoted(key), texts, span=span)


@rule("unread")
def _unread(b: Build, span: Span, *keys: Token) -> tree.Unread:
    return tree.Unread(tuple(b.unquoted(key) for key in keys), span=span)


@rule("assign")
def _assign(b: Build, span: Span, name: Token, value: tree.Expr) -> tree.Assign:
    return tree.Assign(b.bound(name), value, span=span)


# --- blocks, graphs and definitions ---------------------------------------------------


@rule("block")
def _block(
    b: Build,
    span: Span,
    name: Token,
    params: Params | None,
    results: Params,
    opened: Token,
    doc: Token | None,
    *rest: tree.Statement | Token,
) -> tree.Block:
    head = block_head(b, name, params, results)
    body: Body[tree.Statement] = braced(b, opened, rest)
    return replace(
        head,
        body=body.children,
        doc=b.text(doc),
        remarks=behind(body.behind),
        end=body.end,
        span=span,
    )


@rule("graph")
def _graph(
    b: Build,
    span: Span,
    name: Token,
    params: Params | None,
    results: Params,
    where: tuple[tree.Equation, ...] | None,
    made_for: tuple[str, ...] | None,
    opened: Token,
    doc: Token | None,
    *rest: tree.Statement | Token,
) -> tree.Block:
    # a graph is a block that models are made of, and may tie lengths to each other
    head = block_head(b, name, params, results)
    b.twice("the length", ((e.name, e.span) for e in where or ()))
    body: Body[tree.Statement] = braced(b, opened, rest)
    return replace(
        head,
        kind="graph",
        where=where or (),
        made_for=made_for or (),
        body=body.children,
        doc=b.text(doc),
        remarks=behind(body.behind),
        end=body.end,
        span=span,
    )


def block_head(
    b: Build, name: Token, params: Params | None, results: Params
) -> tree.Block:
    """A block without its body; what it is called, takes and gives is named once."""
    params = params or ()
    b.twice("the input", ((p.name, p.span) for p in params))
    b.twice("the result", ((r.name, r.span) for r in results))
    return tree.Block(
        kind="block",
        name=b.bound(name),
        params=params,
        results=results,
        body=(),
        name_span=b.span(name),
    )


@rule("params")
@rule("named_results")
def _params(b: Build, span: Span, *params: tree.Param) -> Params:
    return params


@rule("param")
def _param(
    b: Build, span: Span, name: Token, kind: tree.TypeName, default: tree.Expr | None
) -> tree.Param:
    return tree.Param(b.bound(name), kind, default, span=span)


@rule("result")
def _result(b: Build, span: Span, name: Token, kind: tree.TypeName) -> tree.Param:
    return tree.Param(b.bound(name), kind, span=span)


@rule("one_result")
def _one_result(b: Build, span: Span, kind: tree.TypeName) -> Params:
    return (tree.Param("", kind, span=span),)


@rule("made_for")
def _made_for(b: Build, span: Span, *names: tree.Text | None) -> tuple[str, ...]:
    return tuple(name.value for name in present(names))


@rule("where")
def _where(
    b: Build, span: Span, *equations: tree.Equation
) -> tuple[tree.Equation, ...]:
    return equations


@rule("equation")
def _equation(b: Build, span: Span, name: Token, value: tree.Expr) -> tree.Equation:
    return tree.Equation(b.bound(name), value, span=span)


@rule("definition")
def _definition(
    b: Build,
    span: Span,
    kind: Token,
    head: DefinitionHead,
    doc: Token | None,
    value: tree.Expr,
) -> tree.Definition:
    name, params = head
    return tree.Definition(
        kind=kind.text,
        name=b.bound(name),
        params=params,
        value=value,
        doc=b.text(doc),
        span=span,
        name_span=b.span(name),
    )


@rule("definition_head")
def _definition_head(
    b: Build, span: Span, name: Token, params: tuple[tree.Parameter, ...] | None
) -> DefinitionHead:
    return name, params


@rule("parameters")
def _parameters(
    b: Build, span: Span, *children: tree.Parameter | None
) -> tuple[tree.Parameter, ...]:
    parameters = present(children)
    b.twice("the parameter", ((p.name, p.span) for p in parameters))
    return parameters


@rule("parameter")
def _parameter(
    b: Build,
    span: Span,
    name: Token,
    kind: tree.TypeName | None,
    default: tree.Expr | None,
) -> tree.Parameter:
    return tree.Parameter(b.bound(name), kind, default, span=span)


# --- the file -------------------------------------------------------------------------


@rule("extends")
def _extends(b: Build, span: Span, title: tree.Text) -> tree.Text:
    return replace(title, span=span)


@rule("file")
def _file(
    b: Build,
    span: Span,
    version: Token,
    model: tree.Text,
    doc: Token | None,
    extends: tree.Text | None,
    *items: tree.Item,
) -> tree.File:
    if version.text != "1":
        b.fault(
            "E0113",
            f"version {version.text} of the language is not known",
            b.span(version),
            "here",
            "this compiler reads version 1: `specc 1`",
        )
    head_end = _head_end(b, model, doc, extends)
    # the head has four places for comments: above it, behind its first line, between its
    # lines, and behind its last; the tree has two, so the last two move above
    above = b.attacher.take(0, span.start)
    line = b.fragment.text.find("\n", span.start, head_end)
    first = b.attacher.take(span.start, line) if line >= 0 else ()
    above += first[1:] + b.attacher.take(span.start, head_end)
    body = b.attacher.body(items, head_end, len(b.fragment.source.text))
    after = [*first[:1], *([body.behind] if body.behind else [])]
    return tree.File(
        version=1,
        model=model.value,
        doc=b.text(doc),
        extends=extends.value if extends else "",
        items=body.children,
        remarks=tree.Remarks((*above, *after[1:]), after[0] if after else ""),
        end=body.end,
        span=span,
        extends_span=extends.span if extends else None,
    )


def _head_end(
    b: Build, model: tree.Text, doc: Token | None, extends: tree.Text | None
) -> int:
    """Where the lines that are no items end."""
    last = model.span
    if extends is not None:
        last = extends.span
    elif doc is not None:
        last = b.span(doc)
    assert last is not None, "what was read has a span"
    return last.end
