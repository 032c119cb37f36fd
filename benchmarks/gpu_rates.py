"""Measure prefill, decoding and encoding speed on a GPU in each dtype, in comparison with PyTorch
(eager and compiled) and onnxruntime-genai.

Decoding is compared with the time for reading the weights once at memory bandwidth, and encoders
are compared with `torch.compile`. The tables list programs that are not installed.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import decoders
import generation
import numpy as np
import published
import torch
import transformers

import specc
from specc.cli.main import main
from specc.runtime.static_shapes import specialize_to_static_shapes
from specc_onnx.execution_providers import PROVIDER_DEVICES

TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True, kw_only=True)
class MeasurementPlan:
    """The parameters of a measurement: batch sizes, prompt length, generated tokens, rounds."""

    provider: str
    dtypes: Sequence[str]
    batches: Sequence[int] = (1, 8, 32)
    prompt: int = 128
    count: int = 64
    rounds: int = 5
    tiny: bool = False
    deadline: float = float("inf")

    @property
    def is_late(self) -> bool:
        """Return True if no further measurement may start, i.e. after `deadline`."""
        return time.monotonic() > self.deadline

    @property
    def device(self) -> str:
        """Return the PyTorch device: CUDA or CPU."""
        return PROVIDER_DEVICES.get(self.provider, "cpu")


def synchronize(plan: MeasurementPlan) -> None:
    """Wait until the GPU has finished all queued work."""
    if plan.device == "cuda":
        torch.cuda.synchronize()


def measure_bandwidth(plan: MeasurementPlan) -> float:
    """Measure the memory bandwidth in bytes/s by summing a large array."""
    size = 1 << (24 if plan.tiny else 32)
    array = torch.ones(size // 4, device=plan.device)
    return size / min(time_calls(lambda: array.sum(), plan, 10))


def time_calls(call: Callable[[], object], plan: MeasurementPlan, rounds: int) -> list[float]:
    """Return the seconds of each call after two warmup calls."""
    times = []
    for n in range(rounds + 2):
        synchronize(plan)
        start = time.perf_counter()
        call()
        synchronize(plan)
        if n > 1:
            times.append(time.perf_counter() - start)
    return times


# ---- Decoders


def list_generators(
    name: str, checkpoint: Path, directory: Path, plan: MeasurementPlan
) -> Iterator[tuple[str, str, decoders.Generate]]:
    """Yield the name, dtype and generation function of each available program."""
    for dtype in plan.dtypes:
        out = directory / f"{name}-{dtype}"
        if said := compile_package(name, checkpoint, out, dtype, "specc"):
            yield f"specc: {said}", dtype, _generate_nothing
            continue
        yield "specc", dtype, generate_with_package(out, plan)
    for program, cache in (("PyTorch, eager", "dynamic"), ("PyTorch, compiled", "static")):
        for dtype in plan.dtypes:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                checkpoint, attn_implementation="sdpa", dtype=TORCH[dtype]
            )
            model = model.eval().to(plan.device)
            yield program, dtype, generate_with_torch(model, cache, plan)
            del model
    if python := generation.find_genai_python():
        for dtype in plan.dtypes:
            out = directory / f"{name}-{dtype}-genai"
            if not compile_package(name, checkpoint, out, dtype, "genai"):
                yield "onnxruntime-genai, specc package", dtype, decoders.GenaiProcess(python, out)  # fmt: skip
    else:
        yield "onnxruntime-genai is not installed: set SPECC_GENAI_PYTHON", "", _generate_nothing


def _generate_nothing(ids: decoders.Ints, count: int) -> decoders.GenerationTrace:
    """Generate no tokens, in place of a program that is not available."""
    return decoders.GenerationTrace(0.0, (), np.zeros((len(ids), 0), np.int64))


def compile_package(name: str, checkpoint: Path, out: Path, dtype: str, names: str) -> str:
    """Compile a package for CUDA. Return an error message, or "" on success."""
    width = [] if dtype == "f32" else ["--dtype", dtype]
    command = ["compile", name, "--graphs", "step", "--io-names", names, "--weights", str(checkpoint)]  # fmt: skip
    status = main([*command, *width, "--target", "ort-cuda", "--force", "-o", str(out)])
    return "" if status == 0 else f"ends with {status}"


def generate_with_package(out: Path, plan: MeasurementPlan) -> decoders.Generate:
    """Return a generation function that runs a specc package through the Python API."""
    model = specc.load(out, execution_provider=plan.provider).generator

    def start(ids: decoders.Ints) -> tuple[decoders.Ints, decoders.Step]:
        step = decoders.start_generation(model, ids)
        return step(ids).argmax(1), lambda tokens: step(tokens[:, None]).argmax(1)

    return decoders.make_timed_generator(start)


def generate_with_torch(model: Any, cache: str, plan: MeasurementPlan) -> decoders.Generate:
    """Return a generation function that runs `forward` of transformers, either with a dynamic KV
    cache, or compiled with a static KV cache.
    """
    forward: Any = model.forward
    if cache == "static":
        forward = torch.compile(forward, mode="reduce-overhead", fullgraph=False)

    def start(ids: decoders.Ints) -> tuple[decoders.Ints, decoders.Step]:
        given = torch.from_numpy(ids).to(plan.device)
        room = ids.shape[1] + plan.count
        kept = (
            transformers.DynamicCache(config=model.config)
            if cache == "dynamic"
            else transformers.StaticCache(config=model.config, max_cache_len=room)
        )
        place = 0

        def run(tokens: torch.Tensor) -> decoders.Ints:
            nonlocal place
            at = torch.arange(place, place + tokens.shape[1], device=plan.device)
            place += tokens.shape[1]
            # prompts are not compiled, because their shapes vary
            call = forward if tokens.shape[1] == 1 else model
            with torch.inference_mode():
                made = call(
                    input_ids=tokens,
                    past_key_values=kept,
                    cache_position=at,
                    position_ids=at[None].expand(len(tokens), -1),
                    use_cache=True,
                    logits_to_keep=1,
                )
            best: decoders.Ints = made.logits[:, -1].argmax(-1).cpu().numpy()
            return best

        def step(tokens: decoders.Ints) -> decoders.Ints:
            return run(torch.from_numpy(tokens[:, None]).to(plan.device))

        return run(given), step

    return decoders.make_timed_generator(start)


def measure_decoder(name: str, directory: Path, plan: MeasurementPlan) -> Iterator[str]:
    """Yield the lines of the table of one decoder."""
    checkpoint = generation.save_checkpoint(name, directory / f"{name}-weights", plan.tiny)
    numbers = generation.count_weight_bytes_per_token(checkpoint) // 4
    speed = measure_bandwidth(plan)
    yield f"### {name}, {plan.count} tokens after a prompt of {plan.prompt}, greedy\n"
    yield f"Each decode step reads {numbers / 1e6:.0f} million weights; the memory bandwidth of the GPU is {speed / 1e9:.0f} GB/s.\n"
    yield "| program | dtype | batch | prefill ms | ms per token | tokens/s | time / time to read the weights | tokens equal specc's float32 |"
    yield "|---|---|---|---|---|---|---|---|"
    first: Mapping[int, np.ndarray] = {}
    for program, dtype, generate in list_generators(name, checkpoint, directory, plan):
        for batch in plan.batches:
            if generate is _generate_nothing:
                yield f"| {program} | {dtype} | | | | | | |"
                break
            if plan.is_late:
                yield f"| {program} | {dtype} | {batch} | not measured: time limit | | | | |"
                continue
            ids = _make_prompts(batch, plan)
            try:
                generate(ids, plan.count)
                traces = [generate(ids, plan.count) for _ in range(plan.rounds)]
            except Exception as error:  # a program that fails also gets a row
                yield f"| {program} | {dtype} | {batch} | {_shorten_message(error)} | | | | |"
                continue
            first = {batch: traces[0].tokens, **first}
            yield _format_row(program, dtype, batch, traces, numbers, speed, first)
    yield ""


def _make_prompts(batch: int, plan: MeasurementPlan) -> decoders.Ints:
    vocab = 90 if plan.tiny else 50000
    made: decoders.Ints = np.random.default_rng(0).integers(0, vocab, (batch, plan.prompt))
    return made


def _format_row(
    program: str,
    dtype: str,
    batch: int,
    traces: Sequence[decoders.GenerationTrace],
    numbers: int,
    speed: float,
    first: Mapping[int, np.ndarray],
) -> str:
    token = statistics.median(s for t in traces for s in t.steps)
    prefill = statistics.median(t.prefill for t in traces)
    floor = numbers * BYTES[dtype] / speed
    same = np.array_equal(traces[0].tokens, first[batch])
    return (
        f"| {program} | {dtype} | {batch} | {prefill * 1e3:.2f} | {token * 1e3:.3f} "
        f"| {batch / token:.0f} | {token / floor:.2f} | {'yes' if same else 'no'} |"
    )


def _shorten_message(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}".replace("|", "/")


# ---- Encoders


def measure_encoder(name: str, directory: Path, plan: MeasurementPlan) -> Iterator[str]:
    """Yield the lines of the table of one encoder, in milliseconds per batch."""
    checkpoint = directory / f"{name}-weights"
    published.save_model(name, checkpoint)
    lengths = published.MODELS[name].shapes[0][1:]
    yield f"### {name}, {' × '.join(map(str, lengths)) or 'one image'}\n"
    yield "| program | dtype | batch | ms | sequences/s | time of specc / time |"
    yield "|---|---|---|---|---|---|"
    specc_times: dict[tuple[str, int], float] = {}
    for program, dtype, prepare in _list_encoders(name, checkpoint, directory, plan):
        for batch in plan.batches:
            if plan.is_late:
                yield f"| {program} | {dtype} | {batch} | not measured: time limit | | |"
                continue
            try:
                run = prepare((batch, *lengths))
                seconds = statistics.median(time_calls(run, plan, plan.rounds * 4))
            except Exception as error:  # a program that fails also gets a row
                yield f"| {program} | {dtype} | {batch} | {_shorten_message(error)} | | |"
                continue
            specc_time = specc_times.setdefault((dtype, batch), seconds)
            yield f"| {program} | {dtype} | {batch} | {seconds * 1e3:.2f} | {batch / seconds:.0f} | {specc_time / seconds:.2f} |"
    yield ""


Prepare = Callable[[tuple[int, ...]], Callable[[], object]]
"""A function that returns the timed call for an input shape. Inputs and outputs stay on the GPU."""


def _list_encoders(
    name: str, checkpoint: Path, directory: Path, plan: MeasurementPlan
) -> Iterator[tuple[str, str, Prepare]]:
    """Yield the name, dtype and `Prepare` function of each program."""
    for dtype in plan.dtypes:
        out = directory / f"{name}-{dtype}.onnx"
        options = [] if dtype == "f32" else ["--dtype", dtype]
        main(["compile", name, "--weights", str(checkpoint), *options, "--target", "ort-cuda", "--force", "-o", str(out)])  # fmt: skip
        yield "specc", dtype, _prepare_specc(name, out, plan)
        yield "specc, static shapes (CUDA graph)", dtype, _prepare_cuda_graph(name, out, plan)
    for program in ("PyTorch, eager", "PyTorch, compiled"):
        for dtype in plan.dtypes:
            model = published.load_published_model(name, checkpoint).to(plan.device, TORCH[dtype])
            if program == "PyTorch, compiled":
                model = torch.compile(model, mode="reduce-overhead")
            yield program, dtype, _prepare_torch(name, model, dtype, plan)


def _prepare_specc(name: str, path: Path, plan: MeasurementPlan) -> Prepare:
    session = specc.load(path, execution_provider=plan.provider).scoring_model.raw_session

    def prepare(shape: tuple[int, ...]) -> Callable[[], object]:
        inputs = published.MODELS[name].make_inputs(shape)
        tensors = {n: session.copy_to_device(v) for n, v in inputs.items()}
        return lambda: session.run_on_device(tensors)

    return prepare


def _prepare_cuda_graph(name: str, path: Path, plan: MeasurementPlan) -> Prepare:
    def prepare(shape: tuple[int, ...]) -> Callable[[], object]:
        model = specc.load(path, execution_provider=plan.provider).full_forward_model
        inputs = published.MODELS[name].make_inputs(shape)
        axes = {d: n for i, v in model.manifest.graph.inputs.items() for d, n in zip(v.type.shape, inputs[i].shape, strict=True)}  # fmt: skip
        lengths = {str(d): n for d, n in axes.items() if str(d).isidentifier()}
        fixed = specialize_to_static_shapes(model, lengths)
        fixed.run(**inputs)
        binding = fixed.session.binding
        return lambda: fixed.session.model.session.run_with_iobinding(binding)

    return prepare


def _prepare_torch(name: str, model: Any, dtype: str, plan: MeasurementPlan) -> Prepare:
    def prepare(shape: tuple[int, ...]) -> Callable[[], object]:
        tensors = [t.to(plan.device) for t in published.make_tensors(name, shape)]
        tensors = [t.to(TORCH[dtype]) if t.is_floating_point() else t for t in tensors]

        def run() -> object:
            with torch.inference_mode():
                return model(*tensors)

        return run

    return prepare


# ---- Kernels


def profile_kernels(name: str, directory: Path, plan: MeasurementPlan) -> Iterator[str]:
    """Yield the kernels of one decode step by time, in each dtype, e.g. flash attention kernels."""
    from torch.profiler import ProfilerActivity, profile

    if plan.device != "cuda":
        yield "Kernels are profiled on a GPU only.\n"
        return
    for dtype in plan.dtypes:
        model = specc.load(
            directory / f"{name}-{dtype}", execution_provider=plan.provider
        ).generator
        ids = _make_prompts(1, plan)
        step = decoders.start_generation(model, ids)
        step(ids)
        token = np.zeros((1, 1), np.int64)
        step(token)
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            step(token)
            synchronize(plan)
        found: dict[str, list[float]] = {}
        for event in seen.events():
            found.setdefault(event.name[:90], []).append(event.device_time_total)
        yield f"#### Kernels of one decode step of {name}, {dtype}\n"
        yield "| kernel | launches | µs |\n|---|---|---|"
        for kernel, times in sorted(found.items(), key=lambda each: -sum(each[1]))[:20]:
            yield f"| `{kernel.replace('|', '/')}` | {len(times)} | {sum(times):.0f} |"
        yield ""
