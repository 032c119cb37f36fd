"""Parameters are streamed in blocks: seeded ones and large transposed ones come out
whole, in little room.
"""

import tracemalloc
from pathlib import Path

import numpy as np

from specc.weights.bind import bind
from specc.weights.checkpoint import open_weights
from specc.weights.drawn import fill
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.initial import Normal
from specc.weights.rules import LoadRule, Rules, Wanted
from specc.weights.transform import Tensor, Transpose
from specc.weights.values import Seeded, array_of


def test_seeded_parameters() -> None:
    want = {n: Wanted(n, (3, 4)) for n in ("wte", "head", "q")}
    seeded = Seeded(7, want, dict.fromkeys(want, "normal(0.02)"), {"head": "wte"})
    assert seeded.tied_to("head") == "wte"
    assert seeded.tied_to("wte") is None
    assert seeded.run("q") is None
    assert np.array_equal(array_of(seeded, "q"), fill(Normal(0.02), 7, "q", (3, 4)))
    assert np.array_equal(array_of(seeded, "head"), array_of(seeded, "wte"))
    assert array_of(seeded, "q", "f16").dtype == np.float16


def test_a_large_transposed_tensor_needs_no_second_copy(tmp_path: Path) -> None:
    big = np.arange(3000 * 2000, dtype=np.float32).reshape(3000, 2000)
    write_safetensors(tmp_path / "a.safetensors", {"a": big})
    with open_weights(tmp_path) as checkpoint:
        rules = Rules(loads=(LoadRule("a", Transpose(Tensor("a"))),))
        binding = bind([Wanted("a", (2000, 3000))], rules, checkpoint)
        assert np.array_equal(array_of(binding, "a"), big.T)
        tracemalloc.start()
        for _ in binding.chunks("a", "f32"):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1.6 * big.nbytes


def test_a_tensor_as_it_stands_is_streamed_in_chunks(tmp_path: Path) -> None:
    big = np.ones(6_000_000, np.float32)
    write_safetensors(tmp_path / "a.safetensors", {"a": big})
    with open_weights(tmp_path) as checkpoint:
        binding = bind([Wanted("a", big.shape)], Rules(), checkpoint)
        tracemalloc.start()
        total = sum(len(chunk) for chunk in binding.chunks("a", "f32"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total == big.nbytes
        assert peak < big.nbytes / 2
