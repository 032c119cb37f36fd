"""Writes `docs/parity.md` from what a parity run recorded: `make parity-table`."""

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
# What was compared

Every family is compared with the published classes of transformers or PyTorch, in
float64, on small models with random weights, norms and biases included: one sample alone
and three in a padded batch, with random numbers under the padding. A row is a graph of a
family: in how many configurations it was compared; the greatest difference found, as a
share of the greatest value of the result (1e-5 is allowed); and whether what it writes
was compared too: 20 tokens, greedily and by four beams, all equal.

Written by `make parity-table` from a run of the whole parity suite.

| family | graph | configurations | worst difference | writes |
|---|---|---|---|---|
"""


def rows(lines: list[dict[str, Any]]) -> list[str]:
    """A row a shipped family and graph, in order of their names. Tests write specs of
    their own, too, which are no families.
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
    """The greatest difference, rounded up to one digit: `3e-07`."""
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
