"""YAML nodes → config: declarations, expectations, and the values of an instance."""

from specc.lang import tree
from specc.lang.dsl.parse import SOURCE
from specc.lang.yaml import extent
from specc.lang.yaml.expressions import NO_TYPE, name, parse, static, type_of
from specc.lang.yaml.nodes import Entry, Mapping, Node, Scalar, Sequence
from specc.lang.yaml.reader import Reader, first_line, whole

FIELD = ("type", "from", "default", "doc")
UNREAD = "ignore keys"
"""No name of a value can have a space in it."""


def config(reader: Reader, entry: Entry) -> tree.Config:
    """`config: {d: {type: int}, heads: 4}`."""
    example = "`d: {type: int, default: 512}`"
    values = reader.mapping(entry.value, "`config`", example)
    body = extent.body(reader, entry, [config_entry(reader, e) for e in values])
    return tree.Config(
        body.children,
        tree.Remarks(behind=body.behind),
        body.end,
        span=extent.entry_extent(reader, entry),
    )


def config_entry(reader: Reader, entry: Entry) -> tree.ConfigEntry:
    """A field, an expectation, or a value for a field of the extended spec."""
    value = entry.value
    if entry.name.startswith("expect "):
        key = entry.name.removeprefix("expect ").strip()
        nodes = value.items if isinstance(value, Sequence) else [value]
        values = tuple(reader.raw(node, f"`{entry.name}`") for node in nodes)
        return tree.Expect(key, values, span=whole(entry))
    if entry.name == UNREAD:
        nodes = value.items if isinstance(value, Sequence) else [value]
        keys = tuple(reader.raw(node, f"`{UNREAD}`") for node in nodes)
        return tree.Unread(keys, span=whole(entry))
    field_name = name(reader, entry.key, "the name of a config value")
    if isinstance(value, Mapping) and is_field(value):
        return config_field(reader, field_name, entry, value)
    return tree.Assign(field_name, static(reader, value), span=whole(entry))


def is_field(node: Mapping) -> bool:
    """Whether a map declares a config value: it has a `type`, and nothing that a
    declaration does not have.
    """
    names = {e.name for e in node.entries}
    return "type" in names and names <= set(FIELD)


def config_field(
    reader: Reader, field_name: str, entry: Entry, node: Mapping
) -> tree.Field:
    """`{type: int, from: [hidden_size, n_embd], default: 768, doc: width}`."""
    found = {e.name: e for e in node.entries}
    kind, above = field_type(reader, found["type"])
    sources: tuple[tree.Expr, ...] = ()
    if "from" in found:
        said = found["from"].value
        nodes = said.items if isinstance(said, Sequence) else [said]
        sources = tuple(source_of(reader, n) for n in nodes)
    default = static(reader, found["default"].value) if "default" in found else None
    return tree.Field(
        name=field_name,
        type=kind,
        sources=sources,
        default=default,
        doc=reader.raw_of(found, "doc"),
        remarks=tree.Remarks(above),
        span=whole(entry),
    )


def field_type(reader: Reader, entry: Entry) -> tuple[tree.TypeName, tuple[str, ...]]:
    """A type as text, or `{record: {layers: {type: int}}}`; comments that found no place in it."""
    node = entry.value
    if not isinstance(node, Mapping):
        return type_of(reader, node), ()
    found = reader.known(node, ("record",), "a type", ("record",))
    if "record" not in found:
        return NO_TYPE, ()
    record = found["record"]
    example = "`{layers: {type: int, default: 6}}`"
    fields = []
    for inner in reader.mapping(record.value, "a record", example):
        field = config_entry(reader, inner)
        if isinstance(field, tree.Field):
            fields.append(field)
        else:
            reader.fault(
                "E0126",
                f"`{inner.name}` has no `type`",
                first_line(inner.key.span),
                "`type` is missing here",
                f"write `{inner.name}: {{type: int}}`",
            )
    body = extent.body(reader, record, fields)
    # a type has no remarks: what would stand behind it goes above the whole field
    above = ((body.behind,) if body.behind else ()) + body.end
    return tree.TypeName(name="record", fields=body.children, span=node.span), above


def source_of(reader: Reader, node: Node) -> tree.Expr:
    """A path in config.json as bare text, or a call such as `len("id2label")`."""
    if isinstance(node, Scalar) and is_bare(node.value):
        return tree.Text(node.value, span=node.span)
    what = "a place in config.json"
    return parse(reader, node, SOURCE, what) or tree.Text("")


def is_bare(text: str) -> bool:
    """Whether a path in config.json needs no quotes in YAML: it cannot be taken for a
    text of the language, or for a call.
    """
    return bool(text) and not text.startswith('"') and "(" not in text
