"""The generators that `benchmarks/generation.py` compares produce the same tokens, with a time for
each.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import decoders
import generation

pytestmark = pytest.mark.parity


def test_equal_tokens_with_a_time_for_each(tmp_path: Path) -> None:
    checkpoint = generation.save_checkpoint("gpt2", tmp_path / "gpt2", tiny=True)
    generation.compile_package("gpt2", checkpoint, tmp_path / "package", "specc", "ort-cpu")
    model = decoders.load_published_model(checkpoint)
    generators = {
        "specc": decoders.make_specc_generator(tmp_path / "package"),
        "dynamic": decoders.make_transformers_generator(model, "dynamic"),
        "static": decoders.make_transformers_generator(model, "static"),
    }
    ids = np.random.default_rng(0).integers(0, 90, (2, 5))
    made = {name: generate(ids, 6) for name, generate in generators.items()}
    for name, trace in made.items():
        assert trace.tokens.shape == (2, 6)
        assert np.array_equal(trace.tokens, made["specc"].tokens), name
        assert len(trace.steps) == 5
        assert trace.prefill > 0 < min(trace.steps)


def test_bytes_read_per_token(tmp_path: Path) -> None:
    checkpoint = generation.save_checkpoint("gpt2", tmp_path / "gpt2", tiny=True)
    vocab, width, layers = 100, 64, 2
    block = 12 * width * width + 13 * width
    assert generation.count_weight_bytes_per_token(checkpoint) == 4 * (
        vocab * width + layers * block + 2 * width
    )
    assert generation.count_cache_bytes(checkpoint, 10) == 4 * 2 * 10 * width * layers
    assert generation.measure_memory_bandwidth(2**20, 2) > 0
