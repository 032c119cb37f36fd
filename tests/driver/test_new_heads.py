"""A base checkpoint without the head of the graph: `--init-missing` initializes the head at random,
reports it, and initializes nothing else."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specc
from specc.artifact.manifest import RandomInitMetadata
from specc.cli.main import main
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.driver.weights_section_and_load_transforms import list_model_parameters
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.parameter_sources import make_initial_values
from specc.weights.weight_rules_and_initializers import parse_initializer

TINY = {
    "model_type": "distilbert", "vocab_size": 11, "dim": 8, "n_heads": 2, "n_layers": 2, "hidden_dim": 12,
    "max_position_embeddings": 16, "architectures": ["DistilBertModel"],
}  # fmt: skip
HEAD = ("classifier.bias", "classifier.weight", "pre_classifier.bias", "pre_classifier.weight")
Arrays = dict[str, NDArray[Any]]


def make_base_checkpoint(directory: Path) -> Arrays:
    """Return a base checkpoint as transformers saves it: names without the prefix of models with
    heads."""
    (directory / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    rng = np.random.default_rng(0)
    graph = elaborate_spec(open_spec(str(directory))).graph
    return {
        w.name.removeprefix("distilbert."): rng.standard_normal(w.shape).astype("f4")
        for w in list_model_parameters(graph)
    }


def save_checkpoint(directory: Path, tensors: Mapping[str, NDArray[Any]]) -> Path:
    write_safetensors(directory / "model.safetensors", tensors)
    return directory


def test_missing_head_is_initialized(tmp_path: Path) -> None:
    tensors = make_base_checkpoint(tmp_path)
    directory, out = save_checkpoint(tmp_path, tensors), tmp_path / "m.onnx"
    made = specc.compile(directory, out, graph="sequence_classification", init_missing=7)
    (warning,) = [d for d in made.warnings if d.code == "W0528"]
    assert all(name in str(warning.notes) for name in HEAD)
    model = specc.load(out)
    assert model.manifest.random_init_metadata == RandomInitMetadata(7, 4)
    assert model.manifest.weights["random_init"] == {"seed": 7, "weights": sorted(HEAD)}
    ours, facts = model.weights(), made.model.graph.parameter_facts
    for name, array in ours.items():
        if name in HEAD:
            drawn = make_initial_values(
                parse_initializer(facts[name].initializer), 7, name, array.shape
            )
            assert np.array_equal(array, drawn)
        else:
            assert np.array_equal(array, tensors[name.removeprefix("distilbert.")])


def test_run_reports_the_random_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, out = save_checkpoint(tmp_path, make_base_checkpoint(tmp_path)), tmp_path / "m.onnx"
    specc.compile(directory, out, graph="sequence_classification", init_missing=7)
    assert main(["run", str(out), "[[1, 2]]"]) == 0
    assert "4 weights of a new head are random (seed 7)" in capsys.readouterr().err


def test_missing_head_of_a_package(tmp_path: Path) -> None:
    """Generation reads the manifest of the index, not of a graph."""
    config = {
        "model_type": "llama", "vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0,
        "architectures": ["LlamaModel"],
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = open_spec(str(tmp_path))
    graph = elaborate_spec(found, _get_first_graph(found)).graph
    tensors = {
        w.name.removeprefix("model."): np.full(w.shape, 0.1, "f4")
        for w in list_model_parameters(graph)
        if w.name != "lm_head.weight"
    }
    save_checkpoint(tmp_path, tensors)
    out = tmp_path / "package"
    specc.compile(tmp_path, out, graph=_get_first_graph(found), init_missing=3, graphs="step")
    assert specc.load(out).random_init_metadata == RandomInitMetadata(3, 1)


def _get_first_graph(found: Any) -> str:
    """Return the name of the first graph, which generates."""
    from specc.frontend.generate_stream_and_reading_sections import list_graph_blocks

    return list_graph_blocks(found.program)[0].name


@pytest.mark.parametrize(
    ("left_out", "why"),
    [
        ("transformer.layer.1.ffn.lin1.*", "the weight of another layer"),
        ("embeddings.position_embeddings.weight", "the base model"),
        ("embeddings.LayerNorm.bias", "of the same call"),
        ("transformer.*", ""),
    ],
)
def test_missing_base_weights_are_an_error(left_out: str, why: str, tmp_path: Path) -> None:
    start, star, _ = left_out.partition("*")
    tensors = {
        n: a
        for n, a in make_base_checkpoint(tmp_path).items()
        if not (n.startswith(start) if star else n == start)
    }
    directory = save_checkpoint(tmp_path, tensors)
    with pytest.raises(SpeccError) as failed:
        specc.compile(
            directory, tmp_path / "m.onnx", graph="sequence_classification", init_missing=7
        )
    faults = [d for d in failed.value.diagnostics if d.code == "E0501"]
    assert faults
    assert any(why in str(d.notes) for d in faults)
    assert not (tmp_path / "m.onnx").exists()


def test_partial_head_is_an_error(tmp_path: Path) -> None:
    tensors = {**make_base_checkpoint(tmp_path), "classifier.weight": np.zeros((2, 8), "f4")}
    with pytest.raises(SpeccError, match=r"E0501.*classifier\.bias"):
        specc.compile(
            save_checkpoint(tmp_path, tensors),
            tmp_path / "m.onnx",
            graph="sequence_classification",
            init_missing=7,
        )


def test_unused_tensor_is_an_error(tmp_path: Path) -> None:
    """An unused tensor remains an error, because it may be the head under another name."""
    tensors = {**make_base_checkpoint(tmp_path), "clasifier.weight": np.zeros((2, 8), "f4")}
    with pytest.raises(SpeccError, match=r"E0505"):
        specc.compile(
            save_checkpoint(tmp_path, tensors),
            tmp_path / "m.onnx",
            graph="sequence_classification",
            init_missing=7,
        )


def test_complete_checkpoint_has_no_warning(tmp_path: Path) -> None:
    directory = save_checkpoint(tmp_path, make_base_checkpoint(tmp_path))
    made = specc.compile(directory, tmp_path / "m.onnx", init_missing=7)
    assert not [d for d in made.warnings if d.code == "W0528"]
    assert specc.load(tmp_path / "m.onnx").manifest.random_init_metadata is None


def test_init_and_init_missing_conflict(tmp_path: Path) -> None:
    with pytest.raises(SpeccError, match="E0525"):
        specc.compile("gpt2", tmp_path / "m.onnx", init=1, init_missing=7)
