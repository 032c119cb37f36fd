"""Compare recurrent models with PyTorch models of the same weights, in eager mode and, if
supported, with torch.compile.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

import specc
import specc_torch
from specc.transforms.graph_rewrite import rewrite_graph
from specc.transforms.split_scan import split_scan

VOCAB, WIDTH, STEPS = 1000, 512, 128
HEADS, STATE = 32, 128


class LanguageModel(torch.nn.Module):
    """A PyTorch language model: embedding, two recurrent layers and output layer."""

    def __init__(self, layer: type[torch.nn.Module]) -> None:
        super().__init__()
        self.encoder = torch.nn.Embedding(VOCAB, WIDTH)
        self.rnn = layer(WIDTH, WIDTH, 2, batch_first=True)
        self.decoder = torch.nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, steps, vocab] for token ids [batch, steps]."""
        return self.decoder(self.rnn(self.encoder(ids))[0])


def iterate_report_lines(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Yield a table row per model and batch size."""
    torch.set_num_threads(2)
    yield "### Recurrent models: ms (median, fastest), 2 threads\n"
    head = (
        "model | batch | specc | PyTorch eager | torch.compile | specc / eager (95 "
        "% interval) | difference"
    )
    yield f"| {head} | compile s | MB |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for spec, layer in (("lstm_lm", torch.nn.LSTM), ("gru_lm", torch.nn.GRU)):
        model, cost = _compile_spec(spec, directory, {"vocab": VOCAB, "width": WIDTH})
        theirs = LanguageModel(layer)
        theirs.load_state_dict(
            {n: torch.from_numpy(np.array(w)) for n, w in model.weights().items()}
        )
        for batch in (1, 16):
            ids = np.random.default_rng(0).integers(0, VOCAB, (batch, STEPS))
            given = {"ids": ids, "keep": np.ones(ids.shape, bool)}
            yield _format_row(
                spec, batch, model, given, theirs, torch.from_numpy(ids), rounds, quick, cost
            )
    yield from _measure_search(directory, rounds, quick)
    yield from _measure_delta_rule(directory, rounds)
    yield ""


def _measure_search(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Measure the full forward pass of RNNsearch with 30 source and 30 target tokens. The eager
    model is the PyTorch module of the spec after the `split_scan` pass.
    """
    sets = {"src_vocab": VOCAB, "tgt_vocab": VOCAB, "embed_dim": 128, "hidden": 256, "readout": 128}
    model, cost = _compile_spec("rnnsearch", directory, sets)
    graph = rewrite_graph(model.manifest.graph, [split_scan])
    theirs = specc_torch.SpecModule(graph, model.weights()).eval()
    rng = np.random.default_rng(0)
    words = {"source": rng.integers(1, VOCAB, (16, 30)), "target": rng.integers(1, VOCAB, (16, 30))}
    given = words | {"source_keep": np.ones((16, 30), bool)}
    tensors = {n: torch.from_numpy(v) for n, v in given.items()}
    yield _format_row(
        "rnnsearch", 16, model, given, lambda g: theirs(**g)["logits"], tensors, rounds, True, cost
    )


DELTA_RULE = f"""specc 1
model gated_delta_rule
dims batch >= 1, n >= 1
graph main(q: float[batch, n, {HEADS}, {STATE}], k: float[batch, n, {HEADS}, {STATE}],
           v: float[batch, n, {HEADS}, {STATE}], decay: float[batch, n, {HEADS}],
           beta: float[batch, n, {HEADS}], keep: keep[batch, n])
    -> (logits: float[batch, n, {HEADS}, {STATE}]) {{
  return gated_delta_rule(q, k, v, decay, beta, keep)
}}
"""


def _measure_delta_rule(directory: Path, rounds: int) -> Iterator[str]:
    """Compare a gated delta rule layer with the chunked implementation of transformers."""
    spec = directory / "gated_delta_rule.specc"
    spec.write_text(DELTA_RULE, encoding="utf-8")
    model, cost = _compile_spec(str(spec), directory, {})
    rng = np.random.default_rng(0)
    shape = (1, 512, HEADS)
    given = {n: rng.standard_normal((*shape, STATE)).astype(np.float32) for n in "qkv"}
    given |= {"decay": -rng.exponential(size=shape), "beta": rng.uniform(size=shape)}
    given = {n: x.astype(np.float32) for n, x in given.items()}
    tensors = [torch.from_numpy(x) for x in given.values()]
    given["keep"] = np.ones(shape[:2], bool)

    def run_chunked(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch_chunk_gated_delta_rule(*tensors, use_qk_l2norm_in_kernel=True)[0]

    yield _format_row("gated delta rule", 1, model, given, run_chunked, tensors, rounds, True, cost)


def _compile_spec(
    spec: str, directory: Path, sets: dict[str, int]
) -> tuple[Any, tuple[float, float]]:
    """Compile a model. Return the loaded model, and the compile time (s) and memory (MB)."""
    path = directory / f"{Path(spec).stem}.onnx"
    start = time.perf_counter()
    made = specc.compile(spec, path, init=0, set=sets)
    took = time.perf_counter() - start
    return specc.load(path, threads=2).selected_model, (
        took,
        sum(size for _, size in made.files) / 1e6,
    )


def _format_row(
    name: str, batch: int, model: Any, given: dict[str, np.ndarray], theirs: Callable[[Any], torch.Tensor],
    ids: Any, rounds: int, quick: bool, cost: tuple[float, float],
) -> str:  # fmt: skip
    with torch.inference_mode():
        calls: dict[str, Callable[[], Any]] = {
            "specc": lambda: model.session.run(given, ("logits",))["logits"],
            "eager": lambda: theirs(ids),
        }
        apart = np.abs(calls["specc"]() - calls["eager"]().numpy()).max()
        if not quick and isinstance(theirs, torch.nn.Module):
            try:
                compiled = torch.compile(theirs)
                compiled(ids)
                calls["compile"] = lambda: compiled(ids)
            except (
                Exception
                # torch.compile raises various exceptions, and the table reports the failure
            ) as error:
                print(f"torch.compile of {name}: {type(error).__name__}")
        times = measure.time_in_turn(calls, rounds)
    found = measure.estimate_ratio(times["specc"], times["eager"])
    shown = {n: f"{statistics.median(t) * 1e3:.1f}, {min(t) * 1e3:.1f}" for n, t in times.items()}
    took = f"{cost[0]:.1f} | {cost[1]:.1f}"
    return (
        f"| {name} | {batch} | {shown['specc']} | {shown['eager']} | "
        f"{shown.get('compile', '–')} | {found} "
        f"| {apart:.0e} | {took} |"
    )
