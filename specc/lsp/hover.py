"""Describe the name at a position: signature, documentation, types, location of the definition."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specc.diagnostics.render import escape_control_characters, extract_docstring_summary
from specc.diagnostics.source import Span
from specc.frontend.builtins import BUILTINS
from specc.frontend.elaboration_context import SpecModule
from specc.frontend.name_lookup import NAMED_CONSTANTS
from specc.lsp.document_analysis import (
    DocumentAnalysis,
    find_enclosing_item,
    find_nodes_at,
    iterate_config_fields,
    list_bindings_at,
    resolve_used_file,
)
from specc.syntax import ast
from specc.syntax.dsl.dsl_printer import layout_header, layout_leaf, print_statement
from specc.syntax.dsl.expression_printer import join_pieces, print_type

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KEYWORD_NODES: dict[str, type[ast.Node]] = {
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
"""Keywords, and the AST class whose documentation explains them."""


@dataclass(frozen=True, kw_only=True)
class NameMeaning:
    """The meaning of the name at offsets `start` to `end`: its declaration as code, documentation,
    types with symbolic lengths and with config values, and the span of its definition.
    """

    start: int = 0
    end: int = 0
    code: str = ""
    doc: str = ""
    symbolic_types: tuple[str, ...] = ()
    concrete_types: tuple[str, ...] = ()
    definition: Span | None = None


def find_meaning(analysis: DocumentAnalysis, offset: int) -> NameMeaning | None:
    """Return the meaning of the name at a character, or None if it is unknown."""
    nodes = find_nodes_at(analysis.file, offset) if analysis.file else []
    # the innermost node with documentation
    for depth in range(len(nodes), 0, -1):
        found = _find_node_meaning(analysis, nodes[:depth], offset)
        if found is not None:
            return found
    return _find_keyword_meaning(analysis, offset)


def _find_node_meaning(
    analysis: DocumentAnalysis, nodes: Sequence[ast.Node], offset: int
) -> NameMeaning | None:
    """Return the meaning of the innermost of nested nodes at an offset."""
    node = nodes[-1]
    match node:
        case ast.Name(span=span) if span is not None:
            return _find_name_meaning(analysis, nodes, node, offset)
        case ast.Option(name_span=span) if span and span.start <= offset <= span.end:
            return _set_location(_find_option_meaning(analysis, nodes, span), span.start, span.end)
        case ast.File(extends_span=span) if span and span.start <= offset <= span.end:
            return _set_location(_make_spec_meaning(analysis.extended_module), span.start, span.end)
        case ast.Use(span=span) if span and analysis.module:
            return _set_location(
                _make_spec_meaning(resolve_used_file(analysis, analysis.module, node)),
                span.start,
                span.end,
            )
        case (
            ast.Target(name=name, span=span)
            | ast.BlockParameter(name=name, span=span)
            | ast.DefinitionParameter(name=name, span=span)
            | ast.Field(name=name, span=span)
            | ast.Assign(name=name, span=span)
            | ast.DimName(name=name, span=span)
        ) if name and span and span.start <= offset <= span.start + len(name):
            return _set_location(
                _find_declaration_meaning(analysis, node, span), span.start, span.start + len(name)
            )
        case _:
            return None


def _set_location(meaning: NameMeaning | None, start: int, end: int) -> NameMeaning | None:
    return replace(meaning, start=start, end=end) if meaning else None


def _find_declaration_meaning(
    analysis: DocumentAnalysis, node: ast.Node, span: Span
) -> NameMeaning | None:
    """Return the meaning of a name where it is declared."""
    match node:
        case ast.Field():
            return _make_field_meaning(node)
        case ast.Assign():
            return _find_config_path_meaning(analysis, node.name)
        case ast.DimName():
            return _find_length_meaning(analysis, node.name)
        case ast.Target() | ast.BlockParameter() | ast.DefinitionParameter():
            typed = f": {print_type(node.type)}" if node.type else ""
            return _make_binding_meaning(analysis, node.name + typed, span)
    return None


def _make_binding_meaning(analysis: DocumentAnalysis, code: str, span: Span) -> NameMeaning:
    at = span.start, span.end
    return NameMeaning(
        code=code,
        symbolic_types=analysis.shapes.get(at, ()),
        concrete_types=analysis.concrete_shapes.get(at, ()),
        definition=span,
    )


def _make_field_meaning(field: ast.Field) -> NameMeaning:
    undocumented = replace(field, doc="", comments=ast.NO_COMMENTS)
    code = " ".join(line.strip() for line in print_statement(undocumented, 0))
    return NameMeaning(code=code, doc=field.doc, definition=field.span)


def _find_option_meaning(
    analysis: DocumentAnalysis, nodes: Sequence[ast.Node], span: Span
) -> NameMeaning | None:
    """Return the meaning of an option of a call, or of a config value in a record."""
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    if calls:
        return find_dotted_name_meaning(analysis, calls[-1].function.path, span.start, called=True)
    return _find_record_key_meaning(analysis, nodes)


def _find_record_key_meaning(
    analysis: DocumentAnalysis, nodes: Sequence[ast.Node]
) -> NameMeaning | None:
    """Return the meaning of a key of `text: { layers: 2 }` of an instance, a config value."""
    names = [n.name for n in nodes if isinstance(n, ast.Assign | ast.Option)]
    is_record = any(isinstance(n, ast.RecordLiteral) for n in nodes)
    return _find_config_path_meaning(analysis, ".".join(names)) if is_record else None


def _find_config_path_meaning(analysis: DocumentAnalysis, path: str) -> NameMeaning | None:
    return (
        _make_field_meaning(analysis.config_paths[path]) if path in analysis.config_paths else None
    )


def _find_name_meaning(
    analysis: DocumentAnalysis, nodes: Sequence[ast.Node], node: ast.Name, offset: int
) -> NameMeaning | None:
    """Return the meaning of a dotted name up to the part that contains the offset."""
    span = node.span
    assert span is not None  # as the caller checked
    called = _is_called(nodes, node)
    path = _truncate_path(node.path, offset - span.start)
    here = _make_binding_meaning(analysis, path, span)
    found = find_dotted_name_meaning(analysis, path, span.start, called=called)
    if found is None and not here.symbolic_types:
        return None
    found = found or replace(here, definition=None)
    types = (here.symbolic_types, here.concrete_types) if path == node.path else ((), ())
    end = span.start + len(path)
    return replace(
        found, start=span.start, end=end, symbolic_types=types[0], concrete_types=types[1]
    )


def _is_called(nodes: Sequence[ast.Node], node: ast.Name) -> bool:
    """Return True if a name is the function of the call around it."""
    return len(nodes) > 1 and isinstance(nodes[-2], ast.Call) and nodes[-2].function is node


def _truncate_path(path: str, offset: int) -> str:
    """Return a dotted name up to the part at an offset: with the cursor on `v` of `v.encode`, the
    used file.
    """
    dot = path.find(".", max(0, offset))
    return path if dot < 0 else path[:dot]


def find_dotted_name_meaning(
    analysis: DocumentAnalysis, path: str, offset: int, *, called: bool = False
) -> NameMeaning | None:
    """Return the meaning of a dotted name at a character. The innermost scope takes precedence."""
    head, _, rest = path.partition(".")
    if rest:
        return _find_member_meaning(analysis, head, rest)
    values = (_find_local_meaning, _find_config_value_meaning)
    look_ups = (_find_item_meaning, *values) if called else (*values, _find_item_meaning)
    found = (look_up(analysis, head, offset) for look_up in look_ups)
    constant = NameMeaning(code=head) if head in NAMED_CONSTANTS else None
    return next(filter(None, found), None) or _find_length_meaning(analysis, head) or constant


def _find_member_meaning(
    analysis: DocumentAnalysis, first_name: str, member_path: str
) -> NameMeaning | None:
    """Return the meaning of `first_name.rest`: an item of a used file, or a config value."""
    used = analysis.find_used_module(first_name)
    if used is not None and member_path in used.items:
        return make_item_meaning(used.items[member_path])
    return _find_config_path_meaning(
        analysis, f"{first_name}.{member_path}".removeprefix("config.")
    )


def _find_local_meaning(analysis: DocumentAnalysis, name: str, offset: int) -> NameMeaning | None:
    """Return the last binding of a name in the enclosing block or definition."""
    item = find_enclosing_item(analysis.items, offset)
    found = [b for b in list_bindings_at(item, offset) if b.name == name] if item else []
    if not found:
        return None
    last = max(found, key=lambda b: b.span.start)
    kind = last.node.type if isinstance(last.node, ast.BlockParameter) else None
    code = f"{name}: {print_type(kind)}" if kind else f"{name}  # {last.kind}"
    return _make_binding_meaning(analysis, code, last.span)


def _find_config_value_meaning(analysis: DocumentAnalysis, name: str, _: int) -> NameMeaning | None:
    if analysis.spec is not None:
        return _find_config_path_meaning(analysis, name)
    return next(
        (_make_field_meaning(f) for f in iterate_config_fields(analysis.items) if f.name == name),
        None,
    )


def _find_item_meaning(analysis: DocumentAnalysis, name: str, _: int) -> NameMeaning | None:
    """Return the meaning of a block, a definition or a built-in function."""
    found = analysis.find_item(name)
    # std's definition applies where a normalizer is expected; elsewhere the built-in function
    # applies
    if found is not None and not (found[1].is_standard and name in BUILTINS):
        return make_item_meaning(found[0])
    if name not in BUILTINS:
        return None
    word = BUILTINS[name]
    return NameMeaning(code=word.format_signature(), doc=word.doc)


def make_item_meaning(item: ast.Block | ast.Definition) -> NameMeaning:
    """Return the meaning of a block or a definition."""
    pieces = layout_header(item) if isinstance(item, ast.Block) else layout_leaf(item)
    place = item.name_span or item.span
    return NameMeaning(code=join_pieces(pieces), doc=item.doc, definition=place)


def _find_length_meaning(analysis: DocumentAnalysis, name: str) -> NameMeaning | None:
    """Return the meaning of a length that `dims` declares, in this file or in an extended file."""
    module: SpecModule | None = analysis.module
    while module is not None:
        for one in _iterate_dims(module, name):
            doc = f"a dynamic length, at least {one.minimum}"
            return NameMeaning(code=f"dims {name}", doc=doc, definition=one.span)
        module = module.extended
    return None


def _iterate_dims(module: SpecModule, name: str) -> Iterator[ast.DimName]:
    """Yield the declarations of a length in one file."""
    dims = (item for item in module.file.items if isinstance(item, ast.Dims))
    return (one for item in dims for one in item.names if one.name == name)


def _make_spec_meaning(module: SpecModule | None) -> NameMeaning | None:
    if module is None:
        return None
    file = module.file
    return NameMeaning(code=f"model {file.model}", doc=file.doc, definition=file.span)


def _find_keyword_meaning(analysis: DocumentAnalysis, offset: int) -> NameMeaning | None:
    """Return the documentation of a keyword."""
    text = analysis.source.text
    start = text.rfind("\n", 0, offset) + 1
    for found in IDENTIFIER.finditer(text, start):
        if found.start() > offset:
            return None
        # in YAML a keyword is a key at the start of a line; elsewhere it is a regular key
        first = not text[start : found.start()].strip(" -\"'")
        if analysis.syntax == "yaml" and not first:
            return None
        if found.end() >= offset and found.group() in KEYWORD_NODES:
            node = KEYWORD_NODES[found.group()]
            return NameMeaning(
                start=found.start(), end=found.end(), doc=extract_docstring_summary(node.__doc__)
            )
    return None


BACKTICKS = re.compile(r"`+")
MARKDOWN_CHARACTERS = re.compile(r"([<>\[\]!\\&])")
"""Characters with a meaning in Markdown."""


def format_meaning(meaning: NameMeaning) -> str:
    """Format the meaning of a name for an editor: code, text, and shapes."""
    parts: list[str] = []
    if meaning.code:
        parts.append(fence_code(meaning.code))
    if meaning.doc:
        parts.append(escape_markdown(meaning.doc))
    if meaning.symbolic_types:
        parts.append("here: " + _join_alternatives(meaning.symbolic_types))
    # numbers add no information if no length is a config value
    if meaning.concrete_types and meaning.concrete_types != meaning.symbolic_types:
        parts.append(f"with this config: {_join_alternatives(meaning.concrete_types)}")
    return "\n\n".join(parts)


def _join_alternatives(codes: Sequence[str]) -> str:
    """Join code fragments to a text such as `f32[n]` or `f32[m]`."""
    return " or ".join(f"`{escape_code(code)}`" for code in codes)


def fence_code(code: str) -> str:
    """Return code in a Markdown fence that is longer than any fence in the code."""
    longest = max((len(t) for t in BACKTICKS.findall(code)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = "\n".join(escape_control_characters(line) for line in code.split("\n"))
    return f"{fence}specc\n{lines}\n{fence}"


def escape_markdown(text: str) -> str:
    """Escape the Markdown of a spec's text: no links, images or HTML."""
    lines = (escape_control_characters(line) for line in text.split("\n"))
    return "\n".join(MARKDOWN_CHARACTERS.sub(r"\\\1", line) for line in lines)


def escape_code(text: str) -> str:
    """Format a text as inline Markdown code."""
    return escape_control_characters(text).replace("`", "'")
