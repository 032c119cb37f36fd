"""Build the syntax tree from grammar rules: expressions, types, statements, items and the file."""

from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

from specc.diagnostics.diagnostic import Span
from specc.diagnostics.suggest import format_suggestion
from specc.syntax import ast
from specc.syntax.comments import attach_file_comments, attach_opening_comment
from specc.syntax.dsl.dsl_lexer import Token
from specc.syntax.dsl.grammar_callbacks import (
    FOREIGN_LITERALS,
    LITERAL_WORDS,
    RULE_CALLBACKS,
    AstBuilder,
    NodeRuleCallback,
    TupleRuleCallback,
    drop_absent_symbols,
    register_rule_callback,
)
from specc.syntax.inputs_section import resolve_declared_inputs

Argument: TypeAlias = ast.Expr | ast.NamedArg

RULE_CALLBACKS |= {
    "number": NodeRuleCallback(ast.NumberLiteral, "text"),
    "text": NodeRuleCallback(ast.StringLiteral, "value"),
    "quoted_path": NodeRuleCallback(ast.WeightPath, "text"),
    "option": NodeRuleCallback(ast.NamedArg, "name value"),
    "record_entry": NodeRuleCallback(ast.NamedArg, "name value"),
    "index": NodeRuleCallback(ast.Index, "base *items"),
    "slice": NodeRuleCallback(ast.Slice, "start stop step"),
    "rest": NodeRuleCallback(ast.EllipsisDims),
    "unary": NodeRuleCallback(ast.UnaryOp, "op operand"),
    "choice": NodeRuleCallback(ast.Conditional, "then condition otherwise"),
    "list_of": NodeRuleCallback(ast.ListLiteral, "*items"),
    "list_for": NodeRuleCallback(ast.ListComprehension, "item variable iterable"),
    "list_type": NodeRuleCallback(ast.TypeExpr, "element_type optional", name="list"),
    "pair_type": NodeRuleCallback(ast.TypeExpr, "element_type optional", name="pair"),
    "dims_of": TupleRuleCallback(),
    "types": TupleRuleCallback(),
    "exprs": TupleRuleCallback(),
    **dict.fromkeys(
        (
            *("name", "field_name", "input_name", "type_name", "component", "comparison"),
            *("soft", "plain_soft", "hard"),
        ),
        lambda b, span, child: child,
    ),
    "dotted": lambda b, span, *parts: ast.Name(".".join(t.text for t in parts), span=span),
    "dotted_path": lambda b, span, *parts: ast.WeightPath(
        ".".join(t.text for t in parts), span=span
    ),
    # parentheses are not nodes of the syntax tree, but messages underline them
    "group": lambda b, span, inner: replace(inner, span=span),
    "weighted": lambda b, span, call, weights: replace(call, weights=weights, span=span),
    **dict.fromkeys(
        ("binary", "power"),
        lambda b, span, left, op, right: ast.BinaryOp(
            op.text, left, right, span=span, op_span=b.get_span(op)
        ),
    ),
    "chain_first": lambda b, span, left, op, right: ast.Compare(
        (op.text,), (left, right), span=span
    ),
    # `0 <= i < n` is one node with two operators, not a comparison with a boolean
    "chain_more": lambda b, span, chain, op, right: ast.Compare(
        (*chain.ops, op.text), (*chain.operands, right), span=span
    ),
    "plain_type": lambda b, span, name, dims, optional: ast.TypeExpr(
        name=name.text, dims=dims, optional=optional is not None, span=span
    ),
    "sided_type": lambda b, span, kind, side: (
        kind if side is None else replace(kind, side=side.text, span=span)
    ),
}


@register_rule_callback("title")
@register_rule_callback("word")
def _build_title(b: AstBuilder, span: Span, token: Token) -> ast.StringLiteral:
    text = b.unescape_string(token) if token.kind == "STRING" else token.text
    return ast.StringLiteral(text, span=span)


@register_rule_callback("reference")
def _build_reference(b: AstBuilder, span: Span, name: ast.Name) -> ast.Name:
    lower = name.path.lower()
    # `True`, `NULL` and `yes` are rejected by `AstBuilder.check_bound_name`
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


@register_rule_callback("call")
def _build_call(
    b: AstBuilder, span: Span, function: ast.Name, *arguments: Argument | None
) -> ast.Call:
    present_arguments: tuple[Argument, ...] = drop_absent_symbols(arguments)
    args = tuple(a for a in present_arguments if not isinstance(a, ast.NamedArg))
    options = tuple(a for a in present_arguments if isinstance(a, ast.NamedArg))
    b.report_duplicate_names("the option", options)
    for previous, argument in pairwise(present_arguments):
        is_late = isinstance(previous, ast.NamedArg) and not isinstance(argument, ast.NamedArg)
        if is_late and argument.span is not None:
            b.report_error(
                "E0119",
                "an input after an option",
                argument.span,
                "this has no name",
                "inputs come first, options (`name=value`) after them",
            )
            break
    return ast.Call(function, args, options, span=span)


@register_rule_callback("record_of")
def _build_record(
    b: AstBuilder, span: Span, *children: ast.NamedArg | Token | None
) -> ast.RecordLiteral:
    # skip the brace tokens
    fields = tuple(f for f in children if isinstance(f, ast.NamedArg))
    b.report_duplicate_names("the field", fields)
    return ast.RecordLiteral(fields, span=span)


@register_rule_callback("choice_type")
def _build_choice_type(
    b: AstBuilder, span: Span, *children: ast.StringLiteral | Token | None
) -> ast.TypeExpr:
    titles = [t for t in children if isinstance(t, ast.StringLiteral)]
    b.report_duplicate_names("the choice", titles)
    optional = isinstance(children[-1], Token)  # the last child is `?` or None
    names = tuple(t.value for t in titles)
    return ast.TypeExpr(name="choice", optional=optional, names=names, span=span)


@register_rule_callback("record_type")
def _build_record_type(
    b: AstBuilder, span: Span, *children: ast.ConfigField | Token | None
) -> ast.TypeExpr:
    fields = tuple(f for f in children if isinstance(f, ast.ConfigField))
    b.report_duplicate_names("the field", fields)
    optional = isinstance(children[-1], Token)  # the last child is `?` or None
    return ast.TypeExpr(name="record", optional=optional, fields=fields, span=span)


RepeatHeader: TypeAlias = tuple[str, ast.Expr]
"""The header of a `repeat` loop, such as `i in layers`."""
ScanHeader: TypeAlias = tuple[tuple[str, ...], tuple[ast.Expr, ...]]
"""The header of a `scan` loop, such as `y, m in ys, ms`."""
DefinitionHeader: TypeAlias = tuple[str, tuple[ast.DefinitionParameter, ...] | None, Span]
"""The header of a definition: name, parameters (None without parentheses), and name span."""

SCAN = NodeRuleCallback(
    ast.ScanLoop, "variables+sequences along carry collect reverse keep until {body}"
)
CONFIG = NodeRuleCallback(ast.ConfigSection, "{entries}")
FIELD = NodeRuleCallback(ast.ConfigField, "name type sources default doc")
READING = NodeRuleCallback(ast.PreprocessingSection, "{entries}")
GENERATE = NodeRuleCallback(
    ast.GenerateSection, "name input_name output_name {settings}", "the setting"
)
RULE_CALLBACKS |= {
    # statements
    "let": NodeRuleCallback(ast.Assignment, "targets value"),
    "targets": TupleRuleCallback("the name"),
    "names": TupleRuleCallback("the name"),
    "repeat": NodeRuleCallback(ast.RepeatLoop, "variable+iterable under collect {body}"),
    "repeat_head": TupleRuleCallback(),
    "when": NodeRuleCallback(
        ast.WhenStatement, "condition body+end_comments+trailing otherwise+else_end_comments"
    ),
    # the syntax tree cannot represent a comment after `else {`
    "otherwise": lambda b, span, body: attach_opening_comment(body),
    "return": NodeRuleCallback(ast.ReturnStatement, "values"),
    "require": NodeRuleCallback(ast.RequireStatement, "condition because"),
    # config
    "assign": NodeRuleCallback(ast.ConfigOverride, "name value"),
    "sources": TupleRuleCallback(),
    "unread": NodeRuleCallback(ast.IgnoredConfigKeys, "*keys"),
    # blocks, graphs and definitions
    "dims": NodeRuleCallback(ast.DimsSection, "*dims", "the length"),
    "use": NodeRuleCallback(ast.UseStatement, "paths name sources under"),
    "files": TupleRuleCallback(),
    "keys": TupleRuleCallback(),
    "block": NodeRuleCallback(ast.Block, "name params results {body}", kind="block"),
    "graph": NodeRuleCallback(
        ast.Block, "name params results where architectures {body}", kind="graph"
    ),
    "params": TupleRuleCallback("the input"),
    "inputs": NodeRuleCallback(ast.InputsSection, "{entries}"),
    "declared_input": NodeRuleCallback(ast.InputDecl, "name type default"),
    "param": lambda b, span, name, kind, default: ast.BlockParameter(
        b.check_bound_name(name), kind or ast.MISSING_TYPE, default, kind is None, span=span
    ),
    "named_results": TupleRuleCallback("the result"),
    "result": NodeRuleCallback(ast.BlockParameter, "name type"),
    "where": TupleRuleCallback("the length"),
    "equation": NodeRuleCallback(ast.Equation, "name value"),
    "parameters": TupleRuleCallback("the parameter"),
    "parameter": NodeRuleCallback(ast.DefinitionParameter, "name type default"),
    # other sections
    "reads": NodeRuleCallback(ast.InputPreprocessing, "name value"),
    "shows": NodeRuleCallback(ast.OutputPostprocessing, "name value"),
    "weights": NodeRuleCallback(ast.WeightsSection, "{rules}"),
    "from_file": NodeRuleCallback(ast.WeightsFile, "path"),
    "tie": NodeRuleCallback(ast.WeightTyingRule, "name source condition"),
    "load": NodeRuleCallback(ast.LoadRule, "name value condition"),
    "ignore": NodeRuleCallback(ast.IgnoreRule, "names condition"),
    "paths": TupleRuleCallback(),
    "share": NodeRuleCallback(ast.WeightSharingRule, "name condition"),
    "stream": NodeRuleCallback(ast.StreamSection, "output_name input_name"),
    "setting": NodeRuleCallback(ast.GenerateSetting, "name value"),
    "quantize": NodeRuleCallback(ast.QuantizeSection, "{entries}", "the word"),
    "words": TupleRuleCallback(),
    # a list of types contains an entry for every result, and `_` stands for a result without a type
    "target": lambda b, span, name, kind: ast.AssignmentTarget(
        b.check_bound_name(name), None if kind == ast.MISSING_TYPE else kind, span=span
    ),
    "body": lambda b, span, opener, *rest: b.build_body(opener, rest),
    "one_result": lambda b, span, kind: (ast.BlockParameter("", kind, span=span),),
    "made_for": lambda b, span, *names: tuple(n.value for n in drop_absent_symbols(names)),
    "definition": NodeRuleCallback(ast.AttentionDef, "kind name+params+name_span doc value"),
    "definition_head": lambda b, span, name, params: (
        b.check_bound_name(name),
        params,
        b.get_span(name),
    ),
    "expect": lambda b, span, key, *values: ast.ExpectedConfigValues(
        b.unescape_string(key), tuple(t.value for t in drop_absent_symbols(values)), span=span
    ),
    "rounds": lambda b, span, name, values: ast.QuantizeSetting(
        name.value, values if isinstance(values, tuple) else (values,), span=span
    ),
    # the grammar allows negative values, because the error for an invalid setting lists the valid
    # values
    "below_zero": lambda b, span, minus, number: ast.StringLiteral(
        minus.text + number.text, span=span
    ),
    "extends": lambda b, span, title: replace(title, span=span),
}


@register_rule_callback("scan")
def _build_scan(b: AstBuilder, span: Span, *children: object) -> ast.ScanLoop:
    node = SCAN(b, span, *children)
    location = node.until.span if node.until else span
    if not node.variables and location is not None:
        b.report_error(
            "E0728",
            "this loop has no bound",
            location,
            "the maximum number of iterations is missing",
            "add the maximum: `scan step in 8 carry … until all(…) { … }`",
        )
    return node


@register_rule_callback("scan_head")
def _build_scan_head(
    b: AstBuilder, span: Span, variables: tuple[str, ...], sequences: tuple[ast.Expr, ...]
) -> ScanHeader:
    if len(variables) != len(sequences):
        b.report_error(
            "E0120",
            f"{len(variables)} loop variables, but {len(sequences)} sequences",
            span,
            "the numbers must be equal",
            "write one loop variable per sequence: `scan x, y in xs, ys`",
        )
    return variables, sequences


@register_rule_callback("dim_name")
def _build_dim_name(b: AstBuilder, span: Span, name: Token, bound: Token | None) -> ast.DimDecl:
    minimum = 0
    if bound is not None and bound.text.isdigit():
        minimum = int(bound.text)
    elif bound is not None:  # a bound such as `>= 1.5` is not an integer
        title = "the minimum length is not an integer"
        b.report_error("E0108", title, b.get_span(bound), "here", "write `>= 1`")
    return ast.DimDecl(b.check_bound_name(name), minimum, span=span)


@register_rule_callback("config")
def _build_config(b: AstBuilder, span: Span, *children: object) -> ast.ConfigSection:
    node = CONFIG(b, span, *children)
    fields = (e for e in node.entries if isinstance(e, ast.ConfigField | ast.ConfigOverride))
    b.report_duplicate_names("the value", fields)
    b.report_duplicate_names(
        "the expectation", (e for e in node.entries if isinstance(e, ast.ExpectedConfigValues))
    )
    _report_repeated_ignores(b, node)
    return node


def _report_repeated_ignores(b: AstBuilder, node: ast.ConfigSection) -> None:
    """Report E0116 for a second `ignore` list in `config`, because keys must be unique in YAML."""
    ignored = [e for e in node.entries if isinstance(e, ast.IgnoredConfigKeys)]
    keys = ", ".join(f'"{key}"' for key in dict.fromkeys(key for e in ignored for key in e.keys))
    b.report_duplicate_names("the list", ignored, f"write one list: `ignore {keys}`")


@register_rule_callback("field")
def _build_field(
    b: AstBuilder, span: Span, name: Token, declared_type: ast.TypeExpr, *children: object
) -> ast.ConfigField:
    comments = ast.NO_COMMENTS
    if (
        declared_type.name == "record"
        and declared_type.span
        and not declared_type.optional
        and declared_type.element_type is None
    ):
        # the fields of a record keep their comments, and all other comments are moved above the
        # record
        start = (
            b.fragment.source.text.find("{", declared_type.span.start, declared_type.span.end) + 1
        )
        body = b.attacher.attach_comments(declared_type.fields, start, declared_type.span.end - 1)
        declared_type = replace(declared_type, fields=body.children)
        trailing = (body.trailing,) if body.trailing else ()
        comments = ast.Comments(leading=trailing + body.end_comments)
    node = FIELD(b, span, name, declared_type, *children)
    return replace(node, comments=comments)


@register_rule_callback("reading")
def _build_reading(b: AstBuilder, span: Span, *children: object) -> ast.PreprocessingSection:
    node = READING(b, span, *children)
    # an input and a result may have the same name
    b.report_duplicate_names(
        "the input", (e for e in node.entries if isinstance(e, ast.InputPreprocessing))
    )
    b.report_duplicate_names(
        "the result", (e for e in node.entries if isinstance(e, ast.OutputPostprocessing))
    )
    return node


@register_rule_callback("generate")
def _build_generate(b: AstBuilder, span: Span, *children: object) -> ast.GenerateSection:
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


@register_rule_callback("file")
def _build_file(
    b: AstBuilder,
    span: Span,
    version: Token,
    model: ast.StringLiteral,
    doc: Token | None,
    extends: ast.StringLiteral | None,
    *items: ast.Item,
) -> ast.File:
    _check_version(b, version)
    last_header_span = extends.span if extends else b.get_span(doc) if doc else model.span
    assert last_header_span is not None, "a parsed node has a span"
    file = ast.File(
        version=1,
        model=model.value,
        doc=b.unescape_string(doc) if doc else "",
        extends=extends.value if extends else "",
        items=items,
        span=span,
        extends_span=extends.span if extends else None,
    )
    file = attach_file_comments(b.attacher, file, span.start, last_header_span.end)
    return resolve_declared_inputs(b, file)


def _check_version(b: AstBuilder, version: Token) -> None:
    """Report E0113 unless the version of the language is 1."""
    if version.text != "1":
        b.report_error(
            "E0113",
            f"unknown language version {version.text}",
            b.get_span(version),
            "here",
            "this compiler supports version 1: `specc 1`",
        )
