"""Greedy decoding and sampling: one token a step for every row of a batch, handed out
as it is made.

A row depends on nothing but its own prompt, its number and the seed; it ends by a stop
token, by whoever watches, or with the last step. Behind its end stands filler, which is
fed too and changes nothing that is still read.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from specc.decode.choose import draw, kept, log_softmax, uniforms, uniforms_at
from specc.decode.penalties import first_seen, repetition
from specc.decode.rules import Place, lengths_of, ruled, texts_of
from specc.decode.settings import Settings
from specc.decode.stepper import (
    Bools,
    Floats,
    Ints,
    Made,
    Stepper,
    Watch,
    check_prompt,
    logits_of,
)


def written(
    stepper: Stepper,
    prompt: Ints,
    settings: Settings,
    *,
    keep: Bools | None = None,
    watch: Watch | None = None,
    numbers: Sequence[int] = (),
) -> Iterator[Made]:
    """The tokens behind `prompt` i64[rows n], a step at a time, until every row
    has ended.

    `keep` bool[rows n] says which tokens of the prompt are no padding; the stepper has
    its own way to know. The last token of each row is never fed. Log-probabilities are
    of the model's own distribution, before penalty, temperature and cuts. The seed draws
    a row by its number, or by that of `numbers`.
    `settings.strategy` is greedy or sample; `specc.decode.beam.searched` is the third.
    """
    assert settings.strategy in ("greedy", "sample"), (
        "a beam search has no single next token"
    )
    check_prompt(prompt)
    if not len(prompt):
        return
    rows = np.arange(len(prompt))
    ended = np.zeros(len(prompt), np.bool_)
    logits = logits_of(stepper.step(prompt), ~ended)
    seen = first_seen(prompt, logits.shape[1], settings.repetition_penalty, keep)
    lengths = lengths_of(prompt, keep)
    texts = texts_of(prompt, keep) if settings.reads_texts else []
    for step in range(settings.max_tokens):
        place = Place(step=step, prompts=lengths, texts=texts)
        uniform = _uniform(settings, numbers, step)
        chosen = chosen_from(logits, seen, settings, place, uniform)
        tokens = np.where(ended, settings.filler, chosen)
        scores = (
            log_probs(logits, chosen, ended) if settings.log_probabilities else None
        )
        if seen is not None:
            # of a row that has ended too: nothing of it is read any more
            seen[rows, chosen] = True
        for text, token in zip(texts, chosen, strict=False):
            text.append(int(token))
        ended = ended | np.isin(tokens, settings.stop)
        if watch is not None:
            ended = ended | watch(tokens, ended.copy())
        yield Made(tokens, scores, ended.copy())
        if ended.all() or step + 1 == settings.max_tokens:
            return
        logits = logits_of(stepper.step(tokens[:, None]), ~ended)


def _uniform(settings: Settings, numbers: Sequence[int], step: int) -> Floats | None:
    """What draws rows of these numbers; None where nothing is drawn, or by their places."""
    if not numbers or settings.strategy != "sample":
        return None
    return uniforms_at(settings.seed, [(number, step) for number in numbers])


def chosen_from(
    logits: Floats,
    seen: Bools | None,
    settings: Settings,
    place: Place,
    uniform: Floats | None = None,
) -> Ints:
    """The next token of every row, i64[rows], from logits f32[rows vocab]; `seen`
    bool[rows vocab] is penalized. `uniform` f32[rows] decides draws; without it, what
    the seed says of a row by its number.
    """
    if seen is not None:
        logits = repetition(logits, seen, settings.repetition_penalty)
    logits = ruled(logits, settings, place)
    if settings.strategy == "greedy":
        best: Ints = logits.argmax(axis=1)
        return best
    if uniform is None:
        uniform = uniforms(settings.seed, len(logits), place.step)
    return draw(kept(logits, settings), uniform)


def log_probs(logits: Floats, chosen: Ints, ended: Bools) -> Floats:
    """f32[rows]: log-probabilities of the chosen tokens, 0 where a row had ended before."""
    scores: Floats = np.take_along_axis(log_softmax(logits), chosen[:, None], axis=1)[
        :, 0
    ]
    scores[ended] = 0
    return scores
