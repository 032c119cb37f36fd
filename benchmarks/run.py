"""All benchmarks, by one command: `make bench`, or `python benchmarks/run.py --only check,compile,latency --quick`.

Prints Markdown and writes it to benchmarks/results.md.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import measure
import numpy as np
import onnxruntime

HERE = Path(__file__).parent
SPECC = [sys.executable, "-m", "specc"]


def check(rounds: int) -> Iterator[str]:
    """`specc check gpt2` from a cold shell: goal 0.35 s."""
    times = [measure.of_process([*SPECC, "check", "gpt2"]).seconds for _ in range(rounds)]
    yield "### `specc check gpt2`, a fresh process\n"
    yield "| median s | fastest s | goal s |\n|---|---|---|"
    yield f"| {statistics.median(times):.2f} | {min(times):.2f} | 0.35 |\n"


def compile_(folder: Path, rounds: int) -> Iterator[str]:
    """GPT-2 small from safetensors to ONNX, beside the exporter: goals 5 × faster, a third of the memory."""
    import models

    checkpoint = folder / "gpt2"
    models.save("gpt2", checkpoint)
    ours, theirs = [], []
    for n in range(rounds):
        out = folder / f"out{n}"
        out.mkdir()
        command = [*SPECC, "compile", "gpt2", "--weights", str(checkpoint), "--weights-as", "copy"]
        ours.append(measure.of_process([*command, "-o", str(out / "ours.onnx")]))
        script = [sys.executable, str(HERE / "export.py"), "gpt2", str(checkpoint), str(out / "theirs.onnx")]
        theirs.append(measure.of_process(script))
    linked = measure.of_process([*SPECC, "compile", "gpt2", "--weights", str(checkpoint), "-o", str(checkpoint / "m.onnx")])
    yield "### Compiling GPT-2 small (124 M parameters) from safetensors\n"
    yield "| | seconds | peak memory MB |\n|---|---|---|"
    for name, costs in (("specc compile, weights copied", ours), ("torch.onnx.export(dynamo=True)", theirs)):
        seconds = statistics.median(c.seconds for c in costs)
        yield f"| {name} | {seconds:.1f} | {statistics.median(c.megabytes for c in costs):.0f} |"
    yield f"| specc compile, weights left in the checkpoint | {linked.seconds:.1f} | {linked.megabytes:.0f} |"
    faster = statistics.median(c.seconds for c in theirs) / statistics.median(c.seconds for c in ours)
    less = statistics.median(c.megabytes for c in theirs) / statistics.median(c.megabytes for c in ours)
    yield f"\nspecc is {faster:.1f} times faster (goal 5) at 1/{less:.1f} of the memory (goal 1/3).\n"


def latency(folder: Path, rounds: int, names: list[str]) -> Iterator[str]:
    """The compiled models beside the exports, both in ONNX Runtime with all optimizations."""
    import models

    yield "### Latency in ONNX Runtime, 2 threads, milliseconds (median, fastest)\n"
    yield "| model | input | specc | torch.onnx export | ratio (95 % interval) | no worse | largest difference |"
    yield "|---|---|---|---|---|---|---|"
    for name in names:
        checkpoint = folder / name
        if not checkpoint.exists():
            models.save(name, checkpoint)
        ours, theirs = checkpoint / "ours.onnx", folder / f"{name}-theirs.onnx"
        measure.of_process([*SPECC, "compile", name, "--weights", str(checkpoint), "-o", str(ours)])
        measure.of_process([sys.executable, str(HERE / "export.py"), name, str(checkpoint), str(theirs)])
        yield from _latencies(models.MODELS[name], ours, theirs, rounds)
    yield ""


def _latencies(model, ours: Path, theirs: Path, rounds: int) -> Iterator[str]:
    a, b = _open(ours), _open(theirs)
    names = [i.name for i in b.get_inputs()]
    for shape in model.shapes:
        given = model.inputs(shape)
        other = dict(zip(names, (v.astype(np.int64) if v.dtype == bool else v for v in given.values()), strict=True))
        calls = {"ours": lambda g=given: a.run([model.output], g)[0], "theirs": lambda g=other: b.run(None, g)[0]}
        x, y = calls["ours"](), calls["theirs"]()
        apart = float(np.abs(x - y).max() / np.abs(y).max())
        times = measure.in_turn(calls, rounds)
        ratio = measure.ratio(times["ours"], times["theirs"])
        shown = [f"{statistics.median(t) * 1e3:.0f}, {min(t) * 1e3:.0f}" for t in times.values()]
        size = "×".join(map(str, shape))
        yield f"| {model.spec} | {size} | {shown[0]} | {shown[1]} | {ratio} | {_word(ratio.no_worse)} | {apart:.0e} |"


def _word(yes: bool) -> str:
    return "yes" if yes else "not yet"


def _open(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="check,compile,latency")
    parser.add_argument("--models", default="bert,vit,gpt2")
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it runs, not to quote")
    given = parser.parse_args()
    wanted, rounds = given.only.split(","), 5 if given.quick else 20
    head = [f"Measured on {measure.machine()}, ONNX Runtime {onnxruntime.__version__}, by `make bench`.\n"]
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        parts = {
            "check": lambda: check(rounds),
            "compile": lambda: compile_(folder, 1 if given.quick else 3),
            "latency": lambda: latency(folder, rounds, given.models.split(",")),
        }
        for name in wanted:
            for line in parts[name]():
                print(line, flush=True)
                lines.append(line)
    if not given.quick and set(wanted) == set(parts):
        (HERE / "results.md").write_text("# Results\n\n" + "\n".join(head + lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
