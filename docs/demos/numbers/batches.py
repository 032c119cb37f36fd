"""Generate training pairs as arrays of token ids in worker processes, reproducibly for a seed.

Each training step has two half batches: words to digits (long sources, short targets) and digits to
words (short sources, long targets). Separate batches require less padding. A job contains the
batches of several steps.
"""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from multiprocessing import get_all_start_methods, get_context

import data
import numpy as np
from numpy.typing import NDArray

STEPS_PER_JOB = 16  # number of training steps per job
AHEAD = 4  # number of prepared jobs per process

Ids = NDArray[np.uint8]
HalfBatch = tuple[Ids, Ids]
"""Padded sources `u8[steps, batch, src]` and targets `u8[steps, batch, tgt]`, with end tokens."""


@dataclass(frozen=True)
class Alphabet:
    """The token ids of the characters below U+0100; -1 for a character without a token id."""

    ids: tuple[int, ...]
    pad: int
    end: int

    def encode_texts(self, texts: Sequence[str]) -> Ids:
        """Encode texts with end tokens as a padded batch, `u8[texts, longest + 1]`."""
        width = max(map(len, texts))
        codes = np.frombuffer(
            "".join(text.ljust(width, "\0") for text in texts).encode("latin-1"), np.uint8
        )
        found = np.array(self.ids, np.int16)[codes].reshape(len(texts), width)
        lengths = np.array([len(text) for text in texts])
        beyond = np.arange(width) >= lengths[:, None]
        assert not (found[~beyond] < 0).any(), "a character of the data is not in the vocabulary"
        made = np.full((len(texts), width + 1), self.pad, np.uint8)
        made[:, :width] = np.where(beyond, self.pad, found)
        made[np.arange(len(texts)), lengths] = self.end
        return made


@dataclass(frozen=True)
class BatchJob:
    """The batches of one job: `STEPS_PER_JOB` steps, each with `batch` pairs per half batch."""

    alphabet: Alphabet
    batch: int
    seed: int
    number: int

    def generate_batches(self) -> tuple[HalfBatch, HalfBatch]:
        """Generate the half batches of the job."""
        rng = random.Random(f"{self.seed} {self.number}")
        return self._generate_half_batch(data.WORDS_TO_DIGITS, rng), self._generate_half_batch(
            data.DIGITS_TO_WORDS, rng
        )

    def _generate_half_batch(
        self, directions: tuple[data.PairMaker, ...], rng: random.Random
    ) -> HalfBatch:
        pairs = data.make_training_pairs(directions, STEPS_PER_JOB * self.batch, rng)
        given, wanted = (self.alphabet.encode_texts(texts) for texts in zip(*pairs, strict=True))
        return given.reshape(STEPS_PER_JOB, self.batch, -1), wanted.reshape(
            STEPS_PER_JOB, self.batch, -1
        )


def prefetch_batches(
    alphabet: Alphabet, batch: int, seed: int, workers: int
) -> Iterator[tuple[HalfBatch, HalfBatch]]:
    """Yield the half batches of `STEPS_PER_JOB` steps at a time, endlessly. The order does not
    depend on the number of worker processes.
    """
    jobs = (BatchJob(alphabet, batch, seed, number) for number in count())
    if not workers:
        yield from (job.generate_batches() for job in jobs)
        return
    way = (
        "fork" if "fork" in get_all_start_methods() else "spawn"
    )  # forked processes do not import the modules again
    with get_context(way).Pool(workers) as pool:
        waiting = deque(
            pool.apply_async(job.generate_batches) for job in islice(jobs, AHEAD * workers)
        )
        for job in jobs:
            yield waiting.popleft().get()
            waiting.append(pool.apply_async(job.generate_batches))
