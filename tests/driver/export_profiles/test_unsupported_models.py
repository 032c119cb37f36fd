"""E0751 and E0752: unknown profiles, and models that a profile does not support, with the
reason."""

import pytest
from support.profiled_models import open_profiled_model

from specc.diagnostics.diagnostic import Diagnostic, SpeccError
from specc.driver.genai_config_and_export_profiles import check_export_profile

SMALL: dict[str, dict[str, object]] = {
    "lstm_lm": {"vocab": 11, "width": 8},
    "rnnsearch": {"src_vocab": 11, "tgt_vocab": 11, "embed_dim": 8, "hidden": 8, "readout": 8},
    "transformer": {"layers": 1, "d": 8, "heads": 2, "vocab": 20, "hidden": 16},
    "encoder_decoder": {
        "width": 8, "heads": 2, "vocab": 20, "hidden": 16, "encoder__layers": 1, "decoder__layers": 1,
        "decoder__attention__mask": "window(4)",
    },
}  # fmt: skip


def get_profile_error(profile: str, spec: str) -> Diagnostic:
    with pytest.raises(SpeccError) as caught:
        open_profiled_model(profile, spec, **SMALL[spec])
    (found,) = caught.value.diagnostics
    assert found.code == "E0752"
    assert found.helps
    return found


@pytest.mark.parametrize(
    ("profile", "spec", "why"),
    [
        (
            "genai",
            "lstm_lm",
            "the step graph has the state `rnn.state`, the state of a loop or a cumulative sum",
        ),
        (
            "hf",
            "rnnsearch",
            "the step graph has the state `decoder.rnn.state`, the state of a loop or a cumulative sum",
        ),
        ("genai", "transformer", "`source_keep` is computed once and passed to every step"),
        (
            "hf",
            "encoder_decoder",
            "`decoder.layers.0.self_attn.key` keeps only the newest 3 positions",
        ),
    ],
)
def test_reason_of_an_unsupported_model(profile: str, spec: str, why: str) -> None:
    assert (
        get_profile_error(profile, spec).title
        == f"this model does not fit the profile `{profile}`: {why}"
    )


def test_note_names_the_other_program() -> None:
    assert get_profile_error("genai", "lstm_lm").notes[0].startswith("onnxruntime-genai passes")
    assert "Optimum" in get_profile_error("hf", "rnnsearch").notes[0]


def test_unknown_profile_suggests_a_name() -> None:
    with pytest.raises(SpeccError) as caught:
        check_export_profile("gen-ai")
    (found,) = caught.value.diagnostics
    assert (found.code, found.helps) == ("E0751", ("did you mean `genai`?",))
