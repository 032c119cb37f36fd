"""Generate numbers from 0 to 999 999 as digits and as English and German words: training and
validation pairs.

All pairs are generated from the rules of the languages. Source words have every usual style, but
target words have one style, so that each source has exactly one correct target. A validation number
is in no training pair, in any language or direction; numbers below 100 are never in the validation
set.

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
FEW_KINDS = 0.2  # share of numbers with repeated digits, which are the hardest
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
class English:
    """A style of English number words. The defaults are the style of targets (prefix `en`)."""

    tie: str = " and "  # between hundreds, or thousands alone, and a remainder below 100
    hyphen: str = "-"  # between tens and units, as in twenty-one
    one: str = "one "  # before hundred and thousand at the beginning of a number


@dataclass(frozen=True)
class German:
    """A style of German number words. The defaults are the style of targets (prefix `de`)."""

    one: str = "ein"  # before hundert and tausend at the beginning of a number
    tie: str = ""  # between hundert or tausend and a remainder of at most zwölf
    plain: bool = False  # True: ue, oe, ss instead of ü, ö, ß


def english(n: int, form: English = English()) -> str:
    """Spell a number below one million in English, as in `three hundred and five`."""
    thousands, rest = divmod(n, 1000)
    if not thousands:
        return _english_below(rest, form, form.one)
    front = (
        form.one + "thousand"
        if thousands == 1
        else _english_below(thousands, form, form.one) + " thousand"
    )
    if not rest:
        return front
    return front + (form.tie if rest < 100 else " ") + _english_below(rest, form, "one ")


def _english_below(n: int, form: English, one: str) -> str:
    """Spell a number below one thousand in English; `one` is the text before a single hundred."""
    hundreds, rest = divmod(n, 100)
    if not hundreds:
        return _english_small(rest, form)
    front = (one if hundreds == 1 else ENGLISH[hundreds] + " ") + "hundred"
    return front + form.tie + _english_small(rest, form) if rest else front


def _english_small(n: int, form: English) -> str:
    tens, unit = divmod(n, 10)
    if n < 20:
        return ENGLISH[n]
    return ENGLISH_TENS[tens] + (form.hyphen + ENGLISH[unit] if unit else "")


def german(n: int, form: German = German()) -> str:
    """Spell a number below one million in German as one word, as in `dreihundertfünf`."""
    thousands, rest = divmod(n, 1000)
    if not thousands:
        words = _german_below(rest, form, form.one)
    elif thousands == 1:
        words = form.one + "tausend" + _german_rest(rest, form)
    else:
        words = (
            _german_joined(_german_below(thousands, German(), form.one))
            + "tausend"
            + _german_rest(rest, form)
        )
    return words.replace("ü", "ue").replace("ö", "oe").replace("ß", "ss") if form.plain else words


def _german_rest(n: int, form: German) -> str:
    """Spell the last three digits of a German number after `tausend`."""
    tie = form.tie if n <= 12 else ""
    return tie + _german_below(n, form, "ein") if n else ""


def _german_below(n: int, form: German, one: str) -> str:
    """Spell a number below one thousand in German; `one` is the text before a single hundred."""
    hundreds, rest = divmod(n, 100)
    if not hundreds:
        return _german_small(rest)
    front = (one if hundreds == 1 else GERMAN[hundreds]) + "hundert"
    return front + (form.tie if rest <= 12 else "") + _german_small(rest) if rest else front


def _german_small(n: int) -> str:
    """Spell a number below one hundred in German, where the units precede the tens."""
    tens, unit = divmod(n, 10)
    if n < 20:
        return GERMAN[n]
    return (_german_joined(GERMAN[unit]) + "und" if unit else "") + GERMAN_TENS[tens]


def _german_joined(words: str) -> str:
    """Return German words in the form before other words: `eins` becomes `ein` in einundzwanzig."""
    return words.removesuffix("s") if words.endswith("eins") else words


ENGLISH_FORMS = [
    English(tie=tie, hyphen=hyphen, one=one)
    for tie in (" and ", " ")
    for hyphen in "- "
    for one in ("one ", "a ")
]
GERMAN_FORMS = [
    German(one=one, tie=tie, plain=plain)
    for plain in (False, True)
    for tie in ("", "und")
    for one in ("ein", "")
]
# share of source words in the style of target words; other source words have a random style
CANONICAL_SHARE = 0.4

Words = Callable[[int, random.Random], tuple[str, str]]


def read_english(n: int, rng: random.Random) -> tuple[str, str]:
    """Return English number words as the source, and the digits as the target."""
    return english(
        n, ENGLISH_FORMS[0] if rng.random() < CANONICAL_SHARE else rng.choice(ENGLISH_FORMS)
    ), str(n)


def read_german(n: int, rng: random.Random) -> tuple[str, str]:
    """Return German number words as the source, and the digits as the target."""
    return german(
        n, GERMAN_FORMS[0] if rng.random() < CANONICAL_SHARE else rng.choice(GERMAN_FORMS)
    ), str(n)


def write_english(n: int, rng: random.Random) -> tuple[str, str]:
    """Return digits with the prefix for English as the source, and English words as the target."""
    return f"en {n}", english(n)


def write_german(n: int, rng: random.Random) -> tuple[str, str]:
    """Return digits with the prefix for German as the source, and German words as the target."""
    return f"de {n}", german(n)


READING: tuple[Words, ...] = (read_english, read_german)
WRITING: tuple[Words, ...] = (write_english, write_german)
DIRECTIONS = {
    "English to digits": read_english,
    "German to digits": read_german,
    "digits to English": write_english,
    "digits to German": write_german,
}


def held_out(n: int) -> bool:
    """Return True if a number belongs to the validation set."""
    if n < ALWAYS_SEEN:
        return False
    return int.from_bytes(sha256(str(n).encode()).digest()[:8], "big") % HELD_OUT == 0


def drawn(rng: random.Random) -> int:
    """Sample a number: first the number of digits, then the digits. A share of the numbers has only
    two distinct digits, e.g. 101 101.
    """
    (length,) = rng.choices(LENGTHS, OFTEN)
    if length == 1 or rng.random() >= FEW_KINDS:
        return rng.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)
    first = rng.randrange(1, 10)
    other = rng.choice((0, rng.randrange(10)))
    return int(str(first) + "".join(str(rng.choice((first, other))) for _ in range(length - 1)))


def training(
    directions: tuple[Words, ...], count: int, rng: random.Random
) -> list[tuple[str, str]]:
    """Return `count` training pairs (source, target) that alternate between directions."""
    pairs = []
    while len(pairs) < count:
        n = drawn(rng)
        if not held_out(n):
            pairs.append(directions[len(pairs) % len(directions)](n, rng))
    return pairs


def evaluation(direction: Words, count: int) -> list[tuple[str, str]]:
    """Return `count` distinct validation pairs (source, target), sampled with a fixed seed."""
    rng = random.Random(EVALUATION_SEED)
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        n = drawn(rng)
        if held_out(n):
            given, wanted = direction(n, rng)
            pairs[given] = wanted
    return list(pairs.items())


def characters() -> list[str]:
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
        for given, wanted in evaluation(direction, 8):
            print(f"  {given}  ->  {wanted}")
