"""Generation in progress: tokens and text as they come, results at the end."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from specc.decode.beam_search import BeamHypothesis, search_beams
from specc.decode.decode_loop import BatchDetokenizer, cut_at_stop, decode_steps, make_stop_check
from specc.decode.token_choice import DecodeStep
from specc.diagnostics.diagnostic import Diagnostic, Failed
from specc.diagnostics.render import format_repr
from specc.ir.array import Array, Arrays
from specc.runtime.generation_request import GenerationRequest
from specc.runtime.standalone_generator import (
    iterate_standalone_steps,
    run_standalone,
    standalone_hypotheses,
)


@dataclass(frozen=True)
class GenerationResult:
    """A generated sequence: tokens without the prompt, the stop token included; and its text if the
    model has a tokenizer.

    `score` is that of a beam, `log_probs` are those of the tokens if requested.
    `complete`: it ended with a stop token or stop string.
    """

    tokens: tuple[int, ...]
    text: str | None
    complete: bool
    score: float | None = None
    log_probs: tuple[float, ...] | None = None

    def __repr__(self) -> str:
        said = repr(self.tokens) if self.text is None else repr(self.text)
        end = "" if self.complete else ", truncated"
        count = f"{len(self.tokens)} token{'s' * (len(self.tokens) != 1)}"
        return format_repr(f"text of {count}{end}: {said}")


@dataclass(kw_only=True)
class GenerationStream(GenerationRequest):
    """A batch of sequences during generation: iterate it for tokens, `pieces` for text, `results`
    for the final sequences.

    Steps are cached in `log`: a second iteration starts from the beginning. `found` are the
    sequences of a beam search when it has ended.
    """

    log: list[DecodeStep] = field(default_factory=list)
    found: list[list[BeamHypothesis]] | None = None
    steps: Iterator[DecodeStep] | None = field(default=None, repr=False)
    fault: Failed | None = None

    def __repr__(self) -> str:
        rows = len(self.prompt)
        return format_repr(
            f"generating {self.writer.generation.name}: {rows} "
            f"{'text' if rows == 1 else 'texts'}, {len(self.log)} tokens each so far"
        )

    def __iter__(self) -> Iterator[DecodeStep]:
        """Yield tokens i64[batch] as they are generated; beam search finds whole sequences
        first.
        """
        place = 0
        while place < len(self.log) or self._one_more():
            yield self.log[place]
            place += 1

    def pieces(self) -> Iterator[list[str]]:
        """Yield the new text of each sequence as soon as it is final."""
        texts = _texts(self)
        stopped = np.zeros(len(self.prompt), np.bool_)
        for made in self:
            # A stop string ends the text and is not part of it, so it must be detected at once.
            stopped = stopped | np.isin(made.tokens, self.settings.stop)
            texts.take(made.tokens, stopped.copy())
            yield texts.fresh()
        yield texts.close()

    def results(self) -> list[list[GenerationResult]]:
        """Generate to the end and return the sequences of each prompt, best first.

        Only beam search returns more than one per prompt.
        """
        for _ in self:
            pass
        if self.found is None:
            return [[self._make_result(row)] for row in range(len(self.prompt))]
        return [[_convert_hypothesis(self, text) for text in row] for row in self.found]

    def cut_off(self, result: GenerationResult) -> str:
        """Return why a sequence was cut off; empty if it ended, or nothing can end one."""
        # Without stop tokens every sequence ends at its length limit, which needs no note.
        if result.complete or not self.settings.stop:
            return ""
        full = self.room < self.settings.max_tokens and len(result.tokens) >= self.room
        return "the maximum context length" if full else "at which it had not ended"

    def _one_more(self) -> bool:
        """Log the next step; return whether there was one. An error is raised again each time."""
        if self.fault is not None:
            raise self.fault
        if self.steps is None:
            beam = self.settings.strategy == "beam"
            self.steps = _iterate_beams(self) if beam else _tokens(self)
        try:
            made = next(self.steps, None)
        except Failed as fault:
            self.fault = fault
            raise
        except BaseException:
            # Ctrl-C within a step: the caches are inconsistent, and nothing computed from them
            # could be trusted
            title = "this text was broken off while it was written"
            helps = ("call `generate` again",)
            self.fault = Failed(Diagnostic("E0962", title, helps=helps))
            raise
        self.log += [made] if made else []
        return made is not None

    def _make_result(self, row: int) -> GenerationResult:
        """Return the logged tokens of one batch element, up to its end."""
        tokens, scores, ended = list[int](), list[float](), False
        for made in self.log:
            if ended:
                break
            tokens.append(int(made.tokens[row]))
            if made.log_probs is not None:
                scores.append(float(made.log_probs[row]))
            ended = bool(made.ended[row])
        return GenerationResult(
            tokens=tuple(tokens),
            text=decode_tokens(self, tokens),
            complete=ended,
            log_probs=tuple(scores) if self.settings.log_probs else None,
        )


def _convert_hypothesis(writing: GenerationStream, text: BeamHypothesis) -> GenerationResult:
    """Convert a beam hypothesis to a result."""
    return GenerationResult(
        tokens=text.tokens,
        text=decode_tokens(writing, text.tokens),
        complete=text.ended,
        score=text.score,
        log_probs=text.log_probs,
    )


def decode_tokens(request: GenerationRequest, tokens: Sequence[int]) -> str | None:
    """Decode tokens to text up to a stop; None if the model has no detokenizer."""
    if request.writer.decode is None:
        return None
    stop, strings = request.settings.stop, request.settings.stop_strings
    # The stop token is among the tokens, where callers expect it, and not in the text.
    shown = tokens[:-1] if tokens and tokens[-1] in stop else tokens
    return cut_at_stop(request.writer.decode(shown), strings)


def _texts(request: GenerationRequest) -> BatchDetokenizer:
    return BatchDetokenizer(request.decode, len(request.prompt), request.settings.stop_strings)


def _tokens(request: GenerationRequest) -> Iterator[DecodeStep]:
    """Yield the steps of greedy decoding or sampling, also of a standalone generator."""
    texts = _texts(request) if request.settings.stop_strings else None
    watch = texts.take if texts else None
    if request.writer.itself is not None:
        # run lazily: it may take minutes, and Ctrl-C must find a generation that has begun
        yield from iterate_standalone_steps(
            run_standalone(request.writer.itself, request), request, watch
        )
        return
    stepper = request.writer.stepper(request.prepared)
    yield from decode_steps(
        stepper,
        request.prompt,
        request.limited_settings,
        keep=request.keep,
        watch=watch,
        numbers=request.numbers,
    )


def _iterate_beams(writing: GenerationStream) -> Iterator[DecodeStep]:
    """Yield the steps of the best hypothesis of each batch element once beam search ends."""
    writing.found = _search_beams(writing)
    best = [row[0] for row in writing.found]
    for step in range(max((len(h.tokens) for h in best), default=0)):
        tokens = [h.tokens[step] if step < len(h.tokens) else writing.settings.filler for h in best]
        # Shorter sequences are padded until the longest has ended.
        ended = [h.ended and step + 1 >= len(h.tokens) for h in best]
        yield DecodeStep(np.array(tokens, np.int64), None, np.array(ended, np.bool_))


def _search_beams(request: GenerationRequest) -> list[list[BeamHypothesis]]:
    strings = request.settings.stop_strings
    ends = make_stop_check(request.decode, strings) if strings else None
    if request.writer.itself is not None:
        return standalone_hypotheses(
            run_standalone(request.writer.itself, request), request.settings.stop
        )
    stepper = request.writer.stepper(request.prepared)
    return search_beams(
        stepper, request.prompt, request.limited_settings, keep=request.keep, ends=ends
    )


def results_as_arrays(writing: GenerationStream, results: list[list[GenerationResult]]) -> Arrays:
    """Return the tokens i64[batch, num_return_sequences, longest], i64[batch, longest] if
    one sequence per prompt was requested, and the scores if there are any.
    """
    # every prompt has as many sequences, so that they are in one array
    texts = [result for row in results for result in row]
    longest = max((len(text.tokens) for text in texts), default=0)
    best = slice(None) if writing.settings.num_return_sequences > 1 else 0
    shape = (len(results), len(results[0]))

    def pad_sequences(rows: Iterable[Sequence[float]], fill: float) -> Array:
        """Pad to [batch, num_return_sequences, longest], or [batch, longest] for one sequence."""
        values = [[*row, *[fill] * (longest - len(row))] for row in rows]
        return np.array(values).reshape(*shape, longest)[:, best]

    tokens = pad_sequences([text.tokens for text in texts], writing.settings.filler)
    name = writing.writer.generation.name
    found: dict[str, Array] = {name: tokens.astype(np.int64)}
    # All sequences of one generation have scores or none has: the strategy decides.
    scores = [text.score for text in texts if text.score is not None]
    if len(scores) == len(texts):
        found["scores"] = np.array(scores, np.float32).reshape(shape)
    chances = [text.log_probs for text in texts if text.log_probs is not None]
    if len(chances) == len(texts):
        chosen = pad_sequences(chances, 0.0)
        found["log_probs"] = chosen.astype(np.float32)
    return found
