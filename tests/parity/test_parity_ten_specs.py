"""Five of the ten specs that shaped the language are published models and read the files of those
models.

A sixth is built in: see test_parity_t5.py.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
import transformers as hf
from support.elaborated_specs import assert_arrays_close, run_reference
from support.padded_batches import FixedValues, PaddingMask, Samples, TokenIds, make_samples
from support.published_models import WeightedSpec, open_weighted_spec, randomize_weights

pytestmark = pytest.mark.parity

SPECS = Path(__file__).parents[1] / "frontend" / "specs"
WORDS = 31
TEXT = make_samples(
    {"input_ids": TokenIds("seq", WORDS), "attention_mask": PaddingMask("seq")}, {"seq": (7, 1, 4)}
)
Inputs = Mapping[str, torch.Tensor]


def compare(
    ours: WeightedSpec,
    given: Samples,
    published: Callable[[Inputs], Inputs],
    results: Mapping[str, str],
) -> None:
    """Check both results against the published ones: alone, and each sequence of a padded batch.
    These models compute some steps in float32, whatever their dtype, which limits the tolerance.
    """
    for inputs, side in ((given.get_sample(0), None), (given.make_batch("right"), "right")):
        with torch.no_grad():
            doubles = {k: torch.from_numpy(v.copy()) for k, v in inputs.items()}
            wanted = published(
                {k: v.double() if v.is_floating_point() else v for k, v in doubles.items()}
            )
        for found in (run_reference(ours.spec, ours.weights, inputs), ours.compiled.run(**inputs)):
            for name, dim in results.items():
                for row in range(len(given.rows) if side else 1):
                    theirs = wanted[name][row].double().numpy()
                    valid = (
                        given.get_positions(row, dim, len(theirs), side)
                        if dim and side
                        else slice(None)
                    )
                    assert_arrays_close(
                        found[name][row][valid], theirs[valid], f"{name} of {row}, {side}", 1e-5
                    )


def files(theirs: hf.PreTrainedModel, spec: str, directory: Path, **sets: object) -> WeightedSpec:
    """Save the weights and the config.json of a model for a spec; the model continues in float64."""
    theirs.save_pretrained(directory)
    theirs.double()
    return open_weighted_spec(str(SPECS / f"{spec}.specc"), directory, **sets)


def test_gemma3(tmp_path: Path) -> None:
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    near = {"rope_type": "default", "rope_theta": 1e4}
    config = hf.Gemma3TextConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=40, num_hidden_layers=7, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, sliding_window=3, query_pre_attn_scalar=16,
        rope_parameters={"full_attention": full, "sliding_attention": near},
    )  # fmt: skip
    theirs = randomize_weights(hf.Gemma3ForCausalLM(config))
    compare(
        files(theirs, "gemma3", tmp_path),
        TEXT,
        lambda x: {"logits": theirs(**x).logits},
        {"logits": "seq"},
    )


def test_albert(tmp_path: Path) -> None:
    config = hf.AlbertConfig(
        vocab_size=WORDS, embedding_size=8, hidden_size=32, num_hidden_layers=5, num_hidden_groups=2,
        inner_group_num=2, num_attention_heads=4, intermediate_size=40, max_position_embeddings=20,
    )  # fmt: skip
    theirs = randomize_weights(hf.AlbertForPreTraining(config))
    given = make_samples({**TEXT.fields, "token_type_ids": TokenIds("seq", 2)}, {"seq": (7, 1, 4)})

    def published(x: Inputs) -> Inputs:
        made = theirs(**x)
        return {"prediction_logits": made.prediction_logits, "order_logits": made.sop_logits}

    compare(
        files(theirs, "albert", tmp_path),
        given,
        published,
        {"prediction_logits": "seq", "order_logits": ""},
    )


@pytest.mark.parametrize("scaling", ["default", "short", "long"])
def test_phi3(scaling: str, tmp_path: Path) -> None:
    original = 4 if scaling == "long" else 32
    longrope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
        "short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 3.0, 4.0], "original_max_position_embeddings": original,
    }  # fmt: skip
    more = (
        {}
        if scaling == "default"
        else {"rope_parameters": longrope, "original_max_position_embeddings": original}
    )
    config = hf.Phi3Config(
        vocab_size=WORDS, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, sliding_window=3, pad_token_id=0, eos_token_id=1,
        bos_token_id=2, **more,
    )  # fmt: skip
    theirs = randomize_weights(hf.Phi3ForCausalLM(config))
    ours = files(theirs, "phi3", tmp_path, context=8)
    compare(ours, TEXT, lambda x: {"logits": theirs(**x).logits}, {"logits": "seq"})


@pytest.mark.parametrize(
    "end", [2, WORDS - 1], ids=["the greatest id ends a text", "one id ends a text"]
)
def test_clip(end: int, tmp_path: Path) -> None:
    text = {
        "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 12, "eos_token_id": end,
    }  # fmt: skip
    vision = {
        "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "image_size": 8, "patch_size": 4,
    }  # fmt: skip
    theirs = randomize_weights(
        hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    )
    given = make_samples(
        {**TEXT.fields, "pixel_values": FixedValues((3, 8, 8))}, {"seq": (7, 1, 4)}
    )
    for row in given.rows:  # every text ends with its end
        row["input_ids"][:] %= WORDS - 1
        row["input_ids"][-1] = WORDS - 1

    ours = files(theirs, "clip", tmp_path)
    together = {**given.make_batch("right")}
    ids, keep = together["input_ids"], together["attention_mask"]
    ids[~keep] = 0  # the published code looks for the end in padding too
    with torch.no_grad():
        pixels = torch.from_numpy(together["pixel_values"]).double()
        made = theirs(torch.from_numpy(ids), pixels, torch.from_numpy(keep).long())
    for found in (run_reference(ours.spec, ours.weights, together), ours.compiled.run(**together)):
        for name in ("logits_per_image", "image_embeds", "text_embeds"):
            assert_arrays_close(found[name], made[name].numpy(), name, 1e-5)


def test_vision_encoder_decoder(tmp_path: Path) -> None:
    encoder = hf.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        image_size=8,
        patch_size=4,
    )
    decoder = hf.TrOCRConfig(
        vocab_size=WORDS, d_model=24, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=40,
        max_position_embeddings=20, cross_attention_hidden_size=32, decoder_start_token_id=2,
    )  # fmt: skip
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 2, 1
    theirs = randomize_weights(hf.VisionEncoderDecoderModel(config))
    given = make_samples(
        {
            "pixel_values": FixedValues((3, 8, 8)),
            "ids": TokenIds("seq", WORDS),
            "keep": PaddingMask("seq"),
        },
        {"seq": (7, 1, 4)},
    )

    def published(x: Inputs) -> Inputs:
        made = theirs(
            pixel_values=x["pixel_values"],
            decoder_input_ids=x["ids"],
            decoder_attention_mask=x["keep"].long(),
        )
        return {"logits": made.logits}

    compare(files(theirs, "vision_encoder_decoder", tmp_path), given, published, {"logits": "seq"})
