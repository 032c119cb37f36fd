"""Generate numbers from 0 to 999 999 as digits and as English and German words: training and
validation pairs.

All pairs are generated from the rules of the languages. Source words are written in all usual
styles, but target words in only one style, so that each source has exactly one correct target.
Validation numbers do not occur in training pairs in any language or direction; numbers below 100
are never in the validation set.

    three hundred and five  ->  305            en 305  ->  three hundred and five
    dreihundertfünf         ->  305            de 305  ->  dreihundertfünf

    python docs/demos/numbers/data.py        # prints a few pairs
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

LIMIT = 1_000_000
ALWAYS_SEEN = 100  # every number below is in the training set
HELD_OUT = 20  # every n-th number belongs to the validation set
LENGTHS = range(1, 7)  # numbers of digits
OFTEN = (1, 1, 2, 2, 2, 2)  # sampling weight of each length
FEW_KINDS = 0.2  # fraction of numbers with repeated digits, which are the hardest
EVALUATION_SEED = 2017

ENGLISH = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
ENGLISH_TENS = [
    "",
    "",
    "twenty",
    "thirty",
    "forty",
    "fifty",
    "sixty",
    "seventy",
    "eighty",
    "ninety",
]
GERMAN = [
    "null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun",
    "zehn", "elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
]  # fmt: skip
GERMAN_TENS = [
    "",
    "",
    "zwanzig",
    "dreißig",
    "vierzig",
    "fünfzig",
    "sechzig",
    "siebzig",
    "achtzig",
    "neunzig",
]


@dataclass(frozen=True)
class EnglishStyle:
    """A style of English number words. The defaults are the style of targets (prefix `en`)."""

    tie: str = " and "  # between hundreds, or thousands alone, and a remainder below 100
    hyphen: str = "-"  # between tens and units, as in twenty-one
    one: str = "one "  # before hundred and thousand at the beginning of a number


@dataclass(frozen=True)
class GermanStyle:
    """A style of German number words. The defaults are the style of targets (prefix `de`)."""

    one: str = "ein"  # before hundert and tausend at the beginning of a number
    tie: str = ""  # between hundert or tausend and a remainder of at most zwölf
    plain: bool = False  # True: ue, oe, ss instead of ü, ö, ß


def spell_english(n: int, style: EnglishStyle = EnglishStyle()) -> str:
    """Spell a number below one million in English, as in `three hundred and five`."""
    thousands, rest = divmod(n, 1000)
    if not thousands:
        return _spell_english_below_1000(rest, style, style.one)
    front = (
        style.one + "thousand"
        if thousands == 1
        else _spell_english_below_1000(thousands, style, style.one) + " thousand"
    )
    if not rest:
        return front
    return (
        front + (style.tie if rest < 100 else " ") + _spell_english_below_1000(rest, style, "one ")
    )


def _spell_english_below_1000(n: int, style: EnglishStyle, one: str) -> str:
    """Spell a number below one thousand in English; `one` is the text before a single hundred."""
    hundreds, rest = divmod(n, 100)
    if not hundreds:
        return _spell_english_below_100(rest, style)
    front = (one if hundreds == 1 else ENGLISH[hundreds] + " ") + "hundred"
    return front + style.tie + _spell_english_below_100(rest, style) if rest else front


def _spell_english_below_100(n: int, style: EnglishStyle) -> str:
    tens, unit = divmod(n, 10)
    if n < 20:
        return ENGLISH[n]
    return ENGLISH_TENS[tens] + (style.hyphen + ENGLISH[unit] if unit else "")


def spell_german(n: int, style: GermanStyle = GermanStyle()) -> str:
    """Spell a number below one million in German as one word, as in `dreihundertfünf`."""
    thousands, rest = divmod(n, 1000)
    if not thousands:
        words = _spell_german_below_1000(rest, style, style.one)
    elif thousands == 1:
        words = style.one + "tausend" + _spell_german_after_thousand(rest, style)
    else:
        words = (
            _remove_final_s(_spell_german_below_1000(thousands, GermanStyle(), style.one))
            + "tausend"
            + _spell_german_after_thousand(rest, style)
        )
    return words.replace("ü", "ue").replace("ö", "oe").replace("ß", "ss") if style.plain else words


def _spell_german_after_thousand(n: int, style: GermanStyle) -> str:
    """Spell the last three digits of a German number after `tausend`."""
    tie = style.tie if n <= 12 else ""
    return tie + _spell_german_below_1000(n, style, "ein") if n else ""


def _spell_german_below_1000(n: int, style: GermanStyle, one: str) -> str:
    """Spell a number below one thousand in German; `one` is the text before a single hundred."""
    hundreds, rest = divmod(n, 100)
    if not hundreds:
        return _spell_german_below_100(rest)
    front = (one if hundreds == 1 else GERMAN[hundreds]) + "hundert"
    return (
        front + (style.tie if rest <= 12 else "") + _spell_german_below_100(rest) if rest else front
    )


def _spell_german_below_100(n: int) -> str:
    """Spell a number below one hundred in German, where the units precede the tens."""
    tens, unit = divmod(n, 10)
    if n < 20:
        return GERMAN[n]
    return (_remove_final_s(GERMAN[unit]) + "und" if unit else "") + GERMAN_TENS[tens]


def _remove_final_s(words: str) -> str:
    """Return German words in the form before other words: `eins` becomes `ein` in einundzwanzig."""
    return words.removesuffix("s") if words.endswith("eins") else words


ENGLISH_STYLES = [
    EnglishStyle(tie=tie, hyphen=hyphen, one=one)
    for tie in (" and ", " ")
    for hyphen in "- "
    for one in ("one ", "a ")
]
GERMAN_STYLES = [
    GermanStyle(one=one, tie=tie, plain=plain)
    for plain in (False, True)
    for tie in ("", "und")
    for one in ("ein", "")
]
# fraction of source words in the style of target words; the others have a random style
CANONICAL_SHARE = 0.4

PairMaker = Callable[[int, random.Random], tuple[str, str]]


def make_english_to_digits_pair(n: int, rng: random.Random) -> tuple[str, str]:
    """Return English number words as the source, and the digits as the target."""
    return spell_english(
        n, ENGLISH_STYLES[0] if rng.random() < CANONICAL_SHARE else rng.choice(ENGLISH_STYLES)
    ), str(n)


def make_german_to_digits_pair(n: int, rng: random.Random) -> tuple[str, str]:
    """Return German number words as the source, and the digits as the target."""
    return spell_german(
        n, GERMAN_STYLES[0] if rng.random() < CANONICAL_SHARE else rng.choice(GERMAN_STYLES)
    ), str(n)


def make_digits_to_english_pair(n: int, rng: random.Random) -> tuple[str, str]:
    """Return digits with the prefix for English as the source, and English words as the target."""
    return f"en {n}", spell_english(n)


def make_digits_to_german_pair(n: int, rng: random.Random) -> tuple[str, str]:
    """Return digits with the prefix for German as the source, and German words as the target."""
    return f"de {n}", spell_german(n)


WORDS_TO_DIGITS: tuple[PairMaker, ...] = (make_english_to_digits_pair, make_german_to_digits_pair)
DIGITS_TO_WORDS: tuple[PairMaker, ...] = (make_digits_to_english_pair, make_digits_to_german_pair)
DIRECTIONS = {
    "English to digits": make_english_to_digits_pair,
    "German to digits": make_german_to_digits_pair,
    "digits to English": make_digits_to_english_pair,
    "digits to German": make_digits_to_german_pair,
}


def is_validation_number(n: int) -> bool:
    """Return True if a number belongs to the validation set."""
    if n < ALWAYS_SEEN:
        return False
    return int.from_bytes(sha256(str(n).encode()).digest()[:8], "big") % HELD_OUT == 0


def sample_number(rng: random.Random) -> int:
    """Sample a number: first the number of digits, then the digits. A fraction of the numbers has
    only two distinct digits, e.g. 101 101.
    """
    (length,) = rng.choices(LENGTHS, OFTEN)
    if length == 1 or rng.random() >= FEW_KINDS:
        return rng.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)
    first = rng.randrange(1, 10)
    other = rng.choice((0, rng.randrange(10)))
    return int(str(first) + "".join(str(rng.choice((first, other))) for _ in range(length - 1)))


def make_training_pairs(
    directions: tuple[PairMaker, ...], count: int, rng: random.Random
) -> list[tuple[str, str]]:
    """Return `count` training pairs (source, target) that alternate between directions."""
    pairs = []
    while len(pairs) < count:
        n = sample_number(rng)
        if not is_validation_number(n):
            pairs.append(directions[len(pairs) % len(directions)](n, rng))
    return pairs


def make_validation_pairs(direction: PairMaker, count: int) -> list[tuple[str, str]]:
    """Return `count` distinct validation pairs (source, target), sampled with a fixed seed."""
    rng = random.Random(EVALUATION_SEED)
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        n = sample_number(rng)
        if is_validation_number(n):
            given, wanted = direction(n, rng)
            pairs[given] = wanted
    return list(pairs.items())


def list_characters() -> list[str]:
    """Return every character of sources and targets, in sorted order."""
    texts = [
        "en 0123456789",
        "de",
        *ENGLISH,
        *ENGLISH_TENS,
        *GERMAN,
        *GERMAN_TENS,
        "hundred thousand and a -",
    ]
    return sorted({c for text in [*texts, "hundert tausend und ein ue oe ss"] for c in text})


if __name__ == "__main__":
    for name, direction in DIRECTIONS.items():
        print(name)
        for given, wanted in make_validation_pairs(direction, 8):
            print(f"  {given}  ->  {wanted}")
