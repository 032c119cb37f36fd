"""A package of a text model contains its tokenizer file and uses it."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "tokenizers", reason="requires the package tokenizers: pip install -e '.[text]'"
)
from support.tokenizer_files import LINES, train_tokenizer
from tokenizers import Tokenizer

import specc
import specc.runtime.model_package
from specc.cli.main import main

PROMPTS = [LINES[0], "a fox"]
LONG = {"max_tokens": 24, "stop": [], "strategy": "sample", "temperature": 5.0, "seed": 3}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint directory with a tokenizer, and a package and a standalone generator
    compiled from it; the checkpoint is deleted.
    """
    found = tmp_path_factory.mktemp("text")
    checkpoint = found / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text('{"model_type": "gpt2"}')
    (checkpoint / "tokenizer.json").write_text(train_tokenizer("byte_bpe"))
    vocab = Tokenizer.from_str(train_tokenizer("byte_bpe")).get_vocab_size()
    sizes = {"vocab": vocab, "d": 16, "heads": 2, "layers": 1, "context": 64, "stop": [vocab - 1]}
    given: dict[str, Any] = {"config": checkpoint, "set": sizes, "init": 0}
    specc.compile("gpt2", found / "package", graphs=["score", "step"], **given)
    specc.compile(
        "gpt2",
        found / "one.onnx",
        graphs=["generate"],
        generation_config={"strategy": "sample"},
        **given,
    )
    (checkpoint / "tokenizer.json").unlink()
    return found


def test_the_package_contains_the_tokenizer(directory: Path) -> None:
    assert json.loads((directory / "package" / "tokenizer.json").read_text()) == json.loads(
        train_tokenizer("byte_bpe")
    )
    assert (
        "tokenizer" in specc.runtime.model_package.open_package(directory / "package").index.extras
    )


def test_texts_of_different_lengths_generate_texts(directory: Path) -> None:
    model = specc.load(directory / "package")
    together = [row[0] for row in model.generate(PROMPTS, max_tokens=12).results()]
    alone = [model.generate(p, max_tokens=12).results()[0][0] for p in PROMPTS]
    assert [r.tokens for r in together] == [r.tokens for r in alone]
    spoken = Tokenizer.from_str(train_tokenizer("byte_bpe"))
    assert [r.text for r in together] == [spoken.decode(list(r.tokens)) for r in together]


def test_streamed_text_equals_the_result(directory: Path) -> None:
    model = specc.load(directory / "package")
    pieces = list(model.generate(PROMPTS, **LONG).pieces())
    whole = [row[0].text for row in model.generate(PROMPTS, **LONG).results()]
    assert ["".join(p[n] for p in pieces) for n in range(2)] == whole
    assert sum(bool(p[0]) for p in pieces) > 3, "it comes in pieces"


def test_generated_text_ends_before_a_stop_string(directory: Path) -> None:
    model = specc.load(directory / "package")
    ((whole,),) = model.generate(PROMPTS[1], **LONG).results()
    assert whole.text
    stop = whole.text[len(whole.text) // 2 :][:2]
    ((cut,),) = model.generate(PROMPTS[1], stop_strings=stop, **LONG).results()
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.complete


def test_a_standalone_generator_reads_the_same_texts(directory: Path) -> None:
    said = {"max_tokens": 12, "seed": 9}
    texts = [
        specc.load(directory / n).generate(PROMPTS[0], **said, **more).results()[0][0].text
        for n, more in SAMPLED
    ]
    assert texts[0] == texts[1]


SAMPLED: list[tuple[str, dict[str, Any]]] = [("one.onnx", {}), ("package", {"strategy": "sample"})]


def test_the_command_streams_text(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(directory / "package"), PROMPTS[1], "--max-tokens", "8"]) == 0
    ((want,),) = specc.load(directory / "package").generate(PROMPTS[1], max_tokens=8).results()
    assert want.text is not None
    assert capsys.readouterr().out.rstrip("\n") == want.text.rstrip("\n")


def test_a_replaced_tokenizer_is_refused(directory: Path, tmp_path: Path) -> None:
    place = directory / "package" / "tokenizer.json"
    own = place.read_text()
    place.write_text(own.replace("a", "b", 1))
    try:
        with pytest.raises(specc.SpeccError, match="E0942"):
            specc.load(directory / "package")
    finally:
        place.write_text(own)
