"""A sentence-transformers directory compiles to what the library computes: compared with the
equations of its modules, and with the library if it is installed.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sentence_transformer_dirs import ACTIVATIONS, LEGACY_POOLING, SentenceTransformerDir
from support.text_checkpoints import FAMILIES, TextCheckpoint

import specc

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
TEXTS = [
    "The quick brown fox jumps over the lazy dog, and so on.",
    "attention",
    "What you GET; is café 123?",
]
PROMPTS = (("query", "the quick: "), ("doc", ""))
DECODER = TextCheckpoint(
    "Qwen3",
    "byte_bpe",
    {"num_key_value_heads": 2, "head_dim": 8, "eos_token_id": 2, "bos_token_id": 0},
)
CASES = {
    **{mode: SentenceTransformerDir(modes=(mode,)) for mode in LEGACY_POOLING},
    **{f"old {m}": SentenceTransformerDir(modes=(m,), legacy=True, separate_encoder=True) for m in LEGACY_POOLING},
    "side by side": SentenceTransformerDir(modes=("weightedmean", "cls", "max"), normalize=False),
    "old side by side": SentenceTransformerDir(modes=("mean", "cls", "max"), legacy=True),
    **{
        name.rpartition(".")[2]: SentenceTransformerDir(dense=((10, name),)) for name in ACTIVATIONS
    },
    "two dense": SentenceTransformerDir(
        dense=((24, "torch.nn.modules.activation.Tanh"),
               (7, "torch.nn.modules.linear.Identity")), normalize=False,
    ),
    "residual": SentenceTransformerDir(
        dense=((24, "torch.nn.modules.activation.Tanh"),
               (7, "torch.nn.modules.activation.Tanh")), residual=True,
    ),
    "layer norm": SentenceTransformerDir(layer_norm=True, normalize=False),
    "truncated": SentenceTransformerDir(max_length=8),
    "lower": SentenceTransformerDir(lower=True, family=FAMILIES[8]),
    "prompts": SentenceTransformerDir(prompts=PROMPTS, default="query"),
    **{
        f"without prompt {mode}": SentenceTransformerDir(
            prompts=PROMPTS, include_prompt=False, modes=(mode,)
        )
        for mode in LEGACY_POOLING
    },
    **{
        f"family {f.name}": SentenceTransformerDir(family=f, modes=("mean", "lasttoken"))
        for f in (*FAMILIES[1:], DECODER)
    },
}  # fmt: skip


def compiled(directory: Path) -> specc.Model:
    specc.compile(str(directory), directory / "m.onnx")
    return specc.load(directory / "m.onnx", threads=1)


def assert_near(ours: Any, wanted: Any) -> None:
    """Check a relative error of at most 1e-5 of the largest value."""
    assert ours.shape == wanted.shape
    assert np.abs(ours - wanted).max() <= 1e-5 * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_embeddings_of_the_library(case: SentenceTransformerDir, tmp_path: Path) -> None:
    case.save(tmp_path)
    ours = compiled(tmp_path)
    prompts = dict(case.prompts)
    usual = prompts.get(case.default or "", "")
    wanted = case.encode(tmp_path, TEXTS, usual)
    made = ours.run(text=TEXTS)
    assert_near(made["sentence_embedding"], wanted)
    assert_near(np.array(ours.run(text=TEXTS[0]).predictions), wanted[:1])
    assert made.truncated == (case.max_length is not None) * 2
    for name, prompt in case.prompts:
        made = ours.run(text=TEXTS, prompt_name=name)["sentence_embedding"]
        assert_near(made, case.encode(tmp_path, TEXTS, prompt))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equations_match_the_library(case: SentenceTransformerDir, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    case.save(tmp_path)
    theirs = library.SentenceTransformer(str(tmp_path), device="cpu")
    if theirs.tokenizer.pad_token is None:
        theirs.tokenizer.pad_token = "<pad>"
    usual = dict(case.prompts).get(case.default or "", "")
    assert_near(theirs.encode(TEXTS), case.encode(tmp_path, TEXTS, usual))
    for name, prompt in case.prompts:
        made = theirs.encode(TEXTS, prompt_name=name)
        assert_near(made, case.encode(tmp_path, TEXTS, prompt))


ODD_TEXTS = [*TEXTS, "", "  spaced  ", "[MASK] Fox [SEP] <s>", "日本 😀 zebra", "the dog " * 30]
FIXED = {
    "padding": {
        "strategy": {"Fixed": 20},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    },
    "truncation": {"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0},
}
BERT = {"tokenizer_class": "BertTokenizerFast"}
ODD: dict[str, tuple[SentenceTransformerDir, dict[str, dict[str, Any]]]] = {
    "padding of tokenizer.json": (SentenceTransformerDir(), {"tokenizer.json": FIXED}),
    "an older name of the settings": (
        SentenceTransformerDir(max_length=6),
        {"sentence_bert_config.json": {}, "sentence_xlm-roberta_config.json": {"max_seq_length": 6}},
    ),
    "lower case": (SentenceTransformerDir(lower=True, max_length=9), {}),
    "lower case, Unigram": (SentenceTransformerDir(lower=True, family=FAMILIES[2], prompts=PROMPTS), {}),
    "truncated on the left": (SentenceTransformerDir(max_length=6), {"tokenizer_config.json": {"truncation_side": "left"}}),
    "length of the tokenizer": (SentenceTransformerDir(), {"tokenizer_config.json": {"model_max_length": 7}}),
    "arguments of the tokenizer": (
        SentenceTransformerDir(max_length=9),
        {"sentence_bert_config.json": {"processor_kwargs": {"model_max_length": 6, "truncation_side": "left"}}},
    ),
    "arguments of the call": (
        SentenceTransformerDir(max_length=9),
        {"sentence_bert_config.json": {"processing_kwargs": {"text": {"max_length": 6}}}},
    ),
    "one token": (SentenceTransformerDir(max_length=1), {}),
    "cased": (SentenceTransformerDir(), {"tokenizer_config.json": {**BERT, "do_lower_case": False}}),
    "accents": (
        SentenceTransformerDir(),
        {"tokenizer_config.json": {**BERT, "strip_accents": False, "tokenize_chinese_chars": False}},
    ),
}  # fmt: skip
"""Directories with files changed or added: those that make a difference if ignored."""


@pytest.mark.parametrize("name", ODD)
def test_files_next_to_the_weights_are_followed(name: str, tmp_path: Path) -> None:
    """Compared with the library, which reads the same files."""
    library = pytest.importorskip("sentence_transformers")
    case, files = ODD[name]
    case.save(tmp_path)
    for file, changes in files.items():
        path = tmp_path / file
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**content, **changes})) if changes else path.unlink()
    theirs = library.SentenceTransformer(str(tmp_path), device="cpu")
    ours = compiled(tmp_path)
    for text in ODD_TEXTS:
        assert_near(ours.run(text=[text])["sentence_embedding"], theirs.encode([text]))
    for prompt, _ in case.prompts:
        wanted = theirs.encode(ODD_TEXTS[:2], prompt_name=prompt)
        assert_near(ours.run(text=ODD_TEXTS[:2], prompt_name=prompt)["sentence_embedding"], wanted)


@pytest.mark.parametrize(
    "activation", ["torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity", ""]
)
def test_a_cross_encoder(activation: str, tmp_path: Path) -> None:
    """A head with one label and the activation that its files name."""
    import torch

    model, tokenizer = FAMILIES[0].save("ForSequenceClassification", tmp_path, num_labels=1)
    if activation:
        config = json.loads((tmp_path / "config.json").read_text())
        config["sentence_transformers"] = {"activation_fn": activation}
        (tmp_path / "config.json").write_text(json.dumps(config))
    pairs = [("what is it?", TEXTS[0]), ("who", TEXTS[1])]
    given = tokenizer(
        [a for a, _ in pairs], [b for _, b in pairs], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        logits = model(**given).logits[:, 0]
    wanted = logits if activation.endswith("Identity") else logits.sigmoid()
    made = compiled(tmp_path).run(text=pairs).predictions
    assert_near(np.array([one[0]["score"] for one in made]), wanted.numpy())
    try:
        import sentence_transformers as library
    except ImportError:
        return
    theirs = library.CrossEncoder(str(tmp_path), device="cpu")
    assert_near(theirs.predict(pairs), wanted.numpy())
