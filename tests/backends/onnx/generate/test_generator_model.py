"""Standalone generators return the tokens of a float64 loop of full forward passes, for every
decoding strategy and edge case.
"""

import numpy as np
import pytest
from support.decoder_graphs import build_decoder, sample_parameters
from support.derived_graphs import derive_encoder_and_step
from support.generation_models import (
    BATCH,
    PROMPT,
    GenerationCase,
    assert_hypotheses_equal,
    elaborate_smallest,
    fill_weights,
    make_settings,
)
from support.onnx_sessions import open_silent_session
from support.parameter_sweeps import cover_axes, sample_sweep

import specc_numpy
from specc.diagnostics.diagnostic import SpeccError
from specc.ir.model_definition import DecodingConfig, StandaloneGenerator
from specc_onnx import DEFAULT_OPSET, build_generation_model, get_target
from specc_onnx.generate.generator_model import find_loop_invariant_nodes
from specc_onnx.lower.subgraphs import iterate_node_subgraphs

PROMPTED = (
    "gpt2",
    "llama",
    "mistral",
    "mixtral",
    "bloom",
    "lstm_lm",
    "gru_lm",
    "conv_lm",
    "rwkv",
    "mamba",
    "linear_attention_lm",
    "sparsemax_lm",
)
TRANSLATING = (
    "transformer",
    "encoder_decoder",
    "rnnsearch",
    "luong",
    "seq2seq",
    "t5",
    "show_attend_tell",
    "coverage_pointer",
)
BEAMS = ({"num_beams": 4, "num_return_sequences": 3}, {"num_beams": 3, "early_stopping": True}, {"num_beams": 2, "repetition_penalty": 1.3},
         {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.6, "early_stopping": "never"}, {"num_beams": 1})  # fmt: skip
DRAWS = (
    {},
    {"top_k": 5, "temperature": 1.4},
    {"top_p": 0.8},
    {"min_p": 0.1, "repetition_penalty": 1.3},
)


def check_same_generation(case: GenerationCase) -> None:
    """Assert equal tokens and nearly equal log-probabilities."""
    tokens, scores = case.run()
    wanted, wanted_scores = case.generate_expected()
    assert tokens.tolist() == wanted.tolist()
    assert np.abs(scores - wanted_scores).max() < 1e-4


@pytest.mark.parametrize(
    "name", sample_sweep([*PROMPTED, *TRANSLATING, "token_shift_lm", "rnn_encdec"])
)
def test_greedy(name: str) -> None:
    spec = elaborate_smallest(name)
    case = GenerationCase(spec, make_settings(spec))
    assert [i.name for i in case.session.get_inputs()][-1] == "max_tokens"
    check_same_generation(case)


DRAWING, SEARCHING = (
    ("gpt2", "rnnsearch", "lstm_lm"),
    ("gpt2", "mistral", "transformer", "rnnsearch", "lstm_lm"),
)


@pytest.mark.parametrize(
    ("name", "more"),
    sample_sweep([*cover_axes(lambda name, more: (more - name) % 4 < 2, DRAWING, DRAWS)]),
)
def test_sampling_matches_python(name: str, more: dict[str, float]) -> None:
    spec = elaborate_smallest(name)
    case = GenerationCase(spec, make_settings(spec, "sample", seed=5, max_tokens=16, **more))
    check_same_generation(case)
    again = case.run(seed=np.array(6))[0]
    assert again.shape != case.run()[0].shape or (again != case.run()[0]).any()


@pytest.mark.parametrize(
    ("name", "more"),
    sample_sweep([*cover_axes(lambda name, more: (more - name) % 5 < 2, SEARCHING, BEAMS)]),
)
def test_beam_search_matches_python(name: str, more: dict[str, object]) -> None:
    spec = elaborate_smallest(name)
    stops = (0, 2, 5) if name in PROMPTED else (2, 7)
    case = GenerationCase(spec, make_settings(spec, "beam", stop=stops, **more))
    assert_hypotheses_equal(*case.run(), case.search_expected())


@pytest.mark.parametrize(
    "name", sample_sweep(["gpt2", "llama", "bloom", "lstm_lm", "sparsemax_lm"])
)
def test_left_padded_prompts_of_different_length(name: str) -> None:
    """A left-padded sequence gets the same tokens as alone."""
    spec = elaborate_smallest(name)
    keep = np.array([[False, False, True], [True, True, True], [False, True, True]])
    case = GenerationCase(spec, make_settings(spec), keep=keep)
    check_same_generation(case)
    tokens = case.run()[0]
    alone = GenerationCase(spec, make_settings(spec))
    for row in range(BATCH):
        made = alone.run(**{alone.growing: PROMPT[row : row + 1][:, keep[row]]})[0]
        assert tokens[row, : made.shape[1]].tolist() == made[0].tolist()


@pytest.mark.parametrize("seed", sample_sweep(range(12)))
def test_ngram_and_bad_words_rules(seed: int) -> None:
    """The prompts differ in length, are padded on either side and contain repeated tokens."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(3, 7, (BATCH, 6))
    keep = np.ones(prompt.shape, bool)
    keep[0, : rng.integers(0, 5)] = False
    keep[1, 6 - rng.integers(0, 5) :] = False
    runs = [tuple(map(int, rng.integers(0, 17, rng.integers(1, 5)))) for _ in range(40)]
    more = {
        "no_repeat_ngram_size": int(rng.integers(0, 4)),
        "min_length": int(rng.integers(0, 14)),
        "bad_words_ids": tuple(runs) if seed % 3 else (),
        "stop": tuple(map(int, rng.integers(0, 17, 3))),
    }
    strategy = ("greedy", "sample", "beam")[seed % 3 if seed < 6 else 2 * (seed % 2)]
    if strategy == "beam":
        more |= {"num_beams": 3, "num_return_sequences": 2, "renormalize_logits": seed % 4 < 2}
    spec = elaborate_smallest("llama")
    opset = 17 if strategy == "beam" and seed % 2 else DEFAULT_OPSET
    case = GenerationCase(
        spec, make_settings(spec, strategy, **more), opset=opset, keep=keep, prompt=prompt
    )
    if strategy == "beam":
        assert_hypotheses_equal(*case.run(), case.search_expected())
        return
    (tokens, _), (wanted, _) = case.run(), case.generate_expected()
    assert tokens.tolist() == wanted.tolist()


def test_beams_fan_out_after_padded_prompts() -> None:
    """The prompt is processed once per sequence; its padding mask fans out with the caches."""
    spec = elaborate_smallest("gpt2")
    keep = np.array([[False, False, True], [True, True, True], [False, True, True]])
    case = GenerationCase(
        spec,
        make_settings(
            spec, "beam", stop=(0, 5), num_beams=3, num_return_sequences=3, repetition_penalty=1.2
        ),
        keep=keep,
    )
    assert_hypotheses_equal(*case.run(), case.search_expected())


def test_default_padding_mask_is_computed_from_ids() -> None:
    """If defaults are computed inside the model, `input_ids >= 0` is the padding mask: -1 is
    padding.
    """
    spec = elaborate_smallest("gpt2")
    case = GenerationCase(spec, make_settings(spec))
    padded = np.array([[-1, -1, 7], [1, 2, 8], [-1, 4, 9]])
    tokens = case.run(input_ids=padded)[0]
    for row, prompt in enumerate(padded):
        made = case.run(input_ids=prompt[None, prompt >= 0])[0]
        assert tokens[row, : made.shape[1]].tolist() == made[0].tolist()


def test_start_token_needs_an_input_with_the_batch_size() -> None:
    spec = elaborate_smallest("gpt2")
    case = GenerationCase(spec, make_settings(spec, start=(3,)))
    assert not case.ingredients.accepts_empty_prompt
    assert list(case.ingredients.inputs) == ["input_ids"]


def test_output_name_of_an_input_is_numbered() -> None:
    graph = build_decoder()
    derived_graphs = derive_encoder_and_step(graph, "tokens", {"logits": "newest"})
    built = build_generation_model(
        StandaloneGenerator(graph, derived_graphs, DecodingConfig(logits_output="logits")),
        get_target("onnx"),
    )
    session = open_silent_session(fill_weights(built, sample_parameters(graph)))
    assert [o.name for o in session.get_outputs()] == ["tokens_2", "log_probs"]
    prompt, weights = np.array([[1, 2, 3]]), sample_parameters(graph)
    made = session.run(None, {"tokens": prompt, "max_tokens": np.array(6)})[0]
    for token in made[0]:
        logits = specc_numpy.evaluate_graph(graph, {"tokens": prompt}, weights)["logits"]
        assert logits[0, -1].argmax() == token
        prompt = np.append(prompt, [[token]], axis=1)


def test_generation_stops_when_all_sequences_are_finished() -> None:
    """The loop stops after the longest sequence; tokens after a stop token are fill tokens."""
    spec = elaborate_smallest("gpt2")
    free = GenerationCase(spec, make_settings(spec, stop=())).run()[0]
    stops = tuple(int(t) for t in free[:, 2])
    case = GenerationCase(spec, make_settings(spec, stop=stops, pad=16))
    check_same_generation(case)
    tokens, scores = case.run()
    assert tokens.shape[1] <= 3
    for row, line in enumerate(tokens.tolist()):
        end = next(n for n, t in enumerate(line) if t in stops)
        assert line[end + 1 :] == [16] * (len(line) - end - 1)
        assert not scores[row, end + 1 :].any()


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
def test_zero_max_tokens(strategy: str) -> None:
    spec = elaborate_smallest("gpt2")
    tokens, scores = GenerationCase(spec, make_settings(spec, strategy)).run(max_tokens=np.array(0))
    assert tokens.shape == ((BATCH, 1, 0) if strategy == "beam" else (BATCH, 0))
    assert scores.shape == ((BATCH, 1) if strategy == "beam" else (BATCH, 0))


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
def test_empty_batch(strategy: str) -> None:
    spec = elaborate_smallest("gpt2")
    tokens = GenerationCase(spec, make_settings(spec, strategy)).run(
        input_ids=np.zeros((0, 3), np.int64)
    )[0]
    assert tokens.shape[0] == 0


@pytest.mark.parametrize(
    ("where", "opset"),
    cover_axes(lambda where, opset: where == opset % 2, ("onnx", "ort-cpu"), (18, 20, 23, 26)),
)
def test_all_opsets_and_targets(where: str, opset: int) -> None:
    for name, strategy in (("gpt2", "sample"), ("rnnsearch", "beam")):
        spec = elaborate_smallest(name)
        case = GenerationCase(
            spec, make_settings(spec, strategy, seed=1), target=where, opset=opset
        )
        check_same_generation(case) if strategy == "sample" else assert_hypotheses_equal(
            *case.run(), case.search_expected()
        )


def test_oldest_opset_supports_greedy_decoding_only() -> None:
    spec = elaborate_smallest("gpt2")
    check_same_generation(GenerationCase(spec, make_settings(spec), opset=17))
    with pytest.raises(SpeccError) as caught:
        GenerationCase(spec, make_settings(spec, "sample"), opset=17)
    assert caught.value.diagnostics[0].code == "E0821"


def test_samples_do_not_depend_on_the_batch() -> None:
    """Samples of sequence 0 do not depend on the other sequences."""
    spec = elaborate_smallest("gpt2")
    case = GenerationCase(spec, make_settings(spec, "sample", seed=9))
    whole = case.run()[0]
    alone = case.run(input_ids=PROMPT[:1])[0]
    assert whole[0, : alone.shape[1]].tolist() == alone[0].tolist()


# What the file looks like.


def test_weights_are_stored_once_in_the_main_graph() -> None:
    case = GenerationCase(elaborate_smallest("gpt2"), make_settings(elaborate_smallest("gpt2")))
    initializers = [t.name for t in case.model.graph.initializer]
    assert len(initializers) == len(set(initializers))
    (loop,) = (node for node in case.model.graph.node if node.op_type == "Loop")
    (body,) = iterate_node_subgraphs(loop)
    assert not body.initializer
    assert "lm_head.weight" in initializers
    assert sum(name.endswith("c_attn.weight") for name in initializers) == 2


def test_invariant_nodes_are_hoisted_out_of_the_loop() -> None:
    """In a translator these are the encoder and the nodes that read only its outputs and weights."""
    case = GenerationCase(
        elaborate_smallest("rnnsearch"), make_settings(elaborate_smallest("rnnsearch"))
    )
    (loop,) = (node for node in case.model.graph.node if node.op_type == "Loop")
    (body,) = iterate_node_subgraphs(loop)
    read = {name for node in body.node for name in node.input}
    assert not any("encoder" in name for name in read if name.endswith(("weight_ih", "weight_hh")))
    assert not [node for node in body.node if node.op_type == "GRU" and "encoder" in node.name]


def test_invariant_nodes_read_weights_and_encoder_outputs() -> None:
    derived_graphs = GenerationCase(
        elaborate_smallest("transformer"), make_settings(elaborate_smallest("transformer"))
    ).ingredients.derived_graphs
    fixed = set(
        find_loop_invariant_nodes(derived_graphs.step, derived_graphs.loop_invariant_inputs)
    )
    assert {node for node, _ in derived_graphs.step.nodes} - fixed
    known = {derived_graphs.step.inputs[n] for n in derived_graphs.loop_invariant_inputs} | set(
        derived_graphs.step.parameters.values()
    )
    for node, results in derived_graphs.step.nodes:
        if node in fixed:
            assert all(a is None or a in known for a in node.args)
            known.update(results)


def test_model_bytes_are_deterministic() -> None:
    first, second = (
        GenerationCase(
            elaborate_smallest("gpt2"), make_settings(elaborate_smallest("gpt2"), "sample")
        )
        for _ in range(2)
    )
    assert first.model.SerializeToString(deterministic=True) == second.model.SerializeToString(
        deterministic=True
    )
