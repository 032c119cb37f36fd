"""Convert the numbers spec to a PyTorch module, and train it on generated pairs in two languages.

The model is not defined here: `specs/models/numbers.yaml` defines the computation and the
preprocessing. The module that `specc_torch` creates has the parameter names of the spec. Training
uses teacher forcing. At the end, the model is evaluated on the validation numbers. Training with
the same seed and number of steps is reproducible on the same machine.

    # the included weights: one core, 13 minutes
    python docs/demos/numbers/train.py --steps 4000 --warmup 200 --batch 32
    python docs/demos/numbers/train.py --device cuda --minutes 8
    # a quick test
    python docs/demos/numbers/train.py --minutes 2 --warmup 100 --batch 64 --out /tmp
"""

import argparse
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import data
import numpy as np
import torch
from batches import STEPS_PER_JOB, Alphabet, HalfBatch, prefetch_batches
from torch import Tensor
from torch.nn import Module, functional

import specc_torch

HERE = Path(__file__).resolve()
SPEC = HERE.parents[3] / "specs" / "models" / "numbers.yaml"
SPECIALS = ("<pad>", "<start>", "<end>")  # token ids 0, 1, 2, as in the config of the spec
PAD, START, END = range(3)
RATE = 2e-3
DECAY = 0.01
WARMUP = 1000
# fraction of the warmup that is not timed, because a GPU and the data processes start slowly
UNTIMED = 0.4
# fraction of the remaining time that is used, so that the learning rate decays to 0 in time
SPARE = 0.95
SHOWN = 200  # steps between two progress lines
LONGEST = 80  # maximum answer length in characters
TEST_PAIRS = 2000
DUE = 0.98


@dataclass
class TrainingSchedule:
    """The number of training steps. A time limit is converted to a number of steps after the
    training speed has been measured.

    After warmup, the learning rate depends only on the number of steps, so that a run with a time
    limit can be repeated with `--steps`.
    """

    warmup: int
    steps: int | None
    seconds: float
    since: float = 0.0
    timed: float = 0.0

    def compute_learning_rate_factor(self, step: int) -> float:
        """Return the learning rate factor at a step: linear warmup and cosine decay to 0."""
        if step < self.warmup or self.steps is None or self.steps <= self.warmup:
            return min((step + 1) / self.warmup, 1)
        done = (step - self.warmup) / (self.steps - self.warmup)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1)))

    def is_finished(self, step: int, now: float) -> bool:
        """Return True if training ends after `step` steps at time `now`."""
        untimed = int(UNTIMED * self.warmup)
        if step == untimed:
            self.timed = now
        if step == self.warmup and self.seconds < math.inf:
            left = SPARE * (self.seconds - (now - self.since))
            fit = self.warmup + int(left * (self.warmup - untimed) / (now - self.timed))
            self.steps = max(self.warmup, min(fit, self.steps or fit))
            print(f"{self.steps} steps fit into the time limit", flush=True)
        return (self.steps is not None and step >= self.steps) or now - self.since > self.seconds


SYMBOLS = [*SPECIALS, *data.list_characters()]
"""The entries of the vocabulary file, in the order of token ids."""


def build_alphabet() -> Alphabet:
    """Return the token ids of single characters, which are line numbers in the vocabulary file."""
    ids = {symbol: n for n, symbol in enumerate(SYMBOLS)}
    return Alphabet(tuple(ids.get(chr(c), -1) for c in range(256)), PAD, END)


def decode_answer(ids: Sequence[int]) -> str:
    """Decode the token ids of an answer up to the end token."""
    ended = [*ids, END].index(END)
    return "".join(SYMBOLS[n] for n in ids[:ended] if n >= len(SPECIALS))


def iterate_half_batches(
    batch: int, seed: int, workers: int, device: torch.device
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield the two half batches of each step: sources `i64[b, src]` and targets `i64[b, tgt]`,
    first words to digits, then digits to words.
    """

    def move_to_device(half: HalfBatch) -> tuple[Tensor, Tensor]:
        given, wanted = (torch.from_numpy(x).to(device) for x in half)
        return given, wanted

    for both in prefetch_batches(build_alphabet(), batch, seed, workers):
        moved = [move_to_device(half) for half in both]
        for step in range(STEPS_PER_JOB):
            yield [(given[step].long(), wanted[step].long()) for given, wanted in moved]


def compute_loss(model: Module, source: Tensor, wanted: Tensor) -> Tensor:
    """Compute the mean cross entropy of the next character."""
    start = torch.full_like(wanted[:, :1], START)
    logits = model(source=source, target=torch.cat([start, wanted[:, :-1]], dim=1))["logits"]
    return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD)


def train(
    model: Module, steps: Iterator[list[tuple[Tensor, Tensor]]], plan: TrainingSchedule
) -> int:
    """Train the model in place. Return the number of steps."""
    parameters = list(model.parameters())
    fused = parameters[0].device.type == "cuda"  # update all parameters in one kernel
    optimizer = torch.optim.AdamW(
        parameters, RATE, betas=(0.9, 0.98), weight_decay=DECAY, fused=fused
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, plan.compute_learning_rate_factor)
    losses: list[Tensor] = []
    plan.since = time.monotonic()
    for step, batch in enumerate(steps, start=1):
        loss = torch.stack([compute_loss(model, source, wanted) for source, wanted in batch])
        optimizer.zero_grad()
        loss.sum().backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if step % SHOWN == 0 or step == plan.steps:
            reading, writing = (
                torch.stack(losses).mean(0).tolist()
            )  # `tolist` waits for the device, so the time below is correct
            now = time.monotonic() - plan.since
            print(
                f"step {step:5d}  reading {reading:.4f}  writing {writing:.4f}  {now:.0f} s",
                flush=True,
            )
            losses = []
        if plan.is_finished(step, time.monotonic()):
            break
    return step


def generate_answers(model: Module, texts: Sequence[str]) -> list[str]:
    """Generate answers for source texts by greedy decoding."""
    device = next(model.parameters()).device
    source = torch.from_numpy(build_alphabet().encode_texts(texts)).long().to(device)
    made = torch.full((len(texts), 1), START, device=device)
    ended = torch.zeros(len(texts), dtype=torch.bool, device=device)
    with torch.no_grad():
        while not ended.all() and made.shape[1] <= LONGEST:
            newest = model(source=source, target=made)["logits"][:, -1].argmax(-1)
            ended |= newest == END
            made = torch.cat([made, newest[:, None]], dim=1)
    return [decode_answer(row) for row in made[:, 1:].tolist()]


def compute_exact_match(model: Module, direction: data.PairMaker, count: int) -> float:
    """Return the exact match accuracy on validation pairs, and print up to three wrong answers."""
    pairs = data.make_validation_pairs(direction, count)
    found = generate_answers(model, [given for given, _ in pairs])
    wrong = [
        (given, a, wanted) for (given, wanted), a in zip(pairs, found, strict=True) if a != wanted
    ]
    for given, answer, wanted in wrong[:3]:
        print(f"  {given!r}: {answer!r}, not {wanted!r}")
    return 1 - len(wrong) / len(pairs)


def print_accuracies(model: Module, count: int) -> float:
    """Print the exact match accuracy of each direction and of all directions."""
    shares = []
    for name, direction in data.DIRECTIONS.items():
        shares.append(compute_exact_match(model, direction, count // len(data.DIRECTIONS)))
        print(f"{name}: {shares[-1]:.2%}", flush=True)
    right = float(np.mean(shares))
    print(f"exact match: {right:.2%} of {count} validation pairs")
    return right


def parse_arguments() -> argparse.Namespace:
    """Parse the command-line arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--steps", type=int, help="training steps (default: 20000 without --minutes)"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="training time limit in minutes"
    )
    parser.add_argument("--warmup", type=int, default=WARMUP, help="learning rate warmup steps")
    parser.add_argument("--batch", type=int, default=1024, help="pairs per half batch")
    parser.add_argument(
        "--workers",
        type=int,
        default=max((os.cpu_count() or 1) - 2, 0),
        help="number of data worker processes",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--test-pairs", type=int, default=TEST_PAIRS)
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument(
        "--out", type=Path, help="output directory (default: the directory of the spec)"
    )
    parser.add_argument(
        "--force", action="store_true", help="replace files that were not written by specc"
    )
    return parser.parse_args()


def write_vocabulary(path: Path, force: bool) -> None:
    """Write the vocabulary file, one character per line. The space character is written as a JSON
    string.
    """
    lines = [json.dumps(symbol) if symbol.isspace() else symbol for symbol in SYMBOLS]
    words = "".join(f"{line}\n" for line in lines)
    if path.exists() and path.read_text(encoding="utf-8") != words and not force:
        raise SystemExit(
            f"{path.name} exists with a different vocabulary; use --force to replace it"
        )
    path.write_text(words, encoding="utf-8")


def main() -> None:
    """Train the model, print its validation accuracy, and save it next to the spec."""
    args = parse_arguments()
    os.environ.setdefault(
        "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
    )  # cuBLAS requires this setting for reproducible sums on a GPU
    device = torch.device(args.device)
    torch.use_deterministic_algorithms(True, warn_only=device.type != "cpu")
    # no operation uses uninitialized memory
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.set_num_threads(1)  # one thread: small tensors do not benefit from more threads
    out = args.out or args.spec.parent
    for name in ("numbers.safetensors", "numbers.unfinished.safetensors"):
        # check the output paths before training
        specc_torch.check_output_path(out / name, force=args.force)
    for directory in dict.fromkeys((args.spec.parent, out)):
        write_vocabulary(directory / "numbers.vocab", args.force)
    model = specc_torch.module(args.spec, init=args.seed)
    model.to(device)
    print(
        f"{sum(p.numel() for p in model.parameters())} parameters, {2 * args.batch} pairs per step"
    )

    steps = 20000 if args.steps is None and args.minutes == math.inf else args.steps
    plan = TrainingSchedule(args.warmup, steps, 60 * args.minutes)
    done = train(model, iterate_half_batches(args.batch, args.seed, args.workers, device), plan)
    again = (
        f"reproduce with --steps {done} --warmup {args.warmup} --batch "
        f"{args.batch} --seed {args.seed}"
    )
    early = f"stopped by the time limit before step {plan.steps}"
    print(f"{done} steps; {again if done == plan.steps else early}")
    right = print_accuracies(model, args.test_pairs)
    path = out / ("numbers.safetensors" if right >= DUE else "numbers.unfinished.safetensors")
    specc_torch.save(model, path, force=args.force)
    print(f"wrote {path.name}, {path.stat().st_size / 1000:.0f} kB")
    if right < DUE:
        raise SystemExit(f"accuracy below {DUE:.0%}")


if __name__ == "__main__":
    main()
