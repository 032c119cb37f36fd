"""Ten specs in both syntaxes, which the language was designed to cover.

They parse, round-trip, elaborate with symbols and with numbers, and run in the reference.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.parameter_sweeps import sample_sweep

import specc_numpy
from specc.driver.spec_check_and_elaboration import check_spec, elaborate_spec
from specc.driver.spec_loader import LoadedSpec, open_spec
from specc.ir.ir_printer_and_lexer import format_ir
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.model_definition import ModelDefinition
from specc.syntax import ast
from specc.syntax.dsl.dsl_printer import format_dsl as write_dsl
from specc.syntax.parse import decode_spec, parse_spec
from specc.syntax.yaml.yaml_printer import format_yaml
from specc.weights.parameter_sources import make_initial_values
from specc.weights.weight_rules_and_initializers import parse_initializer

SPECS = Path(__file__).with_name("specs")
TEXT = "d=32 heads=4 hidden=24 layers=2 vocab=17"
TEN: dict[str, str] = {
    "gemma3": f"{TEXT} kv_heads=2 head_dim=8 window=3 layers=7",
    "t5": "vocab=17 d=16 head_dim=8 hidden=24 heads=2 encoder_layers=2 buckets=8 longest=20",
    "albert": f"{TEXT} words=8 longest=9 groups=2 layers=4 inner=2",
    "phi3": f"{TEXT} kv_heads=2 window=3",
    "clip": "shared=12 text.d=16 text.layers=2 text.heads=2 text.hidden=24 "
    "text.vocab=17 text.longest=9 text.eos=2"
    " vision.d=20 vision.layers=2 vision.heads=2 vision.hidden=24 vision.image=8 vision.patch=4",
    "vision_encoder_decoder": "encoder.d=16 encoder.layers=2 encoder.heads=2 "
    "encoder.hidden=24 encoder.image=8"
    " encoder.patch=4 decoder.vocab=17 decoder.d=24 decoder.layers=2 decoder.heads=4 "
    "decoder.hidden=16"
    " decoder.longest=9",
    "luong": "source_vocab=17 embed_dim=6 hidden=8 layers=2",
    "ntm_read": "inputs=5 hidden=8 cells=6 width=4",
    "decomposable": "vocab=17 words=6 hidden=8 farthest=2",
    "show_attend_tell": "vocab=17 regions=4 features=6 words=5 hidden=8 att=7",
}
"""Each spec with a config small enough to be computed slowly."""

OTHERS = ("vit_tower", "trocr_decoder")
"""Specs that one of the ten is put together from."""

VARIANTS: dict[str, tuple[str, ...]] = {
    "t5": ("inner=gated-gelu", "scaled=false"),
    "phi3": (
        "scaling=longrope short=[1.0,1.5,2.0,4.0] long=[2.0,3.0,4.0,8.0] original=4 "
        "longest=16 context=16",
    ),
    "luong": (
        "attention_type=local_m",
        "attention_type=local_p",
        "attention_type=local_p score=additive(5)",
        "score=dot input_feeding=false",
    ),
    "decomposable": ("inside=false",),
    "show_attend_tell": ("normalize=hard", "gated=false"),
}
SIZES = {
    "batch": 2,
    "images": 2,
    "texts": 3,
    "seq": 5,
    "src": 4,
    "tgt": 5,
    "premise": 4,
    "hypothesis": 3,
}


def opened(name: str, sets: str = "") -> LoadedSpec:
    quoted = [s.replace("=gated-gelu", '="gated-gelu"') for s in sets.split()]
    return open_spec(str(SPECS / name), config_settings=quoted)


@cache
def model_of(name: str, sets: str) -> ModelDefinition:
    """Return the model of a spec with numbers; cached."""
    return elaborate_spec(opened(name, sets))


def parsed(name: str) -> ast.File:
    return parse_spec(decode_spec((SPECS / name).read_bytes(), name))


def sample_inputs(model: ModelDefinition) -> dict[str, NDArray[np.generic]]:
    """Return random inputs; the last position of padded inputs is padding."""
    rng = np.random.default_rng(0)
    made: dict[str, NDArray[np.generic]] = {}
    for name, facts in model.graph.input_facts.items():
        shape = tuple(d.evaluate(SIZES) for d in facts.type.shape)
        if facts.padding_side:
            made[name] = np.ones(shape, bool)
            made[name][-1, -1] = False
        elif facts.type.dtype == "i64":
            made[name] = rng.integers(
                0, facts.upper_bound.evaluate({}) if facts.upper_bound else 2, shape
            )
        else:
            made[name] = rng.normal(size=shape)
    return made


def results(model: ModelDefinition) -> dict[str, NDArray[np.generic]]:
    numbers = {
        name: make_initial_values(
            parse_initializer(facts.initializer),
            1,
            name,
            tuple(d.evaluate({}) for d in facts.type.shape),
        )
        for name, facts in model.graph.parameter_facts.items()
    }
    return specc_numpy.evaluate_graph(model.graph, sample_inputs(model), numbers)


@pytest.mark.parametrize("name", [*TEN, *OTHERS])
def test_both_syntaxes_give_equal_trees(name: str) -> None:
    dsl, yaml = parsed(f"{name}.specc"), parsed(f"{name}.yaml")
    assert dsl == yaml
    assert parse_spec(decode_spec(write_dsl(yaml).encode(), "x.specc")) == yaml
    assert parse_spec(decode_spec(format_yaml(dsl).encode(), "x.yaml")) == dsl


@pytest.mark.parametrize("name", sample_sweep([*TEN, *OTHERS]))
def test_symbolic_check_of_all_choices(name: str) -> None:
    checked = check_spec(opened(f"{name}.specc"))
    assert checked.trials
    assert checked.model is not None
    assert find_graph_errors(checked.model.graph) == []


@pytest.mark.parametrize("name", ["luong", "phi3"])
def test_both_syntaxes_give_equal_graphs(name: str) -> None:
    """Two specs are enough: the trees of all specs are compared above."""
    dsl, yaml = (model_of(f"{name}.{suffix}", TEN[name]) for suffix in ("specc", "yaml"))
    assert format_ir(dsl.graph) == format_ir(yaml.graph)
    assert dsl.config == yaml.config
    assert dsl.generation == yaml.generation


@pytest.mark.parametrize(
    ("name", "also"), sample_sweep([*[(n, v) for n in TEN for v in ("", *VARIANTS.get(n, ()))]])
)
def test_reference_computes_finite_results(name: str, also: str) -> None:
    model = model_of(f"{name}.specc", f"{TEN[name]} {also}".strip())
    for result in results(model).values():
        assert result.size
        assert np.isfinite(result).all()


@pytest.mark.parametrize(
    ("name", "place"), [("luong_local_p", "local_p"), ("luong_location", "global")]
)
def test_yaml_instance_sets_config_values(name: str, place: str) -> None:
    model = model_of(f"{name}.yaml", TEN["luong"])
    assert model.name == name
    assert model.config["attention_type"] == place
    assert np.isfinite(results(model)["logits"]).all()


def test_albert_shares_weights_across_groups() -> None:
    names = model_of("albert.specc", TEN["albert"]).graph.parameters
    queries = [n for n in names if n.endswith("attention.query.weight")]
    prefix = "albert.encoder.albert_layer_groups"
    assert queries == [
        f"{prefix}.{g}.albert_layers.{j}.attention.query.weight" for g in (0, 1) for j in (0, 1)
    ]


def test_t5_position_bias_is_in_the_first_layers() -> None:
    names = model_of("t5.specc", TEN["t5"]).graph.parameters
    assert [n for n in names if "relative" in n] == [
        f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        for stack in ("encoder", "decoder")
    ]


def test_local_attention_reads_only_its_window() -> None:
    model = elaborate_spec(opened("luong.specc", f"{TEN['luong']} attention_type=local_m reach=1"))
    alignment = results(model)["alignment"]
    step, word = np.indices(alignment.shape[1:])
    assert (alignment[:, np.abs(step - word) > 1] == 0).all()


def test_hard_attention_selects_one_region() -> None:
    model = model_of("show_attend_tell.specc", f"{TEN['show_attend_tell']} normalize=hard")
    looked = results(model)["looked"]
    assert (np.sort(looked, axis=-1) == [0, 0, 0, 1]).all()
