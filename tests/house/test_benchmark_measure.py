"""What the benchmarks say follows from what they measured: order of turns, medians,
intervals, failures.
"""

import sys

import pytest

from benchmarks import measure


def test_every_other_round_runs_backwards_after_one_untimed_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure.time, "sleep", lambda seconds: None)
    seen: list[str] = []
    times = measure.in_turn({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 2)
    assert "".join(seen) == "aabb" + "bbaa"
    assert {name: len(found) for name, found in times.items()} == {"a": 2, "b": 2}


def test_a_ratio_is_that_of_the_medians() -> None:
    found = measure.ratio([2.0, 2.0, 9.0], [1.0, 1.0, 1.0])
    assert found.value == 2.0
    assert found.low == 2.0
    assert not found.no_worse


def test_noise_that_both_sides_met_cancels() -> None:
    slow = [1.0, 2.0, 3.0, 4.0] * 5
    found = measure.ratio([t * 0.9 for t in slow], slow)
    assert (found.low, found.high) == (pytest.approx(0.9), pytest.approx(0.9))


def test_no_worse_means_that_the_interval_reaches_one() -> None:
    assert measure.Ratio(1.1, 1.0, 1.2).no_worse
    assert not measure.Ratio(1.1, 1.01, 1.2).no_worse


def test_a_process_is_measured_from_outside() -> None:
    cost = measure.of_process([sys.executable, "-c", "x = bytearray(64 << 20)"])
    assert cost.megabytes > 64
    assert cost.seconds > 0


def test_a_process_that_fails_stops_the_benchmark() -> None:
    with pytest.raises(SystemExit, match="no such thing"):
        measure.of_process([sys.executable, "-c", "raise SystemExit('no such thing')"])
