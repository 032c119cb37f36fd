"""A key that is absent from config.json has the default of the transformers config class.

For each built-in spec with a published type: a config.json with only `model_type` gives the same
config as one with all class defaults written out.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import transformers
from support.hf_encoder_decoder_cases import TRANSLATORS
from support.hf_text_cases import DECODERS, ENCODERS
from transformers import CONFIG_MAPPING

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.config_json_check import warn_about_unused_keys
from specc.frontend.config_values import ConfigReadOptions
from specc.frontend.generate_stream_and_reading_sections import value_to_json
from specc.frontend.json_parser_with_spans import decode_config_source, parse_config_json
from specc.frontend.spec_modules import Program, build_program
from specc.frontend.spec_to_graph import create_context, elaborate_model, evaluate_and_check_config
from specc.frontend.used_specs import select_spec_alternatives
from specc.ir.ir_printer_and_lexer import IR_HEADER, format_ir
from specc.library.spec_file_lookup import SpecLibrary, find_builtin_specs
from specc.syntax import ast

pytestmark = pytest.mark.parity

LIBRARY = SpecLibrary()


def families() -> Iterator[tuple[str, str]]:
    """Return each spec of a published class, with each type that it reads."""
    for name in find_builtin_specs():
        program = build_program(LIBRARY.load_spec(name), LIBRARY)
        if len(program.chain) > 1 or name in OTHERS:
            continue
        entries = [e for i, _ in program.iterate_items(ast.ConfigSection) for e in i.entries]
        for entry in entries:
            if isinstance(entry, ast.ExpectedConfigValues) and entry.key == "model_type":
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
    "grounding_dino",
    "gemma4",
    "upernet",
    "timm_vit",
    "timm_resnet",
    "timm_convnext",
)
"""Specs that read the files of a class and are another model; or are made of two others,
which a file always names: without them it is refused (E0227), as Gemma 4 without an image encoder,
or like UPerNet with the default ResNet backbone (E0228). With a backbone of which
only the type is known the classes of Depth Anything, Idefics3, RT-DETR and Grounding DINO have
sizes that contradict each other. Models of timm have the sizes of the architecture that `architecture` names.
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
WITH_UNUSED_KEYS: tuple[str, ...] = ()
"""Specs that do not read a key of their class that has an effect at another value."""


def read_config_values(data: dict[str, Any]) -> ConfigReadOptions:
    """Return the config of a config.json with this content."""
    raw = parse_config_json(decode_config_source(json.dumps(data).encode(), "config.json"))
    return ConfigReadOptions(config_file=raw)


def values(program: Program, reader: ConfigReadOptions) -> dict[str, object]:
    """Return all config values, as in a manifest."""
    found = evaluate_and_check_config(create_context(program), program, reader)
    return {name: value_to_json(value) for name, value in found.items()}


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
    program = build_program(LIBRARY.load_spec(spec), LIBRARY)
    kind = CONFIG_MAPPING[type]
    said = keep_only_types(kind().to_dict() | {"model_type": type})
    whole = kind(**{n: v for n, v in said.items() if isinstance(v, dict)})
    silent = read_config_values(said)
    told = read_config_values(json.loads(whole.to_json_string(use_diff=False)))
    assert told.config_file is not None
    program = select_spec_alternatives(program, told.config_file)
    if spec not in WITH_UNUSED_KEYS:
        assert not [*warn_about_unused_keys(program, told.config_file)]
    ours, theirs = values(program, silent), values(program, told)
    differ = {n: (v, theirs[n]) for n, v in ours.items() if v != theirs[n]}
    # What each layer is may be written out where a rule says the same, and what nobody
    # reads then may be missing: the graph tells. Stops are in no graph.
    assert "stop" not in differ, differ
    if differ:
        made = [elaborate_model(program, reader).graph for reader in (silent, told)]
        assert format_ir(made[0]) == format_ir(made[1]), differ


@pytest.mark.parametrize(("spec", "type"), [*families()], ids=lambda name: name)
def test_other_names_of_keys_are_read(spec: str, type: str) -> None:
    program = build_program(LIBRARY.load_spec(spec), LIBRARY)
    entries = [e for item, _ in program.iterate_items(ast.ConfigSection) for e in item.entries]
    fields = [
        [source.value for source in entry.sources if isinstance(source, ast.StringLiteral)]
        for entry in entries
        if isinstance(entry, ast.ConfigField)
    ]
    names = CONFIG_MAPPING[type].attribute_map.items()
    pairs = [(name, key, keys) for name, key in names for keys in fields if key in keys]
    unread = {name: key for name, key, keys in pairs if name not in keys}
    assert not {name: key for name, key in unread.items() if (type, name) not in OTHER_MEANINGS}
    # the other name has precedence in transformers; older versions ignored one next to its key
    ignored = {
        name: key
        for name, key, keys in pairs
        if name in keys and keys.index(name) > keys.index(key) and key != "encoder_layers"
    }
    assert not ignored


CASES = {
    case.case.config: case.case for case in (ENCODERS | DECODERS | TRANSLATORS).values()
}  # one small config of each class
OTHER_DEFAULTS = (
    *(("intermediate_size", type) for type in ("bert", "megatron-bert", "ernie", "longformer")),
    *(("num_key_value_heads", type) for type in ("deepseek_v3", "glm4_moe_lite", "mistral4")),
    *(("num_key_value_heads", type) for type in ("dots1", "minicpm3", "stablelm")),
    ("shape_size", "layoutlmv3"),
    ("dim_model_base", "minicpm3"),  # the class multiplies by 1 where the spec does not
    ("rope_parameters", "dbrx"),  # the RoPE base is that of `attn_config`
)
"""Sizes that specs compute from another size, where the class has a number: the shapes of the
weights reject a wrong one. And what a spec documents as a deviation.
"""


def format_model(program: Program, data: dict[str, Any]) -> str:
    """Return the IR of the spec with a config.json, or the title of the first error."""
    reader = read_config_values(data)
    assert reader.config_file is not None
    try:
        used = select_spec_alternatives(program, reader.config_file)
        return format_ir(elaborate_model(used, reader).graph)
    except SpeccError as failed:
        return failed.diagnostics[0].title


def is_same_model(program: Program, data: dict[str, Any], complete: dict[str, Any]) -> bool:
    """Whether two configs have the same values or give the same graph."""
    try:
        ours, theirs = (values(program, read_config_values(x)) for x in (data, complete))
    except SpeccError:
        pass  # invalid, maybe both
    else:
        if ours == theirs:
            return True
    ours, theirs = (format_model(program, x) for x in (data, complete))
    return ours == theirs or not (IR_HEADER in ours or IR_HEADER in theirs)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_each_absent_or_null_key_has_the_value_of_the_class(name: str) -> None:
    """One key of a complete config is removed or set to null: the class says which value it has."""
    kind = getattr(transformers, name)
    type = {"model_type": kind.model_type}
    spec = next(spec for spec, model_type in families() if model_type == kind.model_type)
    program = build_program(LIBRARY.load_spec(spec), LIBRARY)
    whole = json.loads(kind(**CASES[name].tiny).to_json_string(use_diff=False)) | type
    keys = whole.keys() - {"model_type", "id2label"}
    keys -= {key for key, model_type in OTHER_DEFAULTS if model_type == kind.model_type}
    different = list[str]()
    for key in sorted(keys):
        for data in ({n: v for n, v in whole.items() if n != key}, whole | {key: None}):
            try:
                config = kind.from_dict(copy.deepcopy(data))
            except Exception:
                continue
            complete = json.loads(config.to_json_string(use_diff=False)) | type
            # what a remaining null means is in the code of the model
            if key in data and complete.get(key) is None:
                continue
            if not is_same_model(program, data, complete):
                different.append(f"{key} is {'null' if key in data else 'absent'}")
    assert not different
