"""Analyze one version of a document: syntax tree, graphs and diagnostics. Find the nodes and names
at a position, and test whether an edit removes a diagnostic.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

from specc.analysis.check_report import analyze_graph
from specc.diagnostics.diagnostic import (
    Diagnostic,
    Source,
    Span,
    SpeccError,
    merge_duplicate_diagnostics,
)
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.driver.spec_check_and_elaboration import SpecCheckResult, check_spec
from specc.driver.spec_loader import LoadedSpec, open_spec
from specc.frontend.elaboration_context import RECORDED_VALUES, ElaborationRecord, SpecNamespace
from specc.library.spec_file_lookup import SpecLibrary, find_builtin_specs, get_specs_directory
from specc.syntax import ast
from specc.syntax.ast import iterate_children, walk_tree
from specc.syntax.parse import convert_help_snippets_to_yaml, parse_spec
from specc.syntax.parse import detect_syntax as detect_syntax

Shapes = Mapping[tuple[int, int], tuple[str, ...]]
"""The inferred types of each source range (start offset, end offset)."""


@immutable_dataclass(slots=False, kw_only=True)
class DocumentAnalysis:
    """The analysis of one version of a document. It consists of the syntax tree `file`, the
    `module` that resolves names, the loaded `spec`, and the `elaborations` with the inferred types
    of source spans.
    """

    path: Path
    source: Source
    syntax: str
    library: SpecLibrary
    file: ast.File | None = None
    module: SpecNamespace | None = None
    spec: LoadedSpec | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    elaborations: tuple[ElaborationRecord, ...] = field(default=(), repr=False)

    @property
    def items(self) -> Sequence[ast.Item]:
        """The items of the file, or () if the file does not parse."""
        return self.file.items if self.file else ()

    @property
    def base_module(self) -> SpecNamespace | None:
        """The module of the base spec, or None if the document has no base spec."""
        return self.module.base if self.module else None

    @cached_property
    def config_fields_by_path(self) -> Mapping[str, ast.ConfigField]:
        """The config fields of the spec by dotted path."""
        return self.spec.program.map_fields_by_path() if self.spec else {}

    def resolve_definition(
        self, name: str
    ) -> tuple[ast.Block | ast.AttentionDef, SpecNamespace] | None:
        """Return the block or definition `name` of the spec or std and its module, or None."""
        return (
            self.module.find_definition(name) if self.module else None
        ) or self.library.find_std_item(name)

    def find_imported_module(self, alias: str) -> SpecNamespace | None:
        """Return the module that `use … as alias` names, or None if it cannot be read."""
        user = self.module.find_use_statement(alias) if self.module else None
        return try_load_imported_module(self, user[1], user[0]) if user else None

    @cached_property
    def shapes(self) -> Shapes:
        """The types of spans, with symbolic dimensions. Graphs without errors take precedence."""
        symbolic = [r for r in self.elaborations if r.is_symbolic]
        return self._collect_types(sorted(symbolic, key=lambda r: not r.is_complete))

    @cached_property
    def concrete_shapes(self) -> Shapes:
        """The types of spans, with dimensions replaced by the sizes that the config values
        determine.
        """
        return self._collect_types(
            [r for r in self.elaborations if not r.is_symbolic and r.is_complete]
        )

    def _collect_types(self, elaborations: list[ElaborationRecord]) -> Shapes:
        """Return the types of the spans in this document. Earlier elaborations take precedence."""
        types_by_span: dict[tuple[int, int], tuple[str, ...]] = {}
        for elaboration in elaborations:
            for span, types in elaboration.values_by_span.items():
                if self.is_in_document(span):
                    types_by_span.setdefault((span.start, span.end), tuple(types))
        return types_by_span

    def is_in_document(self, span: Span) -> bool:
        """Return True if a span is in this document rather than in another file."""
        source = span.source
        # a cached syntax tree has a different source object with the same name and text
        return (source.name, source.text) == (self.source.name, self.source.text)

    def find_source_path(self, span: Span) -> Path | None:
        """Return the path of the file that contains a span, or None if the source is not a file."""
        if self.is_in_document(span):
            return self.path
        name = span.source.name
        loaded_path = self._find_loaded_path(name)
        if loaded_path is not None:
            return loaded_path
        if name.startswith("std/"):
            return get_specs_directory() / name
        return next((p for p in find_builtin_specs().values() if p.name == name), None)

    def _find_loaded_path(self, name: str) -> Path | None:
        """Return the path of the loaded file whose source has the name `name`, or None."""
        for path, module in self.library.modules.items():
            if module.file.span is not None and module.file.span.source.name == name:
                return path
        return None


def analyze_incrementally(
    path: Path, text: str, unsaved_texts: Mapping[Path, str] | None = None
) -> Iterator[DocumentAnalysis]:
    """Analyze the document at `path`, one graph at a time. Yield the analysis after each graph, the
    default graph first. `unsaved_texts` maps resolved paths to the texts of other open documents.
    Errors in a document are diagnostics, not exceptions.
    """
    library = SpecLibrary(unsaved_texts={**(unsaved_texts or {}), path.resolve(): text})
    source = Source(str(path), text)
    syntax = "specc" if path.suffix == ".specc" else "yaml"
    analysis = DocumentAnalysis(path=path, source=source, syntax=syntax, library=library)
    try:
        analysis = replace(analysis, syntax=detect_syntax(source), file=parse_spec(source))
        analysis = replace(analysis, module=library.load_module(path, str(path)))
        spec = open_spec(str(path), library=library)
    except SpeccError as failed:
        yield replace(
            analysis, diagnostics=tuple(convert_help_snippets_to_yaml(failed.diagnostics))
        )
        return
    analysis = replace(analysis, spec=spec)
    for graph in _iterate_graph_names(spec):
        analysis = _add_graph(analysis, spec, graph)
        yield analysis


def _iterate_graph_names(spec: LoadedSpec) -> Iterator[str]:
    """Yield the names of the graphs of a spec. The default graph of `specc check` comes first."""
    yield ""
    graphs = [b for b, _ in spec.program.iterate_items(ast.Block) if b.kind == "graph"]
    yield from (block.name for block in graphs[1:])


def _add_graph(analysis: DocumentAnalysis, spec: LoadedSpec, graph: str) -> DocumentAnalysis:
    """Check the graph `graph`, and return the analysis with the results of this check."""
    records: list[ElaborationRecord] = []
    context_token = RECORDED_VALUES.set(records)
    diagnostics: list[Diagnostic] = []
    try:
        check_result = check_spec(spec, graph)
        # report warnings only for the default graph, because some warnings depend on values that
        # commands set for other graphs
        diagnostics += [] if graph else _iterate_graph_diagnostics(check_result)
    except SpeccError as failed:
        diagnostics += failed.diagnostics
    finally:
        RECORDED_VALUES.reset(context_token)
    new_diagnostics = [
        d
        for d in convert_help_snippets_to_yaml(merge_duplicate_diagnostics(diagnostics))
        if d not in analysis.diagnostics
    ]
    return replace(
        analysis,
        diagnostics=(*analysis.diagnostics, *new_diagnostics),
        elaborations=(*analysis.elaborations, *records),
    )


def _iterate_graph_diagnostics(checked_spec: SpecCheckResult) -> Iterator[Diagnostic]:
    """Yield the warnings and the analysis errors of a graph that elaborates without errors."""
    model = checked_spec.model or checked_spec.trials[0].model
    generation = model.generation
    report = (
        analyze_graph(
            model.graph, generation.sequence_input, generation.logits_output, model.defaults
        )
        if generation
        else analyze_graph(model.graph)
    )
    yield from checked_spec.warnings
    yield from report.warnings
    yield from report.errors


def try_load_imported_module(
    analysis: DocumentAnalysis, module: SpecNamespace, use: ast.UseStatement
) -> SpecNamespace | None:
    """Return the module of a `use` statement, or None if it cannot be read."""
    with suppress(SpeccError):
        return analysis.library.load_imported_module(use.path, module, None)
    return None


@immutable_dataclass
class NameBinding:
    """A name bound in a document, with the kind, location and syntax node of the binding."""

    name: str
    kind: str
    span: Span
    node: ast.Node


def find_node_span(node: ast.Node) -> Span | None:
    """Return the span of a node, or None if the node was generated."""
    return node.span if isinstance(node, ast.SpannedNode) else None


def find_nodes_at_offset(root: ast.Node, offset: int) -> list[ast.Node]:
    """Return the nodes whose span contains an offset or ends at the offset, innermost last."""
    sized_nodes: list[tuple[int, ast.Node]] = []
    stack = [root]
    while stack:
        node = stack.pop()
        span = find_node_span(node)
        if span is not None and not span.start <= offset <= span.end:
            continue
        if span is not None:
            sized_nodes.append((span.start - span.end, node))
        stack.extend(iterate_children(node))
    # sort nodes by the length of their span, longest first. The sort is stable, so a parent
    # precedes an equally long child.
    return [node for _, node in sorted(sized_nodes, key=itemgetter(0))]


def iterate_visible_bindings(
    item: ast.Node, end_offset: int | None = None
) -> Iterator[NameBinding]:
    """Yield the names bound in a block or definition, up to `end_offset` unless it is None."""
    for node in walk_tree(item):
        for binding in _iterate_bindings(node):
            if end_offset is None or binding.span.start < end_offset:
                yield binding


def _iterate_bindings(node: ast.Node) -> Iterator[NameBinding]:
    """Yield the names that a syntax node binds."""
    span = find_node_span(node)
    if span is None:
        return
    match node:
        case ast.BlockParameter(name=name) | ast.InputDecl(name=name) if name:
            yield NameBinding(name, "input", span, node)
        case ast.DefinitionParameter(name=name):
            yield NameBinding(name, "parameter", span, node)
        case ast.AssignmentTarget(name=name) if name != "_":
            yield NameBinding(name, "value", span, node)
        case ast.RepeatLoop(variable=name):
            yield NameBinding(name, "iteration index", span, node)
        case ast.ListComprehension(variable=name):
            yield NameBinding(name, "iteration index", span, node)
        case ast.ScanLoop(variables=names):
            for name in names:
                yield NameBinding(name, "position of the iteration", span, node)
        case _:
            return


def iterate_config_fields(items: Iterable[ast.Item]) -> Iterator[ast.ConfigField]:
    """Yield the config fields that a file declares."""
    for item in items:
        if isinstance(item, ast.ConfigSection):
            yield from (e for e in item.entries if isinstance(e, ast.ConfigField))


ScopedItem: TypeAlias = ast.Block | ast.AttentionDef | ast.InputsSection
"""An item of a spec that binds names, such as parameters and variables."""


def find_enclosing_item(
    items: Iterable[ast.Item], offset: int, *, is_incomplete: bool = False
) -> ScopedItem | None:
    """Return the name-binding item that contains an offset. If the text is newer than the items
    (`is_incomplete`), return the last item that begins before the offset.
    """
    scoped_items = (item for item in items if isinstance(item, ScopedItem))
    spans = [(item, item.span) for item in scoped_items if item.span and item.span.start <= offset]
    last_item, last_span = spans[-1] if spans else (None, None)
    return last_item if last_span and (is_incomplete or offset <= last_span.end) else None


@immutable_dataclass
class QuickFixEdit:
    """An edit that replaces the characters `start` to `end`, with a description for the user."""

    title: str
    start: int
    end: int
    text: str

    def apply_to_text(self, text: str) -> str:
        """Apply the edit to a text and return the result."""
        return text[: self.start] + self.text + text[self.end :]


@dataclass
class QuickFixValidator:
    """A validator of edits that may remove a diagnostic from a document."""

    analysis: DocumentAnalysis
    diagnostic: Diagnostic
    unsaved_texts: Mapping[Path, str]

    def is_valid_fix(self, edit: QuickFixEdit) -> bool:
        """Return True if an edit removes the diagnostic without introducing an error."""
        result = self._analyze_graph(edit.apply_to_text(self.analysis.source.text))
        counts_before, counts_after = _count_diagnostics(self.analysis), _count_diagnostics(result)
        key = self.diagnostic.code, self.diagnostic.title
        if counts_after[key] >= counts_before[key] or (
            result.spec is None and self.analysis.spec is not None
        ):
            return False
        # reject new errors only in the inserted text: errors elsewhere may have been hidden by the
        # removed diagnostic
        return not any(
            d.severity == "error"
            and (d.code, d.title) not in counts_before
            and _is_in_inserted_text(result, d, edit)
            for d in result.diagnostics
        )

    def _analyze_graph(self, text: str) -> DocumentAnalysis:
        """Analyze an edited document up to the first graph that has the diagnostic."""
        results = analyze_incrementally(self.analysis.path, text, self.unsaved_texts)
        return next(islice(results, self._graph_index, None), None) or next(
            analyze_incrementally(self.analysis.path, text, self.unsaved_texts)
        )

    @cached_property
    def _graph_index(self) -> int:
        """Return the index of the first graph whose analysis reports the diagnostic."""
        text = self.analysis.source.text
        for n, result in enumerate(
            analyze_incrementally(self.analysis.path, text, self.unsaved_texts)
        ):
            if (self.diagnostic.code, self.diagnostic.title) in _count_diagnostics(result):
                return n
        return 0


def _is_in_inserted_text(
    result: DocumentAnalysis, diagnostic: Diagnostic, edit: QuickFixEdit
) -> bool:
    """Return True if a diagnostic is located in the text that an edit inserted."""
    span = diagnostic.primary.span if diagnostic.primary else None
    if span is None or not result.is_in_document(span):
        return False
    return span.start <= edit.start + len(edit.text) and span.end >= edit.start


def _count_diagnostics(analysis: DocumentAnalysis) -> Counter[tuple[str, str]]:
    """Count the diagnostics for each combination of code and title."""
    counts: Counter[tuple[str, str]] = Counter()
    for d in analysis.diagnostics:
        counts[d.code, d.title] += d.count
    return counts
