"""The Python API: accepted argument types, and error codes for all others."""

from pathlib import Path

import numpy as np
import pytest
from support.golden_cases import encode_safetensors

import specc
from specc.cli.main import main

SMALL = {
    "vocab": 17,
    "width": 16,
    "heads": 2,
    "hidden": 24,
    "encoder": {"layers": 1},
    "decoder": {"layers": 1},
}


def test_nested_config_values(tmp_path: Path) -> None:
    made = specc.compile("encoder_decoder", tmp_path / "m.onnx", init=0, set=SMALL)
    assert made.model.config["encoder"]["layers"] == 1  # type: ignore[index]


def test_strings_are_expressions() -> None:
    given = SMALL | {
        "decoder": {"layers": 1, "attention": {"mask": "causal & window(8)"}},
        "norm": "pre",
    }
    assert specc.check("encoder_decoder", set=given).model is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, b"4"])
def test_unsupported_config_values(value: object) -> None:
    with pytest.raises(specc.SpeccError, match="E0203"):
        specc.check("vit", set={"d": value})


def test_numpy_config_values() -> None:
    found = specc.check("vit", set={"layers": np.int64(3), "eps": np.float32(0.5)})
    assert found.model is not None
    assert found.model.config["layers"] == 3


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_range(seed: int, tmp_path: Path) -> None:
    with pytest.raises(specc.SpeccError, match="E0525"):
        specc.compile("vit", tmp_path / "m.onnx", init=seed)


def test_init_and_weights_conflict(tmp_path: Path) -> None:
    with pytest.raises(specc.SpeccError, match="E0525"):
        specc.compile("digits", tmp_path / "m.onnx", init=0, weights=tmp_path)


def test_check_result() -> None:
    found = specc.check("gpt2")
    assert found.model is not None
    assert {tuple(t.trial_values) for t in found.trials} >= {("layers",)}


def test_unknown_spec() -> None:
    with pytest.raises(specc.SpeccError) as failed:
        specc.check("gpt3")
    assert failed.value.diagnostics[0].code == "E0222"


WRITES = """
specc 1
model m
dims batch, n
graph g(ids: int[batch, n]) -> (logits: float[batch, n, 5]) {
  return linear(embedding(ids, size=5, dim=4) @ e, out=5) @ w
}
generate text of ids from logits { stop = 4 }
"""


def write_generative_spec(directory: Path) -> Path:
    (directory / "m.specc").write_text(WRITES, encoding="utf-8")
    return directory / "m.specc"


def test_graphs_argument(tmp_path: Path) -> None:
    made = specc.compile(write_generative_spec(tmp_path), tmp_path / "all", init=0, graphs="all")
    assert {"score.onnx", "step.onnx", "generate.onnx"} <= {p.name for p, _ in made.files}
    some = specc.compile(tmp_path / "m.specc", tmp_path / "some", init=0, graphs="step,score")
    assert "generate.onnx" not in {p.name for p, _ in some.files}


@pytest.mark.parametrize(
    "parts", ["scores", ["step", "x"], 5, [5], "", ["all"], b"step", {"step": 1}]
)
def test_invalid_graphs(parts: object, tmp_path: Path) -> None:
    if parts == "":  # an empty string selects no package
        return
    with pytest.raises(specc.SpeccError, match="E0754"):
        specc.compile(write_generative_spec(tmp_path), tmp_path / "x", init=0, graphs=parts)  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("settings", "parts", "code"),
    [({"num_beams": 2}, "step", "E0753"), ({"num_beams": 2}, (), "E0753"), (5, "generate", "E0731"),
     ({"num_beams": 10**9}, "generate", "E0732"), ({"start": 5}, "generate", "E0732"), ({"stop": [1, 5]}, "all", "E0732"),
     ({"num_beams": 2, "temperature": 0.5}, "generate", "E0733"), ({"width": 2}, "all", "E0731")],
)  # fmt: skip
def test_invalid_generation_config(settings: object, parts: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(specc.SpeccError, match=code):
        specc.compile(
            write_generative_spec(tmp_path),
            tmp_path / "x",
            init=0,
            graphs=parts,
            generation_config=settings,
        )  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("argument", "value"),
    [("output", None), ("output", b"x.onnx"), ("spec", 5), ("init", "1"), ("init", 1.0), ("init", True),
     ("opset", "20"), ("opset", 17.0), ("taps", "a"), ("taps", [1]), ("set", [("a", 1)]), ("graph", 5), ("io_names", 3),
     ("target", None), ("weights_as", 1), ("weights_as", "lnik"), ("force", "no"), ("inline_defaults", 1)],
)  # fmt: skip
def test_wrong_argument_types(argument: str, value: object, tmp_path: Path) -> None:
    given: dict[str, object] = {"spec": "xor", "output": tmp_path / "x.onnx", "init": 0}
    given[argument] = value
    with pytest.raises(specc.SpeccError, match=rf"E0820\]: `{argument}`"):
        specc.compile(**given)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [None, 5, b"xor", ["xor"]])
def test_invalid_paths(path: object) -> None:
    for ask in (specc.check, specc.load):
        with pytest.raises(specc.SpeccError, match="E0820"):
            ask(path)  # type: ignore[operator]


def test_numpy_integers(tmp_path: Path) -> None:
    specc.compile("xor", tmp_path / "x.onnx", init=np.int64(3), opset=np.int32(20))
    assert (tmp_path / "x.onnx").exists()


def test_masked_arrays_are_rejected(tmp_path: Path) -> None:
    specc.compile("xor", tmp_path / "x.onnx")
    masked = np.ma.array(np.ones((1, 2), np.float32), mask=[[True, False]])
    with pytest.raises(specc.SpeccError, match=r"E0907.*masked"):
        specc.load(tmp_path / "x.onnx").run(x=masked)


def test_invalid_pad_token(tmp_path: Path) -> None:
    spec = write_generative_spec(tmp_path)
    specc.compile(spec, tmp_path / "x", init=0, graphs="step")
    with pytest.raises(specc.SpeccError, match=r"E0732.*pad"):
        specc.load(tmp_path / "x").generate([[1]], pad=99)


def test_strings_in_a_list_are_config_values(tmp_path: Path) -> None:
    types = ["sliding_attention", "full_attention"]
    small = {
        "vocab": 17,
        "d": 16,
        "heads": 2,
        "kv_heads": 1,
        "layers": 2,
        "hidden": 24,
        "stop": [2],
    }
    made = specc.compile("qwen2", tmp_path / "m.onnx", init=0, set={**small, "layer_types": types})
    assert made.model.config["layer_types"] == types


CLASSIFIER = """specc 1
model m
config { expect "model_type" in (small)  width: int from "hidden_size" = 4 }
dims batch, n
graph base(x: float[batch, n, width]) -> (y: float[batch, n, width]) for SmallModel {
  return linear(x, out=width) @ base
}
graph classes(x: float[batch, n, width]) -> (y: float[batch, n, 2]) for SmallClassifier {
  return linear(linear(x, out=width) @ base, out=2) @ head
}
"""


def test_check_compares_the_weights_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.specc").write_text(CLASSIFIER)
    Path("ck").mkdir()
    config = Path("ck/config.json")
    weights = {"base.weight": [4, 4], "base.bias": [4]}
    Path("ck/model.safetensors").write_bytes(encode_safetensors(weights))
    config.write_text('{"model_type": "small", "architectures": ["SmallModel"], "hidden_size": 4}')
    arguments = ["check", "ck", "--spec", "m.specc"]
    assert main(arguments) == 0
    assert "names and shapes of the weights match the checkpoint\n" in capsys.readouterr().out
    # the head of a graph that the architecture does not name may be new
    assert main([*arguments, "--graph", "classes"]) == 0
    assert "no weights for the head: compile with `--init-missing 0`" in capsys.readouterr().out
    # the head of the default graph is required, as in `specc compile`
    text = config.read_text()
    config.write_text(text.replace("SmallModel", "SmallClassifier"))
    assert main([*arguments, "--graph", "classes"]) == 1
    assert "E0501" in capsys.readouterr().err
    config.write_text(text)
    config.write_text(config.read_text().replace("4}", "6}"))
    assert main(arguments) == 1
    assert "6 according to `hidden_size` in config.json" in capsys.readouterr().err


def test_check_of_a_checkpoint_of_a_built_in_spec(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 1}')
    with pytest.raises(specc.SpeccError, match="E0518"):
        specc.check(tmp_path)
