"""Train a small Llama on Python's help texts, and save the model with transformers. Tests use the
checkpoint because the magnitudes of trained weights differ from those of random weights.

The model is not defined here: `specs/models/llama.specc` defines the computation. The module that
`specc_torch` creates has the parameter names of published checkpoints, so transformers loads the
parameters directly and saves them with `save_pretrained`.
`tests/parity/test_parity_trained_weights.py` loads the checkpoint and compares the outputs.

    python docs/demos/learned/train.py --steps 800     # the included weights: one core, 6 minutes
    python docs/demos/learned/train.py --steps 50 --out /tmp/learned     # a quick test
"""

import argparse
import json
import math
import pydoc_data.topics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tokenizers
import torch
import transformers
from torch import Tensor
from torch.nn import Module, functional

import specc_torch

HERE = Path(__file__).resolve().parent
WORDS, LENGTH, BATCH = 1024, 128, 16
RATE, WARMUP, SHOWN = 3e-3, 100, 50
HELD_BACK = 8  # help topics for validation
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": WORDS, "hidden_size": 160,
    "intermediate_size": 432, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "hidden_act": "silu",
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None,
}  # fmt: skip


def load_help_texts() -> tuple[list[str], list[str]]:
    """Return Python's help texts for training and for validation, ordered by topic name."""
    topics = pydoc_data.topics.topics
    every = [topics[name] for name in sorted(topics)]
    return every[HELD_BACK:], every[:HELD_BACK]


def train_tokenizer(lines: list[str]) -> tokenizers.Tokenizer:
    """Train a byte-level BPE tokenizer on texts."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=["<end>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(lines, trainer)
    return made


def tokenize_texts(made: tokenizers.Tokenizer, lines: list[str]) -> Tensor:
    """Tokenize all texts, each followed by an end token. Return token ids i64[n]."""
    found = [id for line in lines for id in (*made.encode(line).ids, 0)]
    return torch.tensor(found)


def iterate_batches(ids: Tensor, seed: int) -> Iterator[Tensor]:
    """Yield random windows of token ids, i64[BATCH, LENGTH + 1], one batch per step."""
    source = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(ids) - LENGTH, (BATCH,), generator=source)
        yield torch.stack([ids[s : s + LENGTH + 1] for s in starts.tolist()])


def compute_loss(model: Module, rows: Tensor) -> Tensor:
    """Compute the mean cross entropy of the next token."""
    logits = model(input_ids=rows[:, :-1])["logits"]
    return functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def compute_validation_loss(model: Module, ids: Tensor) -> float:
    """Compute the loss on validation texts."""
    rows = ids[: len(ids) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)[:32]
    with torch.no_grad():
        return float(compute_loss(model, rows))


def compute_learning_rate_factor(step: int, steps: int) -> float:
    """Return the learning rate factor: linear warmup, then cosine decay to 0.1."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    done = (step - WARMUP) / max(1, steps - WARMUP)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(done, 1)))


def train(model: Module, learned: Tensor, other: Tensor, steps: int) -> None:
    """Train the model in place for a number of steps."""
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.1)
    rows = iterate_batches(learned, seed=0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * compute_learning_rate_factor(step, steps)
        loss = compute_loss(model, next(rows))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % SHOWN == SHOWN - 1:
            print(
                f"step {step + 1}: loss {float(loss.detach()):.3f}, "
                f"validation loss {compute_validation_loss(model, other):.3f}",
                flush=True,
            )


def save_checkpoint(model: Module, made: tokenizers.Tokenizer, out: Path) -> None:
    """Load the trained weights in transformers and save them with `save_pretrained`."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        # lm_head is tied to the embedding and stored once
        specc_torch.save(model, directory / "model.safetensors", {"format": "pt"})
        theirs = transformers.LlamaForCausalLM.from_pretrained(directory)
    theirs.save_pretrained(out)
    made.save(str(out / "tokenizer.json"))


def main() -> None:
    """Train the model, print its losses and save the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--out", type=Path, default=HERE / "llama")
    given = parser.parse_args()
    learned, other = load_help_texts()
    made = train_tokenizer(learned)
    torch.set_num_threads(1)  # one thread: small tensors benefit little from more threads
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        model = specc_torch.module("llama", config=place, init=0, graph="decoder")
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    train(model, tokenize_texts(made, learned), tokenize_texts(made, other), given.steps)
    given.out.mkdir(parents=True, exist_ok=True)
    save_checkpoint(model, made, given.out)


if __name__ == "__main__":
    main()
