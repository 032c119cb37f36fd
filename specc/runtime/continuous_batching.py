"""Continuous batching: new sequences replace finished sequences in the decode batch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from specc.decode.decode_loop import compute_token_log_probs, select_next_tokens
from specc.decode.detokenizer import BatchDetokenizer
from specc.decode.generation_settings import GenerationSettings
from specc.decode.token_selection import (
    Bools,
    Floats,
    Ints,
    LogitsProcessorInputs,
    draw_uniforms_for_steps,
    list_prompt_tokens,
    make_invalid_logits_error,
    make_prompt_mask,
    make_repetition_penalty_mask,
)
from specc.diagnostics.diagnostic import SpeccError
from specc.runtime.batch_slots import (
    count_initial_padding_positions,
    merge_batches,
    prepend_padding_positions,
)
from specc.runtime.decoder_sessions import KVCacheSession
from specc.runtime.generation_request import GenerativeModel, compute_max_new_tokens
from specc.runtime.generation_stream_and_results import (
    GenerationResult,
    GenerationStream,
    decode_tokens,
)

DEFAULT_BATCH_SIZE = 32
"""Default maximum number of sequences in a batch."""

SLOTS_PER_REFILL = 8
"""New sequences are prefilled when at least 1/8 of the batch is free. Several sequences are
prefilled together, because a prefill costs at least as much as a decode step."""

T = TypeVar("T")
"""The type of an unprepared prompt, e.g. a mapping of input names to values."""

EndedSequence: TypeAlias = tuple[int, list[GenerationResult] | SpeccError]
"""The index of a sequence, with its results (best result first) or its error."""


@dataclass(slots=True, kw_only=True)
class BatchSlot(Generic[T]):
    """An element of the decode batch, i.e. a sequence that is generated from the prompt `input`.

    `prompt_length` is the number of prompt tokens, and `tokens` are the generated tokens.
    `sequence` (all tokens) and `seen_token_mask` (bool [vocab]) are updated only if a logits
    processor uses them. A sequence is complete after a stop token or stop string, and finished if
    it is complete or has `settings.max_tokens` tokens.
    """

    sequence_index: int
    input: T
    stream: GenerationStream
    settings: GenerationSettings
    prompt_length: int
    seen_token_mask: Bools | None
    sequence: list[int]
    detokenizer: BatchDetokenizer | None
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    is_complete: bool = False
    is_finished: bool = False

    @staticmethod
    def from_stream(
        sequence_index: int, input: T, stream: GenerationStream, batch_index: int, vocab_size: int
    ) -> "BatchSlot[T]":
        """Create a slot for element `batch_index` of `stream`."""
        settings, element = stream.settings, slice(batch_index, batch_index + 1)
        prompt = stream.prompt[element]
        is_token = make_prompt_mask(stream.prompt, stream.padding_mask)[element]
        prompt_length = prompt.shape[1] - _count_padding(is_token[0])
        max_tokens = min(
            settings.max_tokens, compute_max_new_tokens(stream.model, settings, prompt_length)
        )
        seen_tokens = make_repetition_penalty_mask(
            prompt, vocab_size, settings.repetition_penalty, is_token
        )
        sequences = list_prompt_tokens(prompt, is_token) if settings.needs_previous_tokens else [[]]
        stop_strings = settings.stop_strings
        return BatchSlot(
            sequence_index=sequence_index,
            input=input,
            stream=stream,
            settings=replace(settings, max_tokens=max_tokens),
            prompt_length=int(is_token.sum()),
            seen_token_mask=None if seen_tokens is None else seen_tokens[0],
            sequence=sequences[0],
            detokenizer=BatchDetokenizer(stream.decode_fn, 1, stop_strings)
            if stop_strings
            else None,
        )

    def append_token(self, token: int, log_prob: float | None) -> None:
        """Append a token to the sequence, and check whether the token ends the sequence."""
        self.tokens.append(token)
        if log_prob is not None:
            self.log_probs.append(log_prob)
        if self.seen_token_mask is not None:
            self.seen_token_mask[token] = True
        if self.settings.needs_previous_tokens:
            self.sequence.append(token)
        self.is_complete = token in self.settings.stop
        if self.detokenizer is not None:
            has_ended = np.array([self.is_complete])
            has_stop_string = self.detokenizer.feed(np.array([token]), has_ended)
            self.is_complete = self.is_complete or bool(has_stop_string[0])
        self.is_finished = self.is_complete or len(self.tokens) >= self.settings.max_tokens

    def make_result(self) -> GenerationResult:
        """Return the result of the finished sequence."""
        scored = self.settings.log_probs
        return GenerationResult(
            tokens=tuple(self.tokens),
            text=decode_tokens(self.stream, self.tokens),
            complete=self.is_complete,
            log_probs=tuple(self.log_probs) if scored else None,
        )


def explain_static_batching(model: GenerativeModel, settings: GenerationSettings) -> str:
    """Return the reason why a decode batch requires sequences of equal length, or "" if it does
    not.
    """
    if model.standalone_session is not None:
        return "a standalone generator starts all sequences of a batch at the same step"
    if settings.strategy == "beam":
        return "beam search starts all sequences of a batch at the same step"
    if settings.guidance_scale != 1:
        return "guidance runs each sequence twice, with and without the condition"
    if model.num_codebooks:
        return "the delay pattern starts at the same step in all sequences of a batch"
    if model.continuous_batching_metadata is None:
        return "the compiler has not proved that sequences of different lengths are independent"
    return ""


@dataclass(kw_only=True)
class ContinuousBatch(Generic[T]):
    """A decode batch of at most `batch_size` sequences with continuous batching. `slots` are the
    batch elements of `session`. `prepare` batches prompts that start together. `get_shape` returns
    equal values for prompts that may share a batch. `on_start` is called with the indices of all
    active sequences when sequences are added. `processed_tokens` counts the tokens that the model
    has processed, and `valid_tokens` counts the processed tokens that are not padding.
    """

    model: GenerativeModel
    batch_size: int
    prepare: Callable[[Sequence[T]], GenerationStream]
    get_shape: Callable[[T], object]
    on_start: Callable[[Sequence[int]], None] = lambda numbers: None
    session: KVCacheSession | None = None
    slots: list[BatchSlot[T]] = field(default_factory=list)
    processed_tokens: int = 0
    valid_tokens: int = 0

    def generate(self, inputs: Iterable[tuple[int, T]]) -> Iterator[EndedSequence]:
        """Generate a sequence for each input, and yield sequences as they finish. The random
        numbers of a sequence depend on the seed and on the index of the sequence. An error ends
        only the sequence that caused it.
        """
        iterator = iter(inputs)
        next_input = next(iterator, None)
        while next_input is not None or self.active_slots:
            new_inputs: list[tuple[int, T]] = []
            for _ in range(self.free_slot_count):
                if next_input is None or not self.has_matching_shape(next_input[1], new_inputs):
                    break
                new_inputs.append(next_input)
                next_input = next(iterator, None)
            yield from self.add_sequences(new_inputs) if new_inputs else self.step()

    @property
    def active_slots(self) -> list[int]:
        """Indices of the slots with unfinished sequences."""
        return [index for index, slot in enumerate(self.slots) if not slot.is_finished]

    @property
    def free_slot_count(self) -> int:
        """The number of sequences that may start now, which is 0 until enough slots are free."""
        free_count = self.batch_size - len(self.active_slots)
        # wait for several free slots, because a prefill blocks all active sequences
        has_enough = free_count >= max(1, self.batch_size // SLOTS_PER_REFILL)
        return free_count if has_enough or not self.active_slots else 0

    def has_matching_shape(self, input: T, new_inputs: Sequence[tuple[int, T]]) -> bool:
        """Return True if a prompt has the same shape as the active and new sequences."""
        prompts = [p for _, p in new_inputs] + [self.slots[n].input for n in self.active_slots]
        return not prompts or self.get_shape(prompts[0]) == self.get_shape(input)

    def add_sequences(self, new_inputs: Sequence[tuple[int, T]]) -> Iterator[EndedSequence]:
        """Add new sequences to the batch, and yield sequences that end at their first token."""
        active = self.active_slots
        active_indices = [self.slots[n].sequence_index for n in active]
        self.on_start([*active_indices, *(index for index, _ in new_inputs)])
        try:
            session, stream, logits = self._prefill_sequences([prompt for _, prompt in new_inputs])
        except SpeccError as failed:
            yield from self._retry_one_by_one(new_inputs, failed)
            return
        vocab = logits.shape[1]
        slots = [
            BatchSlot.from_stream(index, prompt, stream, n, vocab)
            for n, (index, prompt) in enumerate(new_inputs)
        ]
        self.valid_tokens += sum(slot.prompt_length for slot in slots)
        yield from _choose_tokens(slots, logits)
        unfinished = np.array([n for n, slot in enumerate(slots) if not slot.is_finished], np.int64)
        self.slots = [*(self.slots[n] for n in active), *(slots[n] for n in unfinished)]
        if active and self.session is not None:
            merge_batches(self.session, np.array(active), session, unfinished)
        else:
            merge_batches(session, unfinished, None, unfinished)
            self.session = session

    def _prefill_sequences(
        self, new_inputs: Sequence[T]
    ) -> tuple[KVCacheSession, GenerationStream, Floats]:
        """Prefill new prompts. Return the session, the stream, and the logits, float32 [batch,
        vocab].
        """
        metadata = self.model.continuous_batching_metadata
        assert metadata is not None, "the step graph supports sequences of different lengths"
        input_signature, stream = self.model.input_signature, self.prepare(new_inputs)
        self._count_source_tokens(stream)
        prepared = prepend_padding_positions(
            input_signature,
            stream.prepared_inputs,
            count_initial_padding_positions(metadata.states),
        )
        session = self.model.create_decoder_session(prepared)
        assert isinstance(session, KVCacheSession), "a step has states"
        return session, stream, self._feed_tokens(session, prepared[input_signature.sequence_input])

    def _count_source_tokens(self, stream: GenerationStream) -> None:
        """Add the number of encoder input tokens to `processed_tokens`, and the number of valid
        (not padding) encoder tokens to `valid_tokens`.
        """
        facts, padding_mask = stream.model.input_signature.graph.input_facts, stream.padding_mask
        for name, value in stream.prepared_inputs.items():
            if facts[name].padding_side and value is not padding_mask:
                self.processed_tokens += value.size
                self.valid_tokens += int(value.sum())

    def step(self) -> Iterator[EndedSequence]:
        """Generate one token for each active sequence, and yield the sequences that end."""
        assert self.session is not None, "there are unfinished sequences"
        active = self.active_slots
        self.session.inputs.is_finished = np.array([slot.is_finished for slot in self.slots])
        # discard tokens of finished sequences
        tokens = np.array([[slot.tokens[-1]] for slot in self.slots], np.int64)
        slots = [self.slots[n] for n in active]
        try:
            logits = self._feed_tokens(self.session, tokens)
        except SpeccError as failed:
            self.slots, self.session = [], None
            inputs = [(slot.sequence_index, slot.input) for slot in slots]
            yield from self._retry_one_by_one(inputs, failed)
            return
        self.valid_tokens += len(active)
        yield from _choose_tokens(slots, logits[active])
        remaining = self.active_slots
        if remaining and 2 * len(remaining) <= len(self.slots):
            merge_batches(self.session, np.array(remaining), None, np.array([], np.int64))
            self.slots = [self.slots[index] for index in remaining]

    def _feed_tokens(self, session: KVCacheSession, tokens: Ints) -> Floats:
        self.processed_tokens += tokens.size
        return np.asarray(session.step(tokens), np.float32)

    def _retry_one_by_one(
        self, inputs: Sequence[tuple[int, T]], error: SpeccError
    ) -> Iterator[EndedSequence]:
        """Retry each sequence of a failed batch individually."""
        if len(inputs) == 1 and not self.slots:
            yield inputs[0][0], error
            return
        for indexed_input in inputs:
            single = replace(
                self, batch_size=1, session=None, slots=[], processed_tokens=0, valid_tokens=0
            )
            yield from single.generate([indexed_input])
            self.processed_tokens += single.processed_tokens
            self.valid_tokens += single.valid_tokens


def _choose_tokens(slots: Sequence[BatchSlot[T]], logits: Floats) -> Iterator[EndedSequence]:
    """Select the next tokens from logits float32 [batch, vocab], and yield finished sequences."""
    best = logits.max(axis=1, initial=-np.inf)  # the maximum is NaN if any logit is NaN
    is_valid = np.isfinite(best)
    for index in np.flatnonzero(~is_valid).tolist():
        slots[index].is_finished = True
        yield slots[index].sequence_index, make_invalid_logits_error(slots[index].sequence_index)
    for indices in _group_by_token_rules(slots, np.flatnonzero(is_valid).tolist()):
        group = [slots[n] for n in indices]
        for slot, token, score in _select_tokens(group, logits[indices]):
            slot.append_token(token, score)
            if slot.is_finished:
                yield slot.sequence_index, [slot.make_result()]


def _count_padding(padding_mask: Bools) -> int:
    """Return the number of padding positions before the first valid token."""
    return int(padding_mask.argmax()) if padding_mask.any() else len(padding_mask)


def _group_by_token_rules(slots: Sequence[BatchSlot[T]], indices: Sequence[int]) -> list[list[int]]:
    """Group the batch elements `indices` by the logits processors that apply to them. Without
    position-dependent processors, there is a single group.
    """
    groups: dict[object, list[int]] = {}
    for index in indices:
        s = slots[index].settings
        early = s.stop and (s.min_tokens or s.min_length)
        depends_on_position = (
            s.begin or s.begin_suppress_tokens or s.forced_eos_token_id is not None or early
        )
        position = (len(slots[index].tokens), s.max_tokens) if depends_on_position else None
        groups.setdefault(position, []).append(index)
    return [*groups.values()]


def _select_tokens(
    slots: Sequence[BatchSlot[T]], logits: Floats
) -> Iterator[tuple[BatchSlot[T], int, float | None]]:
    """Select the next token of each sequence from logits float32 [batch, vocab]. Yield the slot,
    the token, and the token's log-probability, which is None unless it was requested.
    """
    settings, step = slots[0].settings, len(slots[0].tokens)
    seen_token_masks = [slot.seen_token_mask for slot in slots if slot.seen_token_mask is not None]
    position = LogitsProcessorInputs(
        step=step,
        prompt_lengths=np.array([slot.prompt_length for slot in slots]),
        sequences=[slot.sequence for slot in slots] if settings.needs_previous_tokens else (),
    )
    uniform = None
    if settings.strategy == "sample":
        positions = ((slot.sequence_index, len(slot.tokens)) for slot in slots)
        uniform = draw_uniforms_for_steps(settings.seed, positions)
    seen_tokens = np.stack(seen_token_masks) if seen_token_masks else None
    tokens = select_next_tokens(logits, seen_tokens, settings, position, uniform)
    scores: list[float | None] = [None] * len(slots)
    if settings.log_probs:
        none_ended = np.zeros(len(slots), np.bool_)
        scores = [*map(float, compute_token_log_probs(logits, tokens, none_ended))]
    yield from zip(slots, map(int, tokens), scores, strict=True)
