"""GGUF files: dequantized blocks, tensor names, permuted heads, and damaged or hostile files."""

import json
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gguf_files import (
    BLOCK_SIZES,
    F16,
    LLAMA_NAMES,
    Q4_0,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_0,
    GGUFTensor,
    encode_gguf,
    interleave_heads,
    list_llama_shapes,
    make_float_tensor,
    make_llama_metadata,
    sample_blocks,
    write_gguf,
)
from support.parameter_sweeps import sample_sweep

import specc
from specc.diagnostics.diagnostic import SpeccError
from specc.huggingface.gguf_metadata import read_gguf_tokenizer
from specc.huggingface.model_family import load_checkpoint_config
from specc.io.json_io import Json
from specc.ir.array import Array
from specc.weights.checkpoint_files import open_checkpoint
from specc.weights.formats.gguf_file_and_tensor_names import open_gguf
from specc.weights.formats.quantized_layout import QuantizationSettings
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.quantized_checkpoint import DequantizedCheckpoint


def decode_float16(raw: bytes) -> float:
    return float(np.frombuffer(raw[:2], "<f2")[0])


def decode_scale_and_minimum(raw: bytes, n: int) -> tuple[int, int]:
    """`get_scale_min_k4` of ggml."""
    if n < 4:
        return raw[n] & 63, raw[n + 4] & 63
    high = raw[n + 4]
    return (high & 15) | (raw[n - 4] >> 6 << 4), (high >> 4) | (raw[n] >> 6 << 4)


def decode_block_value(kind: int, raw: bytes, n: int) -> float:
    """Return the n-th value of a block in float64, after the structs and loops of ggml-quants.c."""
    if kind == Q8_0:
        return decode_float16(raw) * struct.unpack_from("<b", raw, 2 + n)[0]
    if kind == Q4_0:
        byte = raw[2 + n % 16]
        return decode_float16(raw) * ((byte >> 4 if n >= 16 else byte & 15) - 8)
    if kind in (Q4_K, Q5_K):
        group, place = n // 32, n % 32
        byte = raw[(16 if kind == Q4_K else 48) + n // 64 * 32 + place]
        code = byte >> 4 if group % 2 else byte & 15
        if kind == Q5_K:
            code += 16 * (raw[16 + place] >> group & 1)
        scale, minimum = decode_scale_and_minimum(raw[4:16], group)
        return decode_float16(raw) * scale * code - decode_float16(raw[2:]) * minimum
    part, place = n // 128, n % 128
    low = raw[part * 64 + place % 64]
    low = low >> 4 if place >= 64 else low & 15
    high = raw[128 + part * 32 + place % 32] >> place // 32 * 2 & 3
    scale = struct.unpack_from("<b", raw, 192 + n // 16)[0]
    return decode_float16(raw[208:]) * scale * ((low | high << 4) - 32)


def decode_blocks(stored: GGUFTensor) -> Array:
    """Return all values of a quantized tensor."""
    kind, shape, raw = stored
    values, nbytes = BLOCK_SIZES[kind]
    blocks = [raw[at : at + nbytes] for at in range(0, len(raw), nbytes)]
    return np.array(
        [decode_block_value(kind, b, n) for b in blocks for n in range(values)]
    ).reshape(shape)


@pytest.mark.parametrize("kind", [Q4_0, Q8_0, Q4_K, Q5_K, Q6_K])
def test_dequantized_blocks_equal_ggml(kind: int, tmp_path: Path) -> None:
    stored = sample_blocks(kind, (5, 512), np.random.default_rng(kind))
    path = write_gguf(tmp_path / "m.gguf", make_llama_metadata(), {"blk.1.ffn_up.weight": stored})
    with open_checkpoint(path) as opened:
        checkpoint = DequantizedCheckpoint(opened, "gguf", QuantizationSettings())
        name, wanted = "model.layers.1.mlp.up_proj.weight", decode_blocks(stored)
        assert checkpoint.tensors[name].shape == (5, 512)
        np.testing.assert_allclose(checkpoint.read_tensor(name), wanted, rtol=1e-5, atol=1e-9)
        np.testing.assert_array_equal(
            checkpoint.read_tensor(name, slice(2, 4)), checkpoint.read_tensor(name)[2:4]
        )


def write_llama_files(directory: Path, kind: int) -> tuple[Path, Path]:
    """Write one Llama as a GGUF file and as a checkpoint directory with float32 weights."""
    draw, stored, values = np.random.default_rng(0), {}, {}
    theirs = {theirs: ours for ours, theirs in LLAMA_NAMES.items()}
    for name, shape in list_llama_shapes().items():
        if len(shape) == 1 or kind == F16:
            array = draw.normal(0, 0.2, shape).astype(np.float16 if len(shape) > 1 else np.float32)
            stored[name], value = make_float_tensor(array), array.astype(np.float32)
        else:
            stored[name] = sample_blocks(kind, shape, draw)
            value = decode_blocks(stored[name]).astype(np.float32)
        layer, number = name.removesuffix(".weight"), name.split(".")[1]
        key = theirs[layer.replace(f"blk.{number}", "blk.{}")].replace("{}", number)
        values[f"{key}.weight"] = value
        for part, heads in (("attn_q", 4), ("attn_k", 2)):
            if part in name:
                # the file stores the rows of heads in interleaved order
                order = interleave_heads(np.arange(shape[0]), heads)
                values[f"{key}.weight"] = value[np.argsort(order)]
    write_safetensors(directory / "model.safetensors", values)
    config: Json = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": 31,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return write_gguf(directory / "m.gguf", make_llama_metadata(), stored), directory


@pytest.mark.parametrize("kind", sample_sweep([F16, Q4_0, Q8_0]))
def test_gguf_equals_the_checkpoint_directory(kind: int, tmp_path: Path) -> None:
    file, directory = write_llama_files(tmp_path, kind)
    made = specc.compile(file, tmp_path / "a.onnx")
    specc.compile(directory, tmp_path / "b.onnx")
    ids = np.array([[3, 1, 4, 1, 5, 9]])
    ours, theirs = (specc.load(tmp_path / f"{n}.onnx").run(input_ids=ids)["logits"] for n in "ab")
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
    operators = [node.op_type for node in onnx.load(tmp_path / "a.onnx").graph.node]
    assert operators.count("MatMulNBits") == (15 if kind == Q4_0 else 0)
    assert any("expects token ids" in remark for remark in made.remarks)


def test_tokenizer_of_a_gguf_file(tmp_path: Path) -> None:
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        "\u2581",
        "h",
        "i",
        "hi",
        "\u2581hi",
        *(f"x{n}" for n in range(23)),
    ]
    metadata = {
        "model": "llama", "tokens": tokens, "scores": [-float(n) for n in range(31)],
        "token_type": [2, 3, 3, *[1] * 28], "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    more = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    more["tokenizer.chat_template"] = "{{ bos_token }}{{ messages[0].content }}"
    draw, shapes = np.random.default_rng(0), list_llama_shapes()
    stored = {
        n: make_float_tensor(draw.normal(0, 0.2, s).astype(np.float32)) for n, s in shapes.items()
    }
    file = write_gguf(tmp_path / "m.gguf", make_llama_metadata(**more), stored)
    made = specc.compile(file, tmp_path / "out", graphs="all")
    assert f"the tokenizer is `{file}`" in made.remarks
    model = specc.load(tmp_path / "out")
    written = [
        model.generate("hi hi", max_tokens=4),
        model.generate(input_ids=np.array([[1, 7, 7]]), max_tokens=4),
        model.chat("\u2581hi", max_tokens=4),
        model.generate(input_ids=np.array([[1, 3, 7]]), max_tokens=4),
    ]
    found = [stream.results()[0][0].tokens for stream in written]
    assert found[0] == found[1]
    assert found[2] == found[3]


def try_open(data: bytes, directory: Path) -> SpeccError | None:
    """Return the error of opening a file; None if it can be opened."""
    path = directory / "m.gguf"
    path.write_bytes(data)
    try:
        open_gguf(path).close()
        load_checkpoint_config(str(path))
        read_gguf_tokenizer(path)
    except SpeccError as failed:
        return failed
    return None


SMALL = encode_gguf(
    make_llama_metadata(
        **{
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["a", "b"],
            "tokenizer.ggml.scores": [0.0, -1.0],
            "tokenizer.ggml.eos_token_id": 1,
        }
    ),
    {
        "output_norm.weight": make_float_tensor(np.ones(64, np.float32)),
        "blk.0.attn_q.weight": sample_blocks(Q4_0, (8, 64), np.random.default_rng(0)),
    },
)


def test_truncated_file(tmp_path: Path) -> None:
    assert try_open(SMALL, tmp_path) is None
    for size in range(0, len(SMALL), 5):
        assert try_open(SMALL[:size], tmp_path) is not None, size


@settings(max_examples=100, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=4
    )
)
def test_damaged_file(
    changes: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(SMALL)
    for place, byte in changes:
        data[place] = byte
    try_open(bytes(data), tmp_path_factory.mktemp("gguf"))


HEAD = b"GGUF" + struct.pack("<I", 3)
ARCHITECTURE = make_llama_metadata()
NORM = make_float_tensor(np.ones(64, np.float32))


def encode_two_tensors(*offsets: int) -> bytes:
    """Return a file of two 256-byte vectors at the given offsets, in 512 bytes of data."""
    data = bytearray(
        encode_gguf(ARCHITECTURE, {"output_norm.weight": NORM, "blk.0.attn_norm.weight": NORM})
    )
    for name, offset in zip(
        (b"output_norm.weight", b"blk.0.attn_norm.weight"), offsets, strict=True
    ):
        at = data.find(name) + len(name) + 4 + 8 + 4
        data[at : at + 8] = struct.pack("<Q", offset)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "code", "what"),
    [
        (b"", "E0506", "does not begin with GGUF"),
        (b"<!doctype html>", "E0502", "a web page"),
        (HEAD + struct.pack("<QQ", 2**63, 0), "E0506", "items, more than the file can hold"),
        (HEAD + struct.pack("<QQ", 0, 2**60), "E0506", "items, more than the file can hold"),
        (HEAD + struct.pack("<QQQ", 0, 1, 2**40) + b"key", "E0506", "truncated"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "E0506", "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "E0506", "expected 2 or 3"),
        (encode_two_tensors(0, 128), "E0506", "overlaps"),
        (encode_two_tensors(0, 2**52), "E0506", "ends after the end of the file"),
        (encode_two_tensors(0, 250), "E0506", "multiple of 32"),
        (encode_gguf({**ARCHITECTURE, "general.alignment": 3}, {}), "E0506", "not a power of 2"),
        (encode_gguf({"general.architecture": "rwkv7"}, {}), "E0419", "`rwkv7`"),
        (encode_gguf({}, {}), "E0419", "architecture"),
        (encode_gguf({**ARCHITECTURE, "split.count": 3}, {}), "E0518", "one of 3 parts"),
        (encode_gguf(ARCHITECTURE, {"output.weight": (3, (1, 32), bytes(20))}), "E0508", "Q4_1"),
        (encode_gguf(ARCHITECTURE, {"output.weight": (99, (1, 32), bytes(20))}), "E0508", "NUMBER 99"),
        (encode_gguf(ARCHITECTURE, {"output.weight": (2, (1, 33), bytes(36))}), "E0506", "multiple of the block size"),
        (encode_gguf(ARCHITECTURE, {"a.b": (0, (2**30, 2**30), b"")}), "E0506", "larger than any file"),
    ],
)  # fmt: skip
def test_hostile_files(data: bytes, code: str, what: str, tmp_path: Path) -> None:
    failed = try_open(data, tmp_path)
    assert failed is not None
    assert failed.diagnostics[0].code == code
    assert what in str(failed)


def test_rows_not_divisible_by_heads(tmp_path: Path) -> None:
    stored = {"blk.0.attn_q.weight": make_float_tensor(np.ones((6, 64), np.float32))}
    file = open_gguf(write_gguf(tmp_path / "m.gguf", ARCHITECTURE, stored))
    with file, pytest.raises(SpeccError, match="do not match 4 heads"):
        file.read_tensor("model.layers.0.self_attn.q_proj.weight")
