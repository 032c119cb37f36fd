"""Compare text generation in specc, transformers, ONNX Runtime with an exported decoder-with-past
model, and onnxruntime-genai.

The models are GPT-2 small and a Llama of the same size, because the model builder of
onnxruntime-genai does not support GPT-2. All programs use greedy decoding, fp32 and two threads.
The random weights are larger than at initialization, so that the model does not repeat a single
token.
"""

import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import decoders
import measure
import numpy as np
import torch
import transformers
from decoders import Generate, GenerationTrace

ROOT = Path(__file__).parents[1]
BATCHES = (1, 4)
OPSETS = {"gpt2": 23, "llama": 20}
"""The exporter's opset by model: 23 has `Attention`, but `RotaryEmbedding` fails for batches."""
READ_AT_ONCE = 512 * 2**20
"""Size in bytes of the array for measuring memory bandwidth, much larger than any CPU cache."""


@dataclass(frozen=True)
class GenerationSettings:
    """Sequence lengths in tokens: `prompt` of the prompt, `count` of the generated text, `far` past
    tokens in the long-context measurement, and `full` of a prompt that fills the context except for
    two tokens.
    """

    prompt: int = 128
    count: int = 64
    far: int = 896
    full: int = 1022
    rounds: int = 20
    far_rounds: int = 4
    far_count: int = 17
    tiny: bool = False


QUICK = GenerationSettings(
    prompt=8, count=4, far=16, full=32, rounds=2, far_rounds=1, far_count=3, tiny=True
)


def iterate_report_lines(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Yield a table per model and batch size, with times relative to reading the weights."""
    sizes = QUICK if quick else GenerationSettings(rounds=rounds)
    torch.set_num_threads(decoders.THREADS)
    transformers.utils.logging.disable_progress_bar()
    bandwidth = measure_memory_bandwidth(READ_AT_ONCE // (32 if quick else 1), 3 if quick else 10)
    yield (
        f"### Generating {sizes.count} tokens after {sizes.prompt}, greedy, fp32, "
        f"{decoders.THREADS} threads\n"
    )
    yield (
        f"The memory bandwidth is {bandwidth / 1e9:.1f} GB/s, measured as the fastest sum of a "
        f"float32 array of {READ_AT_ONCE // (32 if quick else 1) / 2**20:.0f} MiB by two threads "
        "(`np.add.reduce`).\n"
    )
    for name in ("gpt2", "llama"):
        checkpoint = save_checkpoint(name, directory / f"{name}-generation", sizes.tiny)
        generators, remarks = make_generators(name, checkpoint, directory)
        read = count_weight_bytes_per_token(checkpoint)
        yield (
            f"{name}: each token reads {read / 1e6:.0f} MB of weights, which takes "
            f"{read / bandwidth * 1e3:.1f} ms at this bandwidth."
        )
        yield from (f"{r}" for r in remarks)
        yield ""
        for batch in BATCHES:
            yield from _format_table(name, batch, generators, sizes, read / bandwidth)
        yield from _measure_prefill(name, generators, sizes)
        if sizes.far > sizes.prompt:
            extra = count_cache_bytes(checkpoint, sizes.far - sizes.prompt) / bandwidth
            yield (
                f"Reading the KV caches of {sizes.far - sizes.prompt} more positions takes "
                f"{extra * 1e3:.1f} ms.\n"
            )
        for generator in generators.values():
            if isinstance(generator, decoders.GenaiProcess):
                generator.close()


def _format_table(
    name: str,
    batch: int,
    generators: Mapping[str, Generate],
    sizes: GenerationSettings,
    floor: float,
) -> Iterator[str]:
    rng = np.random.default_rng(0)
    near, far = (
        rng.integers(0, 90 if sizes.tiny else 50000, (batch, n)) for n in (sizes.prompt, sizes.far)
    )
    traces = measure_in_turn(generators, near, sizes.count, sizes.rounds)
    # long contexts are measured only at batch size 1, because at batch size 4 the prompts alone
    # would take most of an hour
    long = measure_in_turn(generators, far, sizes.far_count, sizes.far_rounds) if batch == 1 else {}
    decode = {n: [sum(t.steps) for t in ts] for n, ts in traces.items()}
    yield f"#### {name}, batch {batch}\n"
    yield (
        f"| | prefill, ms | tokens/s | ms per token after {sizes.prompt} | after {sizes.far} | "
        "time / time to read the weights "
        "| specc's time / its time (95 % interval) | same tokens as specc |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    ours = traces["specc"][0].tokens
    for n, ts in traces.items():
        rate = statistics.median(batch * len(t.steps) / sum(t.steps) for t in ts)
        token = _compute_token_time(ts, sizes.far_count)
        later = f"{_compute_token_time(long[n], sizes.far_count) * 1e3:.2f}" if long else "–"
        ratio = "" if n == "specc" else str(measure.estimate_ratio(decode["specc"], decode[n]))
        same = np.array_equal(ts[0].tokens, ours)
        yield (
            f"| {n} | {statistics.median(t.prefill for t in ts) * 1e3:.1f} | "
            f"{rate:.1f} | {token * 1e3:.2f} "
            f"| {later} | {token / floor:.2f} | {ratio} | {'yes' if same else 'no'} |"
        )
    yield ""


def _measure_prefill(
    name: str, generators: Mapping[str, Generate], sizes: GenerationSettings
) -> Iterator[str]:
    """Measure the prefill time of a long prompt, i.e. the time until the first token."""
    vocab = 90 if sizes.tiny else 50000
    ids = np.random.default_rng(1).integers(0, vocab, (1, sizes.full))
    traces = measure_in_turn(generators, ids, 1, sizes.far_rounds)
    took = {n: [t.prefill for t in ts] for n, ts in traces.items()}
    yield f"#### {name}, a prompt of {sizes.full} tokens\n"
    yield "| | median ms | fastest ms | specc's time / its (95 % interval) |"
    yield "|---|---|---|---|"
    for n, times in took.items():
        ratio = "" if n == "specc" else str(measure.estimate_ratio(took["specc"], times))
        yield (f"| {n} | {statistics.median(times) * 1e3:.1f} | {min(times) * 1e3:.1f} | {ratio} |")
    yield ""


def _compute_token_time(traces: list[GenerationTrace], count: int) -> float:
    """Return the seconds per token after the prompt, as the median over rounds."""
    return statistics.median(s for t in traces for s in t.steps[: count - 1])


def measure_in_turn(
    generators: Mapping[str, Generate], ids: np.ndarray, count: int, rounds: int
) -> dict[str, list[GenerationTrace]]:
    """Return the traces of each program, one per round. The programs alternate, and each program
    pauses and generates two warmup tokens before it is timed.
    """
    traces: dict[str, list[GenerationTrace]] = {name: [] for name in generators}
    for n in range(rounds):
        for name in list(generators)[:: 1 if n % 2 == 0 else -1]:
            time.sleep(measure.REST)
            generators[name](ids, 2)
            traces[name].append(generators[name](ids, count))
    return traces


def make_generators(
    name: str, checkpoint: Path, directory: Path
) -> tuple[dict[str, Generate], list[str]]:
    """Return the available programs, and remarks on the programs that are not available."""
    package = directory / f"{name}-specc"
    compile_package(name, checkpoint, package, "specc", "ort-cpu")
    generators: dict[str, Generate] = {"specc": decoders.make_specc_generator(package)}
    remarks: list[str] = []
    model = decoders.load_published_model(checkpoint)
    # a static cache takes the same time within the noise, but adds minutes to every run
    generators["transformers"] = decoders.make_transformers_generator(model, "dynamic")
    out = directory / f"{name}-past.onnx"
    if said := decoders.export_with_past(checkpoint, out, OPSETS[name]):
        remarks.append(f"torch.onnx.export of {name} with past fails: {said}")
    else:
        generators[f"torch.onnx.export, opset {OPSETS[name]}, I/O binding"] = (
            decoders.make_export_generator(out)
        )
    python = find_genai_python()
    if not python:
        return generators, [
            *remarks,
            "onnxruntime-genai is not installed: `make other-runtimes`, or set SPECC_GENAI_PYTHON.",
        ]
    built = directory / f"{name}-builder"
    if said := decoders.build_genai_model(python, checkpoint, built):
        remarks.append(
            f"The model builder of onnxruntime-genai does not support {name}: "
            f"{said.replace(str(checkpoint), name)}"
        )
    else:
        generators["onnxruntime-genai, its model builder"] = decoders.GenaiProcess(python, built)
        count, others = _count_nodes(package / "step.onnx"), _count_nodes(built / "model.onnx")
        remarks.append(
            f"A decode step of {name} has {count} nodes in specc's graph and {others} in the "
            "builder's graph, whose attention nodes include RoPE and whose norm nodes include the "
            "residual addition. At batch size 1, each node has an overhead of some microseconds."
        )
    ours = directory / f"{name}-genai"
    compile_package(name, checkpoint, ours, "genai", "onnx")
    generators["onnxruntime-genai, specc's package"] = decoders.GenaiProcess(python, ours)
    return generators, remarks


def _count_nodes(path: Path) -> int:
    """Return the number of nodes of a graph."""
    import onnx

    return len(onnx.load(path, load_external_data=False).graph.node)


def compile_package(name: str, checkpoint: Path, out: Path, names: str, target: str) -> None:
    """Compile a spec to a package with the default options."""
    command = [
        sys.executable,
        "-m",
        "specc",
        "compile",
        name,
        "--graphs",
        "step",
        "--io-names",
        names,
        "--target",
        target,
    ]
    measure.measure_process([*command, "--weights", str(checkpoint), "-o", str(out)])


def find_genai_python() -> str:
    """Return the Python interpreter with onnxruntime-genai, or "" if it is not installed."""
    made = ROOT / ".other-runtimes" / "genai" / "bin" / "python"
    return os.environ.get("SPECC_GENAI_PYTHON", "") or (str(made) if made.exists() else "")


def save_checkpoint(name: str, directory: Path, tiny: bool) -> Path:
    """Save a randomly initialized checkpoint in the published format. The Llama checkpoint includes
    a tokenizer, which the model builder requires.
    """
    torch.manual_seed(0)
    made = _make_model(name, tiny)
    with torch.no_grad():
        for key, weight in made.named_parameters():
            if weight.dim() > 1:
                table = "wte" in key or "wpe" in key or "embed" in key
                weight.mul_(1.0 if table else 3.0)
    made.eval().save_pretrained(directory, safe_serialization=True)
    if name == "llama":
        make_tokenizer(made.config.vocab_size).save_pretrained(directory)
    return directory


def _make_model(name: str, tiny: bool) -> Any:
    if name == "gpt2":
        small = (
            {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 100, "n_positions": 64}
            if tiny
            else {}
        )
        ends = {"bos_token_id": 99, "eos_token_id": 99} if tiny else {}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**small, **ends))
    width, layers, heads, vocab = (64, 2, 2, 100) if tiny else (768, 12, 12, 50257)
    config = transformers.LlamaConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
        intermediate_size=4 * width * 2 // 3, vocab_size=vocab, max_position_embeddings=64 if tiny else 8192,
        tie_word_embeddings=True, bos_token_id=vocab - 1, eos_token_id=vocab - 1,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def make_tokenizer(vocab: int) -> Any:
    """Return a tokenizer whose vocabulary is decimal numbers."""
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({str(n): n for n in range(vocab)}, unk_token="0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="0")


def measure_memory_bandwidth(size: int, rounds: int) -> float:
    """Measure the memory bandwidth in bytes/s by summing `size` bytes with two threads."""
    array = np.ones(size // 4, np.float32)
    halves = np.split(array[: len(array) // 2 * 2], 2)
    times = []
    with ThreadPoolExecutor(len(halves)) as threads:
        for _ in range(rounds + 1):
            start = time.perf_counter()
            list(threads.map(np.add.reduce, halves))
            times.append(time.perf_counter() - start)
    return array.nbytes / min(times[1:])


def count_weight_bytes_per_token(checkpoint: Path) -> int:
    """Return the number of bytes of fp32 weights that are read per token. Position embeddings do
    not count, and the token embedding counts because it is also the lm_head.
    """
    from safetensors import safe_open

    with safe_open(checkpoint / "model.safetensors", "np") as file:
        names = list(file.keys())
        shapes = {name: file.get_slice(name).get_shape() for name in names}
    return 4 * sum(math.prod(shape) for name, shape in shapes.items() if "wpe" not in name)


def count_cache_bytes(checkpoint: Path, past: int) -> int:
    """Return the size in bytes of one sequence's fp32 KV cache with `past` positions."""
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    return 2 * 4 * past * config.num_hidden_layers * config.hidden_size
