"""Compare the quantization kinds of specc with float32 and with the quantization of other programs,
on the same random weights, in one run with two threads.

The results list programs that are not installed: CTranslate2 (`pip install ctranslate2`) and
onnxruntime-genai (`make other-runtimes`). OpenVINO is measured only if it is installed (`pip install
openvino nncf`).
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import decoders
import generation
import measure
import numpy as np
import onnxruntime
import torch
import transformers
from decoders import Generate
from measure import Goal, format_goals

import specc

KINDS = ("float32", "int8", "int8-weights", "int4")
RECURRENT_KIND = "int8-tensor"
"""The quantization kind for recurrent models with batch size 1."""
INT4_ALL_LAYERS = "int4, all layers"
"""The kind that quantizes embedding, lm_head and first layer to 4 bits like other programs."""
PROMPT, COUNT = 128, 64
"""The prompt length and the number of generated tokens."""


@dataclass(frozen=True, kw_only=True)
class ForwardModel:
    """A model with a single forward pass: spec, config, inputs, `small` config for `--quick`."""

    name: str
    spec: str
    inputs: Mapping[str, tuple[int, ...]]
    config: Mapping[str, object]
    small: Mapping[str, object]
    result: str = "logits"
    min_speedup: float = 0
    """Goal: the speedup over float32 with the last of `kinds`, or with int8 if `kinds` is empty."""
    kinds: tuple[str, ...] = ()
    """Quantization kinds that are measured only for this model."""
    has_openvino: bool = False
    """True if the model is also measured in OpenVINO."""


TINY = {"d": 32, "heads": 2, "layers": 2, "hidden": 64}
FORWARD_MODELS = (
    ForwardModel(
        name="BERT-base, 1×128",
        spec="bert",
        inputs={"input_ids": (1, 128)},
        config={},
        small={**TINY, "vocab": 100},
        result="prediction_logits",
        min_speedup=2.3,
        has_openvino=True,
    ),
    ForwardModel(
        name="BERT-base, 8×128",
        spec="bert",
        inputs={"input_ids": (8, 128)},
        config={},
        small={**TINY, "vocab": 100},
        result="prediction_logits",
        min_speedup=2.3,
        has_openvino=True,
    ),
    ForwardModel(
        name="ViT-base, one image",
        spec="vit",
        inputs={"pixel_values": (1, 3, 224, 224)},
        config={},
        small={**TINY},
        has_openvino=True,
    ),
    ForwardModel(
        name="LSTM language model, 1×128",
        spec="lstm_lm",
        inputs={"ids": (1, 128)},
        config={"vocab": 1000, "width": 512},
        small={"vocab": 100, "width": 32},
        min_speedup=3,
        kinds=(RECURRENT_KIND,),
    ),
    ForwardModel(
        name="RNNsearch, 16×30 tokens, 30 target tokens",
        spec="rnnsearch",
        inputs={"source": (16, 30), "target": (16, 30)},
        config={
            "src_vocab": 1000,
            "tgt_vocab": 1000,
            "embed_dim": 128,
            "hidden": 256,
            "readout": 128,
        },
        small={"src_vocab": 100, "tgt_vocab": 100, "embed_dim": 16, "hidden": 16, "readout": 16},
    ),
)


def iterate_report_lines(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Yield the tables of generation and of forward passes, with their goals."""
    torch.set_num_threads(decoders.THREADS)
    transformers.utils.logging.disable_progress_bar()
    for name in ("gpt2", "llama"):
        yield from _measure_generation(name, directory, rounds, quick)
    yield "### Forward passes with quantized weights: 2 threads, the same random weights\n"
    yield (
        "| model | weights | ms: median, fastest | speedup over float32 "
        "(95 % interval) | 1 - cosine | MB |"
    )
    yield "|---|---|---|---|---|---|"
    wanted: list[Goal] = []
    for tested in FORWARD_MODELS:
        yield from _measure_forward_passes(tested, directory, rounds, quick, wanted)
    yield ""
    yield from format_goals(wanted)


# --- generative models -----------------------------------------------------------------


def _measure_generation(name: str, directory: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Yield the lines of the table of prefill and generation speed."""
    checkpoint = generation.save_checkpoint(name, directory / f"{name}-lowbits", quick)
    vocab = 90 if quick else 50000
    # CTranslate2 requires token names, including names of bos and eos
    count_all = 100 if quick else 50257
    names = generation.make_tokenizer(count_all)
    names.bos_token = names.eos_token = str(count_all - 1)
    names.save_pretrained(checkpoint)
    generators, sizes, remarks = _make_generators(name, checkpoint, directory)
    prompt, count = (8, 4) if quick else (PROMPT, COUNT)
    ids = np.random.default_rng(0).integers(0, vocab, (1, prompt))
    traces = generation.measure_in_turn(generators, ids, count, rounds)
    yield (f"### {name}: {count} tokens after {prompt}, greedy, {decoders.THREADS} threads\n")
    yield from (f"{remark}\n" for remark in remarks)
    yield (
        "| | tokens/s | speedup over float32 (95 % interval) | prefill, ms | speedup of prefill "
        "(95 % interval) | MB | same tokens as float32 |"
    )
    yield "|---|---|---|---|---|---|---|"
    written = {n: [sum(t.steps) for t in ts] for n, ts in traces.items()}
    read = {n: [t.prefill for t in ts] for n, ts in traces.items()}
    first = traces["float32"][0].tokens[0]
    for n, ts in traces.items():
        rate = statistics.median(len(t.steps) / sum(t.steps) for t in ts)
        tokens = ts[0].tokens[0]
        same = sum(a == b for a, b in zip(tokens, first, strict=False))
        yield (
            f"| {n} | {rate:.1f} | {_format_speedup(written, n)} | "
            f"{statistics.median(read[n]) * 1e3:.1f} | {_format_speedup(read, n)} | "
            f"{sizes[n] / 1e6:.3g} | {same} of {len(first)} |"
        )
    yield ""
    yield from format_goals(_iterate_generation_goals(name, written, read, sizes))
    for generator in generators.values():
        if isinstance(generator, decoders.GenaiProcess):
            generator.close()


CTRANSLATE2 = "CTranslate2, int8"
GENAI = {
    "onnxruntime-genai, int4": (),
    "onnxruntime-genai, int4, group size 128": ("block_size=128",),
}
"""Options of the genai model builder in addition to `-p int4`."""


def _iterate_generation_goals(
    name: str,
    written: Mapping[str, list[float]],
    read: Mapping[str, list[float]],
    sizes: Mapping[str, int],
) -> Iterator[Goal]:
    """Yield the goals: for GPT-2 the speedup over float32 and the file size, and for both models to
    be at least as fast as other programs with the same number of bits.
    """

    def compute_speedup(times: Mapping[str, list[float]], ours: str, theirs: str) -> float:
        return statistics.median(times[theirs]) / statistics.median(times[ours])

    if name == "gpt2":
        for kind, wanted, share in (("int8", 2.3, 0.27), ("int4", 3, 0.185)):
            speed = compute_speedup(written, kind, "float32")
            yield Goal(f"{name}, {kind}: tokens/s, times float32", wanted, speed)
            size = sizes[kind] / sizes["float32"]
            yield Goal(f"{name}, {kind}: file size / float32", share, size, True)
        speed = compute_speedup(read, "int8", "float32")
        yield Goal(f"{name}, int8: prefill, times float32", 2.3, speed)
    ours = ("int4", INT4_ALL_LAYERS)
    pairs = [("int8", CTRANSLATE2), *((kind, peer) for peer in GENAI for kind in ours)]
    for kind, peer in pairs:
        if peer in written:
            speed = compute_speedup(written, kind, peer)
            yield Goal(f"{name}, {kind}: tokens/s, times {peer}", 1, speed)


def _make_generators(
    name: str, checkpoint: Path, directory: Path
) -> tuple[dict[str, Generate], dict[str, int], list[str]]:
    """Return the available programs, the sizes of their files in bytes, and remarks on the programs
    that are not available.
    """
    generators: dict[str, Generate] = {}
    sizes: dict[str, int] = {}
    remarks: list[str] = []
    for kind in (*KINDS, INT4_ALL_LAYERS):
        out = directory / f"{name}-{kind}"
        # calibration is disabled, because the speed of int4 does not depend on it
        specc.compile(checkpoint, out, graphs=["step"], weights_as="copy", **_make_options(kind))
        generators[kind], sizes[kind] = (
            decoders.make_specc_generator(out),
            measure.measure_directory_size(out),
        )
    out = directory / f"{name}-ctranslate2"
    try:
        generators[CTRANSLATE2] = decoders.make_ctranslate2_generator(checkpoint, out, "int8")
        sizes[CTRANSLATE2] = measure.measure_directory_size(out)
    except ImportError:
        remarks.append("CTranslate2 is not installed: `pip install ctranslate2`.")
    python = generation.find_genai_python()
    if not python:
        remarks.append(
            "onnxruntime-genai is not installed: `make other-runtimes`, or set SPECC_GENAI_PYTHON."
        )
        return generators, sizes, remarks
    for number, (peer, extra) in enumerate(GENAI.items()):
        out = directory / f"{name}-genai-int4-{number}"
        if said := decoders.build_genai_model(python, checkpoint, out, "int4", extra):
            told = said.replace(str(checkpoint), name)
            remarks.append(f"{peer} does not support {name}: {told}")
        else:
            generators[peer], sizes[peer] = (
                decoders.GenaiProcess(python, out),
                measure.measure_directory_size(out),
            )
    return generators, sizes, remarks


# --- models with a single forward pass -------------------------------------------------


def _measure_forward_passes(
    tested: ForwardModel, directory: Path, rounds: int, quick: bool, wanted: list[Goal]
) -> Iterator[str]:
    """Yield a table row per quantization kind and a row for ONNX Runtime's own quantizer. Append
    the goals to `wanted`.
    """
    config = tested.small if quick else tested.config
    calls: dict[str, Callable[[], Any]] = {}
    sizes: dict[str, int] = {}
    for kind in (*KINDS, *tested.kinds):
        model, sizes[kind] = _make_model(tested, directory, kind, config)
        given = _make_inputs(tested, model.manifest.graph)
        prepared = model.prepare_inputs(given)
        calls[kind] = _make_call(model, prepared, tested.result)
    peer = "quantize_dynamic (int8)"
    calls[peer], sizes[peer] = _quantize_dynamically(tested, directory, config, prepared)
    for name, (call, size) in _make_openvino_calls(tested, directory, prepared).items():
        calls[name], sizes[name] = call, size
    exact = calls["float32"]()
    angles = {kind: _compute_angle(call(), exact) for kind, call in calls.items()}
    times = measure.time_in_turn(calls, rounds)
    for kind, took in times.items():
        yield (
            f"| {tested.name} | {kind} | {statistics.median(took) * 1e3:.1f}, "
            f"{min(took) * 1e3:.1f} | {_format_speedup(times, kind)} | {angles[kind]:.1e} | "
            f"{sizes[kind] / 1e6:.3g} |"
        )
    if tested.min_speedup:
        medians = {kind: statistics.median(took) for kind, took in times.items()}
        best = ("int8", *tested.kinds)[-1]
        speed = medians["float32"] / medians[best]
        title = f"{tested.name}, {best}: times float32"
        wanted.append(Goal(title, tested.min_speedup, speed))
    if tested.spec == "bert":
        title = f"{tested.name}, int8: 1 - cosine, compared with {peer}"
        wanted.append(Goal(title, angles[peer], angles["int8"], at_most=True))


def _make_model(
    tested: ForwardModel, directory: Path, kind: str, config: Mapping[str, object]
) -> tuple[Any, int]:
    """Load a model. Return the model and the size of its files in bytes."""
    out = directory / f"{tested.spec}-{kind}"
    if not out.exists():
        specc.compile(tested.spec, out / "m.onnx", init=0, set=config, **_make_options(kind))
    return specc.load(
        out / "m.onnx", threads=decoders.THREADS
    ).selected_model, measure.measure_directory_size(out)


def _quantize_dynamically(
    tested: ForwardModel,
    directory: Path,
    config: Mapping[str, object],
    prepared: Mapping[str, np.ndarray],
) -> tuple[Callable[[], Any], int]:
    """Quantize the model with ONNX Runtime's dynamic quantizer and default options."""
    from onnxruntime.quantization import quantize_dynamic

    full, out = directory / f"{tested.spec}-full", directory / f"{tested.spec}-dynamic"
    if not out.exists():
        for place in (full, out):
            place.mkdir()
        specc.compile(
            tested.spec,
            full / "m.onnx",
            init=0,
            set=config,
            target="onnx",
            for_external_quantization=True,
        )
        quantize_dynamic(full / "m.onnx", out / "m.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = decoders.THREADS
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(out / "m.onnx"), options)
    names = {i.name for i in session.get_inputs()}
    given = {n: v for n, v in prepared.items() if n in names}
    return lambda: session.run([tested.result], given)[0], measure.measure_directory_size(out)


def _make_openvino_calls(
    tested: ForwardModel, directory: Path, prepared: Mapping[str, np.ndarray]
) -> dict[str, tuple[Callable[[], Any], int]]:
    """Return calls that run the model in OpenVINO, or no calls if OpenVINO is not installed."""
    if not tested.has_openvino or not find_spec("openvino") or not find_spec("nncf"):
        return {}
    from openvino_peer import make_openvino_calls

    out = directory / f"{tested.spec}-openvino"
    out.mkdir(exist_ok=True)
    full = directory / f"{tested.spec}-full" / "m.onnx"
    return make_openvino_calls(full, prepared, tested.result, out)


def _make_call(model: Any, prepared: Mapping[str, np.ndarray], result: str) -> Callable[[], Any]:
    return lambda: model.session.run(prepared)[result]


def _make_inputs(tested: ForwardModel, graph: Any) -> dict[str, np.ndarray]:
    """Return random inputs, equal for every quantization kind, without optional inputs."""
    rng = np.random.default_rng(0)
    given: dict[str, np.ndarray] = {}
    for name, shape in tested.inputs.items():
        type = graph.inputs[name].type
        if type.dtype != "i64":
            lengths = [d.number or n for d, n in zip(type.shape, shape, strict=True)]
            given[name] = rng.normal(size=lengths).astype(np.float32)
            continue
        given[name] = rng.integers(5, graph.input_facts[name].upper_bound.number, shape)
    return given


def _compute_angle(x: np.ndarray, y: np.ndarray) -> float:
    """Return one minus the cosine similarity of two arrays."""
    a, b = (v.astype(np.float64).ravel() for v in (x, y))
    return max(0.0, 1 - float(a @ b) / float(np.sqrt((a @ a) * (b @ b))))


def _make_options(kind: str) -> dict[str, Any]:
    """Return the options of `specc.compile` for a quantization kind."""
    if kind == "float32":
        return {}
    if kind == INT4_ALL_LAYERS:
        return {**_make_options("int4"), "lm_head_bits": 4, "quantize_all": True}
    return {"quantize": kind, **({"calibration_samples": 0} if kind == "int4" else {})}


def _format_speedup(times: Mapping[str, list[float]], name: str) -> str:
    """Format the speedup of a quantization kind over float32."""
    if name == "float32":
        return ""
    return str(measure.estimate_ratio(times["float32"], times[name]))
