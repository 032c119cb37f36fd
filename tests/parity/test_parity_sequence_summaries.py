"""Sequence summaries (transformers' SequenceSummary): the double heads of GPT and GPT-2 and
ELECTRA's multiple choice, for each `summary_*` key.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.elaborated_specs import assert_arrays_close
from support.hf_cases import ModelCase
from support.published_models import open_weighted_spec

from specc.diagnostics.diagnostic import SpeccError

pytestmark = pytest.mark.parity

GPT: dict[str, Any] = {
    "vocab_size": 31, "n_positions": 16, "n_embd": 24, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
ELECTRA: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 24, "embedding_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": 16,
}  # fmt: skip
FAMILIES = {
    "GPT2": ("GPT2Config", "GPT2DoubleHeadsModel"),
    "OpenAIGPT": ("OpenAIGPTConfig", "OpenAIGPTDoubleHeadsModel"),
}
KEYS: list[dict[str, Any]] = [
    {},
    {"summary_activation": "tanh"},
    {"summary_proj_to_labels": False, "summary_activation": "gelu"},
    {"summary_use_proj": False},
]


def questions() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return three questions with four choices each, of different lengths, and the padding mask."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 8, (3, 4, 1))
    return rng.integers(1, 31, (3, 4, 7)), np.arange(7) < lengths


@pytest.mark.parametrize("more", KEYS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_double_heads(family: str, more: Mapping[str, Any], tmp_path: Path) -> None:
    """The summary reads the given position, in a padded batch; without one, the last position."""
    config, model = FAMILIES[family]
    theirs = ModelCase(config=config, model=model, tiny={**GPT, **more}).save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path).compiled
    ids, keep = questions()
    rows = keep.sum(axis=2) - 1
    whole = {"input_ids": ids}
    padded = {"input_ids": ids, "attention_mask": keep}
    for given, real in ((padded, keep), (whole, np.ones_like(keep))):
        told = {**given, "mc_token_ids": rows} if given is padded else given
        if family == "OpenAIGPT":
            # takes no mask of choices there; rows that exist see none that do not
            told = {n: v for n, v in told.items() if n != "attention_mask"}
        with torch.no_grad():
            wanted = theirs(**{n: torch.tensor(v).long() for n, v in told.items()})
        # where nobody names the row it is the last that exists
        made = ours.run(**given)
        for mine, name in (("lm_logits", "logits"), ("mc_logits", "mc_logits")):
            by = real if name == "logits" else ...
            assert_arrays_close(made[mine][by], wanted[name].numpy()[by], name, 1e-5)


def test_given_summary_position(tmp_path: Path) -> None:
    config, model = FAMILIES["GPT2"]
    theirs = ModelCase(config=config, model=model, tiny=GPT).save_checkpoint(tmp_path)
    given = {"input_ids": questions()[0], "mc_token_ids": np.array([[0, 1, 2, 3]] * 3)}
    with torch.no_grad():
        wanted = theirs(**{n: torch.tensor(v) for n, v in given.items()}).mc_logits
    made = open_weighted_spec(str(tmp_path), tmp_path).compiled.run(**given)["mc_logits"]
    assert_arrays_close(made, wanted.numpy(), "mc_logits", 1e-5)


@pytest.mark.parametrize("kind", ["first", "last", "mean"])
def test_a_summary_over_choices_is_refused(kind: str, tmp_path: Path) -> None:
    config, model = FAMILIES["GPT2"]
    ModelCase(config=config, model=model, tiny={**GPT, "summary_type": kind}).save_checkpoint(
        tmp_path
    )
    with pytest.raises(SpeccError, match="only summary_type cls_index"):
        open_weighted_spec(str(tmp_path), tmp_path)


CHOOSING = {
    **{
        f"electra, {kind}, {more}": ("Electra", {**ELECTRA, **more, "summary_type": kind})
        for kind in ("first", "last", "mean", "cls_index")
        for more in ({}, {"summary_activation": "tanh"}, {"summary_use_proj": False})
    },
    "roformer": ("RoFormer", ELECTRA),
}


@pytest.mark.parametrize(("family", "tiny"), CHOOSING.values(), ids=CHOOSING)
def test_choices(family: str, tiny: dict[str, Any], tmp_path: Path) -> None:
    """Sequences without padding, because the class pools all positions."""
    case = ModelCase(config=f"{family}Config", model=f"{family}ForMultipleChoice", tiny=tiny)
    theirs = case.save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path).compiled
    ids, _ = questions()
    with torch.no_grad():
        wanted = theirs(input_ids=torch.tensor(ids)).logits.numpy()
    assert_arrays_close(ours.run(input_ids=ids)["logits"], wanted, "logits", 1e-5)
    # a row that does not exist counts nowhere
    longer = np.pad(ids, ((0, 0), (0, 0), (0, 2)), constant_values=5)
    keep = np.arange(9) < 7
    told = {"input_ids": longer, "attention_mask": np.broadcast_to(keep, longer.shape)}
    assert_arrays_close(ours.run(**told)["logits"], wanted, "padded", 1e-5)
