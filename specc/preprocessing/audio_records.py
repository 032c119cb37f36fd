"""Audio preprocessing records, and CTC transcripts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from specc.io.json_io import Json, JsonFields, to_tagged_json

MAX_RATE = 768_000  # samples a second
MAX_BINS = 4096
MAX_FRAMES = 1_000_000
MAX_WINDOW = 65_536  # samples
SOUNDS = ("waveform", "log_mel", "filter_banks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waveform:
    """The samples of a recording, from -1 to 1, `rate` a second: `f32[samples]`.

    With `normalize` they are moved and scaled to a mean of 0 and a variance of 1, as
    wav2vec 2.0 takes them (arXiv:2006.11477, sec. 2).
    """

    rate: int = 16_000
    normalize: bool = True

    def to_json(self) -> Json:
        """The record as JSON."""
        return to_tagged_json("waveform", self)

    @staticmethod
    def from_fields(fields: JsonFields) -> "Waveform":
        """The record from JSON; every field may be absent."""
        normalize = fields.flag("normalize") if fields.has("normalize") else True
        return Waveform(rate=_rate(fields), normalize=normalize)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMel:
    """Logarithms of a mel spectrogram `f32[bins, frames]`, as Whisper takes them
    (arXiv:2212.04356, sec. 2.2).

    Silence stands behind a recording that is shorter than `frames * hop` samples; a
    longer one is refused, or cut where `cut` says so. `window` and `hop` are samples.
    """

    bins: int = 80
    frames: int = 3000
    rate: int = 16_000
    window: int = 400
    hop: int = 160
    cut: bool = False

    @property
    def samples(self) -> int:
        """How many samples the frames are made of."""
        return self.frames * self.hop

    def to_json(self) -> Json:
        """The record as JSON."""
        return to_tagged_json("log_mel", self)

    @staticmethod
    def from_fields(fields: JsonFields) -> "LogMel":
        """The record from JSON; every field may be absent."""
        window = fields.integer("window", 2, MAX_WINDOW) if fields.has("window") else 0
        hop = fields.integer("hop", 1, MAX_WINDOW) if fields.has("hop") else 0
        bins, frames = _size(fields, 80, 3000)
        made = LogMel(
            bins=bins,
            frames=frames,
            rate=_rate(fields),
            window=window or 400,
            hop=hop or 160,
            cut=_cut(fields, False),
        )
        # The ends are mirrored by half a window, which needs so many samples.
        if made.samples <= made.window // 2:
            fields.refuse("frames", "make less sound than half a window")
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterBanks:
    """Kaldi's log filter banks `f32[frames, bins]`, normalized, as the Audio Spectrogram
    Transformer takes them (arXiv:2104.01778, sec. 2.1): windows of 400 samples, 160
    apart.

    Each number becomes `(x - mean) / (2 * std)` unless `normalize` is false. Zeros
    stand behind a shorter recording, before that; a longer one is cut, or refused where
    `cut` is false.
    """

    bins: int = 128
    frames: int = 1024
    rate: int = 16_000
    mean: float = -4.2677393
    std: float = 4.5689974
    normalize: bool = True
    cut: bool = True

    def to_json(self) -> Json:
        """The record as JSON."""
        return to_tagged_json("filter_banks", self)

    @staticmethod
    def from_fields(fields: JsonFields) -> "FilterBanks":
        """The record from JSON; every field may be absent."""
        bins, frames = _size(fields, 128, 1024)
        std = fields.number("std") if fields.has("std") else 4.5689974
        if std <= 0:
            fields.refuse("std", "is not positive")
        return FilterBanks(
            bins=bins,
            frames=frames,
            rate=_rate(fields),
            mean=fields.number("mean") if fields.has("mean") else -4.2677393,
            std=std,
            normalize=fields.flag("normalize") if fields.has("normalize") else True,
            cut=_cut(fields, True),
        )


Sound: TypeAlias = Waveform | LogMel | FilterBanks


def parse_audio_record(kind: str, fields: JsonFields) -> Sound:
    """The record of one way to take sound."""
    match kind:
        case "waveform":
            return Waveform.from_fields(fields)
        case "log_mel":
            return LogMel.from_fields(fields)
        case _:
            return FilterBanks.from_fields(fields)


def _rate(fields: JsonFields) -> int:
    return fields.integer("rate", 1, MAX_RATE) if fields.has("rate") else 16_000


def _size(fields: JsonFields, bins: int, frames: int) -> tuple[int, int]:
    """`bins` and `frames`, where the fields do not say otherwise."""
    if fields.has("bins"):
        bins = fields.integer("bins", 1, MAX_BINS)
    if fields.has("frames"):
        frames = fields.integer("frames", 1, MAX_FRAMES)
    return bins, frames


def _cut(fields: JsonFields, otherwise: bool) -> bool:
    return fields.flag("cut") if fields.has("cut") else otherwise


MAX_TOKENS = 1_000_000
LONGEST = 256  # characters of a token


@dataclass(frozen=True, slots=True, kw_only=True)
class CtcTranscript:
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
        return to_tagged_json("transcript", self)

    @staticmethod
    def from_fields(fields: JsonFields) -> "CtcTranscript":
        """The record from JSON; every field but `vocab` may be absent."""
        vocab = fields.texts("vocab", MAX_TOKENS, LONGEST)
        if not vocab:
            fields.refuse("vocab", "holds no token")
        said = {
            key: _text(fields, key)
            for key in ("keep", "delimiter", "space", "unknown")
            if fields.has(key)
        }
        return CtcTranscript(
            vocab=vocab,
            blank=fields.identity("blank", len(vocab)) or 0,
            lower=fields.flag("lower") if fields.has("lower") else False,
            **said,
        )


def _text(fields: JsonFields, key: str) -> str:
    value = fields.text(key)
    if len(value) > LONGEST:
        fields.refuse(key, f"is not a text of at most {LONGEST} characters")
    return value


def decode_ctc(ids: Sequence[int], record: CtcTranscript) -> str:
    """What the best tokens of the rows say."""
    known = len(record.vocab)
    tokens = [record.vocab[i] if i < known else record.unknown for i in ids]
    once = [token for token, _ in groupby(tokens)]
    blank = record.vocab[record.blank]
    text = "".join(
        record.space if token == record.delimiter else token for token in once if token != blank
    ).strip()
    return text.lower() if record.lower else text
