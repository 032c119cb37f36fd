"""Texts while they are written: tokens and pieces as they come, results at the end."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from specc.entrance import Entrance
from specc.generation.beam import Hypothesis, searched
from specc.generation.settings import Settings
from specc.generation.stepper import Bools, Ints, Made, no_numbers
from specc.generation.text import Texts, cut, ending
from specc.generation.writing import written
from specc.ir.model import Generation
from specc.reading.record import Reading, TextBytes, TextCharacters, TextOf
from specc.reading.text import decode
from specc.reading.tokenizer import TextTokenizer
from specc.text.diagnostic import Diagnostic, Failed, fail
from specc.writers.itself import Made as Decoded
from specc.writers.itself import decoded
from specc.writers.steppers import FullStepper, StateStepper

Array = Any


@dataclass(frozen=True)
class Result:
    """What was written for one row: tokens without the prompt, a stop included; its text, where the model has one.

    `score` is a beam's, `log_probs` are those of its tokens where asked for. `complete`: it ended by itself.
    """

    tokens: tuple[int, ...]
    text: str | None
    complete: bool
    score: float | None = None
    log_probs: tuple[float, ...] | None = None


@dataclass
class Source:
    """What a model that writes is run by. `entrance` says what it may be given, `context` how much it can see.

    `stepper` begins one that is driven from here; `itself` runs one that decodes by itself, `compiled` as it says.
    Tokens are `drawn` from so many.
    """

    entrance: Entrance
    generation: Generation
    reading: Reading
    context: int | None
    table: str
    seed: int | None
    stepper: Callable[[Mapping[str, Array]], FullStepper | StateStepper] = field(repr=False)
    itself: Any = field(default=None, repr=False)
    compiled: Mapping[str, Any] = field(default_factory=dict)
    drawn: int | None = None

    @cached_property
    def decode(self) -> Callable[[Sequence[int]], str] | None:
        """Ids to text as the model shows its result, else as it reads what grows; None where it does neither."""
        shown = [r.vocabulary for n, r in self.reading.shows if isinstance(r, TextOf) and n == self.generation.source]
        record = shown[0] if shown else self.reading.of_input(self.entrance.growing)
        if isinstance(record, TextCharacters | TextBytes | TextTokenizer):
            return partial(decode, record=record)
        return None


@dataclass
class Writing:
    """A text, or a batch of texts, being written. Iterate it for tokens, `pieces` for text, `results` for the end.

    Each step is made once, and kept in `log`: whoever iterates again gets the same from the beginning. `begun` says
    that there was no prompt, and the first token is the start.
    """

    writer: Source
    settings: Settings
    prepared: Mapping[str, Array]
    prompt: Ints
    keep: Bools | None
    room: int
    begun: bool = False
    log: list[Made] = field(default_factory=list)
    stepper: FullStepper | StateStepper | None = None
    found: list[list[Hypothesis]] | None = None
    steps: Iterator[Made] | None = field(default=None, repr=False)
    fault: Failed | None = None

    def __iter__(self) -> Iterator[Made]:
        """Tokens i64[rows] as they are made; a beam search finds whole texts first."""
        place = 0
        while place < len(self.log) or self._one_more():
            yield self.log[place]
            place += 1

    def pieces(self) -> Iterator[list[str]]:
        """What each row's text gains, as soon as it is certain."""
        texts = self._texts()
        stopped = np.zeros(len(self.prompt), np.bool_)
        for made in self:
            stopped = stopped | np.isin(made.tokens, self.settings.stop)
            texts.take(made.tokens, stopped.copy())
            yield texts.fresh()
        yield texts.close()

    def _one_more(self) -> bool:
        """Whether there is a next step, which is then in the log. What once went wrong does so again."""
        if self.fault is not None:
            raise self.fault
        if self.steps is None:
            self.steps = self._beam() if self.settings.strategy == "beam" else self._tokens()
        try:
            made = next(self.steps, None)
        except Failed as fault:
            self.fault = fault
            raise
        except BaseException:
            self.fault = Failed(
                Diagnostic("E0962", "this text was broken off while it was written", helps=("call `generate` again",))
            )
            raise
        self.log += [made] if made else []
        return made is not None

    def results(self) -> list[list[Result]]:
        """Each row's texts, the best first; only a search over beams has more than one. Writes to the end."""
        for _ in self:
            pass
        if self.found is not None:
            return [[self._result(h.tokens, h.ended, h.score, h.log_probs) for h in row] for row in self.found]
        return [[self._row(r)] for r in range(len(self.prompt))]

    def _row(self, row: int) -> Result:
        tokens, scores, ended = [], [], False
        for made in self.log:
            if ended:
                break
            tokens.append(int(made.tokens[row]))
            if made.log_probs is not None:
                scores.append(float(made.log_probs[row]))
            ended = bool(made.ended[row])
        return self._result(tuple(tokens), ended, None, tuple(scores) if self.settings.log_probabilities else None)

    def _result(
        self, tokens: tuple[int, ...], ended: bool, score: float | None, scores: tuple[float, ...] | None
    ) -> Result:
        text = None
        if self.writer.decode:
            shown = tokens[:-1] if tokens and tokens[-1] in self.settings.stop else tokens
            text = cut(self.writer.decode(shown), self.settings.stop_strings)
        return Result(tokens, text, ended, score, scores)

    def _bounded(self) -> Settings:
        """The settings, with no more tokens than there are positions for."""
        if self.settings.max_tokens <= self.room:
            return self.settings
        return replace(self.settings, max_tokens=self.room)

    def _begin(self) -> FullStepper | StateStepper:
        self.stepper = self.writer.stepper(self.prepared)
        return self.stepper

    def _tokens(self) -> Iterator[Made]:
        texts = self._texts() if self.settings.stop_strings else None
        if self.writer.itself is not None:
            return self._by_itself(texts)
        watch = texts.take if texts else None
        return written(self._begin(), self.prompt, self._bounded(), keep=self.keep, watch=watch)

    def _decoded(self) -> Decoded:
        return decoded(self.writer.itself, self._bounded(), self.writer.entrance, self.prepared, self.begun)

    def _by_itself(self, texts: Texts | None) -> Iterator[Made]:
        """All tokens at once from a model that decodes by itself, handed out as if they came one by one."""
        made = self._decoded()
        ended = np.zeros(len(self.prompt), np.bool_)
        for step in range(made.tokens.shape[2]):
            tokens = made.tokens[:, 0, step]
            _check_numbers(tokens)
            ended = ended | np.isin(tokens, self.settings.stop)
            if texts is not None:
                ended = ended | texts.take(tokens, ended.copy())
            scores = made.log_probs[:, step] if made.log_probs is not None else None
            yield Made(tokens, scores, ended.copy())
            if ended.all():
                return

    def _found_by_itself(self) -> list[list[Hypothesis]]:
        """The hypotheses of a model that searches by itself, without what stands behind their ends."""
        made = self._decoded()
        _check_numbers(made.tokens)
        found = []
        for row, scores in zip(made.tokens.tolist(), np.asarray(made.scores).tolist(), strict=True):
            ends = [next((n + 1 for n, t in enumerate(text) if t in self.settings.stop), len(text)) for text in row]
            found.append(
                [
                    Hypothesis(tuple(t[:e]), s, t[e - 1] in self.settings.stop)
                    for t, e, s in zip(row, ends, scores, strict=True)
                    if s > -np.inf  # as many texts come as were asked for, though there may be fewer
                ]
            )
        return found

    def _beam(self) -> Iterator[Made]:
        ends = ending(self._decode(), self.settings.stop_strings) if self.settings.stop_strings else None
        self.found = (
            self._found_by_itself()
            if self.writer.itself is not None
            else searched(self._begin(), self.prompt, self._bounded(), keep=self.keep, ends=ends)
        )
        best = [row[0] for row in self.found]
        for step in range(max((len(h.tokens) for h in best), default=0)):
            inside = [step < len(h.tokens) for h in best]
            tokens = [h.tokens[step] if i else self.settings.filler for h, i in zip(best, inside, strict=True)]
            ended = [h.ended and step + 1 >= len(h.tokens) for h in best]
            yield Made(np.array(tokens, np.int64), None, np.array(ended, np.bool_))

    def _texts(self) -> Texts:
        return Texts(self._decode(), len(self.prompt), self.settings.stop_strings)

    def _decode(self) -> Callable[[Sequence[int]], str]:
        if self.writer.decode is None:
            fail(
                "E0945",
                "this model's tokens are no text",
                notes=["its spec does not say how they are read"],
                helps=["iterate over the tokens instead", "say `show logits = text(…)` in the spec's `reading`"],
            )
        return self.writer.decode


def _check_numbers(tokens: Ints) -> None:
    """E0961 where a model that decodes by itself says that it could not go on, by tokens that there are none of."""
    if (wrong := np.flatnonzero((tokens.reshape(len(tokens), -1) < 0).any(axis=1))).size:
        no_numbers(int(wrong[0]))
