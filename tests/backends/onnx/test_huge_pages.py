"""The memory of a session is moved to huge pages without a change of its contents."""

import mmap
import random
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import specc
from specc_onnx.huge_pages import (
    HUGE_PAGE_BYTES,
    RUNS_BEFORE_MOVE,
    Interval,
    SessionMemory,
    align_to_huge_pages,
    list_anonymous_mappings,
    subtract_intervals,
)

SPEC = """specc 1
model wide
dims batch
graph g(x: float[batch, 1024]) -> (y: float[batch, 2048]) {
  return linear(x, out=2048) @ layer
}
"""


def test_differences_of_intervals_equal_differences_of_sets() -> None:
    random.seed(0)
    for _ in range(200):
        edges = [sorted(random.sample(range(40), 8)) for _ in range(2)]
        first, second = ([(e[n], e[n + 1]) for n in range(0, 8, 2)] for e in edges)
        rest = subtract_intervals(first, second)
        expected = {n for s, e in first for n in range(s, e)}
        expected -= {n for s, e in second for n in range(s, e)}
        assert [n for s, e in rest for n in range(s, e)] == sorted(expected)


def test_intervals_shrink_to_whole_huge_pages() -> None:
    page = HUGE_PAGE_BYTES
    given = [(1, page), (page, 3 * page), (4 * page - 1, 6 * page + 1), (7 * page + 1, 9 * page)]
    expected = [(page, 3 * page), (4 * page, 6 * page), (8 * page, 9 * page)]
    assert align_to_huge_pages(given) == expected


@pytest.mark.skipif(not list_anonymous_mappings(), reason="this system has no huge pages")
def test_contents_do_not_change() -> None:
    memory = SessionMemory()
    with memory.record():
        area = mmap.mmap(-1, 4 * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        values = np.frombuffer(area, np.uint8)
        values[:] = np.arange(len(values)) % 251
    address = values.ctypes.data
    assert any(s < address + len(values) and e > address for s, e in memory.intervals)
    memory.move_to_huge_pages()
    assert np.array_equal(values, np.arange(len(values)) % 251)


def test_a_session_moves_once_and_its_outputs_stay_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[int] = []
    move = SessionMemory.move_to_huge_pages

    def record_move(self: SessionMemory) -> None:
        move(self)
        moved.append(len(self.intervals))

    monkeypatch.setattr(SessionMemory, "move_to_huge_pages", record_move)
    found: list[Interval] = []

    def record_intervals(intervals: list[Interval]) -> list[Interval]:
        # a session may fit into memory that was mapped before
        found[:] = align_to_huge_pages(intervals)
        return found

    monkeypatch.setattr("specc_onnx.huge_pages.align_to_huge_pages", record_intervals)
    # the move runs on the calling thread
    monkeypatch.setattr(threading, "Thread", _RunAtStart)
    spec = tmp_path / "wide.specc"
    spec.write_text(SPEC)
    specc.compile(spec, tmp_path / "wide.onnx", init=0)
    model = specc.load(tmp_path / "wide.onnx")
    x = np.random.default_rng(0).standard_normal((3, 1024), np.float32)
    results = [model.run(x=x)["y"] for _ in range(2 * RUNS_BEFORE_MOVE)]
    assert all(np.array_equal(r, results[0]) for r in results)
    assert len(moved) == bool(found)


def test_other_systems_have_no_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert list_anonymous_mappings() == []


class _RunAtStart:
    def __init__(self, target: object, daemon: bool) -> None:
        assert daemon
        self.start = target
