"""Tokenizer files in compiled models, from the spec to text inputs."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.tokenizer_files import LINES, train_tokenizer

import specc
from specc.artifact.manifest import Manifest
from specc.cli.main import main
from specc.diagnostics.diagnostic import SpeccError
from specc.preprocessing.preprocessing_records import ArrayConfig
from specc.preprocessing.text_codec import decode_text, encode_text_to_ids
from specc.preprocessing.tokenizer_files import MAX_BYTES, MAX_EMBEDDED_BYTES, HfTokenizer

pytest.importorskip(
    "tokenizers", reason="requires the package tokenizers: pip install -e '.[text]'"
)


SPEC = """specc 1
model words

dims batch, n

graph g(ids: int[batch, n]{inputs}) -> (scores: float[batch, n, 200], count: int[batch, n]) {{
  x = embedding(ids, size=500, dim=4) @ table
  return linear(x, out=200) @ out, ids
}}

reading {{
  ids = text(tokenizer({path}){options})
  show count = text(tokenizer({path}))
}}
"""


def write_spec(
    directory: Path, path: str = '"words.json"', inputs: str = "", options: str = "", size: int = 0
) -> Path:
    data = json.loads(train_tokenizer("wordpiece"))
    data["model"]["vocab"] |= {f"{n:x}" * 40: 200 + n for n in range(size)}
    (directory / "words.json").write_text(json.dumps(data))
    (directory / "words.specc").write_text(SPEC.format(path=path, inputs=inputs, options=options))
    return directory / "words.specc"


def get_diagnostic(action):
    with pytest.raises(SpeccError) as caught:
        action()
    return caught.value.diagnostics[0]


def test_small_tokenizer_is_embedded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = specc.compile(write_spec(tmp_path), tmp_path / "m.onnx", init=0)
    assert [p.name for p, _ in made.files] == ["m.onnx"]
    (tmp_path / "words.json").unlink()
    model = specc.load(tmp_path / "m.onnx")
    record = model.manifest.preprocessing.get_input_config("ids")
    assert isinstance(record, HfTokenizer)
    assert decode_text(model.run(ids="Attention is")["count"][0], record) == "attention is"
    assert main(["run", str(tmp_path / "m.onnx"), "Attention is all you need"]) == 0
    assert capsys.readouterr().out == "attention is all you need\n"


def test_large_tokenizer_is_stored_under_its_hash(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    made = specc.compile(write_spec(tmp_path, size=9_000), out / "m.onnx", init=0)
    names = [p.name for p, _ in made.files]
    (beside,) = [p for p in out.iterdir() if p.name.endswith(".tokenizer.json")]
    assert beside.name in names
    assert beside.stat().st_size > MAX_EMBEDDED_BYTES
    assert beside.read_bytes() == (tmp_path / "words.json").read_bytes()
    (record,) = {r for _, r in specc.load(out / "m.onnx").manifest.preprocessing.inputs}
    assert encode_text_to_ids("fox", record).tolist()[0] == 2
    assert beside.name == f"m-{record.file.sha256[:16]}.tokenizer.json"
    beside.write_bytes(beside.read_bytes().replace(b"[UNK]", b"[UNX]"))
    assert get_diagnostic(lambda: specc.load(out / "m.onnx")).code == "E0942"
    beside.unlink()
    assert get_diagnostic(lambda: specc.load(out / "m.onnx")).code == "E0942"


def test_failed_compile_writes_no_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()

    def raise_interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Manifest, "serialize", raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        specc.compile(write_spec(tmp_path, size=9_000), out / "m.onnx", init=0)
    assert not list(out.iterdir())


def test_tokenizer_options(tmp_path: Path) -> None:
    specc.compile(
        write_spec(tmp_path, options=", special=false, start=7, end=8"), tmp_path / "m.onnx", init=0
    )
    made = specc.load(tmp_path / "m.onnx").run(ids="fox")["count"][0].tolist()
    assert (made[0], made[-1]) == (7, 8)
    assert 2 not in made
    bad = write_spec(tmp_path, options=", unknown=3")
    assert get_diagnostic(lambda: specc.compile(bad, tmp_path / "m.onnx", init=0)).code == "E0203"


@pytest.mark.parametrize(("side", "left"), [("", False), (" left", True), (" right", False)])
def test_padding_side(tmp_path: Path, side: str, left: bool) -> None:
    inputs = f", keep: keep[batch, n]{side}"
    specc.compile(write_spec(tmp_path, inputs=inputs), tmp_path / "m.onnx", init=0)
    model = specc.load(tmp_path / "m.onnx")
    given = model.selected_model.prepare_inputs({"ids": ["fox", "the quick brown fox"]})
    keep = given["keep"]
    assert keep.tolist()[1] == [True] * keep.shape[1]
    assert keep[0, -1] == left
    assert keep[0, 0] != left
    record = model.manifest.preprocessing.get_input_config("ids")
    assert isinstance(record, HfTokenizer)
    assert given["ids"][0][keep[0]].tolist() == encode_text_to_ids("fox", record).tolist()


def test_batches_without_a_padding_mask(tmp_path: Path) -> None:
    specc.compile(write_spec(tmp_path), tmp_path / "m.onnx", init=0)
    model = specc.load(tmp_path / "m.onnx")
    assert model.run(ids=["fox", "fox"])["count"].shape[0] == 2
    assert get_diagnostic(lambda: model.run(ids=["fox", "the quick brown fox"])).code == "E0912"
    assert get_diagnostic(lambda: model.run(ids=["fox", 3])).code == "E0906"


SMALL = {"vocab": 400, "d": 16, "heads": 2, "layers": 1, "hidden": 24, "context": 64}


def test_gpt2_with_a_tokenizer_next_to_the_weights(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "gpt2"}')
    (directory / "tokenizer.json").write_text(train_tokenizer("byte_bpe"))
    made = specc.compile("gpt2", tmp_path / "m.onnx", config=directory, set=SMALL, init=0)
    assert any("tokenizer.json" in remark for remark in made.remarks)
    model = specc.load(tmp_path / "m.onnx")
    given = model.selected_model.prepare_inputs({"input_ids": [LINES[0], "a fox"]})
    assert given["attention_mask"][:, -1].all(), "texts that grow are padded on the left"
    assert not given["attention_mask"][1, 0]
    whole = model.run(input_ids=[LINES[0], "a fox"])["logits"][1, -1]
    np.testing.assert_allclose(whole, model.run(input_ids="a fox")["logits"][0, -1], atol=1e-5)


def test_gpt2_without_a_tokenizer(tmp_path: Path) -> None:
    specc.compile("gpt2", tmp_path / "m.onnx", set=SMALL, init=0)
    model = specc.load(tmp_path / "m.onnx")
    assert model.manifest.preprocessing.get_input_config("input_ids") == ArrayConfig()
    assert model.run(input_ids=[[1, 2, 3]])["logits"].shape == (1, 3, 400)
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "gpt2"}')
    made = specc.compile("gpt2", tmp_path / "m.onnx", config=directory, set=SMALL, init=0)
    assert any("expects token ids" in remark for remark in made.remarks)


def test_tokenizer_outside_the_spec_directory(tmp_path: Path) -> None:
    directory = tmp_path / "spec"
    directory.mkdir()
    (tmp_path / "words.json").write_text(train_tokenizer("wordpiece"))
    spec = write_spec(directory, path='"../words.json"')
    assert get_diagnostic(lambda: specc.compile(spec, tmp_path / "m.onnx", init=0)).code == "E0803"
    (directory / "inside.json").symlink_to(tmp_path / "words.json")
    spec = write_spec(directory, path='"inside.json"')
    assert get_diagnostic(lambda: specc.compile(spec, tmp_path / "m.onnx", init=0)).code == "E0803"


@pytest.mark.parametrize(
    "path", ['"circle.json"', f'"{"x" * 5000}"', '"nothing.json"', '"large.json"', '"."']
)
def test_unreadable_tokenizer_files(tmp_path: Path, path: str) -> None:
    (tmp_path / "circle.json").symlink_to(tmp_path / "circle.json")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    diagnostic = get_diagnostic(
        lambda: specc.compile(write_spec(tmp_path, path=path), tmp_path / "m.onnx", init=0)
    )
    assert diagnostic.code == "E0802"
    assert diagnostic.primary is not None
