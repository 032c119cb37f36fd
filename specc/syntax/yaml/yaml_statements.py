"""Parse statements from YAML nodes."""

from collections.abc import Callable
from dataclasses import replace

from specc.diagnostics.source import Span
from specc.diagnostics.suggest import did_you_mean, format_suggestion
from specc.syntax import ast
from specc.syntax.comments import move_header_comment
from specc.syntax.dsl.dsl_parser import REPEAT_HEAD, SCAN_HEAD, TARGETS, TYPES
from specc.syntax.yaml import yaml_reader
from specc.syntax.yaml.yaml_expressions import (
    MISSING_TYPE,
    parse_yaml_expression,
    parse_yaml_expressions,
    parse_yaml_fragment,
    parse_yaml_names,
    parse_yaml_optional,
    parse_yaml_weight_name,
)
from specc.syntax.yaml.yaml_nodes import YamlEntry, YamlMapping, YamlNode
from specc.syntax.yaml.yaml_reader import YamlReader, get_first_line_span

STATEMENT_KEYS = {
    "repeat": ("repeat", "under", "collect", "do"),
    "scan": ("scan", "along", "carry", "collect", "reverse", "keep", "until", "do"),
    "when": ("when", "do", "else"),
    "return": ("return",),
    "require": ("require", "because"),
}
"""The keys of each statement that has a word of its own; any other is a `parse_yaml_let`."""
Entries = dict[str, YamlEntry]
Statements = tuple[tuple[ast.Statement, ...], tuple[str, ...]]
"""Statements, and the comments behind the last."""


def parse_yaml_statements(reader: YamlReader, entry: YamlEntry) -> Statements:
    """The body below `do:`."""
    example = "a list of statements: `- x: f(y)`"
    nodes = reader.items(entry.value, f"`{entry.name}`", example)
    read = [parse_yaml_statement(reader, node) for node in nodes]
    body = yaml_reader.collect_yaml_body(reader, entry, [s for s in read if s is not None])
    return move_header_comment(body)


def parse_yaml_statement(reader: YamlReader, node: YamlNode) -> ast.Statement | None:
    """One statement; None after a fault."""
    if not isinstance(node, YamlMapping) or not node.entries:
        reader.report_wrong_kind(node, "a statement", "a map", "`- x: f(y)`")
        return None
    kind = next((e.name for e in node.entries if e.name in STATEMENT_KEYS), None)
    if kind is None and any(e.name == "until" for e in node.entries):
        report_unbounded_yaml_scan(reader, node)
        return None
    if kind is None:
        return parse_yaml_let(reader, node)
    found = reader.known(node, STATEMENT_KEYS[kind], f"`{kind}`")
    if kind == "return":
        return ast.Return(parse_yaml_expressions(reader, found[kind].value), span=node.span)
    if kind == "require":
        return parse_yaml_require(reader, found, kind, node.span)
    if "do" not in found:
        reader.fault(
            "E0126",
            f"`{kind}` has no `do`",
            get_first_line_span(node.span),
            "`do` is missing here",
            "add `do:` with a list of statements",
        )
        return None
    return BODY_STATEMENT_PARSERS[kind](reader, found, node)


def parse_yaml_let(reader: YamlReader, node: YamlMapping) -> ast.Let | None:
    """`x: f(y)`, `a, b: f(y)`, `x: {type: float[b], is: f(y)}`."""
    if len(node.entries) > 1:
        report_second_key(reader, node.entries)
        return None
    entry = node.entries[0]
    what = "the name of a result"
    targets = parse_yaml_fragment(reader, entry.key, TARGETS, what) or (ast.Target("_"),)
    value = entry.value
    if isinstance(value, YamlMapping) and {e.name for e in value.entries} == {"type", "is"}:
        found = {e.name: e.value for e in value.entries}
        targets = attach_target_types(reader, targets, found["type"])
        value = found["is"]
    return ast.Let(targets, parse_yaml_expression(reader, value), span=node.span)


def report_second_key(reader: YamlReader, entries: list[YamlEntry]) -> None:
    """Note a statement with two keys: a misspelled word, or two statements in one."""
    entry = next((e for e in entries if did_you_mean(e.name, STATEMENT_KEYS)), entries[1])
    meant = did_you_mean(entry.name, STATEMENT_KEYS)
    reader.fault(
        "E0125",
        "a statement gives one value its names",
        entry.key.span,
        "a second key",
        format_suggestion(meant) if meant else "begin a new statement with `- `",
    )


def attach_target_types(
    reader: YamlReader, targets: tuple[ast.Target, ...], node: YamlNode
) -> tuple[ast.Target, ...]:
    """Targets with the types of `float[b], _`, where `_` says nothing."""
    types = parse_yaml_fragment(reader, node, TYPES, "types") or (MISSING_TYPE,) * len(targets)
    if len(types) != len(targets):
        reader.fault(
            "E0120",
            f"{len(targets)} names have {len(types)} types",
            node.span,
            "these do not pair up",
            "write one type for each name, `_` for none",
        )
        return targets
    return tuple(
        replace(target, type=None if kind == MISSING_TYPE else kind)
        for target, kind in zip(targets, types, strict=True)
    )


def parse_yaml_require(reader: YamlReader, found: Entries, key: str, span: Span) -> ast.Require:
    """`require: c` or `that: c`, with `because: text`."""
    because = reader.get_optional_text(found, "because")
    return ast.Require(parse_yaml_expression(reader, found[key].value), because, span=span)


def parse_yaml_repeat(reader: YamlReader, found: Entries, node: YamlMapping) -> ast.Repeat | None:
    """`repeat: i in layers`."""
    head = parse_yaml_fragment(reader, found["repeat"].value, REPEAT_HEAD, "`repeat`")
    under = parse_yaml_weight_name(reader, found["under"].value) if "under" in found else None
    collect = parse_yaml_optional_names(reader, found, "collect")
    body, end = parse_yaml_statements(reader, found["do"])
    if head is None:  # what is inside was read for its own faults
        return None
    variable, over = head
    return ast.Repeat(
        variable=variable,
        over=over,
        under=under,
        collect=collect,
        body=body,
        end=end,
        span=yaml_reader.compute_node_extent(reader, node),
    )


def report_unbounded_yaml_scan(reader: YamlReader, node: YamlMapping) -> None:
    """A loop that does not say how often it turns at most."""
    until = next(e for e in node.entries if e.name == "until")
    mend = "say how often at most: `- scan: step in 8`, and `until` below it"
    span, what = until.key.span, "nothing says how often it turns at most"
    reader.fault("E0728", "this loop has no bound", span, what, mend)


def parse_yaml_optional_names(reader: YamlReader, found: Entries, key: str) -> tuple[str, ...]:
    """The names under a key that may be absent."""
    return parse_yaml_names(reader, found[key].value, f"`{key}`") if key in found else ()


def parse_yaml_scan(reader: YamlReader, found: Entries, node: YamlMapping) -> ast.Scan | None:
    """`scan: y, m in ys, ms`."""
    head = parse_yaml_fragment(reader, found["scan"].value, SCAN_HEAD, "`scan`")
    along = parse_yaml_optional(reader, found, "along")
    carry = parse_yaml_optional_names(reader, found, "carry")
    collect = parse_yaml_optional_names(reader, found, "collect")
    reverse = is_reverse_scan(reader, found)
    keep = parse_yaml_optional(reader, found, "keep")
    until = parse_yaml_optional(reader, found, "until")
    body, end = parse_yaml_statements(reader, found["do"])
    if head is None:
        return None
    variables, over = head
    return ast.Scan(
        variables=variables,
        over=over,
        along=along,
        carry=carry,
        collect=collect,
        body=body,
        reverse=reverse,
        keep=keep,
        until=until,
        end=end,
        span=yaml_reader.compute_node_extent(reader, node),
    )


def is_reverse_scan(reader: YamlReader, found: Entries) -> bool:
    """Whether a scan runs from the last row to the first: `reverse: true`."""
    if "reverse" not in found:
        return False
    node = found["reverse"].value
    said = reader.raw(node, "`reverse`")
    if said not in ("true", "false"):
        reader.fault(
            "E0125", "`reverse` is `true` or `false`", node.span, "this is neither", "write `true`"
        )
    return said == "true"


def parse_yaml_when(reader: YamlReader, found: Entries, node: YamlMapping) -> ast.When:
    """`when: c`, `do:`, `else:`."""
    condition = parse_yaml_expression(reader, found["when"].value)
    body, end = parse_yaml_statements(reader, found["do"])
    nothing: Statements = (), ()
    otherwise, else_end = (
        parse_yaml_statements(reader, found["else"]) if "else" in found else nothing
    )
    return ast.When(
        condition=condition,
        body=body,
        otherwise=otherwise,
        end=end,
        else_end=else_end,
        span=yaml_reader.compute_node_extent(reader, node),
    )


BODY_STATEMENT_PARSERS: dict[
    str, Callable[[YamlReader, Entries, YamlMapping], ast.Statement | None]
] = {"repeat": parse_yaml_repeat, "scan": parse_yaml_scan, "when": parse_yaml_when}
