"""YAML nodes → config: declarations, expectations, and the values of an instance."""

from typing import Any

from specc.lang import tree
from specc.lang.yaml_nodes import Entry, Mapping, Node, Scalar, Sequence
from specc.lang.yaml_reader import Reader, first_line
from specc.text.source import Span

FIELD = ("type", "from", "default", "doc")


def config(reader: Reader, entry: Entry) -> list[Any]:
    """`config: {d: {type: int}, heads: 4}`."""
    made = [config_entry(reader, e) for e in reader.mapping(entry.value, "`config`", "`d: {type: int, default: 512}`")]
    dressed, end, behind = reader.body(entry, made)
    return [tree.Config(dressed, tree.Remarks(behind=behind), end, span=reader.reaching(entry))]


def config_entry(reader: Reader, entry: Entry) -> Any:
    """A field, an expectation, or a value for a field of the extended spec."""
    span = Span(reader.source, entry.key.span.start, max(entry.key.span.end, entry.value.span.end))
    if entry.name.startswith("expect "):
        key = entry.name[len("expect ") :].strip()
        nodes = entry.value.items if isinstance(entry.value, Sequence) else [entry.value]
        values = tuple(reader.raw(node, f"`{entry.name}`") for node in nodes)
        return tree.Expect(key, values, span=span)
    name = reader.name(entry.key, "the name of a config value").path
    if isinstance(entry.value, Mapping) and is_field(entry.value):
        return config_field(reader, name, entry, entry.value, span)
    return tree.Assign(name, reader.static(entry.value), span=span)


def is_field(node: Mapping) -> bool:
    """Whether a map declares a config value: it has a `type`, and nothing that a declaration does not have."""
    names = {e.name for e in node.entries}
    return "type" in names and names <= set(FIELD)


def config_field(reader: Reader, name: str, entry: Entry, node: Mapping, span: Span) -> tree.Field:
    """`{type: int, from: [hidden_size, n_embd], default: 768, doc: width}`."""
    found = {e.name: e for e in node.entries}
    kind, above = field_type(reader, found["type"])
    sources: tuple[Any, ...] = ()
    if "from" in found:
        given = found["from"].value
        sources = tuple(source_of(reader, n) for n in (given.items if isinstance(given, Sequence) else [given]))
    default = reader.static(found["default"].value) if "default" in found else None
    doc = reader.raw(found["doc"].value, "`doc`") if "doc" in found else ""
    return tree.Field(name, kind, sources, default, doc, tree.Remarks(above), span=span)


def field_type(reader: Reader, entry: Entry) -> tuple[tree.TypeName, tuple[str, ...]]:
    """A type as text, or `{record: {layers: {type: int}}}`; comments that found no place in it."""
    node = entry.value
    if not isinstance(node, Mapping):
        return reader.parse(node, "type", "a type"), ()
    found = reader.known(node.entries, ("record",), "a type", ("record",), node.span)
    if "record" not in found:
        return tree.TypeName("_"), ()
    record = found["record"]
    fields = []
    for inner in reader.mapping(record.value, "a record", "`{layers: {type: int, default: 6}}`"):
        made = config_entry(reader, inner)
        if isinstance(made, tree.Field):
            fields.append(made)
        else:
            reader.fault("E0126", f"`{inner.name}` has no `type`", first_line(inner.key.span), "`type` is missing here",
                         f"write `{inner.name}: {{type: int}}`")  # fmt: skip
    dressed, end, behind = reader.body(record, fields)
    above = ((behind,) if behind else ()) + end
    return tree.TypeName("record", fields=dressed, span=node.span), above


def source_of(reader: Reader, node: Node) -> Any:
    """A path in config.json as bare text, or a call such as `len("id2label")`."""
    if isinstance(node, Scalar) and node.value and not node.value.startswith('"') and "(" not in node.value:
        return tree.Text(node.value, span=node.span)
    return reader.parse(node, "source", "a place in config.json")
