"""A checkpoint's folder in place of a spec: its config tells the spec, its architecture
the graph.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import specc
from specc.diagnostics.diagnostic import Failed
from specc.driver.spec_loader import check_spec, elaborate_spec, open_spec
from specc.driver.weights_section import required_parameters
from specc.huggingface.model_family import (
    UNSUPPORTED_TYPES,
    find_spec_for_checkpoint,
    supported_model_types,
)
from specc.weights.formats.safetensors import write_safetensors

TINY = {
    "model_type": "distilbert", "vocab_size": 11, "dim": 8, "n_heads": 2, "n_layers": 1, "hidden_dim": 12,
    "max_position_embeddings": 16, "id2label": {"0": "a", "1": "b", "2": "c"},
}  # fmt: skip


def saved(directory: Path, **more: object) -> Path:
    """A folder with a config.json, and random weights for the graph that it asks for."""
    (directory / "config.json").write_text(json.dumps({**TINY, **more}), encoding="utf-8")
    graph = elaborate_spec(open_spec(str(directory))).graph
    rng = np.random.default_rng(0)
    made = {
        w.name: rng.standard_normal(w.shape).astype(np.float32)
        for w in required_parameters(graph)
        if w.name != "vocab_projector.weight"  # tied, and so in no file
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
def test_the_architecture_chooses_the_graph(
    architecture: str, result: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    directory = saved(tmp_path, architectures=[architecture])
    specc.compile(str(directory), tmp_path / "m.onnx")
    made = specc.load(tmp_path / "m.onnx").run(input_ids=np.ones((2, 5), np.int64))
    assert made[result].shape == shape


@pytest.mark.parametrize("value", ["DistilBertForMaskedLM", None, []])
def test_one_architecture_needs_no_list(value: object, tmp_path: Path) -> None:
    """And where none is named, the first graph is meant, as everywhere."""
    assert elaborate_spec(open_spec(str(saved(tmp_path, architectures=value)))).graph


@pytest.mark.parametrize("value", [[3], 3, {"a": 1}, ["DistilBertModel", 3]])
def test_architectures_that_are_no_names_are_told(value: object, tmp_path: Path) -> None:
    text = json.dumps({**TINY, "architectures": value})
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(Failed, match="E0420"):
        elaborate_spec(open_spec(str(tmp_path)))


def test_the_spec_that_a_type_is_listed_with_reads_it(tmp_path: Path) -> None:
    """Of several specs that read one type, the same is listed, drafted from and compiled."""
    listed = supported_model_types()
    for kind in ("vit", "mt5", "camembert"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        assert find_spec_for_checkpoint(str(tmp_path)) == listed[kind]


@pytest.mark.parametrize("kind", UNSUPPORTED_TYPES)
def test_types_that_no_spec_can_reproduce_are_refused_with_the_reason(
    kind: str, tmp_path: Path
) -> None:
    assert kind not in supported_model_types()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")
    with pytest.raises(Failed, match=kind) as failed:
        find_spec_for_checkpoint(str(tmp_path))
    assert failed.value.diagnostics[0].code == "E0419"
    assert failed.value.diagnostics[0].notes == (UNSUPPORTED_TYPES[kind],)


def test_weights_alone_are_no_checkpoint(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {})
    with pytest.raises(Failed, match=r"has no config\.json") as failed:
        open_spec(str(tmp_path))
    assert failed.value.diagnostics[0].code == "E0222"


def test_only_its_own_spec_is_a_source_of_the_model(tmp_path: Path) -> None:
    """Other families are looked at for their types, and are no part of the model."""
    directory = saved(tmp_path, architectures=["DistilBertModel"])
    found = open_spec(str(directory))
    assert [m.path for m in found.library.modules.values()] == ["distilbert.specc"]


def test_a_graph_that_is_named_counts_more(tmp_path: Path) -> None:
    directory = saved(tmp_path, architectures=["DistilBertModel"])
    with pytest.raises(Failed, match="E0501"):  # whose head is not in the file
        specc.compile(str(directory), tmp_path / "m.onnx", graph="masked_lm")
    assert not (tmp_path / "m.onnx").exists()


def test_keys_that_nothing_reads_are_told(tmp_path: Path) -> None:
    directory = saved(tmp_path, gate_bias=True, use_cache=True, qa_dropout=0.1)
    warned = check_spec(open_spec(str(directory))).warnings
    assert [d.code for d in warned] == ["W0418"]
    assert "gate_bias" in warned[0].title
    assert "use_cache" not in warned[0].title


def test_weights_that_are_said_not_to_be_quantized(tmp_path: Path) -> None:
    directory = saved(tmp_path, quantization_config=None)
    assert not check_spec(open_spec(str(directory))).warnings


@pytest.mark.parametrize(
    ("key", "idle", "other"),
    [
        ("pruned_heads", {}, {"1": [0]}),
        ("add_cross_attention", False, True),
        ("is_decoder", False, True),
        ("is_decoder", False, 0),
        ("cross_attention_hidden_size", None, 12),
        # of any key, not only of those that are known
        ("gate_bias", None, False),
    ],
)
def test_keys_of_a_config_written_in_full_are_told_where_they_say_something(
    key: str, idle: object, other: object, tmp_path: Path
) -> None:
    """Old files have every key that a config can have, most of them idle."""
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
def test_null_is_none_where_a_value_may_be_none(
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
def test_a_list_of_parts_and_counts_is_written_out(
    parts: str, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    spec = SPEC.replace("rows: int", 'kinds: list[text] from repeated("k") = ["z"]\n rows: int')
    (tmp_path / "m.specc").write_text(spec, encoding="utf-8")
    (tmp_path / "config.json").write_text(f'{{"k": {parts}}}', encoding="utf-8")
    found = open_spec(str(tmp_path / "m.specc"), config=str(tmp_path / "config.json"))
    assert list(elaborate_spec(found).config["kinds"]) == list(kinds)


@pytest.mark.parametrize(
    "parts", ['[["a", 2]]', "[]", '[[["a"], true]]', '[[["a"], -1]]', '[[["a"], 4097]]', '"a"']
)
def test_no_list_of_parts_and_counts_is_refused(parts: str, tmp_path: Path) -> None:
    spec = SPEC.replace("rows: int", 'kinds: list[text] from repeated("k") = ["z"]\n rows: int')
    (tmp_path / "m.specc").write_text(spec, encoding="utf-8")
    (tmp_path / "config.json").write_text(f'{{"k": {parts}}}', encoding="utf-8")
    with pytest.raises(Failed, match="E0403"):
        elaborate_spec(open_spec(str(tmp_path / "m.specc"), config=str(tmp_path / "config.json")))


def test_a_spec_of_ones_own_reads_a_folder(tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(SPEC, encoding="utf-8")
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "config.json").write_text('{"rows": 7}', encoding="utf-8")
    found = open_spec(str(tmp_path / "ck"), own=str(tmp_path / "m.specc"))
    assert elaborate_spec(found).config["rows"] == 7
    with pytest.raises(Failed, match="E0222"):
        open_spec(str(tmp_path / "m.specc"), own=str(tmp_path / "m.specc"))
