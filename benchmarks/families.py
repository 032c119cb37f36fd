"""Compare six published architectures with every available compiler: the time, memory and file size
of compilation, and the speed of the compiled models in ONNX Runtime.

Each tool is called as its users call it, in its own Python environment (`make other-runtimes`). The
results list tools that are not installed, and the errors of tools that fail.
"""

import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import decoders
import measure
import numpy as np
import onnxruntime
import published
from decoders import Generate, GenerationTrace

import specc

HERE = Path(__file__).parent
READERS = HERE.parent / ".other-runtimes"
PROMPT, COUNT = 128, 32
"""The prompt length and the number of generated tokens."""

BATCHES = (1, 8)
"""The batch sizes at which encoders are measured."""

GOAL_TIME, GOAL_MEMORY = 10, 0.1
"""Goals of compilation relative to the fastest other tool: speedup, fraction of peak memory."""


@dataclass(frozen=True)
class Compiler:
    """A compiler: its executable, and a function that returns its command line for a checkpoint."""

    command: Callable[[str, Path, Path], Sequence[str]]
    program: Path = Path(sys.executable)

    @property
    def is_installed(self) -> bool:
        """Return True if the tool is installed."""
        return self.program.exists()


def _build_specc_command(name: str, checkpoint: Path, out: Path) -> Sequence[str]:
    command = ["-m", "specc", "compile", str(checkpoint), "--weights-as", "copy", "-o"]
    if published.FAMILIES[name].kind == "encoder":
        return [*command, str(out / "model.onnx")]
    return [*command, str(out), "--graphs", "step"]


def _build_linked_command(name: str, checkpoint: Path, out: Path) -> Sequence[str]:
    """Return the command line that links the weights and writes to the checkpoint directory."""
    command = ["-m", "specc", "compile", str(checkpoint), "-o"]
    if published.FAMILIES[name].kind == "encoder":
        return [*command, str(checkpoint / "model.onnx")]
    return [*command, str(checkpoint), "--graphs", "step"]


def _build_torch_command(name: str, checkpoint: Path, out: Path) -> Sequence[str]:
    return [str(HERE / "torch_export.py"), "family", name, str(checkpoint), str(out / "model.onnx")]


def _build_optimum_command(name: str, checkpoint: Path, out: Path) -> Sequence[str]:
    task = published.FAMILIES[name].task
    # without merging, because a merged decoder would store the weights a second time
    options = ["--no-post-process", "--task", task]
    return ["export", "onnx", *options, "--model", str(checkpoint), str(out)]


def _build_genai_command(name: str, checkpoint: Path, out: Path) -> Sequence[str]:
    builder = ["-m", "onnxruntime_genai.models.builder", "-p", "fp32", "-e", "cpu"]
    cache = str(out.with_name(f"{out.name}-cache"))
    return [*builder, "-c", cache, "-i", str(checkpoint), "-o", str(out)]


def _build_mobius_command(name: str, checkpoint: Path, out: Path) -> Sequence[str]:
    return ["build", "--config", str(checkpoint), str(out)]


def _get_program_path(reader: str, program: str) -> Path:
    return READERS / reader / "bin" / program


OURS, LINKED = "specc", "specc, weights linked"
TOOLS = {
    OURS: Compiler(_build_specc_command),
    LINKED: Compiler(_build_linked_command),
    "torch.onnx": Compiler(_build_torch_command),
    "optimum-onnx": Compiler(_build_optimum_command, _get_program_path("optimum", "optimum-cli")),
    "genai builder": Compiler(_build_genai_command, _get_program_path("genai", "python")),
    "mobius": Compiler(_build_mobius_command, _get_program_path("mobius", "mobius")),
}


@dataclass(frozen=True)
class CompiledModel:
    """The cost of a compilation, the output directory, and the total size of its files in bytes."""

    cost: measure.ProcessCost
    directory: Path
    size: int


def iterate_report_lines(
    directory: Path, rounds: int, quick: bool, names: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the tables of compilation and of inference, with their goals."""
    chosen = [n for n in published.FAMILIES if not names or n in names]
    remarks = [f"{n} is not installed: `make other-runtimes`." for n, t in TOOLS.items() if not t.is_installed]  # fmt: skip
    made: dict[str, dict[str, CompiledModel]] = {}
    warm = ["compile", "numbers", "--graphs", "step", "-o", str(directory / "warm")]
    measure.measure_process([sys.executable, "-m", "specc", *warm], directory / "pyc")
    for name in chosen:
        made[name] = _compile_family(name, directory, quick, remarks)
    yield from _format_compile_table(made)
    yield f"Other tools: {', '.join(_list_versions())}.\n"
    yield from _measure_inference(made, rounds, remarks)
    yield from (f"* {remark}" for remark in remarks)
    yield ""


def _list_versions() -> Iterator[str]:
    """Yield the package versions in the environments of the tools."""
    packages = {
        "optimum": ("optimum-onnx", "transformers"),
        "genai": ("onnxruntime-genai",),
        "mobius": ("mobius-onnx",),
    }
    told = "from importlib.metadata import version as v; import sys; print(', '.join(f'{n} {v(n)}' for n in sys.argv[1:]))"
    for reader, names in packages.items():
        python = _get_program_path(reader, "python")
        if python.exists():
            command = [str(python), "-c", told, *names]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            yield done.stdout.strip()


# --- compilation -----------------------------------------------------------------------


def _compile_family(
    name: str, directory: Path, quick: bool, remarks: list[str]
) -> dict[str, CompiledModel]:
    """Compile a model family with each tool. Append a remark for each tool that fails."""
    checkpoint = published.save_family(name, directory / name.replace(" ", "-"), quick)
    found: dict[str, CompiledModel] = {}
    for tool, how in TOOLS.items():
        if not how.is_installed:
            continue
        out = directory / f"{checkpoint.name}-{tool.split(',')[0].replace(' ', '-')}"
        before = set(checkpoint.iterdir())
        # only torch.onnx requires that the output directory exists
        if tool == "torch.onnx":
            out.mkdir()
        command = [str(how.program), *how.command(name, checkpoint, out)]
        try:
            # specc runs from sources, whereas other packages are installed with bytecode
            own = directory / "pyc" if tool in (OURS, LINKED) else None
            cost = measure.measure_process(command, own)
        except SystemExit as error:
            said = _extract_reason(str(error)).replace(str(directory), "…")
            remarks.append(f"{tool} does not support {name}: {said}")
            continue
        size = (
            _move_new_files(checkpoint, before, out)
            if tool == LINKED
            else measure.measure_directory_size(out)
        )
        found[tool] = CompiledModel(cost, out, size)
    return found


def _move_new_files(checkpoint: Path, before: Set[Path], out: Path) -> int:
    """Move new files from the checkpoint directory to another directory, so that the next tool
    finds the original checkpoint. Return the size of the new files in bytes.
    """
    out = out.with_name(f"{out.name}-linked")
    out.mkdir()
    for path in set(checkpoint.iterdir()) - before:
        path.rename(out / path.name)
    return measure.measure_directory_size(out)


def _extract_reason(said: str) -> str:
    """Return the last line of a program's output that contains an error."""
    lines = said.strip().splitlines()
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception): .", line)]
    return (named or lines)[-1][:200]


def _format_compile_table(made: Mapping[str, Mapping[str, CompiledModel]]) -> Iterator[str]:
    yield "### Compiling a checkpoint, random weights at real size\n"
    yield "| model | tool | time, s | CPU time, s | peak memory, MB | files, MB |"
    yield "|---|---|---|---|---|---|"
    for name, tools in made.items():
        for tool, one in tools.items():
            cost = one.cost
            yield (
                f"| {name} | {tool} | {cost.seconds:.1f} | {cost.processor:.1f} | "
                f"{cost.megabytes:.0f} | {one.size / 1e6:.1f} |"
            )
    yield ""
    yield (
        f"Goal: {GOAL_TIME} times faster than the fastest other tool, with {GOAL_MEMORY:.0%} of "
        "its peak memory.\n"
    )
    yield "| model | fastest other tool | speedup, weights copied | speedup, weights linked | peak memory / its | goal reached |"
    yield "|---|---|---|---|---|---|"
    for name, tools in made.items():
        others = {t: m.cost for t, m in tools.items() if t not in (OURS, LINKED)}
        if not others or OURS not in tools:
            continue
        best = min(others, key=lambda t: others[t].seconds)
        copied, linked = (others[best].seconds / tools[t].cost.seconds for t in (OURS, LINKED))  # fmt: skip
        share = tools[OURS].cost.megabytes / others[best].megabytes
        word = measure.format_yes_or_no(copied >= GOAL_TIME and share <= GOAL_MEMORY)
        yield f"| {name} | {best} | {copied:.1f} | {linked:.1f} | {share:.2f} | {word} |"
    yield ""


# --- inference -------------------------------------------------------------------------


def _measure_inference(
    made: Mapping[str, Mapping[str, CompiledModel]], rounds: int, remarks: list[str]
) -> Iterator[str]:
    yield (
        f"### Running the compiled models: ONNX Runtime {onnxruntime.__version__}, "
        f"{decoders.THREADS} threads, {rounds} alternating rounds\n"
    )
    yield (
        f"Inputs are texts of {PROMPT} tokens, images, or 30 s of audio. First: time of the whole "
        f"run, or until the first token; then {COUNT} tokens are generated. Ratio: time of the "
        "specc model / time of the other model (95 % interval); no worse: the interval "
        "includes 1.\n"
    )
    yield "| model | compiled by | first, ms | ratio | tokens/s | ratio | no worse | same outputs |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, tools in made.items():
        some = {t: m for t, m in tools.items() if t != LINKED}
        if published.FAMILIES[name].kind == "encoder":
            yield from _measure_forward_passes(name, some, rounds, remarks)
        else:
            yield from _measure_generation(name, some, rounds, remarks)
    yield ""


def _measure_forward_passes(
    name: str, tools: Mapping[str, CompiledModel], rounds: int, remarks: list[str]
) -> Iterator[str]:
    graphs: dict[str, ForwardFactory] = {}
    for tool, one in tools.items():
        try:
            graphs[tool] = _open_model(tool, one.directory)
        except (RuntimeError, StopIteration) as error:
            remarks.append(f"the {name} model of {tool} does not run: {_format_error(error)}")
    for batch in BATCHES:
        given = published.make_family_inputs(name, PROMPT, batch)
        calls = dict(_iterate_working_calls(f"{name}, {batch}", graphs, given, remarks))
        exact = calls[OURS]()
        times = measure.time_in_turn(calls, rounds)
        for tool, took in times.items():
            ratio = measure.estimate_ratio(times[OURS], took)
            told = [""] * 3
            if tool != OURS:
                apart = _format_difference(calls[tool](), exact)
                told = [str(ratio), measure.format_yes_or_no(ratio.is_no_worse), apart]
            yield (
                f"| {name}, {batch} | {tool} | {statistics.median(took) * 1e3:.1f} | "
                f"{told[0]} | | | {told[1]} | {told[2]} |"
            )


ForwardFactory = Callable[[Mapping[str, np.ndarray]], Callable[[], np.ndarray]]
"""Maps inputs with the names of transformers to a call that returns the first output."""


def _iterate_working_calls(
    what: str,
    graphs: Mapping[str, ForwardFactory],
    given: Mapping[str, np.ndarray],
    remarks: list[str],
) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Yield the calls that succeed. A model of another tool may fail, e.g. for some batch sizes,
    but a failure of the specc model is an error.
    """
    for tool, read in graphs.items():
        call = read(given)
        try:
            call()
        except Exception as error:
            if tool == OURS:
                raise
            remarks.append(f"the {what} model of {tool} does not run: {_format_error(error)}")
        else:
            yield tool, call


def _open_model(tool: str, directory: Path) -> ForwardFactory:
    """Open the model that a tool has compiled, and return its `ForwardFactory`."""
    if tool == OURS:
        return _open_specc_model(directory)
    session = decoders.open_session(next(directory.rglob("*.onnx")))
    names = [i.name for i in session.get_inputs()]
    first = session.get_outputs()[0].name

    def make_call(given: Mapping[str, np.ndarray]) -> Callable[[], np.ndarray]:
        named = {name: given[name] for name in names}
        return lambda: session.run([first], named)[0]

    return make_call


def _open_specc_model(directory: Path) -> ForwardFactory:
    model = specc.load(directory / "model.onnx", threads=decoders.THREADS).selected_model
    result = next(iter(model.manifest.graph.outputs))
    known = ("input_ids", "pixel_values")

    def make_call(given: Mapping[str, np.ndarray]) -> Callable[[], np.ndarray]:
        # masks and token types have default values, which are computed only once
        ready = model.prepare_inputs({name: given[name] for name in known if name in given})
        return lambda: model.session.run(ready, (result,))[result]

    return make_call


def _measure_generation(
    name: str, tools: Mapping[str, CompiledModel], rounds: int, remarks: list[str]
) -> Iterator[str]:
    generators: dict[str, Generate] = {}
    is_seq2seq = published.FAMILIES[name].kind == "seq2seq"
    given = published.make_family_inputs(name, PROMPT, 1)
    for tool, one in tools.items():
        try:
            maker = _make_seq2seq_generator if is_seq2seq else _make_generator
            generators[tool] = maker(tool, one.directory, given)
            generators[tool](_get_decoder_start(given, is_seq2seq), 2)
        except (RuntimeError, StopIteration, KeyError, ValueError) as error:
            generators.pop(tool, None)
            remarks.append(f"the {name} model of {tool} was not run: {_format_error(error)}")
    traces = _measure_in_turn(generators, _get_decoder_start(given, is_seq2seq), rounds)
    first = {t: [x.prefill for x in xs] for t, xs in traces.items()}
    steps = {t: [sum(x.steps) for x in xs] for t, xs in traces.items()}
    for tool, xs in traces.items():
        rate = (COUNT - 1) / statistics.median(steps[tool])
        told = ["", "", ""]
        if tool != OURS:
            found = [measure.estimate_ratio(d[OURS], d[tool]) for d in (first, steps)]
            told = [*map(str, found), measure.format_yes_or_no(all(r.is_no_worse for r in found))]
        same = "tokens" if np.array_equal(xs[0].tokens, traces[OURS][0].tokens) else "no"  # fmt: skip
        yield (
            f"| {name} | {tool} | {statistics.median(first[tool]) * 1e3:.1f} | {told[0]} | "
            f"{rate:.1f} | {told[1]} | {told[2]} | {same} |"
        )


def _get_decoder_start(given: Mapping[str, np.ndarray], is_seq2seq: bool) -> np.ndarray:
    """Return the initial decoder tokens: the prompt, or the start token of a translator."""
    return np.ones((1, 1), np.int64) if is_seq2seq else given["input_ids"]


def _make_generator(tool: str, directory: Path, given: Mapping[str, np.ndarray]) -> Generate:
    if tool == OURS:
        return decoders.make_specc_generator(directory)
    return decoders.make_export_generator(next(directory.rglob("*.onnx")))


def _make_seq2seq_generator(
    tool: str, directory: Path, given: Mapping[str, np.ndarray]
) -> Generate:
    if tool == OURS:
        return decoders.make_specc_seq2seq_generator(directory, given)
    if tool == "torch.onnx":
        return decoders.make_full_forward_seq2seq_generator(directory / "model.onnx", given)
    return decoders.make_optimum_seq2seq_generator(directory, given)


def _measure_in_turn(
    generators: Mapping[str, Generate], ids: np.ndarray, rounds: int
) -> dict[str, list[GenerationTrace]]:
    import generation

    return generation.measure_in_turn(generators, ids, COUNT, rounds)


def _format_difference(x: np.ndarray, y: np.ndarray) -> str:
    if x.shape != y.shape:
        return "different outputs"
    return f"{float(np.abs(x - y).max() / np.abs(y).max()):.0e}"


def _format_error(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1][:200]
