"""A config.json whose "eos_token_id" is null is that of a model that no token ends, as
in transformers: the default of the family is for files that leave the key out.
"""

import json
from pathlib import Path

import pytest
from support.small_configs import SMALL_CONFIGS

from specc.driver.spec_loader import elaborate_spec, open_spec
from specc.syntax import ast


def ends(spec: str) -> list[ast.Field]:
    """The fields that are the tokens at which a spec stops."""
    return [
        field
        for field in open_spec(spec).program.list_fields_by_path().values()
        if any(isinstance(s, ast.TextLiteral) and s.value == "eos_token_id" for s in field.sources)
        and (field.type.name == "list" or field.name == "stop")
    ]


@pytest.mark.parametrize("spec", SMALL_CONFIGS)
def test_the_tokens_that_end_a_text_may_be_none(spec: str) -> None:
    for field in ends(spec):
        nothing = isinstance(field.default, ast.ListLiteral) and not field.default.items
        assert field.type.optional or nothing


def test_null_is_no_end(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    stops = []
    for more in ({}, {"eos_token_id": None}, {"eos_token_id": 7}):
        config.write_text(json.dumps({"model_type": "llama", **more}), encoding="utf-8")
        found = elaborate_spec(open_spec("llama", config=str(config)))
        assert found.generation is not None
        stops.append(found.generation.settings["stop"])
    assert stops == [[2], None, [7]]
