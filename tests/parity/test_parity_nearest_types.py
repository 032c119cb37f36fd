"""The supported type that an unsupported one is answered with, over the config classes of
transformers.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from specc.diagnostics.diagnostic import SpeccError
from specc.huggingface.model_family import (
    count_matching_keys_by_spec,
    find_spec_for_checkpoint,
    map_model_types_to_specs,
)
from specc.library.spec_file_lookup import load_config_json

pytestmark = pytest.mark.parity

READ = map_model_types_to_specs()
UNREAD = [
    "funnel", "gemma3n", "janus", "mllama", "pop2piano", "sam2", "swin2sr",
]  # fmt: skip
LIKE = {"swin2sr": {"swin", "swinv2"}}
"""By transformers' documentation these are variants of the others."""


def config_of(kind: str) -> dict[str, Any]:
    """Return the config.json that the class of a type writes by default, as JSON."""
    text = CONFIG_MAPPING[kind]().to_json_string(use_diff=False)
    return dict(json.loads(text))


def named(config: dict[str, Any], directory: Path) -> str:
    """Return the type that E0419 names for a config.json."""
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpeccError, match="E0419") as failed:
        find_spec_for_checkpoint(str(directory))
    found = failed.value.diagnostics[0].helps[0]
    return found.split("`")[1] if "most similar" in found else ""


@pytest.mark.parametrize("kind", UNREAD)
def test_an_unread_type_names_a_type_that_is_read(kind: str, tmp_path: Path) -> None:
    assert kind not in READ
    near = named(config_of(kind), tmp_path)
    assert near in READ
    assert near in LIKE.get(kind, READ)


@pytest.mark.parametrize("kind", sorted(set(READ) & set(CONFIG_MAPPING)))
def test_a_renamed_type_names_a_spec_that_reads_as_many_keys(kind: str, tmp_path: Path) -> None:
    near = named({**config_of(kind), "model_type": "unheard"}, tmp_path)
    read = count_matching_keys_by_spec(load_config_json(tmp_path))
    assert read[READ[near]] >= read[READ[kind]]
