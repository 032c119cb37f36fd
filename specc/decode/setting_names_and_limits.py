"""The table of generation settings: names in Python and in specs, valid values, and names in other
programs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite
from numbers import Integral, Real
from typing import TypeGuard

STRATEGIES = ("greedy", "sample", "beam")
MIN_FACTOR = 1e-6
"""Minimum temperature and repetition penalty. Division of the logits by a smaller value may
overflow float32.
"""
MAX_FACTOR = 1e6
"""Maximum temperature and repetition penalty. Larger values have no further effect."""
MAX_BEAMS = 1024
"""Maximum number of beams. Each step sorts `num_beams × vocab_size` scores, and the decoder states
of all beams stay in memory."""
MAX_LENGTH_PENALTY = 20
"""Maximum length penalty for which `length ** length_penalty` does not overflow float64."""
MAX_STOP_TOKENS = 1024
"""Maximum number of stop tokens. For each stop token, beam search ranks one more candidate per
beam."""
MAX_CODEBOOKS = 1024
"""Maximum number of codebooks in a delay pattern."""
MAX_CODEBOOK_DELAY = 1024
"""Maximum delay of a codebook in steps."""
MAX_GUIDANCE_SCALE = 1000
"""Maximum guidance scale. Larger values have almost no further effect, because the difference
between conditional and unconditional logits dominates."""
PREFILL_CHUNK_SIZE = 512
"""Default prefill chunk size in tokens. Longer prompts are processed in chunks to limit the memory
of activations. In measurements on a CPU, larger chunks were not faster."""


@dataclass(frozen=True, slots=True)
class SettingConstraint:
    """The valid values of a setting: a predicate, and a description for messages."""

    description: str
    accepts: Callable[[object], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOption:
    """One generation setting: `name` in Python, `spec_name` in a spec ("" if a spec cannot set it).

    `strategies` are the strategies that support the setting. An empty `strategies` tuple stands for
    all strategies. `foreign_names` are the names of the setting in other programs, for suggestions.
    """

    name: str
    spec_name: str
    strategies: tuple[str, ...]
    constraint: SettingConstraint
    foreign_names: tuple[str, ...] = ()


def is_int_in_range(value: object, minimum: int, maximum: float = 2**53) -> TypeGuard[int]:
    """Return True if a value is an integer in the range, and not a boolean."""
    return (
        not isinstance(value, bool)
        and isinstance(value, Integral)
        and minimum <= int(value) <= maximum
    )


def is_finite_number(value: object) -> TypeGuard[float]:
    """Return True if a value is a finite number, and not a boolean."""
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and isfinite(float(value))
    except OverflowError:  # the integer is too large for a float
        return False


def _is_list_of(
    value: object, accepts: Callable[[object], bool], max_length: float = MAX_STOP_TOKENS
) -> bool:
    return isinstance(value, list | tuple) and len(value) <= max_length and all(map(accepts, value))


def _is_string_or_list(value: object) -> bool:
    return _is_nonempty_string(value) or _is_list_of(value, _is_nonempty_string, inf)


def _is_nonempty_string(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_token(value: object) -> bool:
    return is_int_in_range(value, 0)


def _is_token_or_list(value: object) -> bool:
    return _is_token(value) or _is_list_of(value, _is_token)


def _is_list_of_tokens(value: object) -> bool:
    return _is_list_of(value, lambda v: _is_token_or_list(v) and v not in ([], ()))


TOKEN_VALUE = SettingConstraint("a token id (0 or more)", _is_token)
TOKENS_VALUE = SettingConstraint(
    f"a token id (0 or more), or a list of at most {MAX_STOP_TOKENS}", _is_token_or_list
)
FACTOR_VALUE = SettingConstraint(
    f"a number from {MIN_FACTOR:g} to {MAX_FACTOR:g}",
    lambda v: is_finite_number(v) and MIN_FACTOR <= v <= MAX_FACTOR,
)
PROBABILITY_VALUE = SettingConstraint(
    "a number above 0 and at most 1", lambda v: is_finite_number(v) and 0 < v <= 1
)
CUTOFF_VALUE = SettingConstraint(
    "a number from 0 to less than 1", lambda v: is_finite_number(v) and 0 <= v < 1
)
BEAMS_VALUE = SettingConstraint(
    f"an integer from 1 to {MAX_BEAMS}", lambda v: is_int_in_range(v, 1, MAX_BEAMS)
)
BOOLEAN_VALUE = SettingConstraint("true or false", lambda v: isinstance(v, bool))


def _make_count_values(minimum: int) -> SettingConstraint:
    return SettingConstraint(
        f"an integer from {minimum} to 2**53", lambda v: is_int_in_range(v, minimum)
    )


def _make_optional_count_values(zero_meaning: str) -> SettingConstraint:
    """Return the constraint of an integer setting for which 0 means `zero_meaning`."""
    return SettingConstraint(
        f"an integer from 1 to 2**53, or 0 for {zero_meaning}", lambda v: is_int_in_range(v, 0)
    )


def _make_option(
    strategies: tuple[str, ...], name: str, constraint: SettingConstraint, *foreign_names: str
) -> GenerationOption:
    """Return a setting of `strategies` that has the same name in Python and in specs."""
    return GenerationOption(
        name=name,
        spec_name=name,
        strategies=strategies,
        constraint=constraint,
        foreign_names=foreign_names,
    )


_make_general_option = partial(_make_option, ())
_make_sampling_option = partial(_make_option, ("sample",))
_make_beam_option = partial(_make_option, ("beam",))

GENERATION_OPTIONS: tuple[GenerationOption, ...] = (
    _make_general_option("start", TOKENS_VALUE, "bos", "bos_token_id", "decoder_start_token_id"),
    _make_general_option("stop", TOKENS_VALUE, "eos", "eos_token_id", "stop_token", "stop_tokens"),
    _make_general_option("pad", TOKEN_VALUE, "pad_token_id"),
    _make_general_option(
        "stop_strings",
        SettingConstraint("a non-empty string, or a list of them", _is_string_or_list),
        "stop_string",
        "stop_words",
        "until",
    ),
    _make_general_option("max_tokens", _make_count_values(1), "max", "max_new_tokens"),
    _make_general_option("max_length", _make_count_values(1)),
    _make_general_option("min_tokens", _make_count_values(0), "min", "min_new_tokens"),
    _make_general_option("min_length", _make_count_values(0)),
    _make_general_option(
        "no_repeat_ngram_size", _make_optional_count_values("none"), "no_repeat", "no_repeat_ngram"
    ),
    _make_general_option(
        "bad_words_ids",
        SettingConstraint(
            f"a list of at most {MAX_STOP_TOKENS} token ids, or of token id sequences",
            _is_list_of_tokens,
        ),
        "banned",
        "bad_words",
    ),
    _make_general_option("suppress_tokens", TOKENS_VALUE, "suppress"),
    _make_general_option("begin_suppress_tokens", TOKENS_VALUE),
    _make_general_option(
        "begin",
        SettingConstraint(
            f"a list of at most {MAX_STOP_TOKENS} token ids, or of lists of allowed ids",
            _is_list_of_tokens,
        ),
        "forced_bos_token_id",
        "forced_decoder_ids",
    ),
    _make_general_option("forced_eos_token_id", TOKEN_VALUE),
    _make_general_option(
        "delay_pattern",
        SettingConstraint(
            f"a list of delays from 0 to {MAX_CODEBOOK_DELAY}, one per codebook",
            lambda value: _is_list_of(
                value, lambda v: is_int_in_range(v, 0, MAX_CODEBOOK_DELAY), MAX_CODEBOOKS
            ),
        ),
        "codebook_delays",
        "delays",
    ),
    _make_general_option(
        "guidance_scale",
        SettingConstraint(
            f"a number from 0 to {MAX_GUIDANCE_SCALE}",
            lambda v: is_finite_number(v) and 0 <= v <= MAX_GUIDANCE_SCALE,
        ),
        "cfg_scale",
        "guidance",
    ),
    _make_general_option(
        "strategy",
        SettingConstraint(
            "greedy, sample or beam", lambda v: isinstance(v, str) and v in STRATEGIES
        ),
        "do_sample",
        "mode",
    ),
    replace(
        _make_sampling_option(
            "seed",
            SettingConstraint(
                "an integer from 0 to 2**64 - 1", lambda v: is_int_in_range(v, 0, 2**64 - 1)
            ),
            "random_seed",
        ),
        spec_name="",
    ),
    replace(
        _make_general_option(
            "log_probs",
            # a spec cannot set `log_probs`, and Python callers pass True or False
            replace(BOOLEAN_VALUE, description="True or False"),
            *("logprobs", "log_probabilities", "output_scores"),
        ),
        spec_name="",
    ),
    _make_sampling_option("temperature", FACTOR_VALUE, "temp"),
    _make_sampling_option("top_k", _make_optional_count_values("all tokens"), "k"),
    _make_sampling_option("top_p", PROBABILITY_VALUE, "p", "nucleus"),
    _make_sampling_option(
        "min_p",
        SettingConstraint("a number from 0 to 1", lambda v: is_finite_number(v) and 0 <= v <= 1),
    ),
    _make_sampling_option("typical_p", PROBABILITY_VALUE, "typical"),
    _make_sampling_option("epsilon_cutoff", CUTOFF_VALUE, "epsilon"),
    _make_sampling_option("eta_cutoff", CUTOFF_VALUE, "eta"),
    _make_beam_option("num_beams", BEAMS_VALUE, "beams", "beam_width", "beam_size", "width"),
    _make_beam_option(
        "length_penalty",
        SettingConstraint(
            f"a number from -{MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}",
            lambda v: is_finite_number(v) and -MAX_LENGTH_PENALTY <= v <= MAX_LENGTH_PENALTY,
        ),
        "alpha",
    ),
    _make_beam_option(
        "early_stopping",
        SettingConstraint(
            'true, false or "never"',
            lambda v: isinstance(v, bool) or (isinstance(v, str) and v == "never"),
        ),
        "early_stop",
    ),
    _make_beam_option("num_return_sequences", BEAMS_VALUE, "n_best", "nbest", "n", "best_of"),
    _make_beam_option("renormalize_logits", BOOLEAN_VALUE),
    _make_option(STRATEGIES, "repetition_penalty", FACTOR_VALUE, "repeat_penalty", "penalty"),
)
OPTIONS_BY_NAME: Mapping[str, GenerationOption] = {o.name: o for o in GENERATION_OPTIONS}
GENERAL_OPTIONS: Mapping[str, GenerationOption] = {
    o.spec_name: o for o in GENERATION_OPTIONS if o.spec_name and not o.strategies
}
"""Settings that apply to all strategies, keyed by spec name."""
STRATEGY_OPTIONS: Mapping[str, Mapping[str, GenerationOption]] = {
    s: {o.spec_name: o for o in GENERATION_OPTIONS if o.spec_name and s in o.strategies}
    for s in STRATEGIES
}
"""Settings of each strategy by spec name. In a spec, the settings are arguments of the strategy."""
