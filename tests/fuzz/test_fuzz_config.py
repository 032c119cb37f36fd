"""Mutated config.json files: every value of every wrong kind, and changed bytes."""

import json
import random
from functools import cache
from typing import Any

import pytest
from support.parameter_sweeps import sample_sweep

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import LoadedSpec, open_spec
from specc.frontend.config_values import ConfigReadOptions
from specc.frontend.json_parser_with_spans import decode_config_source, parse_config_json
from specc.frontend.spec_modules import collect_fields_by_path
from specc.syntax import ast

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 7, 2**31, 2**53 - 1, 2**53, 10**400, 0.5, 768.0, -0.0, 1e308, "", "768", "gelu",
    "none", "𝔘", "a\nb", [], [1], [None], ["a", 2], {}, {"rope_type": "yarn"}, {"type": "su"}, {"a": {"b": [1, {}]}},
]  # fmt: skip
NAMES = ("gpt2", "bert", "vit", "vit_mae")


@cache
def opened(name: str) -> LoadedSpec:
    return open_spec(name)


def list_config_keys(spec: LoadedSpec) -> list[str]:
    """Return every key of a config.json that a spec reads."""
    fields = collect_fields_by_path(spec.program.iterate_fields()).values()
    return sorted({s.value for f in fields for s in f.sources if isinstance(s, ast.StringLiteral)})


def assert_read_or_refused(name: str, data: bytes) -> None:
    spec = opened(name)
    try:
        raw = parse_config_json(decode_config_source(data, "config.json"))
        check_spec(LoadedSpec(spec.program, spec.library, ConfigReadOptions(config_file=raw), name))
    except SpeccError as failed:
        assert failed.diagnostics
    except Exception as error:
        error.add_note(f"{name}: {data!r}")
        raise


def mutant(rng: random.Random, keys: list[str]) -> bytes:
    config = {key: rng.choice(ODD) for key in rng.sample(keys, k=min(len(keys), rng.randint(1, 3)))}
    data = bytearray(json.dumps(config).encode())
    if rng.random() < 0.3:
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "many"),
    [
        *sample_sweep([(name, 12) for name in NAMES]),
        *(pytest.param(name, 200, marks=pytest.mark.slow) for name in NAMES),
    ],
)
def test_mutated_configs_are_read_or_refused(name: str, many: int) -> None:
    rng = random.Random(name)
    keys = list_config_keys(opened(name))
    for _ in range(many):
        assert_read_or_refused(name, mutant(rng, keys))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_key_with_every_odd_value_is_read_or_refused(name: str) -> None:
    for key in list_config_keys(opened(name)):
        for value in ODD:
            assert_read_or_refused(name, json.dumps({key: value}).encode())
