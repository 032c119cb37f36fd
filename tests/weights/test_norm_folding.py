"""Gains of norms in the maps behind them: the same model to the last bit before anything
is rounded, and less lost where gains are uneven.
"""

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
from specc.diagnostics.diagnostic import Failed
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Input, Parameter, Value
from specc.ir.ops.quantized import NormFold
from specc.ir.types import Type
from specc.runtime.random_inputs import random_inputs, sizes_for
from specc.transforms import pass_pipeline
from specc.transforms.linear_weights import find_norm_folds
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.norm_folding import FoldedValues, NarrowDtype, RangeCheckedValues
from specc.weights.parameter_values import SeededValues, read_parameter
from specc.weights.weight_rules import RequiredParameter

NORMS = ("norm", "ln_")
TRAINED = {"dates", "digits", "numbers", "xor"}
LATER = pytest.mark.parity


def uneven(spec: str, directory: Path, *, planted: bool) -> Path:
    """Random weights of a spec with gains from 1/64 to 64; `planted`: of a few channels
    alone, and the maps behind them shrink as much, so that the model means the same.
    """
    specc.compile(spec, directory / "drawn.onnx", init=0, set=SMALL_CONFIGS[spec])
    rng = np.random.default_rng(5)
    weights = dict(specc.load(directory / "drawn.onnx").weights())
    for name, value in weights.items():
        if value.ndim == 1 and any(part in name for part in NORMS):
            size = np.exp2(rng.uniform(-6, 6, value.shape))
            few = np.where(np.arange(value.size) < 2, 64, 1)
            weights[name] = (few if planted else size).astype(np.float32)
        # a checkpoint of GPT-2 has its matrices turned over
        if value.ndim == 2 and ".c_" in name:
            weights[name] = np.ascontiguousarray(value.T)
    for name in weights if planted else ():
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            weights[name] = weights[name] / few.astype(np.float32)
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            weights[name] = weights[name] / few.astype(np.float32)
    write_safetensors(directory / "w.safetensors", weights)
    return directory / "w.safetensors"


def compiled(spec: str, out: Path, weights: Path, *given: str) -> int:
    sets = [f"--set={n}={json.dumps(v)}" for n, v in SMALL_CONFIGS[spec].items()]
    args = ["compile", spec, *sets, "--weights", str(weights), *given]
    return main([*args, "--calibration-samples=0", "--force", "-o", str(out)])


def logits(path: Path) -> Array:
    ids = np.arange(12).reshape(2, 6)
    return specc.load(path).run(input_ids=ids)["logits"]


@dataclass(frozen=True)
class Given(SeededValues):
    """Numbers that a test has, a few bytes at a time. Implements `Values`."""

    arrays: dict[str, Array] = field(default_factory=dict)

    def chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        data = self.arrays[name].reshape(-1).view(np.uint8)
        for start in range(0, data.size, 52):
            yield data[start : start + 52].data


def moved(graph: Graph, ties: dict[str, str], weights: dict[str, Array]) -> FoldedValues:
    """The weights with the gains of every norm moved that can be."""
    wanted = {n: RequiredParameter(name=n, shape=w.shape) for n, w in weights.items()}
    base = Given(0, wanted, {}, arrays=weights)
    return FoldedValues(base, find_norm_folds(pass_pipeline.simplify_graph(graph), ties, wanted))


@pytest.mark.parametrize("spec", ["gpt2", pytest.param("llama", marks=LATER)])
def test_nothing_is_lost_by_it(spec: str, tmp_path: Path) -> None:
    """Of maps that keep their bits the results are the same, bit for bit."""
    weights = uneven(spec, tmp_path, planted=False)
    specc.compile(spec, tmp_path / "m.onnx", weights=weights, set=SMALL_CONFIGS[spec])
    model = specc.load(tmp_path / "m.onnx")
    graph, before = model.manifest.graph, dict(model.weights())
    ties = {p.name: p.tied_to for p in graph.parameter_facts.values() if p.tied_to}
    before |= {name: before[root] for name, root in ties.items()}
    folded = moved(graph, ties, before)
    after = before | {n: read_parameter(folded, n, "f32") for n in folded.fold_by_parameter}
    # two of each layer, and the last one where the head is no table
    assert bool(ties) == (spec == "gpt2")
    assert len(folded.folds) == (4 if ties else 5)
    assert not any("wte" in n or "embed_tokens" in n for n in folded.fold_by_parameter)
    inputs = random_inputs(graph, sizes_for(graph, 2), np.random.default_rng(1))
    wanted = specc_numpy.evaluate_graph(graph, inputs, before)
    for name, value in specc_numpy.evaluate_graph(graph, inputs, after).items():
        assert np.array_equal(value, wanted[name])
    # what remains of a gain is near 1, or less where there is a bias beside it
    gains = [after[fold.weight] for fold in folded.folds]
    assert all(abs(g).max() < 1.42 for g in gains)


def test_what_is_kept_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor the norm before it, and the note counts what was moved."""
    weights = uneven("gpt2", tmp_path, planted=False)
    plain, folded = tmp_path / "plain.onnx", tmp_path / "folded.onnx"
    given = ["--quantize", "int8", "--quantize-exclude=h.0.*"]
    assert compiled("gpt2", plain, weights, *given) == 0
    capsys.readouterr()
    assert compiled("gpt2", folded, weights, *given, "--fold-norms") == 0
    assert "folded the weights of 2 norms into 2 linear layers" in capsys.readouterr().err
    before, after = (specc.load(path).weights() for path in (plain, folded))
    changed = {n for n in before if not np.array_equal(before[n], after[n])}
    assert "h.1.ln_1.weight" in changed
    # the head is the table too: the last norm stays
    assert "ln_f.weight" not in changed
    assert not any(name.startswith("h.0.") for name in changed)
    # where all are kept, nothing is left to move a gain into
    given = ["--quantize", "int8", "--quantize-exclude=h.*", "--fold-norms"]
    assert compiled("gpt2", folded, weights, *given) == 0
    told = capsys.readouterr().err
    assert "no norm was folded" in told
    assert "in a loop, where norms are not folded" in told


@pytest.mark.parametrize("fold", [True, pytest.param(False, marks=LATER)])
def test_what_is_kept_stays_in_its_file(
    fold: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linked, with the norms before it, to the bytes of the checkpoint; what rounding or a
    gain has changed lies beside.
    """
    # what is small stands in the model itself
    monkeypatch.setattr("specc_onnx.write.weight_placement.MAX_INLINE_BYTES", 0)
    weights = uneven("llama", tmp_path, planted=False)
    out = tmp_path / "m.onnx"
    given = ["--quantize=int8", "--quantize-exclude=model.layers.0.*"]
    assert compiled("llama", out, weights, *given, *["--fold-norms"][: int(fold)]) == 0
    model = specc.load(out)
    now, stored = model.weights(), model.manifest.stored
    lies = {
        t.name: {e.key: e.value for e in t.external_data}.get("location")
        for t in onnx.load(out, load_external_data=False).graph.initializer
    }
    before = read(weights)
    same = {n for n, w in now.items() if np.array_equal(w, before[n])}
    linked = {n for n in now if lies[stored[n]] == weights.name}
    assert linked == same
    assert {n for n in now if n.startswith("model.layers.0.")} <= linked
    moved_too = {"model.layers.1.input_layernorm.weight", "model.norm.weight"}
    assert moved_too.isdisjoint(linked) == fold


def read(path: Path) -> dict[str, Array]:
    """A checkpoint in f32, read without specc."""
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
def test_less_is_lost_where_gains_are_uneven(kind: str, tmp_path: Path) -> None:
    weights = uneven("llama", tmp_path, planted=True)
    sets = SMALL_CONFIGS["llama"]
    specc.compile("llama", tmp_path / "full.onnx", weights=weights, set=sets)
    wanted = logits(tmp_path / "full.onnx")
    lost = []
    for given in ([], ["--fold-norms"]):
        out = tmp_path / "low.onnx"
        more = {"int4": ["--quantize-all", "--group-size=32"], "int8-weights": ["--group-size=32"]}
        options = ["--quantize", kind, *more.get(kind, ()), *given]
        assert compiled("llama", out, weights, *options) == 0
        assert main(["verify", str(out), "--rounds", "1"]) == 0
        lost.append(float(np.linalg.norm(logits(out) - wanted)))
    assert lost[1] < 0.5 * lost[0]


@pytest.mark.slow
@pytest.mark.parametrize("spec", sorted(SMALL_CONFIGS))
def test_every_spec_means_the_same(spec: str, tmp_path: Path) -> None:
    """In float64, whatever its gains are."""
    seed = None if spec in TRAINED else 0
    specc.compile(spec, tmp_path / "m.onnx", init=seed, set=SMALL_CONFIGS[spec])
    model = specc.load(tmp_path / "m.onnx")
    graph, rng = model.manifest.graph, np.random.default_rng(1)
    ties = {p.name: p.tied_to for p in graph.parameter_facts.values() if p.tied_to}
    weights = {n: np.array(w) for n, w in model.weights().items()}
    for name, value in weights.items():
        # a variance is none below zero
        if value.ndim == 1 and value.dtype == np.float32 and "var" not in name:
            sizes = rng.standard_normal(value.shape) * np.exp2(rng.uniform(-5, 5))
            weights[name] = sizes.astype(np.float32)
    weights |= {name: weights[root] for name, root in ties.items()}
    folded = moved(graph, ties, weights)
    after = weights | {n: read_parameter(folded, n, "f32") for n in folded.fold_by_parameter}
    inputs = random_inputs(graph, sizes_for(graph, 2), rng)
    for name, value in specc_numpy.evaluate_graph(graph, inputs, weights).items():
        made = specc_numpy.evaluate_graph(graph, inputs, after)[name]
        np.testing.assert_allclose(made, value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_a_number_of_no_checkpoint_is_told_as_one(dtype: str) -> None:
    """That a type cannot hold: of a map that has a gain too."""
    graph = normed(lambda b, x, w: {"y": mapped(b, x, w)})
    large = np.full((4, 4), 1e38 if dtype == "f32" else 1e4, np.float32)
    gain = np.full(4, 1024, np.float32)
    folded = moved(graph, {}, {"g": gain, "b": np.zeros_like(gain), "w": large})
    narrow = RangeCheckedValues(folded, {"w": NarrowDtype("f16", "w")}, folded.fold_by_parameter)
    for values, kind in ((folded, dtype), (narrow, "f32")):
        with pytest.raises(Failed) as caught:
            read_parameter(values, "w", kind)
        (told,) = caught.value.diagnostics
        assert told.code == "E0517"
        assert "leave out --fold-norms" in told.helps[0]


# --- which norms ----------------------------------------------------------------------

FOUR = Dim.of(4)
Rest = Callable[[Builder, Value, Value], dict[str, Value]]


def normed(rest: Rest) -> Graph:
    """`rest` of a norm's result and a weight."""
    b = Builder()
    x = b.input("x", Input(Type("f32", (Dim.symbol("n"), FOUR))))
    parts = {"g": (4,), "b": (4,), "w": (4, 4)}
    g, bias, w = (
        b.parameter(Parameter(name=n, type=Type.of("f32", *s), initial="zeros"))
        for n, s in parts.items()
    )
    made = b.one(ops.LayerNorm(1e-5), x, g, bias)
    return b.finish("g", rest(b, made, w))


def mapped(b: Builder, x: Value, w: Value) -> Value:
    return b.one(ops.Linear(), x, w, None)


def turned(b: Builder, w: Value) -> Value:
    return b.one(ops.Transpose((1, 0)), w)


REFUSED: dict[str, Rest] = {
    "it is a result too": lambda b, x, w: {"y": mapped(b, x, w), "x": x},
    "it is added too": lambda b, x, w: {"y": b.one(ops.Arith("add"), x, mapped(b, x, w))},
    "the weight reads more": lambda b, x, w: {
        "y": mapped(b, x, w),
        "z": mapped(b, mapped(b, x, w), w),
    },
    "the weight is a result": lambda b, x, w: {"y": mapped(b, x, w), "w": w},
    "it is what a product is by": lambda b, x, w: {"y": mapped(b, w, x)},
}


@pytest.mark.parametrize("rest", REFUSED.values(), ids=REFUSED)
def test_what_others_read_stays(rest: Rest) -> None:
    assert not find_norm_folds(normed(rest), {}, {"w"})


def test_maps_alone_are_folded_but_not_tied_ones() -> None:
    graph = normed(lambda b, x, w: {"y": mapped(b, x, w)})
    assert find_norm_folds(graph, {}, {"w"}) == (NormFold("g", "b", (("w", False),)),)
    assert not find_norm_folds(graph, {"w": "table"}, {"w"})
    assert not find_norm_folds(graph, {"other": "g"}, {"w"})
    # what is kept stays what it is
    assert not find_norm_folds(graph, {}, set())
    over = normed(lambda b, x, w: {"y": mapped(b, x, turned(b, w))})
    assert find_norm_folds(over, {}, {"w"}) == (NormFold("g", "b", (("w", True),)),)
    both = normed(lambda b, x, w: {"y": mapped(b, x, turned(b, w)), "z": mapped(b, x, w)})
    assert not find_norm_folds(both, {}, {"w"})
