"""Validate generation settings, and build the diagnostics of invalid settings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specc.decode.setting_names_and_limits import (
    GENERAL_OPTIONS,
    GENERATION_OPTIONS,
    OPTIONS_BY_NAME,
    STRATEGIES,
    STRATEGY_OPTIONS,
    GenerationOption,
    is_finite_number,
    is_int_in_range,
)
from specc.diagnostics.diagnostic import Diagnostic, Label, Span, SpeccError
from specc.diagnostics.suggest import find_similar_name, format_suggestion


def find_setting_error(
    option: GenerationOption, setting_name: str, value: object, span: Span | None = None
) -> Diagnostic | None:
    """Return the error E0732 if `value` is invalid for a setting, or None if it is valid."""
    if option.constraint.accepts(value):
        return None
    return Diagnostic(
        "E0732",
        f"`{setting_name}` must be {option.constraint.description}, got {_format_value(value)}",
        _make_label(span),
        helps=_suggest_alternative(option, value),
    )


def make_unknown_setting_error(
    setting_name: str, valid_names: Sequence[str], noun: str, span: Span | None = None
) -> Diagnostic:
    """Return the error E0731 for the unknown name of a setting or strategy. `valid_names` are the
    known names. `noun` describes the name, for example as a "generation setting".
    """
    # prefer the equivalent of another program's setting to a setting with a similar name
    groups = [{*o.foreign_names, o.name, o.spec_name} for o in GENERATION_OPTIONS]
    same_settings = set[str]().union(*(names for names in groups if setting_name in names)) - {
        setting_name
    }
    equivalent = next((name for name in valid_names if name in same_settings), None)
    suggestion = equivalent or find_similar_name(setting_name, valid_names)
    helps = (
        (format_suggestion(suggestion),)
        if suggestion
        else _suggest_owner(setting_name, valid_names, "strategy" in noun)
    )
    title = f"unknown {noun} `{_quote_name(setting_name)}`"
    return Diagnostic("E0731", title, _make_label(span), helps=helps)


def _suggest_owner(
    setting_name: str, valid_names: Sequence[str], is_strategy_option: bool
) -> tuple[str, ...]:
    """Return help texts that name the strategies with an option and list the valid names."""
    strategies = [strategy for strategy in STRATEGIES if _has_option(strategy, setting_name)]
    if strategies and not is_strategy_option:
        return (
            f"`{setting_name}` is an argument of a strategy: {strategies[0]}({setting_name}=…)",
        )
    helps = [f"expected one of {', '.join(valid_names)}"] if valid_names else []
    if strategies:
        helps.append(
            f"`{setting_name}` is an option of {' and '.join(f'`{o}`' for o in strategies)}"
        )
    return tuple(helps)


def _has_option(strategy: str, setting_name: str) -> bool:
    """Return True if a strategy has the option `setting_name`, as named in specs or Python."""
    return any(setting_name in (o.spec_name, o.name) for o in STRATEGY_OPTIONS[strategy].values())


def make_setting_conflict_error(
    title: str, helps: Iterable[str], span: Span | None = None
) -> Diagnostic:
    """Return the error E0733 for conflicting settings."""
    return Diagnostic("E0733", title, _make_label(span), helps=tuple(helps))


def find_sequence_count_error(
    num_return_sequences: int, num_beams: int, span: Span | None = None
) -> Diagnostic | None:
    """Return the error E0733 if more return sequences than beams are requested, otherwise None."""
    if num_return_sequences <= num_beams:
        return None
    return make_setting_conflict_error(
        f"`num_return_sequences` must be at most {num_beams} (`num_beams`), "
        f"got {num_return_sequences}",
        [f"use num_beams={num_return_sequences}, or num_return_sequences={num_beams}"],
        span,
    )


UNSUPPORTED_CODEBOOK_SETTINGS = (
    *("stop_strings", "begin", "begin_suppress_tokens", "forced_eos_token_id"),
)
"""Settings that a model with several codebooks does not support."""


def find_codebook_setting_error(
    settings: Mapping[str, Any], num_codebooks: int, spans: Mapping[str, Span | None] | None = None
) -> Diagnostic | None:
    """Return the error for settings that a model with `num_codebooks` codebooks does not support,
    or None. The error is E0732 if the delay pattern does not have one delay per codebook, and E0733
    for a setting that requires a single codebook. `num_codebooks` is 0 if the generated input has
    no codebook axis.
    """
    span_by_name = spans or {}
    delays = settings.get("delay_pattern") or ()
    if delays and len(delays) != num_codebooks:
        expected = f"{num_codebooks} delays, one per codebook" if num_codebooks else "empty"
        title = f"`delay_pattern` must be {expected}, got {len(delays)}"
        label = _make_label(span_by_name.get("delay_pattern"))
        helps = () if num_codebooks else ("the generated input of this model has no codebook axis",)
        return Diagnostic("E0732", title, label, helps=helps)
    kind, _ = parse_strategy_setting(settings.get("strategy"))
    names = [n for n in UNSUPPORTED_CODEBOOK_SETTINGS if settings.get(n) not in (None, (), [])]
    if not num_codebooks or (kind != "beam" and not names):
        return None
    name = "strategy" if kind == "beam" else names[0]
    subject = "beam search" if kind == "beam" else f"`{name}`"
    return make_setting_conflict_error(
        f"{subject} is not supported for a model with several codebooks",
        ["use the strategy greedy or sample" if kind == "beam" else f"remove `{name}`"],
        span_by_name.get(name),
    )


SUPPRESSING_SETTINGS = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids")
"""Settings that list token ids to suppress."""
TOKEN_SETTINGS = ("stop", "begin", "forced_eos_token_id", *SUPPRESSING_SETTINGS)
"""Settings that list token ids, either generated or suppressed."""


@dataclass(frozen=True, slots=True)
class VocabularySizes:
    """The vocabulary sizes of the input embedding and of the logits. None means unknown."""

    input_size: int | None = None
    output_size: int | None = None

    def find_token_id_error(
        self, setting_name: str, value: object, span: Span | None = None
    ) -> Diagnostic | None:
        """Return E0732 if `setting_name` contains a token id outside the vocabulary, or None."""
        size = self._get_vocabulary_size(setting_name)
        tokens = ensure_list(value)
        if setting_name in ("begin", "bad_words_ids"):  # items are token ids or lists of token ids
            tokens = [token for item in tokens for token in ensure_list(item)]
        invalid_tokens = [t for t in tokens if size is not None and is_int_in_range(t, size)]
        if not invalid_tokens:
            return None
        helps = (
            "use a token id of this model",
            *(
                ("or remove it: a token outside the vocabulary never stops generation",)
                * (setting_name == "stop")
            ),
        )
        limits = f"from 0 to {(size or 0) - 1}, got {invalid_tokens[0]}"
        title = f"`{setting_name}` must be a token id {limits}"
        return Diagnostic("E0732", title, _make_label(span), helps=helps)

    def check_token_id_settings(self, settings: Mapping[str, object]) -> None:
        """Raise E0732 for the first setting with a token id outside the vocabulary."""
        for setting_name, value in settings.items():
            if error := self.find_token_id_error(setting_name, value):
                raise SpeccError(error)

    def _get_vocabulary_size(self, setting_name: str) -> int | None:
        """Return the vocabulary size for a setting with token ids, or None for other settings."""
        if setting_name in ("start", "pad"):
            return self.input_size
        return self.output_size if setting_name in TOKEN_SETTINGS else None


def ensure_list(value: Any) -> Sequence[Any]:
    """Return a list unchanged, and any other value as a list with one item."""
    return value if isinstance(value, list | tuple) else (value,)


def find_spec_setting_errors(
    settings: Mapping[str, object],
    spans: Mapping[str, Span | None] | None = None,
    default_span: Span | None = None,
) -> list[Diagnostic]:
    """Return all errors in the `generate` settings of a spec, which are plain Python values.

    `spans` maps keys to source spans: `stop` to the value of the setting `stop`, and `stop name` to
    its name. The keys of a strategy option are, for example, `strategy.num_beams` and
    `strategy.num_beams name`.
    """
    span_by_name = spans or {}
    errors: list[Diagnostic | None] = []
    for setting_name, value in settings.items():
        if setting_name not in GENERAL_OPTIONS:
            span = span_by_name.get(f"{setting_name} name", default_span)
            errors.append(
                make_unknown_setting_error(
                    setting_name, list(GENERAL_OPTIONS), "setting of `generate`", span
                )
            )
        elif setting_name == "strategy":
            errors += _find_strategy_errors(value, span_by_name)
        elif value is not None:
            errors.append(
                find_setting_error(
                    GENERAL_OPTIONS[setting_name],
                    setting_name,
                    value,
                    span_by_name.get(setting_name),
                )
            )
    return [*filter(None, errors)]


def _find_strategy_errors(
    setting: object, spans: Mapping[str, Span | None]
) -> list[Diagnostic | None]:
    if setting is None:
        return []
    kind, options = parse_strategy_setting(setting)
    if kind not in STRATEGIES:
        span = spans.get("strategy name", spans.get("strategy"))
        if not isinstance(kind, str):
            return [find_setting_error(OPTIONS_BY_NAME["strategy"], "strategy", kind, span)]
        return [make_unknown_setting_error(kind, STRATEGIES, "strategy", span)]
    errors = [
        _find_option_error(kind, setting_name, value, spans)
        for setting_name, value in options.items()
    ]
    sequence_count, beam_count = options.get("num_return_sequences"), options.get("num_beams")
    # `sequence_count` and `beam_count` are integers if there are no earlier errors
    if (
        kind == "beam"
        and not any(errors)
        and is_int_in_range(sequence_count, 1)
        and is_int_in_range(beam_count, 1)
    ):
        span = spans.get("strategy.num_return_sequences")
        errors.append(find_sequence_count_error(int(sequence_count), int(beam_count), span))
    return errors


def _find_option_error(
    kind: str, setting_name: str, value: object, spans: Mapping[str, Span | None]
) -> Diagnostic | None:
    """Return the error for an invalid option of the strategy `kind`, or None if it is valid."""
    options, span = STRATEGY_OPTIONS[kind], spans.get(f"strategy.{setting_name}")
    if setting_name == "args":  # a positional option, as in `beam(4)`
        example = ", ".join(f"{name}=…" for name in list(options)[:2])
        title = f"options of the strategy `{kind}` must be passed by name"
        helps = (f"write {kind}({example})",)
        return Diagnostic("E0731", title, _make_label(spans.get("strategy")), helps=helps)
    if setting_name not in options:
        noun = f"option of the strategy `{kind}`"
        return make_unknown_setting_error(
            setting_name, list(options), noun, spans.get(f"strategy.{setting_name} name", span)
        )
    if value is None:
        return None
    return find_setting_error(options[setting_name], setting_name, value, span)


def parse_strategy_setting(setting: object) -> tuple[object, Mapping[str, object]]:
    """Return the name and options of a strategy, which is a name or a dict with the key `kind`."""
    if isinstance(setting, Mapping):
        return setting.get("kind"), {str(k): v for k, v in setting.items() if k != "kind"}
    return setting, {}


def _suggest_alternative(option: GenerationOption, value: object) -> tuple[str, ...]:
    """Return help texts if an invalid number was probably meant to disable the setting, or ()."""
    advice = {
        "temperature": "use the strategy `greedy` to choose the most probable token",
        "top_p": "remove `top_p`, or use 1, to keep all tokens",
        "repetition_penalty": "use 1 to disable it, or more than 1 to penalize repetitions",
    }
    return (advice[option.name],) if option.name in advice and is_finite_number(value) else ()


def _format_value(value: object) -> str:
    """Format a setting value in the syntax of a spec."""
    if isinstance(value, str):
        return _quote_name(f'"{value}"')
    return _quote_name(str(value).lower() if isinstance(value, bool) else str(value))


def _quote_name(text: str) -> str:
    """Truncate a name and escape its control characters, for use in a message."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _make_label(span: Span | None) -> Label | None:
    return Label(span) if span else None
