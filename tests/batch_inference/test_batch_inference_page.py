"""docs/batch-inference.md: recompute the numbers of the plan for 10⁹ rows."""

import math
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "batch-inference.md").read_text(encoding="utf-8")

FILES, IN_FILE, PROCESSES, RATE = 1_000, 10**6, 64, 2_000
ROWS = FILES * IN_FILE
SIZES = (4096, 65536)


def format_cells(made: tuple[float, ...], unit: str, digits: int = 0) -> str:
    """Return both cells of a table row."""
    return " | ".join(f"{x:.{digits}f} {unit}".strip() for x in made)


def format_thousands(number: float) -> str:
    """Return the number with a space between groups of digits, as on the page."""
    return f"{number:,.0f}".replace(",", " ")


def assert_page_contains(*words: str) -> None:
    page = " ".join(PAGE.split())
    for word in words:
        assert word in page, f"not on the page: {word}"


def test_table_of_the_plan() -> None:
    blocks = tuple(FILES * math.ceil(IN_FILE / size) for size in SIZES)
    assert_page_contains(
        f"| number of blocks and parts | {format_thousands(blocks[0])} | {format_thousands(blocks[1])} |"
    )
    plans = [n * 30 / 1e6 for n in blocks]
    assert_page_contains(
        f"size of the plan, 30 bytes per block | {plans[0]:.0f} MB | {plans[1]:.1f} MB |"
    )
    assert_page_contains(
        f"size of a part, 95 bytes per row | {SIZES[0] * 95 / 1e6:.1f} MB | {SIZES[1] * 95 / 1e6:.0f} MB |"
    )
    made = [f"{n * 125 / 1e6:.0f} MB in {format_thousands(n)} files" for n in blocks]
    assert_page_contains(f"size of the summaries, 125 bytes per block | {made[0]} | {made[1]} |")
    held = tuple(size * 1000 / 1e6 for size in SIZES)
    assert_page_contains(f"| {math.floor(held[0])} MB | {math.floor(held[1])} MB |")
    seconds = tuple(size / RATE for size in SIZES)
    assert_page_contains(f"| time per block | {format_cells(seconds, 's')} |")
    assert_page_contains(f"idle time of processes at the end | {format_cells(seconds, 's')} |")
    hours = ROWS / PROCESSES / RATE / 3600
    assert_page_contains(f"| total time | {format_cells((hours, hours), 'h', 1)} |")


def test_estimates_below_the_table() -> None:
    blocks = FILES * math.ceil(IN_FILE / SIZES[0])
    work = ROWS / PROCESSES / RATE
    calls = 2 * blocks
    assert_page_contains(f"4 096 rows, this takes {calls / 1e6:.1f} million file system calls")
    assert_page_contains(
        f"{calls * 1e-3 / 60:.0f} to {calls * 5e-3 / 60:.0f} minutes on an object store"
    )
    assert_page_contains(
        f"`--rows-per-part 4096`, a row group of a million rows is read "
        f"{math.ceil(IN_FILE / SIZES[0])} times"
    )
    lost = round(PROCESSES * work / 86400)
    half = [size / RATE / 2 for size in SIZES]
    total = format_thousands(PROCESSES * work)
    assert_page_contains(
        f"lose {lost} blocks in {work / 3600:.1f} hours",
        f"compared with {total} s for the whole job.",
    )
    few, many = (PROCESSES * work / 86400 * h for h in half)
    assert_page_contains(f"{few:.0f} s (blocks of 4 096 rows) or {many:.0f} s")
    crashes = 4 * 1000
    least, most = (crashes * (start + half[0]) / 3600 for start in (1, 3))
    assert_page_contains(
        f"cost {format_thousands(crashes)} process starts, or {least:.1f} to {most:.1f} hours"
    )
    added = f"{0.01 / 2:.1%}".replace("%", " %")
    assert_page_contains(f"take 10 ms in total, they add {added} to a block of 2 s")
    cores = PROCESSES * work / 3600
    assert_page_contains(f"i.e. {cores:.0f} core hours")
    assert_page_contains(
        f"cost {cores * 0.03:.0f} to {cores * 0.05:.0f} dollars at 0.03 to 0.05 dollars per core hour"
    )
    assert_page_contains(f"The parts occupy {ROWS * 95 / 1e9:.0f} GB")
    assert_page_contains(f"takes {format_thousands(round(ROWS / 20 / 3600, -3))} core hours")
    assert_page_contains(f"takes {ROWS * 5e-6 / 60:.0f} minutes at 5 µs per row")
    assert_page_contains("`errors.jsonl` has 10⁵ lines (20 MB)")
    assert ROWS / 10_000 * 200 == 20e6
