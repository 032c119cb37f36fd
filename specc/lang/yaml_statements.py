"""YAML nodes → statements."""

from dataclasses import replace
from typing import Any

from specc.lang import tree
from specc.lang.yaml_nodes import Entry, Mapping, Node
from specc.lang.yaml_reader import Reader, first_line, prefixed
from specc.text.source import Span
from specc.text.suggest import did_you_mean

KEYS = {
    "repeat": ("repeat", "under", "collect", "do"),
    "scan": ("scan", "along", "carry", "collect", "reverse", "keep", "do"),
    "when": ("when", "do", "else"),
    "return": ("return",),
    "require": ("require", "because"),
}
EXAMPLES = {
    "repeat": "`- repeat: i in layers`, then `under:` and `do:`",
    "scan": "`- scan: y in ys`, then `along:`, `carry:` and `do:`",
}


def statements(reader: Reader, entry: Entry) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """The body below `do:`, and the comments at its end."""
    nodes = reader.items(entry.value, f"`{entry.name}`", "a list of statements: `- x: f(y)`")
    made = [statement(reader, node) for node in nodes]
    dressed, end, behind = reader.body(entry, [m for m in made if m is not None])
    if behind and dressed:
        return (prefixed(dressed[0], (behind,)), *dressed[1:]), end
    return dressed, ((behind, *end) if behind else end)


def statement(reader: Reader, node: Node) -> Any:
    """One statement; None after a fault."""
    if not isinstance(node, Mapping) or not node.entries:
        reader.wrong_kind(node, "a statement", "a map", "`- x: f(y)`")
        return None
    names = [e.name for e in node.entries]
    kind = next((n for n in names if n in KEYS), None)
    if kind is None:
        return let(reader, node)
    found = reader.known(node.entries, KEYS[kind], f"`{kind}`", (), node.span)
    if kind == "return":
        return tree.Return(reader.expressions(found["return"].value), span=node.span)
    if kind == "require":
        return require(reader, found, "require", node.span)
    if "do" not in found:
        reader.fault("E0126", f"`{kind}` has no `do`", first_line(node.span), "`do` is missing here",
                     "add `do:` with a list of statements")  # fmt: skip
        return None
    if kind == "repeat":
        return repeat(reader, found, node)
    if kind == "scan":
        return scan(reader, found, node)
    return when(reader, found, node)


def let(reader: Reader, node: Mapping) -> Any:
    """`x: f(y)`, `a, b: f(y)`, `x: {type: float[b], is: f(y)}`."""
    if len(node.entries) > 1:
        entry = next((e for e in node.entries if did_you_mean(e.name, KEYS)), node.entries[1])
        meant = did_you_mean(entry.name, KEYS)
        helps = f"did you mean `{meant}`?" if meant else "begin a new statement with `- `"
        reader.fault("E0125", "a statement gives one value its names", entry.key.span, "a second key", helps)
        return None
    entry = node.entries[0]
    targets = reader.parse(entry.key, "targets", "the name of a result")
    value = entry.value
    if isinstance(value, Mapping) and {e.name for e in value.entries} == {"type", "is"}:
        found = {e.name: e.value for e in value.entries}
        targets = typed(reader, targets, found["type"])
        value = found["is"]
    return tree.Let(targets, reader.expression(value), span=node.span)


def typed(reader: Reader, targets: tuple[tree.Target, ...], node: Node) -> tuple[tree.Target, ...]:
    """Targets with the types of `float[b], _`, where `_` says nothing."""
    types = reader.parse(node, "types", "types")
    if types and len(types) != len(targets):
        reader.fault("E0120", f"{len(targets)} names have {len(types)} types", node.span, "these do not pair up",
                     "write one type for each name, `_` for none")  # fmt: skip
        return targets
    return tuple(
        replace(target, type=None if kind == tree.TypeName("_") else kind)
        for target, kind in zip(targets, types or [tree.TypeName("_")] * len(targets), strict=True)
    )


def require(reader: Reader, found: dict[str, Entry], key: str, span: Span) -> tree.Require:
    """`require: c` or `that: c`, with `because: text`."""
    because = reader.raw(found["because"].value, "`because`") if "because" in found else ""
    return tree.Require(reader.expression(found[key].value), because, span=span)


def container(reader: Reader, node: Mapping) -> Span:
    """The span of a statement with the comments at the end of its body."""
    return Span(reader.source, node.span.start, max(node.span.end, reader.reach(node)))


def repeat(reader: Reader, found: dict[str, Entry], node: Mapping) -> Any:
    """`repeat: i in layers`."""
    head = reader.parse(found["repeat"].value, "repeat_head", "`repeat`")
    under = reader.weights(found["under"].value) if "under" in found else None
    collect = reader.names(found["collect"].value, "`collect`") if "collect" in found else ()
    body, end = statements(reader, found["do"])
    if head is None:
        return None
    return tree.Repeat(head[0].text, head[1], under, collect, body, end=end, span=container(reader, node))


def scan(reader: Reader, found: dict[str, Entry], node: Mapping) -> Any:
    """`scan: y, m in ys, ms`."""
    head = reader.parse(found["scan"].value, "scan_head", "`scan`")
    if "along" not in found:
        reader.fault("E0126", "`scan` has no `along`", found["scan"].key.span, "`along` is missing here",
                     "add `along: …`, the length it runs over")  # fmt: skip
        return None
    along = reader.name(found["along"].value, "`along`").path
    carry, collect = (
        reader.names(found[key].value, f"`{key}`") if key in found else () for key in ("carry", "collect")
    )
    reverse = found.get("reverse")
    backwards = False
    if reverse is not None:
        said = reader.raw(reverse.value, "`reverse`")
        backwards = said == "true"
        if said not in ("true", "false"):
            reader.fault(
                "E0125", "`reverse` is `true` or `false`", reverse.value.span, "this is neither", "write `true`"
            )
    keep = reader.expression(found["keep"].value) if "keep" in found else None
    body, end = statements(reader, found["do"])
    if head is None:
        return None
    variables, over = head
    if len(variables) != len(over):
        reader.fault("E0120", f"{len(variables)} names run over {len(over)} sequences", found["scan"].value.span,
                     "these do not pair up", "write as many names before `in` as sequences after it")  # fmt: skip
    return tree.Scan(tuple(v.text for v in variables), over, along, carry, collect, body, backwards, keep,
                     end=end, span=container(reader, node))  # fmt: skip


def when(reader: Reader, found: dict[str, Entry], node: Mapping) -> tree.When:
    """`when: c`, `do:`, `else:`."""
    condition = reader.expression(found["when"].value)
    body, end = statements(reader, found["do"])
    otherwise, else_end = statements(reader, found["else"]) if "else" in found else ((), ())
    return tree.When(condition, body, otherwise, end=end, else_end=else_end, span=container(reader, node))
