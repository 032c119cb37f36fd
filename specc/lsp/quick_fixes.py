"""Quick fixes: edits suggested by the help messages of a diagnostic that remove the diagnostic."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from specc.diagnostics.diagnostic import Diagnostic, Span
from specc.diagnostics.suggest import find_similar_name
from specc.lsp.document_analysis import (
    DocumentAnalysis,
    QuickFixEdit,
    QuickFixValidator,
    find_enclosing_item,
    find_nodes_at_offset,
)
from specc.syntax import ast
from specc.syntax.ast import walk_tree

OPTION_TEXT = re.compile(r"(\w+)(?:=(?!=)|: )(\S.*)")
DECLARATION_TEXT = re.compile(r"(\w+): \w.*")
ITEM_TEXT = re.compile(r"(?:dims|weights|config|mask|score|bias|normalizer)\b(?!=)")
PLAIN_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w(=])")
CALLED_NAME = re.compile(r"(\w+)\(")
PLACEHOLDER_NAME = re.compile(r"(?<![\w.\"])x(?![\w(=\"])")
"""The pattern of the placeholder `x` in help messages, which stands for any expression."""
MAX_WORDS = 3  # maximum number of names that one suggestion replaces


def make_replacement_edit(span: Span, text: str) -> QuickFixEdit:
    """Return the edit that replaces the text of a span."""
    return QuickFixEdit(f"write `{text}`", span.start, span.end, text)


def propose_code_edits(
    analysis: DocumentAnalysis, spans: Sequence[Span], code: str, *, is_addition: bool
) -> Iterator[QuickFixEdit]:
    """Yield edits for suggested code, the most likely first. `spans[0]` is the error span. The code
    replaces the text of a span, or is added to it if `is_addition` is True.
    """
    # code with an ellipsis cannot be inserted, except `… @ name`, which is appended to existing
    # code
    code = code.removeprefix("… ")
    if "…" in code or "..." in code:
        return
    yield from _propose_option_edits(analysis, spans, code)
    yield from _propose_declaration_edits(analysis, code)
    yield from _propose_item_edits(analysis, spans, code)
    yield from _propose_mask_edits(analysis, spans, code)
    yield from _propose_call_edits(analysis, spans, code)
    for span in spans:
        yield from _propose_label_edits(span, code, is_addition=is_addition)
    yield from _propose_placeholder_edits(analysis, spans, code)
    for span in spans:
        yield from _propose_word_edits(span, code)
    if analysis.file is None and spans:  # after a syntax error, replace the line
        start, end = _find_line(analysis.source.text, spans[0].start)
        line = analysis.source.text[start:end]
        indent = line[: len(line) - len(line.lstrip())]
        yield QuickFixEdit(f"write `{code}`", start, end, f"{indent}{code}\n")


def propose_removals(spans: Sequence[Span]) -> Iterator[QuickFixEdit]:
    """Yield edits that remove a span's text, also with an adjacent comma or with whole lines."""
    for span in spans:
        source, title = span.source.text, f"remove `{span.text}`"
        start, end = span.start, span.end
        comma_after = re.compile(r"\s*,\s*").match(source, end)
        comma_before = re.search(r"\s*,\s*$", source[:start])
        if comma_after:
            yield QuickFixEdit(title, start, comma_after.end(), "")
        if comma_before:
            yield QuickFixEdit(title, comma_before.start(), end, "")
        yield QuickFixEdit(title, start, end, "")
        first_line_start, last_line_end = _find_line(source, start)[0], _find_line(source, end)[1]
        yield QuickFixEdit(title, first_line_start, last_line_end, "")


def _propose_option_edits(
    analysis: DocumentAnalysis, spans: Sequence[Span], code: str
) -> Iterator[QuickFixEdit]:
    """Yield edits that change or add an option such as `mask=causal` in calls near the error."""
    option = OPTION_TEXT.fullmatch(code)
    if option is None:
        return
    for call in _iterate_calls(analysis, spans):
        option_spans = [o.span for o in call.options if o.name == option[1] and o.span]
        yield from (make_replacement_edit(span, code) for span in option_spans)
        if not option_spans:
            yield from _append_option(call, code)


def _append_option(call: ast.Call, code: str) -> Iterator[QuickFixEdit]:
    """Yield an edit that appends the option `code` to a call with parentheses."""
    closer = _find_end_of_inputs(call)
    if closer is not None:
        comma = ", " if call.args or call.options else ""
        yield QuickFixEdit(f"add `{code}`", closer, closer, f"{comma}{code}")


def _iterate_calls(analysis: DocumentAnalysis, spans: Sequence[Span]) -> Iterator[ast.Call]:
    """Yield the calls around and inside `spans`, nearest first, without duplicates."""
    yielded_calls: list[ast.Call] = []
    for span in spans if analysis.file else ():
        assert analysis.file is not None
        for node in _list_nodes_near(analysis.file, span.start):
            if isinstance(node, ast.Call) and node.span and node not in yielded_calls:
                yielded_calls.append(node)
                yield node


def _list_nodes_near(file: ast.File, offset: int) -> list[ast.Node]:
    """Return the nodes that contain an offset, innermost first, and then their descendants."""
    nodes = find_nodes_at_offset(file, offset)
    # the offset may be the start of a statement, or of the call in this statement
    inner_nodes = [n for node in nodes[-2:] for n in walk_tree(node)]
    return [*reversed(nodes), *inner_nodes]


def _find_end_of_inputs(call: ast.Call) -> int | None:
    """Return the offset before the closing parenthesis of a call, or None if there is none."""
    assert call.span is not None
    start, text = call.span.start, call.span.text
    # a quoted weight name after the call may contain brackets
    if call.weights and call.weights.span:
        text = text[: call.weights.span.start - start]
    closer = text.rfind(")")
    return start + closer if closer >= 0 else None


def _propose_declaration_edits(analysis: DocumentAnalysis, code: str) -> Iterator[QuickFixEdit]:
    """Yield edits that declare an input or a config value, such as `keep: keep[b, n] right`."""
    name_match = DECLARATION_TEXT.fullmatch(code)
    if name_match is None or analysis.file is None:
        return
    title = f"declare `{code}`"
    for node in walk_tree(analysis.file):
        match node:
            case ast.BlockParameter(is_from_inputs=False) | ast.InputDecl() | ast.ConfigField():
                # replace the name and the type, but not the default value
                if node.name == name_match[1] and node.span and node.type.span:
                    yield QuickFixEdit(title, node.span.start, node.type.span.end, code)
    for item in analysis.items:
        if isinstance(item, ast.ConfigSection) and item.span:
            closer = item.span.end - 1
            yield QuickFixEdit(title, closer, closer, f"  {code} ")
    yield from _insert_above(analysis, f"config {{ {code} }}", title)


def _propose_item_edits(
    analysis: DocumentAnalysis, spans: Sequence[Span], code: str
) -> Iterator[QuickFixEdit]:
    """Yield edits that add an item, a `where` clause of a graph, or a `return` statement."""
    title = f"add `{code}`"
    if analysis.file is None or not spans:
        return
    if ITEM_TEXT.match(code):
        yield from _insert_item(analysis, code, title)
    block = find_enclosing_item(analysis.items, spans[0].start)
    if isinstance(block, ast.Block) and block.span is not None:
        yield from _propose_block_edits(block.span, code, title)


def _insert_item(analysis: DocumentAnalysis, code: str, title: str) -> Iterator[QuickFixEdit]:
    """Yield edits that add an item to the document."""
    if analysis.syntax == "yaml":
        # YAML keys are unordered
        end = len(analysis.source.text)
        yield QuickFixEdit(title, end, end, f"{code}\n")
    else:
        yield from _insert_above(analysis, code, title)


def _propose_block_edits(span: Span, code: str, title: str) -> Iterator[QuickFixEdit]:
    """Yield edits that add a `where` clause or a `return` statement to a block."""
    start, text = span.start, span.text
    if code.startswith("where ") and "{" in text:
        offset = start + text.index("{")
        yield QuickFixEdit(title, offset, offset, f"{code} ")
    if code.startswith("return ") and text.endswith("}"):
        yield QuickFixEdit(title, start + len(text) - 1, start + len(text) - 1, f"  {code}\n")


def _insert_above(analysis: DocumentAnalysis, line: str, title: str) -> Iterator[QuickFixEdit]:
    """Yield an edit that inserts a line above the first block or definition."""
    for item in analysis.items:
        if isinstance(item, ast.Block | ast.AttentionDef) and item.span:
            offset = _find_line(analysis.source.text, item.span.start)[0]
            yield QuickFixEdit(title, offset, offset, f"{line}\n\n")
            return


def _propose_mask_edits(
    analysis: DocumentAnalysis, spans: Sequence[Span], code: str
) -> Iterator[QuickFixEdit]:
    """Yield edits that append `& causal` to the mask of a call."""
    for call in _iterate_calls(analysis, spans) if code.startswith("& ") else ():
        for option in call.options:
            value = option.value.span
            if option.name == "mask" and value is not None:
                # `|` has a lower precedence than the appended operator
                text = f"({value.text})" if "|" in value.text else value.text
                yield make_replacement_edit(value, f"{text} {code}")


def _propose_label_edits(span: Span, code: str, *, is_addition: bool) -> Iterator[QuickFixEdit]:
    """Yield edits that replace the text of a label, or insert code after or before the text."""
    if not is_addition and not code.startswith("@ "):
        yield make_replacement_edit(span, code)
    else:
        title = f"add `{code}`"
        blank = " " if code[0].isalnum() or code[0] == "@" else ""
        yield QuickFixEdit(title, span.end, span.end, blank + code)
        yield QuickFixEdit(title, span.start, span.start, f"{code}\n")


def _propose_call_edits(
    analysis: DocumentAnalysis, spans: Sequence[Span], code: str
) -> Iterator[QuickFixEdit]:
    """Yield edits that replace a call with a call of the same function, as in `tokenizer("a")`."""
    name = CALLED_NAME.match(code)
    for call in _iterate_calls(analysis, spans) if name else ():
        if name and call.function.path == name[1] and call.span is not None:
            yield make_replacement_edit(call.span, code)


def _propose_placeholder_edits(
    analysis: DocumentAnalysis, spans: Sequence[Span], code: str
) -> Iterator[QuickFixEdit]:
    """Yield edits that insert code such as `last(x)`, where `x` is replaced with the text or an
    argument at the error.
    """
    if not spans or not PLACEHOLDER_NAME.search(code):
        return

    def make_edit(target: Span, replacement: Span) -> QuickFixEdit:
        return make_replacement_edit(target, PLACEHOLDER_NAME.sub(lambda _: replacement.text, code))

    error_span = spans[0]
    for call in _iterate_calls(analysis, spans[:1]):
        for argument in _list_argument_spans(call, error_span):
            yield make_edit(argument, argument)
            yield make_edit(error_span, argument)
    yield make_edit(error_span, error_span)


def _list_argument_spans(call: ast.Call, error_span: Span) -> list[Span]:
    """Return the spans of the arguments of a call if the text of the error contains the call."""
    is_inside = call.span is not None and call.span.text in error_span.text
    return [a.span for a in call.args if is_inside and a.span]


def _propose_word_edits(span: Span, code: str) -> Iterator[QuickFixEdit]:
    """Yield edits that replace a name with code that contains the name, as in `last(x)`."""
    names = dict.fromkeys(PLAIN_WORD.findall(code))
    for name in [*names][:MAX_WORDS]:
        for match in re.finditer(rf"(?<![\w.]){re.escape(name)}(?![\w(=])", span.text):
            if match.group() != span.text:
                start = span.start + match.start()
                yield QuickFixEdit(f"write `{code}`", start, start + len(name), code)


def _find_line(text: str, offset: int) -> tuple[int, int]:
    """Return the start offset of the line that contains `offset`, and of the next line."""
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    return start, len(text) if end < 0 else end + 1


QUOTED_PIECE = re.compile(r"`([^`\n]+)`")
CODE_CHARACTER = re.compile(r"[ =(@:&]")
"""The pattern of a character that occurs in code but not in names."""
FINAL_PIECE = re.compile(r"(?P<add>)[^`]*: `(?P<piece>[^`\n]+)`")
"""The pattern of a help text that ends with code to insert."""
REMOVAL_START = re.compile(r"(?:delete it|remove (?:it|one of the two))\b")
"""The pattern of the beginning of a help text that suggests to remove code."""
ONE_OF_PATTERN = re.compile(r"(?:it is|expected) one of ([\w.-]+(?:, [\w.-]+)*)")
EXACT_ADVICE = re.compile(
    r"(?:write|choose another name, such as|[^`]+ is written|write [a-z]+(?: [a-z]+)? as|"
    r"(?P<add>add|add the missing|"
    r"close it with)) `(?P<piece>[^`\n]+)`"
)
"""The pattern of a help text that consists only of code to insert."""
ADVICE_START = re.compile(r"(?:(?:write|use|add|declare it:) )?`")
"""The pattern of the beginning of a help text that contains code to insert."""
NAME_SUGGESTION = re.compile(r"did you mean `([^`\n]+)`\?")
NAME_CHARACTERS = re.compile(r"[\w.-]+")
MAX_TRIED = 16  # maximum number of quick fixes tried per diagnostic
MAX_INSPECTED = 64  # maximum number of quick fixes generated per diagnostic
MAX_SUGGESTIONS = 4  # maximum number of quick fixes offered per diagnostic


def find_quick_fixes(
    analysis: DocumentAnalysis,
    diagnostic: Diagnostic,
    unsaved_texts: Mapping[Path, str] | None = None,
) -> list[QuickFixEdit]:
    """Return at most MAX_SUGGESTIONS edits that remove `diagnostic` without causing a new error.
    `unsaved_texts` are the texts of other open documents by path.
    """
    validator = QuickFixValidator(analysis, diagnostic, unsaved_texts or {})
    text, fixes = analysis.source.text, dict[str, QuickFixEdit]()
    edits_by_text = {
        e.apply_to_text(text): e for e in islice(propose_edits(analysis, diagnostic), MAX_INSPECTED)
    }
    for edit in islice(edits_by_text.values(), MAX_TRIED):
        # for each title, keep the first edit that removes the diagnostic: the most likely edits
        # come first
        if edit.title not in fixes and validator.is_valid_fix(edit):
            fixes[edit.title] = edit
        if len(fixes) == MAX_SUGGESTIONS:
            break
    return [*fixes.values()]


def propose_edits(analysis: DocumentAnalysis, diagnostic: Diagnostic) -> Iterator[QuickFixEdit]:
    """Yield edits that may implement a diagnostic's suggestions, the most likely first."""
    for fix in diagnostic.fixes:
        if analysis.is_in_document(fix.span):
            yield make_replacement_edit(fix.span, fix.text)
    spans = _list_label_spans(analysis, diagnostic)
    # try names first, because they are more often correct than the code in help messages
    if spans:
        yield from _follow_name_suggestions(diagnostic, spans[0])
    for advice in diagnostic.helps:
        yield from _follow_advice(analysis, advice, spans)


def _list_label_spans(analysis: DocumentAnalysis, diagnostic: Diagnostic) -> list[Span]:
    """Return the spans of a diagnostic's labels in the document, the primary label first."""
    labels = diagnostic.labels if diagnostic.primary else ()
    return [label.span for label in labels if analysis.is_in_document(label.span)]


def _follow_name_suggestions(diagnostic: Diagnostic, span: Span) -> Iterator[QuickFixEdit]:
    """Yield edits that replace a name with the names that the messages suggest."""
    for advice in (diagnostic.title, *diagnostic.helps):
        for suggestion in NAME_SUGGESTION.findall(advice):
            yield from _rename_name(diagnostic, span, suggestion)


def _follow_advice(
    analysis: DocumentAnalysis, advice: str, spans: Sequence[Span]
) -> Iterator[QuickFixEdit]:
    """Yield edits that may implement the suggestion of a help message."""
    if REMOVAL_START.match(advice):
        yield from propose_removals(spans)
    if choice := ONE_OF_PATTERN.fullmatch(advice):
        for word in choice[1].split(", "):
            yield from propose_code_edits(analysis, spans[:1], word, is_addition=False)
    for piece, is_addition in _iterate_help_fragments(advice, is_parsed=analysis.spec is not None):
        yield from propose_code_edits(analysis, spans, piece, is_addition=is_addition)


def _iterate_help_fragments(advice: str, *, is_parsed: bool) -> Iterator[tuple[str, bool]]:
    """Yield (code, is_addition) pairs, one for each code fragment of a help message. If
    `is_addition` is False, the code replaces text.
    """
    exact = EXACT_ADVICE.fullmatch(advice) or FINAL_PIECE.fullmatch(advice)
    if exact is not None:
        yield exact["piece"], bool(exact["add"])
    elif is_parsed:
        is_direct = ADVICE_START.match(advice) is not None
        yield from (
            (piece, advice.startswith("add"))
            for piece in QUOTED_PIECE.findall(advice)
            # a single word usually refers to a name and is not code to insert
            if is_direct or CODE_CHARACTER.search(piece)
        )


def _rename_name(diagnostic: Diagnostic, span: Span, suggestion: str) -> Iterator[QuickFixEdit]:
    """Yield edits that replace a misspelled name with the suggested name."""
    if NAME_CHARACTERS.fullmatch(span.text):
        yield make_replacement_edit(span, suggestion)
    for name in dict.fromkeys(NAME_CHARACTERS.findall(span.text)):
        # in `side.linaer`, only the last component is misspelled
        last_part = name.rpartition(".")[2] if "." not in suggestion else name
        is_similar = find_similar_name(last_part, [suggestion]) == suggestion
        if is_similar and last_part != suggestion and last_part in diagnostic.title:
            start = span.start + span.text.index(name) + len(name) - len(last_part)
            yield QuickFixEdit(f"write `{suggestion}`", start, start + len(last_part), suggestion)
