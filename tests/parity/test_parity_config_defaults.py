"""A key that is absent from config.json has the default of the transformers config class.

For each built-in spec with a published type: a config.json with only `model_type` gives the same
config as one with all class defaults written out.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from specc.driver.spec_loader import warn_unread_keys
from specc.frontend.config_json import decode_config_source, parse_config_json
from specc.frontend.config_values import ConfigReader
from specc.frontend.section_evaluation import value_to_plain_data
from specc.frontend.spec_modules import Program, build_program
from specc.frontend.spec_to_graph import create_context, elaborate_model, evaluate_and_check_config
from specc.frontend.used_specs import choose_used_specs
from specc.ir.ir_text import format_ir
from specc.library.spec_files import SpecLibrary, find_builtin_specs
from specc.syntax import ast

pytestmark = pytest.mark.parity

LIBRARY = SpecLibrary()


def families() -> Iterator[tuple[str, str]]:
    """Return each spec of a published class, with each type that it reads."""
    for name in find_builtin_specs():
        program = build_program(LIBRARY.open_spec(name), LIBRARY)
        if len(program.chain) > 1 or name in OTHERS:
            continue
        entries = [e for i, _ in program.iterate_items(ast.Config) for e in i.entries]
        for entry in entries:
            if isinstance(entry, ast.Expect) and entry.key == "model_type":
                yield from (
                    (name, type)
                    for type in entry.values
                    if type not in FOREIGN + CONTRADICTORY + OWN_TEXT_SIZES
                )


OTHERS = (
    "vit_segmenter",
    "vision_encoder_decoder",
    "depth_anything",
    "idefics3",
    "rt_detr",
    "gemma4",
    "upernet",
    "timm_vit",
    "timm_resnet",
    "timm_convnext",
)
"""Specs that read the files of a class and are another model; or are made of two others,
which a file always names: without them it is refused (E0227), as Gemma 4 without an image encoder,
or like UPerNet with the default ResNet backbone (E0228). With a backbone of which
only the type is known the classes of Depth Anything, Idefics3 and RT-DETR have sizes that
contradict each other. Models of timm have the sizes of the architecture that `architecture` names.
"""

FOREIGN = ("new",)
"""Types whose class is the publisher's own code, not a part of transformers."""
CONTRADICTORY = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
"""Types whose class defaults give image tokens another width than the language model has."""


OWN_TEXT_SIZES = ("voxtral",)
"""Types whose class has sizes of its own for the language model, which a file always names; the
spec has those of the language model's class.
"""
OTHER_MEANINGS = (
    ("glm4_moe_lite", "head_dim"),
    *((type, "initializer_range") for type in ("plbart", "led")),
)
"""Other names of keys that specs read with another meaning, or that have no effect."""
WITH_UNREAD_KEYS: tuple[str, ...] = ()
"""Specs that do not read a key of their class that has an effect at another value."""


def read_config_values(data: dict[str, Any]) -> ConfigReader:
    """Return the config of a config.json with this content."""
    raw = parse_config_json(decode_config_source(json.dumps(data).encode(), "config.json"))
    return ConfigReader(hf_config_lookup=LIBRARY.read_hf_config_field, config_file=raw)


def values(program: Program, reader: ConfigReader) -> dict[str, object]:
    """Return all config values, as in a manifest."""
    found = evaluate_and_check_config(create_context(LIBRARY), program, reader)
    return {name: value_to_plain_data(value) for name, value in found.items()}


def keep_only_types(written: dict[str, Any]) -> dict[str, Any]:
    """Return only the types, of submodels too."""
    parts = {
        n: keep_only_types(v)
        for n, v in written.items()
        if isinstance(v, dict) and "model_type" in v
    }
    return {"model_type": written["model_type"], **parts}


@pytest.mark.parametrize(("spec", "type"), [*families()], ids=lambda name: name)
def test_absent_keys_have_class_defaults(spec: str, type: str) -> None:
    program = build_program(LIBRARY.open_spec(spec), LIBRARY)
    kind = CONFIG_MAPPING[type]
    said = keep_only_types(kind().to_dict() | {"model_type": type})
    whole = kind(**{n: v for n, v in said.items() if isinstance(v, dict)})
    silent = read_config_values(said)
    told = read_config_values(json.loads(whole.to_json_string(use_diff=False)))
    assert told.config_file is not None
    program = choose_used_specs(program, told.config_file)
    if spec not in WITH_UNREAD_KEYS:
        assert not [*warn_unread_keys(program, told.config_file)]
    ours, theirs = values(program, silent), values(program, told)
    differ = {n: (v, theirs[n]) for n, v in ours.items() if v != theirs[n]}
    # What each layer is may be written out where a rule says the same, and what nobody
    # reads then may be missing: the graph tells. Stops are in no graph.
    assert "stop" not in differ, differ
    if differ:
        made = [elaborate_model(program, LIBRARY, reader).graph for reader in (silent, told)]
        assert format_ir(made[0]) == format_ir(made[1]), differ


@pytest.mark.parametrize(("spec", "type"), [*families()], ids=lambda name: name)
def test_other_names_of_keys_are_read(spec: str, type: str) -> None:
    program = build_program(LIBRARY.open_spec(spec), LIBRARY)
    entries = [e for item, _ in program.iterate_items(ast.Config) for e in item.entries]
    fields = [
        {source.value for source in entry.sources if isinstance(source, ast.TextLiteral)}
        for entry in entries
        if isinstance(entry, ast.Field)
    ]
    names = CONFIG_MAPPING[type].attribute_map.items()
    unread = {
        name: key for name, key in names for keys in fields if key in keys and name not in keys
    }
    assert not {name: key for name, key in unread.items() if (type, name) not in OTHER_MEANINGS}
