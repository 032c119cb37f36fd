"""`specc run` of models with a task: text arguments to predictions, as lines and as JSON."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep

pytest.importorskip(
    "tokenizers", reason="requires the package tokenizers: pip install -e '.[text]'"
)
from support.json_schema import list_schema_violations
from support.tokenizer_files import train_tokenizer

import specc
from specc.cli.main import main
from specc.drawing.png import encode_png
from specc.preprocessing.tasks import TASKS

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "command-line.schema.json").read_text(encoding="utf-8"))
SMALL = {
    "vocab_size": 200, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20,
    "max_position_embeddings": 40,
}  # fmt: skip
HEADS = {
    "text-classification": "ForSequenceClassification",
    "next-sentence-prediction": "ForNextSentencePrediction",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
    "fill-mask": "ForMaskedLM",
    "multiple-choice": "ForMultipleChoice",
}
WORDS = {
    "text-classification": ["the quick fox", "attention"],
    "next-sentence-prediction": ["text=the quick fox", "text_pair=the lazy dog"],
    "token-classification": ["the quick brown fox", "jumps"],
    "question-answering": ["what jumps?", "the quick brown fox jumps"],
    "fill-mask": ["the [MASK] fox", "[MASK] and [MASK]"],
    "multiple-choice": ["what jumps?", "the fox", "attention"],
    "zero-shot-image-classification": ["a.png", "fox", "dog", "attention"],
    "sentence-similarity": ["the quick fox", "the lazy dog", "--similarity"],
}


def train_masked_tokenizer() -> str:
    """Return a WordPiece tokenizer.json with a mask token."""
    data = json.loads(train_tokenizer("wordpiece"))
    token = {**data["added_tokens"][0], "id": 199, "content": "[MASK]"}
    data["added_tokens"].append(token)
    data["model"]["vocab"]["[MASK]"] = 199
    data["model"]["vocab"] = {word: i for word, i in data["model"]["vocab"].items() if i < 199} | {
        "[MASK]": 199
    }
    return json.dumps(data)


def write_checkpoint(directory: Path, config: dict[str, Any]) -> Path:
    """Write a directory with a config.json and a tokenizer.json, without weights."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(train_masked_tokenizer())
    return directory


def compile_task_model(task: str, directory: Path) -> str:
    """Compile a model with random weights for a task and return its path."""
    config: dict[str, Any] = {"model_type": "bert", **SMALL}
    config["architectures"] = [f"Bert{HEADS.get(task, 'Model')}"]
    config["id2label"] = {"0": "bad", "1": "good", "2": "neither"}
    more = ["--graph", "sentence_embeddings"] if task == "sentence-similarity" else []
    if task.startswith("zero-shot"):
        side = {k: SMALL[k] for k in SMALL if k != "max_position_embeddings"}
        config = {
            "model_type": "clip",
            "architectures": ["CLIPModel"],
            "text_config": {**side, "max_position_embeddings": 40, "eos_token_id": 3},
            "vision_config": {
                **{k: v for k, v in side.items() if k != "vocab_size"},
                "image_size": 8,
                "patch_size": 4,
            },
        }
    path = str(directory / "m.onnx")
    source = str(write_checkpoint(directory / "ck", config))
    assert main(["compile", source, "--init", "0", "-o", path, "-q", *more]) == 0
    return path


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    (tmp_path / "a.png").write_bytes(encode_png(pixels))
    return tmp_path


def run_json(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the JSON of `specc run`, validated against the schema."""
    capsys.readouterr()
    assert main(["run", *words, "--format", "json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert not list(list_schema_violations(found, SCHEMA, SCHEMA)), found
    return found


@pytest.mark.parametrize("task", sample_sweep([*TASKS]))
def test_json_of_every_task(task: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON result conforms to the schema and equals the result of the Python API."""
    path = compile_task_model(task, directory)
    found = run_json([path, *WORDS[task]], capsys)
    assert found["task"] == task
    capsys.readouterr()
    assert main(["run", path, *WORDS[task]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == found["lines"]
    bad = json.loads(json.dumps(found))
    bad["predictions"] = [{"labels": []}]
    assert list(list_schema_violations(bad, SCHEMA, SCHEMA)), "the schema takes anything"


def test_arguments_files_and_lists_agree(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = compile_task_model("text-classification", directory)
    texts = ["the quick fox", "attention is all"]
    Path("texts.txt").write_text("\n".join(texts) + "\n")
    Path("texts.json").write_text(json.dumps(texts))
    expected = run_json([path, *texts], capsys)["predictions"]
    for words in (
        ["@texts.txt"],
        ["texts.json"],
        [json.dumps(texts)],
        [f"text={texts[0]}", f"text={texts[1]}"],
    ):
        assert run_json([path, *words], capsys)["predictions"] == expected
    model = specc.load(path)
    assert model.run(text=texts).predictions == expected  # type: ignore[attr-defined]
    with pytest.raises(specc.SpeccError) as failed:
        model.run(texts)  # type: ignore[call-overload]
    assert 'model.run(text=["a text"])' in failed.value.diagnostics[0].helps


def test_text_pairs(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Encode two texts as one sequence with token type ids."""
    path = compile_task_model("text-classification", directory)
    first, second = ["the fox", "a dog"], ["jumps", "over it"]
    pairs = [[a, b] for a, b in zip(first, second, strict=True)]
    records = [{"text": a, "text_pair": b} for a, b in pairs]
    Path("a.txt").write_text("\n".join(first))
    Path("b.txt").write_text("\n".join(second))
    Path("pairs.json").write_text(json.dumps(records))
    expected = run_json([path, json.dumps(pairs)], capsys)["predictions"]
    assert len(expected) == 2
    for words in (["text=@a.txt", "text_pair=@b.txt"], ["pairs.json"], [json.dumps(records)]):
        assert run_json([path, *words], capsys)["predictions"] == expected
    apart = run_json([path, *first], capsys)["predictions"]
    assert apart != expected


def test_empty_second_text(directory: Path) -> None:
    """As in transformers, an empty second text of a single pair is ignored."""
    model = specc.load(compile_task_model("text-classification", directory))
    alone = model.run(text="the fox").predictions
    assert model.run(text="the fox", text_pair="").predictions == alone
    assert model.run(text="the fox", text_pair=None).predictions == alone
    assert model.run(text=["the fox"], text_pair=[""]).predictions != alone


def test_records_without_a_second_text(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each record is encoded on its own: it does not get the second text of another record."""
    path = compile_task_model("text-classification", directory)
    records = [{"text": "the fox"}, {"text": "a dog", "text_pair": "jumps"}, {"text": "over", "text_pair": ""}]  # fmt: skip
    model = specc.load(path)
    expected = [model.run(**record).predictions[0] for record in records]
    assert model.run(text=records).predictions == expected
    mixed = ["the fox", ["a dog", "jumps"], "over"]
    for words in (records, mixed):
        found = run_json([path, json.dumps(words)], capsys)["predictions"]
        for one, other in zip(found, expected, strict=True):
            assert [fact["label"] for fact in one] == [fact["label"] for fact in other]
            np.testing.assert_allclose(
                [fact["score"] for fact in one], [fact["score"] for fact in other], rtol=1e-5
            )


def test_token_ids_as_input(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = compile_task_model("text-classification", directory)
    found = run_json([path, "[[2, 5, 3]]"], capsys)
    assert "task" not in found
    assert found["results"]["logits"]["shape"] == [1, 3]


@pytest.mark.parametrize(
    ("task", "words", "code"),
    sample_sweep([
        ("text-classification", ["text=a", "text=b", "text_pair=c", "text_pair=d", "text_pair=e"], "E0912"),
        ("text-classification", ["a", "--aggregation-strategy", "first"], "E0753"),
        ("text-classification", ["a", "--similarity"], "E0753"),
        ("text-classification", ["[{\"texts\": \"a\"}]"], "E0906"),
        ("text-classification", ["@nothing.txt"], "E0802"),
        ("question-answering", ["what?"], "E0910"),
        ("question-answering", ["what?", "that", "more"], "E0910"),
        ("fill-mask", ["no mask"], "E0906"),
        ("sentence-similarity", ["a", "--prompt-name", "query"], "E0910"),
        ("zero-shot-image-classification", ["a.png", "fox", "--hypothesis-template", "x"], "E0753"),
    ]),
)  # fmt: skip
def test_errors(
    task: str, words: list[str], code: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = compile_task_model(task, directory)
    assert main(["run", path, *words]) != 0
    assert f"error[{code}]" in capsys.readouterr().err


def test_a_model_that_takes_patches_classifies_image_files(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SigLIP 2 takes image files of its task, and arrays of patches."""
    side = {k: SMALL[k] for k in SMALL if k != "max_position_embeddings"}
    text = {**side, "max_position_embeddings": 40, "projection_size": side["hidden_size"]}
    vision = {k: v for k, v in side.items() if k != "vocab_size"} | {"patch_size": 4}
    config = {"model_type": "siglip2", "architectures": ["Siglip2Model"]}
    config |= {"text_config": text, "vision_config": vision | {"num_patches": 16}}
    path = str(directory / "siglip2.onnx")
    source = str(write_checkpoint(directory / "siglip2", config))
    assert main(["compile", source, "--init", "0", "-o", path, "-q"]) == 0
    image = str(directory / "white.png")
    pytest.importorskip("PIL.Image").new("RGB", (16, 8), "white").save(image)
    found = run_json([path, "--image", image, "fox", "dog"], capsys)["predictions"]
    model = specc.load(path)
    scores = model.run(image=image, candidate_labels=["fox", "dog"])
    assert scores.predictions == found  # type: ignore[attr-defined]
    patches = np.ones((1, 4, 48), np.float32)
    made = model.run(input_ids=["fox", "dog"], pixel_values=patches, spatial_shapes=[[2, 2]])
    assert made["logits_per_image"].shape == (1, 2)


@pytest.mark.parametrize("seed", sample_sweep(range(6)))
def test_choices_of_a_model_without_a_padding_mask(seed: int, directory: Path) -> None:
    """The logits of a choice do not depend on the length of the other choices."""
    rng = np.random.default_rng(seed)
    words = ["the", "quick", "brown", "fox", "jumps", "lazy", "dog"]
    config = {**SMALL, "model_type": "fnet", "architectures": ["FNetForMultipleChoice"]}
    specc.compile(str(write_checkpoint(directory / "ck", config)), "m.onnx", init=seed)
    model = specc.load("m.onnx")
    texts = [" ".join(rng.choice(words, rng.integers(1, 8))) for _ in range(1 + seed)]
    found = model.run(text="what jumps?", choices=texts)
    alone = [model.run(text="what jumps?", choices=[text])["logits"] for text in texts]
    np.testing.assert_allclose(found["logits"], np.concatenate(alone, axis=1), atol=1e-6)
    assert {p["label"] for p in found.predictions[0]} == set(texts)
