"""Time text generation token by token, in several runtimes.

A `Writer` reads prompts i64[batch, n], generates `count` tokens greedily and returns when it had
each. Those of encoder-decoders have a fixed source.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import transformers
from numpy.typing import NDArray

HERE = Path(__file__).parent
THREADS = 2
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Trace:
    """Seconds until the first token, of each token behind it, and the tokens i64[batch, count]."""

    prefill: float
    steps: tuple[float, ...]
    tokens: Ints


Writer = Callable[[Ints, int], Trace]
Step = Callable[[Ints], Ints]


def traced(start: Callable[[Ints], tuple[Ints, Step]]) -> Writer:
    """A writer of two functions: `start` reads prompts and gives the best next tokens
    and what to call with them.
    """

    def write(ids: Ints, count: int) -> Trace:
        began = time.perf_counter()
        tokens, step = start(ids)
        times, made = [time.perf_counter()], [tokens]
        for _ in range(count - 1):
            tokens = step(tokens)
            times.append(time.perf_counter())
            made.append(tokens)
        steps = tuple(b - a for a, b in pairwise(times))
        return Trace(times[0] - began, steps, np.stack(made, axis=1))

    return write


def steps(model: Any, prompt: Ints) -> Callable[[Ints], NDArray[np.float32]]:
    """specc: a text of `model`, the writer of a package; each call feeds tokens
    i64[batch, n] and gives logits.
    """
    prepared = model.input_signature.prepared({model.input_signature.growing: prompt})
    taken: Callable[[Ints], NDArray[np.float32]] = model.stepper(prepared).step
    return taken


def of_specc(package: Path) -> Writer:
    """A package of ours through the Python API."""
    import specc

    model = specc.load(package, threads=THREADS).writer

    def start(ids: Ints) -> tuple[Ints, Step]:
        step = steps(model, ids)
        return step(ids).argmax(1), lambda tokens: step(tokens[:, None]).argmax(1)

    return traced(start)


class _Clock:
    """Takes the time whenever `generate` of transformers hands a token out; the first
    time it is the prompt.
    """

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        """Called with the prompt, then with each token."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Called when all is written."""


def published(checkpoint: Path) -> Any:
    """The model of transformers, eager, with PyTorch's own fused attention."""
    torch.set_num_threads(THREADS)
    return transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, attn_implementation="sdpa"
    ).eval()


def of_transformers(model: Any, cache: str) -> Writer:
    """`generate` of transformers with the `dynamic` or the `static` cache."""

    def write(ids: Ints, count: int) -> Trace:
        clock = _Clock()
        given = torch.from_numpy(ids)
        began = time.perf_counter()
        with torch.inference_mode():
            made = model.generate(
                given, attention_mask=torch.ones_like(given), max_new_tokens=count, min_new_tokens=count,
                do_sample=False, use_cache=True, cache_implementation=cache, disable_compile=True,
                streamer=clock, pad_token_id=0,
            )  # fmt: skip
        times = clock.times[1:]
        gaps = tuple(b - a for a, b in pairwise(times))
        return Trace(times[0] - began, gaps, made[:, ids.shape[1] :].numpy())

    return write


def opened(path: Path, threads: int = THREADS) -> onnxruntime.InferenceSession:
    """Any graph in ONNX Runtime, with all optimizations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class WithPast:
    """A graph with past of any tool, in ONNX Runtime; states stay with the runtime from
    step to step. Roles of inputs are told by their names and ranks.
    """

    def __init__(self, path: Path, threads: int = THREADS) -> None:
        self.session = opened(path, threads)
        inputs = {i.name: i.shape for i in self.session.get_inputs()}
        # keys and values [batch, heads, rows, width] are what has four axes
        self.past = [name for name, shape in inputs.items() if len(shape) == 4]
        self.others = [name for name in inputs if name not in self.past]
        self.outputs = [o.name for o in self.session.get_outputs()]
        shapes = [inputs[name] for name in self.past]
        self.widths = [(s[1], _width(s[3], path)) for s in shapes]

    def empty(self, batch: int) -> list[Any]:
        """States before the first token."""
        return [
            onnxruntime.OrtValue.ortvalue_from_numpy(np.empty((batch, heads, 0, width), np.float32))
            for heads, width in self.widths
        ]

    def run(
        self, tokens: Ints, length: int, states: Sequence[Any]
    ) -> tuple[NDArray[np.float32], list[Any]]:
        """Logits f32[batch, new, words] and the states, for tokens at the end of `length`."""
        binding = self.session.io_binding()
        places = np.arange(length - tokens.shape[1], length)
        for name in self.others:
            if "mask" in name:
                value = np.ones((len(tokens), length), np.int64)
            elif "position" in name:
                value = np.broadcast_to(places, tokens.shape).copy()
            else:
                value = tokens
            binding.bind_cpu_input(name, value)
        for name, state in zip(self.past, states, strict=True):
            binding.bind_ortvalue_input(name, state)
        for name in self.outputs:
            binding.bind_output(name)
        self.session.run_with_iobinding(binding)
        made = binding.get_outputs()
        return made[0].numpy(), made[1:]

    def start(self, ids: Ints) -> tuple[Ints, Step]:
        """Reads prompts; gives the likeliest next tokens and how to go on."""
        length = ids.shape[1]
        logits, states = self.run(ids, length, self.empty(len(ids)))

        def step(tokens: Ints) -> Ints:
            nonlocal length, states
            length += 1
            made, states = self.run(tokens[:, None], length, states)
            return made[:, -1].argmax(1)

        return logits[:, -1].argmax(1), step


def _width(said: int | str, path: Path) -> int:
    """Numbers of a head: the graph says so, or the file beside it, as the model builder of onnxruntime-genai writes it."""
    if isinstance(said, int):
        return said
    config = json.loads((path.parent / "genai_config.json").read_text())
    width: int = config["model"]["decoder"]["head_size"]
    return width


def of_export(path: Path) -> Writer:
    """An exported model with past in ONNX Runtime."""
    return traced(WithPast(path).start)


class OfGenai:
    """onnxruntime-genai in a process of its own, which does the timing; call it to
    write, `close` it at the end.
    """

    def __init__(self, python: str, directory: Path) -> None:
        command = [python, str(HERE / "genai_writer.py"), str(directory), str(THREADS)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, ids: Ints, count: int) -> Trace:
        """Prompts and a count go over as a line of JSON, times and tokens come back as one."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([ids.tolist(), count]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"onnxruntime-genai ended with status {self.process.wait()}")
        prefill, gaps, tokens = json.loads(answer)
        return Trace(prefill, tuple(gaps), np.array(tokens))

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def of_ctranslate2(checkpoint: Path, out: Path, precision: str) -> Writer:
    """CTranslate2 on a checkpoint with a tokenizer, one text at a time. ImportError where
    it is not installed.
    """
    import ctranslate2

    converter = ctranslate2.converters.TransformersConverter(str(checkpoint))
    converter.convert(str(out), quantization=precision, force=True)
    model = ctranslate2.Generator(str(out), device="cpu", intra_threads=THREADS)
    names = transformers.AutoTokenizer.from_pretrained(checkpoint)

    def write(ids: Ints, count: int) -> Trace:
        prompt = names.convert_ids_to_tokens(ids[0].tolist())
        began = time.perf_counter()
        # the end is no end here: as many tokens as are asked for
        made = model.generate_tokens(prompt, max_length=count, sampling_topk=1, end_token=[])
        times, tokens = [], []
        for one in made:
            times.append(time.perf_counter())
            tokens.append(one.token_id)
        gaps = tuple(b - a for a, b in pairwise(times))
        return Trace(times[0] - began, gaps, np.array([tokens], np.int64))

    return write


def built_by_genai(
    python: str, checkpoint: Path, out: Path, precision: str = "fp32", extra: Sequence[str] = ()
) -> str:
    """The model builder on a checkpoint, for the CPU, with further options `key=value`;
    gives what it says where it cannot.
    """
    with tempfile.TemporaryDirectory() as cache:
        builder = [
            python,
            "-m",
            "onnxruntime_genai.models.builder",
            "-p",
            precision,
            "-e",
            "cpu",
            "-c",
            cache,
        ]
        command = [*builder, "-i", str(checkpoint), "-o", str(out)]
        options = ["--extra_options", *extra] if extra else []
        return _failing([*command, *options])


def exported(checkpoint: Path, out: Path, opset: int) -> str:
    """`torch.onnx.export(dynamo=True)` with past, in a process of its own; gives what
    it says where it cannot.
    """
    command = [sys.executable, str(HERE / "torch_export.py"), "past"]
    return _failing([*command, str(checkpoint), str(out), str(opset)])


def _failing(command: Sequence[str]) -> str:
    """The last line that a command says when it fails, else nothing."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


INPUT_NAMES = {"input_ids": "source", "input_features": "input_features"}
"""Names of transformers and of the specs."""


def translate_specc(package: Path, given: Mapping[str, np.ndarray]) -> Writer:
    """A package of ours through the Python API."""
    import specc

    model = specc.load(package, threads=THREADS).writer
    names = set(model.input_signature.graph.inputs)
    # a spec may have the name transformers has, or its own
    known = {(n if n in names else INPUT_NAMES[n]): v for n, v in given.items() if n in INPUT_NAMES}

    def start(ids: Ints) -> tuple[Ints, Step]:
        prepared = model.input_signature.prepared({**known, model.input_signature.growing: ids})
        step = model.stepper(prepared).step
        return step(ids).argmax(1), lambda tokens: step(tokens[:, None]).argmax(1)

    return traced(start)


def translate_whole(path: Path, given: Mapping[str, np.ndarray]) -> Writer:
    """One graph without caches: each token is computed with the source and all before it."""
    session = opened(path)
    taken = {i.name for i in session.get_inputs()}
    known = {n: v for n, v in given.items() if n in taken}

    def start(ids: Ints) -> tuple[Ints, Step]:
        text = ids

        def best() -> Ints:
            logits = session.run(None, {**known, "decoder_input_ids": text})[0]
            return logits[:, -1].argmax(1)

        def step(tokens: Ints) -> Ints:
            nonlocal text
            text = np.concatenate([text, tokens[:, None]], axis=1)
            return best()

        return best(), step

    return traced(start)


class _BoundGraph:
    """A graph whose values stay with the runtime, by names that other graphs call them."""

    def __init__(self, path: Path) -> None:
        self.session = opened(path)
        self.inputs = [i.name for i in self.session.get_inputs()]
        self.outputs = [o.name for o in self.session.get_outputs()]

    def run(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Results by the names under which they are given to the next graph."""
        binding = self.session.io_binding()
        for name in self.inputs:
            binding.bind_ortvalue_input(name, known[name])
        for name in self.outputs:
            binding.bind_output(name)
        self.session.run_with_iobinding(binding)
        names = [n.replace("present", "past_key_values") for n in self.outputs]
        return dict(zip(names, binding.get_outputs(), strict=True))


def translate_three(directory: Path, given: Mapping[str, np.ndarray]) -> Writer:
    """Encoder, first step and later steps, as Optimum writes and names them."""
    parts = ("encoder_model", "decoder_model", "decoder_with_past_model")
    encoder, first, later = (_BoundGraph(_at(directory, part)) for part in parts)
    hold = onnxruntime.OrtValue.ortvalue_from_numpy

    def start(ids: Ints) -> tuple[Ints, Step]:
        known = {name: hold(v) for name, v in given.items()}
        known["encoder_hidden_states"] = next(iter(encoder.run(known).values()))
        if "attention_mask" in known:
            known["encoder_attention_mask"] = known["attention_mask"]

        def run(graph: _BoundGraph, tokens: Ints) -> Ints:
            # keys and values of the source come from the first step and stay
            known.update(graph.run({**known, "input_ids": hold(tokens)}))
            logits: np.ndarray = known["logits"].numpy()
            return logits[:, -1].argmax(1)

        return run(first, ids), lambda tokens: run(later, tokens[:, None])

    return traced(start)


def _at(directory: Path, part: str) -> Path:
    """ValueError where the folder has other parts."""
    path = directory / f"{part}.onnx"
    if not path.exists():
        graphs = sorted(str(p.relative_to(directory)) for p in directory.rglob("*.onnx"))
        raise ValueError(f"the benchmark does not support {' and '.join(graphs)}")
    return path
