"""Public objects: one-line repr and escaped HTML tables; closing models, threads, and batches."""

import doctest
import pickle
import pydoc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import specc
from specc import api
from specc.api import Model
from specc.diagnostics.render import MAX_REPR_LENGTH, format_repr, render_html_table

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\n" * 9
WRITER = """specc 1
model m "<script>alert(1)</script> & more"
dims batch, n
graph g(ids: int[batch, n]) -> (logits: float[batch, n, 5]) {
  x = embedding(ids, size=5, dim=4) @ e
  h, _ = attend(x, x, x, mask=causal)
  return linear(h, out=5) @ w
}
generate text of ids from logits { stop = 4  max_tokens = 6 }
"""


class TagCounter(HTMLParser):
    """Check that tags are balanced and collect their names."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert not attrs
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_html(text: str) -> None:
    reader = TagCounter()
    reader.feed(text)
    reader.close()
    assert not reader.open
    assert reader.tags <= {"table", "caption", "tr", "th", "td"}
    assert "\x1b" not in text


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("looked at")
    specc.compile(WRITER, made / "package", init=0, graphs="all")
    specc.compile("digits", made / "digits.onnx")
    return made


@pytest.fixture(scope="module")
def model(directory: Path) -> Model:
    return specc.load(directory / "package")


@pytest.fixture(scope="module")
def public_objects(directory: Path) -> list[object]:
    """One object of every public type."""
    package, digits = specc.load(directory / "package"), specc.load(directory / "digits.onnx")
    writing = package.generate([[1, 2]])
    compiled = specc.compile("bert", directory / "b.onnx", init=0, set={"layers": 1, "d": 8, "heads": 2, "hidden": 8, "vocab": 9})  # fmt: skip
    shut = specc.load(directory / "digits.onnx")
    shut.close()
    checked = specc.check("xor")
    return [
        package, digits, shut, digits.selected_model, digits.manifest, digits.input_signature,
        package.package, package.package and package.package.index, package.generator, writing, writing.results()[0][0],
        checked, checked.model, checked.trials[0], specc.check("feedforward"), compiled, digits.manifest.preprocessing, digits.manifest.graph,
        digits.attention(pixel_values=np.zeros((1, 1, 8, 8), np.float32))[1],
    ]  # fmt: skip


def test_repr_is_one_line(public_objects: list[object]) -> None:
    for value in public_objects:
        line = repr(value)
        assert len(line) < 200, line
        assert line.startswith("<specc "), line
        assert line.isprintable()


def test_html_repr_is_escaped(public_objects: list[object]) -> None:
    shown = [v for v in public_objects if "_repr_html_" in dir(v)]
    assert len(shown) >= 7
    for value in shown:
        made = value._repr_html_()  # type: ignore[attr-defined]
        check_html(made)
        assert len(made) < 20_000


def test_hostile_text_is_escaped() -> None:
    assert len(format_repr(HOSTILE)) == MAX_REPR_LENGTH
    assert format_repr(HOSTILE).isprintable()
    made = render_html_table(HOSTILE, [(HOSTILE, HOSTILE), ("empty", "")] * 60)
    check_html(made)
    assert "empty" not in made
    assert "20 more" in made


def test_model_repr(directory: Path) -> None:
    assert repr(specc.load(directory / "digits.onnx")) == (
        "<specc model digits, classify: pixel_values f32[batch, 1, 8, 8] -> logits f32[batch, 10], cpu>"
    )


def test_error_text() -> None:
    text = WRITER.replace("linear(h", "linaer(h")
    with pytest.raises(specc.SpeccError) as failed:
        specc.check(text)
    said = str(failed.value)
    assert "error[E0204]" in said
    assert "--> <spec>:7:10" in said
    assert "^^^^^^" in said
    assert "did you mean `linear`" in said


def test_error_text_of_yaml(tmp_path: Path) -> None:
    """The text equals that of the command line."""
    (tmp_path / "m.yaml").write_text("specc: 1\nmodel: m\nextends: vit\nconfig:\n  lyers: 2\n")
    with pytest.raises(specc.SpeccError) as failed:
        specc.check(tmp_path / "m.yaml")
    told = subprocess.run(
        [sys.executable, "-m", "specc", "check", str(tmp_path / "m.yaml")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert str(failed.value) == told.stderr.rstrip("\n")


def test_help_shows_the_public_names() -> None:
    page = pydoc.plain(pydoc.render_doc(specc))
    for name in ("class SpeccError", "class Model", "check(", "compile(", "load("):
        assert name in page
    assert "_set_seed" not in page
    assert {"SpeccError", "Model", "check", "compile", "load"} <= set(dir(specc))
    with pytest.raises(AttributeError):
        specc.chekc  # type: ignore[attr-defined]  # noqa: B018


def test_docstring_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for module in (specc, api):
        tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS, extraglobs={"specc": specc})
        assert tried.attempted
        assert not tried.failed


def test_missing_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import specc_torch"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.stderr.splitlines()[-1].startswith("ModuleNotFoundError: error[E0801]")
    assert "pip install -e '.[torch]'" in told.stderr


HEAVY = {
    "rich",
    "PIL",
    "pygls",
    "pyarrow",
    "ray",
    "onnx",
    "onnxruntime",
    "torch",
    "numpy",
    "pandas",
    "lark",
}


@pytest.mark.parametrize(
    "words", [["-m", "specc", "--help"], ["-c", "import specc; dir(specc); specc.__version__"]]
)
def test_light_commands_import_no_heavy_module(words: list[str]) -> None:
    told = subprocess.run(
        [sys.executable, "-X", "importtime", *words], capture_output=True, text=True, check=True
    )
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in told.stderr.splitlines()}
    assert "specc" in loaded
    assert not loaded & HEAVY


# ---- A spec as its text


def test_spec_text_equals_spec_file(tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(WRITER)
    specc.compile(WRITER, tmp_path / "text.onnx", init=3)
    specc.compile(tmp_path / "m.specc", tmp_path / "file.onnx", init=3)
    one, other = (specc.load(tmp_path / f"{n}.onnx").weights() for n in ("text", "file"))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[n], other[n]) for n in one)


def test_spec_text_of_an_instance() -> None:
    found = specc.check("specc: 1\nmodel: mine\nextends: vit\nconfig: {layers: 2}\n")
    assert found.model is not None
    assert found.model.config["layers"] == 2


def test_spec_text_resolves_paths_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.specc").write_text(WRITER)
    text = "specc: 1\nmodel: mine\nextends: base\n"
    assert specc.check(text).model is not None
    with pytest.raises(specc.SpeccError, match="E0803"):
        specc.check(text.replace("base", "../base.specc"))


# ---- Closing


def test_model_is_closed_after_with(directory: Path) -> None:
    pixels = np.zeros((1, 1, 8, 8), np.float32)
    with specc.load(directory / "digits.onnx") as model:
        assert model.run(pixel_values=pixels)
    for ask in (
        lambda: model.run(pixel_values=pixels), lambda: model.generate([[1]]), lambda: model.weights(),
        lambda: model.attention(pixel_values=pixels), lambda: model.manifest, lambda: list(model.run([{"pixel_values": pixels}])),
    ):  # fmt: skip
        with pytest.raises(specc.SpeccError, match="E0949"):
            ask()
    assert "closed" in repr(model)
    model.close()


def test_closing_a_package_ends_its_streams(directory: Path) -> None:
    with specc.load(directory / "package") as model:
        whole = model.generate([[1, 2]]).results()[0][0].tokens
        begun = model.generate([[1, 2]])
        next(iter(begun))
    assert begun.results()[0][0].tokens == whole
    with pytest.raises(specc.SpeccError, match="E0949"):
        model.generate([[1]])


def test_model_is_closed_after_an_exception(directory: Path) -> None:
    with pytest.raises(ZeroDivisionError), specc.load(directory / "digits.onnx") as model:
        _ = 1 / 0
    assert model.is_closed


# ---- Batches


def test_batches_are_run_lazily(model: Model) -> None:
    taken = []

    def batches():
        for n in range(3):
            taken.append(n)
            yield {"ids": [[n, 1]]}

    results = model.run(batches())
    assert not taken
    first = next(results)
    assert taken == [0]
    np.testing.assert_array_equal(first["logits"], model.run(ids=[[0, 1]])["logits"])
    assert len(list(results)) == 2


def test_error_names_the_batch(model: Model) -> None:
    results = model.run([{"ids": [[1]]}, {"ids": [[9]]}])
    next(results)
    with pytest.raises(specc.SpeccError, match=r"E0913[\s\S]*batch 2"):
        next(results)


@pytest.mark.parametrize("given", [{"ids": [[1]]}, np.ones((1, 2)), "text", 5, [[1, 2]], None])
def test_invalid_batches(model: Model, given: object) -> None:
    with pytest.raises(specc.SpeccError, match="E0910"):
        model.run(given)  # type: ignore[call-overload]


# ---- Threads


def test_threads_share_a_model(model: Model, directory: Path) -> None:
    """Each thread gets the results and sequences that it gets alone."""
    digits = specc.load(directory / "digits.onnx")
    rng = np.random.default_rng(0)
    pixels = rng.normal(size=(24, 1, 1, 8, 8)).astype(np.float32)
    prompts = [[[int(t) for t in rng.integers(0, 5, 3)]] for _ in range(24)]
    alone = [digits.run(pixel_values=x)["logits"] for x in pixels]
    written = [model.generate(p).results()[0][0].tokens for p in prompts]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            found = list(pool.map(lambda x: digits.run(pixel_values=x)["logits"], pixels))
            assert all(np.array_equal(a, b) for a, b in zip(alone, found, strict=True))
            texts = list(pool.map(lambda p: model.generate(p).results()[0][0].tokens, prompts))
            assert texts == written


def test_concurrent_compile_and_check(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = pool.map(lambda n: specc.compile("xor", tmp_path / f"{n}.onnx"), range(8))
        checked = pool.map(lambda name: specc.check(name), ["rnn_encdec", "xor", "elman"])
        assert len(list(made)) == 8
        assert all(c.trials for c in checked)
    contents = {(tmp_path / f"{n}.onnx").read_bytes() for n in range(8)}
    assert len(contents) == 1


def test_errors_can_be_pickled() -> None:
    with pytest.raises(specc.SpeccError) as failed:
        specc.check("gpt3")
    assert str(pickle.loads(pickle.dumps(failed.value))) == str(failed.value)
