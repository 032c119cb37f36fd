"""All benchmarks, by one command: `make bench`, or
`python benchmarks/run.py --only check,latency --quick`.

Prints Markdown; a whole run writes it to benchmarks/results.md.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import measure
import numpy as np
import onnxruntime

HERE = Path(__file__).parent
SPECC = [sys.executable, "-m", "specc"]
PARTS = (
    "check",
    "compile",
    "latency",
    "local",
    "experts",
    "recurrence",
    "generation",
    "map",
    "lowbits",
)


def check(folder: Path, rounds: int) -> Iterator[str]:
    """`specc check gpt2` in a new process each time: goal 0.35 s."""
    command = [*SPECC, "check", "gpt2"]
    measure.of_process(command, folder)
    costs = [measure.of_process(command, folder) for _ in range(rounds)]
    seconds = [c.seconds for c in costs]
    yield f"### `specc check gpt2`, a new process each time ({rounds} times)\n"
    yield "| fastest s | median s | goal s | reached | processor s |\n|---|---|---|---|---|"
    median = statistics.median(seconds)
    used = min(c.processor for c in costs)
    yield f"| {min(seconds):.2f} | {median:.2f} | 0.35 | {_word(median <= 0.35)} | {used:.2f} |\n"


def compiling(folder: Path, rounds: int) -> Iterator[str]:
    """GPT-2 small from safetensors to ONNX, beside the exporter: goals 5 × faster, a
    third of the memory.
    """
    checkpoint = _checkpoint("gpt2", folder)
    copied, linked, theirs = [], [], []
    for n in range(rounds):
        out = folder / f"out{n}"
        out.mkdir()
        command = [*SPECC, "compile", "gpt2", "--weights", str(checkpoint)]
        copied.append(
            measure.of_process(
                [*command, "--weights-as", "copy", "-o", str(out / "ours.onnx")], folder
            )
        )
        linked.append(
            measure.of_process([*command, "-o", str(checkpoint / "model.onnx")], folder)
        )
        theirs.append(
            measure.of_process(_export("gpt2", checkpoint, out / "theirs.onnx"), folder)
        )
    yield f"### Compiling GPT-2 small (124 M parameters) from safetensors ({rounds} times)\n"
    yield (
        "| | median s | fastest s | peak memory MB | times faster (goal 5) | share "
        "of memory (goal 0.33) |"
    )
    yield "|---|---|---|---|---|---|"
    rows = {
        "specc compile, into another folder": copied,
        "specc compile, beside the weights": linked,
        "torch.onnx.export(dynamo=True)": theirs,
    }
    for name, costs in rows.items():
        seconds = [c.seconds for c in costs]
        memory = max(c.megabytes for c in costs)
        faster = statistics.median(c.seconds for c in theirs) / statistics.median(
            seconds
        )
        share = memory / max(c.megabytes for c in theirs)
        compared = f"{faster:.1f} | {share:.2f}" if costs is not theirs else "|"
        yield (
            f"| {name} | {statistics.median(seconds):.1f} | {min(seconds):.1f} | "
            f"{memory:.0f} | {compared} |"
        )
    yield ""


def latency(folder: Path, rounds: int, names: Sequence[str]) -> Iterator[str]:
    """The compiled models beside the exports, both in ONNX Runtime with all optimizations."""
    import models

    yield (
        "### Latency in ONNX Runtime, 2 threads, milliseconds: median, fastest of "
        f"{rounds} rounds\n"
    )
    yield (
        "| model | input | specc | torch.onnx.export | ratio (95 % interval) | no "
        "worse | largest difference |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name in names:
        checkpoint = _checkpoint(name, folder)
        ours, theirs = checkpoint / "ours.onnx", folder / f"{name}-theirs.onnx"
        measure.of_process(
            [*SPECC, "compile", name, "--weights", str(checkpoint), "-o", str(ours)]
        )
        measure.of_process(_export(name, checkpoint, theirs))
        yield from _latencies(models.MODELS[name], ours, theirs, rounds)
    yield ""


def _latencies(model, ours: Path, theirs: Path, rounds: int) -> Iterator[str]:
    a, b = _open(ours), _open(theirs)
    names = [i.name for i in b.get_inputs()]
    for shape in model.shapes:
        given = model.inputs(shape)
        other = dict(
            zip(
                names,
                (v.astype(np.int64) if v.dtype == bool else v for v in given.values()),
                strict=True,
            )
        )
        calls = {
            "ours": lambda g=given: a.run([model.output], g)[0],
            "theirs": lambda g=other: b.run(None, g)[0],
        }
        x, y = calls["ours"](), calls["theirs"]()
        apart = float(np.abs(x - y).max() / np.abs(y).max())
        times = measure.in_turn(calls, rounds)
        ratio = measure.ratio(times["ours"], times["theirs"])
        shown = [
            f"{statistics.median(t) * 1e3:.0f}, {min(t) * 1e3:.0f}"
            for t in times.values()
        ]
        size = "×".join(map(str, shape))
        same = "none" if apart == 0 else f"{apart:.0e}"
        yield (
            f"| {model.spec} | {size} | {shown[0]} | {shown[1]} | {ratio} | "
            f"{_word(ratio.no_worse)} | {same} |"
        )


def local(folder: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Attention that looks at a neighborhood, beside all at once."""
    import local as part

    yield from part.rows(folder, rounds, quick)


def experts(folder: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Mixtures of experts, beside all experts on all rows."""
    import experts as part

    yield from part.rows(folder, rounds, quick)


def recurrence(folder: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Recurrent models beside PyTorch."""
    import recurrence as part

    yield from part.rows(folder, rounds, quick)


def generation(folder: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Writing text token by token, beside the programs that do it."""
    import generation as part

    yield from part.rows(folder, rounds, quick)


def mapping(folder: Path, quick: bool) -> Iterator[str]:
    """A data set through a model, beside one call a row."""
    import map as part

    yield from part.rows(folder, 400 if quick else 20000, quick)


def lowbits(folder: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Rounded weights, beside all their bits and beside other programs that round."""
    import lowbits as part

    yield from part.rows(folder, rounds, quick)


def _checkpoint(name: str, folder: Path) -> Path:
    """A folder with random weights of that model, written once."""
    import models

    made = folder / name
    if not made.exists():
        models.save(name, made)
    return made


def _export(name: str, checkpoint: Path, out: Path) -> list[str]:
    return [sys.executable, str(HERE / "export.py"), name, str(checkpoint), str(out)]


def _word(yes: bool) -> str:
    return "yes" if yes else "no"


def _open(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}"
    )
    parser.add_argument("--models", default="bert,vit,gpt2")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few rounds: to see that it runs, not to quote",
    )
    given = parser.parse_args()
    wanted, quick = given.only.split(","), given.quick
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"--only takes {', '.join(PARTS)}, not {', '.join(unknown)}")
    lines = [f"Measured by `make bench` on {measure.machine()}.\n"]
    print(lines[0])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        parts = {
            "check": lambda: check(folder, 5 if quick else 20),
            "compile": lambda: compiling(folder, 1 if quick else 3),
            "latency": lambda: latency(
                folder, 5 if quick else 20, given.models.split(",")
            ),
            "local": lambda: local(folder, 3 if quick else 10, quick),
            "experts": lambda: experts(folder, 3 if quick else 20, quick),
            "recurrence": lambda: recurrence(folder, 5 if quick else 20, quick),
            "generation": lambda: generation(folder, 2 if quick else 20, quick),
            "map": lambda: mapping(folder, quick),
            "lowbits": lambda: lowbits(folder, 2 if quick else 20, quick),
        }
        for name in wanted:
            for line in parts[name]():
                print(line, flush=True)
                lines.append(line)
    if not quick and set(wanted) == set(PARTS):
        (HERE / "results.md").write_text(
            "# Results\n\n" + "\n".join(lines).rstrip() + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
