"""Hover information: signature, documentation, types, and location of the definition."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from specc.diagnostics.diagnostic import Span
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.render import escape_control_characters, extract_docstring_summary
from specc.frontend.builtins import BUILTINS
from specc.frontend.elaboration_context import SpecNamespace
from specc.frontend.name_lookup import NAMED_CONSTANTS
from specc.lsp.document_analysis import (
    DocumentAnalysis,
    find_enclosing_item,
    find_nodes_at_offset,
    iterate_config_fields,
    iterate_visible_bindings,
    try_load_imported_module,
)
from specc.syntax import ast
from specc.syntax.dsl.dsl_printer import (
    format_node_without_body,
    format_statement,
    format_statement_header,
)
from specc.syntax.dsl.expression_printer import format_inline_type, format_parts, join_pieces

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KEYWORD_NODES: dict[str, type[ast.Node]] = {
    "repeat": ast.RepeatLoop,
    "scan": ast.ScanLoop,
    "when": ast.WhenStatement,
    "return": ast.ReturnStatement,
    "require": ast.RequireStatement,
    "config": ast.ConfigSection,
    "dims": ast.DimsSection,
    "inputs": ast.InputsSection,
    "use": ast.UseStatement,
    "block": ast.Block,
    "graph": ast.Block,
    **dict.fromkeys(ast.DEFINITION_KINDS, ast.AttentionDef),
    "reading": ast.PreprocessingSection,
    "weights": ast.WeightsSection,
    "generate": ast.GenerateSection,
    "quantize": ast.QuantizeSection,
    "stream": ast.StreamSection,
    "expect": ast.ExpectedConfigValues,
    "ignore": ast.IgnoreRule,
    "tie": ast.WeightTyingRule,
    "load": ast.LoadRule,
    "share": ast.WeightSharingRule,
}
"""The AST class of each keyword, whose docstring is the hover text of the keyword."""


@immutable_dataclass(kw_only=True)
class HoverInfo:
    """The information shown for the name at offsets `start_offset` to `end_offset`: its
    declaration, documentation, symbolic and concrete types, and the span of its definition.
    """

    start_offset: int = 0
    end_offset: int = 0
    code: str = ""
    doc: str = ""
    symbolic_types: tuple[str, ...] = ()
    concrete_types: tuple[str, ...] = ()
    definition: Span | None = None


def find_hover_info(analysis: DocumentAnalysis, offset: int) -> HoverInfo | None:
    """Return the hover of the name or keyword at an offset, or None if there is no information."""
    nodes = find_nodes_at_offset(analysis.file, offset) if analysis.file else []
    # search from the innermost to the outermost node
    for depth in range(len(nodes), 0, -1):
        hover = _find_node_hover(analysis, nodes[:depth], offset)
        if hover is not None:
            return hover
    return _find_keyword_hover(analysis, offset)


def _find_node_hover(
    analysis: DocumentAnalysis, nodes: Sequence[ast.Node], offset: int
) -> HoverInfo | None:
    """Return the hover of the last (innermost) node of `nodes`, or None."""
    node = nodes[-1]
    match node:
        case ast.Name(span=span) if span is not None:
            return _find_name_hover(analysis, nodes, node, offset)
        case ast.NamedArg(name_span=span) if span and span.start <= offset <= span.end:
            return _set_location(_find_option_hover(analysis, nodes, span), span.start, span.end)
        case ast.File(extends_span=span) if span and span.start <= offset <= span.end:
            return _set_location(_make_spec_hover(analysis.base_module), span.start, span.end)
        case ast.UseStatement(span=span) if span and analysis.module:
            return _set_location(
                _make_spec_hover(try_load_imported_module(analysis, analysis.module, node)),
                span.start,
                span.end,
            )
        case (
            ast.AssignmentTarget(name=name, span=span)
            | ast.BlockParameter(name=name, span=span)
            | ast.InputDecl(name=name, span=span)
            | ast.DefinitionParameter(name=name, span=span)
            | ast.ConfigField(name=name, span=span)
            | ast.ConfigOverride(name=name, span=span)
            | ast.DimDecl(name=name, span=span)
        ) if name and span and span.start <= offset <= span.start + len(name):
            return _set_location(
                _find_declaration_hover(analysis, node, span), span.start, span.start + len(name)
            )
        case _:
            return None


def _set_location(hover: HoverInfo | None, start: int, end: int) -> HoverInfo | None:
    """Return `hover` with the offsets `start` to `end`, or None if `hover` is None."""
    return replace(hover, start_offset=start, end_offset=end) if hover else None


def _find_declaration_hover(
    analysis: DocumentAnalysis, node: ast.Node, span: Span
) -> HoverInfo | None:
    """Return the hover of a name at its declaration."""
    match node:
        case ast.ConfigField():
            return _make_field_hover(node)
        case ast.ConfigOverride():
            return _find_config_path_hover(analysis, node.name)
        case ast.DimDecl():
            return _find_length_hover(analysis, node.name)
        case ast.BlockParameter(is_from_inputs=True):
            code = join_pieces(format_parts(replace(node, is_from_inputs=False)))
            hover = _make_binding_hover(analysis, code, span)
            # the type is part of the declaration in `inputs`, which defines the name
            return replace(hover, definition=node.type.span)
        case (
            ast.AssignmentTarget()
            | ast.BlockParameter()
            | ast.DefinitionParameter()
            | ast.InputDecl()
        ):
            type_text = f": {format_inline_type(node.type)}" if node.type else ""
            return _make_binding_hover(analysis, node.name + type_text, span)
    return None


def _make_binding_hover(analysis: DocumentAnalysis, code: str, span: Span) -> HoverInfo:
    """Return the hover of a name bound at `span`, with the types of its value."""
    offsets = span.start, span.end
    return HoverInfo(
        code=code,
        symbolic_types=analysis.shapes.get(offsets, ()),
        concrete_types=analysis.concrete_shapes.get(offsets, ()),
        definition=span,
    )


def _make_field_hover(field: ast.ConfigField) -> HoverInfo:
    """Return the hover of a config field, with its declaration and documentation."""
    undocumented = replace(field, doc="", comments=ast.NO_COMMENTS)
    code = " ".join(line.strip() for line in format_statement(undocumented, 0))
    return HoverInfo(code=code, doc=field.doc, definition=field.span)


def _find_option_hover(
    analysis: DocumentAnalysis, nodes: Sequence[ast.Node], span: Span
) -> HoverInfo | None:
    """Return the hover of a named argument in a call, or of a key in a record."""
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    if calls:
        return find_dotted_name_hover(analysis, calls[-1].function.path, span.start, is_called=True)
    # a key of a record in a derived spec is the name of a config field
    names = [n.name for n in nodes if isinstance(n, ast.ConfigOverride | ast.NamedArg)]
    is_record = any(isinstance(n, ast.RecordLiteral) for n in nodes)
    return _find_config_path_hover(analysis, ".".join(names)) if is_record else None


def _find_config_path_hover(analysis: DocumentAnalysis, path: str) -> HoverInfo | None:
    """Return the hover of the config field at a dotted path, or None if there is none."""
    return (
        _make_field_hover(analysis.config_fields_by_path[path])
        if path in analysis.config_fields_by_path
        else None
    )


def _find_name_hover(
    analysis: DocumentAnalysis, nodes: Sequence[ast.Node], node: ast.Name, offset: int
) -> HoverInfo | None:
    """Return the hover of a dotted name, truncated after the component at an offset."""
    span = node.span
    assert span is not None  # the caller has checked that the name has a definition span
    is_called = _is_called(nodes, node)
    path = _truncate_path(node.path, offset - span.start)
    binding_hover = _make_binding_hover(analysis, path, span)
    hover = find_dotted_name_hover(analysis, path, span.start, is_called=is_called)
    if hover is None and not binding_hover.symbolic_types:
        return None
    hover = hover or replace(binding_hover, definition=None)
    types = (
        (binding_hover.symbolic_types, binding_hover.concrete_types)
        if path == node.path
        else ((), ())
    )
    end = span.start + len(path)
    return replace(
        hover,
        start_offset=span.start,
        end_offset=end,
        symbolic_types=types[0],
        concrete_types=types[1],
    )


def _is_called(nodes: Sequence[ast.Node], node: ast.Name) -> bool:
    """Return True if a name is the called function of the enclosing call."""
    return len(nodes) > 1 and isinstance(nodes[-2], ast.Call) and nodes[-2].function is node


def _truncate_path(path: str, offset: int) -> str:
    """Truncate a dotted name after the component at an offset: for example, `v.encode` to `v`."""
    dot = path.find(".", max(0, offset))
    return path if dot < 0 else path[:dot]


def find_dotted_name_hover(
    analysis: DocumentAnalysis, path: str, offset: int, *, is_called: bool = False
) -> HoverInfo | None:
    """Return the hover of the dotted name `path`, resolved in the scope at an offset, or None."""
    head, _, rest = path.partition(".")
    if rest:
        return _find_member_hover(analysis, head, rest)
    values = (_find_local_hover, _find_config_value_hover)
    lookups = (_find_item_hover, *values) if is_called else (*values, _find_item_hover)
    hovers = (lookup(analysis, head, offset) for lookup in lookups)
    constant = HoverInfo(code=head) if head in NAMED_CONSTANTS else None
    return next(filter(None, hovers), None) or _find_length_hover(analysis, head) or constant


def _find_member_hover(
    analysis: DocumentAnalysis, first_name: str, member_path: str
) -> HoverInfo | None:
    """Return the hover of `first_name.member_path`, an item of a used file or a config field."""
    used_module = analysis.find_imported_module(first_name)
    if used_module is not None and member_path in used_module.items:
        return make_definition_hover(used_module.items[member_path])
    return _find_config_path_hover(analysis, f"{first_name}.{member_path}".removeprefix("config."))


def _find_local_hover(analysis: DocumentAnalysis, name: str, offset: int) -> HoverInfo | None:
    """Return the hover of a name's last binding before an offset, or None."""
    item = find_enclosing_item(analysis.items, offset)
    bindings = [b for b in iterate_visible_bindings(item, offset) if b.name == name] if item else []
    if not bindings:
        return None
    last_binding = max(bindings, key=lambda b: b.span.start)
    declared_type = (
        last_binding.node.type
        if isinstance(last_binding.node, ast.BlockParameter | ast.InputDecl)
        else None
    )
    code = (
        f"{name}: {format_inline_type(declared_type)}"
        if declared_type
        else f"{name}  # {last_binding.kind}"
    )
    return _make_binding_hover(analysis, code, last_binding.span)


def _find_config_value_hover(analysis: DocumentAnalysis, name: str, _: int) -> HoverInfo | None:
    """Return the hover of a config field. If the spec could not be loaded, only the fields that the
    document declares are found.
    """
    if analysis.spec is not None:
        return _find_config_path_hover(analysis, name)
    return next(
        (_make_field_hover(f) for f in iterate_config_fields(analysis.items) if f.name == name),
        None,
    )


def _find_item_hover(analysis: DocumentAnalysis, name: str, _: int) -> HoverInfo | None:
    """Return the hover of a block, a definition or a built-in function."""
    item_and_module = analysis.resolve_definition(name)
    # a built-in function takes precedence over a std definition with the same name
    if item_and_module is not None and not (item_and_module[1].is_standard and name in BUILTINS):
        return make_definition_hover(item_and_module[0])
    if name not in BUILTINS:
        return None
    builtin = BUILTINS[name]
    return HoverInfo(code=builtin.format_signature(), doc=builtin.doc)


def make_definition_hover(item: ast.Block | ast.AttentionDef) -> HoverInfo:
    """Return the hover of a block or a definition."""
    pieces = (
        format_statement_header(item)
        if isinstance(item, ast.Block)
        else format_node_without_body(item)
    )
    name_span = item.name_span or item.span
    return HoverInfo(code=join_pieces(pieces), doc=item.doc, definition=name_span)


def _find_length_hover(analysis: DocumentAnalysis, name: str) -> HoverInfo | None:
    """Return the hover of a dynamic dimension in this spec or in a base spec, or None."""
    module: SpecNamespace | None = analysis.module
    while module is not None:
        for declaration in _iterate_dims(module, name):
            doc = f"a dynamic length, at least {declaration.minimum}"
            return HoverInfo(code=f"dims {name}", doc=doc, definition=declaration.span)
        module = module.base
    return None


def _iterate_dims(module: SpecNamespace, name: str) -> Iterator[ast.DimDecl]:
    """Yield the declarations of a dynamic dimension in one file."""
    sections = (item for item in module.file.items if isinstance(item, ast.DimsSection))
    return (dim for item in sections for dim in item.dims if dim.name == name)


def _make_spec_hover(module: SpecNamespace | None) -> HoverInfo | None:
    """Return the hover of a spec, which contains its name and documentation."""
    if module is None:
        return None
    file = module.file
    return HoverInfo(code=f"model {file.model}", doc=file.doc, definition=file.span)


def _find_keyword_hover(analysis: DocumentAnalysis, offset: int) -> HoverInfo | None:
    """Return the hover of the keyword at an offset, or None if there is no keyword."""
    text = analysis.source.text
    start = text.rfind("\n", 0, offset) + 1
    for match in IDENTIFIER.finditer(text, start):
        if match.start() > offset:
            return None
        # in YAML, a word is a keyword only if it is the key at the start of a line
        is_first = not text[start : match.start()].strip(" -\"'")
        if analysis.syntax == "yaml" and not is_first:
            return None
        if match.end() >= offset and match.group() in KEYWORD_NODES:
            node = KEYWORD_NODES[match.group()]
            return HoverInfo(
                start_offset=match.start(),
                end_offset=match.end(),
                doc=extract_docstring_summary(node.__doc__),
            )
    return None


BACKTICKS = re.compile(r"`+")
MARKDOWN_CHARACTERS = re.compile(r"([<>\[\]!\\&])")
"""The pattern of a character with a special meaning in Markdown."""


def format_hover(hover: HoverInfo) -> str:
    """Format a hover as Markdown, with the code, the documentation and the types."""
    parts: list[str] = []
    if hover.code:
        parts.append(format_fenced_code(hover.code))
    if hover.doc:
        parts.append(escape_markdown(hover.doc))
    if hover.symbolic_types:
        parts.append("here: " + _join_alternatives(hover.symbolic_types))
    # the concrete types equal the symbolic types if no dimension depends on config values
    if hover.concrete_types and hover.concrete_types != hover.symbolic_types:
        parts.append(f"with this config: {_join_alternatives(hover.concrete_types)}")
    return "\n\n".join(parts)


def _join_alternatives(codes: Sequence[str]) -> str:
    """Join code fragments to a string such as "`f32[n]` or `f32[m]`"."""
    return " or ".join(f"`{escape_inline_code(code)}`" for code in codes)


def format_fenced_code(code: str) -> str:
    """Enclose code in a Markdown fence that is longer than any fence in the code."""
    max_length = max((len(t) for t in BACKTICKS.findall(code)), default=0)
    fence = "`" * max(3, max_length + 1)
    lines = "\n".join(escape_control_characters(line) for line in code.split("\n"))
    return f"{fence}specc\n{lines}\n{fence}"


def escape_markdown(text: str) -> str:
    """Escape Markdown in a text from a spec, so that the text adds no links, images or HTML."""
    lines = (escape_control_characters(line) for line in text.split("\n"))
    return "\n".join(MARKDOWN_CHARACTERS.sub(r"\\\1", line) for line in lines)


def escape_inline_code(text: str) -> str:
    """Format a string as inline Markdown code."""
    return escape_control_characters(text).replace("`", "'")
