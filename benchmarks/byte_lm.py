"""Train a byte-level language model on the Python distribution, to compare quantization recipes.
With random weights, all recipes would have the same small loss.

The model is `specs/models/llama.specc` with a small config. `specc_torch` converts the spec to a
PyTorch module and saves the trained weights as a Hugging Face checkpoint. The repository contains
this script but not the weights.

    python benchmarks/byte_lm.py --out /tmp/byte_lm --minutes 60
"""

import argparse
import json
import math
import pydoc_data.topics
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module, functional

import specc_torch

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 384,
    "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 6,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "hidden_act": "silu",
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "torch_dtype": "float32",
}  # fmt: skip
"""The config of the model (10.7 million parameters). All widths are multiples of group size 128."""

LENGTH, BATCH = 256, 12
RATE, WARMUP, SHOWN = 3e-3, 0.02, 50
HELD_BACK = 20
"""Every 20th file belongs to the validation set."""


def read_texts() -> tuple[bytes, bytes]:
    """Return the training text and the validation text: Python sources without tests, help texts
    and the license. A zero byte precedes each file.
    """
    root = Path(sysconfig.get_path("stdlib"))
    # exclude installed packages, and tests, because tests contain tables of data
    other = {"site-packages", "test", "tests", "pydoc_data"}
    files = [p for p in sorted(root.rglob("*.py")) if not other & set(p.parts)]
    every = [p.read_bytes() for p in files]
    topics = pydoc_data.topics.topics
    every += [topics[name].encode() for name in sorted(topics)]
    every += [p.read_bytes() for p in sorted(root.glob("LICENSE*"))]
    learned = [t for n, t in enumerate(every) if n % HELD_BACK]
    return _join_texts(learned), _join_texts(every[::HELD_BACK])


def _join_texts(texts: list[bytes]) -> bytes:
    return b"".join(b"\0" + text for text in texts)


def encode_bytes(text: bytes) -> Tensor:
    """Return the bytes of a text as token ids i64[n]."""
    return torch.from_numpy(np.frombuffer(text, np.uint8).astype(np.int64))


def sample_windows(text: bytes, count: int, length: int) -> np.ndarray:
    """Return equally spaced windows of a text as token ids i64[count, length]."""
    starts = np.linspace(0, len(text) - length, count).astype(np.int64)
    ids = np.frombuffer(text, np.uint8).astype(np.int64)
    return np.stack([ids[s : s + length] for s in starts])


def compute_loss(model: Module, rows: Tensor) -> Tensor:
    """Compute the loss in nats per byte, with matrix products in bfloat16 mixed precision."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=rows[:, :-1])["logits"]
    return functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


def compute_validation_loss(model: Module, other: bytes) -> float:
    """Compute the validation loss in bits per byte."""
    rows = torch.from_numpy(sample_windows(other, 64, LENGTH + 1))
    with torch.no_grad():
        return float(compute_loss(model, rows)) / math.log(2)


def compute_learning_rate(done: float) -> float:
    """Return the learning rate factor at a fraction of the training time: linear warmup, followed
    by cosine decay to 0.02.
    """
    if done < WARMUP:
        return done / WARMUP
    wave = 0.5 * (1 + math.cos(math.pi * (done - WARMUP) / (1 - WARMUP)))
    return 0.02 + 0.98 * wave


def iterate_time_fractions(minutes: float) -> Iterator[float]:
    """Yield the elapsed fraction of the training time at each step, up to 1."""
    start = time.monotonic()
    while (done := (time.monotonic() - start) / (60 * minutes)) < 1:
        yield done


def make_optimizers(model: Module) -> list[torch.optim.Optimizer]:
    """Return two optimizers: Muon (Jordan et al., 2024) for the linear layers, because Muon needs
    fewer steps, and AdamW for the embedding and the norm weights.
    """
    named = dict(model.named_parameters())
    maps = [p for n, p in named.items() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in named.items() if p.dim() != 2 or "embed" in n]
    # Muon updates are scaled like AdamW updates, so that both optimizers use one learning rate
    muon = torch.optim.Muon(maps, RATE, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(others, RATE, betas=(0.9, 0.95), weight_decay=0.0)]


def train(model: Module, learned: bytes, other: bytes, minutes: float) -> None:
    """Train the model in place for the given number of minutes."""
    optimizers = make_optimizers(model)
    ids, source = encode_bytes(learned), torch.Generator().manual_seed(0)
    for step, done in enumerate(iterate_time_fractions(minutes)):
        for group in (g for o in optimizers for g in o.param_groups):
            group["lr"] = RATE * compute_learning_rate(done)
        starts = torch.randint(len(ids) - LENGTH, (BATCH,), generator=source)
        rows = torch.stack([ids[s : s + LENGTH + 1] for s in starts.tolist()])
        loss = compute_loss(model, rows)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if step % SHOWN == SHOWN - 1:
            said = f"{float(loss.detach()) / math.log(2):.3f} bits per byte"
            print(
                f"{step + 1}, {done:.0%}: {said}, validation {compute_validation_loss(model, other):.3f}",
                flush=True,
            )


def make_tokenizer_json() -> dict[str, object]:
    """Return a byte-level `tokenizer.json` (byte n is token n), which some programs require."""
    from tokenizers import pre_tokenizers

    printed = [n for n in range(256) if chr(n).isprintable() and n not in (32, 160)]
    # in GPT-2's byte encoding, printable bytes map to themselves, other bytes to 256 and above
    printed = [n for n in printed if n < 127 or (n > 160 and n != 173)]
    hidden = [n for n in range(256) if n not in printed]
    names = {n: chr(n) for n in printed}
    names |= {n: chr(256 + k) for k, n in enumerate(hidden)}
    assert sorted(names.values()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {names[n]: n for n in range(256)}, "merges": [],
        },
    }  # fmt: skip


def save_checkpoint(model: Module, out: Path) -> None:
    """Save the model as a Hugging Face checkpoint: weights, config.json and tokenizer.json."""
    specc_torch.save(model, out / "model.safetensors", {"format": "pt"}, force=True)
    files = {
        "config.json": CONFIG,
        "tokenizer.json": make_tokenizer_json(),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


def main() -> None:
    """Train the model, print its losses and save the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.minutes <= 0:
        parser.error("--minutes must be positive")
    try:
        # check the output directory before training
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out: {error}")
    specc_torch.check_output_path(given.out / "model.safetensors", force=True)
    torch.set_num_threads(given.threads)
    learned, other = read_texts()
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        model = specc_torch.module("llama", config=place, init=0, graph="decoder")
    count = sum(p.numel() for p in model.parameters())
    print(f"{count} parameters, {len(learned)} bytes, {len(other)} validation bytes")
    train(model, learned, other, given.minutes)
    print(f"validation loss: {compute_validation_loss(model, other):.3f} bits per byte")
    save_checkpoint(model, given.out)


if __name__ == "__main__":
    main()
