"""Mutated specs of every kind, in both syntaxes: elaborated, or rejected with a diagnostic."""

import pytest
from support.parameter_sweeps import sample_sweep
from support.spec_mutants import elaborate_mutant, make_mutant

from specc.diagnostics.diagnostic import SpeccError
from specc.diagnostics.machine_formats_and_exit_codes import format_json_lines
from specc.diagnostics.render import render_diagnostics

BATCH = 20


def assert_elaborated_or_refused(seed: int) -> None:
    """Elaborate a mutant, or render its diagnostics, whose spans must be in its text."""
    given = make_mutant(seed)
    try:
        elaborate_mutant(given, thorough=seed % 10 == 0)
    except SpeccError as failed:
        assert failed.diagnostics
        assert render_diagnostics(failed.diagnostics)
        assert format_json_lines(failed.diagnostics)
        for diagnostic in failed.diagnostics:
            for label in (diagnostic.primary, *diagnostic.related_labels):
                assert label is None or 0 <= label.span.start <= label.span.end <= len(
                    label.span.source.text
                )
    except Exception as error:
        error.add_note(f"mutant({seed}) of {given.name}")
        raise


@pytest.mark.parametrize("start", sample_sweep(range(0, 120, BATCH)))
def test_mutated_specs_are_elaborated_or_refused(start: int) -> None:
    for seed in range(start, start + BATCH):
        assert_elaborated_or_refused(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(10_000, 40_000, 1000))
def test_many_mutated_specs_are_elaborated_or_refused(start: int) -> None:
    for seed in range(start, start + 1000):
        assert_elaborated_or_refused(seed)
