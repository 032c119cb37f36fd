"""Names, inputs and outputs of graphs in each profile, and the contents of genai_config.json."""

from dataclasses import replace

import pytest
from support.profiled_models import open_profiled_model

from specc.driver.genai_config_and_export_profiles import build_genai_config
from specc.ir.graph import Graph
from specc.ir.ir_verifier import find_graph_errors

GPT2 = {"layers": 2, "d": 8, "heads": 2, "vocab": 20, "context": 16}
TRANSFORMER = {"layers": 1, "d": 8, "heads": 2, "vocab": 20, "hidden": 16}


def describe_interface(graph: Graph) -> tuple[list[str], list[str]]:
    """Return the inputs and outputs with their types."""
    find_graph_errors(graph)
    return [f"{n}: {v.type}" for n, v in graph.inputs.items()], [
        f"{n}: {v.type}" for n, v in graph.outputs.items()
    ]


def test_hf_decoder() -> None:
    made = open_profiled_model("hf", "gpt2", **GPT2).profiled
    assert list(made.graphs) == ["model"]
    inputs, outputs = describe_interface(made.graphs["model"])
    assert inputs == [
        "input_ids: i64[batch_size, sequence_length]",
        "attention_mask: i64[batch_size, past_sequence_length + sequence_length]",
        "past_key_values.0.key: f32[batch_size, 2, past_sequence_length, 4]",
        "past_key_values.0.value: f32[batch_size, 2, past_sequence_length, 4]",
        "past_key_values.1.key: f32[batch_size, 2, past_sequence_length, 4]",
        "past_key_values.1.value: f32[batch_size, 2, past_sequence_length, 4]",
    ]
    assert outputs[:2] == [
        "logits: f32[batch_size, sequence_length, 20]",
        "present.0.key: f32[batch_size, 2, past_sequence_length + sequence_length, 4]",
    ]
    assert [o.partition(":")[0] for o in outputs[1:]] == [s.next_output for s in made.states]
    assert [i.partition(":")[0] for i in inputs[2:]] == [s.name for s in made.states]
    assert made.graphs["model"].min_lengths == {"batch_size": 1, "sequence_length": 1}


def test_hf_encoder_decoder() -> None:
    graphs = open_profiled_model("hf", "transformer", **TRANSFORMER).profiled.graphs
    assert list(graphs) == ["encoder_model", "decoder_model", "decoder_with_past_model"]
    assert describe_interface(graphs["encoder_model"]) == (
        [
            "input_ids: i64[batch_size, encoder_sequence_length]",
            "attention_mask: i64[batch_size, encoder_sequence_length]",
        ],
        ["last_hidden_state: f32[batch_size, encoder_sequence_length, 8]"],
    )
    assert describe_interface(graphs["decoder_model"]) == (
        [
            "input_ids: i64[batch_size, sequence_length]",
            "encoder_hidden_states: f32[batch_size, encoder_sequence_length, 8]",
            "encoder_attention_mask: i64[batch_size, encoder_sequence_length]",
        ],
        [
            "logits: f32[batch_size, sequence_length, 20]",
            "present.0.decoder.key: f32[batch_size, 2, sequence_length, 4]",
            "present.0.decoder.value: f32[batch_size, 2, sequence_length, 4]",
            "present.0.encoder.key: f32[batch_size, 2, encoder_sequence_length, 4]",
            "present.0.encoder.value: f32[batch_size, 2, encoder_sequence_length, 4]",
        ],
    )
    assert describe_interface(graphs["decoder_with_past_model"]) == (
        [
            "input_ids: i64[batch_size, sequence_length]",
            "encoder_attention_mask: i64[batch_size, encoder_sequence_length]",
            "past_key_values.0.decoder.key: f32[batch_size, 2, past_sequence_length, 4]",
            "past_key_values.0.decoder.value: f32[batch_size, 2, past_sequence_length, 4]",
            "past_key_values.0.encoder.key: f32[batch_size, 2, encoder_sequence_length, 4]",
            "past_key_values.0.encoder.value: f32[batch_size, 2, encoder_sequence_length, 4]",
        ],
        [
            "logits: f32[batch_size, sequence_length, 20]",
            "present.0.decoder.key: f32[batch_size, 2, past_sequence_length + sequence_length, 4]",
            "present.0.decoder.value: f32[batch_size, 2, past_sequence_length + "
            "sequence_length, 4]",
        ],
    )


@pytest.mark.parametrize("spec", ["gpt2", "transformer"])
def test_specc_profile_keeps_the_graphs(spec: str) -> None:
    made = open_profiled_model("specc", spec, **(GPT2 if spec == "gpt2" else TRANSFORMER)).profiled
    assert list(made.graphs) == (["step"] if spec == "gpt2" else ["encode", "step"])
    assert {s.name for s in made.states} < made.graphs["step"].inputs.keys()
    assert not made.json_files


def test_genai_config() -> None:
    made = open_profiled_model("genai", "gpt2", **GPT2, stop=[7]).profiled
    assert list(made.graphs) == ["model"]
    assert str(made.graphs["model"].outputs["logits"].type) == "f32[batch_size, 1, 20]"
    config = made.json_files["genai_config.json"]
    assert isinstance(config, dict)
    model = config["model"]
    assert (model["type"], model["vocab_size"], model["context_length"]) == ("decoder", 20, 16)
    assert (model["eos_token_id"], model["pad_token_id"]) == (7, 7)
    assert model["decoder"]["filename"] == "model.onnx"
    assert (model["decoder"]["num_key_value_heads"], model["decoder"]["head_size"]) == (2, 4)
    assert config["search"] == {
        "do_sample": False,
        "max_length": 16,
        "past_present_share_buffer": False,
    }


def test_genai_search_options_contain_the_number_of_beams() -> None:
    made = open_profiled_model("genai", "gpt2", **GPT2, stop=[7])
    model = made.spec.model
    assert model.generation
    strategy = {"kind": "beam", "num_beams": 4, "early_stopping": "never", "typical_p": 0.5}
    generation = replace(model.generation, settings={"strategy": strategy})
    config = build_genai_config(
        model, generation, made.profiled.graphs["model"], made.profiled.states
    )
    search = {"do_sample": False, "num_beams": 4, "early_stopping": False}
    assert search.items() <= config["search"].items()
    assert "typical_p" not in config["search"]


def test_genai_context_length_without_position_embeddings() -> None:
    config = open_profiled_model(
        "genai", "llama", layers=1, d=8, heads=2, hidden=8, vocab=20
    ).profiled.json_files["genai_config.json"]
    assert isinstance(config, dict)
    assert config["model"]["context_length"] == 131072
    assert config["model"]["eos_token_id"] == 2
