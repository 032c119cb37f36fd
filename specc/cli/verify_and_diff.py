"""Compare a model with the float64 reference (`specc verify`), or architectures (`specc diff`)."""

import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specc.cli import terminal
from specc.cli.options import (
    COUNT_OPTION,
    PROVIDER_OPTION,
    add_option_groups,
    is_compiled_model_path,
    print_name_conflict_note,
    raise_immutable_config_error,
    read_compiled_manifest,
)
from specc.cli.terminal import iterate_with_progress, print_json_result
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.diagnostics.machine_formats_and_exit_codes import (
    ErrorCategory,
    compute_exit_code,
    diagnostic_to_json,
)
from specc.driver.option_kinds import (
    BOOLEAN_OPTION,
    SEED_OPTION,
    SPEC_OPTIONS,
    STRING_LIST_OPTION,
    STRING_OPTION,
    Option,
    make_int_parser,
)
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.io.safe_read import escape_text
from specc.model_loading import check_model_is_compiled
from specc.runtime.inference_model import InferenceModel, open_compiled_model
from specc.verification.model_verification import verify_model
from specc.verification.quantization_error import ERROR_METRICS, QuantizationComparison
from specc.verification.result_comparison import VerificationRound
from specc.visualize.architecture_diff import (
    Architecture,
    ArchitectureDiff,
    diff_architectures,
    format_architecture_diff,
)


def parse_error_threshold(text: str) -> tuple[str, float]:
    """Parse `METRIC=NUMBER`: an error metric and its upper bound."""
    name, equals, number = text.partition("=")
    if name not in ERROR_METRICS or not equals:
        raise ArgumentTypeError(
            f"expected METRIC=NUMBER with a metric {', '.join(ERROR_METRICS)}, "
            f"got `{escape_text(text)[:40]}`"
        )
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"`{escape_text(number)[:40]}` is not a number >= 0")
    return name, value


INPUT_OPTIONS: Mapping[str, Option] = {
    "graph": Option(STRING_OPTION, "NAME", "verify only this graph of a package"),
    "execution_provider": PROVIDER_OPTION,
    "seed": Option(
        SEED_OPTION,
        "SEED",
        "seed of the random inputs (default: 0)",
        extra_arguments={"default": 0},
    ),
    "rounds": Option(
        COUNT_OPTION,
        "N",
        "number of comparison rounds with different input sizes (default: 3)",
        extra_arguments={"type": make_int_parser(1, 1000, "a number of rounds"), "default": 3},
    ),
    "baseline": Option(
        STRING_OPTION,
        "MODEL.onnx|DIR",
        "unquantized model against which the quantization error is measured",
    ),
}
OUTPUT_OPTIONS: Mapping[str, Option] = {
    "strict": Option(
        BOOLEAN_OPTION,
        "",
        "exit with status 5 if a graph was not compared, if a branch or loop body was not "
        "executed, or if long sequences were skipped because of their cost",
    ),
    "per_layer": Option(
        BOOLEAN_OPTION,
        "",
        "with --baseline: also print the error of each block with quantized weights",
    ),
    "threshold": Option(
        STRING_LIST_OPTION,
        "METRIC=NUMBER",
        "exit with status 4 if the quantization error is larger than NUMBER; metrics: "
        f"{', '.join(ERROR_METRICS)}",
        extra_arguments={"type": parse_error_threshold},
    ),
}


def add_verify_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc verify`."""
    parser.add_argument("model", metavar="MODEL.onnx|DIR", help="compiled model or package")
    add_option_groups(parser, input=INPUT_OPTIONS, output=OUTPUT_OPTIONS)


def execute_verify_command(args: Namespace) -> int:
    """Print one line per verification round.

    Return exit status 4 (E0930) if the results of a round differ. Return 5 if the model is too
    sensitive to rounding (E0932), or if `--strict` is set and a branch was not executed. The JSON
    output is a single object, even if the results differ.
    """
    _check_options(args)
    model = _open_model(args, args.model, verify_contents=True)
    results = VerificationResults()
    try:
        # open the baseline before the first round, so that a wrong path is reported early
        baseline = _open_model(args, args.baseline) if args.baseline else None
        _compare_rounds(args, model, results)
        if args.strict:
            _check_coverage(results)
        if baseline is not None:
            _compare_baseline(args, model, baseline, results)
    except SpeccError as failed:
        status = compute_exit_code(d.code for d in failed.diagnostics)
        is_difference = status in (ErrorCategory.MISMATCH.value, ErrorCategory.INCONCLUSIVE.value)
        if not (is_difference and terminal.print_json_result(results.to_json(failed))):
            raise
        return status
    terminal.print_json_result(results.to_json())
    return 0


@dataclass
class VerificationResults:
    """The verification results so far. `agrees` is None until all rounds are finished. `agrees`
    remains None if the model is too sensitive to rounding or if no output was compared.
    """

    agrees: bool | None = None
    rounds: list[VerificationRound] = field(default_factory=list)
    layer_errors: list[tuple[str, float]] = field(default_factory=list)
    output_errors: list[dict[str, object]] = field(default_factory=list)

    def to_json(self, failed: SpeccError | None = None) -> dict[str, object]:
        """Convert the results to a JSON object. Include the diagnostics of an error, if any."""
        return {
            "agrees": self.agrees,
            "rounds": [round.to_json() for round in self.rounds],
            "layers": [{"layer": name, "error": error} for name, error in self.layer_errors],
            "quantization_errors": self.output_errors,
            "diagnostics": [*map(diagnostic_to_json, failed.diagnostics)] if failed else [],
        }


def _check_options(args: Namespace) -> None:
    """Raise E0753 for options that require `--baseline`."""
    for option, value in (("--threshold", args.threshold), ("--per-layer", args.per_layer)):
        if value and not args.baseline:
            raise_error(
                "E0753",
                f"`{option}` requires a second model to compare with",
                helps=["add `--baseline MODEL`, the same model without quantized weights"],
            )


def _compare_rounds(args: Namespace, model: InferenceModel, results: VerificationResults) -> None:
    """Run the verification rounds, add each to `results`, and print one line per round."""
    rounds = verify_model(model, seed=args.seed, rounds=args.rounds)
    try:
        for round in iterate_with_progress(rounds, "comparing rounds"):
            terminal.print_result_line(str(round))
            results.rounds.append(round)
    except SpeccError as failed:
        status = compute_exit_code(d.code for d in failed.diagnostics)
        results.agrees = False if status == ErrorCategory.MISMATCH.value else None
        raise
    # if no output was compared, the model is not reported as correct
    results.agrees = any(round.is_compared for round in results.rounds) or None


def _check_coverage(results: VerificationResults) -> None:
    """Raise E0933 if a graph, a subgraph or a long sequence was not verified."""
    for round in results.rounds:
        if not (round.is_compared or round.uncovered_cases):
            raise_error(
                "E0933",
                f"graph `{round.graph}` was not compared"
                if round.graph
                else "no output was compared",
                notes=[round.note.removeprefix("not compared, because ")],
            )
    uncovered_cases = [name for round in results.rounds for name in round.uncovered_cases]
    if uncovered_cases:
        count = sum(len(round.uncovered_subgraphs) for round in results.rounds)
        _raise_incomplete_coverage(uncovered_cases, count)


def _raise_incomplete_coverage(uncovered_cases: Sequence[str], subgraph_count: int) -> NoReturn:
    """Raise E0933 because some subgraphs or long sequences were not tested in any round."""
    title = "no round compared long sequences"
    help = "verify a smaller model of the same spec, with fewer layers or a smaller window"
    if subgraph_count:
        count = "1 subgraph was" if subgraph_count == 1 else f"{subgraph_count} subgraphs were"
        title = f"{count} not executed in any round"
        help = "verify a smaller model of the same spec, or try another `--seed`"
    raise_error("E0933", title, notes=[", ".join(uncovered_cases)], helps=[help])


def _open_model(args: Namespace, path: str, *, verify_contents: bool = False) -> InferenceModel:
    """Open a compiled model with the options of the command."""
    check_model_is_compiled(path)
    return open_compiled_model(
        path, graph=args.graph, provider=args.execution_provider, verify_contents=verify_contents
    )


def _compare_baseline(
    args: Namespace, model: InferenceModel, baseline: InferenceModel, results: VerificationResults
) -> None:
    """Print the quantization error per layer and output. Raise E0856 if it is too large."""
    comparison = QuantizationComparison(model.full_forward_model, baseline.full_forward_model)
    comparison.compare_outputs_on_random_inputs(args.seed, args.rounds)
    for name, error in comparison.iterate_errors_by_scope(args.seed) if args.per_layer else ():
        terminal.print_result_line(f"relative error of `{escape_text(name)}`: {error:.1e}")
        results.layer_errors.append((name, error))
    results.output_errors = comparison.to_json()
    for line in comparison.format_lines():
        terminal.print_result_line(line)
    comparison.check_error_limits(dict(args.threshold))


DIFF_OPTIONS = {
    "set": "set a config value of B; B must be a spec",
    "config": "read config values of B from a config.json; B must be a spec",
    "graph": "graph to compare",
}
DIFFERENCE_STATUS = 4
"""Exit status of `specc diff` if the architectures differ, as in `specc verify`."""


def add_diff_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of `specc diff`."""
    parser.epilog = "Exit status: 0 equal, 4 different."
    kinds = "spec, checkpoint directory, compiled model or package"
    parser.add_argument("a", metavar="A", help=kinds)
    parser.add_argument(
        "b", metavar="B", help="second spec, checkpoint directory, compiled model or package"
    )
    options = {name: SPEC_OPTIONS[name]._replace(help=help) for name, help in DIFF_OPTIONS.items()}
    add_option_groups(parser, input=options)


def execute_diff_command(args: Namespace) -> int:
    """Print the differences, one per line. Return 0 if the architectures are equal, otherwise 4."""
    a = _load_architecture_to_compare(args.a, args.graph)
    b = _load_architecture_to_compare(args.b, args.graph, args.config, args.set)
    difference = diff_architectures(a, b)
    if not print_json_result(_difference_to_json(a, b, difference)):
        print("\n".join(map(escape_text, format_architecture_diff(a, b, difference))))
    return 0 if difference.is_empty else DIFFERENCE_STATUS


def _difference_to_json(
    a: Architecture, b: Architecture, difference: ArchitectureDiff
) -> dict[str, object]:
    """Convert an architecture difference to a JSON object."""
    return {
        "a": a.name,
        "b": b.name,
        "same": difference.is_empty,
        "reason": difference.reason,
        "changes": [*map(vars, difference.changes)],
    }


def _load_architecture_to_compare(
    path: str, graph: str, config: str = "", settings: list[str] | None = None
) -> Architecture:
    """Load an architecture to compare: a spec, a checkpoint directory, or a compiled model. Raise
    E0956 for a standalone generator, and E0957 if config options are given for a compiled model.
    """
    name = Path(path).name or path
    if is_compiled_model_path(path):
        if config or settings:
            raise_immutable_config_error(path)
        manifest = read_compiled_manifest(path, graph)
        if manifest.decoding is not None:
            raise_error(
                "E0956",
                f"`{escape_text(path)}` is a standalone generator and has no graph to compare",
                helps=["compare its spec, or a package compiled with `--graphs all`"],
            )
        return Architecture(name=name, graph=manifest.graph, config=manifest.config)
    print_name_conflict_note(path)
    model = elaborate_spec(open_spec(path, config=config, config_settings=settings or []), graph)
    return Architecture(name=name, graph=model.graph, config=model.config)
