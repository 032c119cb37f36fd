"""What the name at a position means: signature, documentation, shape."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specc.diagnostics.object_repr import extract_docstring_summary
from specc.diagnostics.render import escape_control_characters
from specc.diagnostics.source import Span
from specc.frontend.builtins import BUILTINS
from specc.frontend.context import SpecModule
from specc.frontend.name_lookup import NAMED_CONSTANTS
from specc.lsp.document_analysis import (
    DocumentAnalysis,
    bindings_at,
    config_fields,
    enclosing_item,
    nodes_at,
    resolve_used_file,
)
from specc.syntax import ast
from specc.syntax.dsl.dsl_printer import layout_definition, layout_header, print_statement
from specc.syntax.dsl.expression_printer import print_type
from specc.syntax.dsl.line_breaking import join_pieces

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KEYWORDS: dict[str, type[ast.Node]] = {
    "repeat": ast.Repeat,
    "scan": ast.Scan,
    "when": ast.When,
    "return": ast.Return,
    "require": ast.Require,
    "config": ast.Config,
    "dims": ast.Dims,
    "use": ast.Use,
    "block": ast.Block,
    "graph": ast.Block,
    **dict.fromkeys(ast.DEFINITION_KINDS, ast.Definition),
    "reading": ast.Reading,
    "weights": ast.Weights,
    "generate": ast.Generate,
    "quantize": ast.Quantize,
    "stream": ast.Stream,
    "expect": ast.Expect,
    "ignore": ast.Ignore,
    "tie": ast.Tie,
    "load": ast.Load,
    "share": ast.Share,
}
"""Words of the language, and the class of the tree that says what they mean."""


@dataclass(frozen=True, kw_only=True)
class NameMeaning:
    """What a word means. `shown` is code, `stands` what was found to stand there."""

    start: int
    end: int
    shown: str = ""
    doc: str = ""
    stands: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    place: Span | None = None
    """Where it is said."""


def find_meaning(known: DocumentAnalysis, offset: int) -> NameMeaning | None:
    """What the word at a character means; None where nothing is known of it."""
    # from the inside out: what a character is in first has the say
    nodes = nodes_at(known.file, offset) if known.file else []
    for depth in range(len(nodes) - 1, -1, -1):
        found = _of_node(known, nodes[: depth + 1], offset)
        if found is not None:
            return found
    return _keyword(known, offset)


def _of_node(known: DocumentAnalysis, nodes: Sequence[ast.Node], offset: int) -> NameMeaning | None:
    """What the last of some nodes, each inside the one before, means at a character."""
    node = nodes[-1]
    match node:
        case ast.Name(span=span) if span is not None:
            return _name(known, nodes, node, offset)
        case ast.Option(name_span=span) if span and span.start <= offset <= span.end:
            return _option(known, nodes, node)
        case ast.Target() | ast.BlockParameter() | ast.DefinitionParameter():
            return _binding(known, node, offset)
        case ast.Field(span=span) if span and _in_name(span, node.name, offset):
            return _field(node, span.start)
        case ast.Assign(span=span) if span and _in_name(span, node.name, offset):
            return _of_path(known, node.name, span.start, span.start + len(node.name))
        case ast.DimName(span=span) if span and _in_name(span, node.name, offset):
            return _length(known, node.name, span.start)
        case ast.Use():
            return _used(known, node)
        case ast.File(extends_span=span) if span and span.start <= offset <= span.end:
            return _extended(known, span)
        case _:
            return None


def _in_name(span: Span, name: str, offset: int) -> bool:
    """Whether a character belongs to the name that a node begins with."""
    return span.start <= offset <= span.start + len(name)


def _binding(
    known: DocumentAnalysis,
    node: ast.Target | ast.BlockParameter | ast.DefinitionParameter,
    offset: int,
) -> NameMeaning | None:
    """A name where it is given."""
    span = node.span
    if span is None or not _in_name(span, node.name, offset) or not node.name:
        return None
    typed = f": {print_type(node.type)}" if node.type else ""
    return NameMeaning(
        start=span.start,
        end=span.start + len(node.name),
        shown=node.name + typed,
        stands=known.shapes.get((span.start, span.end), ()),
        numbers=known.numbers.get((span.start, span.end), ()),
        place=span,
    )


def _field(field: ast.Field, start: int) -> NameMeaning:
    """A config value where it is declared, or elsewhere."""
    plain = replace(field, doc="", remarks=ast.NO_COMMENTS)
    return NameMeaning(
        start=start,
        end=start + len(field.name),
        shown=" ".join(line.strip() for line in print_statement(plain, 0)),
        doc=field.doc,
        place=field.span,
    )


def _option(
    known: DocumentAnalysis, nodes: Sequence[ast.Node], node: ast.Option
) -> NameMeaning | None:
    """An option of a call, or a value of a record."""
    span = node.name_span
    assert span is not None  # as the caller looked
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    records = [n for n in nodes if isinstance(n, ast.RecordLiteral)]
    # `text: { layers: 2 }` of an instance: its keys are config values
    if records and not calls:
        names = [n.name for n in nodes if isinstance(n, ast.Assign | ast.Option)]
        return _of_path(known, ".".join(names), span.start, span.end)
    if not calls:
        return None
    called = resolve_dotted_name(known, calls[-1].function.path, span.start, called=True)
    if called is None:
        return None
    return replace(called, start=span.start, end=span.end)


def _of_path(known: DocumentAnalysis, path: str, start: int, end: int) -> NameMeaning | None:
    """A config value by its dotted path."""
    field = known.spec.program.paths().get(path) if known.spec else None
    return replace(_field(field, start), start=start, end=end) if field else None


def _name(
    known: DocumentAnalysis, nodes: Sequence[ast.Node], node: ast.Name, offset: int
) -> NameMeaning | None:
    """A name, up to the part that the character is in."""
    span = node.span
    assert span is not None  # as the caller looked
    parent = nodes[-2] if len(nodes) > 1 else None
    called = isinstance(parent, ast.Call) and parent.function is node
    # `v.encode`: with the cursor in `v` the used file is meant
    dot = node.path.find(".", max(0, offset - span.start))
    path = node.path if dot < 0 else node.path[:dot]
    found = resolve_dotted_name(known, path, span.start, called=called)
    at = span.start, span.end
    stands, numbers = known.shapes.get(at, ()), known.numbers.get(at, ())
    if found is None:
        if not stands:
            return None
        found = NameMeaning(start=span.start, end=span.end, shown=path)
    if path != node.path:
        stands = numbers = ()
    return replace(
        found, start=span.start, end=span.start + len(path), stands=stands, numbers=numbers
    )


def resolve_dotted_name(
    known: DocumentAnalysis, path: str, offset: int, *, called: bool = False
) -> NameMeaning | None:
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


def _local(known: DocumentAnalysis, name: str, offset: int) -> NameMeaning | None:
    """A name of the block or definition around: what gave it last."""
    item = enclosing_item(known.file, offset) if known.file else None
    found = [b for b in bindings_at(item, offset) if b.name == name] if item else []
    if not found:
        return None
    last = max(found, key=lambda b: b.span.start)
    kind = last.node.type if isinstance(last.node, ast.BlockParameter) else None
    shown = f"{name}: {print_type(kind)}" if kind else f"{name}  # {last.kind}"
    at = last.span.start, last.span.end
    return NameMeaning(
        start=offset,
        end=offset + len(name),
        shown=shown,
        stands=known.shapes.get(at, ()),
        numbers=known.numbers.get(at, ()),
        place=last.span,
    )


def _of_config(known: DocumentAnalysis, name: str, offset: int) -> NameMeaning | None:
    if known.spec is not None:
        return _of_path(known, name, offset, offset + len(name))
    fields = config_fields(known.file) if known.file else ()
    return next((_field(f, offset) for f in fields if f.name == name), None)


def _item(known: DocumentAnalysis, name: str, offset: int) -> NameMeaning | None:
    """A block, a definition or a word."""
    module = known.module
    found = (module.found(name) if module else None) or known.library.standard(name)
    # where a normalizer is due std's is meant, elsewhere the word
    if found is not None and not (found[1].standard and name in BUILTINS):
        return item_meaning(found[0], offset)
    if name not in BUILTINS:
        return None
    word = BUILTINS[name]
    return NameMeaning(start=offset, end=offset + len(name), shown=word.shown(), doc=word.doc)


def item_meaning(item: ast.Block | ast.Definition, offset: int) -> NameMeaning:
    """A block or a definition."""
    pieces = layout_header(item) if isinstance(item, ast.Block) else layout_definition(item)
    return NameMeaning(
        start=offset,
        end=offset + len(item.name),
        shown=join_pieces(pieces),
        doc=item.doc,
        place=item.name_span or item.span,
    )


def _length(known: DocumentAnalysis, name: str, offset: int) -> NameMeaning | None:
    """A length that `dims` declares."""
    # the file itself first, then what it extends
    module: SpecModule | None = known.module
    while module is not None:
        dims = [item for item in module.file.items if isinstance(item, ast.Dims)]
        lengths = [one for item in dims for one in item.names if one.name == name]
        if lengths:
            return NameMeaning(
                start=offset,
                end=offset + len(name),
                shown=f"dims {name}",
                doc=f"a length that the inputs tell, at least {lengths[0].least}",
                place=lengths[0].span,
            )
        module = module.extended
    return None


def _fixed(known: DocumentAnalysis, name: str, offset: int) -> NameMeaning | None:
    if name not in NAMED_CONSTANTS:
        return None
    return NameMeaning(start=offset, end=offset + len(name), shown=name)


def _member(
    known: DocumentAnalysis, head: str, rest: str, path: str, offset: int
) -> NameMeaning | None:
    """`v.encode`, `config.width`: an item of a used file, or a value inside another."""
    at = offset, offset + len(path)
    user = known.module.user(head) if known.module else None
    if user is not None:
        use, module = user
        used = resolve_used_file(known, module, use)
        if used is not None and rest in used.items:
            return replace(item_meaning(used.items[rest], offset), end=at[1])
    return _of_path(known, path.removeprefix("config."), *at)


def _used(known: DocumentAnalysis, node: ast.Use) -> NameMeaning | None:
    """A used file."""
    assert known.module is not None or known.file is not None
    used = resolve_used_file(known, known.module, node) if known.module else None
    span = node.span
    return None if used is None or span is None else _spec(used.file, span)


def _extended(known: DocumentAnalysis, span: Span) -> NameMeaning | None:
    """The spec that is extended."""
    base = known.module.extended if known.module else None
    return None if base is None else _spec(base.file, span)


def _spec(file: ast.File, span: Span) -> NameMeaning:
    """Another spec, where its name stands."""
    return NameMeaning(
        start=span.start, end=span.end, shown=f"model {file.model}", doc=file.doc, place=file.span
    )


def _keyword(known: DocumentAnalysis, offset: int) -> NameMeaning | None:
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
            return NameMeaning(
                start=found.start(), end=found.end(), doc=extract_docstring_summary(node.__doc__)
            )
    return None


TICKS = re.compile(r"`+")
MARKS = re.compile(r"([<>\[\]!\\&])")
"""Characters that would make more of a text than a text."""


def meaning_as_markdown(found: NameMeaning) -> str:
    """What a word means, as an editor shows it: code, text, and what stands there."""
    parts: list[str] = []
    if found.shown:
        parts.append(fence_code(found.shown))
    if found.doc:
        parts.append(escape_spec_text(found.doc))
    if found.stands:
        parts.append("here: " + " or ".join(f"`{escape_code(s)}`" for s in found.stands))
    # numbers tell nothing more where no length is a config value
    if found.numbers and found.numbers != found.stands:
        said = " or ".join(f"`{escape_code(s)}`" for s in found.numbers)
        parts.append(f"with this config: {said}")
    return "\n\n".join(parts)


def fence_code(code: str) -> str:
    """Code in a fence that nothing in it closes."""
    longest = max((len(t) for t in TICKS.findall(code)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = "\n".join(escape_control_characters(line) for line in code.split("\n"))
    return f"{fence}specc\n{lines}\n{fence}"


def escape_spec_text(text: str) -> str:
    """A text of a spec whose marks stay marks: no link, no picture, no HTML."""
    lines = (escape_control_characters(line) for line in text.split("\n"))
    return "\n".join(MARKS.sub(r"\\\1", line) for line in lines)


def escape_code(text: str) -> str:
    """A text between backticks."""
    return escape_control_characters(text).replace("`", "'")
