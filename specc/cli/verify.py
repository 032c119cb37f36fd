"""Compare a compiled model with the float64 reference on random inputs of several sizes."""

import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field

from specc.cli import terminal
from specc.cli.options import COUNT_OPTION, PROVIDER_OPTION
from specc.cli.terminal import count_lines
from specc.diagnostics.codes import ErrorFamily, compute_exit_status
from specc.diagnostics.diagnostic import Failed, raise_error
from specc.diagnostics.machine_formats import diagnostic_to_json
from specc.driver.option_kinds import (
    BOOLEAN_OPTION,
    SEED_OPTION,
    TEXT_OPTION,
    TEXTS_OPTION,
    Option,
    add_options,
    parse_bounded_int,
)
from specc.driver.uncompiled_model import refuse_uncompiled
from specc.io.safe_read import escape_text
from specc.runtime.open_model import OpenedModel, open_compiled
from specc.verification.quantization_error import ERROR_MEASURES, QuantizationComparison
from specc.verification.tolerance import VerificationRound
from specc.verification.verify_model import iterate_opened_rounds


def parse_bound(text: str) -> tuple[str, float]:
    """Parse a measure and its upper bound."""
    name, _, number = text.partition("=")
    if name not in ERROR_MEASURES:
        raise ArgumentTypeError(f"unknown metric `{escape_text(name)[:40]}`")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"`{escape_text(number)[:40]}` is not a number >= 0")
    return name, value


OPTIONS: Mapping[str, Option] = {
    "graph": Option(TEXT_OPTION, "NAME", "verify only this graph of a package"),
    "execution_provider": PROVIDER_OPTION,
    "seed": Option(SEED_OPTION, "SEED", "seed of the random inputs", more={"default": 0}),
    "rounds": Option(
        COUNT_OPTION,
        "N",
        "number of rounds with different sizes",
        more={"type": parse_bounded_int(1, 1000, "a number of rounds"), "default": 3},
    ),
    "strict": Option(
        BOOLEAN_OPTION,
        "",
        "exit status 5 if a graph was not compared, or a branch or loop body not executed",
    ),
    "baseline": Option(
        TEXT_OPTION,
        "MODEL.onnx|DIR",
        "the same model without quantization: measure the quantization error",
    ),
    "per_layer": Option(
        BOOLEAN_OPTION, "", "with --baseline: also for each block with quantized weights"
    ),
    "threshold": Option(
        TEXTS_OPTION,
        "MEASURE=NUMBER",
        f"maximum quantization error (exit status 4 above it): {', '.join(ERROR_MEASURES)}",
        more={"type": parse_bound},
    ),
}


def add_verify_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc verify`."""
    parser.add_argument("model", metavar="MODEL.onnx|DIR", help="a compiled model, or a package")
    add_options(parser, OPTIONS)


def run_verify(given: Namespace) -> int:
    """Print one line per round; exit code 4 (E0930) if one differs, 5 (E0932) if rounding decides
    the result, or with `--strict` if a branch was not executed.

    For programs the output is one object, also on a difference.
    """
    _check_options(given)
    refuse_uncompiled(given.model)
    opened = open_compiled(
        given.model, graph=given.graph, provider=given.execution_provider, contents=True
    )
    found = VerifyResults()
    try:
        _compare_rounds(given, opened, found)
        if given.strict:
            _check_covered(found)
        if given.baseline:
            _compare_baseline(given, opened, found)
    except Failed as failed:
        status = compute_exit_status(d.code for d in failed.diagnostics)
        told = status in (ErrorFamily.DIFFERENT.value, ErrorFamily.INCONCLUSIVE.value)
        if not (told and terminal.print_json_result("verify", found.to_json(failed))):
            raise
        return status
    terminal.print_json_result("verify", found.to_json())
    return 0


@dataclass
class VerifyResults:
    """Results so far. `agrees` is None until all rounds are done, if rounding decides, and if
    nothing was compared; `parts` are the quantized weights with their errors.
    """

    agrees: bool | None = None
    rounds: list[VerificationRound] = field(default_factory=list)
    parts: list[tuple[str, float]] = field(default_factory=list)
    lost: list[dict[str, object]] = field(default_factory=list)

    def to_json(self, failed: Failed | None = None) -> dict[str, object]:
        """Convert to JSON values, with the diagnostics of an error."""
        return {
            "agrees": self.agrees,
            "rounds": [one.to_json() for one in self.rounds],
            "parts": [{"part": name, "off": off} for name, off in self.parts],
            "lost": self.lost,
            "faults": [*map(diagnostic_to_json, failed.diagnostics)] if failed else [],
        }


def _check_options(given: Namespace) -> None:
    """Raise E0753 for options that need a baseline model."""
    for option, wanted in (("--threshold", given.threshold), ("--per-layer", given.per_layer)):
        if wanted and not given.baseline:
            raise_error(
                "E0753",
                f"`{option}` requires a second model to compare with",
                helps=["add `--baseline MODEL`, the same model without quantized weights"],
            )


def _compare_rounds(given: Namespace, opened: OpenedModel, found: VerifyResults) -> None:
    """Run the rounds, printing one line each."""
    rounds = iterate_opened_rounds(opened, seed=given.seed, rounds=given.rounds)
    try:
        for one in count_lines(rounds, "comparing rounds"):
            terminal.print_done(str(one))
            found.rounds.append(one)
    except Failed as failed:
        status = compute_exit_status(d.code for d in failed.diagnostics)
        found.agrees = False if status == ErrorFamily.DIFFERENT.value else None
        raise
    # a model of which nothing was compared is not reported as correct
    found.agrees = True if any(one.compared for one in found.rounds) else None


def _check_covered(found: VerifyResults) -> None:
    """Raise E0933 if no round executed a subgraph, or a graph was not compared."""
    for one in found.rounds:
        if not (one.compared or one.uncovered):
            raise_error(
                "E0933",
                f"graph `{one.graph}` was not compared" if one.graph else "nothing was compared",
                notes=[one.note.removeprefix("not compared, because ")],
            )
    missing = [name for one in found.rounds for name in one.uncovered]
    if missing:
        count = "1 subgraph was" if len(missing) == 1 else f"{len(missing)} subgraphs were"
        raise_error(
            "E0933",
            f"{count} executed in no round",
            notes=[", ".join(missing)],
            helps=["verify a smaller model of the same spec, or try another `--seed`"],
        )


def _compare_baseline(given: Namespace, opened: OpenedModel, found: VerifyResults) -> None:
    """Print the quantization error by layer and output. Raise E0856 above a threshold."""
    full = open_compiled(given.baseline, graph=given.graph, provider=given.execution_provider)
    compared = QuantizationComparison(opened.full, full.full)
    compared.run(given.seed, given.rounds)
    for name, off in compared.layers(given.seed) if given.per_layer else ():
        terminal.print_done(f"`{escape_text(name)}` is off by {off:.1e} of its size")
        found.parts.append((name, off))
    found.lost = compared.to_json()
    for line in compared.lines():
        terminal.print_done(line)
    compared.check(dict(given.threshold))
