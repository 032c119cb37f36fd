"""Transposed checkpoint matrices stay transposed in the model if only matrix products read them; folded
norm weights leave results bit-identical before quantization."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.small_configs import SMALL_CONFIGS

import specc
import specc_numpy
from specc.cli.main import main
from specc.diagnostics.diagnostic import SpeccError
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Parameter, Value
from specc.ir.ops.quantized import FoldedNorm
from specc.ir.types import Type
from specc.runtime.random_inputs import choose_dim_sizes, make_random_inputs
from specc.transforms import pass_pipeline
from specc.transforms.transposed_weights_and_norm_folding import find_foldable_norms
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.norm_folding_and_weight_range_checks import (
    NormFoldedWeights,
    RangeCheckedWeights,
    WeightRangeCheck,
)
from specc.weights.parameter_sources import RandomInitWeights, read_parameter
from specc.weights.weight_rules_and_initializers import ModelParameter

SPEC = """specc 1
model m
dims batch >= 1, seq >= 1
graph f(ids: int[batch, seq]) -> (y: float[batch, seq, 7]) {
  x = embedding(ids, size=7, dim=6) @ words
  x = relu(linear(x, out=10) @ up)
  x = linear(x, out=6, bias=false) @ down
  x = x + matmul(x, parameter(shape=[6, 6]) @ mixed)
  return linear(x, out=7, bias=false) @ head
}
weights {
  tie head.weight = words.weight
  load up.weight = transpose("up.kernel")
  load down.weight = transpose(slice("wide.kernel", axis=0, start=10, stop=20))
  load words.weight = transpose("words.kernel")
  load mixed = transpose("mixed")
  ignore "wide.bias"
}
"""
SHAPES = {
    "up.kernel": (6, 10),
    "up.bias": (10,),
    "wide.kernel": (20, 6),
    "words.kernel": (6, 7),
    "mixed": (6, 6),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Write a checkpoint and a spec."""
    rng = np.random.default_rng(0)
    numbers = {n: rng.normal(size=s).astype(np.float32) for n, s in SHAPES.items()}
    write_safetensors(tmp_path / "w.safetensors", numbers, {})
    (tmp_path / "m.specc").write_text(SPEC, encoding="utf-8")
    return tmp_path


def compile_as(directory: Path, how: str, **options: object) -> specc.Model:
    specc.compile(
        directory / "m.specc",
        directory / f"{how}.onnx",
        weights=directory / "w.safetensors",
        weights_as=how,
        **options,
    )
    return specc.load(directory / f"{how}.onnx")


def test_matrices_read_by_products_stay_transposed(directory: Path) -> None:
    model = compile_as(directory, "inline")
    shapes = {n: array.shape for n, array in model.weights().items()}
    assert shapes["up.weight"] == (6, 10)
    assert shapes["down.weight"] == (10, 6)
    # an embedding, and a matrix that is no weight of a linear layer, have the layout of the
    # spec
    assert shapes["words.weight"] == (7, 6)
    told = json.dumps(model.manifest.serialize())
    assert "transpose" in told


def test_transposed_results(directory: Path) -> None:
    ids = np.array([[3, 1, 4], [1, 5, 6]])
    with np.load(convert_to_float64(directory)) as w:
        x = w["words.kernel"].T[ids]
        x = np.maximum(x @ w["up.kernel"] + w["up.bias"], 0) @ w["wide.kernel"][10:]
        x = x + x @ w["mixed"].T
        wanted = x @ w["words.kernel"]
    for how in ("auto", "copy", "inline"):
        given = compile_as(directory, how).run(ids=ids)["y"]
        assert np.abs(given - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_diff_ignores_transposition(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_as(directory, "copy")
    specc.compile(directory / "m.specc", directory / "drawn.onnx", init=0)
    assert not main(["diff", str(directory / "drawn.onnx"), str(directory / "copy.onnx")])
    assert "→ [" not in capsys.readouterr().out


def convert_to_float64(directory: Path) -> Path:
    """Write the checkpoint in float64, read without specc."""
    raw = (directory / "w.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    found = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name in SHAPES:
            begin, end = entry["data_offsets"]
            data = np.frombuffer(raw[start + begin : start + end], "<f4")
            found[name] = data.reshape(entry["shape"]).astype(np.float64)
    np.savez(directory / "w.npz", **found)
    return directory / "w.npz"


def test_quantized_weights_have_the_layout_of_the_spec(directory: Path) -> None:
    model = compile_as(directory, "copy", quantize="int8")
    assert model.weights()["up.weight"].shape == (10, 6)


NORMS = ("norm", "ln_")
TRAINED = {"dates", "digits", "numbers", "xor"}
LATER = pytest.mark.parity


def write_uneven_weights(spec: str, directory: Path, *, planted: bool) -> Path:
    """Write random weights of a spec with norm weights from 1/64 to 64. `planted`: only a few
    channels are large, and the following linear layers are scaled inversely, so that the model
    is unchanged."""
    specc.compile(spec, directory / "drawn.onnx", init=0, set=SMALL_CONFIGS[spec])
    rng = np.random.default_rng(5)
    weights = dict(specc.load(directory / "drawn.onnx").weights())
    for name, value in weights.items():
        if value.ndim == 1 and any(part in name for part in NORMS):
            size = np.exp2(rng.uniform(-6, 6, value.shape))
            few = np.where(np.arange(value.size) < 2, 64, 1)
            weights[name] = (few if planted else size).astype(np.float32)
        # GPT-2 checkpoints store transposed matrices
        if value.ndim == 2 and ".c_" in name:
            weights[name] = np.ascontiguousarray(value.T)
    for name in weights if planted else ():
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            weights[name] = weights[name] / few.astype(np.float32)
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            weights[name] = weights[name] / few.astype(np.float32)
    write_safetensors(directory / "w.safetensors", weights)
    return directory / "w.safetensors"


def compile_small(spec: str, out: Path, weights: Path, *given: str) -> int:
    sets = [f"--set={n}={json.dumps(v)}" for n, v in SMALL_CONFIGS[spec].items()]
    args = ["compile", spec, *sets, "--weights", str(weights), *given]
    return main([*args, "--calibration-samples=0", "--force", "-o", str(out)])


def compute_logits(path: Path) -> Array:
    ids = np.arange(12).reshape(2, 6)
    return specc.load(path).run(input_ids=ids)["logits"]


@dataclass(frozen=True)
class ArrayValues(RandomInitWeights):
    """Test arrays, streamed a few bytes at a time. Implements `Values`."""

    arrays: dict[str, Array] = field(default_factory=dict)

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        data = self.arrays[name].reshape(-1).view(np.uint8)
        for start in range(0, data.size, 52):
            yield data[start : start + 52].data


def fold_all_norms(
    graph: Graph, ties: dict[str, str], weights: dict[str, Array]
) -> NormFoldedWeights:
    """Return the weights with every foldable norm weight folded."""
    wanted = {n: ModelParameter(name=n, shape=w.shape) for n, w in weights.items()}
    base = ArrayValues(0, wanted, {}, arrays=weights)
    return NormFoldedWeights(
        base, find_foldable_norms(pass_pipeline.simplify_graph(graph), ties, wanted)
    )


@pytest.mark.parametrize("spec", ["gpt2", pytest.param("llama", marks=LATER)])
def test_folding_is_exact(spec: str, tmp_path: Path) -> None:
    """Without quantization the results are bit-identical."""
    weights = write_uneven_weights(spec, tmp_path, planted=False)
    specc.compile(spec, tmp_path / "m.onnx", weights=weights, set=SMALL_CONFIGS[spec])
    model = specc.load(tmp_path / "m.onnx")
    graph, before = model.manifest.graph, dict(model.weights())
    ties = {p.name: p.tied_to for p in graph.parameter_facts.values() if p.tied_to}
    before |= {name: before[root] for name, root in ties.items()}
    folded = fold_all_norms(graph, ties, before)
    after = before | {n: read_parameter(folded, n, "f32") for n in folded.parameter_folds}
    # two norms per layer, and the last norm if the head is not tied to the embedding
    assert bool(ties) == (spec == "gpt2")
    assert len(folded.folds) == (4 if ties else 5)
    assert not any("wte" in n or "embed_tokens" in n for n in folded.parameter_folds)
    inputs = make_random_inputs(graph, choose_dim_sizes(graph, 2), np.random.default_rng(1))
    wanted = specc_numpy.evaluate_graph(graph, inputs, before)
    for name, value in specc_numpy.evaluate_graph(graph, inputs, after).items():
        assert np.array_equal(value, wanted[name])
    # the remaining norm weights are close to 1, or smaller next to a bias
    gains = [after[fold.weight] for fold in folded.folds]
    assert all(abs(g).max() < 1.42 for g in gains)


def test_excluded_weights_are_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The norm before an excluded weight is unchanged too; the note counts the folded norms."""
    weights = write_uneven_weights("gpt2", tmp_path, planted=False)
    plain, folded = tmp_path / "plain.onnx", tmp_path / "folded.onnx"
    given = ["--quantize", "int8", "--quantize-exclude=h.0.*"]
    assert compile_small("gpt2", plain, weights, *given) == 0
    capsys.readouterr()
    assert compile_small("gpt2", folded, weights, *given, "--fold-norms") == 0
    assert "folded the weights of 2 norms into 2 linear layers" in capsys.readouterr().err
    before, after = (specc.load(path).weights() for path in (plain, folded))
    changed = {n for n in before if not np.array_equal(before[n], after[n])}
    assert "h.1.ln_1.weight" in changed
    # the head is tied to the embedding, so the last norm is not folded
    assert "ln_f.weight" not in changed
    assert not any(name.startswith("h.0.") for name in changed)
    # if all linear layers are excluded, no norm can be folded
    given = ["--quantize", "int8", "--quantize-exclude=h.*", "--fold-norms"]
    assert compile_small("gpt2", folded, weights, *given) == 0
    told = capsys.readouterr().err
    assert "no norm weights were folded" in told
    assert "the norm must not be in a loop" in told


@pytest.mark.parametrize("fold", [True, pytest.param(False, marks=LATER)])
def test_excluded_weights_stay_linked(
    fold: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Excluded weights and the norms before them are linked to the checkpoint; quantized and folded
    weights are stored in an own file."""
    # small weights are stored inline
    monkeypatch.setattr("specc_onnx.write.weight_placement.MAX_INLINE_BYTES", 0)
    weights = write_uneven_weights("llama", tmp_path, planted=False)
    out = tmp_path / "m.onnx"
    given = ["--quantize=int8", "--quantize-exclude=model.layers.0.*"]
    assert compile_small("llama", out, weights, *given, *["--fold-norms"][: int(fold)]) == 0
    model = specc.load(out)
    now, stored = model.weights(), model.manifest.initializers
    lies = {
        t.name: {e.key: e.value for e in t.external_data}.get("location")
        for t in onnx.load(out, load_external_data=False).graph.initializer
    }
    before = read_checkpoint(weights)
    same = {n for n, w in now.items() if np.array_equal(w, before[n])}
    linked = {n for n in now if lies[stored[n]] == weights.name}
    assert linked == same
    assert {n for n in now if n.startswith("model.layers.0.")} <= linked
    moved_too = {"model.layers.1.input_layernorm.weight", "model.norm.weight"}
    assert moved_too.isdisjoint(linked) == fold


def read_checkpoint(path: Path) -> dict[str, Array]:
    """Read a float32 checkpoint without specc."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    found = {}
    entries = json.loads(raw[8:start])
    entries.pop("__metadata__", None)
    for name, entry in entries.items():
        first, last = (start + n for n in entry["data_offsets"])
        found[name] = np.frombuffer(raw[first:last], "<f4").reshape(entry["shape"])
    return found


@LATER
@pytest.mark.parametrize("kind", ["int8", "int8-weights", "int4"])
def test_folding_reduces_the_quantization_error(kind: str, tmp_path: Path) -> None:
    weights = write_uneven_weights("llama", tmp_path, planted=True)
    sets = SMALL_CONFIGS["llama"]
    specc.compile("llama", tmp_path / "full.onnx", weights=weights, set=sets)
    wanted = compute_logits(tmp_path / "full.onnx")
    lost = []
    for given in ([], ["--fold-norms"]):
        out = tmp_path / "low.onnx"
        more = {"int4": ["--quantize-all", "--group-size=32"], "int8-weights": ["--group-size=32"]}
        options = ["--quantize", kind, *more.get(kind, ()), *given]
        assert compile_small("llama", out, weights, *options) == 0
        assert main(["verify", str(out), "--rounds", "1"]) == 0
        lost.append(float(np.linalg.norm(compute_logits(out) - wanted)))
    assert lost[1] < 0.5 * lost[0]


@pytest.mark.slow
@pytest.mark.parametrize("spec", sorted(SMALL_CONFIGS))
def test_folding_is_exact_for_every_spec(spec: str, tmp_path: Path) -> None:
    """In float64, for any norm weights."""
    seed = None if spec in TRAINED else 0
    specc.compile(spec, tmp_path / "m.onnx", init=seed, set=SMALL_CONFIGS[spec])
    model = specc.load(tmp_path / "m.onnx")
    graph, rng = model.manifest.graph, np.random.default_rng(1)
    ties = {p.name: p.tied_to for p in graph.parameter_facts.values() if p.tied_to}
    weights = {n: np.array(w) for n, w in model.weights().items()}
    for name, value in weights.items():
        # variances are not negative
        if value.ndim == 1 and value.dtype == np.float32 and "var" not in name:
            sizes = rng.standard_normal(value.shape) * np.exp2(rng.uniform(-5, 5))
            weights[name] = sizes.astype(np.float32)
    weights |= {name: weights[root] for name, root in ties.items()}
    folded = fold_all_norms(graph, ties, weights)
    after = weights | {n: read_parameter(folded, n, "f32") for n in folded.parameter_folds}
    inputs = make_random_inputs(graph, choose_dim_sizes(graph, 2), rng)
    for name, value in specc_numpy.evaluate_graph(graph, inputs, weights).items():
        made = specc_numpy.evaluate_graph(graph, inputs, after)[name]
        np.testing.assert_allclose(made, value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_overflow_of_a_folded_weight(dtype: str) -> None:
    """A folded weight that exceeds the range of the dtype is an error."""
    graph = build_norm_graph(lambda b, x, w: {"y": apply_linear(b, x, w)})
    large = np.full((4, 4), 1e38 if dtype == "f32" else 1e4, np.float32)
    gain = np.full(4, 1024, np.float32)
    folded = fold_all_norms(graph, {}, {"g": gain, "b": np.zeros_like(gain), "w": large})
    narrow = RangeCheckedWeights(
        folded, {"w": WeightRangeCheck("f16", "w")}, folded.parameter_folds
    )
    for values, kind in ((folded, dtype), (narrow, "f32")):
        with pytest.raises(SpeccError) as caught:
            read_parameter(values, "w", kind)
        (told,) = caught.value.diagnostics
        assert told.code == "E0517"
        assert "remove --fold-norms" in told.helps[0]


FOUR = Dim.from_value(4)
Rest = Callable[[GraphBuilder, Value, Value], dict[str, Value]]


def build_norm_graph(rest: Rest) -> Graph:
    """Build `rest` over the result of a norm and a weight."""
    b = GraphBuilder()
    x = b.add_input("x", Input(Type("f32", (Dim.symbol("n"), FOUR))))
    parts = {"g": (4,), "b": (4,), "w": (4, 4)}
    g, bias, w = (
        b.add_parameter(Parameter(name=n, type=Type.of("f32", *s), initializer="zeros"))
        for n, s in parts.items()
    )
    made = b.add_op(ops.LayerNorm(1e-5), x, g, bias)
    return b.build_graph("g", rest(b, made, w))


def apply_linear(b: GraphBuilder, x: Value, w: Value) -> Value:
    return b.add_op(ops.Linear(), x, w, None)


def transpose(b: GraphBuilder, w: Value) -> Value:
    return b.add_op(ops.Transpose((1, 0)), w)


REFUSED: dict[str, Rest] = {
    "it is a result too": lambda b, x, w: {"y": apply_linear(b, x, w), "x": x},
    "it is added too": lambda b, x, w: {"y": b.add_op(ops.Arith("add"), x, apply_linear(b, x, w))},
    "the weight reads more": lambda b, x, w: {
        "y": apply_linear(b, x, w),
        "z": apply_linear(b, apply_linear(b, x, w), w),
    },
    "the weight is a result": lambda b, x, w: {"y": apply_linear(b, x, w), "w": w},
    "it is what a product is by": lambda b, x, w: {"y": apply_linear(b, w, x)},
}


@pytest.mark.parametrize("rest", REFUSED.values(), ids=REFUSED)
def test_norms_with_other_users_are_not_folded(rest: Rest) -> None:
    assert not find_foldable_norms(build_norm_graph(rest), {}, {"w"})


def test_only_untied_linear_layers_are_folded() -> None:
    graph = build_norm_graph(lambda b, x, w: {"y": apply_linear(b, x, w)})
    assert find_foldable_norms(graph, {}, {"w"}) == (FoldedNorm("g", "b", (("w", False),)),)
    assert not find_foldable_norms(graph, {"w": "table"}, {"w"})
    assert not find_foldable_norms(graph, {"other": "g"}, {"w"})
    # excluded weights are not changed
    assert not find_foldable_norms(graph, {}, set())
    over = build_norm_graph(lambda b, x, w: {"y": apply_linear(b, x, transpose(b, w))})
    assert find_foldable_norms(over, {}, {"w"}) == (FoldedNorm("g", "b", (("w", True),)),)
    both = build_norm_graph(
        lambda b, x, w: {"y": apply_linear(b, x, transpose(b, w)), "z": apply_linear(b, x, w)}
    )
    assert not find_foldable_norms(both, {}, {"w"})
