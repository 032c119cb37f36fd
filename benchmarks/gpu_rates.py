"""Measure prefill, decoding and encoding speed on a GPU in each dtype, next to PyTorch (eager and
compiled) and onnxruntime-genai.

Decoding is compared with the time to read the weights once at memory bandwidth, encoders with
`torch.compile`. The tables name programs that are not installed.
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
from specc_onnx.execution_providers import PROVIDER_DEVICES

TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The parameters of a measurement: batch sizes, prompt length, generated tokens, rounds."""

    provider: str
    dtypes: Sequence[str]
    batches: Sequence[int] = (1, 8, 32)
    prompt: int = 128
    count: int = 64
    rounds: int = 5
    tiny: bool = False

    @property
    def device(self) -> str:
        """Return the device of PyTorch."""
        return PROVIDER_DEVICES.get(self.provider, "cpu")


def wait(plan: Plan) -> None:
    """Wait until the GPU has finished all queued work."""
    if plan.device == "cuda":
        torch.cuda.synchronize()


def bandwidth(plan: Plan) -> float:
    """Measure the memory bandwidth in bytes/s: the sum of a large array."""
    size = 1 << (24 if plan.tiny else 32)
    array = torch.ones(size // 4, device=plan.device)
    return size / min(timed(lambda: array.sum(), plan, 10))


def timed(call: Callable[[], object], plan: Plan, rounds: int) -> list[float]:
    """Return the seconds of each call after two warmup calls."""
    times = []
    for n in range(rounds + 2):
        wait(plan)
        start = time.perf_counter()
        call()
        wait(plan)
        if n > 1:
            times.append(time.perf_counter() - start)
    return times


# ---- Decoders


def writers(
    name: str, checkpoint: Path, directory: Path, plan: Plan
) -> Iterator[tuple[str, str, decoders.Writer]]:
    """Yield name, dtype and generator of each available program."""
    for dtype in plan.dtypes:
        out = directory / f"{name}-{dtype}"
        if said := package(name, checkpoint, out, dtype, "specc"):
            yield f"specc: {said}", dtype, _nobody
            continue
        yield "specc", dtype, of_package(out, plan)
    for dtype in plan.dtypes:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint, attn_implementation="sdpa", dtype=TORCH[dtype]
        )
        model = model.eval().to(plan.device)
        yield "PyTorch, eager", dtype, of_torch(model, "dynamic", plan)
        yield "PyTorch, compiled", dtype, of_torch(model, "static", plan)
        del model
    if python := generation.genai_python():
        for dtype in plan.dtypes:
            out = directory / f"{name}-{dtype}-genai"
            if not package(name, checkpoint, out, dtype, "genai"):
                yield "onnxruntime-genai, specc's package", dtype, decoders.OfGenai(python, out)  # fmt: skip
    else:
        yield "onnxruntime-genai is not there: set SPECC_GENAI_PYTHON", "", _nobody


def _nobody(ids: decoders.Ints, count: int) -> decoders.Trace:
    """Generate nothing; a placeholder for a program that is not available."""
    return decoders.Trace(0.0, (), np.zeros((len(ids), 0), np.int64))


def package(name: str, checkpoint: Path, out: Path, dtype: str, names: str) -> str:
    """Compile a package for CUDA; return an error message, "" on success."""
    width = [] if dtype == "f32" else ["--dtype", dtype]
    command = ["compile", name, "--graphs", "step", "--io-names", names, "--weights", str(checkpoint)]  # fmt: skip
    status = main([*command, *width, "--target", "ort-cuda", "--force", "-o", str(out)])
    return "" if status == 0 else f"ends with {status}"


def of_package(out: Path, plan: Plan) -> decoders.Writer:
    """Run a specc package through the Python API."""
    model = specc.load(out, execution_provider=plan.provider).generator

    def start(ids: decoders.Ints) -> tuple[decoders.Ints, decoders.Step]:
        step = decoders.steps(model, ids)
        return step(ids).argmax(1), lambda tokens: step(tokens[:, None]).argmax(1)

    return decoders.traced(start)


def of_torch(model: Any, cache: str, plan: Plan) -> decoders.Writer:
    """Run `forward` of transformers with a dynamic KV cache, or compiled with a static one."""
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
            # prompts have varying shapes and are not compiled
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

    return decoders.traced(start)


def decoding(name: str, directory: Path, plan: Plan) -> Iterator[str]:
    """Yield the table of one decoder."""
    checkpoint = generation.saved(name, directory / f"{name}-weights", plan.tiny)
    numbers = generation.bytes_a_token(checkpoint) // 4
    speed = bandwidth(plan)
    yield f"### {name}, {plan.count} tokens behind {plan.prompt}, greedy\n"
    yield f"{numbers / 1e6:.0f} million weights are read for a token; the card reads {speed / 1e9:.0f} GB/s.\n"
    yield "| | width | batch | prefill ms | ms a token | tokens/s | share of the weights' reading | tokens as specc's f32 |"
    yield "|---|---|---|---|---|---|---|---|"
    first: Mapping[int, np.ndarray] = {}
    for program, dtype, writer in writers(name, checkpoint, directory, plan):
        for batch in plan.batches:
            if writer is _nobody:
                yield f"| {program} | {dtype} | | | | | | |"
                break
            ids = _ids(batch, plan)
            try:
                writer(ids, plan.count)
                traces = [writer(ids, plan.count) for _ in range(plan.rounds)]
            except Exception as error:  # a program that fails is a row too
                yield f"| {program} | {dtype} | {batch} | {_short(error)} | | | | |"
                continue
            first = {batch: traces[0].tokens, **first}
            yield _row(program, dtype, batch, traces, numbers, speed, first)
    yield ""


def _ids(batch: int, plan: Plan) -> decoders.Ints:
    vocab = 90 if plan.tiny else 50000
    made: decoders.Ints = np.random.default_rng(0).integers(0, vocab, (batch, plan.prompt))
    return made


def _row(
    program: str,
    dtype: str,
    batch: int,
    traces: Sequence[decoders.Trace],
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


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}".replace("|", "/")


# ---- Encoders


def encoding(name: str, directory: Path, plan: Plan) -> Iterator[str]:
    """Yield the table of one encoder, in milliseconds per batch."""
    checkpoint = directory / f"{name}-weights"
    published.save_model(name, checkpoint)
    wanted = published.MODELS[name]
    lengths = wanted.shapes[0][1:]
    yield f"### {name}, {' × '.join(map(str, lengths)) or 'one image'}\n"
    yield "| | width | batch | ms | a second | specc's time / its |"
    yield "|---|---|---|---|---|---|"
    ours: dict[tuple[str, int], float] = {}
    for dtype in plan.dtypes:
        calls = dict(_encoders(name, checkpoint, directory, dtype, plan))
        for program, call in calls.items():
            for batch in plan.batches:
                try:
                    run = call((batch, *lengths))
                    taken = statistics.median(timed(run, plan, plan.rounds * 4))
                except Exception as error:  # as above
                    yield f"| {program} | {dtype} | {batch} | {_short(error)} | | |"
                    continue
                ours.setdefault((dtype, batch), taken)
                share = ours[dtype, batch] / taken
                yield f"| {program} | {dtype} | {batch} | {taken * 1e3:.2f} | {batch / taken:.0f} | {share:.2f} |"
    yield ""


Call = Callable[[tuple[int, ...]], Callable[[], object]]


def _encoders(
    name: str, checkpoint: Path, directory: Path, dtype: str, plan: Plan
) -> Iterator[tuple[str, Call]]:
    """Yield the programs as functions from an input shape to the timed call."""
    out = directory / f"{name}-{dtype}.onnx"
    width = [] if dtype == "f32" else ["--dtype", dtype]
    main(["compile", name, "--weights", str(checkpoint), *width, "--target", "ort-cuda", "--force", "-o", str(out)])  # fmt: skip
    wanted = published.MODELS[name]
    session = specc.load(out, execution_provider=plan.provider).scoring_model.runtime

    def ours(shape: tuple[int, ...]) -> Callable[[], object]:
        # inputs and results stay on the GPU, as with PyTorch
        held = {n: session.copy_to_device(v) for n, v in wanted.inputs(shape).items()}
        return lambda: session.run_on_device(held)

    yield "specc", ours
    model = published.load_published_model(name, checkpoint).to(plan.device, TORCH[dtype])
    compiled = torch.compile(model, mode="reduce-overhead")

    def theirs(call: Any) -> Call:
        def of(shape: tuple[int, ...]) -> Callable[[], object]:
            given = [t.to(plan.device) for t in published.make_tensors(name, shape)]
            given = [t.to(TORCH[dtype]) if t.is_floating_point() else t for t in given]

            def run() -> object:
                with torch.inference_mode():
                    return call(*given)

            return run

        return of

    yield "PyTorch, eager", theirs(model)
    yield "PyTorch, compiled", theirs(compiled)


# ---- Which kernels


def kernels(name: str, directory: Path, plan: Plan) -> Iterator[str]:
    """Yield the kernels of one decode step in each dtype, by time; attention should use flash
    kernels.
    """
    from torch.profiler import ProfilerActivity, profile

    if plan.device != "cuda":
        yield "Kernels are those of a card; there is none.\n"
        return
    for dtype in plan.dtypes:
        model = specc.load(
            directory / f"{name}-{dtype}", execution_provider=plan.provider
        ).generator
        ids = _ids(1, plan)
        step = decoders.steps(model, ids)
        step(ids)
        token = np.zeros((1, 1), np.int64)
        step(token)
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            step(token)
            wait(plan)
        found: dict[str, list[float]] = {}
        for event in seen.events():
            found.setdefault(event.name[:90], []).append(event.device_time_total)
        yield f"#### A token of {name}, {dtype}\n"
        yield "| kernel | times | microseconds |\n|---|---|---|"
        for kernel, times in sorted(found.items(), key=lambda each: -sum(each[1]))[:20]:
            yield f"| `{kernel.replace('|', '/')}` | {len(times)} | {sum(times):.0f} |"
        yield ""
