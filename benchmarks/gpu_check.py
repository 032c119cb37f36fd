"""Implements `make gpu-check`: compare every built-in spec on a GPU with the float64 reference,
list the execution provider of each node, measure speed, and write docs/gpu-report.md.

Without a GPU no check is run. `--provider cpu --quick` tests the program itself. `--results FILE`
stores the results, so that a later run computes only missing results and errors.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
PACKAGES = ("onnxruntime-gpu", "onnxruntime", "onnx", "torch", "transformers", "numpy")
QUANTIZATIONS = ("int8", "int8-weights", "int4")
"""The quantization kinds, each of which is a column of the table."""
SPEC_TIMEOUT = 600
"""Time limit in seconds for the checks of one spec; the table reports a timeout."""
CPU_PROVIDER = "CPUExecutionProvider"

Row = dict[str, Any]


def find_gpu() -> str:
    """Return the name, driver and memory of the first GPU, or "" without a GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]  # fmt: skip
    try:
        result = subprocess.run(query, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return result.stdout.strip().splitlines()[0] if result.stdout.strip() else ""


def list_versions() -> str:
    """Return the versions of the installed packages in PACKAGES."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    # onnxruntime and onnxruntime-gpu install the same modules, and the GPU build takes precedence
    if "onnxruntime-gpu" in found:
        found.pop("onnxruntime", None)
    return ", ".join(f"{name} {number}" for name, number in found.items())


def check_specs(
    specs: Sequence[str], rows: Mapping[str, Row], given: argparse.Namespace, directory: Path
) -> Iterator[Row]:
    """Yield the results of each spec when available. Start no spec after `given.seconds`."""
    deadline = time.monotonic() + given.seconds
    with ThreadPoolExecutor(given.at_once) as pool:
        futures = [
            pool.submit(check_spec, rows.get(spec, {"spec": spec}), given, directory, deadline)
            for spec in specs
        ]
        for future in as_completed(futures):
            yield future.result()


def check_spec(row: Row, given: argparse.Namespace, directory: Path, deadline: float) -> Row:
    """Check one spec in a separate process. Return its row with the missing results."""
    left = deadline - time.monotonic()
    all_columns = [*list_columns(given.dtypes), "placement"]
    is_new = len(row) == 1
    columns = [c for c in all_columns if is_new or "error" in row.get(c, ())]
    if left <= 0 or not columns:
        return row
    command = [sys.executable, str(HERE / "gpu_specs.py"), row["spec"], given.provider]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])}
    messages, status = b"", 0
    row = {column: result for column, result in row.items() if column != "all"}
    try:
        done = subprocess.run(
            [*command, str(directory), *columns],
            capture_output=True,
            check=False,
            timeout=min(SPEC_TIMEOUT, left),
            env=environment,
        )
        output, messages, status = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        if left >= SPEC_TIMEOUT:
            row["all"] = {"error": f"took longer than {SPEC_TIMEOUT} s"}
    for line in output.decode(errors="replace").splitlines():
        if line.startswith("{") and line.endswith("}"):
            row |= json.loads(line)
    if status:
        last = (messages.decode(errors="replace").strip() or "no message").splitlines()[-1]
        row["all"] = {"error": f"the process ended with exit code {status}: {last}"}
    return row


def list_columns(dtypes: Sequence[str]) -> list[str]:
    """Return the columns with differences: full-forward graph and package in each dtype, CUDA
    graph, and quantized weights.
    """
    return [c for d in dtypes for c in (d, f"{d} package")] + ["CUDA graph", *QUANTIZATIONS]


def format_table(specs: Sequence[str], rows: Sequence[Row], dtypes: Sequence[str]) -> Iterator[str]:
    """Yield the table of specs: largest differences, and number of nodes by provider."""
    columns = list_columns(dtypes)
    rows = [row for row in rows if len(row) > 1]
    yield f"| spec | {' | '.join(columns)} | tokens | nodes on the GPU | shape nodes on the CPU |"
    yield "|---" * (len(columns) + 4) + "|"
    for row in rows:
        cells = [_format_cell(row.get(column)) for column in columns]
        nodes = Counter(provider for provider, _ in list_nodes(row))
        equal = {True: "equal", False: "**differ**", None: ""}[row.get("tokens", {}).get("equal")]
        on_cpu = nodes[CPU_PROVIDER]
        yield f"| `{row['spec']}` | {' | '.join(cells)} | {equal} | {nodes.total() - on_cpu} | {on_cpu} |"
    yield ""
    errors = [
        (row["spec"], column, row[column]["error"])
        for row in rows
        for column in (*columns, "tokens", "placement", "all")
        if "error" in row.get(column, ())
    ]
    for spec, column, message in errors:
        yield f"* `{spec}`, {column}: {_shorten_message(message)}"
    yield f"\n{len(rows)} specs, {len(errors)} errors.\n"
    if absent := sorted(set(specs) - {row["spec"] for row in rows}):
        yield f"The following specs were not run: {', '.join(f'`{spec}`' for spec in absent)}.\n"


def _shorten_message(message: str) -> str:
    """Return the first error of a message on one line, without directory names."""
    first = message[max(message.find("error["), 0) :]
    return " ".join(re.sub(r"/\S+/(?=[\w.-]+`)", "", first).split())


def _format_cell(result: Mapping[str, Any] | None) -> str:
    if not result:
        return ""
    return "**error**" if "error" in result else f"{result['difference']:.1e}"


def list_nodes(row: Row) -> list[tuple[str, str]]:
    """Return the provider and operator of each node; [] if the model could not be loaded."""
    placement = row.get("placement", [])
    return [] if "error" in placement else [(provider, kind) for provider, kind, _ in placement]


def format_cpu_operators(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the table of operators that run on the CPU, by number of nodes."""
    counts = Counter(
        operator
        for row in rows
        for provider, operator in list_nodes(row)
        if provider == CPU_PROVIDER
    )
    yield "| operator | nodes on the CPU |\n|---|---|"
    for operator, count in counts.most_common():
        yield f"| {operator} | {count} |"
    yield ""


def format_report(
    given: argparse.Namespace, specs: Sequence[str], rows: Sequence[Row], speed: Sequence[str]
) -> str:
    """Return the content of the report page."""
    lines = [
        "# GPU test report",
        "",
        f"Generated by `make gpu-check` on {date.today().isoformat()}: {find_gpu() or 'no GPU'}; execution provider `{given.provider}`; {list_versions()}.",
        "",
        "## Every built-in spec compared with the float64 reference",
        "",
        "Each row is a small version of a spec with random weights, compiled with `--target ort-cuda`. Each number is the maximum",
        "difference between an output and the reference, divided by the maximum value of this output. TF32 is disabled for float32 models.",
        "The column `CUDA graph` compares static shapes (`model.with_static_shapes`) with dynamic shapes. The column `tokens`",
        "compares the tokens generated by the package and by its standalone generator, on the tested execution provider and on the CPU.",
        "The list after the table contains the error messages.",
        "",
        *format_table(specs, rows, given.dtypes),
        "## Nodes on the CPU",
        "",
        "ONNX Runtime places the following shape computations on the CPU:",
        "",
        *format_cpu_operators(rows),
        "## Speed",
        "",
        *(speed or ["Not measured."]),
    ]
    return "\n".join(lines) + "\n"


def measure_speed(given: argparse.Namespace, directory: Path, deadline: float) -> Iterator[str]:
    """Yield the lines of the speed tables, or a note if PyTorch is not installed."""
    try:
        import gpu_rates
    except ImportError as error:
        yield f"Not measured: {error}."
        return
    tiny = {"tiny": True, "batches": (1, 2), "prompt": 8, "count": 4, "rounds": 1}
    plan = gpu_rates.MeasurementPlan(
        provider=given.provider,
        dtypes=[d for d in given.dtypes if given.provider != "cpu" or d != "bf16"],
        deadline=deadline,
        **(tiny if given.quick else {}),
    )
    for name in filter(None, given.encoders.split(",")):
        yield from gpu_rates.measure_encoder(name, directory, plan)
    for name in filter(None, given.decoders.split(",")):
        yield from gpu_rates.measure_decoder(name, directory, plan)
        yield from gpu_rates.profile_kernels(name, directory, plan)


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
    parser.add_argument("--no-specs", action="store_true", help="measure speed only")
    parser.add_argument("--no-rates", action="store_true", help="do not measure speed")
    parser.add_argument("--at-once", type=int, default=4, help="specs checked in parallel")
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="time limit in seconds for the checks, and for the speed measurement",
    )
    parser.add_argument("--results", type=Path, help="results file (JSON Lines, one line per spec)")
    parser.add_argument("--speed", type=Path, help="file for the speed tables")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gpu-report.md")
    given = parser.parse_args()
    if given.provider == "cuda" and not find_gpu():
        print("no NVIDIA GPU found, so no check was run; docs/gpu-report.md is unchanged")
        return
    if given.provider == "cpu":
        given.dtypes = [d for d in given.dtypes if d != "bf16"]
    sys.path.append(str(ROOT / "tests"))
    from support.small_configs import SMALL_CONFIGS

    specs = [s for s in given.specs.split(",") if s] or sorted(SMALL_CONFIGS)
    rows = read_results(given.results)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        speed = given.speed.read_text().splitlines() if given.speed and given.speed.exists() else []
        if not given.no_rates and not speed:
            for line in measure_speed(given, directory, time.monotonic() + given.seconds):
                print(line, flush=True)
                speed.append(line)
                if given.speed:
                    given.speed.write_text("\n".join(speed) + "\n", "utf-8")
        for row in check_specs([] if given.no_specs else specs, rows, given, directory):
            if len(row) == 1 or row == rows.get(row["spec"]):
                continue
            rows[row["spec"]] = row
            print({k: v for k, v in row.items() if k != "placement"}, flush=True)
            if given.results:
                with given.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    ordered = [rows[spec] for spec in sorted(rows)]
    given.out.write_text(format_report(given, specs, ordered, speed), encoding="utf-8")
    print(f"written: {given.out}")


def read_results(path: Path | None) -> dict[str, Row]:
    """Read the results of an earlier run, by spec."""
    if path is None or not path.exists():
        return {}
    rows = map(json.loads, path.read_text("utf-8").splitlines())
    return {row["spec"]: row for row in rows}


if __name__ == "__main__":
    main()
