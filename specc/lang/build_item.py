"""Grammar rules of statements and items → tree, with their comments."""

from dataclasses import replace
from typing import Any

from specc.lang import tree
from specc.lang.build import Build, present, rule
from specc.lang.lexer import Token
from specc.text.source import Span


def names(b: Build, tokens: list[Token] | None) -> tuple[str, ...]:
    """A list of names, none twice."""
    tokens = tokens or []
    b.twice("the name", ((t.text, b.span(t)) for t in tokens))
    return tuple(b.bound(t) for t in tokens)


def braces(b: Build, c: list[Any]) -> tuple[list[Any], Any, tuple[str, ...], tree.Remarks]:
    """What stands between the braces of a rule, with its comments: `(before them, inside, end, remarks)`."""
    opened = next(n for n, t in enumerate(c) if isinstance(t, Token) and t.kind == "LBRACE")
    inside = present(c[opened + 1 : -1])
    children = [n for n in inside if not isinstance(n, Token)]
    start, stop = b.span(c[opened]).end, b.span(c[-1]).start
    dressed, end, behind = b.dresser.body(children, start, stop)
    return c[:opened], dressed, end, tree.Remarks(behind=behind)


@rule("use")
def _use(b: Build, c: list[Any], span: Span) -> tree.Use:
    return tree.Use(b.unquoted(c[0]), b.bound(c[1]), span=span)


# --- config ----------------------------------------------------------------------------------


@rule("config")
def _config(b: Build, c: list[Any], span: Span) -> tree.Config:
    _, entries, end, remarks = braces(b, c)
    named = [(e.key if isinstance(e, tree.Expect) else e.name, e) for e in entries]
    b.twice("the value", ((n, e.span) for n, e in named if not isinstance(e, tree.Expect)))
    b.twice("the expectation", ((n, e.span) for n, e in named if isinstance(e, tree.Expect)))
    return tree.Config(entries, remarks, end, span=span)


@rule("field")
def _field(b: Build, c: list[Any], span: Span) -> tree.Field:
    name, kind, sources, default, doc = c
    remarks = tree.NONE
    if kind.name == "record" and not kind.optional and kind.of is None:
        start = b.fragment.source.text.find("{", kind.span.start, kind.span.end) + 1
        fields, end, behind = b.dresser.body(kind.fields, start, kind.span.end - 1)
        kind = replace(kind, fields=fields)
        remarks = tree.Remarks(before=((behind,) if behind else ()) + end)
    return tree.Field(b.bound(name), kind, sources or (), default, b.text(doc), remarks, span=span)


@rule("sources")
def _sources(b: Build, c: list[Any], span: Span) -> tuple[Any, ...]:
    return tuple(c)


@rule("expect")
def _expect(b: Build, c: list[Any], span: Span) -> tree.Expect:
    return tree.Expect(b.unquoted(c[0]), tuple(t.value for t in c[1:] if isinstance(t, tree.Text)), span=span)


@rule("assign")
def _assign(b: Build, c: list[Any], span: Span) -> tree.Assign:
    return tree.Assign(b.bound(c[0]), c[1], span=span)


@rule("dims")
def _dims(b: Build, c: list[Any], span: Span) -> tree.Dims:
    b.twice("the length", ((d.name, d.span) for d in c))
    return tree.Dims(tuple(c), span=span)


@rule("dim_name")
def _dim_name(b: Build, c: list[Any], span: Span) -> tree.DimName:
    least = 0
    if c[1] is not None:
        if not c[1].text.isdigit():
            b.fault("E0108", "the least length is not a whole number", b.span(c[1]), "here", "write `>= 1`")
        else:
            least = int(c[1].text)
    return tree.DimName(b.bound(c[0]), least, span=span)


@rule("require")
def _require(b: Build, c: list[Any], span: Span) -> tree.Require:
    return tree.Require(c[0], b.text(c[1]), span=span)


# --- blocks and definitions ------------------------------------------------------------------


@rule("block")
@rule("graph")
def _block(b: Build, c: list[Any], span: Span) -> tree.Block:
    head, body, end, remarks = braces(b, c)
    opened = len(head)
    doc = c[opened + 1]
    name, params, results = head[:3]
    where = head[3] if len(head) > 3 else None
    kind = "graph" if len(head) > 3 else "block"
    params = params or ()
    b.twice("the input", ((p.name, p.span) for p in params))
    b.twice("the result", ((r.name, r.span) for r in results))
    b.twice("the length", ((e.name, e.span) for e in where or ()))
    return tree.Block(kind, b.bound(name), params, results, body, where or (), b.text(doc), remarks, end,
                      span=span, name_span=b.span(name))  # fmt: skip


@rule("params")
def _params(b: Build, c: list[Any], span: Span) -> tuple[Any, ...]:
    return tuple(c)


@rule("param")
def _param(b: Build, c: list[Any], span: Span) -> tree.Param:
    return tree.Param(b.bound(c[0]), c[1], c[2], span=span)


@rule("result")
def _result(b: Build, c: list[Any], span: Span) -> tree.Param:
    return tree.Param(b.bound(c[0]), c[1], span=span)


@rule("one_result")
def _one_result(b: Build, c: list[Any], span: Span) -> tuple[tree.Param, ...]:
    return (tree.Param("", c[0], span=span),)


@rule("named_results")
def _named_results(b: Build, c: list[Any], span: Span) -> tuple[tree.Param, ...]:
    return tuple(c)


@rule("where")
def _where(b: Build, c: list[Any], span: Span) -> tuple[tree.Equation, ...]:
    return tuple(c)


@rule("equation")
def _equation(b: Build, c: list[Any], span: Span) -> tree.Equation:
    return tree.Equation(b.bound(c[0]), c[1], span=span)


@rule("definition")
def _definition(b: Build, c: list[Any], span: Span) -> tree.Definition:
    kind, (name, params), doc, value = c
    return tree.Definition(kind.text, b.bound(name), params, value, b.text(doc), span=span, name_span=b.span(name))


@rule("definition_head")
def _definition_head(b: Build, c: list[Any], span: Span) -> tuple[Token, Any]:
    return c[0], c[1]


@rule("parameters")
def _parameters(b: Build, c: list[Any], span: Span) -> tuple[tree.Parameter, ...]:
    parameters = tuple(present(c))
    b.twice("the parameter", ((p.name, p.span) for p in parameters))
    return parameters


@rule("parameter")
def _parameter(b: Build, c: list[Any], span: Span) -> tree.Parameter:
    return tree.Parameter(b.bound(c[0]), c[1], c[2], span=span)


# --- reading, weights, generate --------------------------------------------------------------


@rule("reading")
def _reading(b: Build, c: list[Any], span: Span) -> tree.Reading:
    _, entries, end, remarks = braces(b, c)
    b.twice("the input", ((e.name, e.span) for e in entries if isinstance(e, tree.Reads)))
    b.twice("the result", ((e.name, e.span) for e in entries if isinstance(e, tree.Shows)))
    return tree.Reading(entries, remarks, end, span=span)


@rule("reads")
def _reads(b: Build, c: list[Any], span: Span) -> tree.Reads:
    return tree.Reads(b.bound(c[0]), c[1], span=span)


@rule("shows")
def _shows(b: Build, c: list[Any], span: Span) -> tree.Shows:
    return tree.Shows(b.bound(c[0]), c[1], span=span)


@rule("weights")
def _weights(b: Build, c: list[Any], span: Span) -> tree.Weights:
    _, rules, end, remarks = braces(b, c)
    return tree.Weights(rules, remarks, end, span=span)


@rule("from_file")
def _from_file(b: Build, c: list[Any], span: Span) -> tree.From:
    return tree.From(b.unquoted(c[0]), span=span)


@rule("tie")
def _tie(b: Build, c: list[Any], span: Span) -> tree.Tie:
    return tree.Tie(c[0], c[1], c[2], span=span)


@rule("load")
def _load(b: Build, c: list[Any], span: Span) -> tree.Load:
    return tree.Load(c[0], c[1], span=span)


@rule("ignore")
def _ignore(b: Build, c: list[Any], span: Span) -> tree.Ignore:
    return tree.Ignore(c[0], span=span)


@rule("share")
def _share(b: Build, c: list[Any], span: Span) -> tree.Share:
    return tree.Share(c[0], c[1], span=span)


@rule("generate")
def _generate(b: Build, c: list[Any], span: Span) -> tree.Generate:
    (name, growing, source), settings, end, remarks = braces(b, c)
    b.twice("the setting", ((s.name, s.span) for s in settings))
    for setting in settings:
        if setting.name in ("of", "from"):
            b.fault("E0116", f"`{setting.name}` is given twice", setting.span, "again here",
                    f"`{setting.name} …` stands in the first line of `generate`")  # fmt: skip
    return tree.Generate(b.bound(name), growing.text, source.text, settings, remarks, end, span=span)


@rule("setting")
def _setting(b: Build, c: list[Any], span: Span) -> tree.Setting:
    return tree.Setting(b.bound(c[0]), c[1], span=span)


# --- statements ------------------------------------------------------------------------------


@rule("let")
def _let(b: Build, c: list[Any], span: Span) -> tree.Let:
    return tree.Let(c[0], c[1], span=span)


@rule("targets")
def _targets(b: Build, c: list[Any], span: Span) -> tuple[tree.Target, ...]:
    b.twice("the name", ((t.name, t.span) for t in c))
    return tuple(c)


@rule("target")
def _target(b: Build, c: list[Any], span: Span) -> tree.Target:
    kind = None if c[1] == tree.TypeName("_") else c[1]
    return tree.Target(b.bound(c[0]), kind, span=span)


@rule("repeat")
def _repeat(b: Build, c: list[Any], span: Span) -> tree.Repeat:
    ((variable, over), under, collect), body, end, remarks = braces(b, c)
    return tree.Repeat(b.bound(variable), over, under, names(b, collect), body, remarks, end, span=span)


@rule("repeat_head")
def _repeat_head(b: Build, c: list[Any], span: Span) -> tuple[Token, Any]:
    return c[0], c[1]


@rule("scan")
def _scan(b: Build, c: list[Any], span: Span) -> tree.Scan:
    ((variables, over), along, carry, collect, reverse, keep), body, end, remarks = braces(b, c)
    paired(b, variables, over)
    return tree.Scan(names(b, variables), over, along.text, names(b, carry), names(b, collect), body,
                     reverse is not None, keep, remarks, end, span=span)  # fmt: skip


def paired(b: Build, variables: list[Token], over: tuple[Any, ...]) -> None:
    """Note a scan whose names and sequences do not pair up."""
    if len(variables) != len(over):
        span = b.span(variables[0]).to(over[-1].span)
        b.fault("E0120", f"{len(variables)} names run over {len(over)} sequences", span, "these do not pair up",
                "write as many names before `in` as sequences after it: `scan x, y in xs, ys`")  # fmt: skip


@rule("scan_head")
def _scan_head(b: Build, c: list[Any], span: Span) -> tuple[list[Token], tuple[Any, ...]]:
    return c[0], c[1]


@rule("names")
def _names(b: Build, c: list[Any], span: Span) -> list[Token]:
    return c


@rule("exprs")
def _exprs(b: Build, c: list[Any], span: Span) -> tuple[Any, ...]:
    return tuple(c)


@rule("when")
def _when(b: Build, c: list[Any], span: Span) -> tree.When:
    condition, (body, end, behind), otherwise = c
    other, else_end, else_behind = otherwise or ((), (), "")
    if else_behind:
        else_end = (else_behind, *else_end)
    return tree.When(condition, body, other, tree.Remarks(behind=behind), end, else_end, span=span)


@rule("body")
def _body(b: Build, c: list[Any], span: Span) -> tuple[Any, tuple[str, ...], str]:
    _, dressed, end, remarks = braces(b, c)
    return dressed, end, remarks.behind


@rule("otherwise")
def _otherwise(b: Build, c: list[Any], span: Span) -> Any:
    dressed, end, behind = c[0]
    if behind and dressed:
        first = dressed[0]
        remarks = replace(first.remarks, before=(behind, *first.remarks.before))
        return (replace(first, remarks=remarks), *dressed[1:]), end, ""
    return c[0]


@rule("return")
def _return(b: Build, c: list[Any], span: Span) -> tree.Return:
    return tree.Return(c[0], span=span)


# --- the file --------------------------------------------------------------------------------


@rule("extends")
def _extends(b: Build, c: list[Any], span: Span) -> tree.Text:
    title: tree.Text = c[0]
    return replace(title, span=span)


@rule("file")
def _file(b: Build, c: list[Any], span: Span) -> tree.File:
    version, model, doc, extends, *items = c
    if version.text != "1":
        b.fault("E0113", f"version {version.text} of the language is not known", b.span(version), "here",
                "this compiler reads version 1: `specc 1`")  # fmt: skip
    last = (extends.span if extends else b.span(doc) if doc else model.span).end
    before = b.dresser.take(0, span.start)
    line = b.fragment.text.find("\n", span.start, last)
    head = b.dresser.take(span.start, line) if line >= 0 else ()
    before += head[1:] + b.dresser.take(span.start, last)
    dressed, end, behind = b.dresser.body(items, last, len(b.fragment.source.text))
    both = [*head[:1], *([behind] if behind else [])]
    remarks = tree.Remarks((*before, *both[1:]), both[0] if both else "")
    return tree.File(1, model.value, b.text(doc), extends.value if extends else "", dressed, remarks, end,
                     span=span, extends_span=extends.span if extends else None)  # fmt: skip
