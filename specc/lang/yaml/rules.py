"""YAML nodes → the rules of `weights`."""

from typing import NamedTuple

from specc.lang import tree
from specc.lang.yaml import extent
from specc.lang.yaml.expressions import expression, optional, weight_name
from specc.lang.yaml.nodes import Entry, Node
from specc.lang.yaml.reader import Reader


class Keys(NamedTuple):
    """The keys of a rule beside its own word: those it needs, and those it may have."""

    needed: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


RULES = {
    "from": Keys(),
    "tie": Keys(("to",), ("when",)),
    "load": Keys(("as",), ("when",)),
    "ignore": Keys((), ("when",)),
    "share": Keys((), ("when",)),
}


def weights(reader: Reader, entry: Entry) -> tree.Weights:
    """`weights: [{from: file}, {tie: a, to: b}, {load: a, as: b}, {ignore: c}, {share: d}]`."""
    example = "a list: `- {tie: a.weight, to: b.weight}`"
    nodes = reader.items(entry.value, "`weights`", example)
    rules = [weight_rule(reader, n) for n in nodes]
    body = extent.body(reader, entry, [r for r in rules if r is not None])
    behind = tree.Remarks(behind=body.behind)
    span = extent.entry_extent(reader, entry)
    return tree.Weights(body.children, behind, body.end, span=span)


def weight_rule(reader: Reader, node: Node) -> tree.WeightRule | None:
    """One rule; None after a fault."""
    what = "a rule of `weights`"
    entries = reader.mapping(node, what, "`- {tie: a.weight, to: b.weight}`")
    kind = next((e.name for e in entries if e.name in RULES), None)
    if kind is None:
        if entries:
            reader.unknown(entries[0], RULES, what)
        return None
    needed, allowed = RULES[kind]
    found = reader.known(node, (kind, *needed, *allowed), f"`{kind}`", needed)
    if not set(needed) <= set(found):
        return None
    return rule_of(reader, kind, found, node)


def rule_of(
    reader: Reader, kind: str, found: dict[str, Entry], node: Node
) -> tree.WeightRule:
    """A rule that has all that it needs."""
    value = found[kind].value
    if kind == "from":
        return tree.From(reader.raw(value, "`from`"), span=node.span)
    condition = optional(reader, found, "when")
    path = weight_name(reader, value)
    match kind:
        case "tie":
            source = weight_name(reader, found["to"].value)
            return tree.Tie(path, source, condition, span=node.span)
        case "load":
            how = expression(reader, found["as"].value)
            return tree.Load(path, how, condition, span=node.span)
        case "ignore":
            return tree.Ignore(path, condition, span=node.span)
        case _:
            return tree.Share(path, condition, span=node.span)
