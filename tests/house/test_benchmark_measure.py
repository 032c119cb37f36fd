"""Benchmark statistics: alternating order, medians, confidence intervals, failures."""

import sys

import pytest

from benchmarks import measure


def test_alternating_order_after_a_warmup_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.time, "sleep", lambda seconds: None)
    seen: list[str] = []
    times = measure.time_in_turn({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 2)
    assert "".join(seen) == "aabb" + "bbaa"
    assert {name: len(found) for name, found in times.items()} == {"a": 2, "b": 2}


def test_ratio_of_medians() -> None:
    found = measure.estimate_ratio([2.0, 2.0, 9.0], [1.0, 1.0, 1.0])
    assert found.value == 2.0
    assert found.low == 2.0
    assert not found.is_no_worse


def test_common_noise_cancels() -> None:
    slow = [1.0, 2.0, 3.0, 4.0] * 5
    found = measure.estimate_ratio([t * 0.9 for t in slow], slow)
    assert (found.low, found.high) == (pytest.approx(0.9), pytest.approx(0.9))


def test_no_worse_if_the_interval_contains_one() -> None:
    assert measure.MedianRatio(1.1, 1.0, 1.2).is_no_worse
    assert not measure.MedianRatio(1.1, 1.01, 1.2).is_no_worse


def test_process_cost() -> None:
    cost = measure.measure_process([sys.executable, "-c", "x = bytearray(64 << 20)"])
    assert cost.megabytes > 64
    assert cost.seconds > 0


def test_failed_process_stops_the_benchmark() -> None:
    with pytest.raises(SystemExit, match="no such thing"):
        measure.measure_process([sys.executable, "-c", "raise SystemExit('no such thing')"])
