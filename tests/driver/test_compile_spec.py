"""Manifest, default inputs, taps and weights of a compiled model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import specc
from specc.artifact.manifest import METADATA_KEY, RandomInitMetadata
from specc.cli.main import main
from specc.driver import output_files_and_compile_report as report
from specc.runtime.single_model_file import read_manifest
from specc.weights.formats.safetensors import write_safetensors

SPEC = """specc 1
model tagger "Tags words"
config { vocab: int = 13  d: int = 8 }
dims batch >= 1, seq >= 1
graph tag(ids: int[batch, seq], keep: keep[batch, seq] right = ids != 0) -> (tags: float[batch, seq, 3]) {
  x = embedding(ids, size=vocab, dim=d) @ words
  x = x + (attention(x, heads=2, mask=visible(keep)) @ attn)
  return linear(x, out=3) @ out
}
"""
IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 0, 0, 0]])


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "tagger.specc"
    path.write_text(SPEC, encoding="utf-8")
    return path


def test_default_input_is_computed(spec: Path, tmp_path: Path) -> None:
    specc.compile(spec, tmp_path / "m.onnx", init=0)
    model = specc.load(tmp_path / "m.onnx")
    filled, given = (model.run(ids=IDS)["tags"], model.run(ids=IDS, keep=IDS != 0)["tags"])
    np.testing.assert_array_equal(filled, given)
    assert np.abs(model.run(ids=IDS, keep=IDS >= 0)["tags"] - given).max() > 1e-3


def test_inline_defaults_remove_the_input(spec: Path, tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside.onnx", tmp_path / "inside.onnx"
    specc.compile(spec, outside, init=0)
    assert main(["compile", str(spec), "--init", "0", "--inline-defaults", "-o", str(inside)]) == 0
    assert [i.name for i in onnx.load(inside).graph.input] == ["ids"]
    np.testing.assert_allclose(
        specc.load(inside).run(ids=IDS)["tags"], specc.load(outside).run(ids=IDS)["tags"], atol=1e-6
    )


def test_manifest_sources(spec: Path, tmp_path: Path) -> None:
    specc.compile(spec, tmp_path / "m.onnx", init=7, set={"d": 16})
    manifest = read_manifest(str(tmp_path / "m.onnx"))
    assert manifest.random_init_metadata == RandomInitMetadata(7)
    assert manifest.config == {"vocab": 13, "d": 16}
    assert SPEC in manifest.sources.values()
    assert manifest.graph.inputs.keys() == {"ids", "keep"}
    assert manifest.graph.input_facts["keep"].padding_side == "right"


def test_manifest_records_checkpoint_size_and_hash(spec: Path, tmp_path: Path) -> None:
    first = tmp_path / "first.onnx"
    specc.compile(spec, first, init=0)
    from_model = specc.load(first).weights()
    checkpoint = tmp_path / "w.safetensors"
    write_safetensors(checkpoint, {n: np.ascontiguousarray(a) for n, a in from_model.items()}, {})
    second = tmp_path / "second.onnx"
    assert (
        main(
            [
                "compile",
                str(spec),
                "--weights",
                str(checkpoint),
                "--hash",
                "full",
                "-o",
                str(second),
            ]
        )
        == 0
    )
    facts = json.loads({p.key: p.value for p in onnx.load(second).metadata_props}[METADATA_KEY])[
        "weights"
    ]["files"]
    assert [f["name"] for f in facts] == ["w.safetensors"]
    assert facts[0]["bytes"] == checkpoint.stat().st_size
    assert len(facts[0]["sha256"]) == 64
    np.testing.assert_array_equal(
        specc.load(second).run(ids=IDS)["tags"], specc.load(first).run(ids=IDS)["tags"]
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_report_says_how_16_bit_weights_are_stored(dtype: str, spec: Path, tmp_path: Path) -> None:
    specc.compile(spec, tmp_path / "m.onnx", init=0)
    weights = specc.load(tmp_path / "m.onnx").weights()
    directory = tmp_path / "weights"
    directory.mkdir()
    checkpoint = directory / "w.safetensors"
    write_safetensors(
        checkpoint, {n: np.ascontiguousarray(a, np.dtype(dtype)) for n, a in weights.items()}, {}
    )

    def list_remarks(out: Path, **options: Any) -> list[str]:
        return [*specc.compile(spec, out, weights=checkpoint, **options).remarks]

    short = {"bfloat16": "bf16", "float16": "f16"}.get(dtype)
    stored = [
        f"the {dtype} weights of the checkpoint are stored as float32 (twice the size); "
        f"`--dtype {short}` stores matrices as {dtype}"
    ]
    out = tmp_path / "out" / "m.onnx"
    out.parent.mkdir()
    assert list_remarks(out) == (stored if short else [])
    assert list_remarks(out, dtype=short or "f32") == []
    assert list_remarks(out, quantize="int8", quantize_exclude=["attn.*"]) == []
    linked = list_remarks(directory / "out.onnx", weights_as="link")
    assert [line.partition(" are external data")[1] for line in linked] == [" are external data"]


def test_report_gives_the_reason_of_a_large_copy(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specc.compile(spec, tmp_path / "m.onnx", init=0)
    (tmp_path / "weights").mkdir()
    checkpoint = tmp_path / "weights" / "w.safetensors"
    write_safetensors(checkpoint, specc.load(tmp_path / "m.onnx").weights(), {})
    out = tmp_path / "out" / "a.onnx"
    out.parent.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(report, "MIN_REPORTED_COPY", 1)
        (remark,) = specc.compile(spec, out, weights=checkpoint).remarks
    assert not specc.compile(spec, out, weights=checkpoint).remarks
    assert remark == (
        f"0.0 GB of weights were copied, because `{checkpoint}` is outside the output directory; "
        "with `--weights-as link`, weights in the directory of the model are used in place"
    )


def test_run_reports_random_weights(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specc.compile(spec, tmp_path / "m.onnx", init=3)
    assert main(["run", str(tmp_path / "m.onnx"), "[[1, 2, 3]]"]) == 0
    assert "random (seed 3)" in capsys.readouterr().err


def test_inputs_come_from_arrays_and_json(spec: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    specc.compile(spec, model, init=0)
    np.save(tmp_path / "ids.npy", IDS)
    np.savez(tmp_path / "all.npz", ids=IDS, keep=IDS != 0)
    (tmp_path / "ids.json").write_text(json.dumps({"ids": IDS.tolist()}), encoding="utf-8")
    want = specc.load(model).run(ids=IDS)["tags"]
    for given in ("ids.npy", "all.npz", "ids.json"):
        out = tmp_path / f"{given}.out.npz"
        assert main(["run", str(model), str(tmp_path / given), "-o", str(out)]) == 0, given
        np.testing.assert_array_equal(np.load(out)["tags"], want)


def test_unmatched_tap(spec: Path, tmp_path: Path) -> None:
    with pytest.raises(specc.SpeccError, match="E0408"):
        specc.compile(spec, tmp_path / "m.onnx", init=0, taps=["decoder.*"])
    assert not (tmp_path / "m.onnx").exists()


def test_missing_weights_suggests_three_options(spec: Path, tmp_path: Path) -> None:
    with pytest.raises(specc.SpeccError) as failed:
        specc.compile(spec, tmp_path / "m.onnx")
    (found,) = failed.value.diagnostics
    assert found.code == "E0523"
    assert len(found.helps) == 3


def test_nan_in_linked_weights(spec: Path, tmp_path: Path) -> None:
    specc.compile(spec, tmp_path / "m.onnx", init=0, set={"vocab": 40000})
    weights = {n: np.array(a) for n, a in specc.load(tmp_path / "m.onnx").weights().items()}
    weights["words.weight"][3, 1] = np.nan
    write_safetensors(tmp_path / "w.safetensors", weights, {})
    with pytest.raises(specc.SpeccError, match="E0507") as failed:
        specc.compile(
            spec, tmp_path / "linked.onnx", weights=tmp_path / "w.safetensors", set={"vocab": 40000}
        )
    assert "words.weight" in "".join(failed.value.diagnostics[0].notes)
    assert not (tmp_path / "linked.onnx").exists()
