"""Trains the dates model: the spec itself, as a PyTorch module, on pairs made from the
calendar.

There is no model in this file. `specs/models/dates.yaml` says what is computed and how
a text is read; `specc_torch` makes a module of it whose parameters bear the spec's
names. Texts go through the same code that `specc run` reads them with. The model learns
to continue the true beginning of an answer; the report at the end is on answers that it
writes alone, for days that it has never seen in any form.

    python docs/demos/dates/train.py
"""

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import data
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from specc.compiler.reading import reading_of
from specc.compiler.spec import elaborated, open_spec
from specc.data.record import TextCharacters
from specc.data.text import decode, encode, pad
from specc.data.vocabulary import write_vocabulary
from specc.files.place import WEIGHTS, WORDS, place
from specc.files.write import atomic_write
from specc.passes.simplify.rewrite import rewrite
from specc.passes.simplify.split_scan import split_scan
from specc_torch import SpecModule

HERE = Path(__file__).resolve()
SPEC = HERE.parents[3] / "specs" / "models" / "dates.yaml"
SPECIALS = ("<pad>", "<start>", "<end>")  # ids 0, 1, 2, as in the config of rnnsearch
PAD, START, END = range(3)
ANSWER = 10  # characters of an ISO date
BATCH = 128
# batches that are drawn together and sorted by length, so that little is padding
POOL = 16
RATE = 4e-3
TEST_PAIRS = 2000
DUE = 0.98

Batch = tuple[Tensor, Tensor, Tensor]


def batches(record: TextCharacters, count: int, seed: int) -> Iterator[Batch]:
    """`count` batches: source `i64[b, src]`, the answer behind its start `i64[b, 11]`,
    with its end `i64[b, 11]`.
    """
    order = np.random.default_rng(seed)
    for pool in range(math.ceil(count / POOL)):
        pairs = sorted(
            data.training(BATCH * POOL, seed * 10**6 + pool), key=lambda p: len(p[0])
        )
        chunks = [pairs[i : i + BATCH] for i in range(0, len(pairs), BATCH)]
        for n in order.permutation(len(chunks))[: count - pool * POOL]:
            yield batch(record, chunks[n])


def batch(record: TextCharacters, pairs: Sequence[tuple[str, str]]) -> Batch:
    """Pairs as ids."""
    source, _ = pad([encode(written, record) for written, _ in pairs], PAD)
    answer = torch.from_numpy(np.stack([encode(meant, record) for _, meant in pairs]))
    start = torch.full((len(pairs), 1), START)
    return torch.from_numpy(source), torch.cat([start, answer[:, :-1]], dim=1), answer


def train(model: SpecModule, record: TextCharacters, steps: int, seed: int) -> None:
    """Fit the model's parameters, in place."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, steps, pct_start=0.15
    )
    total, since = 0.0, time.monotonic()
    for step, (source, given, wanted) in enumerate(
        batches(record, steps, seed), start=1
    ):
        logits = model(source=source, target=given)["logits"]
        loss = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
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


def answers(
    model: SpecModule, record: TextCharacters, written: Sequence[str]
) -> list[str]:
    """What the model writes by itself, always the most probable character."""
    source = torch.from_numpy(pad([encode(text, record) for text in written], PAD)[0])
    made = torch.full((len(written), 1), START)
    with torch.no_grad():
        for _ in range(ANSWER + 1):
            logits = model(source=source, target=made)["logits"]
            made = torch.cat([made, logits[:, -1:].argmax(-1)], dim=1)
    return [decode(row, record) for row in made[:, 1:].numpy()]


def exact(model: SpecModule, record: TextCharacters) -> float:
    """The share of held-out pairs whose answer is right to the last character."""
    pairs = data.held_out(TEST_PAIRS)
    found = [
        a
        for i in range(0, len(pairs), 500)
        for a in answers(model, record, [w for w, _ in pairs[i : i + 500]])
    ]
    wrong = [(w, a, m) for (w, m), a in zip(pairs, found, strict=True) if a != m]
    for text, answer, meant in wrong[:10]:
        print(f"  {text!r}: {answer}, not {meant}")
    return 1 - len(wrong) / len(pairs)


def main() -> None:
    """Train, report on the held-out pairs, save beside the spec."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument(
        "--force", action="store_true", help="replace files that specc did not write"
    )
    args = parser.parse_args()
    path = args.spec.with_name("dates.safetensors")
    place(path, WEIGHTS, force=args.force)  # before any work

    torch.set_num_threads(
        1
    )  # tensors this small gain nothing from more, and sums keep one order
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    vocabulary = args.spec.with_name("dates.vocab")
    made = write_vocabulary([*SPECIALS, *data.characters()]).encode()
    atomic_write(place(vocabulary, WORDS, content=made, force=args.force), [made])
    spec = open_spec(str(args.spec))
    described = elaborated(spec)
    record = reading_of(spec.program, described).of_input("source")
    assert isinstance(record, TextCharacters), "the dates spec reads characters"
    # what no step of a loop needs leaves the loop, as in a compiled model
    model = SpecModule(
        rewrite(described.graph, [split_scan]),
        seed=args.seed,
        defaults=described.defaults,
    )
    print(
        f"{sum(p.numel() for p in model.parameters())} parameters, "
        f"{args.steps * BATCH} pairs to train on"
    )

    train(model, record, args.steps, args.seed)
    right = exact(model, record)
    print(f"exact match: {right:.2%} of {TEST_PAIRS} held-out pairs")
    if right < DUE:
        raise SystemExit(f"less than {DUE:.0%}: nothing is saved")
    model.save(path, force=args.force)
    print(f"wrote {path.name}, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
