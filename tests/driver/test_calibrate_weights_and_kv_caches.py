"""int4 weights calibrated on self-generated samples or on a file of inputs."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS

import specc
from specc.cli.main import main
from specc.ir.array import Array
from specc.verification.quantization_error import compute_log_softmax

LLAMA = Path(__file__).parents[2] / "docs" / "demos" / "learned" / "llama"
ALL = ["--quantize", "int4", "--quantize-all", "--group-size", "16"]


def compile_small(out: Path, spec: str, *given: str) -> Path:
    assert (
        main(["compile", spec, *small_config_options(spec), "--init=0", *given, "-o", str(out)])
        == 0
    )
    return out


def small_config_options(spec: str) -> list[str]:
    values = SMALL_CONFIGS[spec].items()
    return [f"--set={name}={json.dumps(value)}" for name, value in values]


def get_recipes(path: Path) -> dict[str, str]:
    rounded = specc.load(path).manifest.quantized
    return {name: one.recipe for name, one in rounded.items() if one.format.bits == 4}


def test_self_generated_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = compile_small(tmp_path / "a.onnx", "gpt2", *ALL, "--calibration-samples", "3")
    assert "GPTQ, calibrated on 3 self-generated samples" in capsys.readouterr().err
    assert set(get_recipes(path).values()) == {"gptq"}
    again = compile_small(tmp_path / "b" / "a.onnx", "gpt2", *ALL, "--calibration-samples", "3")
    assert again.read_bytes() == path.read_bytes()
    assert main(["verify", str(path), "--rounds", "1"]) == 0


@pytest.mark.parity
def test_large_model_generates_samples_with_quantized_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("specc.driver.model_calibration.LARGE_WEIGHT_BYTES", 0)
    path = compile_small(tmp_path / "a.onnx", "gpt2", *ALL, "--calibration-samples", "2")
    said = capsys.readouterr().err
    assert "samples, generated with round-to-nearest weights" in said
    assert set(get_recipes(path).values()) == {"gptq"}
    assert main(["verify", str(path), "--rounds", "1"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ort-cpu", "onnx"])
def test_encoder_decoder_calibration(target: str, tmp_path: Path) -> None:
    given = [
        *ALL,
        "--calibration-samples",
        "2",
        "--target",
        target,
        "--graphs",
        "encode,step,score",
    ]
    path = compile_small(tmp_path / "m", "transformer", *given)
    whole = specc.load(path).manifest.quantized
    found = {one.recipe for one in whole.values() if one.format.bits == 4}
    assert "gptq" in found
    assert main(["verify", str(path), "--rounds", "1"]) == 0


def test_random_weights_default_to_round_to_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = compile_small(tmp_path / "m.onnx", "gpt2", *ALL)
    assert "round-to-nearest: the weights are random" in capsys.readouterr().err
    assert set(get_recipes(path).values()) == {"nearest"}


def test_loop_weights_are_calibrated_on_all_iterations(tmp_path: Path) -> None:
    path = compile_small(tmp_path / "m.onnx", "lstm_lm", *ALL, "--calibration-samples", "2")
    assert set(get_recipes(path).values()) == {"gptq"}
    assert main(["verify", str(path), "--rounds", "1"]) == 0


def test_calibration_data_file(tmp_path: Path) -> None:
    """The same ids as arrays and as JSON lines give the same codes for BERT, which is not
    generative."""
    ids = np.random.default_rng(3).integers(0, 17, (6, 9))
    np.savez(tmp_path / "ids.npz", input_ids=ids)
    lines = [json.dumps({"input_ids": row.tolist()}) for row in ids]
    (tmp_path / "ids.jsonl").write_text("\n".join(lines) + "\n")
    made = {}
    for name in ("ids.npz", "ids.jsonl"):
        given = [*ALL, "--calibration-data", str(tmp_path / name)]
        path = compile_small(tmp_path / f"{name[-3:]}.onnx", "bert", *given)
        assert "gptq" in get_recipes(path).values()
        made[name] = specc.load(path).weights()
    for name, value in made["ids.npz"].items():
        # a batch of eight and eight single sequences may differ in the last bit of a sum
        assert np.mean(value != made["ids.jsonl"][name]) < 0.01


@pytest.mark.slow
def test_gptq_error_of_a_trained_model(tmp_path: Path) -> None:
    """Compare with round-to-nearest on sequences generated with another seed than the calibration
    samples."""
    given = {"quantize": "int4", "group_size": 32}
    for name, options in {
        "full": {},
        "near": {**given, "calibration_samples": 0},
        "gptq": {**given, "calibration_samples": 16},
    }.items():
        specc.compile(LLAMA, tmp_path / f"{name}.onnx", **options)  # type: ignore[arg-type]
    models = {n: specc.load(tmp_path / f"{n}.onnx") for n in ("full", "near", "gptq")}
    start = np.full((4, 1), 0)
    written = models["full"].generate(start, strategy="sample", seed=77, max_tokens=40, stop=[])
    rows = [[0, *row[0].tokens] for row in written.results()]
    logits = {n: m.run(input_ids=rows)["logits"] for n, m in models.items()}
    near, gptq = (compute_divergence(logits["full"], logits[n]) for n in ("near", "gptq"))
    assert gptq < 0.75 * near


def compute_divergence(full: Array, low: Array) -> float:
    p, q = (compute_log_softmax(x.astype(np.float64)) for x in (full, low))
    return float((np.exp(p) * (p - q)).sum(-1).mean())


@pytest.mark.parametrize(
    ("content", "code"),
    sample_sweep(
        [
            ('{"input_ids": [1, 2], "other": [1]}', "E0854"),
            ('{"input_ids": [[[1]]]}', "E0854"),
            ('{"input_ids": [1.5]}', "E0854"),
            ('{"input_ids": [99999]}', "E0854"),
            ('{"input_ids": []}', "E0854"),
            ('{"input_ids": [[], []]}', "E0854"),
            ('{"input_ids": [1, 2]}\n{"input_ids": []}', "E0854"),
            ('{"input_ids": [1, 2]}\n{"ids": [1, 2]}', "E0854"),
            ('{"input_ids": [1, 2], "attention_mask": [0, 0]}', "E0854"),
            ('{"input_ids": null}', "E0854"),
            ("\x93NUMPY", "E0854"),
            ("[1, 2]", "E0854"),
            ("", "E0854"),
            ("{", "E0906"),
            ('{"input_ids": [NaN]}', "E0906"),
            ("\x00\x01", "E0906"),
        ]
    ),
)
def test_invalid_calibration_file(
    content: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ids.jsonl").write_bytes(content.encode("latin-1"))
    given = ["compile", "gpt2", "--init=0", "-o", str(tmp_path / "m.onnx"), *ALL]
    given += [*small_config_options("gpt2"), "--calibration-data", str(tmp_path / "ids.jsonl")]
    assert main(given) == 1
    said = capsys.readouterr().err
    assert code in said
    # a JSON error suggests the format of a line, not that of an array
    assert (code == "E0854") or "each line must be an object such as `{" in said
    assert not list(tmp_path.glob("m*"))


IDS = np.ones((3, 5), np.int64)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
HOLES = np.zeros((2, 2, 8, 8), np.float32)
HOLES[1, 0, 2, 3] = np.nan


@pytest.mark.parametrize(
    ("spec", "arrays", "told"),
    [
        ("bert", {"input_ids": IDS, "attention_mask": MASK}, "all positions of batch element [2]"),
        ("bert", {"input_ids": IDS[0]}, "has 1 axis"),
        ("bert", {"input_ids": IDS * 1.0}, "got float64"),
        ("bert", {"input_ids": IDS[:, :0]}, "`seq` is 0"),
        ("bert", {"input_ids": IDS, "attention_mask": MASK[:2]}, "`batch` is 3"),
        ("bert", {"ids": IDS}, "no input `ids`"),
        ("bert", {}, "missing model input `input_ids`"),
        ("vit", {"pixel_values": HOLES}, "NaN at [1, 0, 2, 3]"),
    ],
)
def test_invalid_calibration_arrays(
    spec: str, arrays: dict[str, Array], told: str, tmp_path: Path
) -> None:
    """The message names the file and the batch element, and no model is written."""
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in" / "x.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(specc.SpeccError, match="E0854") as failed:
        specc.compile(
            spec,
            tmp_path / "m.onnx",
            set=SMALL_CONFIGS[spec],
            init=0,
            quantize="int4",
            quantize_all=True,
            group_size=16,
            calibration_data=tmp_path / "in" / "x.npz",
        )
    title = failed.value.diagnostics[0].title
    assert "x.npz" in title
    assert told in title
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("spec", "given", "code"),
    [
        ("bert", [*ALL, "--calibration-samples", "4"], "E0859"),
        ("gpt2", ["--quantize", "int8", "--calibration-samples", "4"], "E0753"),
        ("gpt2", ["--calibration-samples", "4"], "E0753"),
        ("gpt2", ["--calibration-data", "x.npz"], "E0753"),
        ("gpt2", [*ALL, "--calibration-data", "x.npz", "--calibration-samples", "4"], "E0753"),
        ("gpt2", [*ALL, "--calibration-data", "there/is/none.npz"], "E0802"),
    ],
)
def test_options_without_effect(
    spec: str, given: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["compile", spec, *small_config_options(spec), "--init=0", *given, "-o", "m.onnx"]
    assert main(args) == (3 if code == "E0802" else 1)
    assert code in capsys.readouterr().err


def test_missing_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    given = [
        "compile",
        "gpt2",
        *small_config_options("gpt2"),
        "--init=0",
        *ALL,
        "--calibration-samples",
        "1",
    ]
    assert main([*given, "-o", str(tmp_path / "m.onnx")]) == 3
    assert "E0810" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_temporary_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    compile_small(tmp_path / "m.onnx", "gpt2", *ALL, "--calibration-samples", "1")
    assert not list((tmp_path / "temporary").iterdir())
