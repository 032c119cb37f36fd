"""What a recording means to a model: a record for each way in which published models take
sound.

As in `specc.data.record`, `to_json` and `from_fields` are inverse, and `from_fields`
trusts nothing.
"""

from dataclasses import dataclass
from typing import TypeAlias

from specc.files.fields import Fields
from specc.files.json import Json, tagged

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
        return tagged("waveform", self)

    @staticmethod
    def from_fields(fields: Fields) -> "Waveform":
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
        return tagged("log_mel", self)

    @staticmethod
    def from_fields(fields: Fields) -> "LogMel":
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
        return tagged("filter_banks", self)

    @staticmethod
    def from_fields(fields: Fields) -> "FilterBanks":
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


def sound_reading(kind: str, fields: Fields) -> Sound:
    """The record of one way to take sound."""
    match kind:
        case "waveform":
            return Waveform.from_fields(fields)
        case "log_mel":
            return LogMel.from_fields(fields)
        case _:
            return FilterBanks.from_fields(fields)


def _rate(fields: Fields) -> int:
    return fields.integer("rate", 1, MAX_RATE) if fields.has("rate") else 16_000


def _size(fields: Fields, bins: int, frames: int) -> tuple[int, int]:
    """`bins` and `frames`, where the fields do not say otherwise."""
    if fields.has("bins"):
        bins = fields.integer("bins", 1, MAX_BINS)
    if fields.has("frames"):
        frames = fields.integer("frames", 1, MAX_FRAMES)
    return bins, frames


def _cut(fields: Fields, otherwise: bool) -> bool:
    return fields.flag("cut") if fields.has("cut") else otherwise
