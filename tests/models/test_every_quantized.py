"""Every built-in spec with quantized weights: outputs agree with the dequantized weights and with
integer products. A few specs by default; all, in every format and for both targets, under `slow`.
"""

import json
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from ml_dtypes import bfloat16
from support.onnx_sessions import open_silent_session, save_with_hash
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS
from support.verification_lines import list_model_lines, list_opened_lines

import specc
from specc.api import Model
from specc.cli.main import main
from specc.ir.array import Array
from specc.runtime.inference_model import open_compiled_model
from specc.runtime.random_inputs import make_random_inputs
from specc.weights.formats.safetensors import write_safetensors
from specc_onnx.lower.onnx_targets import ONNX_TYPE_CODES

TRAINED = {"dates", "digits", "numbers", "xor"}
NOTHING = {"kernel_regression", "kv_lookup"}
"""Specs without a matrix."""
KINDS = ("int8", "int8-weights", "int4")
FEW = [
    ("gpt2", "ort-cpu", "int8"),
    ("gpt2", "ort-cpu", "int4"),
    ("bert", "onnx", "int8-weights"),
    ("rnnsearch", "ort-cpu", "int8"),
    ("lstm_lm", "onnx", "int8"),
    ("bilstm_tagger", "ort-cpu", "int8-weights"),
]


def save(path: Path, weights: Mapping[str, Array]) -> None:
    write_safetensors(path, {n: np.ascontiguousarray(w) for n, w in weights.items()})


def compiled(spec: str, path: Path, **options: object) -> Path:
    seed = None if spec in TRAINED else 0
    specc.compile(spec, path, set=SMALL_CONFIGS[spec], init=seed, **options)
    return path


@pytest.mark.parametrize(("spec", "target", "kind"), FEW)
def test_some_quantized_specs_agree_with_the_reference(
    spec: str, target: str, kind: str, tmp_path: Path
) -> None:
    path = compiled(spec, tmp_path / "m.onnx", target=target, quantize=kind)
    lines = list(list_model_lines(specc.load(path).selected_model, rounds=2))
    assert all("agree" in line for line in lines)
    assert any("products" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", ["ort-cpu", "onnx"])
@pytest.mark.parametrize("spec", sorted(SMALL_CONFIGS.keys() - NOTHING))
def test_every_quantized_spec_agrees_with_the_reference(
    spec: str, target: str, kind: str, tmp_path: Path
) -> None:
    path = compiled(spec, tmp_path / "m.onnx", target=target, quantize=kind)
    assert list(list_model_lines(specc.load(path).selected_model, rounds=2))


@pytest.mark.parametrize("spec", ["gpt2", pytest.param("rnnsearch", marks=pytest.mark.slow)])
def test_all_graphs_of_a_package_share_quantized_weights(spec: str, tmp_path: Path) -> None:
    parts = ["score", "encode", "step"]
    path = compiled(spec, tmp_path / "m", graphs=parts, quantize="int8")
    lines = list(list_opened_lines(open_compiled_model(str(path)), seed=0, rounds=1))
    assert {line.split(":")[0] for line in lines} >= {"score", "step"}
    assert sum("products" in line for line in lines) >= 2
    data = sum(f.stat().st_size for f in path.glob("*.data"))
    plain = compiled(spec, tmp_path / "plain", graphs=parts)
    assert data < 0.7 * sum(f.stat().st_size for f in plain.glob("*.data"))


def test_a_quantized_sequence_in_a_padded_batch_equals_itself_alone(tmp_path: Path) -> None:
    """Integer results do not depend on padding or on other batch elements."""
    model = specc.load(compiled("bert", tmp_path / "m.onnx", quantize="int8"))
    rng = np.random.default_rng(2)
    ids = rng.integers(0, 17, (3, 9))
    keep = np.arange(9) < np.array([9, 6, 4])[:, None]
    together = run(model, ids, keep)
    for n, length in enumerate((9, 6, 4)):
        alone = run(model, ids[n : n + 1, :length], keep[n : n + 1, :length])
        far = np.abs(alone[0] - together[n, :length]).max()
        assert far <= 1e-5 * np.abs(together).max()


def run(model: Model, ids: Array, keep: Array) -> Array:
    return model.run(input_ids=ids, attention_mask=keep)["prediction_logits"]


@pytest.mark.parametrize("size", [1e-25, 1e30, 1e35])
def test_weights_of_any_magnitude_are_quantized(size: float, tmp_path: Path) -> None:
    """Weights whose squares overflow or underflow float32; E0517 refuses larger ones."""
    plain = specc.load(compiled("feedforward", tmp_path / "p.onnx"))
    weights = {
        n: w * np.float32(size / np.abs(w).max()) for n, w in plain.weights().items() if w.ndim == 2
    }
    given = plain.weights() | weights
    save(tmp_path / "w.safetensors", given)
    specc.compile(
        "feedforward",
        tmp_path / "q.onnx",
        set=SMALL_CONFIGS["feedforward"],
        weights=tmp_path / "w.safetensors",
        quantize="int8",
    )
    low = specc.load(tmp_path / "q.onnx")
    for name, weight in weights.items():
        gone = weight.astype(np.float64) - low.weights()[name]
        told = low.manifest.quantized[name]
        lost = np.linalg.norm(gone) / np.linalg.norm(weight.astype(np.float64))
        assert told.error == pytest.approx(float(lost), rel=1e-3)
        assert told.max_error == pytest.approx(float(np.abs(gone).max()), rel=1e-3)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("spec", "kind"), [("llama", "int4"), ("llama", "int8-weights"), ("rnnsearch", "int8-weights")]
)
def test_a_quantized_generator_agrees_with_its_dequantized_weights(
    spec: str, kind: str, tmp_path: Path
) -> None:
    """With standard operators only and weights outside the loop: it generates the tokens of a model
    with dequantized float32 weights. (An encoder is outside the loop too, where ONNX Runtime
    quantizes activations in blocks.)
    """
    options = {"graphs": ["score", "generate"], "target": "onnx", "set": SMALL_CONFIGS[spec]}
    low = {"init": 0, "quantize": kind, "quantize_all": kind == "int4"}
    specc.compile(spec, tmp_path / "q", **low, **options)
    save(tmp_path / "w.safetensors", specc.load(tmp_path / "q").weights())
    specc.compile(spec, tmp_path / "p", weights=tmp_path / "w.safetensors", **options)
    written = []
    for directory in ("q", "p"):
        session = open_silent_session(onnx.load(tmp_path / directory / "generate.onnx"))
        ids = {i.name: np.array([[5, 6, 7]]) for i in session.get_inputs() if i.shape}
        given = {"max_tokens": np.array(12)} | ids
        written.append(session.run(None, given))
    for a, b in zip(*written, strict=True):
        assert a.size
        assert np.allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "target", "told"),
    [
        ("int4", "onnx", True),
        pytest.param("int8", "onnx", False, marks=pytest.mark.parity),
        pytest.param("int4", "ort-cpu", False, marks=pytest.mark.parity),
    ],
)
def test_a_quantized_generator_reports_groups_without_speedup(
    kind: str, target: str, told: bool, tmp_path: Path
) -> None:
    """The message is true: products in its loop read float32 values."""
    out = tmp_path / "g.onnx"
    given = {"quantize": kind, "quantize_all": kind == "int4", "calibration_samples": 0}
    small = {"init": 0, "set": SMALL_CONFIGS["llama"], "target": target, "graphs": "generate"}
    made = specc.compile("llama", out, **given, **small)
    assert told == any("dequantized to float32" in line for line in made.remarks)
    (loop,) = (n for n in onnx.load(out).graph.node if n.op_type == "Loop")
    (body,) = (a.g for a in loop.attribute if a.name == "body")
    products = {"MatMulNBits", "MatMulInteger", "MatMulIntegerToFloat", "QGemm"}
    assert told == products.isdisjoint(n.op_type for n in body.node)


def test_quantization_is_deterministic(tmp_path: Path) -> None:
    for directory in ("a", "b"):
        compiled("gpt2", tmp_path / directory / "m.onnx", quantize="int4")
    a, b = ((tmp_path / directory / "m.onnx").read_bytes() for directory in ("a", "b"))
    assert a == b


def test_precision_changes_no_inputs_and_no_results(tmp_path: Path) -> None:
    plain = specc.load(compiled("gpt2", tmp_path / "p.onnx"))
    low = specc.load(compiled("gpt2", tmp_path / "q.onnx", quantize="int4"))
    for which in ("inputs", "outputs"):
        a, b = (getattr(m.selected_model.session, which) for m in (plain, low))
        assert [(s.name, s.shape) for s in a.values()] == [(s.name, s.shape) for s in b.values()]
    assert low.weights().keys() == plain.weights().keys()
    given = make_random_inputs(
        plain.manifest.graph, {"batch": 2, "seq": 5}, np.random.default_rng(0)
    )
    a, b = (m.run(**given)["logits"] for m in (plain, low))
    assert 0 < np.abs(a - b).max() < 0.2 * np.abs(a).max()


@pytest.mark.parametrize(
    ("field", "value"),
    sample_sweep(
        [
            ("bits", 4),
            ("bits", 5),
            ("bits", True),
            ("block", 16),
            ("block", -1),
            ("layout", "rows"),
            ("layout", "heaps"),
            ("turned", 1),
            ("scales", "no such thing"),
            ("scales", "w"),
            ("error", "much"),
        ]
    ),
)
def test_an_invalid_precision_record_is_refused(field: str, value: object, tmp_path: Path) -> None:
    path = compiled("gpt2", tmp_path / "m.onnx", quantize="int8")
    model = onnx.load(path)
    (text,) = [p for p in model.metadata_props if p.key == "specc"]
    data = json.loads(text.value)
    name = next(n for n in data["precision"]["rounded"] if "mlp.c_fc" in n)
    data["precision"]["rounded"][name][field] = (
        data["initializers"][name] if value == "w" else value
    )
    text.value = json.dumps(data)
    save_with_hash(model, path)
    with pytest.raises(specc.SpeccError, match=r"E0917|E0925"):
        specc.load(path).weights()


def test_a_precision_record_of_an_unknown_weight_is_refused(tmp_path: Path) -> None:
    path = compiled("gpt2", tmp_path / "m.onnx", quantize="int8")
    model = onnx.load(path)
    (text,) = [p for p in model.metadata_props if p.key == "specc"]
    data = json.loads(text.value)
    rounded = data["precision"]["rounded"]
    rounded[next(n for n in data["initializers"] if "ln_f.weight" in n)] = next(
        iter(rounded.values())
    )
    text.value = json.dumps(data)
    save_with_hash(model, path)
    with pytest.raises(specc.SpeccError, match="E0917"):
        specc.load(path)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_matrices_are_stored_in_sixteen_bits(dtype: str, tmp_path: Path) -> None:
    """Vectors, such as norm weights, and scales are not."""
    sizes = {}
    for given in (["--dtype", "f32"], ["--dtype", dtype]):
        path = tmp_path / f"{given[1]}.onnx"
        small = [f"--set={name}={value}" for name, value in SMALL_CONFIGS["gpt2"].items()]
        assert main(["compile", "gpt2", *small, "--init=0", *given, "-o", str(path)]) == 0
        assert all(
            "agree" in line for line in list_model_lines(specc.load(path).selected_model, rounds=2)
        )
        kinds = {t.data_type for t in onnx.load(path).graph.initializer if len(t.dims) > 1}
        sizes[given[1]] = sum(w.nbytes for w in specc.load(path).weights().values())
        assert kinds == {ONNX_TYPE_CODES[given[1]]}
    assert sizes[dtype] < 0.7 * sizes["f32"]


def test_linked_weights_have_the_requested_dtype(tmp_path: Path) -> None:
    weights = {"head.weight": np.ones((3, 4), bfloat16), "head.bias": np.ones(3, bfloat16)}
    write_safetensors(tmp_path / "w.safetensors", weights)
    spec = tmp_path / "m.specc"
    spec.write_text(HEAD)
    for dtype, linked in (("bf16", True), ("f32", False), ("f16", False)):
        path = tmp_path / f"{dtype}.onnx"
        given = ["--weights", str(tmp_path / "w.safetensors"), "--dtype", dtype]
        given += ["--weights-as", "link" if linked else "copy"]
        assert main(["compile", str(spec), *given, "-o", str(path)]) == 0
        (w,) = [
            t
            for t in onnx.load(path, load_external_data=False).graph.initializer
            if len(t.dims) == 2
        ]
        assert w.data_type == ONNX_TYPE_CODES[dtype]
        assert (w.external_data[0].value == "w.safetensors") == linked


HEAD = """\
specc 1
model m

dims batch, n

graph g(x: float[batch, n, 4]) -> (y: float[batch, n, 3]) {
  y = linear(x, out=3) @ head
  return y
}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "least"), [("int8", 1.0), ("int4", 0.99), ("int4 everywhere", 0.99)]
)
@pytest.mark.parametrize("name", ["dates", "numbers", "digits"])
def test_quantized_demos_keep_their_accuracy(
    name: str, kind: str, least: float, tmp_path: Path
) -> None:
    """On test data the accuracy equals that without quantization."""
    if name == "digits":
        pytest.importorskip("sklearn")
        pytest.importorskip("PIL")
    demos = script()
    full, low = (
        demos.score_demo(name, tmp_path / each, demos.DEMO_OPTIONS[each])
        for each in ("float32", kind)
    )
    assert low.right >= least * full.right
    assert low.size < full.size


def script() -> ModuleType:
    """Return the evaluation script of the demo."""
    path = Path(__file__).parents[2] / "docs" / "demos" / "measure_quantization.py"
    spec = spec_from_file_location("demo_quantization", path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
