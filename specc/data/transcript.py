"""Scores of tokens for each moment of a recording, shown as what was said: the record, and
the reading of such scores (connectionist temporal classification, Graves et al. 2006).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from specc.files.fields import Fields
from specc.files.json import Json, tagged

MAX_TOKENS = 1_000_000
LONGEST = 256  # characters of a token


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The best token of each row of scores [batch, rows, tokens], those that repeat taken
    as one, without `blank`: section 3.1 of the paper, its best path.

    `keep` is the result that says which rows exist, if there is one. `delimiter` is the
    token between words, shown as `space`; `unknown` stands for ids that `vocab` lacks.
    """

    vocab: tuple[str, ...]
    blank: int = 0
    keep: str = ""
    delimiter: str = "|"
    space: str = " "
    unknown: str = "<unk>"
    lower: bool = False

    def to_json(self) -> Json:
        """The record as JSON."""
        return tagged("transcript", self)

    @staticmethod
    def from_fields(fields: Fields) -> "Transcript":
        """The record from JSON; every field but `vocab` may be absent."""
        vocab = fields.texts("vocab", MAX_TOKENS, LONGEST)
        if not vocab:
            fields.refuse("vocab", "holds no token")
        said = {
            key: _text(fields, key)
            for key in ("keep", "delimiter", "space", "unknown")
            if fields.has(key)
        }
        return Transcript(
            vocab=vocab,
            blank=fields.identity("blank", len(vocab)) or 0,
            lower=fields.flag("lower") if fields.has("lower") else False,
            **said,
        )


def _text(fields: Fields, key: str) -> str:
    value = fields.text(key)
    if len(value) > LONGEST:
        fields.refuse(key, f"is not a text of at most {LONGEST} characters")
    return value


def said(ids: Sequence[int], record: Transcript) -> str:
    """What the best tokens of the rows say."""
    known = len(record.vocab)
    tokens = [record.vocab[i] if i < known else record.unknown for i in ids]
    once = [token for token, _ in groupby(tokens)]
    blank = record.vocab[record.blank]
    text = "".join(
        record.space if token == record.delimiter else token
        for token in once
        if token != blank
    ).strip()
    return text.lower() if record.lower else text
