"""Encoder-decoder families (BART and similar), from directories saved by transformers."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.hf_cases import (
    MAX_NEW_TOKENS,
    PROMPTS,
    ModelCase,
    check_model_outputs,
    check_translation,
    generate_published,
    make_source_head_case,
    pad_left,
)
from support.padded_batches import PaddingMask, TokenIds, make_samples

import specc

pytestmark = pytest.mark.parity

PAD, START, STOP = 30, 29, 2
GIVEN = make_samples(
    {
        "source": TokenIds("src", 29),
        "source_keep": PaddingMask("src"),
        "target": TokenIds("tgt", 29),
        "target_keep": PaddingMask("tgt"),
    },
    {"src": (7, 1, 4), "tgt": (6, 2, 3)},
)
RENAMED = {
    "source": "input_ids",
    "source_keep": "attention_mask",
    "target": "decoder_input_ids",
    "target_keep": "decoder_attention_mask",
}
SMALL: dict[str, Any] = {
    "vocab_size": 31, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
    "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": STOP, "decoder_start_token_id": START,
    "forced_eos_token_id": None,
}  # fmt: skip


def case(
    family: str,
    model: str = "ForConditionalGeneration",
    results: Mapping[str, str] | None = None,
    float32_only: bool = False,
    **more: Any,
) -> ModelCase:
    return ModelCase(
        config=f"{family}Config",
        model=f"{family}{model}",
        tiny={**SMALL, **more},
        results=results or {"logits": "tgt"},
        samples=GIVEN,
        renamed=RENAMED,
        seed=1,
        weight_scale=1.5,
        float32_only=float32_only,
    )


LED = {
    "attention_window": 4, "max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 32,
}  # fmt: skip


def led(model: str, results: Mapping[str, str], marked: bool, **more: Any) -> ModelCase:
    """The longest source is longer than a window; `marked`: its tokens may be global."""
    case_ = case("LED", model, results, **{**LED, **more})
    fields = dict(GIVEN.fields)
    if marked:
        fields["global_attention_mask"] = TokenIds("src", 2)
    return replace(case_, samples=make_samples(fields, {"src": (9, 1, 5), "tgt": (6, 2, 3)}))


LED_CASES = {
    "LEDModel": led("Model", {"last_hidden_state": "tgt", "encoder_last_hidden_state": "src"}, True),
    "LEDForConditionalGeneration": led("ForConditionalGeneration", {"logits": "tgt"}, True),
    "LED, untied": led(
        "ForConditionalGeneration", {"logits": "tgt"}, True,
        tie_word_embeddings=False, attention_window=[4, 8], activation_function="relu",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LED_CASES.values(), ids=LED_CASES)
def test_led(case: ModelCase, tmp_path: Path) -> None:
    """Sources are padded on the right only."""
    check_model_outputs(case, tmp_path)


def test_led_generates(tmp_path: Path) -> None:
    check_translation(led("ForConditionalGeneration", {"logits": "tgt"}, False), tmp_path)


def pegasus_x(
    model: str = "ForConditionalGeneration", results: Mapping[str, str] | None = None, **more: Any
) -> ModelCase:
    """The longest source has several blocks of local attention."""
    sizes = {"block_size": 4, "num_global_tokens": 3, "encoder_layers": 3}
    made = case("PegasusX", model, results, **{**sizes, **more})
    return replace(made, samples=make_samples(GIVEN.fields, {"src": (11, 1, 6), "tgt": (6, 2, 3)}))


PEGASUS_X_CASES = {
    "PegasusXForConditionalGeneration": pegasus_x(),
    "PegasusXModel": pegasus_x(
        "Model", {"last_hidden_state": "tgt", "encoder_last_hidden_state": "src"}
    ),
    "PegasusX, odd blocks, not staggered": pegasus_x(
        stagger_local_blocks=False, block_size=5, num_global_tokens=1, scale_embedding=False
    ),
    "PegasusX, untied": pegasus_x(
        tie_word_embeddings=False, activation_function="relu", block_size=2
    ),
    "PegasusX, one block": pegasus_x(block_size=64),
}


@pytest.mark.parametrize("case", PEGASUS_X_CASES.values(), ids=PEGASUS_X_CASES)
def test_pegasus_x(case: ModelCase, tmp_path: Path) -> None:
    """Sources are padded on the right only."""
    check_model_outputs(case, tmp_path)


@pytest.mark.parametrize("case", [pegasus_x(), pegasus_x(block_size=2)], ids=["4", "2"])
def test_pegasus_x_generates(case: ModelCase, tmp_path: Path) -> None:
    check_translation(case, tmp_path)


ALONE = [
    "Bart",
    "MBart",
    "Marian",
    "Pegasus",
    "Blenderbot",
    "PLBart",
    "BlenderbotSmall",
    "Mvp",
    "BigBirdPegasus",
]
MVP_PROMPTS: dict[str, Any] = {"use_prompt": True, "prompt_length": 5, "prompt_mid_dim": 14}
CASES = {
    "bart": case("Bart"),
    "bart, scaled": case("Bart", scale_embedding=True, activation_function="relu"),
    "mbart": case("MBart"),
    "marian": case("Marian", "MTModel", activation_function="silu"),
    "marian, two vocabularies": case(
        "Marian",
        "MTModel",
        share_encoder_decoder_embeddings=False,
        decoder_vocab_size=37,
        scale_embedding=True,
    ),
    "pegasus": case("Pegasus", scale_embedding=True),
    "blenderbot": case("Blenderbot"),
    "plbart": case("PLBart"),
    "plbart, not scaled": case("PLBart", scale_embedding=False, activation_function="relu"),
    "blenderbot_small": case("BlenderbotSmall"),
    "blenderbot_small, scaled": case("BlenderbotSmall", scale_embedding=True),
    "m2m_100": case("M2M100"),
    "bigbird_pegasus": case("BigBirdPegasus"),
    "bigbird_pegasus, full attention": case(
        "BigBirdPegasus",
        attention_type="original_full",
        use_bias=True,
        scale_embedding=False,
        activation_function="relu",
    ),
    "mvp": case("Mvp"),
    "mvp, scaled": case("Mvp", scale_embedding=True, activation_function="relu"),
    "mvp, prompts": case("Mvp", **MVP_PROMPTS),
    "mvp, prompts, untied": case("Mvp", tie_word_embeddings=False, **MVP_PROMPTS),
    **{
        f"{family}, untied": case(
            family,
            "MTModel" if family == "Marian" else "ForConditionalGeneration",
            tie_word_embeddings=False,
        )
        for family in (
            "Bart",
            "MBart",
            "Marian",
            "Pegasus",
            "Blenderbot",
            "M2M100",
            "PLBart",
            "BlenderbotSmall",
            "Mvp",
            "BigBirdPegasus",
        )
    },
    "marian, two vocabularies, untied": case(
        "Marian",
        "MTModel",
        share_encoder_decoder_embeddings=False,
        decoder_vocab_size=37,
        tie_word_embeddings=False,
    ),
    # its mask of what is ahead is only made where nothing is kept between steps
    "fsmt": case(
        "FSMT",
        float32_only=True,
        src_vocab_size=35,
        tgt_vocab_size=31,
        use_cache=False,
        num_beams=1,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_scores(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_generation(case: ModelCase, tmp_path: Path) -> None:
    """Twenty tokens, greedy and with beam search, for sources of different lengths."""
    check_translation(case, tmp_path)


@pytest.mark.parametrize(
    "name", ["bart", "mbart", "marian", "pegasus", "blenderbot", "m2m_100", "mvp", "fsmt", "led"]
)
def test_several_stop_tokens(name: str, tmp_path: Path) -> None:
    """Half of the vocabulary ends a sequence."""
    case = CASES.get(name, LED_CASES["LEDForConditionalGeneration"])
    check_translation(
        replace(case, tiny={**case.tiny, "eos_token_id": [*range(2, 29, 2)]}), tmp_path
    )


# with seed 0 a term of MBart's scores is 17 times the largest that they add up to in one
# text, and so is what float32 rounds off
HEADS = {
    f"{family}{head}": make_source_head_case(
        f"{family}Config", f"{family}{head}", SMALL, STOP, seed=1
    )
    for family in ("Bart", "MBart", "Mvp", "BigBirdPegasus")
    for head in ("ForSequenceClassification", "ForQuestionAnswering")
}
HEADS |= {
    f"PLBart, padding {pad}": make_source_head_case(
        "PLBartConfig",
        "PLBartForSequenceClassification",
        {**SMALL, "pad_token_id": pad},
        STOP,
        seed=1,
        lengths=(7, 2, 4),
    )
    for pad in (PAD, STOP)
}
HEADS |= {
    f"Mvp{head}, prompts": make_source_head_case(
        "MvpConfig", f"Mvp{head}", SMALL | MVP_PROMPTS, STOP, seed=1
    )
    for head in ("ForSequenceClassification", "ForQuestionAnswering")
}
HEADS["LEDForQuestionAnswering"] = make_source_head_case(
    "LEDConfig",
    "LEDForQuestionAnswering",
    SMALL | LED,
    STOP,
    fields={"global_attention_mask": TokenIds("src", 1)},
    seed=1,
)
# a text of nothing but padding has no token that MBart could begin with
HEADS |= {
    f"{family}{head}, whose padding is the end": make_source_head_case(
        f"{family}Config",
        f"{family}{head}",
        {**SMALL, "pad_token_id": STOP},
        STOP,
        seed=1,
        lengths=(7, 2, 4),
    )
    for family in ("Bart", "MBart", "Mvp")
    for head in ("ForSequenceClassification", "ForQuestionAnswering")
}


@pytest.mark.parametrize("case", HEADS.values(), ids=HEADS)
def test_heads_with_shifted_inputs(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


@pytest.mark.parametrize("family", [*ALONE, "M2M100"])
def test_base_models(family: str, tmp_path: Path) -> None:
    """The model without a head, whose files have no prefix."""
    plain = case(family, "Model", results={"last_hidden_state": "tgt"})
    check_model_outputs(plain, tmp_path)


def alone(family: str, **more: Any) -> ModelCase:
    """Return a decoder without an encoder."""
    return ModelCase(
        config=f"{family}Config",
        model=f"{family}ForCausalLM",
        tiny={**SMALL, **more},
        results={"logits": "tgt"},
        samples=make_samples(
            {"target": TokenIds("tgt", 29), "target_keep": PaddingMask("tgt")}, {"tgt": (6, 2, 3)}
        ),
        renamed={"target": "input_ids", "target_keep": "attention_mask"},
        seed=2 if family == "BigBirdPegasus" else 1,  # two tokens are too close with seed 1
        weight_scale=1.5,
    )


@pytest.mark.parametrize("family", ALONE)
def test_standalone_decoders(family: str, tmp_path: Path) -> None:
    check_model_outputs(alone(family, scale_embedding=family == "MBart"), tmp_path)


@pytest.mark.parametrize("family", ALONE)
def test_untied_standalone_decoders(family: str, tmp_path: Path) -> None:
    check_model_outputs(alone(family, tie_word_embeddings=False), tmp_path)


@pytest.mark.parametrize("family", ALONE)
def test_standalone_decoders_generate(family: str, tmp_path: Path) -> None:
    """Each prompt of a batch gives the tokens that it gives alone: the published class counts
    position ids from the start of padding.
    """
    theirs = alone(family).save_checkpoint(tmp_path).double()
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    model = specc.load(tmp_path / "package", threads=1)
    ids, keep = pad_left(PROMPTS)
    for beams in (1, 4):
        how: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
        if beams > 1:
            how |= {"strategy": "beam", "num_beams": beams, "early_stopping": False}
        made = model.generate(target=ids, target_keep=keep, **how).results()
        wanted = [generate_published(theirs, [prompt], beams)[0] for prompt in PROMPTS]
        assert [list(row[0].tokens) for row in made] == wanted, f"{beams} beams"
