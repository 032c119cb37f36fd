"""Vision encoders with text decoders, one pair of each kind, from directories saved by
transformers; and the TrOCR decoder alone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from support.hf_cases import MAX_NEW_TOKENS, cut_at_stop
from support.padded_batches import FixedValues, PaddingMask, Samples, TokenIds, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec, randomize_weights
from tokenizers import decoders, models, pre_tokenizers, processors

import specc

pytestmark = pytest.mark.parity

START, STOP = 3, 2
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
PATCHES = SMALL | {"hidden_size": 32, "image_size": 12, "patch_size": 4}
WORDS: dict[str, Any] = {"vocab_size": 31, "eos_token_id": STOP, "bos_token_id": START}
LAYERS = SMALL | WORDS | {"hidden_size": 24, "max_position_embeddings": 40}
TROCR = WORDS | {
    "d_model": 24, "decoder_layers": 2, "decoder_attention_heads": 3, "decoder_ffn_dim": 40,
    "max_position_embeddings": 32, "decoder_start_token_id": START,
}  # fmt: skip
SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTConfig", PATCHES | {"qkv_bias": False}),
    "deit": ("DeiTConfig", PATCHES),
    "swin": (
        "SwinConfig",
        {
            "image_size": 12, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 4],
            "window_size": 2,
        },
    ),
    "donut-swin": (
        "DonutSwinConfig",
        {
            "image_size": [12, 20], "patch_size": 2, "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 4],
            "window_size": 3,
        },
    ),
    "vit of one width": ("ViTConfig", PATCHES | {"hidden_size": 24}),
}  # fmt: skip
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "trocr": ("TrOCRConfig", TROCR),
    "trocr, as printed": (
        "TrOCRConfig",
        TROCR
        | {
            "use_learned_position_embeddings": False, "scale_embedding": True, "layernorm_embedding": False,
            "activation_function": "relu", "cross_attention_hidden_size": 32, "tie_word_embeddings": False,
        },
    ),
    "gpt2": ("GPT2Config", WORDS | {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40}),
    "gpt2, by layer": (
        "GPT2Config",
        WORDS
        | {
            "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40,
            "scale_attn_by_inverse_layer_idx": True,
        },
    ),
    "mbart": (
        "MBartConfig",
        WORDS
        | {
            "d_model": 24, "decoder_layers": 2, "decoder_attention_heads": 3, "decoder_ffn_dim": 40,
            "max_position_embeddings": 32, "scale_embedding": True,
        },
    ),
    "bert": ("BertConfig", LAYERS),
    "roberta": ("RobertaConfig", LAYERS | {"pad_token_id": 1}),
}  # fmt: skip
PAIRS = [
    *(("vit", decoder) for decoder in DECODERS if decoder != "mbart"),
    ("donut-swin", "mbart"),
    ("deit", "trocr"),
    ("deit", "roberta"),
    ("swin", "bert"),
    ("swin", "gpt2"),
    ("vit of one width", "trocr"),
]
SLOW = [p for p in PAIRS if p[0] not in ("vit", "donut-swin")]
VARIED = {
    ("vit", "trocr, as printed"): 1, ("vit", "gpt2"): 11, ("vit", "gpt2, by layer"): 11, ("deit", "trocr"): 11,
    ("swin", "bert"): 1, ("swin", "gpt2"): 8, ("vit of one width", "trocr"): 8,
}  # fmt: skip
"""Seeds of pairs that write many different words, where the usual one does not."""


def saved(encoder: str, decoder: str, directory: Path, seed: int = 4, louder: float = 1.0) -> Any:
    """Save a published pair with random weights in `directory`; `louder` matrices make the outputs
    vary more.
    """
    parts = [
        getattr(transformers, kind)(**settings)
        for kind, settings in (SIDES[encoder], DECODERS[decoder])
    ]
    made = transformers.VisionEncoderDecoderConfig
    config = made.from_encoder_decoder_configs(*parts)
    config.decoder_start_token_id, config.pad_token_id = START, 0
    config.eos_token_id = STOP
    kind = transformers.VisionEncoderDecoderModel
    theirs = randomize_weights(kind(config), seed)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight *= louder if weight.dim() > 1 else 1.0
    theirs.tie_weights()
    theirs.save_pretrained(directory)
    return theirs


def given_to(encoder: str) -> Samples:
    """Return an image and a sequence of each length."""
    size = SIDES[encoder][1]["image_size"]
    high, wide = size if isinstance(size, list) else (size, size)
    inputs = {
        "pixel_values": FixedValues((3, high, wide)),
        "target": TokenIds("seq", 31),
        "target_keep": PaddingMask("seq"),
    }
    return make_samples(inputs, {"seq": (7, 1, 4)})


@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [pytest.param(*p, marks=pytest.mark.slow) if p in SLOW else p for p in PAIRS],
)
def test_scores(encoder: str, decoder: str, tmp_path: Path) -> None:
    theirs = saved(encoder, decoder, tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = theirs(
            pixel_values=x["pixel_values"],
            decoder_input_ids=x["target"],
            decoder_attention_mask=x["target_keep"].long(),
        )
        return {"logits": made.logits}

    assert_matches_float32(ours, given_to(encoder), published, {"logits": "seq"})


def generate_published(theirs: Any, pixels: NDArray[np.float32], beams: int) -> list[list[int]]:
    """Return what transformers' `generate` produces for each image."""
    with torch.no_grad():
        made = theirs.generate(
            pixel_values=torch.tensor(pixels).double(),
            do_sample=False,
            num_beams=beams,
            max_new_tokens=MAX_NEW_TOKENS,
            decoder_start_token_id=START,
            pad_token_id=0,
            eos_token_id=STOP,
        )
    return [cut_at_stop(row[1:].tolist(), STOP) for row in made]


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [pytest.param(*p, marks=pytest.mark.slow) if p in SLOW else p for p in PAIRS],
)
def test_generation(encoder: str, decoder: str, beams: int, tmp_path: Path) -> None:
    seed = VARIED.get((encoder, decoder), 6)
    theirs = saved(encoder, decoder, tmp_path, seed, louder=2.0).double()
    how: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
    if beams > 1:
        how |= {"strategy": "beam", "num_beams": beams, "early_stopping": False}
    package, one = tmp_path / "package", tmp_path / "one.onnx"
    specc.compile(str(tmp_path), package, graphs="step")
    specc.compile(str(tmp_path), one, graphs="generate", generation_config=how)
    pictures = np.stack([row["pixel_values"] for row in given_to(encoder).rows])
    wanted: Sequence[Sequence[int]] = []
    for count in (1, len(pictures)):
        wanted = generate_published(theirs, pictures[:count], beams)
        for path in (package, one):
            made = specc.load(path, threads=1).generate(pixel_values=pictures[:count], **how)
            got = [list(row[0].tokens) for row in made.results()]
            assert got == wanted, f"{path.name}, {count} pictures"
    assert len({token for text in wanted for token in text}) > 3, "too dull to tell"


@pytest.mark.parametrize("decoder", ["trocr", "trocr, as printed"])
def test_trocr_decoder_alone(decoder: str, tmp_path: Path) -> None:
    config = transformers.TrOCRConfig(**DECODERS[decoder][1])
    theirs = randomize_weights(transformers.TrOCRForCausalLM(config))
    theirs.tie_weights()
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()
    wide = config.cross_attention_hidden_size or config.d_model
    given = make_samples(
        {
            "input_ids": TokenIds("seq", 31),
            "attention_mask": PaddingMask("seq"),
            "memory": FixedValues((5, wide)),
        },
        {"seq": (7, 1, 4)},
    )

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = theirs(
            input_ids=x["input_ids"],
            attention_mask=x["attention_mask"].long(),
            encoder_hidden_states=x["memory"],
        )
        return {"logits": made.logits}

    assert_matches_float32(ours, given, published, {"logits": "seq"})


@pytest.mark.parametrize("size", [(50, 30), (20, 64), (12, 20)])
def test_donut_preprocessing(size: tuple[int, int], tmp_path: Path) -> None:
    """Donut: any image, preprocessed by the processor next to the weights."""
    from PIL import Image

    theirs = saved("donut-swin", "mbart", tmp_path, 6, louder=2.0).double()
    processor = transformers.DonutImageProcessorPil(
        size={"height": 12, "width": 20}, do_align_long_axis=True, image_mean=[0.5] * 3
    )
    processor.save_pretrained(tmp_path)
    drawn = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    page = Image.fromarray(drawn)
    given = processor(page, return_tensors="pt")["pixel_values"]
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    made = specc.load(tmp_path / "package").generate(pixel_values=page, max_tokens=MAX_NEW_TOKENS)
    got = [list(row[0].tokens) for row in made.results()]
    assert got == generate_published(theirs, given.numpy(), 1)


LETTERS = "▁abcdefghijklmnopqrstuvwxyz"
"""Behind the four tokens that are none: 31 in all."""


def save_character_tokenizer(directory: Path) -> Any:
    """Save a character tokenizer that adds a first and a last token."""
    marks = ["<s>", "<pad>", "</s>", "<unk>"]
    words = {word: n for n, word in enumerate([*marks, *LETTERS])}
    made = tokenizers.Tokenizer(models.BPE(words, [], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(marks)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    made.save(str(directory / "tokenizer.json"))
    return made


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("asked", ["cat", "a", "<unk>dog"])
def test_donut_task_prompt(asked: str, beams: int, tmp_path: Path) -> None:
    """Donut's task prompt: without the tokens that its tokenizer adds."""
    theirs = saved("donut-swin", "mbart", tmp_path, 6, louder=2.0).double()
    letters = save_character_tokenizer(tmp_path)
    pixels = given_to("donut-swin").rows[0]["pixel_values"][None]
    prompt = letters.encode(asked, add_special_tokens=False).ids
    with torch.no_grad():
        (wanted,) = theirs.generate(
            pixel_values=torch.tensor(pixels).double(),
            decoder_input_ids=torch.tensor([prompt]),
            do_sample=False,
            num_beams=beams,
            max_new_tokens=MAX_NEW_TOKENS,
            pad_token_id=0,
            eos_token_id=STOP,
        ).tolist()
    how: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
    if beams > 1:
        how |= {"strategy": "beam", "num_beams": beams, "early_stopping": False}
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    made = specc.load(tmp_path / "package").generate(pixel_values=pixels, target=asked, **how)
    ((row, *_),) = made.results()
    assert list(row.tokens) == cut_at_stop(wanted[len(prompt) :], STOP)
    kept = [token for token in row.tokens if token != STOP]
    assert row.text.strip() == letters.decode(kept).strip()
