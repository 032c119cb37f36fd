"""Specs used with a config and weights of their own: the sources of their values, the paths of
their weights, the choice between several specs, and a section of the config file as an argument.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import specc
from specc.diagnostics.diagnostic import Source, SpeccError
from specc.driver.spec_check_and_elaboration import check_spec, elaborate_spec
from specc.driver.spec_loader import LoadedSpec, open_spec
from specc.ir.ir_printer_and_lexer import format_ir
from specc.syntax.dsl.dsl_printer import format_dsl as as_specc
from specc.syntax.parse import parse_spec
from specc.syntax.yaml.yaml_printer import format_yaml
from specc.weights.formats.safetensors import write_safetensors

SMALL = """specc 1
model small
config {
  expect "model_type" in (small)
  expect "flag" in (none, false)
  d: int from "hidden_size" = 4
  act: activation from "act" = relu
  tied: bool from "tied" = true
}
dims batch, n
graph g(ids: int[batch, n]) -> (y: float[batch, n, 9]) { return head(body(ids) @ base) }
graph other(x: float[batch, n, 4]) -> (y: float[batch, n, 2]) { return linear(x, out=2) @ scores }
block body(ids: int[b, n]) -> float[b, n, d] {
  x = embedding(ids, size=9, dim=d) @ words
  x = linear(act(linear(x, out=d) @ layer), out=d) @ turned
  return linear(x, out=d) @ layer
}
block head(x: float[b, n, e]) -> float[b, n, 9] { return linear(x, out=9, bias=false) @ head }
weights {
  tie head.weight = base.words.weight when tied
  load base.turned.weight = transpose("base.turned.weight")
  load scores.weight = transpose("scores.weight")
  share base.layer
  ignore "base.old.*"
}
"""
LARGE = SMALL.replace("small", "large").replace("d: int", "wide: int = 3\n  d: int")
OUTER = """specc 1
model outer
use "small.specc" | "large.specc" as text from "text_config" | "text" under inner.text
config {
  expect "model_type" in (outer)
  extra: int from "extra" = text.d + 1
}
dims batch, n
graph main(ids: int[batch, n]) -> (logits: float[batch, n, 9], more: float[batch, n, extra]) {
  x = text.body(ids) @ base
  return text.head(x), linear(x, out=extra) @ more
}
"""
CONFIG = {"model_type": "outer", "text_config": {"model_type": "small"}}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "small.specc").write_text(SMALL)
    (tmp_path / "large.specc").write_text(LARGE)
    (tmp_path / "outer.specc").write_text(OUTER)
    return tmp_path


def spec_of(directory: Path, config: object = None, **more: list[str]) -> LoadedSpec:
    """Open the spec `outer` with a config file."""
    name = ""
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
        name = str(directory / "config.json")
    return open_spec(
        str(directory / "outer.specc"), config=name, config_settings=more.get("sets", ())
    )


def shapes(spec: LoadedSpec) -> dict[str, list[int | None]]:
    made = elaborate_spec(spec).graph.parameters
    return {n: [d.number for d in v.type.shape] for n, v in made.items()}


@pytest.mark.parametrize(
    ("text", "sets", "width"),
    [
        ({}, [], 4),
        ({"hidden_size": 6}, [], 6),
        ({"hidden_size": None}, [], 4),
        ({"hidden_size": 6}, ["text.d=8"], 8),
    ],
)
def test_values_come_from_the_config_section(
    text: dict[str, object], sets: list[str], width: int, directory: Path
) -> None:
    spec = spec_of(directory, {"model_type": "outer", "text": text, "hidden_size": 3}, sets=sets)
    found = shapes(spec)
    assert found["inner.text.base.words.weight"] == [9, width]
    assert found["more.weight"] == [width + 1, width], "what follows from it follows"


@pytest.mark.parametrize(
    ("near", "far", "sets", "wide", "width"),
    [
        ("text = large(wide=7, d=6)", "", [], 7, 6),
        ("text = large(d=6)", "text = {d = 5}", [], 3, 6),
        ("text = {d = 6}", "text = large(wide=7, d=5)", [], 7, 6),
        ("", "", ["text=large(wide=7, d=6)"], 7, 6),
        ("text = small(d=5)", "", ["text=large(d=6)"], 3, 6),
    ],
)
def test_spec_is_selected_with_values(
    near: str, far: str, sets: list[str], wide: int, width: int, directory: Path
) -> None:
    """The nearest spec in the extends chain takes precedence, in every notation."""
    for name, base, said in (("far", "outer", far), ("near", "far", near)):
        config = f"config {{ {said} }}" if said else ""
        text = f'specc 1\nmodel {name}\nextends "{base}.specc"\n{config}\n'
        (directory / f"{name}.specc").write_text(text)
    made = elaborate_spec(open_spec(str(directory / "near.specc"), config_settings=sets)).config
    assert made["text"]["wide"] == wide
    assert made["text"]["d"] == width


@pytest.mark.parametrize("said", ["large(4)", "large(5, d=6)", "huge(d=6)", "large() @ w"])
def test_invalid_selection_is_rejected(said: str, directory: Path) -> None:
    text = f'specc 1\nmodel own\nextends "outer.specc"\nconfig {{ text = {said} }}'
    (directory / "own.specc").write_text(text)
    with pytest.raises(SpeccError) as failed:
        elaborate_spec(open_spec(str(directory / "own.specc")))
    assert failed.value.diagnostics[0].code in ("E0201", "E0203", "E0101")


def test_instance_selects_spec_and_sets_values(directory: Path) -> None:
    (directory / "own.specc").write_text(
        'specc 1\nmodel own\nextends "outer.specc"\nconfig { text = {d = 5  act = gelu} }'
    )
    made = elaborate_spec(open_spec(str(directory / "own.specc")))
    assert made.config["text"] == {"d": 5, "act": "gelu", "tied": True}
    (directory / "own.specc").write_text(
        'specc 1\nmodel own\nextends "outer.specc"\nconfig { text = "large.specc" }'
    )
    made = elaborate_spec(open_spec(str(directory / "own.specc")))
    assert dict(made.config["text"]) == {"wide": 3, "d": 4, "act": "relu", "tied": True}


@pytest.mark.parametrize(
    ("config", "sets", "wide"),
    [
        ({"model_type": "small"}, [], False),
        ({"model_type": "large"}, [], True),
        ({}, [], False),
        (None, ['text="large.specc"'], True),
        (None, ["text.d=3"], False),
    ],
)
def test_model_type_selects_the_spec(
    config: object, sets: list[str], wide: bool, directory: Path
) -> None:
    whole = None if config is None else {"model_type": "outer", "text_config": config}
    made = elaborate_spec(spec_of(directory, whole, sets=sets))
    assert ("wide" in dict(made.config["text"])) is wide


@pytest.mark.parametrize(
    ("config", "code", "place"),
    [
        ({"text_config": {"model_type": "huge"}}, "E0228", '"huge"'),
        ({"text_config": {"flag": True}}, "E0405", "true"),
        ({"text_config": {"hidden_size": "x"}}, "E0403", '"x"'),
        ({"text_config": [3]}, "E0227", "[3]"),
        ({}, "E0227", ""),
    ],
)
def test_section_errors_are_shown_in_the_section(
    config: dict[str, object], code: str, place: str, directory: Path
) -> None:
    with pytest.raises(SpeccError) as failed:
        elaborate_spec(spec_of(directory, {"model_type": "outer", **config}))
    (fault,) = failed.value.diagnostics
    assert fault.code == code
    assert fault.primary is not None
    if place:
        assert fault.primary.span.text == place
    labels = [fault.primary, *fault.related_labels]
    assert any(at.span.source.name.endswith("outer.specc") for at in labels)


def test_unused_keys_are_reported_in_the_section(directory: Path) -> None:
    config = {"model_type": "outer", "hidden_size": 3, "text_config": {"hiden": 4}}
    names = [w.primary.span.text for w in spec_of(directory, config).warnings if w.primary]
    assert names == ['"hidden_size"', '"hiden"']


def test_error_of_second_alternative_is_reported(directory: Path) -> None:
    wrong = LARGE.replace("linear(x, out=d) @ layer\n}", "linear(x, out=wide) @ layer\n}")
    (directory / "large.specc").write_text(wrong)
    with pytest.raises(SpeccError) as failed:
        check_spec(spec_of(directory))
    assert "with text = large.specc" in failed.value.diagnostics[0].notes


def test_assigned_values_apply_to_one_alternative(directory: Path) -> None:
    (directory / "large.specc").write_text(LARGE.replace("d: int", "e: int").replace("d)", "e)"))
    found = check_spec(spec_of(directory, sets=["text.d=3"]))
    assert found.model is not None
    assert dict(found.model.config["text"])["d"] == 3


def test_both_syntaxes_are_equivalent(directory: Path) -> None:
    plain = format_ir(elaborate_spec(spec_of(directory)).graph)
    tree = parse_spec(Source("outer.specc", OUTER))
    again = parse_spec(Source("outer.yaml", format_yaml(tree)))
    assert as_specc(again) == as_specc(tree)
    (directory / "outer.specc").write_text(as_specc(again))
    assert format_ir(elaborate_spec(spec_of(directory)).graph) == plain


def tensors(prefix: str = "inner.text.base.") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def some(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    return {
        f"{prefix}words.weight": some(9, 4),
        f"{prefix}layer.weight": some(4, 4),
        f"{prefix}layer.bias": some(4),
        f"{prefix}turned.weight": some(4, 4),
        f"{prefix}turned.bias": some(4),
        "more.weight": some(5, 4),
        "more.bias": some(5),
    }


def equation(t: dict[str, np.ndarray], ids: np.ndarray, at: str) -> np.ndarray:
    """Compute the logits from the weights of the file."""
    x = t[f"{at}words.weight"][ids]
    x = np.maximum(x @ t[f"{at}layer.weight"].T + t[f"{at}layer.bias"], 0)
    x = x @ t[f"{at}turned.weight"] + t[f"{at}turned.bias"]
    x = x @ t[f"{at}layer.weight"].T + t[f"{at}layer.bias"]
    return np.asarray(x @ t[f"{at}words.weight"].T)


@pytest.mark.parametrize("prefix", ["inner.text.base.", "inner.text.", "inner.text.model.base."])
def test_weight_rules_apply_below_the_weight_path(prefix: str, directory: Path) -> None:
    """Tied, transposed, shared and ignored weights, with and without the prefix of the base model."""
    made = tensors(prefix)
    old = {f"{prefix}old.x": np.zeros(3, np.float32)}
    write_safetensors(directory / "m.safetensors", {**made, **old})
    specc.compile(
        str(directory / "outer.specc"), directory / "m.onnx", weights=directory / "m.safetensors"
    )
    ids = np.array([[3, 1, 8], [0, 0, 5]])
    got = specc.load(directory / "m.onnx").run(ids=ids)["logits"]
    np.testing.assert_allclose(got, equation(made, ids, prefix), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("tie head.weight = base.words.weight when tied", "E0501"),
        ("share base.layer", "E0526"),
        ('ignore "base.old.*"', "E0505"),
    ],
)
def test_missing_weight_rule_is_rejected(rule: str, code: str, directory: Path) -> None:
    (directory / "small.specc").write_text(SMALL.replace(f"  {rule}\n", ""))
    old = {"inner.text.base.old.x": np.zeros(3, np.float32)}
    write_safetensors(directory / "m.safetensors", {**tensors(), **old})
    with pytest.raises(SpeccError) as failed:
        specc.compile(
            str(directory / "outer.specc"),
            directory / "m.onnx",
            weights=directory / "m.safetensors",
        )
    assert {d.code for d in failed.value.diagnostics} == {code}


def test_nested_used_specs(directory: Path) -> None:
    """Weight paths and config keys are concatenated, and each spec has its own config."""
    (directory / "top.specc").write_text(
        """specc 1
model top
use "outer.specc" as mid from "middle" under deep
use "small.specc" as own under side
dims batch, n
graph main(ids: int[batch, n]) -> (a: float[batch, n, 9], b: float[batch, n, own.d]) {
  x, _ = mid.main(ids)
  return x, both(ids) @ ignored_here
}
block both(ids: int[b, n]) -> float[b, n, own.d] { return own.body(ids) @ base }
"""
    )
    config = {"middle": {"model_type": "outer", "text": {"hidden_size": 6, "model_type": "large"}}}
    (directory / "config.json").write_text(json.dumps(config))
    spec = open_spec(
        str(directory / "top.specc"),
        config=str(directory / "config.json"),
        config_settings=["mid.text.wide=7", "own.d=2"],
    )
    made = elaborate_spec(spec)
    weights = {n: [d.number for d in v.type.shape] for n, v in made.graph.parameters.items()}
    assert weights["deep.inner.text.base.words.weight"] == [9, 6]
    assert weights["side.base.words.weight"] == [9, 2], "under its path, wherever it is called"
    facts = made.graph.parameter_facts
    assert facts["deep.inner.text.head.weight"].tied_to == "deep.inner.text.base.words.weight"
    assert made.config["mid"] == {
        "text": {"wide": 7, "d": 6, "act": "relu", "tied": True},
        "extra": 7,
    }


def test_requirements_of_used_spec_are_checked(directory: Path) -> None:
    must = 'require d % 2 == 0, "d is even"\ndims batch'
    (directory / "small.specc").write_text(SMALL.replace("dims batch", must))
    assert check_spec(spec_of(directory)).model is not None
    with pytest.raises(SpeccError) as failed:
        elaborate_spec(spec_of(directory, sets=["text.d=3"]))
    (fault,) = failed.value.diagnostics
    assert (fault.code, fault.title) == ("E0404", "d is even")


INNER = """specc 1
model inner
config { wide: int from "width" = 2 }
dims batch, n
block up(x: float[batch, n, d]) -> float[batch, n, wide] {
  return linear(x, out=wide) @ up
}
graph g(x: float[batch, n, 4]) -> float[batch, n, wide] { return up(x) }
"""
CONFIG_ARGUMENT = """specc 1
model outer
use "inner.specc" as v
dims batch, n
graph f(x: float[batch, n, 4]) -> float[batch, n, _] {
  return v.up(x, config=config.parts.vision) @ v
}
"""


@pytest.mark.parametrize(
    ("config", "wide"),
    [
        ('{"parts": {"vision": {"width": 6}}}', 6),
        ('{"parts": {"vision": {}}}', 2),
        ('{"parts": {}}', 2),
        ('{"parts": {"vision": 3}}', 2),
    ],
)
def test_config_section_as_argument(tmp_path: Path, config: str, wide: int) -> None:
    (tmp_path / "inner.specc").write_text(INNER)
    (tmp_path / "outer.specc").write_text(CONFIG_ARGUMENT)
    (tmp_path / "config.json").write_text(config)
    spec = open_spec(str(tmp_path / "outer.specc"), config=str(tmp_path / "config.json"))
    weight = elaborate_spec(spec).graph.parameters["v.up.weight"]
    assert [d.number for d in weight.type.shape] == [wide, 4]


@pytest.mark.parametrize(
    ("config", "width", "unread"),
    [
        ({"hidden_size": 6, "extra": 2}, 6, ""),
        ({"hidden_size": 6, "text_config": None, "unread": 3}, 6, "unread"),
        ({"hidden_size": 6, "text_config": {"hidden_size": 5, "unread": 3}}, 5, "unread"),
    ],
)
def test_used_spec_reads_the_config_of_the_using_spec(
    config: dict[str, object], width: int, unread: str, directory: Path
) -> None:
    """`from "text_config" | "."` reads the sub-config, or without it the config itself."""
    text = OUTER.replace('"small.specc" | "large.specc"', '"small.specc"')
    text = text.replace('"text_config" | "text"', '"text_config" | "."')
    (directory / "outer.specc").write_text(text)
    spec = spec_of(directory, {"model_type": "outer", **config})
    assert shapes(spec)["inner.text.base.words.weight"] == [9, width]
    warnings = [d for d in spec.warnings if d.code == "W0418"]
    assert [f"`{unread}`" in d.title for d in warnings] == ([True] if unread else [])
    with pytest.raises(SpeccError) as failed:
        elaborate_spec(spec_of(directory, {"model_type": "outer", "flag": True}))
    assert [d.code for d in failed.value.diagnostics] == ["E0405"]
