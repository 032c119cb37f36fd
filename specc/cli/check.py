"""Check a spec or a checkpoint directory: its shapes for all sizes, causality, padding, config
values and checkpoint weights.
"""

from argparse import ArgumentParser, Namespace

from specc.analysis.check_report import AnalysisReport, analyze_graph
from specc.analysis.model_cost import format_parameter_count
from specc.cli import terminal
from specc.cli.options import add_spec_arguments, open_spec_from_arguments
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import SpecCheckResult, check_spec
from specc.driver.spec_loader import LoadedSpec
from specc.driver.weights_section_and_load_transforms import count_untied_parameters
from specc.ir.model_definition import ModelDefinition
from specc.syntax import ast

MAX_TRIAL_VALUES = 4
"""Maximum number of trial values that `specc check` lists."""


def add_check_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc check`."""
    add_spec_arguments(parser)


def execute_check_command(args: Namespace) -> int:
    """Check a spec. Print the proved properties to stdout and warnings to stderr."""
    spec = open_spec_from_arguments(args)
    check_result = check_spec(spec, args.graph)
    if spec.checkpoint:
        # import lazily, because only checks of checkpoints use the weight file formats
        from specc.driver.compile_model_and_graph_selection import check_checkpoint_weights

        check_result = check_checkpoint_weights(spec, check_result)
    model = check_result.model or check_result.trials[0].model
    report = _analyze_model(model)
    if report.errors:
        raise SpeccError(*report.errors)
    terminal.print_diagnostics([*check_result.warnings, *report.warnings], args.format, args.color)
    if terminal.print_json_result(_report_to_json(spec, check_result, report)):
        return 0
    terminal.print_result_line(f"{spec.program.name}: ok")
    for line in (
        *_format_trials(check_result),
        *report.format_lines(),
        *check_result.remarks[len(spec.remarks) :],
        *_list_other_graphs(spec, model),
    ):
        terminal.print_result_line(f"  {line}")
    return 0


def _report_to_json(
    spec: LoadedSpec, check_result: SpecCheckResult, report: AnalysisReport
) -> dict[str, object]:
    """Convert the result of `specc check`, including the proved properties, to a JSON object."""
    axes = [
        {"axis": axis.symbol, "causal": axis.is_causal, "reason": axis.reason}
        for axis in report.other_axes
    ]
    if report.time_symbol:
        axes.insert(0, {"axis": report.time_symbol, "causal": report.is_causal, "reason": ""})
    return {
        "model": spec.program.name,
        "trial_values": _list_trial_values(check_result),
        "parameters": _count_parameters(check_result.model),
        "missing_config": [diagnostic.title for diagnostic in check_result.missing],
        "notes": list(check_result.remarks),
        "axes": axes,
        "batch_axis": report.batch_symbol,
        "batch_independent": report.is_batch_independent,
        "padding_masks": list(report.padding_masks),
    }


def _list_other_graphs(spec: LoadedSpec, model: ModelDefinition) -> list[str]:
    """Return a list with one line that names the unchecked graphs, or [] if all were checked."""
    blocks = [block for block, _ in spec.program.iterate_items(ast.Block)]
    names = [b.name for b in blocks if b.kind == "graph" and b.name != model.graph.name]
    return [f"other graphs (check them with --graph NAME): {', '.join(names)}"] if names else []


def _list_trial_values(check_result: SpecCheckResult) -> list[str]:
    """Format the trial values of missing config fields, such as `layers = 2`."""
    return sorted({f"{k} = {v}" for t in check_result.trials for k, v in t.trial_values.items()})


def _count_parameters(model: ModelDefinition | None) -> int | None:
    """Return the model's number of parameters, or None if the config is incomplete."""
    return None if model is None else count_untied_parameters(model.graph).number or 0


def _analyze_model(model: ModelDefinition) -> AnalysisReport:
    """Analyze the properties of a generative, streaming or full-forward model."""
    if (generation := model.generation) is not None:
        return analyze_graph(
            model.graph, generation.sequence_input, generation.logits_output, model.defaults
        )
    if (stream := model.streaming) is not None:
        return analyze_graph(
            model.graph,
            stream.sequence_input,
            defaults=model.defaults,
            streamed_outputs=stream.streamed_outputs,
        )
    return analyze_graph(model.graph)


def _format_trials(check_result: SpecCheckResult) -> list[str]:
    """Format the results of the shape check and the number of parameters as lines."""
    tried = _describe_trial_values(check_result)
    lines = ["shapes are valid for all sizes" + (f" (tried {tried})" if tried else "")]
    if check_result.model is not None:
        graph = check_result.model.graph
        count = format_parameter_count(graph, count_untied_parameters(graph))
        lines.append(f"with this config: {count}")
    for diagnostic in check_result.missing:
        lines.append(f"not checked with concrete sizes: {diagnostic.title}")
    return lines


def _describe_trial_values(check_result: SpecCheckResult) -> str:
    """List the trial values, or count them if there are many."""
    trial_values = _list_trial_values(check_result)
    if len(trial_values) <= MAX_TRIAL_VALUES:
        return ", ".join(trial_values)
    fields = {key for trial in check_result.trials for key in trial.trial_values}
    return f"{len(trial_values)} values of {len(fields)} config fields"
