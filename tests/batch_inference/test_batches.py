"""Batches contain every row once, respect the limits, and do not depend on the order of rows."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.batch_inference.job_plan_and_part_files import BatchLimits
from specc.batch_inference.row_batches_and_cost_model import (
    InputRow,
    count_batch_positions,
    make_batches,
)

LENGTHS = st.lists(st.integers(1, 60), min_size=0, max_size=80)
LIMITS = st.builds(
    BatchLimits,
    max_rows=st.integers(1, 9),
    max_tokens=st.integers(1, 200),
    max_bytes=st.integers(1, 40_000),
)


def make_rows(lengths: list[int]) -> list[InputRow]:
    return [InputRow(n, {"x": np.zeros(size, np.int64)}, ("x",)) for n, size in enumerate(lengths)]


def count_attention_bytes(count: int, length: int) -> int:
    return 4 * count * length * length


@given(LENGTHS, LIMITS)
@settings(max_examples=150, deadline=None)
def test_batches_respect_the_limits(lengths: list[int], limits: BatchLimits) -> None:
    found = make_batches(make_rows(lengths), limits, count_attention_bytes)
    assert sorted(r.row_number for batch in found for r in batch) == [*range(len(lengths))]
    for batch in found:
        longest = max(r.padded_length for r in batch)
        assert len(batch) == 1 or (
            len(batch) <= limits.max_rows
            and len(batch) * longest <= limits.max_tokens
            and count_attention_bytes(len(batch), longest) <= limits.max_bytes
        )


@given(LENGTHS, LIMITS, st.randoms())
@settings(max_examples=50, deadline=None)
def test_batches_do_not_depend_on_the_row_order(
    lengths: list[int], limits: BatchLimits, random: "np.random.Generator"
) -> None:
    rows = make_rows(lengths)
    mixed = [*rows]
    random.shuffle(mixed)
    one, other = (make_batches(r, limits, count_attention_bytes) for r in (rows, mixed))
    numbers = [[r.row_number for r in batch] for batch in one]
    assert numbers == [[r.row_number for r in batch] for batch in other]


def test_unpaddable_lengths_are_separated() -> None:
    rows = [InputRow(n, {"x": np.zeros((2 + n % 2, 3))}) for n in range(6)]
    found = make_batches(rows, BatchLimits(), lambda *_: 0)
    assert [{r.arrays["x"].shape for r in batch} for batch in found] == [{(2, 3)}, {(3, 3)}]


def test_padding_fraction() -> None:
    """Below 15 % for log-normal lengths in a block of the default size."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3, 1, 4096).astype(int), 1, 2000).tolist()
    found = make_batches(make_rows(lengths), BatchLimits(), lambda *_: 0)
    places, padding = np.array([count_batch_positions(batch) for batch in found]).sum(0)
    assert padding / (places - padding) < 0.15
