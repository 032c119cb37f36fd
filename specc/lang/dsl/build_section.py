"""Grammar rules of `reading`, `weights`, `generate`, `stream` and `quantize` → tree."""

from specc.lang import tree
from specc.lang.dsl.build import Build, present, rule
from specc.lang.dsl.build_statement import behind, braced
from specc.lang.dsl.lexer import Token
from specc.lang.remarks import Body
from specc.text.source import Span


@rule("reading")
def _reading(
    b: Build, span: Span, opened: Token, *rest: tree.ReadingEntry | Token
) -> tree.Reading:
    body: Body[tree.ReadingEntry] = braced(b, opened, rest)
    reads = [e for e in body.children if isinstance(e, tree.Reads)]
    shows = [e for e in body.children if isinstance(e, tree.Shows)]
    # an input and a result may have one name
    b.twice("the input", ((e.name, e.span) for e in reads))
    b.twice("the result", ((e.name, e.span) for e in shows))
    return tree.Reading(body.children, behind(body.behind), body.end, span=span)


@rule("reads")
def _reads(b: Build, span: Span, name: Token, value: tree.Expr) -> tree.Reads:
    return tree.Reads(b.bound(name), value, span=span)


@rule("shows")
def _shows(b: Build, span: Span, name: Token, value: tree.Expr) -> tree.Shows:
    return tree.Shows(b.bound(name), value, span=span)


@rule("weights")
def _weights(
    b: Build, span: Span, opened: Token, *rest: tree.WeightRule | Token
) -> tree.Weights:
    body: Body[tree.WeightRule] = braced(b, opened, rest)
    return tree.Weights(body.children, behind(body.behind), body.end, span=span)


@rule("from_file")
def _from_file(b: Build, span: Span, path: Token) -> tree.From:
    return tree.From(b.unquoted(path), span=span)


@rule("tie")
def _tie(
    b: Build,
    span: Span,
    name: tree.WeightName,
    source: tree.WeightName,
    condition: tree.Expr | None,
) -> tree.Tie:
    return tree.Tie(name, source, condition, span=span)


@rule("load")
def _load(
    b: Build,
    span: Span,
    name: tree.WeightName,
    value: tree.Expr,
    condition: tree.Expr | None,
) -> tree.Load:
    return tree.Load(name, value, condition, span=span)


@rule("ignore")
def _ignore(
    b: Build, span: Span, name: tree.WeightName, condition: tree.Expr | None
) -> tree.Ignore:
    return tree.Ignore(name, condition, span=span)


@rule("share")
def _share(
    b: Build, span: Span, name: tree.WeightName, condition: tree.Expr | None
) -> tree.Share:
    return tree.Share(name, condition, span=span)


@rule("generate")
def _generate(
    b: Build,
    span: Span,
    name: Token,
    growing: Token,
    source: Token,
    opened: Token,
    *rest: tree.Setting | Token,
) -> tree.Generate:
    body: Body[tree.Setting] = braced(b, opened, rest)
    b.twice("the setting", ((s.name, s.span) for s in body.children))
    for setting in body.children:
        if setting.name in ("of", "from") and setting.span is not None:
            b.fault(
                "E0116",
                f"`{setting.name}` is given twice",
                setting.span,
                "again here",
                f"`{setting.name} …` stands in the first line of `generate`",
            )
    return tree.Generate(
        name=b.bound(name),
        growing=growing.text,
        source=source.text,
        settings=body.children,
        remarks=behind(body.behind),
        end=body.end,
        span=span,
    )


@rule("stream")
def _stream(b: Build, span: Span, source: Token, growing: Token) -> tree.Stream:
    return tree.Stream(source.text, growing.text, span=span)


@rule("setting")
def _setting(b: Build, span: Span, name: Token, value: tree.Expr) -> tree.Setting:
    return tree.Setting(b.bound(name), value, span=span)


@rule("quantize")
def _quantize(
    b: Build, span: Span, opened: Token, *rest: tree.Rounds | Token
) -> tree.Quantize:
    body: Body[tree.Rounds] = braced(b, opened, rest)
    b.twice("the word", ((e.name, e.span) for e in body.children))
    return tree.Quantize(body.children, behind(body.behind), body.end, span=span)


@rule("rounds")
def _rounds(
    b: Build,
    span: Span,
    name: tree.Text,
    values: tree.Text | tuple[tree.Text, ...],
) -> tree.Rounds:
    several = values if isinstance(values, tuple) else (values,)
    return tree.Rounds(name.value, several, span=span)


@rule("words")
def _words(b: Build, span: Span, *values: tree.Text | None) -> tuple[tree.Text, ...]:
    return present(values)


@rule("word")
def _word(b: Build, span: Span, token: Token) -> tree.Text:
    text = b.unquoted(token) if token.kind == "STRING" else token.text
    return tree.Text(text, span=span)


@rule("below_zero")
def _below_zero(b: Build, span: Span, minus: Token, number: Token) -> tree.Text:
    # no word has such a value: it is read so that the word can say which it has
    return tree.Text(minus.text + number.text, span=span)
