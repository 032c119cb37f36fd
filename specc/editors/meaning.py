"""What the word at a character means: its signature, its text, where it is said."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specc.editors.analysis import Analysis, used_by
from specc.editors.places import around, bindings, fields_of, item_around
from specc.elaborate.context import Module
from specc.elaborate.lookup import FIXED
from specc.elaborate.vocabulary import WORDS
from specc.lang import tree
from specc.lang.dsl.layout import flat
from specc.lang.dsl.write import definition, head_pieces, statement
from specc.lang.dsl.write_expression import type_text
from specc.text.source import Span
from specc.text.summary import summary

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KEYWORDS: dict[str, type[tree.Node]] = {
    "repeat": tree.Repeat,
    "scan": tree.Scan,
    "when": tree.When,
    "return": tree.Return,
    "require": tree.Require,
    "config": tree.Config,
    "dims": tree.Dims,
    "use": tree.Use,
    "block": tree.Block,
    "graph": tree.Block,
    **dict.fromkeys(tree.DEFINITIONS, tree.Definition),
    "reading": tree.Reading,
    "weights": tree.Weights,
    "generate": tree.Generate,
    "quantize": tree.Quantize,
    "stream": tree.Stream,
    "expect": tree.Expect,
    "ignore": tree.Ignore,
    "tie": tree.Tie,
    "load": tree.Load,
    "share": tree.Share,
}
"""Words of the language, and the class of the tree that says what they mean."""


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What a word means. `shown` is code, `stands` what was found to stand there."""

    start: int
    end: int
    shown: str = ""
    doc: str = ""
    stands: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    place: Span | None = None
    """Where it is said."""


def meaning(known: Analysis, offset: int) -> Meaning | None:
    """What the word at a character means; None where nothing is known of it."""
    # from the inside out: what a character is in first has the say
    nodes = around(known.file, offset) if known.file else []
    for depth in range(len(nodes) - 1, -1, -1):
        found = _of_node(known, nodes[: depth + 1], offset)
        if found is not None:
            return found
    return _keyword(known, offset)


def _of_node(
    known: Analysis, nodes: Sequence[tree.Node], offset: int
) -> Meaning | None:
    """What the last of some nodes, each inside the one before, means at a character."""
    node = nodes[-1]
    match node:
        case tree.Name(span=span) if span is not None:
            return _name(known, nodes, node, offset)
        case tree.Option(name_span=span) if span and span.start <= offset <= span.end:
            return _option(known, nodes, node)
        case tree.Target() | tree.Param() | tree.Parameter():
            return _binding(known, node, offset)
        case tree.Field(span=span) if span and _in_name(span, node.name, offset):
            return _field(node, span.start)
        case tree.Assign(span=span) if span and _in_name(span, node.name, offset):
            return _of_path(known, node.name, span.start, span.start + len(node.name))
        case tree.DimName(span=span) if span and _in_name(span, node.name, offset):
            return _length(known, node.name, span.start)
        case tree.Use():
            return _used(known, node)
        case tree.File(extends_span=span) if span and span.start <= offset <= span.end:
            return _extended(known, span)
        case _:
            return None


def _in_name(span: Span, name: str, offset: int) -> bool:
    """Whether a character belongs to the name that a node begins with."""
    return span.start <= offset <= span.start + len(name)


def _binding(
    known: Analysis, node: tree.Target | tree.Param | tree.Parameter, offset: int
) -> Meaning | None:
    """A name where it is given."""
    span = node.span
    if span is None or not _in_name(span, node.name, offset) or not node.name:
        return None
    typed = f": {type_text(node.type)}" if node.type else ""
    return Meaning(
        start=span.start,
        end=span.start + len(node.name),
        shown=node.name + typed,
        stands=known.shapes.get((span.start, span.end), ()),
        numbers=known.numbers.get((span.start, span.end), ()),
        place=span,
    )


def _field(field: tree.Field, start: int) -> Meaning:
    """A config value where it is declared, or elsewhere."""
    plain = replace(field, doc="", remarks=tree.NONE)
    return Meaning(
        start=start,
        end=start + len(field.name),
        shown=" ".join(line.strip() for line in statement(plain, 0)),
        doc=field.doc,
        place=field.span,
    )


def _option(
    known: Analysis, nodes: Sequence[tree.Node], node: tree.Option
) -> Meaning | None:
    """An option of a call, or a value of a record."""
    span = node.name_span
    assert span is not None  # as the caller looked
    calls = [n for n in nodes if isinstance(n, tree.Call)]
    records = [n for n in nodes if isinstance(n, tree.RecordOf)]
    # `text: { layers: 2 }` of an instance: its keys are config values
    if records and not calls:
        names = [n.name for n in nodes if isinstance(n, tree.Assign | tree.Option)]
        return _of_path(known, ".".join(names), span.start, span.end)
    if not calls:
        return None
    called = named(known, calls[-1].function.path, span.start, called=True)
    if called is None:
        return None
    return replace(called, start=span.start, end=span.end)


def _of_path(known: Analysis, path: str, start: int, end: int) -> Meaning | None:
    """A config value by its dotted path."""
    field = known.spec.program.paths().get(path) if known.spec else None
    return replace(_field(field, start), start=start, end=end) if field else None


def _name(
    known: Analysis, nodes: Sequence[tree.Node], node: tree.Name, offset: int
) -> Meaning | None:
    """A name, up to the part that the character is in."""
    span = node.span
    assert span is not None  # as the caller looked
    parent = nodes[-2] if len(nodes) > 1 else None
    called = isinstance(parent, tree.Call) and parent.function is node
    # `v.encode`: with the cursor in `v` the used file is meant
    dot = node.path.find(".", max(0, offset - span.start))
    path = node.path if dot < 0 else node.path[:dot]
    found = named(known, path, span.start, called=called)
    at = span.start, span.end
    stands, numbers = known.shapes.get(at, ()), known.numbers.get(at, ())
    if found is None:
        if not stands:
            return None
        found = Meaning(start=span.start, end=span.end, shown=path)
    if path != node.path:
        stands = numbers = ()
    return replace(
        found,
        start=span.start,
        end=span.start + len(path),
        stands=stands,
        numbers=numbers,
    )


def named(
    known: Analysis, path: str, offset: int, *, called: bool = False
) -> Meaning | None:
    """What a dotted name means at a character: the innermost names win."""
    head, _, rest = path.partition(".")
    if rest:
        return _member(known, head, rest, path, offset)
    here = None if called else _local(known, head, offset)
    return (
        here
        or (None if called else _of_config(known, head, offset))
        or _item(known, head, offset)
        or _local(known, head, offset)
        or _of_config(known, head, offset)
        or _length(known, head, offset)
        or _fixed(known, head, offset)
    )


def _local(known: Analysis, name: str, offset: int) -> Meaning | None:
    """A name of the block or definition around: what gave it last."""
    item = item_around(known.file, offset) if known.file else None
    found = [b for b in bindings(item, offset) if b.name == name] if item else []
    if not found:
        return None
    last = max(found, key=lambda b: b.span.start)
    kind = last.node.type if isinstance(last.node, tree.Param) else None
    shown = f"{name}: {type_text(kind)}" if kind else f"{name}  # {last.kind}"
    at = last.span.start, last.span.end
    return Meaning(
        start=offset,
        end=offset + len(name),
        shown=shown,
        stands=known.shapes.get(at, ()),
        numbers=known.numbers.get(at, ()),
        place=last.span,
    )


def _of_config(known: Analysis, name: str, offset: int) -> Meaning | None:
    if known.spec is not None:
        return _of_path(known, name, offset, offset + len(name))
    fields = fields_of(known.file) if known.file else ()
    return next((_field(f, offset) for f in fields if f.name == name), None)


def _item(known: Analysis, name: str, offset: int) -> Meaning | None:
    """A block, a definition or a word."""
    module = known.module
    found = (module.found(name) if module else None) or known.library.standard(name)
    # where a normalizer is due std's is meant, elsewhere the word
    if found is not None and not (found[1].standard and name in WORDS):
        return of_item(found[0], offset)
    if name not in WORDS:
        return None
    word = WORDS[name]
    return Meaning(
        start=offset, end=offset + len(name), shown=word.shown(), doc=word.doc
    )


def of_item(item: tree.Block | tree.Definition, offset: int) -> Meaning:
    """A block or a definition."""
    pieces = head_pieces(item) if isinstance(item, tree.Block) else definition(item)
    return Meaning(
        start=offset,
        end=offset + len(item.name),
        shown=flat(pieces),
        doc=item.doc,
        place=item.name_span or item.span,
    )


def _length(known: Analysis, name: str, offset: int) -> Meaning | None:
    """A length that `dims` declares."""
    # the file itself first, then what it extends
    module: Module | None = known.module
    while module is not None:
        dims = [item for item in module.file.items if isinstance(item, tree.Dims)]
        lengths = [one for item in dims for one in item.names if one.name == name]
        if lengths:
            return Meaning(
                start=offset,
                end=offset + len(name),
                shown=f"dims {name}",
                doc=f"a length that the inputs tell, at least {lengths[0].least}",
                place=lengths[0].span,
            )
        module = module.extended
    return None


def _fixed(known: Analysis, name: str, offset: int) -> Meaning | None:
    if name not in FIXED:
        return None
    return Meaning(start=offset, end=offset + len(name), shown=name)


def _member(
    known: Analysis, head: str, rest: str, path: str, offset: int
) -> Meaning | None:
    """`v.encode`, `config.width`: an item of a used file, or a value inside another."""
    at = offset, offset + len(path)
    user = known.module.user(head) if known.module else None
    if user is not None:
        use, module = user
        used = used_by(known, module, use)
        if used is not None and rest in used.items:
            return replace(of_item(used.items[rest], offset), end=at[1])
    return _of_path(known, path.removeprefix("config."), *at)


def _used(known: Analysis, node: tree.Use) -> Meaning | None:
    """A used file."""
    assert known.module is not None or known.file is not None
    used = used_by(known, known.module, node) if known.module else None
    span = node.span
    return None if used is None or span is None else _spec(used.file, span)


def _extended(known: Analysis, span: Span) -> Meaning | None:
    """The spec that is extended."""
    base = known.module.extended if known.module else None
    return None if base is None else _spec(base.file, span)


def _spec(file: tree.File, span: Span) -> Meaning:
    """Another spec, where its name stands."""
    return Meaning(
        start=span.start,
        end=span.end,
        shown=f"model {file.model}",
        doc=file.doc,
        place=file.span,
    )


def _keyword(known: Analysis, offset: int) -> Meaning | None:
    """A word of the language."""
    text = known.source.text
    start = text.rfind("\n", 0, offset) + 1
    for found in WORD.finditer(text, start):
        if found.start() > offset:
            return None
        # in YAML a key alone begins a line; elsewhere it is a key of something else
        first = not text[start : found.start()].strip(" -\"'")
        if known.syntax == "yaml" and not first:
            return None
        if found.end() >= offset and found.group() in KEYWORDS:
            node = KEYWORDS[found.group()]
            return Meaning(
                start=found.start(), end=found.end(), doc=summary(node.__doc__)
            )
    return None
