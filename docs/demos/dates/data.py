"""Generate training and validation pairs of dates: text in English, French or German, and the date
in ISO 8601.

All pairs are generated from the calendar. A format is used only for dates for which it is
unambiguous: `25/12/79` may occur, but `03/05/79` does not, because its day and month can be
confused. Two-digit years stand for 1930 to 2029. Validation days do not occur in training pairs in
any format.

    python docs/demos/dates/data.py        # prints a few pairs
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache

FIRST, LAST = date(1800, 1, 1), date(2099, 12, 31)
RECENT = range(1930, 2030)  # the years that a two-digit year can denote
HELD_OUT_DAYS = 4000
SEED = 20141

Formatter = Callable[["Day"], str]
Predicate = Callable[["Day"], bool]

ENGLISH = [
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
]  # fmt: skip
ENGLISH_SHORT = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
ENGLISH_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
FRENCH = [
    "janvier", "février", "mars", "avril", "mai", "juin",
    "juillet", "août", "septembre", "octobre", "novembre", "décembre",
]  # fmt: skip
FRENCH_SHORT = [
    "janv.",
    "févr.",
    "mars",
    "avr.",
    "mai",
    "juin",
    "juil.",
    "août",
    "sept.",
    "oct.",
    "nov.",
    "déc.",
]
FRENCH_DAYS = ["lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche"]
GERMAN = [
    "Januar", "Februar", "März", "April", "Mai", "Juni",
    "Juli", "August", "September", "Oktober", "November", "Dezember",
]  # fmt: skip
GERMAN_SHORT = [
    "Jan.",
    "Feb.",
    "März",
    "Apr.",
    "Mai",
    "Juni",
    "Juli",
    "Aug.",
    "Sept.",
    "Okt.",
    "Nov.",
    "Dez.",
]
GERMAN_DAYS = ["Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag"]


@dataclass(frozen=True)
class Day:
    """A date. The attribute names are the placeholders of the formats."""

    date: date

    @property
    def y(self) -> int:
        """Return the year with four digits."""
        return self.date.year

    @property
    def yy(self) -> str:
        """Return the last two digits of the year."""
        return f"{self.date.year % 100:02d}"

    @property
    def m(self) -> int:
        """Return the month, 1 to 12."""
        return self.date.month

    @property
    def d(self) -> int:
        """Return the day of the month, 1 to 31."""
        return self.date.day

    @property
    def th(self) -> str:
        """Return the English ordinal of the day: 1st, 2nd, 3rd, 4th."""
        ending = (
            "th" if self.d in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(self.d % 10, "th")
        )
        return f"{self.d}{ending}"

    @property
    def er(self) -> str:
        """Return the French form of the day, such as `1er` for the first day of a month."""
        return "1er" if self.d == 1 else str(self.d)

    def get_month_name(self, names: Sequence[str]) -> str:
        """Return the name of the month from a list of month names."""
        return names[self.m - 1]

    def get_weekday_name(self, names: Sequence[str]) -> str:
        """Return the name of the weekday from a list of weekday names."""
        return names[self.date.weekday()]


def is_unambiguous(_: Day) -> bool:
    """Return True, because the format is unambiguous for every date."""
    return True


def has_unambiguous_year(day: Day) -> bool:
    """Return True if the last two digits determine the year."""
    return day.y in RECENT


def has_unambiguous_day(day: Day) -> bool:
    """Return True if day and month cannot be confused in a numeric format."""
    return day.d > 12 or day.d == day.m


def has_unambiguous_day_and_year(day: Day) -> bool:
    """Return True if neither the month nor the two-digit year can be confused with the day."""
    return has_unambiguous_year(day) and day.d > 12 and int(day.yy) > 31


ANY: list[tuple[Predicate, Formatter]] = [
    (is_unambiguous, lambda t: f"{t.y}-{t.m:02d}-{t.d:02d}"),
    (is_unambiguous, lambda t: f"{t.y}/{t.m:02d}/{t.d:02d}"),
    (has_unambiguous_day, lambda t: f"{t.d}/{t.m}/{t.y}"),
    (has_unambiguous_day, lambda t: f"{t.d:02d}/{t.m:02d}/{t.y}"),
    (has_unambiguous_day, lambda t: f"{t.m:02d}/{t.d:02d}/{t.y}"),
    (has_unambiguous_day_and_year, lambda t: f"{t.d:02d}/{t.m:02d}/{t.yy}"),
    (has_unambiguous_day_and_year, lambda t: f"{t.m}/{t.d}/{t.yy}"),
]
IN_ENGLISH: list[tuple[Predicate, Formatter]] = [
    (is_unambiguous, lambda t: f"{t.d} {t.get_month_name(ENGLISH)} {t.y}"),
    (is_unambiguous, lambda t: f"{t.get_month_name(ENGLISH)} {t.d}, {t.y}"),
    (is_unambiguous, lambda t: f"{t.get_month_name(ENGLISH)} {t.th}, {t.y}"),
    (is_unambiguous, lambda t: f"{t.get_month_name(ENGLISH)} {t.th} {t.y}"),
    (is_unambiguous, lambda t: f"the {t.th} of {t.get_month_name(ENGLISH)}, {t.y}"),
    (is_unambiguous, lambda t: f"{t.th} {t.get_month_name(ENGLISH)} {t.y}"),
    (is_unambiguous, lambda t: f"{t.d} {t.get_month_name(ENGLISH_SHORT)} {t.y}"),
    (is_unambiguous, lambda t: f"{t.get_month_name(ENGLISH_SHORT)}. {t.d}, {t.y}"),
    (is_unambiguous, lambda t: f"{t.d:02d}-{t.get_month_name(ENGLISH_SHORT)}-{t.y}"),
    (
        is_unambiguous,
        lambda t: f"{t.get_weekday_name(ENGLISH_DAYS)}, {t.get_month_name(ENGLISH)} {t.d}, {t.y}",
    ),
    (
        is_unambiguous,
        lambda t: (
            f"{t.get_weekday_name(ENGLISH_DAYS)[:3]}, {t.d} {t.get_month_name(ENGLISH_SHORT)} {t.y}"
        ),
    ),
    (has_unambiguous_year, lambda t: f"{t.d} {t.get_month_name(ENGLISH)} '{t.yy}"),
    (has_unambiguous_year, lambda t: f"{t.get_month_name(ENGLISH_SHORT)} {t.d}, '{t.yy}"),
]
IN_FRENCH: list[tuple[Predicate, Formatter]] = [
    (is_unambiguous, lambda t: f"{t.er} {t.get_month_name(FRENCH)} {t.y}"),
    (is_unambiguous, lambda t: f"{t.d} {t.get_month_name(FRENCH)} {t.y}"),
    (is_unambiguous, lambda t: f"le {t.er} {t.get_month_name(FRENCH)} {t.y}"),
    (
        is_unambiguous,
        lambda t: f"{t.get_weekday_name(FRENCH_DAYS)} {t.er} {t.get_month_name(FRENCH)} {t.y}",
    ),
    (is_unambiguous, lambda t: f"{t.d} {t.get_month_name(FRENCH_SHORT)} {t.y}"),
    (has_unambiguous_year, lambda t: f"{t.er} {t.get_month_name(FRENCH)} {t.yy}"),
]
IN_GERMAN: list[tuple[Predicate, Formatter]] = [
    (is_unambiguous, lambda t: f"{t.d}. {t.get_month_name(GERMAN)} {t.y}"),
    (is_unambiguous, lambda t: f"{t.d:02d}. {t.get_month_name(GERMAN)} {t.y}"),
    (is_unambiguous, lambda t: f"{t.d}. {t.get_month_name(GERMAN_SHORT)} {t.y}"),
    (is_unambiguous, lambda t: f"den {t.d}. {t.get_month_name(GERMAN)} {t.y}"),
    (
        is_unambiguous,
        lambda t: f"{t.get_weekday_name(GERMAN_DAYS)}, {t.d}. {t.get_month_name(GERMAN)} {t.y}",
    ),
    (is_unambiguous, lambda t: f"{t.d}.{t.m}.{t.y}"),
    (is_unambiguous, lambda t: f"{t.d:02d}.{t.m:02d}.{t.y}"),
    (has_unambiguous_year, lambda t: f"{t.d}.{t.m}.{t.yy}"),
    (has_unambiguous_year, lambda t: f"{t.d}. {t.get_month_name(GERMAN)} {t.yy}"),
]
FAMILIES = ((ANY, 1), (IN_ENGLISH, 2), (IN_FRENCH, 2), (IN_GERMAN, 2))
"""The families of date formats and their sampling weights."""


@cache
def split_days() -> tuple[list[Day], list[Day]]:
    """Return the training days and the validation days, split with a fixed seed."""
    days = [Day(FIRST + timedelta(days=n)) for n in range((LAST - FIRST).days + 1)]
    random.Random(SEED).shuffle(days)
    return days[HELD_OUT_DAYS:], days[:HELD_OUT_DAYS]


def make_pair(day: Day, rng: random.Random) -> tuple[str, str]:
    """Return a day in a random format that is unambiguous for the day, and the day in ISO 8601. A
    small fraction of the texts is in lower case or upper case.
    """
    (family,) = rng.choices([f for f, _ in FAMILIES], [often for _, often in FAMILIES])
    written = rng.choice([form for fits, form in family if fits(day)])(day)
    case = rng.random()
    written = written.lower() if case < 0.1 else written.upper() if case < 0.15 else written
    return written, day.date.isoformat()


def sample_day(days: Sequence[Day], rng: random.Random) -> Day:
    """Sample a day. A day outside the years 1930 to 2029 is sampled again with probability 0.5."""
    day = rng.choice(days)
    while not has_unambiguous_year(day) and rng.random() < 0.5:
        day = rng.choice(days)
    return day


def make_training_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Return `count` training pairs, sampled with the given seed."""
    rng = random.Random(seed)
    days, _ = split_days()
    return [make_pair(sample_day(days, rng), rng) for _ in range(count)]


def make_validation_pairs(count: int) -> list[tuple[str, str]]:
    """Return `count` distinct validation pairs, sampled with a fixed seed."""
    rng = random.Random(SEED + 1)
    _, days = split_days()
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        written, meant = make_pair(sample_day(days, rng), rng)
        pairs[written] = meant
    return list(pairs.items())


def list_characters() -> list[str]:
    """Return every character of the formatted dates, in sorted order."""
    texts = [form(Day(date(y, m, d))) for family, _ in FAMILIES for _, form in family
             for y, m, d in _list_covering_days()]  # fmt: skip
    return sorted({c for text in texts for c in (text, text.lower(), text.upper()) for c in c})


def _list_covering_days() -> list[tuple[int, int, int]]:
    """Return days that together cover all months, weekdays, ordinal endings and digits."""
    return [(1900 + 7 * m + d, m, d) for m in range(1, 13) for d in range(1, 29)]


if __name__ == "__main__":
    for written, meant in make_validation_pairs(30):
        print(f"{meant}  {written}")
