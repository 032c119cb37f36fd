"""YAML nodes → statements."""

from collections.abc import Callable
from dataclasses import replace

from specc.lang import tree
from specc.lang.dsl.parse import REPEAT_HEAD, SCAN_HEAD, TARGETS, TYPES
from specc.lang.yaml import extent
from specc.lang.yaml.expressions import (
    NO_TYPE,
    expression,
    expressions,
    names,
    optional,
    parse,
    weight_name,
)
from specc.lang.yaml.nodes import Entry, Mapping, Node
from specc.lang.yaml.reader import Reader, first_line
from specc.text.source import Span
from specc.text.suggest import did_you_mean, suggestion

KEYS = {
    "repeat": ("repeat", "under", "collect", "do"),
    "scan": (
        "scan",
        "along",
        "carry",
        "collect",
        "reverse",
        "keep",
        "until",
        "do",
    ),
    "when": ("when", "do", "else"),
    "return": ("return",),
    "require": ("require", "because"),
}
"""The keys of each statement that has a word of its own; any other is a `let`."""
Entries = dict[str, Entry]
Statements = tuple[tuple[tree.Statement, ...], tuple[str, ...]]
"""Statements, and the comments behind the last."""


def statements(reader: Reader, entry: Entry) -> Statements:
    """The body below `do:`."""
    example = "a list of statements: `- x: f(y)`"
    nodes = reader.items(entry.value, f"`{entry.name}`", example)
    read = [statement(reader, node) for node in nodes]
    body = extent.body(reader, entry, [s for s in read if s is not None])
    if not body.behind:
        return body.children, body.end
    if not body.children:
        return (), (body.behind, *body.end)
    # `do:  # a word`: the tree has no place for it but above the first statement
    first, *others = body.children
    remarks = replace(first.remarks, before=(body.behind, *first.remarks.before))
    return (replace(first, remarks=remarks), *others), body.end


def statement(reader: Reader, node: Node) -> tree.Statement | None:
    """One statement; None after a fault."""
    if not isinstance(node, Mapping) or not node.entries:
        reader.wrong_kind(node, "a statement", "a map", "`- x: f(y)`")
        return None
    kind = next((e.name for e in node.entries if e.name in KEYS), None)
    if kind is None and any(e.name == "until" for e in node.entries):
        unbounded(reader, node)
        return None
    if kind is None:
        return let(reader, node)
    found = reader.known(node, KEYS[kind], f"`{kind}`")
    if kind == "return":
        return tree.Return(expressions(reader, found[kind].value), span=node.span)
    if kind == "require":
        return require(reader, found, kind, node.span)
    if "do" not in found:
        reader.fault(
            "E0126",
            f"`{kind}` has no `do`",
            first_line(node.span),
            "`do` is missing here",
            "add `do:` with a list of statements",
        )
        return None
    return WITH_BODY[kind](reader, found, node)


def let(reader: Reader, node: Mapping) -> tree.Let | None:
    """`x: f(y)`, `a, b: f(y)`, `x: {type: float[b], is: f(y)}`."""
    if len(node.entries) > 1:
        second_key(reader, node.entries)
        return None
    entry = node.entries[0]
    what = "the name of a result"
    targets = parse(reader, entry.key, TARGETS, what) or (tree.Target("_"),)
    value = entry.value
    if isinstance(value, Mapping) and {e.name for e in value.entries} == {"type", "is"}:
        found = {e.name: e.value for e in value.entries}
        targets = typed(reader, targets, found["type"])
        value = found["is"]
    return tree.Let(targets, expression(reader, value), span=node.span)


def second_key(reader: Reader, entries: list[Entry]) -> None:
    """Note a statement with two keys: a misspelled word, or two statements in one."""
    entry = next((e for e in entries if did_you_mean(e.name, KEYS)), entries[1])
    meant = did_you_mean(entry.name, KEYS)
    reader.fault(
        "E0125",
        "a statement gives one value its names",
        entry.key.span,
        "a second key",
        suggestion(meant) if meant else "begin a new statement with `- `",
    )


def typed(
    reader: Reader, targets: tuple[tree.Target, ...], node: Node
) -> tuple[tree.Target, ...]:
    """Targets with the types of `float[b], _`, where `_` says nothing."""
    types = parse(reader, node, TYPES, "types") or (NO_TYPE,) * len(targets)
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
        replace(target, type=None if kind == NO_TYPE else kind)
        for target, kind in zip(targets, types, strict=True)
    )


def require(reader: Reader, found: Entries, key: str, span: Span) -> tree.Require:
    """`require: c` or `that: c`, with `because: text`."""
    because = reader.raw_of(found, "because")
    return tree.Require(expression(reader, found[key].value), because, span=span)


def repeat(reader: Reader, found: Entries, node: Mapping) -> tree.Repeat | None:
    """`repeat: i in layers`."""
    head = parse(reader, found["repeat"].value, REPEAT_HEAD, "`repeat`")
    under = weight_name(reader, found["under"].value) if "under" in found else None
    collect = names_of(reader, found, "collect")
    body, end = statements(reader, found["do"])
    if head is None:  # what is inside was read for its own faults
        return None
    variable, over = head
    return tree.Repeat(
        variable=variable.text,
        over=over,
        under=under,
        collect=collect,
        body=body,
        end=end,
        span=extent.node_extent(reader, node),
    )


def unbounded(reader: Reader, node: Mapping) -> None:
    """A loop that does not say how often it turns at most."""
    until = next(e for e in node.entries if e.name == "until")
    mend = "say how often at most: `- scan: step in 8`, and `until` below it"
    span, what = until.key.span, "nothing says how often it turns at most"
    reader.fault("E0728", "this loop has no bound", span, what, mend)


def names_of(reader: Reader, found: Entries, key: str) -> tuple[str, ...]:
    """The names under a key that may be absent."""
    return names(reader, found[key].value, f"`{key}`") if key in found else ()


def scan(reader: Reader, found: Entries, node: Mapping) -> tree.Scan | None:
    """`scan: y, m in ys, ms`."""
    head = parse(reader, found["scan"].value, SCAN_HEAD, "`scan`")
    along = optional(reader, found, "along")
    carry = names_of(reader, found, "carry")
    collect = names_of(reader, found, "collect")
    reverse = is_reverse(reader, found)
    keep = optional(reader, found, "keep")
    until = optional(reader, found, "until")
    body, end = statements(reader, found["do"])
    if head is None:
        return None
    variables, over = head
    if len(variables) != len(over):
        reader.fault(
            "E0120",
            f"{len(variables)} names run over {len(over)} sequences",
            found["scan"].value.span,
            "these do not pair up",
            "write as many names before `in` as sequences after it",
        )
    return tree.Scan(
        variables=tuple(v.text for v in variables),
        over=over,
        along=along,
        carry=carry,
        collect=collect,
        body=body,
        reverse=reverse,
        keep=keep,
        until=until,
        end=end,
        span=extent.node_extent(reader, node),
    )


def is_reverse(reader: Reader, found: Entries) -> bool:
    """Whether a scan runs from the last row to the first: `reverse: true`."""
    if "reverse" not in found:
        return False
    node = found["reverse"].value
    said = reader.raw(node, "`reverse`")
    if said not in ("true", "false"):
        reader.fault(
            "E0125",
            "`reverse` is `true` or `false`",
            node.span,
            "this is neither",
            "write `true`",
        )
    return said == "true"


def when(reader: Reader, found: Entries, node: Mapping) -> tree.When:
    """`when: c`, `do:`, `else:`."""
    condition = expression(reader, found["when"].value)
    body, end = statements(reader, found["do"])
    nothing: Statements = (), ()
    otherwise, else_end = (
        statements(reader, found["else"]) if "else" in found else nothing
    )
    return tree.When(
        condition=condition,
        body=body,
        otherwise=otherwise,
        end=end,
        else_end=else_end,
        span=extent.node_extent(reader, node),
    )


WITH_BODY: dict[str, Callable[[Reader, Entries, Mapping], tree.Statement | None]] = {
    "repeat": repeat,
    "scan": scan,
    "when": when,
}
