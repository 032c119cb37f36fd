"""Write `docs/parity.md` from the records of a parity run: `make parity-table`."""

import json
import sys
from collections import defaultdict
from math import floor, log10
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SPECS = ROOT / "specs" / "models"
PAGE = ROOT / "docs" / "parity.md"
HEAD = """\
# Parity with transformers and PyTorch

Tests compare small versions of every model type with the classes of transformers or PyTorch in
float64, with random weights (including norm weights and biases), at batch size 1 and in a padded
batch of three with random values at padded positions. The table lists the graph, the number of
configurations, and the largest difference relative to the largest value of the output (the
tolerance is 1e-5). "yes" in the last column means that the test also compares 20 tokens of greedy
decoding and of beam search with four beams, which must all be equal.

`make parity-table` runs the whole parity suite and writes this page.

| model type | graph | configurations | largest difference | generation |
|---|---|---|---|---|
"""


def rows(lines: list[dict[str, Any]]) -> list[str]:
    """Return a table row per built-in spec and graph, sorted by name. Specs that tests define are
    omitted.
    """
    shipped = {file.name.partition(".")[0] for file in SPECS.iterdir()}
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        if line["family"] not in shipped:
            continue
        found[line["family"], line["head"]].append(line)
    return [
        f"| {family} | {graph} | {len({one['config'] for one in ones})} | "
        f"{_worst(ones)} | {'yes' if any(one['written'] for one in ones) else ''} |"
        for (family, graph), ones in sorted(found.items())
    ]


def _worst(ones: list[dict[str, Any]]) -> str:
    """Return the largest difference, rounded up to one digit: `3e-07`."""
    apart = max((one["worst"] for one in ones if one["worst"] is not None), default=0)
    if not apart:
        return "0"
    power = 10.0 ** floor(log10(apart))
    digit = -int(-apart // power)
    return f"{digit * power:.0e}"


if __name__ == "__main__":
    recorded = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    table = "\n".join(rows([json.loads(line) for line in recorded]))
    PAGE.write_text(HEAD + table + "\n", encoding="utf-8")
