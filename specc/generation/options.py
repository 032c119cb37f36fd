"""What can be said about generation, in a spec and by a caller: names, ranges, and the complaints about others.

One table serves both: a spec's `strategy = beam(width=4)` is checked at its line while the spec is checked, and the
same values are checked again where a caller's are, because a manifest may come from anywhere. Knows no arrays.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Any

from specc.text.diagnostic import Diagnostic, Label
from specc.text.source import Span
from specc.text.suggest import did_you_mean

STRATEGIES = ("greedy", "sample", "beam")
LEAST = 1e-6
"""The smallest temperature and penalty: dividing logits by less leaves the range of a float32."""
MOST = 1e6
"""The greatest: more changes nothing, until a float32 cannot hold it."""
WIDEST = 1024
"""The most beams of a search: each step ranks this many vocabularies at once, and keeps so many texts in memory."""
STEEPEST = 20
"""The greatest length penalty: with it no power of a length leaves the range of a float64."""
STOPS = 1024
"""The most tokens that end a text: each widens a search over beams by as many candidates as there are beams."""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: `name` in Python, `word` in a spec ("" where a spec cannot say it).

    `strategies` are those it belongs to; none: it stands beside the strategy and goes with all. `foreign` are names
    that other programs have for it, for the guess at what was meant.
    """

    name: str
    word: str
    strategies: tuple[str, ...]
    range: str
    takes: Callable[[Any], bool]
    foreign: tuple[str, ...] = ()


def whole(value: Any, least: int, most: float = 2**53) -> bool:
    """Whether this is an integer in the range; truth values are none."""
    return not isinstance(value, bool) and isinstance(value, Integral) and least <= int(value) <= most


def number(value: Any) -> bool:
    """Whether this is a finite number; truth values are none."""
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and isfinite(float(value))
    except OverflowError:  # a whole number beyond all floats
        return False


def _texts(value: Any) -> bool:
    return _text(value) or (isinstance(value, list | tuple) and all(_text(v) for v in value))


def _text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _strategy(value: Any) -> bool:
    return isinstance(value, str) and value in STRATEGIES


def _tokens(value: Any) -> bool:
    return whole(value, 0) or (
        isinstance(value, list | tuple) and len(value) <= STOPS and all(whole(v, 0) for v in value)
    )


_SAMPLE, _BEAM = ("sample",), ("beam",)
OPTIONS: tuple[Option, ...] = (
    Option("start", "start", (), "a token's number, 0 or more", lambda v: whole(v, 0),
           ("bos", "bos_token_id", "decoder_start_token_id")),
    Option("stop", "stop", (), f"a token's number, 0 or more, or a list of at most {STOPS}", _tokens,
           ("eos", "eos_token_id", "stop_token", "stop_tokens")),
    Option("pad", "pad", (), "a token's number, 0 or more", lambda v: whole(v, 0), ("pad_token_id",)),
    Option("stop_strings", "stop_strings", (), "a text that is not empty, or a list of them", _texts,
           ("stop_string", "stop_words", "until")),
    Option("max_tokens", "max_tokens", (), "a whole number from 1 to 2**53", lambda v: whole(v, 1),
           ("max", "max_new_tokens", "max_length")),
    Option("strategy", "strategy", (), "greedy, sample or beam", _strategy, ("do_sample", "mode")),
    Option("seed", "", _SAMPLE, "a whole number from 0 to 2**64 - 1", lambda v: whole(v, 0, 2**64 - 1),
           ("random_seed",)),
    Option("log_probabilities", "", (), "True or False", lambda v: isinstance(v, bool),
           ("logprobs", "log_probs", "output_scores")),
    Option("temperature", "temperature", _SAMPLE, f"a number from {LEAST:g} to {MOST:g}",
           lambda v: number(v) and LEAST <= v <= MOST, ("temp",)),
    Option("top_k", "top_k", _SAMPLE, "a whole number from 1 to 2**53, or 0 for all tokens",
           lambda v: whole(v, 0), ("k",)),
    Option("top_p", "top_p", _SAMPLE, "a number above 0 and at most 1", lambda v: number(v) and 0 < v <= 1,
           ("p", "nucleus")),
    Option("min_p", "min_p", _SAMPLE, "a number from 0 to 1", lambda v: number(v) and 0 <= v <= 1),
    Option("beams", "width", _BEAM, f"a whole number from 1 to {WIDEST}", lambda v: whole(v, 1, WIDEST),
           ("num_beams", "beam_width", "beam_size", "width")),
    Option("length_penalty", "length_penalty", _BEAM, f"a number from -{STEEPEST} to {STEEPEST}",
           lambda v: number(v) and -STEEPEST <= v <= STEEPEST, ("alpha",)),
    Option("early_stopping", "early_stopping", _BEAM, 'true, false or "never"',
           lambda v: isinstance(v, bool) or (isinstance(v, str) and v == "never"), ("early_stop",)),
    Option("n_best", "n_best", _BEAM, f"a whole number from 1 to {WIDEST}", lambda v: whole(v, 1, WIDEST),
           ("num_return_sequences", "nbest")),
    Option("repetition_penalty", "repetition_penalty", STRATEGIES, f"a number from {LEAST:g} to {MOST:g}",
           lambda v: number(v) and LEAST <= v <= MOST, ("repeat_penalty", "penalty")),
)  # fmt: skip
NAMED: Mapping[str, Option] = {o.name: o for o in OPTIONS}
BESIDE: Mapping[str, Option] = {o.word: o for o in OPTIONS if o.word and not o.strategies}
"""What a spec says beside the strategy, by its word."""
INSIDE: Mapping[str, Mapping[str, Option]] = {
    s: {o.word: o for o in OPTIONS if o.word and s in o.strategies} for s in STRATEGIES
}
"""What a spec says inside each strategy's parentheses, by its word."""


def refused(option: Option, word: str, value: object, span: Span | None = None) -> Diagnostic | None:
    """E0732 where a value is out of its range."""
    if option.takes(value):
        return None
    return Diagnostic(
        "E0732",
        f"`{word}` cannot be {_said(value)}: it is {option.range}",
        _label(span),
        helps=_instead(option, value),
    )


def unknown(word: str, known: Sequence[str], what: str, span: Span | None = None) -> Diagnostic:
    """E0731: a name that generation does not have; `what` says of what it should be a name, and reads on from "no"."""
    meant = next((k for k in known if word in _foreign(k)), None) or did_you_mean(word, known)
    owners = [s for s, words in INSIDE.items() if word in words or word in {o.name for o in words.values()}]
    helps = [f"did you mean `{meant}`?"] if meant else [f"there are {', '.join(known)}"] if known else []
    if not meant and owners and "strategy" not in what:
        helps = [f"`{word}` is said inside the strategy: {owners[0]}({word}=…)"]
    elif not meant and owners:
        helps.append(f"`{word}` belongs to {' and '.join(f'`{o}`' for o in owners)}")
    return Diagnostic("E0731", f"there is no {what} `{_shown(word)}`", _label(span), helps=tuple(helps))


def clashing(title: str, helps: Iterable[str], span: Span | None = None) -> Diagnostic:
    """E0733: two settings that do not go together."""
    return Diagnostic("E0733", title, _label(span), helps=tuple(helps))


def too_many(best: int, beams: int, spec: bool, span: Span | None = None) -> Diagnostic | None:
    """E0733 where more texts are asked for than beams are kept."""
    if best <= beams:
        return None
    word = "width" if spec else "beams"
    return clashing(
        f"{best} texts are asked for, and the search keeps {beams}",
        [f"`n_best` is at most `{word}`: say {word}={best}, or n_best={beams}"],
        span,
    )


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How many tokens there are: those that the growing input takes, and those that are drawn; None if unknown."""

    taken: int | None = None
    drawn: int | None = None

    def beyond(self, word: str, value: Any, span: Span | None = None) -> Diagnostic | None:
        """E0732 where the setting `word` names a token that the model does not have."""
        most = {"start": self.taken, "pad": self.taken, "stop": self.drawn}.get(word)
        tokens = value if isinstance(value, list | tuple) else (value,)
        wrong = [t for t in tokens if most is not None and whole(t, most)]
        if not wrong:
            return None
        helps = ("name a token of this model", *(("leave it out: it would end no text",) * (word == "stop")))
        title = f"`{word}` is {wrong[0]}, and the model's tokens are 0 to {(most or 0) - 1}"
        return Diagnostic("E0732", title, _label(span), helps=helps)


def spec_faults(
    settings: Mapping[str, Any],
    spans: Mapping[str, Span | None] | None = None,
    whole_text: Span | None = None,
) -> list[Diagnostic]:
    """Every fault in what a spec's `generate` says, as plain data.

    `spans` tells where things stand: the setting `stop` under "stop", its name under "stop name", and what stands in
    the strategy's parentheses under "strategy.width" and "strategy.width name".
    """
    at = spans or {}
    found: list[Diagnostic | None] = []
    for word, value in settings.items():
        if word not in BESIDE:
            span = at.get(f"{word} name", whole_text)
            found.append(unknown(word, list(BESIDE), "setting of `generate` called", span))
        elif word == "strategy":
            found += _strategy_faults(value, at)
        elif value is not None:
            found.append(refused(BESIDE[word], word, value, at.get(word)))
    return [d for d in found if d is not None]


def _strategy_faults(said: Any, at: Mapping[str, Span | None]) -> list[Diagnostic | None]:
    if said is None:
        return []
    kind, inside = strategy_of(said)
    if kind not in STRATEGIES:
        span = at.get("strategy name", at.get("strategy"))
        if not isinstance(kind, str):
            return [refused(NAMED["strategy"], "strategy", kind, span)]
        return [unknown(kind, STRATEGIES, "strategy", span)]
    known, found = INSIDE[kind], list[Diagnostic | None]()
    if "args" in inside:
        example = ", ".join(f"{word}=…" for word in list(known)[:2])
        title, helps = f"the options of the strategy `{kind}` have names", (f"write {kind}({example})",)
        found.append(Diagnostic("E0731", title, _label(at.get("strategy")), helps=helps))
    for word, value in inside.items():
        span = at.get(f"strategy.{word}")
        if word == "args":
            continue
        if word not in known:
            name = at.get(f"strategy.{word} name", span)
            found.append(unknown(word, list(known), f"option of the strategy `{kind}` called", name))
        elif value is not None:
            found.append(refused(known[word], word, value, span))
    if kind == "beam" and not any(found):
        best, width = (inside.get(w) for w in ("n_best", "width"))
        if best is not None and width is not None:
            found.append(too_many(int(best), int(width), True, at.get("strategy.n_best")))
    return found


def strategy_of(said: Any) -> tuple[Any, Mapping[str, Any]]:
    """The strategy's name and what stands in its parentheses, of `"greedy"` or `{"kind": "beam", "width": 4}`."""
    if isinstance(said, Mapping):
        return said.get("kind"), {str(k): v for k, v in said.items() if k != "kind"}
    return said, {}


def _foreign(word: str) -> tuple[str, ...]:
    return tuple(
        name for o in OPTIONS if word in (o.name, o.word) for name in (*o.foreign, o.name, o.word) if name != word
    )


def _instead(option: Option, value: object) -> tuple[str, ...]:
    """What to do where a value of this kind was probably meant to switch something off."""
    off = {"temperature": "`strategy` greedy takes the most probable token, as a temperature near 0 would",
           "top_p": "leave `top_p` out, or say 1, to keep all tokens",
           "repetition_penalty": "1 changes nothing; more than 1 makes repetitions rarer"}  # fmt: skip
    return (off[option.name],) if option.name in off and number(value) else ()


def _said(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return _shown(text)


def _shown(text: str) -> str:
    """A word as it can stand in a message: no control characters, not too long."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _label(span: Span | None) -> Label | None:
    return Label(span) if span else None
