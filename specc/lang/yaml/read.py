"""YAML text → the same tree that the `.specc` text gives, with spans in the YAML file.

    specc: 1
    model: small
    config: {d: {type: int, default: 512}}
    dims: [batch, n]
    items:
      - graph: f
        in: {x: 'float[batch, n, d]'}
        out: float[batch, n, d]
        do:
          - h: {linear: {in: x, out: d, weights: first}}
          - return: relu(h)

The statement structure is lists and maps, every leaf is text in the grammar of
expressions. JSON is YAML. Top keys may come in any order; items keep theirs.
"""

from collections.abc import Iterable, Sequence

from specc.lang import tree
from specc.lang.dsl.parse import capped, checked
from specc.lang.remarks import span_of
from specc.lang.yaml.items import TOP_ITEMS
from specc.lang.yaml.nodes import Entry, Mapping, Node, compose
from specc.lang.yaml.reader import Reader, whole
from specc.text.diagnostic import Failed
from specc.text.source import Source, Span

HEAD = ("specc", "model", "doc", "extends")
TOP = (
    *HEAD,
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


def parse_yaml(source: Source) -> tree.File:
    """The tree of a YAML text. Fails with E01xx and E0201, showing up to 20 independent faults."""
    checked(source)
    document = compose(source)
    reader = Reader(source, document.comments)
    read = file(reader, document.root)
    if reader.faults:
        raise Failed(*capped(reader.faults))
    return read


def file(reader: Reader, root: Node | None) -> tree.File:
    """The whole spec."""
    nothing = tree.File(version=1, model="")
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
    if not isinstance(root, Mapping):
        return nothing
    found = reader.known(root, TOP, "a spec", ("specc", "model"))
    check_version(reader, found)
    head = tree.File(
        version=1,
        model=reader.raw_of(found, "model"),
        doc=reader.raw_of(found, "doc"),
        extends=reader.raw_of(found, "extends"),
        span=Span(reader.source, 0, len(reader.source.text)),
        extends_span=found["extends"].value.span if "extends" in found else None,
    )
    items: list[tree.Item] = []
    for entry in entries:
        if entry.name in TOP_ITEMS:
            items += TOP_ITEMS[entry.name](reader, entry)
    return with_items(reader, head, entries, items)


def check_version(reader: Reader, found: dict[str, Entry]) -> None:
    """Note a version that this compiler does not read."""
    version = reader.raw_of(found, "specc")
    if version not in ("1", ""):  # what is empty is a fault already
        reader.fault(
            "E0113",
            f"version {version} of the language is not known",
            found["specc"].value.span,
            "here",
            "this compiler reads version 1: `specc: 1`",
        )


def with_items(
    reader: Reader,
    head: tree.File,
    entries: Sequence[Entry],
    items: Iterable[tree.Item],
) -> tree.File:
    """A file with its items and comments.

    As in the other syntax, the head has two places for comments: above, and behind its
    first line; any other comment in it moves above.
    """
    first = entries[0].key.span.start if entries else 0
    head_end = first
    for entry in entries:
        if entry.name not in HEAD:
            break
        head_end = whole(entry).end
    attacher, text = reader.attacher, reader.source.text
    above = attacher.take(0, first)
    line = text.find("\n", first, head_end)
    on_first = attacher.take(first, line) if line >= 0 else ()
    above += on_first[1:] + attacher.take(first, head_end)
    # top keys stand in any order, and `items:` holds any of them: comments need the
    # order of the text
    in_order = sorted(items, key=lambda item: span_of(item).start)
    body = attacher.body(in_order, head_end, len(text))
    after = [*on_first[:1], *([body.behind] if body.behind else [])]
    return tree.File(
        version=head.version,
        model=head.model,
        doc=head.doc,
        extends=head.extends,
        items=body.children,
        remarks=tree.Remarks((*above, *after[1:]), after[0] if after else ""),
        end=body.end,
        span=head.span,
        extends_span=head.extends_span,
    )
