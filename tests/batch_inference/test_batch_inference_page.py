"""The page that plans 10⁹ rows on paper: its sums are done again."""

import math
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "batch-inference.md").read_text(encoding="utf-8")

FILES, IN_FILE, PROCESSES, RATE = 1_000, 10**6, 64, 2_000
ROWS = FILES * IN_FILE
SIZES = (4096, 65536)


def two(made: tuple[float, ...], unit: str, digits: int = 0) -> str:
    """Both cells of a line of the table."""
    return " | ".join(f"{x:.{digits}f} {unit}".strip() for x in made)


def thousands(number: float) -> str:
    """With a space between groups of digits, as the page writes them."""
    return f"{number:,.0f}".replace(",", " ")


def is_said(*words: str) -> None:
    page = " ".join(PAGE.split())
    for word in words:
        assert word in page, f"the page does not say: {word}"


def test_the_table() -> None:
    blocks = tuple(FILES * math.ceil(IN_FILE / size) for size in SIZES)
    is_said(f"| blocks, and parts | {thousands(blocks[0])} | {thousands(blocks[1])} |")
    plans = [n * 30 / 1e6 for n in blocks]
    is_said(f"the plan, 30 bytes a block | {plans[0]:.0f} MB | {plans[1]:.1f} MB |")
    is_said(
        f"parts, 95 bytes a row | {SIZES[0] * 95 / 1e6:.1f} MB each | {SIZES[1] * 95 / 1e6:.0f} MB each |"
    )
    made = [f"{n * 125 / 1e6:.0f} MB in {thousands(n)} files" for n in blocks]
    is_said(f"summaries, 125 bytes a block | {made[0]} | {made[1]} |")
    held = tuple(size * 1000 / 1e6 for size in SIZES)
    is_said(f"| {math.floor(held[0])} MB | {math.floor(held[1])} MB |")
    seconds = tuple(size / RATE for size in SIZES)
    is_said(f"| a block takes | {two(seconds, 's')} |")
    is_said(f"processes without a block | {two(seconds, 's')} |")
    hours = ROWS / PROCESSES / RATE / 3600
    is_said(f"| work | {two((hours, hours), 'h', 1)} |")


def test_what_stands_below_it() -> None:
    blocks = FILES * math.ceil(IN_FILE / SIZES[0])
    work = ROWS / PROCESSES / RATE
    calls = 2 * blocks
    is_said(f"{calls / 1e6:.1f} million at 4 096 rows")
    is_said(f"{calls * 1e-3 / 60:.0f} to {calls * 5e-3 / 60:.0f} minutes on a store")
    is_said(f"is read {math.ceil(IN_FILE / SIZES[0])} times at `--rows-per-part 4096`")
    lost = round(PROCESSES * work / 86400)
    half = [size / RATE / 2 for size in SIZES]
    total = thousands(PROCESSES * work)
    is_said(f"lose {lost} blocks in {work / 3600:.1f} hours", f"of {total}.")
    few, many = (PROCESSES * work / 86400 * h for h in half)
    is_said(f"{few:.0f} s or {many:.0f} s of {total}")
    deaths = 4 * 1000
    least, most = (deaths * (start + half[0]) / 3600 for start in (1, 3))
    is_said(f"cost {thousands(deaths)} starts, {least:.1f} to {most:.1f} hours")
    is_said(f"at 10 ms in all that is {0.01 / 2:.1%} of a block".replace("%", " %"))
    cores = PROCESSES * work / 3600
    is_said(f"are {cores:.0f} core hours; at 0.03 to 0.05")
    is_said(f"{cores * 0.03:.0f} to {cores * 0.05:.0f}, in whatever is paid")
    is_said(f"Storage: {ROWS * 95 / 1e9:.0f} GB")
    is_said(f"are {thousands(round(ROWS / 20 / 3600, -3))} core hours")
    is_said(f"at 5 µs a row {ROWS * 5e-6 / 60:.0f} minutes")
    is_said("makes 10⁵ lines in `errors.jsonl`, 20 MB")
    assert ROWS / 10_000 * 200 == 20e6
