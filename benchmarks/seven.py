"""A Llama of 7 billion parameters, which this machine need not be able to load in
float32: rounded to 4 bits by streaming, then run.

SPECC_SEVEN names a folder: a package in it is run as it is. Where it is not named, a
checkpoint of random numbers in bfloat16 is written (13.5 GB) and compiled, and both are
removed again.
"""

import json
import math
import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import decoders
import generation
import measure
import numpy as np

SEVEN = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
    "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
    "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
SMALL = {"vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}  # fmt: skip
PROMPT, COUNT = 32, 17
"""Tokens that are read, and written behind them."""

PEAK, RATE = 1500, 200
"""Goals: MB of memory at most, MB of the checkpoint a second at least."""

NOISE = 2**25
"""Numbers that are drawn; the weights are these again and again, at other places."""


def rows(folder: Path, rounds: int, quick: bool) -> Iterator[str]:
    """What compiling took, and how fast tokens come."""
    yield "### A Llama of 7 B parameters at 4 bits\n"
    named = os.environ.get("SPECC_SEVEN", "")
    package = Path(named) if named else folder / "package"
    if (package / "specc.json").exists():
        yield "The package was there already: compiling was not measured.\n"
    elif shutil.disk_usage(folder).free < 20e9 and not quick:
        yield "Not run: it needs 20 GB of disk for the while.\n"
        return
    else:
        yield from _compiled(folder / "checkpoint", package, quick)
    yield from _written(package, rounds)


def _compiled(checkpoint: Path, package: Path, quick: bool) -> Iterator[str]:
    config = {**SEVEN, **(SMALL if quick else {})}
    size = save(config, checkpoint, NOISE // 64 if quick else NOISE)
    command = [sys.executable, "-m", "specc", "compile", str(checkpoint)]
    options = ["--quantize", "int4", "--samples", "0", "--for", "step"]
    cost = measure.of_process([*command, *options, "-o", str(package)])
    shutil.rmtree(checkpoint)
    rate = size / 1e6 / cost.seconds
    made = sum(p.stat().st_size for p in package.rglob("*") if p.is_file())
    yield "| | | goal | reached |\n|---|---|---|---|"
    yield f"| checkpoint in bfloat16 | {size / 1e9:.2f} GB | | |"
    yield f"| package | {made / 1e9:.2f} GB | | |"
    yield f"| compiling, to the nearest | {cost.seconds:.0f} s | | |"
    yield f"| source read | {rate:.0f} MB/s | {RATE} MB/s | {_word(rate >= RATE)} |"
    peak = cost.megabytes
    yield f"| peak memory | {peak:.0f} MB | {PEAK} MB | {_word(peak <= PEAK)} |\n"


def _written(package: Path, rounds: int) -> Iterator[str]:
    write = decoders.of_specc(package)
    ids = np.random.default_rng(0).integers(5, 900, (1, PROMPT))
    traces = generation.in_turn({"specc": write}, ids, COUNT, rounds)["specc"]
    rate = statistics.median(len(t.steps) / sum(t.steps) for t in traces)
    first = statistics.median(t.prefill for t in traces)
    yield (
        f"{PROMPT} tokens are read in {first:.2f} s; then it writes {rate:.2f} tokens a "
        f"second, with {decoders.THREADS} threads.\n"
    )
    needed, there = 4 * _parameters(SEVEN) / 1e9, measure.memory() / 1e9
    if needed > there:
        yield (
            "The builder of onnxruntime-genai was not tried on it: it reads a model as "
            f"float32 first, which is {needed:.0f} GB; this machine has {there:.0f}.\n"
        )


def save(config: Mapping[str, object], folder: Path, noise: int) -> int:
    """A checkpoint of random bfloat16 numbers, as a hub would have it; its bytes."""
    shapes = _shapes(config)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}  # fmt: skip
        end += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    drawn = np.random.default_rng(0).normal(0, 0.02, noise).astype(np.float32)
    # the upper half of a float32 is the bfloat16 next to it towards zero
    block = (drawn.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for at in range(0, end, len(block)):
            file.write(block[: end - at])
    return end


def _shapes(config: Mapping[str, object]) -> dict[str, list[int]]:
    """Names and shapes of a LlamaForCausalLM."""
    keys = ("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers")
    wide, hidden, vocab, layers = (int(str(config[key])) for key in keys)
    maps = {f"self_attn.{n}_proj": [wide, wide] for n in "qkvo"}
    maps |= {"mlp.gate_proj": [hidden, wide], "mlp.up_proj": [hidden, wide]}
    maps |= {"mlp.down_proj": [wide, hidden]}
    maps |= {"input_layernorm": [wide], "post_attention_layernorm": [wide]}
    found = {"model.embed_tokens.weight": [vocab, wide]}
    for n in range(layers):
        found |= {f"model.layers.{n}.{m}.weight": s for m, s in maps.items()}
    return found | {"model.norm.weight": [wide], "lm_head.weight": [vocab, wide]}


def _parameters(config: Mapping[str, object]) -> int:
    return sum(math.prod(shape) for shape in _shapes(config).values())


def _word(yes: bool) -> str:
    return "yes" if yes else "no"
