"""Text encoder families: all heads, from directories saved by transformers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.decoder_cases import LINEAR_ROPE
from support.elaborated_specs import assert_arrays_close
from support.hf_cases import VOCAB, ModelCase, check_model_outputs
from support.padded_batches import (
    BoundingBoxes,
    Field,
    FixedValues,
    PaddingMask,
    Samples,
    TokenIds,
    make_samples,
)
from support.published_models import assert_matches_float32, open_weighted_spec

import specc
from specc.diagnostics.diagnostic import SpeccError

pytestmark = pytest.mark.parity

TEXTS = {"input_ids": TokenIds("seq", VOCAB), "attention_mask": PaddingMask("seq")}
LENGTHS = {"seq": (7, 1, 4)}
PLAIN = make_samples(TEXTS, LENGTHS)
TYPED = make_samples({**TEXTS, "token_type_ids": TokenIds("seq", 2)}, LENGTHS)
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 20, "layer_norm_eps": 1e-6,
}  # fmt: skip
TURNED = {
    "vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
    "local_attention": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
"""Windows smaller than the texts."""
APART = {
    **SMALL, "relative_attention": True, "pos_att_type": "p2c|c2p", "position_buckets": 4, "max_relative_positions": -1,
    "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False, "type_vocab_size": 0,
    "conv_kernel_size": 3,
}  # fmt: skip
"""Farther apart than the last bucket."""
ESM2 = {
    "pad_token_id": 1, "mask_token_id": 15, "position_embedding_type": "rotary", "token_dropout": True,
    "hidden_size": 32,
}  # fmt: skip
"""Masked tokens are among the random ids, in padding too."""
DEBERTA = {
    **SMALL,
    "relative_attention": True,
    "pos_att_type": "c2p|p2c",
    "max_relative_positions": -1,
}
MOBILE = {
    **SMALL,
    "embedding_size": 10,
    "intra_bottleneck_size": 12,
    "num_feedforward_networks": 2,
    "intermediate_size": 20,
}
ROC = {
    **SMALL,
    "pronunciation_embed_dim": 6,
    "pronunciation_vocab_size": 9,
    "shape_embed_dim": 5,
    "shape_vocab_size": 7,
}
XMOD = {
    **SMALL,
    "adapter_reduction_factor": 3,
    "languages": ["en_XX", "de_DE", "ha_NG"],
    "default_language": "de_DE",
}
GLYPHS = {"input_shape_ids": TokenIds("seq", 7), "input_pronunciation_ids": TokenIds("seq", 9)}
BOXES = {"bbox": BoundingBoxes("seq", 50)}


@dataclass(frozen=True)
class Family:
    """A config class, the prefix of its model classes, settings, whether tokens have types, and
    whether it is a further configuration for the long sweep.
    """

    name: str
    tiny: Mapping[str, Any]
    typed: bool = True
    lengths: tuple[int, ...] = (7, 1, 4)
    further: bool = False
    more: Mapping[str, Field] = field(default_factory=dict)
    """Further inputs of the base model."""
    apart: bool = False
    """Whether the class reads padding, so that texts are given to it one by one."""

    @property
    def samples(self) -> Samples:
        """Three sequences of different lengths."""
        typed = {"token_type_ids": TokenIds("seq", 2)} if self.typed else {}
        fields = {**TEXTS, **typed, **self.more}
        if self.lengths != LENGTHS["seq"]:  # the class has no padding mask
            del fields["attention_mask"]
        return make_samples(fields, {"seq": self.lengths})


FAMILIES = [
    Family("Roberta", SMALL),
    Family("XLMRoberta", {**SMALL, "hidden_act": "gelu_new", "type_vocab_size": 2}),
    Family("Camembert", {**SMALL, "pad_token_id": 5}),
    Family("Electra", {**SMALL, "embedding_size": 24}),
    Family("Electra", {**SMALL, "embedding_size": 12, "hidden_act": "relu"}),
    Family(
        "DistilBert",
        {
            "vocab_size": VOCAB,
            "dim": 24,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 40,
            "max_position_embeddings": 20,
        },
        typed=False,
    ),
    Family("Albert", {**SMALL, "embedding_size": 12, "num_hidden_layers": 3}),
    Family(
        "Albert",
        {
            **SMALL,
            "embedding_size": 16,
            "num_hidden_layers": 5,
            "num_hidden_groups": 2,
            "inner_group_num": 2,
            "hidden_act": "relu",
        },
        further=True,
    ),
    Family("Albert", {**SMALL, "num_hidden_groups": 2}, further=True),
    Family("DebertaV2", APART),
    Family("DebertaV2", {**SMALL, "pos_att_type": ["c2p"]}, further=True),
    Family(
        "DebertaV2",
        {
            **APART,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": -1,
            "max_relative_positions": 5,
            "share_att_key": False,
            "norm_rel_ebd": "none",
            "position_biased_input": True,
            "type_vocab_size": 2,
            "embedding_size": 12,
            "conv_kernel_size": 5,
            "conv_groups": 2,
            "conv_act": "gelu",
            "pooler_hidden_act": "tanh",
            "hidden_act": "relu",
        },
        further=True,
    ),
    Family("DebertaV2", {**APART, "pos_att_type": "c2p", "legacy": False}, further=True),
    Family("DebertaV2", {**APART, "pos_att_type": ["p2c"]}, further=True),
    Family("ModernBert", TURNED, typed=False),
    Family(
        "ModernBert",
        {
            **TURNED,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "local_attention": 3,
            "classifier_pooling": "mean",
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "classifier_bias": True,
            "decoder_bias": False,
            "tie_word_embeddings": False,
            "hidden_activation": "silu",
            "classifier_activation": "relu",
        },
        typed=False,
        further=True,
    ),
    Family("MPNet", SMALL, typed=False),
    Family("MPNet", {**SMALL, "hidden_act": "silu", "pad_token_id": 4}, typed=False, further=True),
    Family("Esm", {**SMALL, **ESM2}, typed=False),
    Family("Esm", {**SMALL, "pad_token_id": 1, "emb_layer_norm_before": True}, typed=False),
    Family("NomicBert", SMALL),
    Family("NomicBert", {**SMALL, "head_dim": 10, "hidden_act": "gelu"}, further=True),
    Family("Gte", {**SMALL, "type_vocab_size": 2}),
    Family("Gte", {**SMALL, "type_vocab_size": 0, "hidden_act": "relu"}, typed=False),
    Family("Ernie", SMALL),
    Family(
        "Ernie",
        {**SMALL, "use_task_id": True, "hidden_act": "relu", "task_type_vocab_size": 4},
        more={"task_type_ids": TokenIds("seq", 4)},
    ),
    Family("BigBird", {**SMALL, "sep_token_id": 30}),
    Family(
        "BigBird",
        {
            **SMALL,
            "sep_token_id": 30,
            "use_bias": False,
            "rescale_embeddings": True,
            "attention_type": "original_full",
            "hidden_act": "relu",
        },
        further=True,
    ),
    Family("Nystromformer", {**SMALL, "conv_kernel_size": 3}, apart=True),
    Family(
        "Nystromformer",
        {
            **SMALL,
            "conv_kernel_size": 5,
            "hidden_act": "relu",
            "num_landmarks": 9,
            "segment_means_seq_len": 9,
        },
        apart=True,
    ),
    Family("LayoutLM", {**SMALL, "max_2d_position_embeddings": 50}, more=BOXES),
    Family("MegatronBert", SMALL),
    Family("Data2VecText", SMALL),
    Family("RobertaPreLayerNorm", SMALL),
    Family("XLMRobertaXL", {**SMALL, "type_vocab_size": 2}),
    Family("XLMRobertaXL", {**SMALL, "type_vocab_size": 2, "is_decoder": True}, further=True),
    Family("Xmod", XMOD),
    Family(
        "Xmod",
        {**XMOD, "adapter_layer_norm": True, "ln_before_adapter": False, "hidden_act": "relu"},
        further=True,
    ),
    Family(
        "Xmod",
        {**XMOD, "pre_norm": True, "adapter_reuse_layer_norm": False, "is_decoder": True},
        further=True,
    ),
    Family("Xmod", {**XMOD, "pre_norm": True, "tie_word_embeddings": False}, further=True),
    Family("MegatronBert", {**SMALL, "is_decoder": True}, further=True),
    Family("SqueezeBert", {**SMALL, "embedding_size": 24, "q_groups": 2}),
    Family("ConvBert", {**SMALL, "embedding_size": 24, "conv_kernel_size": 3}, apart=True),
    Family(
        "ConvBert",
        {**SMALL, "embedding_size": 10, "conv_kernel_size": 5, "num_groups": 4, "head_ratio": 8},
        further=True,
        apart=True,
    ),
    Family("RemBert", {**SMALL, "input_embedding_size": 10, "output_embedding_size": 14}),
    Family("BertGeneration", SMALL, typed=False),
    Family("BertGeneration", {**SMALL, "is_decoder": True}, typed=False, further=True),
    Family("DPR", SMALL),
    Family("DPR", {**SMALL, "projection_dim": 5}, further=True),
    Family("Lilt", {**SMALL, "hidden_size": 48, "pad_token_id": 1}, more=BOXES),
    Family("Lilt", {**SMALL, "channel_shrink_ratio": 2}, more=BOXES, further=True),
    Family("Deberta", DEBERTA),
    Family("Deberta", {**SMALL, "pos_att_type": ["c2p"], "type_vocab_size": 2}, further=True),
    Family(
        "Deberta",
        {
            **DEBERTA,
            "pos_att_type": ["p2c"],
            "max_relative_positions": 3,
            "legacy": False,
            "embedding_size": 24,
        },
        further=True,
    ),
    Family(
        "Deberta",
        {
            **DEBERTA,
            "pos_att_type": ["c2p"],
            "position_biased_input": False,
            "embedding_size": 12,
            "pooler_hidden_act": "tanh",
        },
        further=True,
    ),
    Family("MobileBert", MOBILE, apart=True),
    Family(
        "MobileBert",
        {
            **MOBILE,
            "use_bottleneck_attention": True,
            "normalization_type": "layer_norm",
            "num_feedforward_networks": 1,
            "hidden_act": "gelu",
            "classifier_activation": False,
        },
        further=True,
        apart=True,
    ),
    Family(
        "MobileBert",
        {**MOBILE, "use_bottleneck": False, "trigram_input": False, "tie_word_embeddings": False},
        further=True,
    ),
    Family("RoCBert", ROC, more=GLYPHS),
    Family(
        "RoCBert", {**ROC, "enable_shape": False, "is_decoder": True}, more=GLYPHS, further=True
    ),
    Family("RoCBert", {**ROC, "enable_pronunciation": False}, more=GLYPHS, further=True),
    Family("JinaEmbeddingsV3", {**SMALL, "type_vocab_size": 2}),
    Family(
        "JinaEmbeddingsV3",
        {**SMALL, "type_vocab_size": 2, "head_dim": 10, "rope_parameters": LINEAR_ROPE},
        further=True,
    ),
]
HEADS = {
    "ForMaskedLM": {"logits": "seq"},
    "ForCausalLM": {"logits": "seq"},
    "ForNextSentencePrediction": {"logits": ""},
    "ForSequenceClassification": {"logits": ""},
    "ForTokenClassification": {"logits": "seq"},
    "ForQuestionAnswering": {"start_logits": "seq", "end_logits": "seq"},
    "Model": {"last_hidden_state": "seq"},
    "Encoder": {"last_hidden_state": "seq"},
    "Decoder": {"logits": "seq"},
    "QuestionEncoder": {"pooler_output": ""},
    "ContextEncoder": {"pooler_output": ""},
}
EACH = [
    pytest.param(f, id=f"{f.name}{n}", marks=[pytest.mark.slow] if f.further else [])
    for n, f in enumerate(FAMILIES)
]


def has_head(family: Family, head: str) -> bool:
    """Return True if transformers has the family's class with that name."""
    return hasattr(transformers, family.name + head)


def case_of(family: Family, head: str, results: Mapping[str, str]) -> ModelCase:
    return ModelCase(
        config=f"{family.name}Config",
        model=f"{family.name}{head}",
        tiny={**family.tiny, "num_labels": 2 if "Question" in head else 3},
        results=results,
        samples=family.samples,
        eager=family.apart,
    )


@pytest.mark.parametrize(
    ("family", "head"),
    [
        pytest.param(*f.values, h, id=f"{f.id}-{h}", marks=f.marks)
        for f in EACH
        for h in HEADS
        if has_head(f.values[0], h)
    ],
)
def test_heads(family: Family, head: str, tmp_path: Path) -> None:
    check_model_outputs(case_of(family, head, HEADS[head]), tmp_path)


def test_reader_of_dpr(tmp_path: Path) -> None:
    results = {"start_logits": "seq", "end_logits": "seq"}
    case = replace(case_of(Family("DPR", SMALL, typed=False), "Reader", results), seed=1)
    check_model_outputs(case, tmp_path)
    theirs, ours = case.save_checkpoint(tmp_path), open_weighted_spec(str(tmp_path), tmp_path)
    given = case.samples.make_batch("right")
    with torch.no_grad():
        wanted = theirs(**{n: torch.tensor(v).long() for n, v in given.items()}).relevance_logits
    got = ours.compiled.run(**given)["relevance_logits"]
    assert_arrays_close(got, wanted.numpy(), "relevance_logits", 1e-5)


@pytest.mark.parametrize(
    ("head", "results"),
    [
        *((h, results) for h, results in HEADS.items() if hasattr(transformers, f"FNet{h}")),
        ("ForPreTraining", {"prediction_logits": "seq", "seq_relationship_logits": ""}),
        ("Model", {"pooler_output": ""}),
    ],
)
def test_fnet(head: str, results: Mapping[str, str], tmp_path: Path) -> None:
    check_model_outputs(case_of(Family("FNet", SMALL, lengths=(7, 7, 7)), head, results), tmp_path)


def test_multiple_choice_of_fnet(tmp_path: Path) -> None:
    theirs = case_of(Family("FNet", SMALL), "ForMultipleChoice", {}).save_checkpoint(tmp_path)
    rng = np.random.default_rng(0)
    given = {
        "input_ids": rng.integers(6, VOCAB, (3, 4, 7)),
        "token_type_ids": rng.integers(0, 2, (3, 4, 7)),
    }
    with torch.no_grad():
        wanted = theirs(**{n: torch.tensor(v) for n, v in given.items()}).logits
    got = open_weighted_spec(str(tmp_path), tmp_path).compiled.run(**given)["logits"]
    assert_arrays_close(got, wanted.numpy(), "logits", 1e-5)


def test_replaced_token_detection(tmp_path: Path) -> None:
    check_model_outputs(case_of(FAMILIES[3], "ForPreTraining", {"logits": "seq"}), tmp_path)


@pytest.mark.parametrize("family", [f for f in EACH if has_head(f.values[0], "ForMultipleChoice")])
def test_multiple_choice(family: Family, tmp_path: Path) -> None:
    """Four choices per question, of different lengths."""
    theirs = case_of(family, "ForMultipleChoice", {}).save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    rng = np.random.default_rng(0)
    given = {
        "input_ids": rng.integers(6, VOCAB, (3, 4, 7)),
        "attention_mask": np.arange(7)
        < np.maximum(rng.integers(1, 8, (3, 4, 1)), 7 * family.apart),
    }
    if family.typed:
        given["token_type_ids"] = rng.integers(0, 2, (3, 4, 7))
    with torch.no_grad():
        # ones and zeros: one family counts on numbers there
        wanted = theirs(**{n: torch.tensor(v).long() for n, v in given.items()}).logits
    assert_arrays_close(ours.compiled.run(**given)["logits"], wanted.numpy(), "logits", 1e-5)


SPLINTER = Family("Splinter", {**SMALL, "question_token_id": 5})


@pytest.mark.parametrize("head", ["Model", "ForQuestionAnswering"])
def test_splinter(head: str, tmp_path: Path) -> None:
    # the class adds (1 - mask) * finfo(float64).min in float32, which is NaN at valid positions
    float32_only = head == "ForQuestionAnswering"
    case = replace(case_of(SPLINTER, head, HEADS[head]), float32_only=float32_only)
    for row, place in zip(case.samples.rows, (3, 0, 2), strict=True):
        row["input_ids"][row["input_ids"] == 5] = 6
        row["input_ids"][place:] += row["input_ids"][place:] == row["input_ids"][place]
        row["input_ids"][place] = 5
    check_model_outputs(case, tmp_path)


def test_pretraining_of_splinter(tmp_path: Path) -> None:
    """Two question tokens per text, at given positions."""
    results = {"start_logits": "", "end_logits": ""}
    theirs = case_of(SPLINTER, "ForPreTraining", results).save_checkpoint(tmp_path)
    batch = SPLINTER.samples.make_batch("right")
    questions = np.array([[1, 4], [0, 0], [2, 3]])
    with torch.no_grad():
        x = {n: torch.tensor(v).long() for n, v in batch.items()}
        wanted = theirs(**x, question_positions=torch.tensor(questions))
    got = open_weighted_spec(str(tmp_path), tmp_path).compiled.run(
        **batch, question_positions=questions
    )
    for name in results:
        keep = np.broadcast_to(batch["attention_mask"][:, None], got[name].shape)
        assert (got[name][~keep] == np.float32(-3.4028234e38)).all()
        assert_arrays_close(got[name][keep], wanted[name].numpy()[keep], name, 1e-5)


def rewrite_checkpoint(directory: Path, config: Mapping[str, Any], rename: tuple[str, str]) -> None:
    """Write a checkpoint with the publisher's own config.json and prefix of the base model."""
    (directory / "config.json").write_text(json.dumps(config))
    tensors = load_file(directory / "model.safetensors")
    save_file(
        {name.replace(*rename, 1): tensor for name, tensor in tensors.items()},
        directory / "model.safetensors",
        {"format": "pt"},
    )


def test_gte_checkpoints_with_ntk_scaling(tmp_path: Path) -> None:
    """`"model_type": "new"`: base theta * factor, then frequencies / factor^(2 / head_dim)."""
    case = case_of(Family("Gte", {**SMALL, "type_vocab_size": 2}), "ForMaskedLM", {"logits": "seq"})
    theirs = case.save_checkpoint(tmp_path).double()
    theta, factor, head_dim = 500.0, 4.0, 6
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequencies = (theta * factor) ** -exponents / factor ** (2 / head_dim)
    theirs.gte.rotary_emb.inv_freq = frequencies
    config = {
        **SMALL, "model_type": "new", "architectures": ["NewForMaskedLM"], "type_vocab_size": 2,
        "rope_theta": theta, "rope_scaling": {"type": "ntk", "factor": factor}, "pack_qkv": True,
        "position_embedding_type": "rope", "layer_norm_type": "layer_norm",
    }  # fmt: skip
    rewrite_checkpoint(tmp_path, config, ("gte.", "new."))
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    assert_matches_float32(
        ours, case.samples, lambda x: case.run_published(theirs, x), case.results
    )


def test_esm_checkpoints_with_half_precision_rope_frequencies(tmp_path: Path) -> None:
    """The class uses the checkpoint's frequencies, stored once per layer."""
    case = case_of(Family("Esm", {**SMALL, **ESM2}, typed=False), "Model", {})
    case.save_checkpoint(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    stored = tensors.pop("encoder.layer.*.attention.self.rotary_embeddings.inv_freq")
    rounded = (stored * 1.01).half().float()
    for layer in range(2):
        tensors[f"encoder.layer.{layer}.attention.self.rotary_embeddings.inv_freq"] = (
            rounded.clone()
        )
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    theirs = transformers.EsmModel.from_pretrained(tmp_path).eval()
    assert (theirs.rotary_embeddings.inv_freq == rounded).all()
    theirs.double()
    results = {"last_hidden_state": "seq"}
    case = replace(case, results=results)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    assert_matches_float32(ours, case.samples, lambda x: case.run_published(theirs, x), results)


def test_nomic_checkpoints_with_gpt2_keys(tmp_path: Path) -> None:
    case = case_of(Family("NomicBert", SMALL), "Model", {"last_hidden_state": "seq"})
    theirs = case.save_checkpoint(tmp_path).double()
    config = {
        "model_type": "nomic_bert", "architectures": ["NomicBertModel"], "vocab_size": VOCAB,
        "n_embd": 24, "n_head": 4, "n_layer": 2, "n_inner": 40, "layer_norm_epsilon": 1e-6,
        "activation_function": "swiglu", "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
        "rotary_scaling_factor": 2, "mlp_fc1_bias": False, "prenorm": False, "n_positions": 8192,
    }  # fmt: skip
    rewrite_checkpoint(tmp_path, config, ("", ""))
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    assert_matches_float32(
        ours, case.samples, lambda x: case.run_published(theirs, x), case.results
    )


def test_big_bird_excludes_the_question(tmp_path: Path) -> None:
    """Logits up to the first separator are lowered by 1e6; other texts have type 1."""
    tiny = {**SMALL, "sep_token_id": 7}
    case = case_of(Family("BigBird", tiny), "ForQuestionAnswering", {})
    theirs = case.save_checkpoint(tmp_path).double()
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    ids = np.array([[1, 3, 7, 9, 4, 7, 5], [1, 7, 8, 2, 9, 11, 3]])
    keep = np.arange(7) < [[7], [5]]
    with torch.no_grad():
        wanted = theirs(torch.tensor(ids), attention_mask=torch.tensor(keep).long())
    made = ours.compiled.run(input_ids=ids, attention_mask=keep)
    for name in ("start_logits", "end_logits"):
        expected = wanted[name].numpy()
        answers = expected > -1e5
        assert ((made[name] > -1e5) == answers).all()
        assert answers.sum() < answers.size
        valid = answers & keep
        assert_arrays_close(made[name][valid], expected[valid], name, 1e-5)


def test_big_bird_refuses_block_sparse_attention(tmp_path: Path) -> None:
    """Block-sparse attention begins above (5 + 2 * random blocks) * block size."""
    tiny = {**SMALL, "block_size": 1, "num_random_blocks": 3}
    case_of(Family("BigBird", tiny), "Model", {}).save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path).compiled
    ours.run(input_ids=np.ones((1, 11), int))
    with pytest.raises(SpeccError, match=r"E0912.*at most 11"):
        ours.run(input_ids=np.ones((1, 12), int))


LAYOUT3 = {
    **SMALL, "hidden_size": 32, "coordinate_size": 5, "shape_size": 6, "max_2d_position_embeddings": 1001,
    "rel_pos_bins": 8, "max_rel_pos": 9, "rel_2d_pos_bins": 8, "max_rel_2d_pos": 40, "input_size": 12, "patch_size": 4,
    "pad_token_id": 1,
}  # fmt: skip
PAGE = {"bbox": BoundingBoxes("seq", 1001), "pixel_values": FixedValues((3, 12, 12))}


@pytest.mark.parametrize("with_image", [True, False])
@pytest.mark.parametrize(
    ("head", "more"),
    [
        ("ForSequenceClassification", {}),
        ("ForTokenClassification", {}),
        ("ForTokenClassification", {"num_labels": 11, "has_spatial_attention_bias": False}),
        ("ForTokenClassification", {"rel_pos_bins": 9, "rel_2d_pos_bins": 7}),
        (
            "ForQuestionAnswering",
            {"has_relative_attention_bias": False, "has_spatial_attention_bias": False},
        ),
        ("Model", {}),
    ],
)
def test_layoutlmv3(head: str, more: Mapping[str, Any], with_image: bool, tmp_path: Path) -> None:
    """The tokens of a page with its image, and without."""
    family = Family("LayoutLMv3", LAYOUT3, more=PAGE)
    case = case_of(family, head, HEADS[head])
    case = replace(case, tiny={**case.tiny, **more})
    theirs = case.save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path, use_image=with_image)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        shown = {name: v for name, v in x.items() if with_image or name != "pixel_values"}
        return case.run_published(theirs, shown)

    assert_matches_float32(ours, case.samples, published, case.results)


SENTENCES = [
    next(f for f in FAMILIES if f.name == name)
    for name in ("Roberta", "DistilBert", "Albert", "MPNet", "ModernBert", "NomicBert", "Gte")
]
POOLED = {
    "mean": lambda x, keep: (x * keep).sum(1) / keep.sum(1),
    "cls": lambda x, keep: x[:, 0],
    "max": lambda x, keep: x.masked_fill(keep == 0, -np.inf).amax(1),
    "last": lambda x, keep: x[range(len(x)), keep[..., 0].sum(1).long() - 1],
}


@pytest.mark.parametrize(
    ("family", "pooling"),
    [(f, "mean") for f in SENTENCES] + [(Family("Bert", SMALL), p) for p in POOLED],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_sentence_embeddings(family: Family, pooling: str, tmp_path: Path) -> None:
    """L2-normalized sentence embeddings from the hidden states: such checkpoints have only the base
    model, often without its pooler.
    """
    case = case_of(family, "Model", {})
    theirs = case.save_checkpoint(tmp_path).double()
    for normalized in (True, False):
        path = tmp_path / f"{normalized}.onnx"
        sets = {"pooling_mode": pooling, "normalize_embeddings": normalized}
        specc.compile(tmp_path, path, graph="sentence_embeddings", set=sets)
        ours = specc.load(path, threads=1)
        for given in (case.samples.get_sample(0), case.samples.make_batch("right")):
            with torch.no_grad():
                told = {n: torch.tensor(v).long() for n, v in given.items()}
                keep = told["attention_mask"][..., None].double()
                wanted = POOLED[pooling](theirs(**told).last_hidden_state, keep)
                if normalized:
                    wanted = torch.nn.functional.normalize(wanted)
            found = ours.run(**given)["sentence_embedding"]
            assert_arrays_close(found, wanted.numpy(), pooling, 1e-5)


OWN = [
    *(
        (f.name, f.tiny, f.typed)
        for f in FAMILIES
        if not (f.further or f.more or f.apart) and has_head(f, "ForMaskedLM")
    ),
    ("Bert", SMALL, True),
    ("MPNet", {**SMALL, "pad_token_id": 1}, False),
    ("DebertaV2", {**SMALL, "type_vocab_size": 0, "legacy": False}, False),
    ("DebertaV2", {**APART, "relative_attention": False, "legacy": False}, False),
]


@pytest.mark.parametrize(("name", "tiny", "typed"), OWN)
def test_untied_output_embeddings(
    name: str, tiny: Mapping[str, Any], typed: bool, tmp_path: Path
) -> None:
    case = ModelCase(
        config=f"{name}Config",
        model=f"{name}ForMaskedLM",
        tiny={**tiny, "tie_word_embeddings": False},
        samples=TYPED if typed and tiny.get("type_vocab_size") != 0 else PLAIN,
    )
    check_model_outputs(case, tmp_path)
