"""Write docs/providers.md: the results of each runtime, and operator lists. `make providers`.

Runs every small built-in spec in each available runtime and compares the outputs with the float64
reference; compares the operators with the published lists. docs/providers.json contains the
results; the tables of the page are built from it alone.
"""

import json
import sys
import tempfile
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

from support.other_runtimes import (
    RUNTIMES,
    MissingRuntime,
    ModelOutcome,
    find_browser_version,
    prepare_models,
    run_models,
)
from support.provider_operators import read_operator_lists
from support.small_configs import SMALL_CONFIGS

DOCS = Path(__file__).parents[2] / "docs"
PAGE, RECORD = DOCS / "providers.md", DOCS / "providers.json"
MAX_REASON = 110
"""Maximum number of characters of a runtime's error message."""


def update_record(names: list[str]) -> dict[str, Any]:
    """Return the record with new results of the available runtimes, or of `names`."""
    record: dict[str, Any] = (
        json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {"runs": {}}
    )
    for name in names or RUNTIMES:
        try:
            record["runs"][name] = _ran(name)
        except MissingRuntime as why:
            print(f"{name}: not run, {why}")
    record["lists"] = {
        name: {spec: lack for spec in SMALL_CONFIGS if (lack := known.find_missing(spec))}
        for name, known in read_operator_lists().items()
    }
    return record


def _ran(name: str) -> dict[str, Any]:
    runtime = RUNTIMES[name]
    runtime.command()
    with tempfile.TemporaryDirectory() as directory:
        prepared = prepare_models(
            Path(directory), list(SMALL_CONFIGS), runtime.target, runtime.opset
        )
        found = run_models(runtime, prepared)
    print(f"{name}: {sum(not o.error for o in found.values())} of {len(found)}")
    return {
        "version": runtime.version(),
        "browser": find_browser_version() if runtime.kind in ("wasm", "webgpu") else "",
        "target": runtime.target,
        "opset": runtime.opset,
        "date": date.today().isoformat(),
        "specs": {spec: _kept(outcome) for spec, outcome in found.items()},
    }


def _kept(outcome: ModelOutcome) -> float | str:
    """Return a difference or an error as short text."""
    if outcome.error:
        return outcome.error[:MAX_REASON]
    return float(f"{outcome.worst:.1e}")


def build_tables(record: dict[str, Any]) -> dict[str, str]:
    """Return each table of the page by the name of its placeholder."""
    runs = [
        "| runtime | version | compiled with | agree | worst difference | run |",
        "|---|---|---|---|---|---|",
    ]
    for name in (n for n in RUNTIMES if n in record["runs"]):
        run = record["runs"][name]
        good = [worst for worst in run["specs"].values() if not isinstance(worst, str)]
        opset = f" --opset {run['opset']}" if run["opset"] else ""
        version = ", ".join(filter(None, (run["version"], run["browser"])))
        runs.append(
            f"| {name} | {version} | `--target {run['target']}{opset}` | "
            f"{len(good)} of {len(run['specs'])} | {max(good, default=0):.1e} | {run['date']} |"
        )
    read = [
        "| provider | whole specs on the list | missing operators, each with the number of specs that use it |",
        "|---|---|---|",
    ]
    for name, known in read_operator_lists().items():
        lacking = record["lists"][name]
        counts = Counter(kind for kinds in lacking.values() for kind in kinds)
        ordered = sorted(counts.items(), key=lambda known: (-known[1], known[0]))
        missing = ", ".join(f"{kind} {count}" for kind, count in ordered)
        whole = len(SMALL_CONFIGS) - len(lacking)
        read.append(f"| {known.provider} | {whole} of {len(SMALL_CONFIGS)} | {missing or '–'} |")
    return {"runs": "\n".join(runs), "lists": "\n".join(read)}


def fill_page(record: dict[str, Any], text: str) -> str:
    """Return the page with its tables."""
    for name, table in build_tables(record).items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        head, rest = text.split(start)
        text = f"{head}{start}\n{table}\n{end}{rest.split(end)[1]}"
    return text


def main() -> None:
    """Run the available runtimes, and write the record and the page."""
    record = update_record(sys.argv[1:])
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")
    PAGE.write_text(fill_page(record, PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
