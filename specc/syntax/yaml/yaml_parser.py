"""Parse a YAML spec into the same syntax tree as DSL text."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from specc.diagnostics.diagnostic import Failed
from specc.diagnostics.source import Source, Span
from specc.syntax import ast
from specc.syntax.comments import attach_file_comments, get_node_span
from specc.syntax.dsl.dsl_parser import cap_diagnostics, check_source_characters
from specc.syntax.yaml.yaml_items import TOP_ITEM_PARSERS
from specc.syntax.yaml.yaml_nodes import YamlEntry, YamlMapping, YamlNode, compose_yaml
from specc.syntax.yaml.yaml_reader import YamlReader, get_entry_span

YAML_HEADER_KEYS = ("specc", "model", "doc", "extends")
YAML_TOP_KEYS = (
    *YAML_HEADER_KEYS,
    "use",
    "config",
    "dims",
    "require",
    "items",
    "reading",
    "weights",
    "generate",
    "quantize",
    "stream",
)


def parse_yaml(source: Source) -> ast.File:
    """The tree of a YAML text. Fails with E01xx and E0201, showing up to 20 independent faults."""
    check_source_characters(source)
    document = compose_yaml(source)
    reader = YamlReader(source, document.comments)
    read = parse_yaml_file(reader, document.root)
    if reader.faults:
        raise Failed(*cap_diagnostics(reader.faults))
    return read


def parse_yaml_file(reader: YamlReader, root: YamlNode | None) -> ast.File:
    """The whole spec."""
    nothing = ast.File(version=1, model="")
    if root is None:
        reader.fault(
            "E0113",
            "this spec is empty",
            Span(reader.source, 0, 0),
            "`specc: 1` belongs here",
            "begin with\n  specc: 1\n  model: my_model",
        )
        return nothing
    entries = reader.mapping(root, "a spec", "`specc: 1`, `model: my_model` and so on")
    if not isinstance(root, YamlMapping):
        return nothing
    found = reader.known(root, YAML_TOP_KEYS, "a spec", ("specc", "model"))
    check_yaml_version(reader, found)
    head = ast.File(
        version=1,
        model=reader.get_optional_text(found, "model"),
        doc=reader.get_optional_text(found, "doc"),
        extends=reader.get_optional_text(found, "extends"),
        span=Span(reader.source, 0, len(reader.source.text)),
        extends_span=found["extends"].value.span if "extends" in found else None,
    )
    items: list[ast.Item] = []
    for entry in entries:
        if entry.name in TOP_ITEM_PARSERS:
            items += TOP_ITEM_PARSERS[entry.name](reader, entry)
    return attach_items(reader, head, entries, items)


def check_yaml_version(reader: YamlReader, found: dict[str, YamlEntry]) -> None:
    """Note a version that this compiler does not read."""
    version = reader.get_optional_text(found, "specc")
    if version not in ("1", ""):  # what is empty is a fault already
        reader.fault(
            "E0113",
            f"version {version} of the language is not known",
            found["specc"].value.span,
            "here",
            "this compiler reads version 1: `specc: 1`",
        )


def attach_items(
    reader: YamlReader, head: ast.File, entries: Sequence[YamlEntry], items: Iterable[ast.Item]
) -> ast.File:
    """A file with its items and comments."""
    start = end = entries[0].key.span.start if entries else 0
    for entry in entries:
        if entry.name not in YAML_HEADER_KEYS:
            break
        end = get_entry_span(entry).end
    # top keys stand in any order, and `items:` holds any of them: comments need the
    # order of the text
    in_order = sorted(items, key=lambda item: get_node_span(item).start)
    return attach_file_comments(reader.attacher, replace(head, items=tuple(in_order)), start, end)
