"""Checkpoint directories as specs: `model_type` selects the spec, `architectures` the graph."""

import json
from pathlib import Path

import numpy as np
import pytest

import specc
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import check_spec, elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.driver.weights_section_and_load_transforms import list_model_parameters
from specc.huggingface.model_family import (
    UNSUPPORTED_CLASSES,
    UNSUPPORTED_TYPES,
    find_spec_for_checkpoint,
    is_generative,
    map_model_types_to_specs,
)
from specc.weights.formats.safetensors import write_safetensors

TINY = {
    "model_type": "distilbert", "vocab_size": 11, "dim": 8, "n_heads": 2, "n_layers": 1, "hidden_dim": 12,
    "max_position_embeddings": 16, "id2label": {"0": "a", "1": "b", "2": "c"},
}  # fmt: skip


def write_checkpoint(directory: Path, **more: object) -> Path:
    """Write a directory with a config.json, and random weights for the selected graph."""
    (directory / "config.json").write_text(json.dumps({**TINY, **more}), encoding="utf-8")
    graph = elaborate_spec(open_spec(str(directory))).graph
    rng = np.random.default_rng(0)
    made = {
        w.name: rng.standard_normal(w.shape).astype(np.float32)
        for w in list_model_parameters(graph)
        if w.name != "vocab_projector.weight"  # tied, and so not stored
    }
    write_safetensors(directory / "model.safetensors", made)
    return directory


@pytest.mark.parametrize(
    ("architecture", "result", "shape"),
    [
        ("DistilBertForMaskedLM", "logits", (2, 5, 11)),
        ("DistilBertForSequenceClassification", "logits", (2, 3)),
        ("DistilBertForTokenClassification", "logits", (2, 5, 3)),
        ("DistilBertForQuestionAnswering", "end_logits", (2, 5)),
        ("DistilBertModel", "last_hidden_state", (2, 5, 8)),
    ],
)
def test_architecture_selects_the_graph(
    architecture: str, result: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    directory = write_checkpoint(tmp_path, architectures=[architecture])
    specc.compile(str(directory), tmp_path / "m.onnx")
    made = specc.load(tmp_path / "m.onnx").run(input_ids=np.ones((2, 5), np.int64))
    assert made[result].shape == shape


@pytest.mark.parametrize("value", ["DistilBertForMaskedLM", None, []])
def test_architecture_as_a_string(value: object, tmp_path: Path) -> None:
    """Without an architecture the first graph is selected."""
    assert elaborate_spec(open_spec(str(write_checkpoint(tmp_path, architectures=value)))).graph


@pytest.mark.parametrize("value", [[3], 3, {"a": 1}, ["DistilBertModel", 3]])
def test_invalid_architectures(value: object, tmp_path: Path) -> None:
    text = json.dumps({**TINY, "architectures": value})
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(SpeccError, match="E0420"):
        elaborate_spec(open_spec(str(tmp_path)))


def test_listed_spec_reads_the_model_type(tmp_path: Path) -> None:
    """If several specs read one model type, the same spec is listed, drafted and compiled."""
    listed = map_model_types_to_specs()
    for kind in ("vit", "mt5", "camembert"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        assert find_spec_for_checkpoint(str(tmp_path)) == listed[kind]


@pytest.mark.parametrize(
    ("architecture", "spec"),
    [
        ("vit_tiny_patch16_224", "timm_vit"),
        ("resnet34", "timm_resnet"),
        ("convnext_base", "timm_convnext"),
    ],
)
@pytest.mark.parametrize("keys", [{"model_type": "timm_wrapper"}, {"pretrained_cfg": {"tag": "a"}}])
def test_architecture_of_timm_selects_the_spec(
    architecture: str, spec: str, keys: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**keys, "architecture": architecture}))
    assert find_spec_for_checkpoint(str(tmp_path)) == spec
    assert elaborate_spec(open_spec(str(tmp_path))).graph.outputs["logits"].shape[1] == 1000


@pytest.mark.parametrize("architecture", ["resnet50d", "vit_base_patch16_clip_224", None, 3])
def test_unsupported_architectures_of_timm(architecture: object, tmp_path: Path) -> None:
    config = {"model_type": "timm_wrapper", "architecture": architecture}
    (tmp_path / "config.json").write_text(json.dumps(config))
    name = architecture if isinstance(architecture, str) else ""
    title = f"unsupported timm architecture `{name}`" if name else "has no `architecture`"
    with pytest.raises(SpeccError, match=f"E0419.*{title}") as failed:
        find_spec_for_checkpoint(str(tmp_path))
    near = {"resnet50d": "resnet50"}.get(name)
    assert (near is None) or any(f"`{near}`" in text for text in failed.value.diagnostics[0].helps)


@pytest.mark.parametrize("kind", UNSUPPORTED_TYPES)
def test_unsupported_model_types(kind: str, tmp_path: Path) -> None:
    assert kind not in map_model_types_to_specs()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")
    with pytest.raises(SpeccError, match=kind) as failed:
        find_spec_for_checkpoint(str(tmp_path))
    assert failed.value.diagnostics[0].code == "E0419"
    assert failed.value.diagnostics[0].notes == (UNSUPPORTED_TYPES[kind],)


@pytest.mark.parametrize("name", UNSUPPORTED_CLASSES)
def test_unsupported_classes(name: str, tmp_path: Path) -> None:
    config = {"model_type": "speecht5", "architectures": [name]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(SpeccError, match=f"E0420.*{name}") as failed:
        elaborate_spec(open_spec(str(tmp_path)))
    assert failed.value.diagnostics[0].notes[0] == UNSUPPORTED_CLASSES[name]


def test_weights_without_config(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {})
    with pytest.raises(SpeccError, match=r"has no config\.json") as failed:
        open_spec(str(tmp_path))
    assert failed.value.diagnostics[0].code == "E0222"


def test_sources_contain_only_the_selected_spec(tmp_path: Path) -> None:
    """Specs of other model families are only searched for their model types."""
    directory = write_checkpoint(tmp_path, architectures=["DistilBertModel"])
    found = open_spec(str(directory))
    assert [m.path for m in found.library.modules.values()] == ["distilbert.specc"]


def test_explicit_graph_overrides_the_architecture(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, architectures=["DistilBertModel"])
    with pytest.raises(SpeccError, match="E0501"):  # whose head is not in the file
        specc.compile(str(directory), tmp_path / "m.onnx", graph="masked_lm")
    assert not (tmp_path / "m.onnx").exists()


def test_unused_config_keys(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, gate_bias=True, use_cache=True, qa_dropout=0.1)
    warned = check_spec(open_spec(str(directory))).warnings
    assert [d.code for d in warned] == ["W0418"]
    assert "gate_bias" in warned[0].title
    assert "use_cache" not in warned[0].title


def test_null_quantization_config(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, quantization_config=None)
    assert not check_spec(open_spec(str(directory))).warnings


@pytest.mark.parametrize(
    ("key", "idle", "other"),
    [
        ("pruned_heads", {}, {"1": [0]}),
        ("add_cross_attention", False, True),
        ("is_decoder", False, True),
        ("is_decoder", False, 0),
        ("cross_attention_hidden_size", None, 12),
        # of any key, not only of known ones
        ("gate_bias", None, False),
    ],
)
def test_inactive_config_keys(key: str, idle: object, other: object, tmp_path: Path) -> None:
    """Old config.json files contain every possible key, most of them inactive."""
    strict = SPEC.replace("config {", 'config { expect "model_type" in (m)', 1)
    (tmp_path / "m.specc").write_text(strict, encoding="utf-8")
    config = tmp_path / "config.json"
    for value, codes in ((idle, []), (other, ["W0418"])):
        config.write_text(json.dumps({"model_type": "m", key: value}), encoding="utf-8")
        found = check_spec(open_spec(str(tmp_path / "m.specc"), config=str(config)))
        assert [d.code for d in found.warnings] == codes


SPEC = """\
specc 1
model m
config {
  window: int? from "window" | "span" = 4
  rows: int from "rows" = 3
}
dims batch, n
graph g(x: float[batch, n, 8]) -> (y: float[batch, n, 8]) {
  return attend(x, x, x, mask=window(window)) * float(rows)
}
"""


@pytest.mark.parametrize(
    ("data", "window", "rows"),
    [
        ({}, 4, 3),
        ({"window": None, "rows": None}, None, 3),
        ({"span": None}, None, 3),
        ({"window": None, "span": 2, "rows": 5}, 2, 5),
    ],
)
def test_null_config_values(
    data: dict[str, object], window: int | None, rows: int, tmp_path: Path
) -> None:
    (tmp_path / "m.specc").write_text(SPEC, encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    found = open_spec(str(tmp_path / "m.specc"), config=str(tmp_path / "config.json"))
    config = elaborate_spec(found).config
    assert (config["window"], config["rows"]) == (window, rows)


@pytest.mark.parametrize(
    ("parts", "kinds"),
    [
        ('[[["a", "b"], 2]]', ("a", "b", "a", "b")),
        ('[[["a"], 1], [["b"], 0], [["b", "c"], 1]]', ("a", "b", "c")),
        ("null", ("z",)),
    ],
)
def test_repeated_lists(parts: str, kinds: tuple[str, ...], tmp_path: Path) -> None:
    spec = SPEC.replace("rows: int", 'kinds: list[text] from repeated("k") = ["z"]\n rows: int')
    (tmp_path / "m.specc").write_text(spec, encoding="utf-8")
    (tmp_path / "config.json").write_text(f'{{"k": {parts}}}', encoding="utf-8")
    found = open_spec(str(tmp_path / "m.specc"), config=str(tmp_path / "config.json"))
    assert list(elaborate_spec(found).config["kinds"]) == list(kinds)


@pytest.mark.parametrize(
    "parts", ['[["a", 2]]', "[]", '[[["a"], true]]', '[[["a"], -1]]', '[[["a"], 4097]]', '"a"']
)
def test_invalid_repeated_lists(parts: str, tmp_path: Path) -> None:
    spec = SPEC.replace("rows: int", 'kinds: list[text] from repeated("k") = ["z"]\n rows: int')
    (tmp_path / "m.specc").write_text(spec, encoding="utf-8")
    (tmp_path / "config.json").write_text(f'{{"k": {parts}}}', encoding="utf-8")
    with pytest.raises(SpeccError, match="E0403"):
        elaborate_spec(open_spec(str(tmp_path / "m.specc"), config=str(tmp_path / "config.json")))


def test_custom_spec_with_a_checkpoint_directory(tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(SPEC, encoding="utf-8")
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "config.json").write_text('{"rows": 7}', encoding="utf-8")
    found = open_spec(str(tmp_path / "ck"), checkpoint_spec=str(tmp_path / "m.specc"))
    assert elaborate_spec(found).config["rows"] == 7
    with pytest.raises(SpeccError, match="E0222"):
        open_spec(str(tmp_path / "m.specc"), checkpoint_spec=str(tmp_path / "m.specc"))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "vision-encoder-decoder"}, True),
        ({"model_type": "speecht5", "architectures": ["SpeechT5ForSpeechToText"]}, True),
        ({"model_type": "imagegpt", "architectures": ["ImageGPTForCausalImageModeling"]}, True),
        ({"model_type": "gpt2"}, True),
        ({"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]}, False),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, False),
        ({"model_type": "roberta", "architectures": ["RobertaForCausalLM"]}, False),
        ({"model_type": "xlnet", "architectures": ["XLNetLMHeadModel"]}, False),
    ],
)
def test_generative_checkpoints(config: dict[str, object], expected: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert is_generative(tmp_path) == expected
