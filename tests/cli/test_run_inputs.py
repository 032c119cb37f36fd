"""Arguments of `specc run` against the table in docs/inputs.md, and input types of the Python
API."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specc
from specc.api import Model
from specc.cli.main import main
from specc.cli.run_inputs import parse_input_arguments
from specc.diagnostics.diagnostic import SpeccError

TEXT = """specc 1
model m

dims batch, n

reading {
  ids = text(bytes())
}

graph g(ids: int[batch, n], keep: keep[batch, n] = ids >= 0) -> (y: float[batch, n, 2]) {
  y = embedding(ids, size=256, dim=2) @ table
  return y
}
"""
PICTURE = """specc 1
model p

dims batch

reading {
  pixels = image(size=[4, 4], channels=1, scale=1/255)
}

graph g(pixels: float[batch, 1, 4, 4]) -> (y: float[batch, 1, 4, 4]) {
  y = pixels * 2.0
  return y
}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = tmp_path_factory.mktemp("given")
    (directory / "m.specc").write_text(TEXT)
    specc.compile(directory / "m.specc", directory / "m.onnx", init=0)
    return specc.load(directory / "m.onnx")


def encode_bytes(text: str) -> list[int]:
    return list(text.encode())


TABLE: list[tuple[list[str], Any]] = [
    (["hello"], [encode_bytes("hello")]),
    (["ids=hello"], [encode_bytes("hello")]),
    (["7"], [encode_bytes("7")]),
    (["a file"], [encode_bytes("a file")]),
    (["taken"], [encode_bytes("taken")]),
    (["[sic] a text"], [encode_bytes("[sic] a text")]),
    (["[1, 2"], [encode_bytes("[1, 2")]),
    (["{}"], [encode_bytes("{}")]),
    (["x.json is a file"], [encode_bytes("x.json is a file")]),
    (["[1, 2, 3]"], [[1, 2, 3]]),
    (["[[1, 2, 3], [4, 5, 6]]"], [[1, 2, 3], [4, 5, 6]]),
    (['["ab", "cd"]'], [encode_bytes("ab"), encode_bytes("cd")]),
    (["a.json"], [[1, 2]]),
    (["texts.json"], [encode_bytes("ab"), encode_bytes("cd")]),
    (["named.json"], [[9, 8]]),
    (["a.npy"], [[5, 6, 7]]),
    (["ids=a.npy"], [[5, 6, 7]]),
    (["a.npz"], [[5, 6, 7]]),
    (["@lines"], [encode_bytes("one"), encode_bytes("two")]),
    (["-"], [encode_bytes("in1"), encode_bytes("in2")]),
    (["ab", "cd", "[1, 2]"], [encode_bytes("ab"), encode_bytes("cd"), [1, 2]]),
    (["ids=ab", "ids=cd"], [encode_bytes("ab"), encode_bytes("cd")]),
    (["abc", "d"], [encode_bytes("abc"), [*encode_bytes("d"), 0, 0]]),
    (["absent.json"], "E0802"),
    (["see absent.npy"], "E0802"),
    (["@absent"], "E0802"),
    (["-", "-"], "E0910"),
    (["[1, \"a\"]"], "E0906"),
    (["idz=hello"], "E0910"),
    (["@bad"], "E0112"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "wanted"), TABLE, ids=lambda v: " ".join(map(str, v))[:40] if v else ""
)
def test_arguments_follow_the_table_of_the_docs(
    words: list[str], wanted: Any, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("taken", "hello", "7", "[1, 2, 3]", "-"):
        Path(name).write_text("a file that happens to lie there")
    Path("a.json").write_text("[1, 2]")
    Path("texts.json").write_text('["ab", "cd"]')
    Path("named.json").write_text(json.dumps({"ids": [[9, 8]]}))
    np.save("a.npy", np.array([5, 6, 7]))
    np.savez("a.npz", np.array([[5, 6, 7]]))
    Path("lines").write_bytes(b"one\r\ntwo\n\n")
    Path("bad").write_bytes(b"\xff\xfe\xff")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"in1\nin2\n")))
    if isinstance(wanted, str):
        with pytest.raises(SpeccError, match=wanted) as failed:
            parse_input_arguments(model.input_signature, words)
        assert wanted != "E0802" or len(failed.value.diagnostics[0].helps) == 2
        return
    found = parse_input_arguments(model.input_signature, words).inputs
    assert found["ids"].tolist() == wanted
    if len({len(w) for w in words}) > 1 and words == ["abc", "d"]:
        assert found["keep"].tolist() == [[True] * 3, [True, False, False]]


class Device:
    """An array that supports only DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Column:
    """A column of a data frame, which supports only `__array__`."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.values, object if isinstance(self.values[0], str) else dtype)


def test_python_array_likes(model: Model) -> None:
    ids = np.array([[1, 2], [3, 4]])
    wanted = model.run(ids=ids)["y"]
    for given in (
        Device(ids),
        Column(ids.tolist()),
        [ids[0], ids[1]],
        [Column([1, 2]), [3, 4]],
        [[*ids[0]], [*ids[1]]],
    ):
        assert np.array_equal(model.run(ids=given)["y"], wanted)
    assert np.array_equal(
        model.run(ids=Column(["ab", "cd"]))["y"], model.run(ids=["ab", "cd"])["y"]
    )
    with pytest.raises(SpeccError, match="E0907"):
        model.run(ids=Column([[1, 2], [3]]))


def test_pil_images_equal_image_files(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    (tmp_path / "p.specc").write_text(PICTURE)
    specc.compile(tmp_path / "p.specc", tmp_path / "p.onnx", init=0)
    model = specc.load(tmp_path / "p.onnx")
    paths = [str(tmp_path / f"{n}.png") for n in range(6)]
    for n, path in enumerate(paths):
        pillow.fromarray(np.full((8, 8, 3), 40 * n, np.uint8)).save(path)
    batch = parse_input_arguments(model.input_signature, paths).inputs["pixels"]
    assert batch.shape == (6, 1, 4, 4)
    assert np.allclose(batch[:, 0, 0, 0] * 255, [40 * n for n in range(6)], atol=1e-3)
    opened = [pillow.open(path) for path in paths]
    assert np.array_equal(model.run(pixels=opened)["y"], model.run(pixels=batch)["y"])
    assert np.array_equal(model.run(pixels=opened[3])["y"], model.run(pixels=batch[3:4])["y"])


def test_example_for_a_missing_input_omits_the_generated_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = str(tmp_path / "dates")
    specc.compile("dates", package, graphs="all")
    assert main(["run", package]) == 1
    example = f'specc run {package} "a text"`'
    assert example in capsys.readouterr().err
    assert main(["run", package, "--graph", "score"]) == 1
    assert f'{example[:-1]} target="[[1, 2, 3]]"`' in capsys.readouterr().err


GENERATOR = """specc 1
model g

dims batch, n

reading {
  ids = text(bytes())
}

graph g(ids: int[batch, n]) -> (logits: float[batch, n, 256]) {
  return linear(embedding(ids, size=256, dim=2) @ table, out=256) @ head
}

generate text of ids from logits { max_tokens = 2 }
"""


def test_notes_explain_generation_and_text_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hello.txt").write_text("hello")
    for name, text in (("m", TEXT), ("g", GENERATOR)):
        Path(f"{name}.specc").write_text(text)
        specc.compile(f"{name}.specc", f"{name}.onnx", init=0)

    def run(*words: str) -> str:
        assert main(["run", *words]) == 0
        return capsys.readouterr().err

    assert "add `--max-tokens N`" in run("g.onnx", "hello")
    for words in (["m.onnx", "hello"], ["g.onnx", "a", "--max-tokens", "1"]):
        assert "--max-tokens N" not in run(*words)
    assert "--max-tokens N" not in run("g.onnx", "a", "-o", "out.npz")
    assert "to read the lines of the file, write `@hello.txt`" in run("m.onnx", "hello.txt")
    assert "hello.txt" not in run("m.onnx", "@hello.txt")


def test_text_for_a_model_without_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(TEXT.replace("reading {\n  ids = text(bytes())\n}\n", ""))
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", init=0)
    with specc.load(tmp_path / "m.onnx") as model, pytest.raises(SpeccError) as caught:
        model.run(ids="hello")
    assert "text(bytes())" in str(caught.value)
