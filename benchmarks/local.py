"""Compare blocked local attention with dense masked attention, and compare GPT-2 on a long sequence
with other programs.

`local.py MODEL LENGTH` prints the memory in MB that a run needs in addition to an open session.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import measure
import numpy as np

import specc
import specc_onnx
from specc_onnx.ort_model import OrtModel
from specc_onnx.ort_session import open_serialized_ort_model

HEADS, WIDTH = 8, 512
TEXT = 1023
"""Length of the long sequence: one less than the number of GPT-2 positions."""

SPEC = """specc 1
model seen "One attention"

config { sees: mask = causal }
dims batch >= 1, seq >= 1

graph attended(q: float[batch, seq, 512], k: float[batch, seq, 512], v: float[batch, seq, 512])
    -> (y: float[batch, seq, 512]) {
  mixed, _ = attend(split_heads(q, 8), split_heads(k, 8), split_heads(v, 8), mask=sees)
  return merge_heads(mixed)
}
"""

MASKS = (
    ("window(64)", (128, 256, 1024, 4096)),
    ("window(64, ahead=63)", (256, 1024, 4096)),
    ("window(256)", (1024, 4096)),
    ("causal", (512, 1024, 2048)),
)
GOAL = {("window(64)", 4096): "8 × faster, below 60 MB"}


def iterate_report_lines(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Yield the tables of local attention and of GPT-2."""
    yield (
        "### Local attention: 8 heads of size 64, batch size 1, 2 threads, ms (minimum of "
        f"{rounds} rounds)\n"
    )
    yield "| mask | tokens | blocked, ms | dense, ms | speedup | blocked, MB | dense, MB | goal |"
    yield "|---|---|---|---|---|---|---|---|"
    for mask, lengths in MASKS:
        paths = _compile_variants(mask, directory)
        for length in lengths[-1:] if quick else lengths:
            yield _format_row(mask, length, paths, rounds)
    yield ""
    yield from _measure_long_text(directory, rounds)


def _compile_variants(mask: str, directory: Path) -> dict[str, Path]:
    """Compile an attention layer with blocked and with dense masks. Return both paths."""
    spec = directory / "seen.specc"
    spec.write_text(SPEC, encoding="utf-8")
    name = "".join(c for c in mask if c.isalnum())
    paths = {form: directory / f"{name}-{form}.onnx" for form in ("blocks", "whole")}
    specc.compile(spec, paths["blocks"], set={"sees": mask}, target="ort-cpu")
    graph = specc.load(paths["blocks"]).manifest.graph
    whole = replace(specc_onnx.get_target("ort-cpu"), uses_blocked_attention=False)
    built = specc_onnx.build_model(graph, whole)
    paths["whole"].write_bytes(built.model.SerializeToString())
    return paths


def _format_row(mask: str, length: int, paths: Mapping[str, Path], rounds: int) -> str:
    sessions = {
        form: open_serialized_ort_model(path.read_bytes(), directory=path.parent, threads=2)
        for form, path in paths.items()
    }
    given = _make_inputs(length)
    times = measure.time_in_turn(
        {form: _make_call(session, given) for form, session in sessions.items()}, rounds
    )
    ours, theirs = (min(times[form]) * 1e3 for form in ("blocks", "whole"))
    memory = [_measure_memory(paths[form], length) for form in ("blocks", "whole")]
    goal = GOAL.get((mask, length), "")
    return (
        f"| {mask} | {length} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.1f} | "
        f"{memory[0]} | {memory[1]} | {goal} |"
    )


def _make_call(session: OrtModel, given: Mapping[str, np.ndarray]) -> Callable[[], object]:
    return lambda: session.run(given)


def _make_inputs(length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (1, length, WIDTH)
    return {name: rng.normal(size=shape).astype(np.float32) for name in "qkv"}


def _measure_memory(path: Path, length: int) -> str:
    """Measure the additional peak memory of a run in MB in a separate process."""
    command = [sys.executable, __file__, str(path), str(length)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _measure_long_text(directory: Path, rounds: int) -> Iterator[str]:
    """Yield the table of GPT-2 small on a sequence of 1 023 tokens, with all logits."""
    import decoders
    import published
    import torch

    torch.set_num_threads(2)
    checkpoint = directory / "gpt2"
    if not checkpoint.exists():
        published.save_model("gpt2", checkpoint)
    ours, theirs = checkpoint / "ours.onnx", directory / "gpt2-theirs.onnx"
    command = ["-m", "specc", "compile", "gpt2", "--weights", str(checkpoint)]
    measure.measure_process([sys.executable, *command, "-o", str(ours)])
    export = [sys.executable, str(Path(__file__).with_name("torch_export.py")), "logits"]
    measure.measure_process([*export, "gpt2", str(checkpoint), str(theirs)])
    given = published.MODELS["gpt2"].make_inputs((1, TEXT))
    loaded, session = specc.load(ours, threads=2).selected_model, decoders.open_session(theirs)
    eager = published.load_published_model("gpt2", checkpoint)
    tensors = published.make_tensors("gpt2", (1, TEXT))
    names = [i.name for i in session.get_inputs()]
    other = {
        name: value.astype(np.int64) for name, value in zip(names, given.values(), strict=True)
    }

    def run_torch() -> object:
        with torch.inference_mode():
            return eager(*tensors)

    times = measure.time_in_turn(
        {
            "specc": lambda: loaded.session.run(given),
            "torch.onnx.export": lambda: session.run(None, other),
            "PyTorch, eager": run_torch,
        },
        rounds,
    )
    yield (
        f"### GPT-2 small over {TEXT} tokens, all logits, 2 threads, milliseconds: "
        f"fastest of {rounds} rounds\n"
    )
    yield "| | ms | specc is times faster (goal 1.4) |"
    yield "|---|---|---|"
    for name, seconds in times.items():
        compared = f"{min(seconds) / min(times['specc']):.2f}" if name != "specc" else ""
        yield f"| {name} | {min(seconds) * 1e3:.0f} | {compared} |"
    yield ""


def main(path: str, length: str) -> None:
    """Print the additional memory of one run in MB."""
    directory = Path(path).parent
    session = open_serialized_ort_model(Path(path).read_bytes(), directory=directory, threads=2)
    given = _make_inputs(int(length))
    short = _make_inputs(2)
    session.run(short)
    before = _get_peak_memory()
    session.run(given)
    print(f"{(_get_peak_memory(reset=False) - before) / 1e6:.0f}")


def _get_peak_memory(*, reset: bool = True) -> int:
    """Return the peak memory in bytes since the last call with `reset` (Linux only)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    line = next(s for s in status.splitlines() if s.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
