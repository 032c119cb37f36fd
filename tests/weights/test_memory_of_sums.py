"""What weights meet is summed up a few at a time: memory is that of the largest, however
many there are, and nothing of it is left on the disk.
"""

import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from specc.backend import Slot
from specc.calibrate import products
from specc.calibrate.readers import Readers
from specc.ir.array import Array
from specc.ir.graph import Builder, Input
from specc.ir.precision import Precision
from specc.ir.types import Type
from specc.weights.quantized import Loss, Quantized, Ready, round_now
from specc.weights.rules import Wanted
from specc.weights.values import Seeded

WIDE, MANY = 128, 10
SUM = 8 * WIDE**2
"""Bytes of the sums of one weight."""
SLACK = 1 << 16
FORM = Precision(bits=4, block=32, layout="rows", rounding="none")
BASE = Seeded(
    1,
    {f"w{n}": Wanted(f"w{n}", (40, WIDE)) for n in range(MANY)},
    {f"w{n}": "normal(1.0)" for n in range(MANY)},
)
RNG = np.random.default_rng(2)
SEEN = RNG.normal(size=(MANY, 30, WIDE)).astype(np.float32)


class Session:
    """Gives rows for every value that a weight meets."""

    outputs: Mapping[str, Slot] = {}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {f"x{n}": rows for n, rows in enumerate(SEEN)}


def readers() -> Readers:
    b = Builder()
    values = [b.input(f"v{n}", Input(Type.of("f32", 30, WIDE))) for n in range(MANY)]
    return Readers({(value,): (f"w{n}",) for n, value in enumerate(values)}, ())


def rounded(folder: Path) -> dict[str, Ready]:
    def round_one(name: str, factor: Array, stem: Path) -> Ready:
        return round_now(BASE, name, FORM, factor, stem)

    return products.rounded_by(Session(), readers(), lambda: [{}], folder, round_one)


def peak(folder: Path) -> int:
    """The most bytes that sums and their factors take."""

    def nothing(name: str, factor: Array, stem: Path) -> Ready:
        return Ready(stem, stem, Loss())

    tracemalloc.start()
    products.rounded_by(Session(), readers(), lambda: [{}], folder, nothing)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_no_more_than_a_few_sums_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "ROOM", SUM)
    few = peak(tmp_path)
    # the sums, and their factor while it is made
    assert few < 7 * SUM + SLACK
    # a mistake that the law would see: all of them at once
    monkeypatch.setattr(products, "ROOM", MANY * SUM)
    assert peak(tmp_path) > few + 6 * SUM


def test_what_is_ready_is_what_would_be_written(tmp_path: Path) -> None:
    ready = rounded(tmp_path)
    plan = dict.fromkeys(ready, FORM)
    whole = Quantized(BASE, plan, ready)
    for name in list(plan)[:2]:
        seen = SEEN[int(name[1:])].astype(np.float64)
        factor = products.factor_of(seen.T @ seen)
        one = Quantized(BASE, {name: FORM}, factor=factor)
        for part, dtype in ((FORM.numbers(name), "u8"), (FORM.scales(name), "f32")):
            want = b"".join(bytes(c) for c in one.chunks(part, dtype))
            assert b"".join(bytes(c) for c in whole.chunks(part, dtype)) == want
        assert whole.made[name].recipe == "gptq"
        assert whole.made[name].loss == one.made[name].loss
    kept = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert kept == MANY * 40 * (WIDE // 2 + 4 * WIDE // 32)
