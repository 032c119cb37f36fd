"""Time mixture-of-experts layers: selected experts unrolled or in a loop, all experts on all
tokens, and the layer of transformers.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import measure
import numpy as np

import specc
import specc_onnx
from specc_onnx.ort_model import OrtModel
from specc_onnx.ort_session import open_serialized_ort_model

WIDTH, HIDDEN = 512, 1024
MIXTURES = ((8, 2), (64, 8))
"""The number of experts, and the number of selected experts per token, of each measured layer."""

ROWS = (1, 16, 512)

SPEC = """specc 1
model mixture "A mixture of gated MLPs with top-k routing."

config {{ d: int = 512  hidden: int = 1024  experts: int = 8  k: int = 2 }}
dims batch >= 1, seq >= 1

graph mixture(x: float[batch, seq, d]) -> (y: float[batch, seq, d]) {{
  best, ids = topk(linear(x, out=experts, bias=false) @ gate, k)
  gates = softmax(best)
  {body}
  return y
}}
"""
ROUTED = (
    """y = route(x, ids, gates, to=gated_mlp(hidden=hidden, act=silu), experts=experts) @ experts"""
)
ALL = """repeat i in experts under "experts.{i}" collect parts {
    share = sum(where(ids == i, gates, 0.0), axis=-1)
    made = gated_mlp(x, hidden=hidden, act=silu)
    parts = made * insert(share, axis=2)
  }
  y = sum(parts)"""


def iterate_report_lines(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Yield the lines of the result table."""
    yield (
        f"### Mixture of experts: hidden size {WIDTH}, intermediate size {HIDDEN}, 2 threads, "
        f"ms (minimum of {rounds} rounds)\n"
    )
    yield (
        "| experts | experts per token | tokens | unrolled | loop | all experts on all tokens "
        "| transformers | default |\n|---|---|---|---|---|---|---|---|"
    )
    for experts, k in MIXTURES[:1] if quick else MIXTURES:
        sessions = _open_sessions(experts, k, directory)
        theirs = _make_published_layer(experts, k)
        for length in ROWS[:2] if quick else ROWS:
            x = np.random.default_rng(0).normal(size=(1, length, WIDTH))
            given = {"x": x.astype(np.float32)}
            calls = {form: _make_call(s, given) for form, s in sessions.items()}
            calls["transformers"] = theirs(given["x"])
            times = measure.time_in_turn(calls, rounds)
            shown = [f"{min(times[form]) * 1e3:.2f}" for form in calls]
            ours = "unrolled" if experts <= _get_max_unrolled_experts() else "loop"
            yield f"| {experts} | {k} | {length} | {' | '.join(shown)} | {ours} |"
    yield ""


def _get_max_unrolled_experts() -> int:
    return specc_onnx.get_target("ort-cpu").max_unrolled_experts


def _open_sessions(experts: int, k: int, directory: Path) -> dict[str, OrtModel]:
    """Open all variants of a mixture-of-experts layer in ONNX Runtime."""
    found = {}
    forms = {"one by one": (ROUTED, experts), "loop": (ROUTED, 0), "all": (ALL, 0)}
    for form, (body, few) in forms.items():
        spec = directory / "mixture.specc"
        spec.write_text(SPEC.format(body=body), encoding="utf-8")
        path = directory / f"mixture-{experts}-{form}.onnx".replace(" ", "-")
        sets = {"experts": experts, "k": k}
        specc.compile(spec, path, set=sets, init=1, target="ort-cpu")
        if form != "all":
            path = _lower_with_unroll_limit(path, few)
        found[form] = open_serialized_ort_model(path.read_bytes(), directory=path.parent, threads=2)
    return found


def _lower_with_unroll_limit(path: Path, few: int) -> Path:
    """Lower a model with at most `few` unrolled experts, reusing the weight files of the model."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    target = replace(specc_onnx.get_target("ort-cpu"), max_unrolled_experts=few)
    built = specc_onnx.build_model(specc.load(path).manifest.graph, target)
    stored = {t.name: t for t in model.graph.initializer}
    for name, tensor in built.weights.items():
        tensor.CopyFrom(stored[name])
    made = path.with_stem(f"{path.stem}-{few}")
    made.write_bytes(built.model.SerializeToString())
    return made


def _make_call(session: OrtModel, given: dict[str, np.ndarray]) -> Callable[[], object]:
    return lambda: session.run(given)


def _make_published_layer(experts: int, k: int) -> Callable[[np.ndarray], Callable[[], object]]:
    """Return Mixtral's mixture-of-experts layer of transformers in float32."""
    import torch
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    torch.set_num_threads(2)
    config = MixtralConfig(
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_local_experts=experts,
        num_experts_per_tok=k,
    )
    block = MixtralSparseMoeBlock(config).eval()
    with torch.no_grad():
        for weight in block.parameters():
            weight.normal_(std=0.04)

    def make_call(x: np.ndarray) -> Callable[[], object]:
        tensor = torch.from_numpy(x)

        def call() -> object:
            with torch.inference_mode():
                return block(tensor)

        return call

    return make_call
