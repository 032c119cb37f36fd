"""Define generation settings, validate the caller's settings, and merge them with the spec's."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, TypedDict

from specc.decode.setting_names_and_limits import (
    GENERAL_OPTIONS,
    GENERATION_OPTIONS,
    OPTIONS_BY_NAME,
    STRATEGY_OPTIONS,
    GenerationOption,
)
from specc.decode.setting_validation import (
    ensure_list,
    find_sequence_count_error,
    find_setting_error,
    find_spec_setting_errors,
    make_setting_conflict_error,
    make_unknown_setting_error,
    parse_strategy_setting,
)
from specc.diagnostics.diagnostic import Diagnostic, SpeccError


class GenerationArguments(TypedDict, total=False):
    """Generation settings as keyword arguments (docs/generation.md). The value None is ignored."""

    strategy: Literal["greedy", "sample", "beam"] | None
    max_tokens: int | None
    max_length: int | None
    min_tokens: int | None
    min_length: int | None
    start: int | Sequence[int] | None
    stop: int | Sequence[int] | None
    stop_strings: str | Sequence[str] | None
    pad: int | None
    forced_eos_token_id: int | None
    delay_pattern: Sequence[int] | None
    guidance_scale: float | None
    suppress_tokens: int | Sequence[int] | None
    begin_suppress_tokens: int | Sequence[int] | None
    begin: Sequence[int | Sequence[int]] | None
    no_repeat_ngram_size: int | None
    bad_words_ids: Sequence[int | Sequence[int]] | None
    repetition_penalty: float | None
    log_probs: bool | None
    seed: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None
    num_beams: int | None
    length_penalty: float | None
    early_stopping: bool | Literal["never"] | None
    num_return_sequences: int | None
    renormalize_logits: bool | None


Strategy: TypeAlias = Literal["greedy", "sample", "beam"]
EarlyStopping: TypeAlias = bool | Literal["never"]
LIST_SETTINGS = ("stop", "stop_strings", "suppress_tokens", "begin_suppress_tokens")
"""Settings that accept a single value or a list. The order of the list has no effect."""
INTEGER_SETTINGS = ("pad", "max_length", "forced_eos_token_id")
"""Integer settings that may be None."""
DEFAULT_NUM_BEAMS = 4
"""Default number of beams. If the caller requests more return sequences, that number is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """Settings of logits processors, sampling and stopping criteria, named as in transformers.

    `max_tokens` and `min_tokens` count generated tokens including the stop token, while
    `max_length` and `min_length` also count the prompt. `stop` are the stop token ids, and
    `stop_strings` are the strings before which generation stops. `start` are the decoder start
    tokens (such as BOS) if there is no prompt. 0 disables `top_k`, `min_p`, `epsilon_cutoff` and
    `eta_cutoff`; 1 disables `top_p`, `typical_p`, `temperature` and `repetition_penalty`.

    `suppress_tokens` are never generated. `begin` lists the allowed token ids of each of the first
    steps, and `begin_suppress_tokens` are not generated in the step after these steps.
    `forced_eos_token_id` is generated at the maximum length. No n-gram of size
    `no_repeat_ngram_size` occurs twice, and no sequence of `bad_words_ids` is generated.
    `delay_pattern` is the delay of each codebook in steps (`specc.decode.decode_loop`).
    `guidance_scale` is the scale of classifier-free guidance (`specc.runtime.guidance`); 1 disables
    guidance. `renormalize_logits` makes beam search apply log-softmax after the logits processors.
    `log_probs` requests each token's log-probability, computed from the model's logits before any
    penalty, temperature or filter.
    """

    strategy: Strategy = "greedy"
    max_tokens: int = 256
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    repetition_penalty: float = 1.0
    num_beams: int = DEFAULT_NUM_BEAMS
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    num_return_sequences: int = 1
    renormalize_logits: bool = False
    max_length: int | None = None
    min_tokens: int = 0
    min_length: int = 0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    begin: tuple[tuple[int, ...], ...] = ()
    forced_eos_token_id: int | None = None
    delay_pattern: tuple[int, ...] = ()
    guidance_scale: float = 1.0
    start: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    pad: int | None = None
    seed: int = 0
    log_probs: bool = False

    @property
    def needs_previous_tokens(self) -> bool:
        """Return True if a logits processor depends on the previous tokens."""
        return bool(self.no_repeat_ngram_size or self.bad_words_ids)

    @property
    def padding_token(self) -> int:
        """The token that pads a finished sequence: `pad`, else the first stop token, else 0."""
        return self.pad if self.pad is not None else self.stop[0] if self.stop else 0


def merge_caller_settings(
    spec_settings: Mapping[str, object], **caller_settings: object
) -> GenerationSettings:
    """Merge the spec's `generate` block (`Model.generation.settings`) with the caller's settings,
    which take precedence. A setting with the value None is ignored.

    Strategy options of the spec apply only if the caller does not select a different strategy. If
    the caller names no strategy, an option such as `temperature` or `num_beams` selects the
    strategy that supports the option.

    Raise all errors at once: E0731 for unknown names, E0732 for values out of range, and E0733 for
    conflicting settings.
    """
    checked_settings = {k: v for k, v in caller_settings.items() if v is not None}
    if errors := [
        *find_spec_setting_errors(spec_settings),
        *_iterate_setting_errors(checked_settings),
    ]:
        raise SpeccError(*errors)
    values = _merge_values(spec_settings, checked_settings)
    if errors := _find_conflicts(values["strategy"], checked_settings, values):
        raise SpeccError(*errors)
    return GenerationSettings(
        **{name: _to_plain_values(name, value) for name, value in values.items()}
    )


def _iterate_setting_errors(given_settings: Mapping[str, object]) -> Iterator[Diagnostic]:
    """Yield E0731 for each unknown name, and then E0732 for each value that is out of range."""
    names = [option.name for option in GENERATION_OPTIONS]
    for name in given_settings:
        if name not in OPTIONS_BY_NAME:
            yield make_unknown_setting_error(name, names, "generation setting")
    for name, value in given_settings.items():
        if name in OPTIONS_BY_NAME and (
            error := find_setting_error(OPTIONS_BY_NAME[name], name, value)
        ):
            yield error


def _merge_values(
    spec_settings: Mapping[str, object], given_settings: Mapping[str, object]
) -> dict[str, Any]:
    """Merge the spec's and the caller's checked settings, keyed by Python name."""
    spec_strategy, strategy_options = parse_strategy_setting(
        spec_settings.get("strategy") or "greedy"
    )
    strategy = given_settings.get("strategy") or _infer_strategy(given_settings) or spec_strategy
    values: dict[str, Any] = _rename_settings(GENERAL_OPTIONS, spec_settings)
    if strategy == spec_strategy:
        values |= _rename_settings(STRATEGY_OPTIONS[str(spec_strategy)], strategy_options)
    values |= {**given_settings, "strategy": strategy}
    if strategy == "beam":
        # by default, use as many beams as requested return sequences
        values.setdefault(
            "num_beams", max(DEFAULT_NUM_BEAMS, int(values.get("num_return_sequences", 1)))
        )
    return values


def _rename_settings(
    options: Mapping[str, GenerationOption], spec_settings: Mapping[str, object]
) -> dict[str, object]:
    """Convert the setting names of a spec to Python names."""
    return {options[name].name: value for name, value in spec_settings.items() if value is not None}


def _infer_strategy(given_settings: Mapping[str, object]) -> str | None:
    """Return the strategy that the caller's options imply, or None if there is not exactly one.

    `seed` and `renormalize_logits` imply no strategy.
    """
    strategies = {
        OPTIONS_BY_NAME[name].strategies
        for name in given_settings
        if name not in ("seed", "renormalize_logits") and len(OPTIONS_BY_NAME[name].strategies) == 1
    }
    return next(iter(strategies))[0] if len(strategies) == 1 else None


def _find_conflicts(
    strategy: str, given_settings: Mapping[str, object], values: Mapping[str, Any]
) -> list[Diagnostic]:
    """Return E0733 for an option of another strategy, contradictory token limits, and more return
    sequences than beams.
    """
    conflicts = []
    for name in given_settings:
        strategies = OPTIONS_BY_NAME[name].strategies
        if strategies and strategy not in strategies:
            helps = [f'use strategy="{strategies[0]}", or remove `{name}`']
            conflicts.append(
                make_setting_conflict_error(
                    f"`{name}` has no effect with the strategy `{strategy}`", helps
                )
            )
    conflicts += _iterate_limit_conflicts(given_settings)
    if strategy == "beam" and not conflicts:
        sequence_count = int(values.get("num_return_sequences", 1))
        error = find_sequence_count_error(sequence_count, int(values["num_beams"]))
        conflicts += [error] if error else []
    return conflicts


def _iterate_limit_conflicts(settings: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Yield E0733 if the minimum number of generated tokens is larger than the maximum."""
    minimum, maximum = settings.get("min_tokens", 0), settings.get("max_tokens", math.inf)
    if minimum > maximum:
        title = f"`min_tokens` is {minimum}, but `max_tokens` is {maximum}"
        yield make_setting_conflict_error(
            title, ["increase `max_tokens`, or decrease `min_tokens`"]
        )


def _to_plain_values(name: str, value: Any) -> Any:
    """Convert the checked value of a setting to the type of its `GenerationSettings` field."""
    setting_type = _SETTING_TYPES[name]
    if name in ("start", "delay_pattern"):
        return tuple(map(int, ensure_list(value)))
    if name in ("begin", "bad_words_ids"):
        return tuple(tuple(map(int, ensure_list(item))) for item in value)
    if name in LIST_SETTINGS:
        # keep both token ids and strings, because stop tokens and stop strings may be combined
        items = (v if isinstance(v, str) else int(v) for v in ensure_list(value))
        return tuple(dict.fromkeys(items))
    if setting_type is float:
        return float(value)
    return int(value) if setting_type is int else value


_SETTING_TYPES = {
    f.name: int if f.name in INTEGER_SETTINGS else f.type for f in fields(GenerationSettings)
}
