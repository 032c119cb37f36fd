"""In-place KV buffers: which models use them, and equal results for growth, reordering and chunked
prefill.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from support.small_configs import SMALL_CONFIGS

import specc
from specc.cli.main import main
from specc.ir.target import Target
from specc.runtime.decoder_sessions import KVCacheSession
from specc.runtime.generator import Generator
from specc_onnx.lower.onnx_targets import TARGETS, get_target

GPT2 = {"vocab": 17, "d": 16, "heads": 2, "layers": 2, "context": 300}


def open_generator(
    tmp_path: Path, spec: str = "gpt2", target: str = "ort-cpu", opset: int = 0, **sets: Any
) -> Generator:
    path = tmp_path / f"{spec}-{target}-{opset}-{len(list(tmp_path.iterdir()))}"
    specc.compile(spec, path, init=1, set=sets, target=target, opset=opset, graphs=["step"])
    writer = specc.load(path).generator
    assert writer
    return writer


def prefill_decoder_session(writer: Generator, ids: Any) -> KVCacheSession:
    made = writer.create_decoder_session(writer.input_signature.prepare({"input_ids": ids}))
    assert isinstance(made, KVCacheSession)
    return made


@pytest.mark.parametrize(
    ("spec", "target", "opset", "sets", "count"),
    [
        ("gpt2", "ort-cpu", 0, GPT2, 4),
        ("gpt2", "ort-cpu", 17, GPT2, 0),
        ("gpt2", "onnx", 0, GPT2, 0),
        ("gpt2", "ort-cpu", 0, {**GPT2, "d": 12}, 0),
        (
            "token_shift_lm",
            "ort-cpu",
            0,
            {"vocab": 17, "d": 16, "heads": 2, "layers": 2, "window": 3},
            0,
        ),
    ],
    ids=["ours", "an old opset", "any runtime", "a width the kernel lacks", "a window"],
)
def test_models_with_in_place_buffers(
    tmp_path: Path, spec: str, target: str, opset: int, sets: dict[str, Any], count: int
) -> None:
    writer = open_generator(tmp_path, spec, target, opset, **sets)
    name = writer.input_signature.sequence_input
    made = writer.create_decoder_session(
        writer.input_signature.prepare({name: np.ones((1, 2), np.int64)})
    )
    assert isinstance(made, KVCacheSession)
    assert len(made.buffers) == count


def test_full_buffer_doubles_its_capacity(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 17, (2, 150))
    ours, grown = open_generator(tmp_path, **GPT2), open_generator(tmp_path, target="onnx", **GPT2)
    lengths = set()
    a, b = (prefill_decoder_session(w, ids[:, :1]) for w in (ours, grown))
    for n in range(150):
        np.testing.assert_allclose(a.step(ids[:, n : n + 1]), b.step(ids[:, n : n + 1]), atol=2e-6)
        lengths.add(a.states[a.buffers[0].name].shape()[2])
    assert lengths == {64, 128, 256}


@pytest.mark.parametrize(("prompt_length", "capacity"), [(1, 64), (32, 64), (33, 128), (200, 256)])
def test_first_buffer_is_a_quarter_longer_than_the_prompt(
    prompt_length: int, capacity: int, tmp_path: Path
) -> None:
    ids = np.ones((1, prompt_length), np.int64)
    made = prefill_decoder_session(open_generator(tmp_path, **GPT2), ids)
    made.step(ids)
    assert made.states[made.buffers[0].name].shape()[2] == capacity


def test_next_step_does_not_change_former_logits(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 17, (2, 4))
    made = prefill_decoder_session(open_generator(tmp_path, **GPT2), ids[:, :1])
    given = [made.step(ids[:, n : n + 1]) for n in range(4)]
    again = prefill_decoder_session(open_generator(tmp_path, **GPT2), ids[:, :1])
    for n, kept in enumerate(given):
        np.testing.assert_array_equal(kept, again.step(ids[:, n : n + 1]))


def test_chunked_prefill_equals_one_step(tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 17, (3, 12))
    writer = open_generator(tmp_path, **GPT2)
    want = prefill_decoder_session(writer, ids).step(ids)
    for sizes in ([5, 7], [4, 1, 3, 4], [1] * 12):
        pieces = np.split(ids, np.cumsum(sizes)[:-1], axis=1)
        made = prefill_decoder_session(writer, pieces[0])
        np.testing.assert_allclose([made.step(p) for p in pieces][-1], want, atol=2e-6)


@pytest.mark.parametrize("chunk_size", [1, 5, 12, 30])
def test_batch_prefill_in_slices_equals_one_call(chunk_size: int, tmp_path: Path) -> None:
    """A batch is prefilled in slices of at most `chunk_size` tokens, or of one sequence in chunks;
    the states, the logits and the next steps are the same."""
    ids = np.random.default_rng(3).integers(1, 17, (5, 14))
    writer = open_generator(tmp_path, **GPT2)
    mask = np.ones((5, 12), np.bool_)
    mask[1, :7] = mask[3, :2] = False
    signature = writer.input_signature
    prepared = signature.prepare({"input_ids": ids[:, :12], signature.mask_input: mask})
    whole, sliced = (writer.create_decoder_session(prepared) for _ in range(2))
    assert isinstance(whole, KVCacheSession)
    assert isinstance(sliced, KVCacheSession)
    whole.chunk_size, sliced.chunk_size = 0, chunk_size
    np.testing.assert_allclose(sliced.step(ids[:, :12]), whole.step(ids[:, :12]), atol=2e-6)
    for name, tensor in whole.states.items():
        difference = sliced.states[name].numpy() - tensor.numpy()
        assert np.max(np.abs(difference[:, :, :12] * mask[:, None, :, None])) < 2e-6
    order = np.array([4, 1, 1, 0])
    for session in (whole, sliced):
        session.reorder(order)
    for n in (12, 13):
        step = ids[order, n : n + 1]
        np.testing.assert_allclose(sliced.step(step), whole.step(step), atol=2e-6)


def test_reordered_batch_elements_keep_their_buffers(tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(0, 17, (3, 6))
    writer = open_generator(tmp_path, **GPT2)
    order = np.array([2, 0, 0, 1])
    made = prefill_decoder_session(writer, ids[:, :5])
    made.step(ids[:, :5])
    made.reorder(order)
    got = made.step(ids[order, 5:])
    np.testing.assert_allclose(
        got, prefill_decoder_session(writer, ids[order]).step(ids[order]), atol=2e-6
    )


def test_left_padding_does_not_change_results(tmp_path: Path) -> None:
    writer = open_generator(tmp_path, **GPT2)
    prompts = [[3, 4, 5, 6, 7], [8, 9]]
    together = writer.generate(input_ids=prompts, max_tokens=8, log_probs=True).results()
    for prompt, (found,) in zip(prompts, together, strict=True):
        ((alone,),) = writer.generate(input_ids=[prompt], max_tokens=8, log_probs=True).results()
        assert found.tokens == alone.tokens
        assert found.log_probs == pytest.approx(alone.log_probs, abs=2e-6)


@pytest.mark.parity
@pytest.mark.parametrize("spec", ["gpt2", "llama"])
def test_cuda_skips_a_causal_mask(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In f32, which only the CPU kernel supports: both branches of a step agree with the reference,
    also for padded positions.
    """
    card = replace(get_target("ort-cuda"), in_place_cache_dtypes=frozenset({"f32"}))
    monkeypatch.setitem(cast(dict[str, Target], TARGETS), "ort-cuda", card)
    path = tmp_path / "package"
    parts = ["score", "step"]
    specc.compile(spec, path, init=1, set=SMALL_CONFIGS[spec], target="ort-cuda", graphs=parts)
    (step,) = path.glob("step*.onnx")
    ways = [n for n in onnx.load(step).graph.node if n.op_type == "If"]
    kernels = [
        sum(n.op_type == "GroupQueryAttention" for a in way.attribute for n in a.g.node)
        for way in ways
    ]
    assert kernels == [2] * SMALL_CONFIGS[spec]["layers"]
    capsys.readouterr()
    assert main(["verify", str(path)]) == 0
    told = capsys.readouterr().out
    assert told.count("step: ") >= 3
    assert "ill-conditioned" not in told


@pytest.mark.parametrize("dtype", ["f16", pytest.param("bf16", marks=pytest.mark.parity)])
def test_16_bit_buffers(dtype: str, tmp_path: Path) -> None:
    """Buffers have the dtype of the cache; CUDA has no f32 buffers."""
    given = {"init": 1, "set": GPT2, "target": "ort-cuda", "graphs": ["step"]}
    for width, count in ((dtype, 4), ("f32", 0)):
        path = tmp_path / width
        specc.compile("gpt2", path, dtype=width, **given)
        facts = json.loads((path / "specc.json").read_text("utf-8"))
        assert len(facts["metadata"]["generation"]["in_place_states"]) == count


def test_single_masked_key_is_masked_on_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with a step that always uses the mask: each of six tokens in turn is padding, then
    none, and one more token follows.
    """
    card = replace(get_target("ort-cuda"), in_place_cache_dtypes=frozenset({"f32"}))
    monkeypatch.setitem(cast(dict[str, Target], TARGETS), "ort-cuda", card)
    usual, other = (open_generator(tmp_path, target=t, **GPT2) for t in ("ort-cpu", "ort-cuda"))
    ids = np.array([[5, 3, 8, 2, 9, 4]])
    for hidden in range(7):
        keep = np.arange(6)[None] != hidden
        given = {"input_ids": ids, "attention_mask": keep}
        found = []
        for writer in (usual, other):
            made = writer.create_decoder_session(writer.input_signature.prepare(given))
            found.append([made.step(ids), made.step(np.array([[7]]))])
        for want, got in zip(*found, strict=True):
            assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max(), hidden
