"""Continuous batching: finished sequences make room for new ones."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from specc.decode.decode_loop import BatchDetokenizer, choose_next_tokens, token_log_probs
from specc.decode.generation_settings import GenerationSettings
from specc.decode.token_choice import (
    Bools,
    DecodePosition,
    Floats,
    Ints,
    initial_seen_tokens,
    invalid_logits_error,
    prompt_lengths,
    prompt_tokens,
    sampling_uniforms_at,
)
from specc.diagnostics.diagnostic import Failed
from specc.runtime.batch_slots import merge_stepper_rows, prepend_spare_columns, spare_columns
from specc.runtime.generation import GenerationResult, GenerationStream, decode_tokens
from specc.runtime.generation_request import GenerativeModel, max_new_tokens
from specc.runtime.steppers import KVCacheStepper

DEFAULT_BATCH_SIZE = 32
"""Default number of sequences in a batch."""

SLOTS_PER_REFILL = 8
"""One in this many slots must be free before new sequences are prefilled: a prefill costs as much
as a step."""

T = TypeVar("T")
"""The type of an unprocessed input."""

EndedSequence: TypeAlias = tuple[int, list[GenerationResult] | Failed]
"""The number of a sequence, and its generations, best first, or its error."""


@dataclass(slots=True, kw_only=True)
class BatchSlot(Generic[T]):
    """A sequence being generated from the input `given`; `prompt` is its number of prompt tokens.
    `settings` bound its length.
    """

    number: int
    given: T
    stream: GenerationStream
    settings: GenerationSettings
    prompt: int
    seen: Bools | None
    text: list[int]
    watch: BatchDetokenizer | None
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    complete: bool = False
    is_finished: bool = False

    @staticmethod
    def of(number: int, given: T, stream: GenerationStream, row: int, vocab: int) -> "BatchSlot[T]":
        """Create the slot of a row of a new batch, for a model with `vocab` tokens."""
        settings, own = stream.settings, slice(row, row + 1)
        prompt, keep = (stream.prompt[own], None if stream.keep is None else stream.keep[own])
        length = int(prompt_lengths(prompt, keep)[0])
        columns = prompt.shape[1] - (0 if keep is None else _count_padding(keep[0]))
        most = min(settings.max_tokens, max_new_tokens(stream.writer, settings, columns))
        seen = initial_seen_tokens(prompt, vocab, settings.repetition_penalty, keep)
        texts = prompt_tokens(prompt, keep) if settings.reads_texts else [[]]
        strings = settings.stop_strings
        return BatchSlot(
            number=number,
            given=given,
            stream=stream,
            settings=replace(settings, max_tokens=most),
            prompt=length,
            seen=None if seen is None else seen[0],
            text=texts[0],
            watch=BatchDetokenizer(stream.decode, 1, strings) if strings else None,
        )

    def take(self, token: int, log_prob: float | None) -> None:
        """Append the next token of the sequence, which may be its last."""
        self.tokens.append(token)
        if log_prob is not None:
            self.log_probs.append(log_prob)
        if self.seen is not None:
            self.seen[token] = True
        if self.settings.reads_texts:
            self.text.append(token)
        self.complete = token in self.settings.stop
        if self.watch is not None:
            ended = np.array([self.complete])
            met = self.watch.take(np.array([token]), ended)
            self.complete = self.complete or bool(met[0])
        self.is_finished = self.complete or len(self.tokens) >= self.settings.max_tokens

    def result(self) -> GenerationResult:
        """Return the finished generation."""
        scored = self.settings.log_probs
        return GenerationResult(
            tokens=tuple(self.tokens),
            text=decode_tokens(self.stream, self.tokens),
            complete=self.complete,
            log_probs=tuple(self.log_probs) if scored else None,
        )


def explain_waiting(writer: GenerativeModel, settings: GenerationSettings) -> str:
    """Return why sequences of different lengths cannot be decoded in one batch; "" if they can."""
    if writer.itself is not None:
        return "a standalone generator starts all sequences of a batch at once"
    if settings.strategy == "beam":
        return "beams are indexed from the start of a sequence"
    if writer.apart is None:
        return "it has no step that is proved to support sequences of different lengths"
    return ""


@dataclass(kw_only=True)
class ContinuousBatch(Generic[T]):
    """Continuous batching of at most `at_once` sequences: `lanes` are the batch elements of
    `stepper`. `ask` prepares sequences that begin together, which agree in their `shape`; `began`
    receives the numbers of all active sequences. `fed` counts all tokens fed, `used` those without
    padding.
    """

    writer: GenerativeModel
    at_once: int
    ask: Callable[[Sequence[T]], GenerationStream]
    shape: Callable[[T], object]
    began: Callable[[Sequence[int]], None] = lambda numbers: None
    stepper: KVCacheStepper | None = None
    lanes: list[BatchSlot[T]] = field(default_factory=list)
    fed: int = 0
    used: int = 0

    def write(self, texts: Iterable[tuple[int, T]]) -> Iterator[EndedSequence]:
        """Yield sequences as they end, each sampled by its number; an error ends only its own."""
        coming = iter(texts)
        ahead = next(coming, None)
        while ahead is not None or self.active_rows:
            fresh: list[tuple[int, T]] = []
            for _ in range(self.free):
                if ahead is None or not self.fits_batch(ahead[1], fresh):
                    break
                fresh.append(ahead)
                ahead = next(coming, None)
            yield from self.begin(fresh) if fresh else self.step()

    @property
    def active_rows(self) -> list[int]:
        """Batch indices of unfinished sequences."""
        return [row for row, lane in enumerate(self.lanes) if not lane.is_finished]

    @property
    def free(self) -> int:
        """Number of sequences that may begin now: 0 until a prefill pays off."""
        live = len(self.active_rows)
        free = self.at_once - live
        # a prefill blocks all running sequences: it is done for several at once
        return free if not live or free >= max(1, self.at_once // SLOTS_PER_REFILL) else 0

    def fits_batch(self, text: T, fresh: Sequence[tuple[int, T]]) -> bool:
        """Return whether a sequence fits the shape of the active and the `fresh` ones."""
        here = [t for _, t in fresh[:1]] or [self.lanes[r].given for r in self.active_rows[:1]]
        return all(self.shape(other) == self.shape(text) for other in here)

    def begin(self, fresh: Sequence[tuple[int, T]]) -> Iterator[EndedSequence]:
        """Add fresh sequences to the batch."""
        live = self.active_rows
        self.began([*(self.lanes[row].number for row in live), *(n for n, _ in fresh)])
        try:
            stepper, stream, logits = self._read_logits([text for _, text in fresh])
        except Failed as failed:
            yield from self._run_alone(fresh, failed)
            return
        vocab = logits.shape[1]
        lanes = [BatchSlot.of(n, t, stream, row, vocab) for row, (n, t) in enumerate(fresh)]
        self.used += sum(lane.prompt for lane in lanes)
        yield from _choose_tokens(lanes, logits)
        going = np.array([n for n, lane in enumerate(lanes) if not lane.is_finished], np.int64)
        self.lanes = [*(self.lanes[row] for row in live), *(lanes[n] for n in going)]
        if live and self.stepper is not None:
            merge_stepper_rows(self.stepper, np.array(live), stepper, going)
        else:
            merge_stepper_rows(stepper, going, None, going)
            self.stepper = stepper

    def _read_logits(self, fresh: Sequence[T]) -> tuple[KVCacheStepper, GenerationStream, Floats]:
        """Prefill the prompts of fresh sequences → f32[batch vocab]."""
        facts, input_signature = self.writer.apart, self.writer.input_signature
        assert facts is not None, "sequences of different lengths need a step that supports them"
        stream = self.ask(fresh)
        self._count(stream)
        prepared = prepend_spare_columns(
            input_signature, stream.prepared, spare_columns(facts.states)
        )
        stepper = self.writer.stepper(prepared)
        assert isinstance(stepper, KVCacheStepper), "a step has states"
        return stepper, stream, self._fed(stepper, prepared[input_signature.growing])

    def _count(self, stream: GenerationStream) -> None:
        """Count the source tokens fed, padding included."""
        facts, growing = stream.writer.input_signature.graph.input_facts, stream.keep
        for name, value in stream.prepared.items():
            if facts[name].keep and value is not growing:
                self.fed += value.size
                self.used += int(value.sum())

    def step(self) -> Iterator[EndedSequence]:
        """Generate one token for every sequence."""
        assert self.stepper is not None, "there are unfinished sequences"
        live = self.active_rows
        self.stepper.rows.finished = np.array([lane.is_finished for lane in self.lanes])
        # tokens after the end of a sequence are not read
        tokens = np.array([[lane.tokens[-1]] for lane in self.lanes], np.int64)
        lanes = [self.lanes[row] for row in live]
        try:
            logits = self._fed(self.stepper, tokens)
        except Failed as failed:
            self.lanes, self.stepper = [], None
            yield from self._run_alone([(x.number, x.given) for x in lanes], failed)
            return
        self.used += len(live)
        yield from _choose_tokens(lanes, logits[live])
        left = self.active_rows
        if left and 2 * len(left) <= len(self.lanes):
            merge_stepper_rows(self.stepper, np.array(left), None, np.array([], np.int64))
            self.lanes = [self.lanes[row] for row in left]

    def _fed(self, stepper: KVCacheStepper, tokens: Ints) -> Floats:
        self.fed += tokens.size
        return np.asarray(stepper.step(tokens), np.float32)

    def _run_alone(self, texts: Sequence[tuple[int, T]], failed: Failed) -> Iterator[EndedSequence]:
        """Retry the sequences of a failed batch one by one."""
        if len(texts) == 1 and not self.lanes:
            yield texts[0][0], failed
            return
        for text in texts:
            one = replace(self, at_once=1, stepper=None, lanes=[], fed=0, used=0)
            yield from one.write([text])
            self.fed, self.used = self.fed + one.fed, self.used + one.used


def _choose_tokens(lanes: Sequence[BatchSlot[T]], logits: Floats) -> Iterator[EndedSequence]:
    """Choose the next token of every sequence from f32[batch vocab]; yield the finished ones."""
    best = logits.max(axis=1, initial=-np.inf)  # is NaN if any element of the row is
    fine = np.isfinite(best)
    for row in np.flatnonzero(~fine).tolist():
        lanes[row].is_finished = True
        yield lanes[row].number, invalid_logits_error(lanes[row].number)
    for rows in _group_by_rules(lanes, np.flatnonzero(fine).tolist()):
        some = [lanes[n] for n in rows]
        for lane, token, score in _iterate_tokens(some, logits[rows]):
            lane.take(token, score)
            if lane.is_finished:
                yield lane.number, [lane.result()]


def _count_padding(keep: Bools) -> int:
    """Count the padding columns before the first token."""
    return int(keep.argmax()) if keep.any() else len(keep)


def _group_by_rules(lanes: Sequence[BatchSlot[T]], rows: Sequence[int]) -> list[list[int]]:
    """Group batch elements to which the same token rules apply: all, if no rule depends on the
    position.
    """
    groups: dict[object, list[int]] = {}
    for row in rows:
        s = lanes[row].settings
        early = s.stop and (s.min_tokens or s.min_length)
        placed = s.begin or s.begin_suppress_tokens or s.forced_eos_token_id is not None or early
        place = (len(lanes[row].tokens), s.max_tokens) if placed else None
        groups.setdefault(place, []).append(row)
    return [*groups.values()]


def _iterate_tokens(
    lanes: Sequence[BatchSlot[T]], logits: Floats
) -> Iterator[tuple[BatchSlot[T], int, float | None]]:
    """Yield the tokens chosen for sequences at one position from f32[batch vocab], with
    log-probabilities.
    """
    settings, step = lanes[0].settings, len(lanes[0].tokens)
    seen = [lane.seen for lane in lanes if lane.seen is not None]
    place = DecodePosition(
        step=step,
        prompts=np.array([lane.prompt for lane in lanes]),
        texts=[lane.text for lane in lanes] if settings.reads_texts else (),
    )
    uniform = None
    if settings.strategy == "sample":
        places = ((lane.number, len(lane.tokens)) for lane in lanes)
        uniform = sampling_uniforms_at(settings.seed, places)
    stacked = np.stack(seen) if seen else None
    chosen = choose_next_tokens(logits, stacked, settings, place, uniform)
    scores: list[float | None] = [None] * len(lanes)
    if settings.log_probs:
        none_over = np.zeros(len(lanes), np.bool_)
        scores = [*map(float, token_log_probs(logits, chosen, none_over))]
    yield from zip(lanes, map(int, chosen), scores, strict=True)
