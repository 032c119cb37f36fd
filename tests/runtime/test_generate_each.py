"""`generate_each` over any number of sequences: tokens equal those of each sequence alone, with and
without continuous batching.
"""

import random
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS

import specc
from specc.api import Model
from specc.diagnostics.diagnostic import SpeccError
from specc.runtime.batched_generation import (
    generate_in_batches,
    make_continuous_batch,
    make_prompt_inputs,
)
from specc.runtime.continuous_batching import ContinuousBatch

WINDOWED = {
    "decoder.attention.mask": "causal & window(3)",
    "encoder.attention.mask": "window(2, ahead=1)",
}
VOCAB, COUNT, SOME = 17, 25, {"max_tokens": 9, "stop": [2, 3, 4, 5]}
SPECS: dict[str, dict[str, object]] = {
    "gpt2": SMALL_CONFIGS["gpt2"] | {"layers": 1},
    "small_translator": SMALL_CONFIGS["small_translator"] | WINDOWED,
    "rwkv": SMALL_CONFIGS["rwkv"],
    # one position counter for the batch: its sequences end together
    "luong_local_m": SMALL_CONFIGS["luong_local_m"] | {"source_vocab": VOCAB},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"strategy": "greedy"},
    "drawn": {"strategy": "sample", "temperature": 1.5, "seed": 3, "top_k": 9},
    "ruled": {
        "strategy": "greedy",
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "min_tokens": 3,
        "begin_suppress_tokens": [7],
        "forced_eos_token_id": 2,
    },
}


@cache
def model(name: str, target: str = "ort-cpu") -> Model:
    path = f"{mkdtemp()}/{name}"
    specc.compile(name, path, init=3, set=SPECS[name], target=target, graphs="step")
    if name in ("small_translator", "luong_local_m"):
        parts = ["encode", "step"]
        specc.compile(name, path, init=3, set=SPECS[name], target=target, graphs=parts)
    return specc.load(path, threads=1)


def make_prompts(name: str) -> list[list[int]]:
    rng = random.Random(name)
    return [[rng.randrange(6, VOCAB) for _ in range(rng.randint(1, 6))] for _ in range(COUNT)]


def generate_alone(made: Model, number: int, row: object, asked: dict[str, Any]) -> Any:
    """Return one sequence alone, with the seed of its index."""
    writer = made.generator
    assert writer
    text = writer.start_generation(make_prompt_inputs(writer, row), writer.resolve_settings(asked))
    (written,) = generate_in_batches(writer, [(number, text)], 1)
    assert not isinstance(written[1], SpeccError)
    return written[1][0]


@pytest.mark.parametrize(("name", "how"), sample_sweep(list(product(SPECS, SETTINGS)), stride=2))
def test_every_sequence_equals_the_one_generated_alone(name: str, how: str) -> None:
    made, rows, asked = model(name), make_prompts(name), SETTINGS[how] | SOME
    assert made.generator
    assert (made.generator.continuous_batching_metadata is None) == (name == "luong_local_m")
    found = list(made.generate_each(iter(rows), batch_size=5, **asked))
    assert len({len(r.tokens) for r in found if isinstance(r, specc.GenerationResult)}) > 2
    for number, (row, got) in enumerate(zip(rows, found, strict=True)):
        want = generate_alone(made, number, row, asked)
        assert isinstance(got, specc.GenerationResult)
        assert (got.tokens, got.complete) == (want.tokens, want.complete), number


def test_growing_caches_and_kv_buffers_give_equal_tokens() -> None:
    rows, asked = make_prompts("gpt2"), SETTINGS["greedy"] | SOME
    targets = [
        list(model("gpt2", target).generate_each(rows, batch_size=4, **asked))
        for target in ("ort-cpu", "onnx")
    ]
    assert [r.tokens for r in targets[0] if isinstance(r, specc.GenerationResult)] == [
        r.tokens for r in targets[1] if isinstance(r, specc.GenerationResult)
    ]


def test_batch_composition_changes_no_token() -> None:
    rows, asked = make_prompts("gpt2"), SETTINGS["drawn"] | SOME
    made = [
        [
            r.tokens
            for r in model("gpt2").generate_each(rows, batch_size=n, **asked)
            if isinstance(r, specc.GenerationResult)
        ]
        for n in (1, 3, 16, 100)
    ]
    assert all(tokens == made[0] for tokens in made)


def test_an_invalid_prompt_fails_alone() -> None:
    """Invalid ids, an invalid input type, a prompt that is too long."""
    rows: list[object] = [*make_prompts("gpt2")[:3], [99], None, [6] * 40, [7, 8]]
    found = list(model("gpt2").generate_each(rows, batch_size=2, max_tokens=3))
    faults = {n: r.code for n, r in enumerate(found) if isinstance(r, specc.Diagnostic)}
    assert faults == {3: "E0913", 4: "E0906", 5: "E0943"}
    assert [r.notes[-1] for r in found if isinstance(r, specc.Diagnostic)] == [
        "prompt 4",
        "prompt 5",
        "prompt 6",
    ]
    assert len(found) == len(rows)


def test_prompts_are_read_when_a_slot_is_free() -> None:
    taken = 0

    def rows() -> Iterator[list[int]]:
        nonlocal taken
        while True:
            taken += 1
            yield [6 + taken % 5]

    made = model("gpt2").generate_each(rows(), batch_size=4, max_tokens=3)
    assert isinstance(next(made), specc.GenerationResult)
    assert taken <= 10


def test_free_slots_are_refilled() -> None:
    """Fewer steps than batches that wait for their longest sequence."""
    made, rng = model("gpt2"), random.Random(1)
    assert made.generator
    writer = made.generator
    settings = writer.resolve_settings(SETTINGS["drawn"] | {"max_tokens": 30, "stop": [2, 3]})
    rows = [[rng.randrange(6, VOCAB)] for _ in range(200)]
    texts = [writer.start_generation({"input_ids": [row]}, settings) for row in rows]
    batch = make_continuous_batch(writer, 16)
    ended = dict(batch.generate(enumerate(texts)))
    results = [found for found in ended.values() if not isinstance(found, SpeccError)]
    lengths = [len(ended_row[0].tokens) for ended_row in results]
    fixed = sum(16 * max(lengths[n : n + 16]) for n in range(0, 200, 16))
    assert len(lengths) == 200
    assert batch.processed_tokens * 1.5 < fixed
    assert batch.valid_tokens == sum(lengths)


def test_a_runtime_error_is_reported_per_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that fails for a batch is repeated for each sequence alone."""
    made = model("gpt2")
    real = ContinuousBatch._feed_tokens

    def fed(self: Any, decoder_session: Any, tokens: Any) -> Any:
        if len(tokens) > 1 or (tokens == 16).any():
            raise SpeccError(specc.Diagnostic("E0924", "it stopped"))
        return real(self, decoder_session, tokens)

    monkeypatch.setattr(ContinuousBatch, "_feed_tokens", fed)
    found = list(made.generate_each([[6], [16], [7]], batch_size=3, max_tokens=2, stop=[]))
    kinds = [isinstance(r, specc.GenerationResult) for r in found]
    assert not kinds[1]
    assert len(found) == 3


@pytest.mark.parametrize("count", [0, -1, 4097, 2.5, True, "many", None])
def test_an_invalid_batch_size_is_refused(count: Any) -> None:
    with pytest.raises(SpeccError, match="E0891"):
        model("gpt2").generate_each([[6]], batch_size=count)


@pytest.mark.parametrize("rows", ["a text", b"bytes", {"input_ids": [6]}, None, 5])
def test_invalid_prompt_lists_are_refused(rows: Any) -> None:
    """A string is not a list of prompts, although it is iterable."""
    with pytest.raises(SpeccError, match="E0891"):
        model("gpt2").generate_each(rows)


@pytest.mark.parametrize("word", ["suppress_tokens", "bad_words_ids", "stop"])
def test_an_unknown_token_id_is_refused(word: str) -> None:
    asked: dict[str, Any] = {word: [[6, 10**6]] if word == "bad_words_ids" else [10**6]}
    with pytest.raises(SpeccError, match=f"E0732.*`{word}`"):
        model("gpt2").generate(input_ids=[[6]], **asked)


@pytest.mark.parametrize("value", [[6], Path("clip.wav")], ids=str)
def test_an_unknown_input_is_refused(value: Any) -> None:
    (made,) = model("gpt2").generate_each([{"input_idz": value}])
    assert isinstance(made, specc.Diagnostic)
    assert (made.code, made.notes) == ("E0910", ("prompt 1",))


def test_several_sequences_per_prompt() -> None:
    asked: dict[str, Any] = {"strategy": "beam", "num_return_sequences": 2}
    with pytest.raises(SpeccError, match="E0891"):
        model("gpt2").generate_each([[6]], **asked)
    best = list(model("gpt2").generate_each([[6], [7, 8]], strategy="beam", max_tokens=4))
    whole = [model("gpt2").generate([[6]], strategy="beam", max_tokens=4).results()[0][0]]
    assert isinstance(best[0], specc.GenerationResult)
    assert best[0].tokens == whole[0].tokens
