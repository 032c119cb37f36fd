"""The table of generation settings: names, ranges, and where each may be set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from numbers import Integral, Real
from typing import TypeGuard

STRATEGIES = ("greedy", "sample", "beam")
MIN_FACTOR = 1e-6
"""Minimum temperature and penalty: logits divided by less overflow float32."""
MAX_FACTOR = 1e6
"""Maximum temperature and penalty: larger values have no further effect."""
MAX_BEAMS = 1024
"""Maximum number of beams: each step ranks beams × vocabulary scores and keeps every beam's state
in memory."""
MAX_LENGTH_PENALTY = 20
"""The maximum length penalty: no power of a length overflows float64 with it."""
MAX_STOP_TOKENS = 1024
"""Maximum number of stop tokens: each adds one candidate per beam to beam search."""


@dataclass(frozen=True, slots=True)
class SettingValues:
    """The values of a setting: a description, and a predicate."""

    range: str
    takes: Callable[[object], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOption:
    """One setting: `name` in Python, `word` in a spec ("" if a spec cannot set it).

    `strategies` are those it belongs to; none: it applies to all. `foreign` are its names in other
    programs, for suggestions.
    """

    name: str
    word: str
    strategies: tuple[str, ...]
    values: SettingValues
    foreign: tuple[str, ...] = ()


def is_int_in_range(value: object, least: int, most: float = 2**53) -> TypeGuard[int]:
    """Return whether this is an integer in the range; booleans are not."""
    return (
        not isinstance(value, bool) and isinstance(value, Integral) and least <= int(value) <= most
    )


def is_finite_number(value: object) -> TypeGuard[float]:
    """Return whether this is a finite number; booleans are not."""
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and isfinite(float(value))
    except OverflowError:  # an integer that overflows float
        return False


def _texts(value: object) -> bool:
    return _text(value) or (isinstance(value, list | tuple) and all(map(_text, value)))


def _text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _strategy(value: object) -> bool:
    return isinstance(value, str) and value in STRATEGIES


def _tokens(value: object) -> bool:
    return is_int_in_range(value, 0) or (
        isinstance(value, list | tuple)
        and len(value) <= MAX_STOP_TOKENS
        and all(is_int_in_range(v, 0) for v in value)
    )


def _places(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) <= MAX_STOP_TOKENS
        and all(_tokens(v) and v not in ([], ()) for v in value)
    )


TOKEN_VALUE = SettingValues("a token's number, 0 or more", lambda v: is_int_in_range(v, 0))
TOKENS_VALUE = SettingValues(
    f"a token's number, 0 or more, or a list of at most {MAX_STOP_TOKENS}", _tokens
)
FACTOR_VALUE = SettingValues(
    f"a number from {MIN_FACTOR:g} to {MAX_FACTOR:g}",
    lambda v: is_finite_number(v) and MIN_FACTOR <= v <= MAX_FACTOR,
)
PROBABILITY_VALUE = SettingValues(
    "a number above 0 and at most 1", lambda v: is_finite_number(v) and 0 < v <= 1
)
CUTOFF_VALUE = SettingValues(
    "a number from 0 to less than 1", lambda v: is_finite_number(v) and 0 <= v < 1
)
BEAMS_VALUE = SettingValues(
    f"an integer from 1 to {MAX_BEAMS}", lambda v: is_int_in_range(v, 1, MAX_BEAMS)
)
BOOLEAN_VALUE = SettingValues("true or false", lambda v: isinstance(v, bool))


def _count(least: int) -> SettingValues:
    return SettingValues(f"an integer from {least} to 2**53", lambda v: is_int_in_range(v, least))


def _count_or(none: str) -> SettingValues:
    """Describe an integer, where 0 means `none`."""
    return SettingValues(
        f"an integer from 1 to 2**53, or 0 for {none}", lambda v: is_int_in_range(v, 0)
    )


def _beside(name: str, values: SettingValues, *foreign: str) -> GenerationOption:
    """Make a setting outside the strategy, with the same name in specs."""
    return GenerationOption(name=name, word=name, strategies=(), values=values, foreign=foreign)


def _sample(name: str, values: SettingValues, *foreign: str) -> GenerationOption:
    return replace(_beside(name, values, *foreign), strategies=("sample",))


def _beam(name: str, values: SettingValues, *foreign: str) -> GenerationOption:
    return replace(_beside(name, values, *foreign), strategies=("beam",))


GENERATION_OPTIONS: tuple[GenerationOption, ...] = (
    _beside("start", TOKENS_VALUE, "bos", "bos_token_id", "decoder_start_token_id"),
    _beside("stop", TOKENS_VALUE, "eos", "eos_token_id", "stop_token", "stop_tokens"),
    _beside("pad", TOKEN_VALUE, "pad_token_id"),
    _beside(
        "stop_strings",
        SettingValues("a non-empty string, or a list of them", _texts),
        "stop_string",
        "stop_words",
        "until",
    ),
    _beside("max_tokens", _count(1), "max", "max_new_tokens"),
    _beside("max_length", _count(1)),
    _beside("min_tokens", _count(0), "min", "min_new_tokens"),
    _beside("min_length", _count(0)),
    _beside("no_repeat_ngram_size", _count_or("none"), "no_repeat", "no_repeat_ngram"),
    _beside(
        "bad_words_ids",
        SettingValues(f"a list of at most {MAX_STOP_TOKENS} tokens, or of runs of tokens", _places),
        "banned",
        "bad_words",
    ),
    _beside("suppress_tokens", TOKENS_VALUE, "suppress"),
    _beside("begin_suppress_tokens", TOKENS_VALUE),
    _beside(
        "begin",
        SettingValues(
            f"a list of at most {MAX_STOP_TOKENS} tokens, or of lists of tokens to choose from",
            _places,
        ),
        "forced_bos_token_id",
        "forced_decoder_ids",
    ),
    _beside("forced_eos_token_id", TOKEN_VALUE),
    _beside("strategy", SettingValues("greedy, sample or beam", _strategy), "do_sample", "mode"),
    GenerationOption(
        name="seed",
        word="",
        strategies=("sample",),
        values=SettingValues(
            "an integer from 0 to 2**64 - 1", lambda v: is_int_in_range(v, 0, 2**64 - 1)
        ),
        foreign=("random_seed",),
    ),
    GenerationOption(
        name="log_probs",
        word="",
        strategies=(),
        # only Python callers can pass it, as True or False
        values=replace(BOOLEAN_VALUE, range="True or False"),
        foreign=("logprobs", "log_probabilities", "output_scores"),
    ),
    _sample("temperature", FACTOR_VALUE, "temp"),
    _sample("top_k", _count_or("all tokens"), "k"),
    _sample("top_p", PROBABILITY_VALUE, "p", "nucleus"),
    _sample(
        "min_p",
        SettingValues("a number from 0 to 1", lambda v: is_finite_number(v) and 0 <= v <= 1),
    ),
    _sample("typical_p", PROBABILITY_VALUE, "typical"),
    _sample("epsilon_cutoff", CUTOFF_VALUE, "epsilon"),
    _sample("eta_cutoff", CUTOFF_VALUE, "eta"),
    _beam("num_beams", BEAMS_VALUE, "beams", "beam_width", "beam_size", "width"),
    _beam(
        "length_penalty",
        SettingValues(
            f"a number from -{MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}",
            lambda v: is_finite_number(v) and -MAX_LENGTH_PENALTY <= v <= MAX_LENGTH_PENALTY,
        ),
        "alpha",
    ),
    _beam(
        "early_stopping",
        SettingValues(
            'true, false or "never"',
            lambda v: isinstance(v, bool) or (isinstance(v, str) and v == "never"),
        ),
        "early_stop",
    ),
    _beam("num_return_sequences", BEAMS_VALUE, "n_best", "nbest", "n", "best_of"),
    _beam("renormalize_logits", BOOLEAN_VALUE),
    GenerationOption(
        name="repetition_penalty",
        word="repetition_penalty",
        strategies=STRATEGIES,
        values=FACTOR_VALUE,
        foreign=("repeat_penalty", "penalty"),
    ),
)
OPTIONS_BY_NAME: Mapping[str, GenerationOption] = {o.name: o for o in GENERATION_OPTIONS}
GENERAL_OPTIONS: Mapping[str, GenerationOption] = {
    o.word: o for o in GENERATION_OPTIONS if o.word and not o.strategies
}
"""Settings outside the strategy, by spec word."""
STRATEGY_OPTIONS: Mapping[str, Mapping[str, GenerationOption]] = {
    s: {o.word: o for o in GENERATION_OPTIONS if o.word and s in o.strategies} for s in STRATEGIES
}
"""Settings in each strategy's parentheses, by spec word."""
