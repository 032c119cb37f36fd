"""Rotary settings of a config.json: both forms, wrong values refused and never replaced by defaults."""

import json
from typing import Any

import pytest

from specc.elaborate.config import Reader
from specc.elaborate.config_json import config_source, read_config
from specc.elaborate.model import context_of, requirements
from specc.elaborate.modules import module_of, program_of
from specc.elaborate.values import Rope
from specc.lang.read import decode, read
from specc.library import Files
from specc.text.diagnostic import Failed

SPEC = """specc 1
model m
config {
  turn: rope from rope_config(theta=10000.0)
}
dims n
graph g(x: float[n]) -> (y: float[n]) {
  return x
}
"""
LIBRARY = Files()


def settings(config: dict[str, Any]) -> Rope:
    program = program_of(module_of(read(decode(SPEC.encode(), "m.specc")), "m.specc"), LIBRARY)
    raw = read_config(config_source(json.dumps(config).encode(), "config.json"))
    found = requirements(context_of(LIBRARY), program, Reader(published=LIBRARY.published, raw=raw))["turn"]
    assert isinstance(found, Rope)
    return found


def test_both_forms_say_the_same() -> None:
    new = settings({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4}})
    old = settings({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}})
    assert new == old == Rope(5e5, "linear", (("factor", 4.0),))
    assert settings({"model_type": "x"}) == settings({"rope_theta": None, "rope_scaling": None}) == Rope(10000.0)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": "10000"},
        {"rope_theta": True},
        {"rope_theta": 0},
        {"rope_theta": -1.0, "rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_theta": 10000.0, "rope_parameters": {"rope_theta": 5e5}},
        {"rope_scaling": "linear"},
        {"rope_scaling": [2]},
        {"rope_scaling": {"type": "linear", "factor": "8"}},
        {"rope_scaling": {"type": "linear", "factor": 0}},
        {"rope_scaling": {"type": {"a": 1}, "factor": 2}},
        {"rope_scaling": {"type": "none-such", "factor": 2}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}},
        {"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 8}},
    ],
    ids=json.dumps,
)
def test_what_cannot_be_used_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(Failed, match="E0403"):
        settings(config)
