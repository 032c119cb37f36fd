"""Completion in `.specc` files."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.render import extract_docstring_summary
from specc.driver.quantize_section import QUANTIZE_SETTINGS
from specc.frontend.builtins import BUILTINS
from specc.frontend.declared_types import STATIC_KINDS, TENSOR_DTYPES
from specc.frontend.elaboration_context import SpecNamespace
from specc.frontend.name_lookup import NAMED_CONSTANTS
from specc.frontend.parameter_kinds import list_choice_values
from specc.library.spec_file_lookup import find_builtin_specs
from specc.lsp.document_analysis import (
    DocumentAnalysis,
    find_enclosing_item,
    iterate_config_fields,
    iterate_visible_bindings,
)
from specc.syntax import ast
from specc.syntax.dsl.dsl_lexer import Token
from specc.syntax.dsl.dsl_parser import ExpectedTokens, find_expected_tokens
from specc.syntax.dsl.expression_printer import format_inline_type
from specc.syntax.dsl.syntax_errors import find_open_brackets
from specc.syntax.dsl.unexpected_token import ITEM_TERMINALS
from specc.syntax.inputs_section import iterate_declared_inputs

VALUE_TERMINALS = {"NUMBER", "NAME"}

POSITION_NAMES = (("i", "position of the query"), ("j", "position of the key"))
DEFINITION_NAMES = {
    "MASK": POSITION_NAMES,
    "BIAS": POSITION_NAMES,
    "SCORE": (("q", "the query"), ("k", "the key")),
}
"""The predeclared names in definitions and their descriptions, keyed by keyword terminal."""


@immutable_dataclass
class CompletionItem:
    """A completion item. `kind` is a key of COMPLETION_KINDS."""

    text: str
    kind: str
    detail: str = ""
    doc: str = ""


def complete_dsl(analysis: DocumentAnalysis, text: str, offset: int) -> list[CompletionItem]:
    """Return the completions at an offset of `text`, which may be newer than the analysis."""
    start = _find_word_start(text, offset)
    if start and text[start - 1] == ".":
        return list(_complete_members(analysis, _get_dotted_name(text, start - 1)))
    expected = find_expected_tokens(text, start)
    if expected is None:
        return list(_complete_string(text, start))
    tokens = expected.preceding
    is_inside = any(tokens[n].kind == "LBRACE" for n in find_open_brackets(tokens, len(tokens)))
    return complete_expected_tokens(analysis, expected, start, is_incomplete=is_inside)


def _find_word_start(text: str, offset: int) -> int:
    """Return the start offset of the word that ends at `offset`."""
    start = offset
    while start and (text[start - 1].isalnum() or text[start - 1] == "_"):
        start -= 1
    return start


def complete_expected_tokens(
    analysis: DocumentAnalysis, expected: ExpectedTokens, offset: int, *, is_incomplete: bool
) -> list[CompletionItem]:
    """Return completions for the expected terminals of the grammar. `is_incomplete` means that the
    text is newer than the syntax tree, so that the block may have more lines.
    """
    items: list[CompletionItem] = []
    last_kind = expected.preceding[-1].kind if expected.preceding else ""
    if expected.terminals >= VALUE_TERMINALS:
        items += _complete_option_words(expected.preceding)
        items += _complete_options(analysis, expected.preceding)
        items += _complete_definition_names(expected.preceding)
        items += _complete_scope(analysis, offset, is_incomplete=is_incomplete)
    elif last_kind in ("COLON", "ARROW") and "NAME" in expected.terminals:
        items += _list_type_words()
    elif last_kind == "EXTENDS":
        items += list_builtin_spec_completions()
    elif "NAME" in expected.terminals:
        items += _complete_entries(analysis, expected.preceding)
        items += _complete_graph_inputs(analysis, expected.preceding)
    # list keywords last, because users usually want a name where both are allowed
    items += [CompletionItem(kind.lower(), "keyword") for kind in sorted(expected.keywords)]
    return _deduplicate_items(items)


def list_builtin_spec_completions() -> list[CompletionItem]:
    """Return completions for the names of the built-in specs."""
    return [CompletionItem(name, "file", "a built-in spec") for name in find_builtin_specs()]


def _list_type_words() -> list[CompletionItem]:
    """Return completions for the words that can begin a type."""
    return [
        CompletionItem(name, "type") for name in (*STATIC_KINDS, *TENSOR_DTYPES, "list", "pair")
    ]


def _deduplicate_items(items: Iterable[CompletionItem]) -> list[CompletionItem]:
    """Keep the first of several items with the same text. A variable shadows a block."""
    items_by_text: dict[str, CompletionItem] = {}
    for item in items:
        items_by_text.setdefault(item.text, item)
    return list(items_by_text.values())


def _get_dotted_name(text: str, end: int) -> str:
    """Return the dotted name that ends at offset `end`."""
    # read the name from the text, because the code at the cursor is usually incomplete
    start = end
    while start and (text[start - 1].isalnum() or text[start - 1] in "_."):
        start -= 1
    return text[start:end]


def _complete_members(analysis: DocumentAnalysis, head: str) -> Iterator[CompletionItem]:
    """Yield the names that can follow `head` and a dot: items of a used file, or config fields."""
    used_module = analysis.find_imported_module(head)
    for name, item in used_module.items.items() if used_module else ():
        yield CompletionItem(name, "function", doc=item.doc)
    for path, field in analysis.config_fields_by_path.items():
        parent_path, _, name = path.rpartition(".")
        if parent_path and parent_path == head.removeprefix("config."):
            yield CompletionItem(name, "property", format_inline_type(field.type), field.doc)


def _complete_string(text: str, offset: int) -> Iterator[CompletionItem]:
    """Yield the names of built-in specs if the cursor is in a string after `use` or `extends`."""
    line = text[text.rfind("\n", 0, offset) + 1 : offset].lstrip()
    if line.startswith(('use "', 'extends "')):
        yield from list_builtin_spec_completions()


def _complete_options(
    analysis: DocumentAnalysis, tokens: Sequence[Token]
) -> Iterator[CompletionItem]:
    """Yield the options that the call around the cursor does not set yet."""
    bracket = _find_open_bracket(tokens)
    if bracket is None or tokens[bracket].kind != "LPAR" or bracket == 0:
        return
    # after `name =`, the call expects a value, not an option
    if tokens[-1].kind == "EQUAL":
        return
    existing = _find_set_options(tokens[bracket:])
    for item in complete_call_options(analysis, tokens[bracket - 1].text):
        if item.text.removesuffix("=") not in existing:
            yield item


def _find_set_options(tokens: Sequence[Token]) -> set[str]:
    """Return the names of the options that a call already sets."""
    return {token.text for token, after in pairwise(tokens) if after.kind == "EQUAL"}


def _complete_option_words(tokens: Sequence[Token]) -> Iterator[CompletionItem]:
    """Yield the words that are allowed as the value of an option, after `name =` in a call."""
    bracket = _find_open_bracket(tokens)
    if not bracket or len(tokens) < 2 or tokens[-1].kind != "EQUAL":
        return
    builtin = BUILTINS.get(tokens[bracket - 1].text)
    option = tokens[-2].text
    for parameter in builtin.parameters if builtin else ():
        if parameter.name == option:
            yield from (
                CompletionItem(value, "constant", option)
                for value in list_choice_values(parameter.kinds)
            )


def _complete_definition_names(tokens: Sequence[Token]) -> Iterator[CompletionItem]:
    """Yield the names that the mask, bias or score definition around the cursor can use."""
    # the cursor is in the last item that begins before the cursor
    item_starts = [n for n, token in enumerate(tokens) if token.kind in ITEM_TERMINALS]
    definition_tokens = tokens[item_starts[-1] :] if item_starts else ()
    if not definition_tokens or definition_tokens[0].kind not in DEFINITION_NAMES:
        return
    for name, description in DEFINITION_NAMES[definition_tokens[0].kind]:
        yield CompletionItem(name, "variable", description)
    yield from _complete_parameters(definition_tokens)


def _complete_parameters(definition_tokens: Sequence[Token]) -> Iterator[CompletionItem]:
    """Yield the parameters of a definition, which are the names before the equals sign."""
    end_index = next((n for n, token in enumerate(definition_tokens) if token.kind == "EQUAL"), 0)
    for token in definition_tokens[2:end_index]:
        if token.kind == "NAME":
            yield CompletionItem(token.text, "variable", "parameter")


def _find_open_bracket(tokens: Sequence[Token]) -> int | None:
    """Return the token index of the innermost unclosed bracket, or None."""
    return next(reversed(find_open_brackets(tokens, len(tokens))), None)


def _complete_entries(
    analysis: DocumentAnalysis, tokens: Sequence[Token]
) -> Iterator[CompletionItem]:
    """Yield the keys, such as config fields or inputs, that are allowed in a section's braces."""
    bracket = _find_open_bracket(tokens)
    if not bracket or tokens[bracket].kind != "LBRACE":
        return
    match tokens[bracket - 1].kind:
        case "INPUTS" if analysis.base_module:
            yield from _complete_declared_inputs(analysis.base_module.root.file, set())
        case "CONFIG":
            yield from _complete_config_fields(analysis)
        case "QUANTIZE":
            yield from (CompletionItem(word, "property") for word in QUANTIZE_SETTINGS)
        case "READING":
            yield from _complete_inputs(analysis)


def _complete_graph_inputs(
    analysis: DocumentAnalysis, tokens: Sequence[Token]
) -> Iterator[CompletionItem]:
    """Yield the declared inputs that are not yet in the parentheses of a graph."""
    bracket = _find_open_bracket(tokens)
    if analysis.file and bracket and tokens[bracket - 2].kind == "GRAPH":
        yield from _complete_declared_inputs(analysis.file, {t.text for t in tokens[bracket:]})


def _complete_declared_inputs(file: ast.File, names: set[str]) -> Iterator[CompletionItem]:
    """Yield the entries in a file's `inputs` section whose names are not in `names`."""
    for entry in iterate_declared_inputs(file):
        if entry.name not in names:
            yield CompletionItem(entry.name, "property", format_inline_type(entry.type))


def _complete_config_fields(analysis: DocumentAnalysis) -> Iterator[CompletionItem]:
    """Yield the config fields of the base spec."""
    base = analysis.base_module
    for field in iterate_config_fields(base.root.file.items) if base else ():
        yield CompletionItem(field.name, "property", format_inline_type(field.type), field.doc)


def _complete_inputs(analysis: DocumentAnalysis) -> Iterator[CompletionItem]:
    """Yield the names of the inputs and outputs of a spec's graphs."""
    blocks = analysis.spec.program.iterate_items(ast.Block) if analysis.spec else ()
    for block, _ in blocks:
        for param in (*block.params, *block.results) if block.kind == "graph" else ():
            if param.name:
                yield CompletionItem(param.name, "property", format_inline_type(param.type))


def complete_call_options(analysis: DocumentAnalysis, callee: str) -> Iterator[CompletionItem]:
    """Yield the parameters of a function, block or definition that can be passed by name."""
    item_and_module = analysis.resolve_definition(callee)
    # a built-in function shadows a std block with the same name, but not a user block
    if item_and_module is not None and not (item_and_module[1].is_standard and callee in BUILTINS):
        for param in item_and_module[0].params or ():
            kind = format_inline_type(param.type) if param.type else ""
            yield CompletionItem(f"{param.name}=", "option", kind)
    elif callee in BUILTINS:
        yield from _complete_builtin_options(callee)


def _complete_builtin_options(name: str) -> Iterator[CompletionItem]:
    """Yield the parameters of a built-in function that can be passed by name."""
    for parameter in BUILTINS[name].parameters:
        if not parameter.is_variadic:
            kinds = " or ".join(kind.name for kind in parameter.kinds)
            yield CompletionItem(f"{parameter.name}=", "option", kinds)


def _complete_scope(
    analysis: DocumentAnalysis, offset: int, *, is_incomplete: bool
) -> Iterator[CompletionItem]:
    """Yield all values and callables in scope, innermost scope first."""
    item = find_enclosing_item(analysis.items, offset, is_incomplete=is_incomplete)
    for binding in reversed(list(iterate_visible_bindings(item, offset)) if item else []):
        types = analysis.shapes.get((binding.span.start, binding.span.end), (binding.kind,))
        yield CompletionItem(binding.name, "variable", " or ".join(types))
    for path, field in analysis.config_fields_by_path.items():
        if "." not in path:
            yield CompletionItem(path, "property", format_inline_type(field.type), field.doc)
    if analysis.module is not None:
        yield from _complete_module_names(analysis.module)
    yield from _complete_standard_names(analysis)
    yield from (CompletionItem(name, "constant") for name in NAMED_CONSTANTS)


def _complete_module_names(module: SpecNamespace) -> Iterator[CompletionItem]:
    """Yield the names that a file defines, except its config fields."""
    for name in module.root.dims:
        yield CompletionItem(name, "constant", "a length")
    for name in module.list_names():
        item_and_module = module.find_definition(name)
        yield CompletionItem(
            name, "function", doc=item_and_module[0].doc if item_and_module else ""
        )
    for name in module.uses:
        yield CompletionItem(name, "module", "a used file")


def _complete_standard_names(analysis: DocumentAnalysis) -> Iterator[CompletionItem]:
    """Yield the built-in functions, and the blocks and definitions of std."""
    for name, builtin in BUILTINS.items():
        yield CompletionItem(
            name, "function", builtin.format_signature(), extract_docstring_summary(builtin.doc)
        )
    for name in analysis.library.list_std_names():
        item_and_module = analysis.library.find_std_item(name)
        if item_and_module is None:
            continue
        kind = item_and_module[0].kind
        yield CompletionItem(name, "function", f"{kind} of std", item_and_module[0].doc)
