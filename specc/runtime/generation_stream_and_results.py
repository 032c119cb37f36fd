"""Streams of generated tokens and text, and the final results of generation."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import NoReturn, TypeVar

import numpy as np

from specc.decode.beam_search import BeamHypothesis, run_beam_search
from specc.decode.decode_loop import (
    iterate_codebook_steps,
    iterate_decode_steps,
    revert_delay_pattern,
)
from specc.decode.detokenizer import (
    BatchDetokenizer,
    make_stop_string_predicate,
    truncate_at_stop_string,
)
from specc.decode.token_selection import DecodeStepOutput
from specc.diagnostics.diagnostic import Diagnostic, SpeccError, raise_error
from specc.diagnostics.render import format_repr
from specc.ir.array import Array, Arrays
from specc.runtime.generation_request import GenerationRequest
from specc.runtime.guidance import create_guided_decoder_session
from specc.runtime.standalone_generator import (
    extract_beam_hypotheses,
    iterate_decode_step_outputs,
    run_standalone_generator,
)


@dataclass(frozen=True, kw_only=True)
class GenerationResult:
    """A generated sequence. `tokens` exclude the prompt and include the stop token. `text` is set
    if the model has a tokenizer. `score` is set after beam search, and `log_probs` if requested.
    `complete` is true if a stop token or stop string ended the sequence.

    For a model with `num_codebooks` codebooks, `tokens` and `log_probs` are flattened arrays [time,
    codebooks] without delays. `complete` is true if a stop token ended every codebook.
    """

    tokens: tuple[int, ...]
    text: str | None
    complete: bool
    score: float | None = None
    log_probs: tuple[float, ...] | None = None
    num_codebooks: int = 0

    @property
    def codebooks(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each codebook without delays, or () for a model without codebooks."""
        return split_by_codebook(self.tokens, self.num_codebooks)

    def __repr__(self) -> str:
        content = repr(self.tokens) if self.text is None else repr(self.text)
        end = "" if self.complete else ", truncated"
        count = f"{len(self.tokens)} token{'s' * (len(self.tokens) != 1)}"
        return format_repr(f"text of {count}{end}: {content}")


T = TypeVar("T", int, float)


def split_by_codebook(values: tuple[T, ...], num_codebooks: int) -> tuple[tuple[T, ...], ...]:
    """Split a flattened array [time, codebooks] into one tuple per codebook."""
    return tuple(values[k::num_codebooks] for k in range(num_codebooks))


@dataclass(kw_only=True)
class GenerationStream(GenerationRequest):
    """A stream of generated tokens for a batch of prompts. Iterate over the stream for tokens or
    over `pieces` for text, or call `results` for the final sequences.

    `logged_steps` stores the decode steps. Every iteration over the stream starts with the first
    step. `hypotheses` are the results of a finished beam search.
    """

    logged_steps: list[DecodeStepOutput] = field(default_factory=list)
    hypotheses: list[list[BeamHypothesis]] | None = None
    step_iterator: Iterator[DecodeStepOutput] | None = None
    error: SpeccError | None = None

    def __repr__(self) -> str:
        batch_size = len(self.prompt)
        return format_repr(
            f"generating {self.model.generation.name}: {batch_size} "
            f"{'text' if batch_size == 1 else 'texts'}, {len(self.logged_steps)} tokens each so far"
        )

    def __iter__(self) -> Iterator[DecodeStepOutput]:
        """Yield decode steps with tokens, int64 [batch] or [batch, codebooks]. Beam search yields
        all steps at its end.
        """
        index = 0
        while index < len(self.logged_steps) or self._log_next_step():
            yield self.logged_steps[index]
            index += 1

    def pieces(self) -> Iterator[list[str]]:
        """Yield the new text of each sequence as soon as later tokens cannot change it."""
        detokenizer = _make_detokenizer(self)
        stopped = np.zeros(len(self.prompt), np.bool_)
        for step in self:
            # detect stop strings before text is emitted, because a stop string is not part of the
            # text
            stopped = stopped | np.isin(step.tokens, self.settings.stop)
            detokenizer.feed(step.tokens, stopped.copy())
            yield detokenizer.pop_new_text()
        yield detokenizer.flush()

    def results(self) -> list[list[GenerationResult]]:
        """Generate to the end, and return the sequences of each prompt, best first.

        Only beam search returns several sequences per prompt.
        """
        for _ in self:
            pass
        if self.hypotheses is None:
            return [[self._make_result(row)] for row in range(len(self.prompt))]
        return [
            [
                GenerationResult(
                    tokens=beam.tokens,
                    text=decode_tokens(self, beam.tokens),
                    complete=beam.has_ended,
                    score=beam.score,
                    log_probs=beam.log_probs,
                )
                for beam in beams
            ]
            for beams in self.hypotheses
        ]

    def explain_truncation(self, result: GenerationResult) -> str:
        """Return why a sequence was truncated, or "" if it is complete or has no stop tokens."""
        # Without stop tokens, every sequence has the maximum length, so no remark is needed.
        if result.complete or not self.settings.stop:
            return ""
        is_context_full = (
            self.max_new_tokens < self.settings.max_tokens
            and (len(self.logged_steps) if result.num_codebooks else len(result.tokens))
            >= self.max_new_tokens
        )
        return (
            "the maximum context length" if is_context_full else "the maximum number of new tokens"
        )

    def _log_next_step(self) -> bool:
        """Run and log the next step. Return False after the last step. If an earlier step raised an
        error, raise the same error again.
        """
        if self.error is not None:
            raise self.error
        try:
            if self.step_iterator is None:
                self.step_iterator = self._create_step_iterator()
            step = next(self.step_iterator, None)
        except SpeccError as error:
            self.error = error
            raise
        except BaseException:
            # Ctrl-C during a step leaves the KV caches in an inconsistent state
            title = "generation was interrupted"
            self.error = SpeccError(Diagnostic("E0962", title, helps=("call `generate` again",)))
            raise
        self.logged_steps += [step] if step else []
        return step is not None

    def _create_step_iterator(self) -> Iterator[DecodeStepOutput]:
        """Run a beam search, or start the decode loop of another strategy. The iterator must not
        refer to the stream: a reference cycle would keep the KV cache of an abandoned stream in
        memory.
        """
        if self.settings.strategy == "beam":
            hypotheses = _run_beam_search(self)
            best_beams = [
                beams[0] if beams else _raise_no_hypothesis(row)
                for row, beams in enumerate(hypotheses)
            ]
            self.hypotheses = hypotheses
            return _iterate_beam_tokens(best_beams, self.settings.padding_token)
        values = {f.name: getattr(self, f.name) for f in fields(GenerationRequest)}
        return _iterate_decode_steps(GenerationRequest(**values))

    def _make_result(self, batch_index: int) -> GenerationResult:
        """Return the result of one batch element, based on the logged steps."""
        if self.model.num_codebooks:
            return self._make_codebook_result(batch_index)
        tokens, scores, ended = list[int](), list[float](), False
        for step in self.logged_steps:
            if ended:
                break
            tokens.append(int(step.tokens[batch_index]))
            if step.log_probs is not None:
                scores.append(float(step.log_probs[batch_index]))
            ended = bool(step.has_ended[batch_index])
        return GenerationResult(
            tokens=tuple(tokens),
            text=decode_tokens(self, tokens),
            complete=ended,
            log_probs=tuple(scores) if self.settings.log_probs else None,
        )

    def _make_codebook_result(self, batch_index: int) -> GenerationResult:
        """Return the result of one batch element of a model with several codebooks."""
        tokens, log_probs, has_ended = revert_delay_pattern(
            self.logged_steps, batch_index, self.effective_settings
        )
        return GenerationResult(
            tokens=tuple(tokens.reshape(-1).tolist()),
            text=None,
            complete=bool(has_ended.all()),
            log_probs=None if log_probs is None else tuple(log_probs.reshape(-1).tolist()),
            num_codebooks=self.model.num_codebooks,
        )


def decode_tokens(request: GenerationRequest, tokens: Sequence[int]) -> str | None:
    """Decode tokens to text up to a stop token or stop string. Return None if there is no
    tokenizer.
    """
    if request.model.decode_fn is None:
        return None
    stop_tokens, stop_strings = request.settings.stop, request.settings.stop_strings
    # The `tokens` of a result include the stop token, but the `text` does not.
    text_tokens = tokens[:-1] if tokens and tokens[-1] in stop_tokens else tokens
    return truncate_at_stop_string(request.model.decode_fn(text_tokens), stop_strings)


def _make_detokenizer(request: GenerationRequest) -> BatchDetokenizer:
    return BatchDetokenizer(request.decode_fn, len(request.prompt), request.settings.stop_strings)


def _iterate_decode_steps(request: GenerationRequest) -> Iterator[DecodeStepOutput]:
    """Yield the steps of greedy search, sampling or a standalone generator."""
    detokenizer = _make_detokenizer(request) if request.settings.stop_strings else None
    observer = detokenizer.feed if detokenizer else None
    if request.model.standalone_session is not None:
        # run the generator lazily: it may take minutes, and Ctrl-C must interrupt it
        yield from iterate_decode_step_outputs(
            run_standalone_generator(request.model.standalone_session, request), request, observer
        )
        return
    if request.model.num_codebooks:
        prompt = request.delayed_prompt
        sequence_input = request.model.input_signature.sequence_input
        inputs = {**request.prepared_inputs, sequence_input: prompt.tokens}
        yield from iterate_codebook_steps(
            create_guided_decoder_session(request.model, request.settings, inputs),
            prompt,
            request.effective_settings,
            padding_mask=request.padding_mask,
            sample_indices=request.sample_indices,
        )
        return
    session = create_guided_decoder_session(
        request.model, request.settings, request.prepared_inputs
    )
    yield from iterate_decode_steps(
        session,
        request.prompt,
        request.effective_settings,
        padding_mask=request.padding_mask,
        stopping_criterion=observer,
        sample_indices=request.sample_indices,
    )


def _iterate_beam_tokens(
    best_beams: Sequence[BeamHypothesis], padding_token: int
) -> Iterator[DecodeStepOutput]:
    """Yield the tokens of each prompt's best hypothesis step by step."""
    for step in range(max((len(beam.tokens) for beam in best_beams), default=0)):
        tokens = [
            beam.tokens[step] if step < len(beam.tokens) else padding_token for beam in best_beams
        ]
        # Pad shorter sequences until the longest sequence has ended.
        ended = [beam.has_ended and step + 1 >= len(beam.tokens) for beam in best_beams]
        yield DecodeStepOutput(np.array(tokens, np.int64), None, np.array(ended, np.bool_))


def _raise_no_hypothesis(row: int) -> NoReturn:
    """Raise E0961, because the settings suppress every possible next token of a sequence."""
    raise_error(
        "E0961",
        f"the generation settings suppress every token of sequence {row + 1}",
        helps=[
            "remove tokens from `suppress_tokens`, `begin_suppress_tokens` or `bad_words_ids`",
            "or set `no_repeat_ngram_size` to a larger number, or `max_tokens` to a smaller one",
        ],
    )


def _run_beam_search(request: GenerationRequest) -> list[list[BeamHypothesis]]:
    stop_strings = request.settings.stop_strings
    ends_sequence = (
        make_stop_string_predicate(request.decode_fn, stop_strings) if stop_strings else None
    )
    if request.model.standalone_session is not None:
        return extract_beam_hypotheses(
            run_standalone_generator(request.model.standalone_session, request),
            request.settings.stop,
        )
    session = create_guided_decoder_session(
        request.model, request.settings, request.prepared_inputs
    )
    return run_beam_search(
        session,
        request.prompt,
        request.effective_settings,
        padding_mask=request.padding_mask,
        should_stop=ends_sequence,
    )


def convert_results_to_arrays(
    stream: GenerationStream, results: list[list[GenerationResult]]
) -> Arrays:
    """Return the tokens, and the scores if there are any. Tokens have the shape [batch,
    num_return_sequences, longest], or [batch, longest] for one sequence per prompt. If the model
    has several codebooks, tokens and log-probabilities have the shape [batch, codebooks, longest].
    """
    # all prompts have the same number of sequences, so the sequences form one array
    sequences = [result for row in results for result in row]
    longest = max((len(result.tokens) for result in sequences), default=0)
    sequence_axis_index = slice(None) if stream.settings.num_return_sequences > 1 else 0
    shape, num_codebooks = (len(results), len(results[0])), stream.model.num_codebooks

    def pad_sequences(rows: Iterable[Sequence[float]], fill: float, dtype: type) -> Array:
        padded: Array = np.array([[*row, *[fill] * (longest - len(row))] for row in rows], dtype)
        if num_codebooks:
            return padded.reshape(len(results), -1, num_codebooks).transpose(0, 2, 1)
        return padded.reshape(*shape, longest)[:, sequence_axis_index]

    tokens = [result.tokens for result in sequences]
    padding_token, name = stream.settings.padding_token, stream.model.generation.name
    arrays: dict[str, Array] = {name: pad_sequences(tokens, padding_token, np.int64)}
    # Either all results have scores (beam search), or none has.
    scores = [result.score for result in sequences if result.score is not None]
    if len(scores) == len(sequences):
        arrays["scores"] = np.array(scores, np.float32).reshape(shape)
    log_probs = [result.log_probs for result in sequences if result.log_probs is not None]
    if len(log_probs) == len(sequences):
        arrays["log_probs"] = pad_sequences(log_probs, 0.0, np.float32)
    return arrays
