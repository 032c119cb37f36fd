"""Check a spec without weights: shapes for all sizes, causality and padding, then with the
numbers of the config.
"""

from argparse import ArgumentParser, Namespace

from specc.analysis.analysis_report import AnalysisReport, analyze_graph
from specc.cli import terminal
from specc.cli.options import add_spec_arguments, open_spec_from_arguments
from specc.diagnostics.diagnostic import Failed
from specc.diagnostics.render import group_thousands
from specc.driver.spec_loader import CheckedSpec, OpenedSpec, check_spec
from specc.driver.tied_weights import count_own_parameters, mark_ties
from specc.ir.model import ModelDefinition
from specc.syntax import ast


def add_check_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc check`."""
    add_spec_arguments(parser)


def run_check(given: Namespace) -> int:
    """Print what holds; warnings go to stderr."""
    spec = open_spec_from_arguments(given)
    found = check_spec(spec, given.graph)
    model = found.model or found.trials[0].model
    proved = _proved(model)
    if proved.errors:
        raise Failed(*proved.errors)
    terminal.print_diagnostics([*found.warnings, *proved.warnings], given.format, given.color)
    if terminal.print_json_result("check", _told(spec, found, proved)):
        return 0
    terminal.print_done(f"{spec.program.name}: ok")
    for line in (*_tried(spec, found), *proved.lines(), *_other_graphs(spec, model)):
        terminal.print_done(f"  {line}")
    return 0


def _told(spec: OpenedSpec, found: CheckedSpec, proved: AnalysisReport) -> dict[str, object]:
    """Return the proved facts as JSON values."""
    axes = [{"axis": each.symbol, "causal": each.causal, "why": each.why} for each in proved.others]
    if proved.growing:
        axes.insert(0, {"axis": proved.growing, "causal": proved.causal, "why": ""})
    return {
        "model": spec.program.name,
        "tried": _trials(found),
        "parameters": _parameters(spec, found),
        "missing": [missing.title for missing in found.missing],
        "notes": list(spec.remarks),
        "axes": axes,
        "batch": proved.batch,
        "apart": proved.apart,
        "padding": list(proved.padded),
    }


def _other_graphs(spec: OpenedSpec, model: ModelDefinition) -> list[str]:
    """Name the graphs of the spec that are not checked."""
    blocks = [block for block, _ in spec.program.iterate_items(ast.Block)]
    others = [b.name for b in blocks if b.kind == "graph" and b.name != model.graph.name]
    return [f"other graphs, checked with --graph NAME: {', '.join(others)}"] if others else []


def _trials(found: CheckedSpec) -> list[str]:
    """List the trial values, `layers = 2`."""
    return sorted({f"{k} = {v}" for t in found.trials for k, v in t.trial_values.items()})


def _parameters(spec: OpenedSpec, found: CheckedSpec) -> int | None:
    """Count the parameters for this config, or None if it is incomplete."""
    if found.model is None:
        return None
    model = mark_ties(spec.program, spec.library, spec.reader, found.model)
    return count_own_parameters(model.graph).number or 0


def _proved(model: ModelDefinition) -> AnalysisReport:
    """Analyze a model in its use: generation, streaming, or a full forward."""
    if (written := model.generation) is not None:
        return analyze_graph(model.graph, written.growing, written.source, model.defaults)
    if (stream := model.streaming) is not None:
        return analyze_graph(
            model.graph, stream.growing, defaults=model.defaults, streamed=stream.sources
        )
    return analyze_graph(model.graph)


def _tried(spec: OpenedSpec, found: CheckedSpec) -> list[str]:
    tried = _trials(found)
    lines = ["shapes are valid for all sizes" + (f" (tried {', '.join(tried)})" if tried else "")]
    if (count := _parameters(spec, found)) is not None:
        lines.append(f"with this config: {group_thousands(count)} parameters")
    for missing in found.missing:
        lines.append(f"not checked with numbers: {missing.title}")
    return lines
