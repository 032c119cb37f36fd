"""Convert the dates spec to a PyTorch module, and train it on pairs generated from the calendar.

The model is not defined here: `specs/models/dates.yaml` defines the computation and the
preprocessing. `specc_torch` converts the spec to a module and batches texts with the preprocessing
code of `specc run` (docs/training.md). Training uses teacher forcing. At the end, the compiled
model is evaluated on the validation days.

    python docs/demos/dates/train.py
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import data
import numpy as np
import torch
from torch import Tensor
from torch.nn import Module, functional

import specc
import specc_torch

HERE = Path(__file__).resolve()
SPEC = HERE.parents[3] / "specs" / "models" / "dates.yaml"
SPECIALS = ("<pad>", "<start>", "<end>")  # token ids 0, 1, 2, as in the config of rnnsearch
BATCH = 128
# number of batches that are sampled together and sorted by length, to reduce padding
POOL = 16
RATE = 4e-3
TEST_PAIRS = 2000
DUE = 0.98

Batch = tuple[dict[str, Tensor], dict[str, Tensor]]


def iterate_batches(model: Module, count: int, seed: int) -> Iterator[Batch]:
    """Yield `count` batches of model inputs and target tokens."""
    order = np.random.default_rng(seed)
    for pool in range(math.ceil(count / POOL)):
        pairs = sorted(
            data.make_training_pairs(BATCH * POOL, seed * 10**6 + pool), key=lambda p: len(p[0])
        )
        chunks = [pairs[i : i + BATCH] for i in range(0, len(pairs), BATCH)]
        for n in order.permutation(len(chunks))[: count - pool * POOL]:
            rows = [{"source": text, "target": meant} for text, meant in chunks[n]]
            yield specc_torch.batch(model, rows)


def train(model: Module, steps: int, seed: int) -> None:
    """Train the model in place."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=0.15)
    total, since = 0.0, time.monotonic()
    for step, (given, wanted) in enumerate(iterate_batches(model, steps, seed), start=1):
        logits = model(**given)["logits"]
        loss = functional.cross_entropy(logits.flatten(0, 1), wanted["logits"].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += float(loss.detach())
        if step % 100 == 0:
            print(
                f"step {step:4d}  loss {total / 100:.4f}  {time.monotonic() - since:.0f} s",
                flush=True,
            )
            total = 0.0


def generate_answers(model: specc.Model, written: Sequence[str]) -> list[str]:
    """Generate answers with the compiled model by greedy decoding."""
    found = model.generate(list(written), strategy="greedy").results()
    return [best.text or "" for best, *_ in found]


def compute_exact_match(spec: Path, weights: Path) -> float:
    """Compute the exact match accuracy on validation pairs."""
    pairs = data.make_validation_pairs(TEST_PAIRS)
    with tempfile.TemporaryDirectory() as directory:
        specc.compile(spec, f"{directory}/dates", weights=weights, graphs="encode,step")
        model = specc.load(f"{directory}/dates")
        found = [
            a
            for i in range(0, len(pairs), 500)
            for a in generate_answers(model, [w for w, _ in pairs[i : i + 500]])
        ]
    wrong = [(w, a, m) for (w, m), a in zip(pairs, found, strict=True) if a != m]
    for text, answer, meant in wrong[:10]:
        print(f"  {text!r}: {answer}, not {meant}")
    return 1 - len(wrong) / len(pairs)


def write_vocabulary(path: Path, force: bool) -> None:
    """Write the vocabulary file, one character per line. The space character is written as a JSON
    string.
    """
    symbols = [*SPECIALS, *data.list_characters()]
    lines = [json.dumps(symbol) if symbol.isspace() else symbol for symbol in symbols]
    words = "".join(f"{line}\n" for line in lines)
    if path.exists() and path.read_text(encoding="utf-8") != words and not force:
        raise SystemExit(
            f"{path.name} exists with a different vocabulary; use --force to replace it"
        )
    path.write_text(words, encoding="utf-8")


def main() -> None:
    """Train the model, print its validation accuracy, and save it next to the spec."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument(
        "--force", action="store_true", help="replace files that were not written by specc"
    )
    args = parser.parse_args()
    path = args.spec.with_name("dates.safetensors")
    specc_torch.check_output_path(path, force=args.force)  # check the output paths before training

    torch.set_num_threads(
        1
    )  # one thread: small tensors do not benefit from more threads, and sums are reproducible
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    write_vocabulary(args.spec.with_name("dates.vocab"), args.force)
    model = specc_torch.module(args.spec, init=args.seed)
    print(
        f"{sum(p.numel() for p in model.parameters())} parameters, "
        f"{args.steps * BATCH} training pairs"
    )

    train(model, args.steps, args.seed)
    with tempfile.TemporaryDirectory() as directory:
        learned = Path(directory) / path.name
        specc_torch.save(model, learned)
        right = compute_exact_match(args.spec, learned)
    print(f"exact match: {right:.2%} of {TEST_PAIRS} validation pairs")
    if right < DUE:
        raise SystemExit(f"accuracy below {DUE:.0%}: not saved")
    specc_torch.save(model, path, force=args.force)
    print(f"wrote {path.name}, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
