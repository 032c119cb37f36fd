"""Resolve graph inputs whose types and defaults are declared in an `inputs` section."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from specc.diagnostics.diagnostic import Diagnostic, ErrorCollector, Label
from specc.diagnostics.suggest import suggest_similar_name
from specc.syntax import ast

Declarations = Mapping[str, ast.InputDecl]
"""The entries of a file's `inputs` sections, keyed by name."""


def iterate_declared_inputs(file: ast.File) -> Iterator[ast.InputDecl]:
    """Yield the entries of a file's `inputs` sections."""
    for item in file.items:
        if isinstance(item, ast.InputsSection):
            yield from item.entries


def resolve_declared_inputs(collector: ErrorCollector, file: ast.File) -> ast.File:
    """Copy the declarations of the `inputs` sections to graph inputs that have no type. Report
    E0116 for a duplicate declaration and E0127 for an input without a declaration.
    """
    declarations: dict[str, ast.InputDecl] = {}
    for entry in iterate_declared_inputs(file):
        first_entry = declarations.setdefault(entry.name, entry)
        if first_entry is not entry:
            collector.add_errors(_make_duplicate_error(entry, first_entry))
    items = tuple(
        _resolve_block(collector, item, declarations) if isinstance(item, ast.Block) else item
        for item in file.items
    )
    return replace(file, items=items)


def _make_duplicate_error(entry: ast.InputDecl, first_entry: ast.InputDecl) -> Diagnostic:
    """Return E0116 for a second declaration of an input."""
    title = f"the input `{entry.name}` is duplicated"
    related_labels = Label.tuple_from_span(first_entry.span, "first here")
    primary = Label.from_span(entry.span, "again here")
    return Diagnostic("E0116", title, primary, related_labels, helps=("remove one of the two",))


def _resolve_block(
    collector: ErrorCollector, block: ast.Block, declarations: Declarations
) -> ast.Block:
    """Copy declarations to the untyped parameters of a block or graph."""
    params = tuple(
        _resolve_parameter(collector, block, p, declarations) if p.is_from_inputs else p
        for p in block.params
    )
    return replace(block, params=params)


def _resolve_parameter(
    collector: ErrorCollector,
    block: ast.Block,
    param: ast.BlockParameter,
    declarations: Declarations,
) -> ast.BlockParameter:
    """Copy a declaration to an untyped parameter."""
    # blocks cannot share declarations, because the dimensions of blocks are local names
    declaration = declarations.get(param.name) if block.kind == "graph" else None
    if declaration is None:
        collector.add_errors(_make_missing_type_error(block, param, declarations))
        return param
    return replace(param, type=declaration.type, default=declaration.default)


def _make_missing_type_error(
    block: ast.Block, param: ast.BlockParameter, declarations: Declarations
) -> Diagnostic:
    """Return E0127 for a parameter without a type."""
    place, helps = "", []
    if block.kind == "graph":
        place, helps = (
            " here, or in a section `inputs`",
            suggest_similar_name(param.name, declarations),
        )
    helps.append(f"declare the type of each input{place}: `{param.name}: float[batch, n, d]`")
    title = f"the input `{param.name}` of `{block.name}` has no type"
    return Diagnostic("E0127", title, Label.from_span(param.span, "no type"), helps=tuple(helps))
