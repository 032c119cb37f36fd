"""What can be said about generation, in a spec and by a caller: names and ranges.

One table serves both: a spec's `strategy = beam(width=4)` is checked at its line while
the spec is checked, and the same values are checked again where a caller's are, because
a manifest may come from anywhere. Knows no arrays.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import TypeGuard

STRATEGIES = ("greedy", "sample", "beam")
LEAST = 1e-6
"""The smallest temperature and penalty: dividing logits by less leaves the range of a float32."""
MOST = 1e6
"""The greatest: more changes nothing, until a float32 cannot hold it."""
WIDEST = 1024
"""The most beams of a search: each step ranks this many vocabularies at once, and keeps
so many texts in memory.
"""
STEEPEST = 20
"""The greatest length penalty: with it no power of a length leaves the range of a float64."""
STOPS = 1024
"""The most tokens that end a text: each widens a search over beams by as many
candidates as there are beams.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting: `name` in Python, `word` in a spec ("" where a spec cannot say it).

    `strategies` are those it belongs to; none: it stands beside the strategy and goes
    with all. `foreign` are names that other programs have for it, for the guess at what
    was meant.
    """

    name: str
    word: str
    strategies: tuple[str, ...]
    range: str
    takes: Callable[[object], bool]
    foreign: tuple[str, ...] = ()


def whole(value: object, least: int, most: float = 2**53) -> TypeGuard[int]:
    """Whether this is an integer in the range; truth values are none."""
    return (
        not isinstance(value, bool)
        and isinstance(value, Integral)
        and least <= int(value) <= most
    )


def number(value: object) -> TypeGuard[float]:
    """Whether this is a finite number; truth values are none."""
    try:
        return (
            not isinstance(value, bool)
            and isinstance(value, Real)
            and isfinite(float(value))
        )
    except OverflowError:  # a whole number beyond all floats
        return False


def _texts(value: object) -> bool:
    return _text(value) or (
        isinstance(value, list | tuple) and all(_text(v) for v in value)
    )


def _text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _strategy(value: object) -> bool:
    return isinstance(value, str) and value in STRATEGIES


def _tokens(value: object) -> bool:
    return whole(value, 0) or (
        isinstance(value, list | tuple)
        and len(value) <= STOPS
        and all(whole(v, 0) for v in value)
    )


def _places(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) <= STOPS
        and all(_tokens(v) and v not in ([], ()) for v in value)
    )


_SAMPLE, _BEAM = ("sample",), ("beam",)
OPTIONS: tuple[Option, ...] = (
    Option(
        name="start",
        word="start",
        strategies=(),
        range=f"a token's number, 0 or more, or a list of at most {STOPS}",
        takes=_tokens,
        foreign=("bos", "bos_token_id", "decoder_start_token_id"),
    ),
    Option(
        name="stop",
        word="stop",
        strategies=(),
        range=f"a token's number, 0 or more, or a list of at most {STOPS}",
        takes=_tokens,
        foreign=("eos", "eos_token_id", "stop_token", "stop_tokens"),
    ),
    Option(
        name="pad",
        word="pad",
        strategies=(),
        range="a token's number, 0 or more",
        takes=lambda v: whole(v, 0),
        foreign=("pad_token_id",),
    ),
    Option(
        name="stop_strings",
        word="stop_strings",
        strategies=(),
        range="a text that is not empty, or a list of them",
        takes=_texts,
        foreign=("stop_string", "stop_words", "until"),
    ),
    Option(
        name="max_tokens",
        word="max_tokens",
        strategies=(),
        range="a whole number from 1 to 2**53",
        takes=lambda v: whole(v, 1),
        foreign=("max", "max_new_tokens"),
    ),
    Option(
        name="max_length",
        word="max_length",
        strategies=(),
        range="a whole number from 1 to 2**53",
        takes=lambda v: whole(v, 1),
    ),
    Option(
        name="min_tokens",
        word="min_tokens",
        strategies=(),
        range="a whole number from 0 to 2**53",
        takes=lambda v: whole(v, 0),
        foreign=("min", "min_new_tokens"),
    ),
    Option(
        name="min_length",
        word="min_length",
        strategies=(),
        range="a whole number from 0 to 2**53",
        takes=lambda v: whole(v, 0),
    ),
    Option(
        name="no_repeat",
        word="no_repeat",
        strategies=(),
        range="a whole number from 1 to 2**53, or 0 for none",
        takes=lambda v: whole(v, 0),
        foreign=("no_repeat_ngram_size", "no_repeat_ngram"),
    ),
    Option(
        name="banned",
        word="banned",
        strategies=(),
        range=f"a list of at most {STOPS} tokens, or of runs of tokens",
        takes=_places,
        foreign=("bad_words_ids", "bad_words"),
    ),
    Option(
        name="suppress",
        word="suppress",
        strategies=(),
        range=f"a token's number, 0 or more, or a list of at most {STOPS}",
        takes=_tokens,
        foreign=("suppress_tokens",),
    ),
    Option(
        name="begin_suppress",
        word="begin_suppress",
        strategies=(),
        range=f"a token's number, 0 or more, or a list of at most {STOPS}",
        takes=_tokens,
        foreign=("begin_suppress_tokens",),
    ),
    Option(
        name="begin",
        word="begin",
        strategies=(),
        range=f"a list of at most {STOPS} tokens, or of lists of tokens to choose from",
        takes=_places,
        foreign=("forced_bos_token_id", "forced_decoder_ids"),
    ),
    Option(
        name="last_token",
        word="last_token",
        strategies=(),
        range="a token's number, 0 or more",
        takes=lambda v: whole(v, 0),
        foreign=("forced_eos_token_id",),
    ),
    Option(
        name="strategy",
        word="strategy",
        strategies=(),
        range="greedy, sample or beam",
        takes=_strategy,
        foreign=("do_sample", "mode"),
    ),
    Option(
        name="seed",
        word="",
        strategies=_SAMPLE,
        range="a whole number from 0 to 2**64 - 1",
        takes=lambda v: whole(v, 0, 2**64 - 1),
        foreign=("random_seed",),
    ),
    Option(
        name="log_probabilities",
        word="",
        strategies=(),
        range="True or False",
        takes=lambda v: isinstance(v, bool),
        foreign=("logprobs", "log_probs", "output_scores"),
    ),
    Option(
        name="temperature",
        word="temperature",
        strategies=_SAMPLE,
        range=f"a number from {LEAST:g} to {MOST:g}",
        takes=lambda v: number(v) and LEAST <= v <= MOST,
        foreign=("temp",),
    ),
    Option(
        name="top_k",
        word="top_k",
        strategies=_SAMPLE,
        range="a whole number from 1 to 2**53, or 0 for all tokens",
        takes=lambda v: whole(v, 0),
        foreign=("k",),
    ),
    Option(
        name="top_p",
        word="top_p",
        strategies=_SAMPLE,
        range="a number above 0 and at most 1",
        takes=lambda v: number(v) and 0 < v <= 1,
        foreign=("p", "nucleus"),
    ),
    Option(
        name="min_p",
        word="min_p",
        strategies=_SAMPLE,
        range="a number from 0 to 1",
        takes=lambda v: number(v) and 0 <= v <= 1,
    ),
    Option(
        name="typical_p",
        word="typical_p",
        strategies=_SAMPLE,
        range="a number above 0 and at most 1",
        takes=lambda v: number(v) and 0 < v <= 1,
        foreign=("typical",),
    ),
    Option(
        name="epsilon_cutoff",
        word="epsilon_cutoff",
        strategies=_SAMPLE,
        range="a number from 0 to less than 1",
        takes=lambda v: number(v) and 0 <= v < 1,
        foreign=("epsilon",),
    ),
    Option(
        name="eta_cutoff",
        word="eta_cutoff",
        strategies=_SAMPLE,
        range="a number from 0 to less than 1",
        takes=lambda v: number(v) and 0 <= v < 1,
        foreign=("eta",),
    ),
    Option(
        name="beams",
        word="width",
        strategies=_BEAM,
        range=f"a whole number from 1 to {WIDEST}",
        takes=lambda v: whole(v, 1, WIDEST),
        foreign=("num_beams", "beam_width", "beam_size", "width"),
    ),
    Option(
        name="length_penalty",
        word="length_penalty",
        strategies=_BEAM,
        range=f"a number from -{STEEPEST} to {STEEPEST}",
        takes=lambda v: number(v) and -STEEPEST <= v <= STEEPEST,
        foreign=("alpha",),
    ),
    Option(
        name="early_stopping",
        word="early_stopping",
        strategies=_BEAM,
        range='true, false or "never"',
        takes=lambda v: isinstance(v, bool) or (isinstance(v, str) and v == "never"),
        foreign=("early_stop",),
    ),
    Option(
        name="n_best",
        word="n_best",
        strategies=_BEAM,
        range=f"a whole number from 1 to {WIDEST}",
        takes=lambda v: whole(v, 1, WIDEST),
        foreign=("num_return_sequences", "nbest"),
    ),
    Option(
        name="renormalize",
        word="renormalize",
        strategies=_BEAM,
        range="true or false",
        takes=lambda v: isinstance(v, bool),
        foreign=("renormalize_logits",),
    ),
    Option(
        name="repetition_penalty",
        word="repetition_penalty",
        strategies=STRATEGIES,
        range=f"a number from {LEAST:g} to {MOST:g}",
        takes=lambda v: number(v) and LEAST <= v <= MOST,
        foreign=("repeat_penalty", "penalty"),
    ),
)
NAMED: Mapping[str, Option] = {o.name: o for o in OPTIONS}
BESIDE: Mapping[str, Option] = {
    o.word: o for o in OPTIONS if o.word and not o.strategies
}
"""What a spec says beside the strategy, by its word."""
INSIDE: Mapping[str, Mapping[str, Option]] = {
    s: {o.word: o for o in OPTIONS if o.word and s in o.strategies} for s in STRATEGIES
}
"""What a spec says inside each strategy's parentheses, by its word."""
