"""Report `share` rules without effect (E0527, W0505)."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from specc.diagnostics.diagnostic import Diagnostic, Failed, Label
from specc.diagnostics.suggest import format_suggestion
from specc.frontend.context import Library
from specc.frontend.spec_modules import Program
from specc.frontend.symbolic_check import check_spec_symbolically
from specc.ir.model import ModelDefinition
from specc.syntax import ast
from specc.weights.parameter_names import NamePattern, nearest_name


def check_share_rules(
    program: Program, library: Library, models: Sequence[ModelDefinition]
) -> list[Diagnostic]:
    """Return E0527 for each rule whose path matches no weights of any graph, and W0505 for each
    rule whose weights no two calls use.

    `models` are the trials of one graph; other graphs are elaborated only if needed.
    """
    rules = [
        r
        for item, _ in program.iterate_items(ast.Weights)
        for r in item.rules
        if isinstance(r, ast.Share)
    ]
    everywhere = list(models)
    others = _iterate_other_graphs(program, library, models[0].graph.name)
    # elaborating a graph is slow: stop when no rule is left
    while missing := [r for r in rules if not _is_rule_needed(r, everywhere)]:
        more = next(others, None)
        if more is None:
            break
        everywhere += more
    return [_explain_useless_rule(r, everywhere) for r in missing if _is_rule_active(r, everywhere)]


def _is_rule_needed(rule: ast.Share, models: Iterable[ModelDefinition]) -> bool:
    return any(m.shared_scopes.get(rule.name.text) for m in models)


def _is_rule_active(rule: ast.Share, models: Iterable[ModelDefinition]) -> bool:
    """Return whether the condition of the rule was true in some trial."""
    return any(rule.name.text in m.shared_scopes for m in models)


def _iterate_other_graphs(
    program: Program, library: Library, known: str
) -> Iterator[list[ModelDefinition]]:
    """Yield the trials of each other graph of a spec. A check of that graph reports its errors."""
    for item in program.module.items.values():
        if isinstance(item, ast.Block) and item.kind == "graph" and item.name != known:
            with suppress(Failed):
                trials = check_spec_symbolically(program, library, item.name)
                yield [t.model for t in trials]


def _explain_useless_rule(rule: ast.Share, models: Iterable[ModelDefinition]) -> Diagnostic:
    path = rule.name.text
    label = Label.at(rule.span, "named by this `share`")
    names = {
        p: None for m in models for name in m.graph.parameters for p in _list_parent_paths(name)
    }
    if any(map(NamePattern(path).matches, names)):
        help_ = "remove it, or give both calls this name with `@`"
        return Diagnostic(
            "W0505", f"no two calls share `{path}`", label, helps=(help_,), severity="warning"
        )
    close = nearest_name(path, names)
    hint = format_suggestion(close) if close else "`specc show` lists the names of all weights"
    return Diagnostic("E0527", f"no weights `{path}` to share", label, helps=(hint,))


def _list_parent_paths(name: str) -> list[str]:
    """Return the path and its parents: `a.b.c`, `a.b`, `a`."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
