"""Look up names and diagnostic codes: `specc list`, `specc doc` and `specc explain`."""

import re
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

from specc.cli.options import add_option_groups
from specc.cli.terminal import print_json_result
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.machine_formats_and_exit_codes import get_error_category
from specc.diagnostics.render import extract_docstring_summary
from specc.diagnostics.suggest import find_similar_name, suggest_similar_name
from specc.driver.option_kinds import BOOLEAN_OPTION, Option
from specc.frontend.builtins import BUILTINS
from specc.frontend.foreign_names_and_options import (
    RENAMED_STD_DEFINITIONS,
    suggest_replacement_name,
)
from specc.io.safe_read import escape_text
from specc.library.spec_file_lookup import (
    SpecLibrary,
    find_builtin_specs,
    find_error_doc_pages,
    parse_page_title,
    read_spec_file,
)
from specc.syntax import ast
from specc.syntax.dsl.dsl_printer import format_statement

DEFINITION_PLURALS = {
    "mask": "masks",
    "score": "scores",
    "bias": "biases",
    "normalizer": "normalizers",
}
LISTED_KINDS = ["specs", "types", "blocks", *DEFINITION_PLURALS.values(), "functions"]
TITLE_PATTERN = re.compile(r'^(?:model \w+ "([^"\\\n]*)"|doc: ([^\s"\'][^\n]*?))$', re.MULTILINE)


def add_list_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc list`."""
    parser.add_argument(
        "kind", nargs="?", choices=LISTED_KINDS, help="kind of names to list (default: all kinds)"
    )


def execute_list_command(args: Namespace) -> int:
    """Print the names of specs, types, blocks or functions, one per line with a summary."""
    kinds = [args.kind] if args.kind else LISTED_KINDS
    docs_by_kind = {kind: dict(sorted(_map_summaries(kind).items())) for kind in kinds}
    items = [
        {"kind": kind, "name": name, "doc": doc}
        for kind, docs in docs_by_kind.items()
        for name, doc in docs.items()
    ]
    if print_json_result({"items": items}):
        return 0
    for kind, docs in docs_by_kind.items():
        width = max(map(len, docs), default=0)
        print(f"{kind}:")
        for name, doc in docs.items():
            print(f"  {name.ljust(width)}  {doc}".rstrip())
    return 0


def _map_summaries(kind: str) -> dict[str, str]:
    if kind == "specs":
        return {name: read_spec_title(path) for name, path in find_builtin_specs().items()}
    if kind == "types":
        from specc.huggingface.model_family import map_model_types_to_specs

        return {kind: f"read by {name}" for kind, name in map_model_types_to_specs().items()}
    if kind == "functions":
        return {name: extract_docstring_summary(w.doc) for name, w in BUILTINS.items()}
    return _map_std_definitions(kind)


def read_spec_title(path: Path) -> str:
    """Return the title of a spec. Parse the spec only if its header has an unusual form."""
    title = TITLE_PATTERN.search(path.read_text(encoding="utf-8"))
    return title[1] or title[2] if title else read_spec_file(path, path.name).doc


def _map_std_definitions(kind: str) -> dict[str, str]:
    """Map names of std blocks, or of std definitions of one kind, to their docstrings."""
    library = SpecLibrary()
    docs = {}
    for name in library.list_std_names():
        item = library.find_std_item(name)
        assert item is not None
        is_block = isinstance(item[0], ast.Block)
        if kind == ("blocks" if is_block else DEFINITION_PLURALS[item[0].kind]):
            docs[name] = item[0].doc
    return docs


READING_DOCS = {
    "text": (
        'text(characters("x.vocab")), text(words("x.vocab")), text(bytes()), '
        'text(tokenizer("tokenizer.json"))',
        "Tokenize text to ids with a vocabulary or tokenizer; for an output, decode ids to text.",
    ),
    "characters": (
        'text(characters("x.vocab"), start=, end=, unknown=)',
        "One id per character: its line number in the file, or its index in the list, from 0.",
    ),
    "words": (
        'text(words("x.vocab"), start=, end=, unknown=, lower=false)',
        "One id per word: its line number in the file, or its index in the list, from 0. "
        "`lower` lowercases text first. `words()` reads the vocabulary file next to the "
        "weights.",
    ),
    "bytes": (
        "text(bytes(), start=, end=, offset=0)",
        "One id per byte of the UTF-8 text, plus `offset`.",
    ),
    "tokenizer": (
        'text(tokenizer("tokenizer.json"), start=, end=, special=true, spread=, replace=)',
        "A tokenizer.json of the `tokenizers` package. `tokenizer()` loads the file next to "
        "the weights. `spread=[id, n]` repeats the token `id` n times, for an image of n "
        "tokens; `replace=[a, b]` replaces a by b before tokenization.",
    ),
}
"""Syntax and summary of each preprocessing function, by name. docs/language.md has the details."""

WEIGHT_RULE_DOCS = {
    "transpose": (
        "transpose(x, axes=, unless=)",
        "Reverse the axes, or permute them with `axes`; a tensor that already has the shape "
        "`unless` is unchanged.",
    ),
    "reshape": ("reshape(x, shape=[…])", "Change the shape; one dimension may be -1."),
    "concat": ("concat(a, b, …, axis=0)", "Concatenate tensors along an axis."),
    "slice": (
        "slice(x, axis=0, start=, stop=)",
        "Slice an axis from index `start` to `stop` (exclusive).",
    ),
    "split": (
        "split(x, into=, part=, axis=0)",
        "Split an axis into `into` equal parts, or into parts of the lengths in a list, and "
        "return part `part`, counted from 0.",
    ),
    "permute_pairs": (
        "permute_pairs(x, to=half, heads=)",
        "Permute the rows of each head from interleaved to half-split RoPE order; "
        "`to=interleaved` is the inverse.",
    ),
    "negate": ("negate(x)", "Elementwise negation."),
    "cast": ("cast(x, to=)", "Convert the element type."),
    "add": ("add(x, number=)", "Add a number to every element."),
    "resize_grid": (
        "resize_grid(x, rows=, columns=, prefix=0)",
        "Resize a square grid of position embeddings; the first `prefix` rows, e.g. a class "
        "token, are unchanged.",
    ),
    "first_present": (
        "first_present(a, b, …)",
        "The first argument whose tensors the checkpoint contains.",
    ),
    "stack": (
        'stack("experts.{e}.w1.weight", e=8)',
        "Stack tensors of equal shape along a new first axis; here `{e}` runs from 0 to 7.",
    ),
    "rearrange": (
        'rearrange(x, pattern="(h d) i -> h d i", h=8)',
        "Split, permute and merge axes with an einops pattern.",
    ),
}
"""Syntax and summary of each tensor transform in a `load` rule."""
CONFIG_DOCS = {
    "rope_config": (
        "rope: rope from rope_config(theta=, context=, layers=, base=) = rope(theta=10000.0)",
        "Read RoPE settings from config.json: `rope_parameters`, `rope_scaling` or "
        "`rope_theta`. `theta` and `context` are the defaults of the model class, `layers` "
        "selects a layer type, `base` names another key for theta.",
    ),
    "len": ('labels: int from len("id2label") = 2', "The number of entries in a list or object."),
    "repeated": (
        'kinds: list[text] from repeated("attention_types")',
        'Expand repeated patterns: `[[["global", "local"], 12]]` becomes a list of 24.',
    ),
}
"""Syntax and summary of each function that reads config.json."""
OTHER_DOCS = {
    "reading": READING_DOCS,
    "weight transformation": WEIGHT_RULE_DOCS,
    "config": CONFIG_DOCS,
}
"""Names that are valid only in one section of a spec, with their documentation, by kind."""

DOC_OPTIONS = {
    "source": Option(
        BOOLEAN_OPTION, "", "print the full source code; for a built-in spec the whole file"
    )
}


def add_doc_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc doc`."""
    parser.add_argument(
        "name", metavar="NAME", help="name of a spec, block or function (see `specc list`)"
    )
    add_option_groups(parser, output=DOC_OPTIONS)


def execute_doc_command(args: Namespace) -> int:
    """Print the signature and documentation of a name."""
    library = SpecLibrary()
    if _is_only_spec_name(args.name, library):
        definitions = [_document_spec(args.name, library, with_source=args.source)]
    else:
        definitions = find_documentation_entries(args.name, library, with_source=args.source)
    items = [*map(vars, definitions)]
    if not print_json_result({"name": args.name, "definitions": items}):
        print("\n\n".join(definition.format_text() for definition in definitions))
    return 0


@dataclass(frozen=True, kw_only=True)
class DocumentationEntry:
    """The documentation of a definition. `text` is the signature or the source code of the
    definition.
    """

    kind: str
    text: str
    doc: str = ""
    file: str = ""

    def format_text(self) -> str:
        """Format the definition with its docstring and the path of the defining file."""
        # print the source code of a spec unchanged, because the output may be redirected to a file
        if self.kind == "spec":
            return self.text.removesuffix("\n")
        details = (self.doc, f"({self.file})" if self.file else "")
        return "\n\n".join([self.text, *filter(None, details)])


def _document_spec(name: str, library: SpecLibrary, *, with_source: bool) -> DocumentationEntry:
    """Return the source text of a built-in spec, or a summary: comment, config and graph
    signatures.
    """
    path = find_builtin_specs()[name]
    text = path.read_text(encoding="utf-8")
    if not with_source:
        comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
        items = library.load_module(path, name).file.items
        shown = [
            replace(item, body=(), end_comments=()) if isinstance(item, ast.Block) else item
            for item in items
            if isinstance(item, ast.ConfigSection)
            or (isinstance(item, ast.Block) and item.kind == "graph")
        ]
        text = "\n\n".join(
            ["\n".join(comment), *("\n".join(format_statement(i, 0)) for i in shown)]
        )
    return DocumentationEntry(kind="spec", text=text, file=path.name)


def find_documentation_entries(
    name: str, library: SpecLibrary, *, with_source: bool
) -> list[DocumentationEntry]:
    """Return the documentation of all definitions of a name. Raise E0204 for an unknown name."""
    builtin, definition = BUILTINS.get(name), library.find_std_item(name)
    documentation = (
        [DocumentationEntry(kind="function", text=builtin.format_signature(), doc=builtin.doc)]
        if builtin
        else []
    )
    if definition is not None:
        item, module = definition
        kind = "block" if isinstance(item, ast.Block) else item.kind
        if isinstance(item, ast.Block) and not with_source:
            item = replace(item, body=(), end_comments=())
        text = "\n".join(format_statement(item, 0))
        documentation.append(DocumentationEntry(kind=kind, text=text, file=str(module.path)))
    for kind, docs in OTHER_DOCS.items():
        if name in docs:
            text, doc = docs[name]
            documentation.append(DocumentationEntry(kind=kind, text=text, doc=doc))
    if not documentation:
        _raise_unknown_name(name, library)
    return documentation


def _raise_unknown_name(name: str, library: SpecLibrary) -> NoReturn:
    """Raise E0204 for an unknown name, with a suggestion of a similar name."""
    names = [
        *BUILTINS,
        *library.list_std_names(),
        *(n for docs in OTHER_DOCS.values() for n in docs),
    ]
    helps = suggest_similar_name(name, names, "see `specc list`")
    if name in RENAMED_STD_DEFINITIONS:
        helps = [suggest_replacement_name(name, names)]
    raise_error("E0204", f"unknown name `{escape_text(name)}`", helps=helps)


def _is_only_spec_name(name: str, library: SpecLibrary) -> bool:
    """Return True if `name` names a built-in spec, and neither a block nor a function."""
    is_block_or_function = name in BUILTINS or name in library.list_std_names()
    return name in find_builtin_specs() and not is_block_or_function


def add_explain_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of `specc explain`."""
    parser.add_argument("code", metavar="CODE", help="a diagnostic code, for example E0302")


def execute_explain_command(args: Namespace) -> int:
    """Print the documentation page for a diagnostic code."""
    code = normalize_diagnostic_code(args.code)
    pages = find_error_doc_pages()
    if code not in pages:
        suggestion = find_similar_name(code, pages)
        code_range = f"codes range from {min(pages)} to {max(pages)}"
        hint = f"did you mean {suggestion}?" if suggestion else code_range
        raise_error("E0200", f"unknown code `{escape_text(args.code)[:40]}`", helps=[hint])
    page, status = pages[code].read_text(encoding="utf-8").rstrip(), get_error_category(code).value
    result = {"code": code, "title": parse_page_title(page), "status": status, "page": page}
    if not print_json_result(result):
        print(page)
    return 0


def normalize_diagnostic_code(text: str) -> str:
    """Normalize a diagnostic code: `e302`, `302` and `[E0302]` become `E0302`."""
    text = text.strip("[]: ").upper()
    letter, digits = text[:1], text[1:]
    if text.isdecimal():
        letter, digits = "E", text
    return f"{letter}{digits:0>4}" if digits.isdecimal() and digits else text
