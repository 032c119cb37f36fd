"""`make gpu-check`: compare every built-in model on a GPU with the float64 reference, list the
execution provider of each node, and measure speed; write docs/gpu-report.md.

Without a GPU nothing is run. `--provider cpu --quick` tests the program itself.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
PACKAGES = ("onnxruntime-gpu", "onnxruntime", "onnx", "torch", "transformers", "numpy")
ROUNDED = ("int8", "int8-weights", "int4")
"""Quantization kinds, each a column of the table."""
SECONDS = 600
"""Timeout of one spec; the table reports a spec that takes longer."""


def card() -> str:
    """Return name, driver and memory of the first GPU; "" without a GPU."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]  # fmt: skip
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


def versions() -> str:
    """Return the versions of the installed packages in PACKAGES."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def rows(
    specs: Sequence[str], provider: str, directory: Path, dtypes: Sequence[str], at_once: int
) -> Iterator[dict[str, Any]]:
    """Yield the results of each spec as soon as they are available."""
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(lambda s: row(s, provider, directory, dtypes), specs)


def row(spec: str, provider: str, directory: Path, dtypes: Sequence[str]) -> dict[str, Any]:
    """Check one spec in a separate process."""
    command = [sys.executable, str(HERE / "gpu_specs.py"), spec, provider, str(directory)]
    try:
        done = subprocess.run(
            [*command, *dtypes],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])},
        )
    except subprocess.TimeoutExpired:
        return {"spec": spec, "wrong": f"took longer than {SECONDS} s"}
    if done.returncode:
        last = (done.stderr.strip() or "nothing").splitlines()[-1]
        return {"spec": spec, "wrong": f"the process ended with {done.returncode}: {last}"}
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def table(found: Sequence[Mapping[str, Any]], dtypes: Sequence[str]) -> Iterator[str]:
    """Yield the table of specs: largest differences, and nodes by provider."""
    columns = [c for d in dtypes for c in (d, f"{d} package")] + [*ROUNDED]
    yield f"| spec | {' | '.join(columns)} | tokens | nodes on the provider | lengths on the processor |"
    yield "|---" * (len(columns) + 4) + "|"
    for each in found:
        cells = [_cell(each.get(column)) for column in columns]
        nodes = each.get("nodes", {})
        cpu = nodes.get("CPUExecutionProvider", 0)
        same = {True: "the same", False: "**differ**", None: ""}[each.get("writes", {}).get("same")]
        yield f"| `{each['spec']}` | {' | '.join(cells)} | {same} | {sum(nodes.values()) - cpu} | {cpu} |"
    yield ""
    wrong = [(e["spec"], c, e[c]["wrong"]) for e in found for c in columns if "wrong" in e.get(c, {})]  # fmt: skip
    wrong += [(e["spec"], "all", e["wrong"]) for e in found if "wrong" in e]
    for spec, column, words in wrong:
        yield f"* `{spec}`, {column}: {' '.join(words.split())}"
    yield f"\n{len(found)} specs, {len(wrong)} that are not right.\n"


def _cell(told: Mapping[str, Any] | None) -> str:
    if not told:
        return ""
    return "**wrong**" if "wrong" in told else f"{told['worst']:.1e}"


def left(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of operators that run on the CPU, by number of nodes."""
    count = Counter(
        kind
        for each in found
        for provider, kind, _ in each.get("placement", ())
        if provider == "CPUExecutionProvider"
    )
    yield "| operator | nodes on the processor |\n|---|---|"
    for kind, many in count.most_common():
        yield f"| {kind} | {many} |"
    yield ""


def report(
    given: argparse.Namespace, found: Sequence[Mapping[str, Any]], rates: Sequence[str]
) -> str:
    """Return the report page."""
    lines = [
        "# What ran on a GPU",
        "",
        f"Written by `make gpu-check` on {date.today().isoformat()}: {card() or 'no card'}; provider `{given.provider}`; {versions()}.",
        "",
        "## Every shipped spec, small, beside the float64 reference",
        "",
        "The largest difference of any result as a share of its largest value; f32 without TF32 must be within 1e-5, 16 bits within four",
        "times what their roundings make. Tokens: of the package and of its one file, on this provider and on the processor.",
        "",
        *table(found, given.dtypes),
        "## What was left to the processor",
        "",
        *left(found),
        "## Rates",
        "",
        *(rates or ["Not measured."]),
    ]
    return "\n".join(lines) + "\n"


def measured(given: argparse.Namespace, directory: Path) -> list[str]:
    """Measure rates; without PyTorch return a note."""
    try:
        import gpu_rates
    except ImportError as error:
        return [f"Not measured: {error}.", ""]
    tiny = {"tiny": True, "batches": (1, 2), "prompt": 8, "count": 4, "rounds": 1}
    plan = gpu_rates.Plan(
        provider=given.provider,
        dtypes=[d for d in given.dtypes if given.provider != "cpu" or d != "bf16"],
        **(tiny if given.quick else {}),
    )
    lines: list[str] = []
    for name in given.decoders.split(","):
        lines += gpu_rates.decoding(name, directory, plan)
        lines += gpu_rates.kernels(name, directory, plan)
    for name in filter(None, given.encoders.split(",")):
        lines += gpu_rates.encoding(name, directory, plan)
    return lines


def main() -> None:
    """Run the requested checks and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", default="cuda")
    parser.add_argument(
        "--specs", default="", help="names of specs, comma-separated (default: all)"
    )
    parser.add_argument("--dtypes", default="f32,f16,bf16", type=lambda t: t.split(","))
    parser.add_argument("--decoders", default="gpt2,llama")
    parser.add_argument("--encoders", default="bert,vit")
    parser.add_argument("--quick", action="store_true", help="tiny models, few rounds")
    parser.add_argument("--no-rates", action="store_true")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gpu-report.md")
    given = parser.parse_args()
    if given.provider == "cuda" and not card():
        print("no NVIDIA card is here, so nothing was run; docs/gpu-report.md stays")
        return
    if given.provider == "cpu":
        given.dtypes = [d for d in given.dtypes if d != "bf16"]
    sys.path.append(str(ROOT / "tests"))
    from support.small_configs import SMALL_CONFIGS

    specs = [s for s in given.specs.split(",") if s] or sorted(SMALL_CONFIGS)
    with tempfile.TemporaryDirectory() as name:
        directory, found = Path(name), []
        for each in rows(specs, given.provider, directory, given.dtypes, given.at_once):
            found.append(each)
            print(f"{each['spec']}:", {k: v for k, v in each.items() if k != "placement"}, flush=True)  # fmt: skip
            for provider, kind, node in each.get("placement", ()):
                print(f"  {provider} {kind} {node}")
        rates = [] if given.no_rates else measured(given, directory)
        print("\n".join(rates))
    given.out.write_text(report(given, found, rates), encoding="utf-8")
    print(f"written: {given.out}")


if __name__ == "__main__":
    main()
