"""Time text generation token by token in several runtimes.

A `Generate` function processes prompts i64[batch, n], generates `count` tokens by greedy decoding,
and returns the time of each token. For encoder-decoder models, the source sequence is fixed.
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
class GenerationTrace:
    """The seconds until the first token, the seconds of each further token, and the generated
    tokens i64[batch, count].
    """

    prefill: float
    steps: tuple[float, ...]
    tokens: Ints


Generate = Callable[[Ints, int], GenerationTrace]
Step = Callable[[Ints], Ints]


def make_timed_generator(start: Callable[[Ints], tuple[Ints, Step]]) -> Generate:
    """Return a generation function that records times. `start` processes prompts, and returns the
    most likely next tokens and a function that decodes the next step.
    """

    def generate(ids: Ints, count: int) -> GenerationTrace:
        began = time.perf_counter()
        tokens, step = start(ids)
        times, made = [time.perf_counter()], [tokens]
        for _ in range(count - 1):
            tokens = step(tokens)
            times.append(time.perf_counter())
            made.append(tokens)
        steps = tuple(b - a for a, b in pairwise(times))
        return GenerationTrace(times[0] - began, steps, np.stack(made, axis=1))

    return generate


def start_generation(model: Any, prompt: Ints) -> Callable[[Ints], NDArray[np.float32]]:
    """Start generation with a specc package. Return a function from new tokens to logits."""
    prepared = model.input_signature.prepare({model.input_signature.sequence_input: prompt})
    taken: Callable[[Ints], NDArray[np.float32]] = model.create_decoder_session(prepared).step
    return taken


def make_specc_generator(package: Path) -> Generate:
    """Return a generation function that runs a specc package through the Python API."""
    import specc

    model = specc.load(package, threads=THREADS).generator

    def start(ids: Ints) -> tuple[Ints, Step]:
        step = start_generation(model, ids)
        return step(ids).argmax(1), lambda tokens: step(tokens[:, None]).argmax(1)

    return make_timed_generator(start)


class _Clock:
    """A streamer for `generate` of transformers that records the time of each token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        """Record the time of a call with the prompt or with a token."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Do nothing at the end of generation."""


def load_published_model(checkpoint: Path) -> Any:
    """Load the transformers model in eager mode with PyTorch's fused attention."""
    torch.set_num_threads(THREADS)
    return transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, attn_implementation="sdpa"
    ).eval()


def make_transformers_generator(model: Any, cache: str) -> Generate:
    """Return a generation function of transformers with the `dynamic` or `static` KV cache."""

    def generate(ids: Ints, count: int) -> GenerationTrace:
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
        return GenerationTrace(times[0] - began, gaps, made[:, ids.shape[1] :].numpy())

    return generate


def open_session(path: Path, threads: int = THREADS) -> onnxruntime.InferenceSession:
    """Open an ONNX model in ONNX Runtime with all graph optimizations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class DecoderWithPast:
    """A decoder-with-past model, exported by any tool, in ONNX Runtime. KV caches stay in the
    runtime between steps. The role of each input follows from its name and rank.
    """

    def __init__(self, path: Path, threads: int = THREADS) -> None:
        self.session = open_session(path, threads)
        inputs = {i.name: i.shape for i in self.session.get_inputs()}
        # KV caches are the inputs with four axes [batch, heads, positions, width]
        self.past = [name for name, shape in inputs.items() if len(shape) == 4]
        self.others = [name for name in inputs if name not in self.past]
        self.outputs = [o.name for o in self.session.get_outputs()]
        shapes = [inputs[name] for name in self.past]
        self.widths = [(s[1], _width(s[3], path)) for s in shapes]

    def make_empty_caches(self, batch: int) -> list[Any]:
        """Return empty KV caches for a batch."""
        return [
            onnxruntime.OrtValue.ortvalue_from_numpy(np.empty((batch, heads, 0, width), np.float32))
            for heads, width in self.widths
        ]

    def run(
        self, tokens: Ints, length: int, states: Sequence[Any]
    ) -> tuple[NDArray[np.float32], list[Any]]:
        """Run the last tokens of sequences of `length` tokens. Return logits and KV caches."""
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
        """Process prompts. Return the most likely next tokens and a function for a decode step."""
        length = ids.shape[1]
        logits, states = self.run(ids, length, self.make_empty_caches(len(ids)))

        def step(tokens: Ints) -> Ints:
            nonlocal length, states
            length += 1
            made, states = self.run(tokens[:, None], length, states)
            return made[:, -1].argmax(1)

        return logits[:, -1].argmax(1), step


def _width(said: int | str, path: Path) -> int:
    """Return the head size from the graph, or from the `genai_config.json` that the model builder
    of onnxruntime-genai writes.
    """
    if isinstance(said, int):
        return said
    config = json.loads((path.parent / "genai_config.json").read_text())
    width: int = config["model"]["decoder"]["head_size"]
    return width


def make_export_generator(path: Path) -> Generate:
    """Return a generation function of an exported decoder-with-past model in ONNX Runtime."""
    return make_timed_generator(DecoderWithPast(path).start)


class GenaiProcess:
    """Runs onnxruntime-genai in a separate process, which measures the times. Call the object to
    generate, and call `close` at the end.
    """

    def __init__(self, python: str, directory: Path) -> None:
        command = [python, str(HERE / "genai_process.py"), str(directory), str(THREADS)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, ids: Ints, count: int) -> GenerationTrace:
        """Send prompts and a token count to the process. Read the times and tokens."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([ids.tolist(), count]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"onnxruntime-genai ended with status {self.process.wait()}")
        prefill, gaps, tokens = json.loads(answer)
        return GenerationTrace(prefill, tuple(gaps), np.array(tokens))

    def close(self) -> None:
        """Terminate the onnxruntime-genai process."""
        self.process.communicate()


def make_ctranslate2_generator(checkpoint: Path, out: Path, precision: str) -> Generate:
    """Return a generation function that runs CTranslate2 on a checkpoint with a tokenizer at batch
    size 1. Raise ImportError if CTranslate2 is not installed.
    """
    import ctranslate2

    converter = ctranslate2.converters.TransformersConverter(str(checkpoint))
    converter.convert(str(out), quantization=precision, force=True)
    model = ctranslate2.Generator(str(out), device="cpu", intra_threads=THREADS)
    names = transformers.AutoTokenizer.from_pretrained(checkpoint)

    def generate(ids: Ints, count: int) -> GenerationTrace:
        prompt = names.convert_ids_to_tokens(ids[0].tolist())
        began = time.perf_counter()
        # ignore stop tokens, to generate as many tokens as requested
        made = model.generate_tokens(prompt, max_length=count, sampling_topk=1, end_token=[])
        times, tokens = [], []
        for one in made:
            times.append(time.perf_counter())
            tokens.append(one.token_id)
        gaps = tuple(b - a for a, b in pairwise(times))
        return GenerationTrace(times[0] - began, gaps, np.array([tokens], np.int64))

    return generate


def build_genai_model(
    python: str, checkpoint: Path, out: Path, precision: str = "fp32", extra: Sequence[str] = ()
) -> str:
    """Run the genai model builder on a checkpoint for the CPU with extra options `key=value`.
    Return the error message of the builder, or "" on success.
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
        return _run_and_get_error([*command, *options])


def export_with_past(checkpoint: Path, out: Path, opset: int) -> str:
    """Run `torch.onnx.export(dynamo=True)` with KV caches in a separate process. Return the error
    message of the exporter, or "" on success.
    """
    command = [sys.executable, str(HERE / "torch_export.py"), "past"]
    return _run_and_get_error([*command, str(checkpoint), str(out), str(opset)])


def _run_and_get_error(command: Sequence[str]) -> str:
    """Run a command. Return the last line of stderr if the command fails, otherwise ""."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


INPUT_NAMES = {"input_ids": "source", "input_features": "input_features"}
"""Input names of specs by the input names of transformers."""


def make_specc_seq2seq_generator(package: Path, given: Mapping[str, np.ndarray]) -> Generate:
    """Return a generation function of a specc package of an encoder-decoder model."""
    import specc

    model = specc.load(package, threads=THREADS).generator
    names = set(model.input_signature.graph.inputs)
    # a spec may use the input name of transformers or a different name
    known = {(n if n in names else INPUT_NAMES[n]): v for n, v in given.items() if n in INPUT_NAMES}

    def start(ids: Ints) -> tuple[Ints, Step]:
        prepared = model.input_signature.prepare(
            {**known, model.input_signature.sequence_input: ids}
        )
        step = model.create_decoder_session(prepared).step
        return step(ids).argmax(1), lambda tokens: step(tokens[:, None]).argmax(1)

    return make_timed_generator(start)


def make_full_forward_seq2seq_generator(path: Path, given: Mapping[str, np.ndarray]) -> Generate:
    """Return a generation function that runs one graph without KV caches: every step processes the
    source and all previous tokens.
    """
    session = open_session(path)
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

    return make_timed_generator(start)


class _BoundGraph:
    """An ONNX model whose outputs stay in the runtime, where they are inputs of other models."""

    def __init__(self, path: Path) -> None:
        self.session = open_session(path)
        self.inputs = [i.name for i in self.session.get_inputs()]
        self.outputs = [o.name for o in self.session.get_outputs()]

    def run(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model. Return the outputs by the names of the next model's inputs."""
        binding = self.session.io_binding()
        for name in self.inputs:
            binding.bind_ortvalue_input(name, known[name])
        for name in self.outputs:
            binding.bind_output(name)
        self.session.run_with_iobinding(binding)
        names = [n.replace("present", "past_key_values") for n in self.outputs]
        return dict(zip(names, binding.get_outputs(), strict=True))


def make_optimum_seq2seq_generator(directory: Path, given: Mapping[str, np.ndarray]) -> Generate:
    """Return a generation function that runs the three models that Optimum exports: encoder,
    decoder, and decoder with past.
    """
    parts = ("encoder_model", "decoder_model", "decoder_with_past_model")
    encoder, first, later = (_BoundGraph(_find_part(directory, part)) for part in parts)
    hold = onnxruntime.OrtValue.ortvalue_from_numpy

    def start(ids: Ints) -> tuple[Ints, Step]:
        known = {name: hold(v) for name, v in given.items()}
        known["encoder_hidden_states"] = next(iter(encoder.run(known).values()))
        if "attention_mask" in known:
            known["encoder_attention_mask"] = known["attention_mask"]

        def run(graph: _BoundGraph, tokens: Ints) -> Ints:
            # the first step computes the cross-attention caches, which are constant afterwards
            known.update(graph.run({**known, "input_ids": hold(tokens)}))
            logits: np.ndarray = known["logits"].numpy()
            return logits[:, -1].argmax(1)

        return run(first, ids), lambda tokens: run(later, tokens[:, None])

    return make_timed_generator(start)


def _find_part(directory: Path, part: str) -> Path:
    """Return the path of a graph's model file. Raise ValueError if there is no such file."""
    path = directory / f"{part}.onnx"
    if not path.exists():
        graphs = sorted(str(p.relative_to(directory)) for p in directory.rglob("*.onnx"))
        raise ValueError(f"the benchmark does not support {' and '.join(graphs)}")
    return path
