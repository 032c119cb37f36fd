"""Text in, labels out: what `model.run(text=…)` predicts is what transformers.pipeline
gives for the same directory.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from support.published_models import randomize_weights
from support.text_checkpoints import FAMILIES, TOKENIZERS, TextCheckpoint

import specc

pytestmark = pytest.mark.parity
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Attention, doesn't it?",
    "naïve café: 1 2 3 and 日本 zebra",
]
PAIRS = [("Attention is all you need", "the lazy dog"), ("quick?", "What you get; is")]
NAMES = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}
NER = {"id2label": NAMES, "label2id": {v: k for k, v in NAMES.items()}}
CLASSES = {0: "bad", 1: "good", 2: "neither"}
THREE = {"id2label": CLASSES, "label2id": {v: k for k, v in CLASSES.items()}}
CONTEXT = "The quick brown fox jumps over the lazy dog, and attention is all you need. "


def assert_same(ours: Any, theirs: Any, at: str = "$") -> None:
    """Check equal strings, and numbers within 1e-5."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), at
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{at}.{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), at
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{at}[{i}]")
    elif isinstance(theirs, str | int):
        assert ours == theirs, at
    else:
        assert abs(ours - float(theirs)) <= 1e-5, at


def compiled(directory: Path) -> specc.Model:
    specc.compile(str(directory), directory / "m.onnx")
    return specc.load(directory / "m.onnx", threads=1)


def pipeline(task: str, model: Any, tokenizer: Any, **more: Any) -> Any:
    return transformers.pipeline(task, model=model, tokenizer=tokenizer, **more)


def named(family: TextCheckpoint) -> str:
    return family.name


@pytest.mark.parametrize("family", FAMILIES, ids=named)
def test_text_classification(family: TextCheckpoint, tmp_path: Path) -> None:
    theirs = pipeline(
        "text-classification", *family.save("ForSequenceClassification", tmp_path, **THREE)
    )
    ours = compiled(tmp_path)
    wanted = theirs(TEXTS, top_k=None)
    made = ours.run(text=TEXTS)
    assert_same(made.predictions, wanted)
    assert made.task == "text-classification"
    assert made["logits"].shape == (3, 3)
    assert_same(ours.run(text=TEXTS[1]).predictions, wanted[1:2])
    pairs = [{"text": a, "text_pair": b} for a, b in PAIRS]
    wanted = theirs(pairs, top_k=None)
    assert_same(ours.run(text=PAIRS).predictions, wanted)
    first, second = zip(*PAIRS, strict=True)
    made = ours.run(text=list(first), text_pair=list(second), top_k=1)
    assert_same(made.predictions, [one[:1] for one in wanted])


UNMASKED = TextCheckpoint("FNet", "wordpiece", {"type_vocab_size": 2}, segments=True)
"""A family that cannot mask padding: the texts of a list are run one by one."""


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize(
    "check",
    [
        "test_text_classification",
        "test_token_classification",
        "test_question_answering",
        "test_multiple_choice",
    ],
)
def test_lists_without_a_padding_mask(check: str, tmp_path: Path) -> None:
    globals()[check](UNMASKED, tmp_path)


@pytest.mark.parametrize(
    "problem", [{"num_labels": 1}, {"problem_type": "multi_label_classification"},
                {"problem_type": "regression"}, {}], ids=str
)  # fmt: skip
def test_function_to_apply(problem: dict[str, Any], tmp_path: Path) -> None:
    """The function in config.json: sigmoid, softmax or none; a cross-encoder has one label."""
    theirs = pipeline(
        "text-classification", *FAMILIES[0].save("ForSequenceClassification", tmp_path, **problem)
    )
    wanted = theirs([{"text": a, "text_pair": b} for a, b in PAIRS], top_k=None)
    ours = compiled(tmp_path)
    assert_same(ours.run(text=PAIRS).predictions, wanted)
    for function in ("sigmoid", "softmax", "none"):
        wanted = theirs(TEXTS, top_k=None, function_to_apply=function)
        made = ours.run(text=TEXTS, function_to_apply=function)
        assert_same(made.predictions, wanted)


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("family", FAMILIES, ids=named)
def test_token_classification(family: TextCheckpoint, tmp_path: Path) -> None:
    theirs = pipeline(
        "token-classification", *family.save("ForTokenClassification", tmp_path, **NER)
    )
    ours = compiled(tmp_path)
    for strategy in ("none", "simple", "first", "average", "max"):
        wanted = theirs(TEXTS, aggregation_strategy=strategy)
        made = ours.run(text=TEXTS, aggregation_strategy=strategy)
        assert_same(made.predictions, wanted, strategy)


@pytest.mark.parametrize("family", FAMILIES, ids=named)
def test_fill_mask(family: TextCheckpoint, tmp_path: Path) -> None:
    model, tokenizer = family.save("ForMaskedLM", tmp_path)
    theirs = pipeline("fill-mask", model, tokenizer)
    mask = tokenizer.mask_token
    texts = [f"The {mask} brown fox", f"{mask} is all you {mask}, and so is the dog"]
    made = compiled(tmp_path).run(text=texts).predictions
    assert_same(made, [theirs(text) for text in texts])


@pytest.mark.parametrize("family", FAMILIES, ids=named)
def test_question_answering(family: TextCheckpoint, tmp_path: Path) -> None:
    """Compared with the equations of the pipeline of transformers 4; transformers 5 has none."""
    model, tokenizer = family.save("ForQuestionAnswering", tmp_path)
    ours = compiled(tmp_path)
    question = "What is it?"
    for context, longest in ((CONTEXT, 384), (CONTEXT * 3, 64)):
        made = ours.run(question=question, context=context, max_seq_len=longest)
        wanted = answered(model.double(), tokenizer, question, context, longest)
        assert_same(made.predictions, [wanted])
    both = ours.run(question=[question, "Who?"], context=[CONTEXT, TEXTS[0]])
    each = [
        ours.run(question=q, context=c).predictions[0]
        for q, c in ((question, CONTEXT), ("Who?", TEXTS[0]))
    ]
    assert_same(both.predictions, each)


def answered(
    model: Any, tokenizer: Any, question: str, context: str, longest: int
) -> dict[str, Any]:
    """Return the best answer: softmax over the context and [CLS], products of start and end."""
    found = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=longest,
        stride=min(longest // 2, 128),
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    best: dict[str, Any] = {"score": -1.0}
    for i, ids in enumerate(found["input_ids"]):
        names = [n for n in ("token_type_ids", "attention_mask") if n in found]
        given = {n: torch.tensor([found[n][i]]) for n in names}
        with torch.no_grad():
            made = model(input_ids=torch.tensor([ids]), **given)
        inside = np.array([s == 1 for s in found.sequence_ids(i)])
        counted = inside | (np.array(ids) == tokenizer.cls_token_id)

        def softmax(logits: Any, counted: Any = counted, inside: Any = inside) -> Any:
            scores = np.where(counted, logits[0].numpy(), -10000.0)
            powers = np.exp(scores - scores.max())
            return powers / powers.sum() * inside

        start, end = softmax(made.start_logits), softmax(made.end_logits)
        table = np.tril(np.triu(np.outer(start, end)), 14)
        first, last = np.unravel_index(table.argmax(), table.shape)
        if table[first, last] > best["score"]:
            encoding = found[i]
            low = encoding.word_to_chars(encoding.token_to_word(int(first)), 1)[0]
            high = encoding.word_to_chars(encoding.token_to_word(int(last)), 1)[1]
            score = float(table[first, last])
            best = {"score": score, "start": low, "end": high}
            best["answer"] = context[low:high]
    return best


@pytest.mark.parametrize("family", FAMILIES, ids=named)
def test_multiple_choice(family: TextCheckpoint, tmp_path: Path) -> None:
    """Each choice is the second text of a pair; softmax over the choices."""
    model, tokenizer = family.save("ForMultipleChoice", tmp_path)
    choices = ["the lazy dog", "attention is all you need", "a fox"]
    logits = []
    for choice in choices:  # without padding, which RoFormer's class takes for text
        given = tokenizer("What is it?", choice, return_tensors="pt")
        with torch.no_grad():
            logits.append(model(**{n: v[None] for n, v in given.items()}).logits[0, 0])
    scores = torch.stack(logits)
    shares = scores.softmax(-1).tolist()
    made = compiled(tmp_path).run(text="What is it?", choices=choices)
    order = sorted(range(3), key=lambda i: -shares[i])
    wanted = [{"label": choices[i], "score": shares[i]} for i in order]
    assert_same(made.predictions, [wanted])


SIDE = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
TOWERS = {"CLIP": "CLIPImageProcessor", "Siglip": "SiglipImageProcessor"}


@pytest.mark.parametrize("name", TOWERS)
def test_zero_shot_image_classification(name: str, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["wordpiece"](segments=False)
    if name == "Siglip":  # its texts are padded to one length and not masked
        tokenizer.model_input_names = ["input_ids"]
    ends = {"eos_token_id": 3, "bos_token_id": 2, "pad_token_id": 0}
    text = {**SIDE, **ends, "vocab_size": len(tokenizer)}
    config = getattr(transformers, f"{name}Config")(
        text_config={**text, "max_position_embeddings": 64},
        vision_config={**SIDE, "image_size": 32, "patch_size": 8},
    )
    model = randomize_weights(getattr(transformers, f"{name}Model")(config))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    size = {"height": 32, "width": 32}
    more = {"crop_size": size, "size": {"shortest_edge": 32}} if name == "CLIP" else {}
    images = getattr(transformers, TOWERS[name])(**{"size": size, **more})
    images.save_pretrained(tmp_path)
    theirs = pipeline("zero-shot-image-classification", model, tokenizer, image_processor=images)
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 255, (32, 32, 3), np.uint8)) for _ in range(2)]
    labels = ["a lazy dog", "fox", "attention is all you need"]
    ours = compiled(tmp_path)
    for how in ({}, {"hypothesis_template": "{}, quick"}):
        wanted = theirs(pictures, candidate_labels=labels, **how)
        made = ours.run(image=pictures, candidate_labels=labels, **how)
        assert_same(made.predictions, wanted)
