"""Generation settings: merging of the spec's and the caller's settings, and validation."""

from typing import Any

import numpy as np
import pytest

from specc.decode.generation_settings import (
    GenerationArguments,
    GenerationSettings,
    merge_caller_settings,
)
from specc.decode.setting_names_and_limits import GENERATION_OPTIONS
from specc.diagnostics.diagnostic import SpeccError

BEAM = {"start": 1, "stop": 2, "strategy": {"kind": "beam", "num_beams": 12, "length_penalty": 0.6}}


def get_errors(said: dict[str, Any], **given: Any) -> list[tuple[str, str]]:
    with pytest.raises(SpeccError) as caught:
        merge_caller_settings(said, **given)
    return [(d.code, d.title) for d in caught.value.diagnostics]


def test_default_is_greedy() -> None:
    assert merge_caller_settings({}) == GenerationSettings()
    assert merge_caller_settings({"stop": None, "strategy": None}) == GenerationSettings()


def test_settings_of_a_spec() -> None:
    made = merge_caller_settings(BEAM)
    assert (made.strategy, made.num_beams, made.length_penalty) == ("beam", 12, 0.6)
    assert (made.start, made.stop, made.padding_token) == ((1,), (2,), 2)
    drawn = merge_caller_settings(
        {"strategy": {"kind": "sample", "temperature": 1, "top_k": 5}, "pad": 7, "stop": [3, 4]}
    )
    assert (drawn.temperature, drawn.top_k, drawn.stop, drawn.padding_token) == (1.0, 5, (3, 4), 7)
    assert type(drawn.temperature) is float
    assert merge_caller_settings({"strategy": "sample"}).strategy == "sample"


def test_caller_overrides_the_spec() -> None:
    made = merge_caller_settings(
        BEAM, num_beams=np.int64(3), stop=[], max_tokens=None, stop_strings="\n"
    )
    assert (made.num_beams, made.length_penalty, made.stop, made.max_tokens) == (3, 0.6, (), 256)
    assert made.stop_strings == ("\n",)
    assert type(made.num_beams) is int


def test_options_belong_to_their_strategy() -> None:
    said = {"strategy": {"kind": "sample", "temperature": 0.5, "repetition_penalty": 1.3}}
    assert merge_caller_settings(said, top_k=3).temperature == 0.5
    assert merge_caller_settings(said, strategy="greedy") == GenerationSettings()
    assert merge_caller_settings(said, strategy="beam") == GenerationSettings(strategy="beam")


@pytest.mark.parametrize(
    ("given", "strategy"),
    [({"temperature": 0.7}, "sample"), ({"min_p": 0.1}, "sample"), ({"num_beams": 2}, "beam"), ({"num_return_sequences": 2}, "beam"),
     ({"repetition_penalty": 1.2}, "greedy")],
)  # fmt: skip
def test_option_implies_its_strategy(given: dict[str, Any], strategy: str) -> None:
    assert merge_caller_settings({}, **given).strategy == strategy


def test_num_return_sequences_raises_num_beams() -> None:
    assert merge_caller_settings({}, num_return_sequences=9).num_beams == 9
    assert merge_caller_settings({}, num_return_sequences=2).num_beams == 4


@pytest.mark.parametrize(
    "given",
    [{"temperature": 0}, {"temperature": -1.0}, {"temperature": float("nan")}, {"temperature": float("inf")},
     {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -1}, {"top_k": 2.5}, {"top_k": True}, {"min_p": -0.1}, {"min_p": 1.5},
     {"num_beams": 0}, {"num_return_sequences": 0}, {"early_stopping": "always"}, {"length_penalty": "long"}, {"max_tokens": 0},
     {"repetition_penalty": 0}, {"seed": -1}, {"seed": 2**64}, {"stop": -1}, {"stop": [1, "x"]}, {"stop_strings": ""},
     {"stop_strings": ["a", ""]}, {"pad": 1.5}, {"strategy": "magic"}, {"log_probs": 1}, {"start": "x"}],
    ids=str,
)  # fmt: skip
def test_values_out_of_range(given: dict[str, Any]) -> None:
    ((code, title),) = get_errors({}, **given)
    assert code == "E0732"
    assert title.startswith(f"`{next(iter(given))}` must be ")


def test_messages_name_the_range() -> None:
    assert get_errors({}, top_p=1.5) == [
        ("E0732", "`top_p` must be a number above 0 and at most 1, got 1.5")
    ]
    assert get_errors({}, strategy="\x1b[31m")[0][1].endswith(', got "\\x1b[31m"')


@pytest.mark.parametrize(
    ("name", "meant"),
    [("temprature", "temperature"), ("n_best", "num_return_sequences"), ("beams", "num_beams"), ("width", "num_beams"), ("max_new_tokens", "max_tokens"),
     ("eos_token_id", "stop"), ("topk", "top_k"), ("do_sample", "strategy")],
)  # fmt: skip
def test_unknown_setting_suggests_a_name(name: str, meant: str) -> None:
    with pytest.raises(SpeccError) as caught:
        merge_caller_settings({}, **{name: 1})
    (found,) = caught.value.diagnostics
    assert (found.code, found.helps) == ("E0731", (f"did you mean `{meant}`?",))


def test_conflicting_settings() -> None:
    assert get_errors({}, num_beams=4, temperature=0.7)[0][0] == "E0733"
    assert get_errors(BEAM, strategy="beam", top_k=4) == [
        ("E0733", "`top_k` has no effect with the strategy `beam`")
    ]
    assert get_errors({}, strategy="greedy", num_return_sequences=2)[0][0] == "E0733"
    assert get_errors({}, num_beams=2, num_return_sequences=3) == [
        ("E0733", "`num_return_sequences` must be at most 2 (`num_beams`), got 3")
    ]
    assert get_errors(BEAM, num_return_sequences=13)[0][0] == "E0733"
    assert get_errors({}, seed=3) == [("E0733", "`seed` has no effect with the strategy `greedy`")]
    assert get_errors(BEAM, seed=3)[0][0] == "E0733"
    # it does not imply beam search
    assert get_errors({}, renormalize_logits=True)[0][0] == "E0733"


def test_manifest_settings_are_validated() -> None:
    said = {
        "stop": -1,
        "limit": 3,
        "strategy": {"kind": "beam", "args": [4], "top_k": 2, "num_beams": "wide"},
    }
    assert [code for code, _ in get_errors(said)] == ["E0732", "E0731", "E0731", "E0731", "E0732"]
    assert get_errors({"strategy": 3})[0][0] == "E0732"
    assert get_errors({"strategy": {"num_beams": 3}})[0][0] == "E0732"


def test_all_errors_are_reported() -> None:
    assert len(get_errors({"stop": -1}, top_p=0, beam=1)) == 3


def test_typed_arguments_equal_the_options() -> None:
    """`GenerationArguments` has exactly the checked options."""
    assert set(GenerationArguments.__annotations__) == {
        option.name for option in GENERATION_OPTIONS
    }
