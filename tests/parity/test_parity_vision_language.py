"""Vision-language models with images of any size (M-RoPE) match transformers: logits, generation
and text models.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.hf_cases import MAX_NEW_TOKENS, ModelCase, check_model_outputs, cut_at_stop
from support.padded_batches import Arrays, PaddingMask, Samples, Side, TokenIds, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec, randomize_weights

import specc

pytestmark = pytest.mark.parity

IMAGE, WORDS = 30, 26
"""The image placeholder token id, and the number of text tokens."""
ROPE = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 1, 1]}
TEXT: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2,
    "rope_parameters": ROPE,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "mlp_only_layers": [1],
}  # fmt: skip
TOKEN_IDS = {
    "image_token_id": IMAGE,
    "video_token_id": 29,
    "vision_start_token_id": 28,
    "vision_end_token_id": 27,
}
VISION: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 2, "in_channels": 1}
WINDOWS = {"hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 32, "window_size": 8}
DEEPSTACK = {
    "hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 32, "num_position_embeddings": 25,
    "deepstack_visual_indexes": [0, 1],
}  # fmt: skip
NO_DEEPSTACK = {k: v for k, v in DEEPSTACK.items() if k != "deepstack_visual_indexes"}
DELTA_NET = {
    "head_dim": 16, "linear_key_head_dim": 6, "linear_value_head_dim": 7, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"], "rope_parameters": ROPE | {"partial_rotary_factor": 0.5},
}  # fmt: skip
DELTA_EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 10,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": ("Qwen2VL", TEXT, VISION | {"hidden_size": 32, "embed_dim": 16, "mlp_ratio": 2}),
    "qwen2_vl, sliding windows": (
        "Qwen2VL",
        TEXT | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "tie_word_embeddings": True},
        VISION | {"hidden_size": 32, "embed_dim": 24, "num_heads": 1, "spatial_merge_size": 1, "hidden_act": "gelu"},
    ),
    "qwen2_5_vl": ("Qwen2_5_VL", TEXT, VISION | WINDOWS | {"fullatt_block_indexes": [1]}),
    "qwen3_vl": ("Qwen3VL", TEXT | {"head_dim": 8}, VISION | DEEPSTACK),
    "qwen3_vl, one inner layer, biases": (
        "Qwen3VL",
        TEXT | {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True,
                "rope_parameters": ROPE | {"mrope_section": [4, 2, 2]}},
        VISION | DEEPSTACK | {"deepstack_visual_indexes": [1], "num_position_embeddings": 4, "patch_size": 1},
    ),
    "qwen3_vl_moe": ("Qwen3VLMoe", TEXT | EXPERTS, VISION | DEEPSTACK),
    "qwen3_5": ("Qwen3_5", TEXT | DELTA_NET, VISION | NO_DEEPSTACK),
    "qwen3_5, biases, one frame": (
        "Qwen3_5",
        TEXT | DELTA_NET | {"attention_bias": True, "tie_word_embeddings": True, "linear_num_value_heads": 2,
                            "full_attention_interval": 1, "rope_parameters": ROPE | {"mrope_section": [3, 3, 2], "partial_rotary_factor": 1.0}},
        VISION | NO_DEEPSTACK | {"num_position_embeddings": 4, "patch_size": 1, "hidden_act": "gelu", "spatial_merge_size": 1},
    ),
    "qwen3_5_moe": ("Qwen3_5Moe", TEXT | DELTA_NET | DELTA_EXPERTS, VISION | NO_DEEPSTACK),
}  # fmt: skip
"""The family, and the configurations of text and image model."""
GRIDS = [[(1, 4, 6), (1, 2, 2)], [(1, 6, 4)], []]
"""Frames, rows and columns of the images of three sequences."""


def saved(name: str, directory: Path, head: str = "ForConditionalGeneration", seed: int = 0) -> Any:
    """Save a published model with random weights in `directory`."""
    family, text, vision = CASES[name]
    config = getattr(transformers, f"{family}Config")(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=text.get("tie_word_embeddings", False),
        **TOKEN_IDS,
    )
    kind = getattr(transformers, f"{family}{head}")
    theirs = randomize_weights(kind(config), seed)
    for module in theirs.modules():
        if type(module).__name__ in ("Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm"):
            module.weight.data -= 1.0  # these norms store weights as offsets from 1
    theirs.tie_weights()
    theirs.save_pretrained(directory)
    return kind.from_pretrained(directory, experts_implementation="eager").eval()


@dataclass(frozen=True)
class ImageSamples(Samples):
    """Sequences with images: the patches are padded at the end, on whichever side text is."""

    images: tuple[Arrays, ...]

    def get_sample(self, row: int) -> Arrays:
        return super().get_sample(row) | _stack([self.images[row]], extra=0)

    def make_batch(self, side: Side = "right", extra: int = 1) -> Arrays:
        return super().make_batch(side, extra) | _stack(self.images, extra=4)


def _stack(images: Sequence[Arrays], extra: int) -> Arrays:
    """Stack patches and grids of several sequences, padded with random patches and zero grids."""
    rng = np.random.default_rng(9)
    made: Arrays = {}
    for name in ("pixel_values", "image_grid_thw"):
        parts = [one[name] for one in images]
        longest = max(1, *map(len, parts)) + (extra if name == "pixel_values" else 0)
        whole = rng.standard_normal((len(parts), longest, parts[0].shape[1])).astype(parts[0].dtype)
        whole *= name == "pixel_values"
        for row, part in zip(whole, parts, strict=True):
            row[: len(part)] = part
        made[name] = whole
    return made


def given(vision: Mapping[str, Any], least: int = 0) -> ImageSamples:
    """Return three sequences with images of the sizes in `GRIDS`, among tokens from `least` on."""
    merged = vision.get("spatial_merge_size", 2) ** 2
    features = 2 * vision["in_channels"] * vision["patch_size"] ** 2
    counts = [[t * h * w for t, h, w in grids] for grids in GRIDS]
    lengths = tuple(3 + sum(2 + n // merged for n in each) for each in counts)
    made = make_samples(
        {"input_ids": TokenIds("seq", WORDS), "attention_mask": PaddingMask("seq")},
        {"seq": lengths},
    )
    rng, images = np.random.default_rng(5), []
    for row, each, grids in zip(made.rows, counts, GRIDS, strict=True):
        row["input_ids"] = np.maximum(row["input_ids"], least)
        start = 2
        for count in each:
            row["input_ids"][start : start + count // merged] = IMAGE
            start += count // merged + 2
        pixels = rng.standard_normal((sum(each), features)).astype(np.float32)
        grid = np.array(grids, np.int64).reshape(-1, 3)
        images.append({"pixel_values": pixels, "image_grid_thw": grid})
    return ImageSamples(made.fields, made.rows, made.lengths, made.seed, tuple(images))


def as_published(x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the inputs of the class: the patches of all images of a batch in one tensor."""
    keep = x["attention_mask"]
    present = [grid[grid.prod(-1) > 0] for grid in x["image_grid_thw"]]
    counts = [int(grid.prod(-1).sum()) for grid in present]
    ids = x["input_ids"].where(keep, 0)
    made = {
        "input_ids": ids,
        "attention_mask": keep.long(),
        "mm_token_type_ids": ((ids == IMAGE) & keep).int(),
    }
    if sum(counts):
        pixels = [row[:count] for row, count in zip(x["pixel_values"], counts, strict=True)]
        made |= {"pixel_values": torch.cat(pixels), "image_grid_thw": torch.cat(present)}
    return made


@pytest.mark.parametrize("name", CASES)
def test_scores(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()
    inputs = given(CASES[name][2])
    assert_matches_float32(
        ours,
        inputs,
        lambda x: {"logits": theirs(**as_published(x)).logits},
        {"logits": "seq"},
        ("left", "right"),
    )


FIRST = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"]
"""One configuration of each family."""


@pytest.mark.parametrize("name", FIRST)
def test_without_a_head(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path, "Model")
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()
    assert_matches_float32(
        ours,
        given(CASES[name][2]),
        lambda x: {"last_hidden_state": theirs(**as_published(x)).last_hidden_state},
        {"last_hidden_state": "seq"},
        ("left",),
    )


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification"])
def test_classification(head: str, tmp_path: Path) -> None:
    theirs = saved("qwen3_5", tmp_path, head)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()
    theirs.config.get_text_config().pad_token_id = 0
    assert_matches_float32(
        ours,
        given(CASES["qwen3_5"][2], least=3),
        lambda x: {"logits": theirs(**as_published(x)).logits},
        {"logits": "seq" if head == "ForTokenClassification" else ""},
        ("left", "right"),
    )


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe"])
def test_language_model_alone(name: str, tmp_path: Path) -> None:
    """The graph without images gives the logits of the class for a prompt without images."""
    theirs = saved(name, tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path, graph="causal_lm")
    theirs.double()
    fields = {"input_ids": TokenIds("seq", WORDS), "attention_mask": PaddingMask("seq")}
    inputs = make_samples(fields, {"seq": (9, 2, 5)})

    def published(x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        keep = x["attention_mask"]
        ids = x["input_ids"].where(keep, 0)
        at = (keep.long().cumsum(1) - 1).clamp(min=0)
        return {"logits": theirs(input_ids=ids, attention_mask=keep.long(), position_ids=at).logits}

    assert_matches_float32(ours, inputs, published, {"logits": "seq"}, ("left", "right"))


@pytest.mark.parametrize("name", FIRST)
def test_text_model(name: str, tmp_path: Path) -> None:
    family, text, _ = CASES[name]
    case = ModelCase(
        config=f"{family}TextConfig",
        model=f"{family}TextModel",
        tiny=text,
        results={"last_hidden_state": "seq"},
        sides=("left", "right"),
        position_ids=True,
    )
    check_model_outputs(case, tmp_path)


BEAMS = {"qwen3_vl": (1, 4)}
"""Numbers of beams besides greedy search: beam search does not depend on the family."""


@pytest.mark.parametrize("name", FIRST)
def test_generation(name: str, tmp_path: Path) -> None:
    """Greedy and with beam search, alone and padded on the left."""
    theirs = saved(name, tmp_path, seed=1).double()
    inputs = given(CASES[name][2], least=3)
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    specc.compile(str(tmp_path), tmp_path / "one.onnx", graphs="generate")
    package, one = (specc.load(tmp_path / path, threads=1) for path in ("package", "one.onnx"))
    for whole in (inputs.get_sample(0), inputs.make_batch("left", extra=0)):
        alone = {name: x for name, x in whole.items() if name != "attention_mask"}
        for beams in BEAMS.get(name, (1,)):
            wanted = generate_published(theirs, whole, beams)
            how: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
            how |= (
                {"strategy": "beam", "num_beams": beams, "early_stopping": False}
                if beams > 1
                else {}
            )
            files = [(package, whole)] + ([(one, alone)] if len(wanted) == 1 and beams == 1 else [])
            for model, told in files:
                made = model.generate(**told, **how)
                assert [list(row[0].tokens) for row in made.results()] == wanted, model.path


def generate_published(theirs: Any, whole: Arrays, beams: int) -> list[list[int]]:
    """Return what transformers' `generate` produces for each prompt."""
    inputs = as_published({name: torch.tensor(x) for name, x in whole.items()})
    inputs["pixel_values"] = inputs["pixel_values"].double()
    with torch.no_grad():
        made = theirs.generate(
            **inputs,
            do_sample=False,
            num_beams=beams,
            max_new_tokens=MAX_NEW_TOKENS,
            pad_token_id=0,
            eos_token_id=2,
        )
    return [cut_at_stop(row[whole["input_ids"].shape[1] :].tolist(), 2) for row in made]


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_other_files(name: str, tmp_path: Path) -> None:
    """Weights under the names of the class, and a config.json with the keys of the language model
    at the top level, give the same graph.
    """
    saved(name, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    weights = load_file(tmp_path / "a" / "model.safetensors")
    renamed = {name_in_class(key): value for key, value in weights.items()}
    assert renamed.keys() != weights.keys()
    save_file(renamed, tmp_path / "b" / "model.safetensors")
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    text = config.pop("text_config")
    text["rope_scaling"] = {
        "type": "mrope",
        "mrope_section": text["rope_parameters"]["mrope_section"],
    }
    text["rope_theta"] = text.pop("rope_parameters")["rope_theta"]
    (tmp_path / "b" / "config.json").write_text(json.dumps(text | config))
    inputs = given(CASES[name][2]).get_sample(0)
    made = []
    for part in ("a", "b"):
        specc.compile(str(tmp_path / part), tmp_path / f"{part}.onnx")
        made.append(specc.load(tmp_path / f"{part}.onnx", threads=1).run(**inputs)["logits"])
    assert np.array_equal(*made)


def name_in_class(key: str) -> str:
    """Return the name of a weight in the class, from that in its files."""
    prefix, _, rest = key.partition(".")
    renamed = {"model": "model.language_model", "visual": "model.visual"}.get(prefix, prefix)
    return f"{renamed}.{rest}"


def test_experts_in_the_other_layout(tmp_path: Path) -> None:
    """Published files have experts [experts, in, out], those of `save_pretrained` as the class."""
    saved("qwen3_vl_moe", tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    weights = load_file(tmp_path / "a" / "model.safetensors")
    turned = {k: v.mT.contiguous() if ".experts." in k else v for k, v in weights.items()}
    assert any(turned[key].shape != weights[key].shape for key in weights)
    save_file(turned, tmp_path / "b" / "model.safetensors")
    inputs, made = given(CASES["qwen3_vl_moe"][2]).get_sample(0), []
    for part in ("a", "b"):
        specc.compile(str(tmp_path / part), tmp_path / f"{part}.onnx")
        made.append(specc.load(tmp_path / f"{part}.onnx", threads=1).run(**inputs)["logits"])
    assert np.array_equal(*made)
