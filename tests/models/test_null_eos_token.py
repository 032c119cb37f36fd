""" "eos_token_id": null in a config.json means no stop token, as in transformers; the default of
the family applies only if the key is missing.
"""

import json
from pathlib import Path

import pytest
from support.mechanism_sample import sample_mechanisms
from support.small_configs import SMALL_CONFIGS

from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.syntax import ast


def list_stop_fields(spec: str) -> list[ast.ConfigField]:
    """Return the fields that are stop tokens of a spec."""
    return [
        field
        for field in open_spec(spec).program.map_fields_by_path().values()
        if any(
            isinstance(s, ast.StringLiteral) and s.value == "eos_token_id" for s in field.sources
        )
        and (field.type.name == "list" or field.name == "stop")
    ]


@pytest.mark.parametrize("spec", sample_mechanisms([*SMALL_CONFIGS]))
def test_stop_tokens_may_be_none(spec: str) -> None:
    for field in list_stop_fields(spec):
        nothing = isinstance(field.default, ast.ListLiteral) and not field.default.items
        assert field.type.optional or nothing


def test_null_means_no_stop_token(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    stops = []
    for more in ({}, {"eos_token_id": None}, {"eos_token_id": 7}):
        config.write_text(json.dumps({"model_type": "llama", **more}), encoding="utf-8")
        found = elaborate_spec(open_spec("llama", config=str(config)))
        assert found.generation is not None
        stops.append(found.generation.settings["stop"])
    assert stops == [[2], None, [7]]
