"""Preprocessing records: one dataclass per way to read an input or show an output."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from specc.io.json_io import Json, JsonFields, to_tagged_json
from specc.preprocessing.audio_records import CtcTranscript, Sound
from specc.preprocessing.tokenizer_files import TextTokenizer, TokenizerFile
from specc.preprocessing.word_tokens import TextWords

Resize = Literal["bilinear", "bicubic", "box", "nearest", "lanczos", "hamming"]
RESIZES: tuple[Resize, ...] = (
    "bilinear", "bicubic", "box", "nearest", "lanczos", "hamming",
)  # fmt: skip

# pixels a side of what a model takes; 8192² is the 64 Mpixel limit on pictures
MAX_SIDE = 8192
MAX_VOCABULARY = 1_000_000  # tokens
MAX_TOKEN = 256  # characters
MAX_LABELS = 100_000
MAX_LABEL = 1000  # characters
MOST_TOLD = 3  # labels of a picture, where a spec says how its places are shown
TEXTS = ("characters", "words", "bytes", "tokenizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecord:
    """A picture: `x = (v - mean) / std` with `v = pixel * scale`, pixels from 0 to 255,
    resized to `size`.

    `size` is (rows, columns). `channels` is 1 (brightness) or 3 (red, green, blue).
    `box` averages the area a result pixel covers; `bilinear` and `bicubic` widen their
    kernel when they shrink. `crop` cuts out the largest middle part that has the shape
    of `size`; else the picture is stretched. `resized` is what it becomes first, before
    its middle of `size` is cut out, with black around one that is smaller: rows and
    columns, or the length of its shorter side. `rounded`: resizing gives whole numbers
    of 8 bits, as published processors have it. `fitted`: pictures keep their
    proportions, the shorter side as long as the first number unless the longer one would
    be longer than the second, and lie at the upper left of `size`, zeros behind them;
    their sides are whole multiples of `multiple`. `centered`: they keep their proportions
    and lie in the middle of `size`, as large as fits, black around them; `aligned`: before
    that one that lies where `size` stands, or stands where it lies, is turned a quarter to
    the right. `invert` turns a pixel into 255 - pixel;
    `auto` does so when the border of the picture is light, for models that were trained
    on light strokes over a dark ground.
    """

    size: tuple[int, int]
    channels: int = 3
    resize: Resize = "bilinear"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    invert: bool | Literal["auto"] = False
    crop: bool = False
    resized: tuple[int, ...] = ()
    rounded: bool = False
    fitted: tuple[int, ...] = ()
    multiple: int = 1
    centered: bool = False
    aligned: bool = False

    def to_json(self) -> Json:
        """The record as JSON."""
        return to_tagged_json("image", self)

    @staticmethod
    def from_fields(fields: JsonFields) -> "ImageRecord":
        """The record from JSON; every field but `size` may be absent."""
        rows, columns = fields.integers("size", 2, 1, MAX_SIDE)
        channels = fields.integer("channels", 1, 3) if fields.has("channels") else 3
        if channels == 2:
            fields.refuse("channels", "is neither 1 nor 3")
        mean, std = _by_channel(fields, channels)
        scale = fields.number("scale") if fields.has("scale") else 1 / 255
        if scale <= 0:
            fields.refuse("scale", "is not positive")
        return ImageRecord(
            size=(rows, columns),
            channels=channels,
            scale=scale,
            mean=mean,
            std=std,
            invert=_invert(fields),
            resize=_resize(fields),
            crop=_flag(fields, "crop"),
            resized=_lengths(fields, "resized"),
            fitted=_lengths(fields, "fitted"),
            multiple=fields.integer("multiple", 1, MAX_SIDE) if fields.has("multiple") else 1,
            rounded=_flag(fields, "rounded"),
            centered=_flag(fields, "centered"),
            aligned=_flag(fields, "aligned"),
        )


def _flag(fields: JsonFields, name: str) -> bool:
    """Whether it is said to be so; not, where it is left out."""
    return fields.has(name) and fields.flag(name)


def _lengths(fields: JsonFields, name: str) -> tuple[int, ...]:
    """One length or two; none where it is left out."""
    if not fields.has(name) or not fields.items(name, 2):
        return ()
    count = len(fields.items(name, 2))
    if name == "fitted" and count != 2:
        fields.refuse(name, "is not two lengths: of the shorter side and of the longer")
    return tuple(fields.integers(name, count, 1, MAX_SIDE))


def _by_channel(fields: JsonFields, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """`mean` and `std`, each one number for all channels or one for each."""
    mean = fields.numbers("mean", 3) if fields.has("mean") else (0.0,)
    std = fields.numbers("std", 3) if fields.has("std") else (1.0,)
    for key, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, channels):
            fields.refuse(key, f"holds {len(values)} numbers for {channels} channels")
    if any(value <= 0 for value in std):
        fields.refuse("std", "holds a number that is not positive")
    return mean, std


def _invert(fields: JsonFields) -> bool | Literal["auto"]:
    if not fields.has("invert"):
        return False
    return "auto" if fields.get("invert") == "auto" else fields.flag("invert")


def _resize(fields: JsonFields) -> Resize:
    chosen = fields.choice("resize", RESIZES) if fields.has("resize") else "bilinear"
    return next(kind for kind in RESIZES if kind == chosen)


@dataclass(frozen=True, slots=True)
class TextCharacters:
    """Text, one id a character: the position of the character in `vocab`.

    Entries of more than one character (`<pad>`, `<end>`) are specials: they have an id
    and no text. `start` and `end` are put around a text that is read; where `unknown`
    is given it stands for characters that `vocab` lacks.
    """

    vocab: tuple[str, ...]
    end: int | None = None
    start: int | None = None
    unknown: int | None = None

    @property
    def size(self) -> int:
        """How many ids there are."""
        return len(self.vocab)

    def to_json(self) -> Json:
        """The record as JSON."""
        return to_tagged_json("characters", self)

    @staticmethod
    def from_fields(fields: JsonFields) -> "TextCharacters":
        """The record from JSON."""
        vocab = fields.texts("vocab", MAX_VOCABULARY, MAX_TOKEN)
        if not vocab or not all(vocab):
            fields.refuse("vocab", "is empty or holds an empty token")
        if len(set(vocab)) != len(vocab):
            fields.refuse("vocab", "holds a token twice")
        end, start, unknown = (
            fields.identity(key, len(vocab)) for key in ("end", "start", "unknown")
        )
        return TextCharacters(vocab, end, start, unknown)


@dataclass(frozen=True, slots=True)
class TextBytes:
    """Text, one id a byte of its UTF-8: `byte + offset`. The ids below `offset` are
    specials.

    `offset` 3 is the layout of ByT5 (arXiv:2105.13626): pad 0, end 1, unknown 2.
    """

    offset: int = 0
    end: int | None = None
    start: int | None = None

    @property
    def size(self) -> int:
        """How many ids there are."""
        return 256 + self.offset

    def to_json(self) -> Json:
        """The record as JSON."""
        return to_tagged_json("bytes", self)

    @staticmethod
    def from_fields(fields: JsonFields) -> "TextBytes":
        """The record from JSON."""
        offset = fields.integer("offset", 0, MAX_VOCABULARY) if fields.has("offset") else 0
        end, start = (fields.identity("end", 256 + offset), fields.identity("start", 256 + offset))
        return TextBytes(offset, end, start)


TextReading: TypeAlias = TextCharacters | TextWords | TextBytes | TextTokenizer
TEXT = (TextCharacters, TextWords, TextBytes, TextTokenizer)
"""The classes of records that read text."""
Files: TypeAlias = Mapping[str, TokenizerFile]


def parse_text_record(kind: str, fields: JsonFields, files: Files) -> TextReading:
    """The record of one way to read text."""
    match kind:
        case "characters":
            return TextCharacters.from_fields(fields)
        case "words":
            return TextWords.from_fields(fields)
        case "bytes":
            return TextBytes.from_fields(fields)
        case _:
            return TextTokenizer.from_fields(fields, files)


@dataclass(frozen=True, slots=True)
class NumbersOutput:
    """An array: the reading of everything without one. `digits` are significant digits
    when shown.
    """

    digits: int = 4

    def to_json(self) -> Json:
        """The record as JSON."""
        return to_tagged_json("numbers", self)

    @staticmethod
    def from_fields(fields: JsonFields) -> "NumbersOutput":
        """The record from JSON."""
        return NumbersOutput(fields.integer("digits", 1, 17) if fields.has("digits") else 4)


@dataclass(frozen=True, slots=True)
class LabelsOutput:
    """Scores of classes along the last axis, shown as the `top` most probable labels
    with their share.
    """

    labels: tuple[str, ...] = ()
    top: int = 1

    def to_json(self) -> Json:
        """The record as JSON."""
        return to_tagged_json("choice", self)

    @staticmethod
    def from_fields(fields: JsonFields) -> "LabelsOutput":
        """The record from JSON. Without labels, classes go by their numbers."""
        labels = fields.texts("labels", MAX_LABELS, MAX_LABEL) if fields.has("labels") else ()
        return LabelsOutput(
            labels, fields.integer("top", 1, MAX_LABELS) if fields.has("top") else 1
        )


@dataclass(frozen=True, slots=True)
class TextOutput:
    """Ids, or scores of ids along the last axis, shown as text."""

    vocabulary: TextReading

    def to_json(self) -> Json:
        """The record as JSON."""
        return {"kind": "text", "vocabulary": self.vocabulary.to_json()}

    @staticmethod
    def from_fields(fields: JsonFields, files: Files) -> "TextOutput":
        """The record from JSON."""
        child = fields.child("vocabulary")
        record = parse_text_record(child.choice("kind", TEXTS), child, files)
        child.done()
        return TextOutput(record)


@dataclass(frozen=True, slots=True)
class ImageOutput:
    """Pixels as `image` reads them, shown as a picture (the inversion of `invert=auto`
    is not undone).
    """

    image: ImageRecord

    def to_json(self) -> Json:
        """The record as JSON."""
        return {"kind": "picture", "image": self.image.to_json()}

    @staticmethod
    def from_fields(fields: JsonFields) -> "ImageOutput":
        """The record from JSON."""
        child = fields.child("image")
        child.choice("kind", ("image",))
        image = ImageRecord.from_fields(child)
        child.done()
        return ImageOutput(image)


@dataclass(frozen=True, slots=True)
class ClassMapOutput:
    """Scores `[batch, classes, rows, columns]` or class ids `[batch, rows, columns]`: a
    map of colors.

    `palette` holds red, green and blue from 0 to 255 for each class; without one, specc
    chooses.
    """

    labels: tuple[str, ...] = ()
    palette: tuple[tuple[int, int, int], ...] = ()

    def to_json(self) -> Json:
        """The record as JSON."""
        return to_tagged_json("class_map", self)

    @staticmethod
    def from_fields(fields: JsonFields) -> "ClassMapOutput":
        """The record from JSON."""
        labels = fields.texts("labels", MAX_LABELS, MAX_LABEL) if fields.has("labels") else ()
        count = len(fields.items("palette", MAX_LABELS)) if fields.has("palette") else 0
        colors = []
        for i, color in enumerate(fields.items("palette", MAX_LABELS) if count else []):
            one = JsonFields({"color": color}, (*fields.path, f"palette[{i}]"), fields.complain)
            red, green, blue = one.integers("color", 3, 0, 255)
            colors.append((red, green, blue))
        if colors and labels and len(colors) != len(labels):
            fields.refuse("palette", f"holds {count} colors for {len(labels)} labels")
        return ClassMapOutput(labels, tuple(colors))


InputReading: TypeAlias = ImageRecord | Sound | TextReading | NumbersOutput
OutputReading: TypeAlias = (
    LabelsOutput | NumbersOutput | TextOutput | CtcTranscript | ImageOutput | ClassMapOutput
)


def labels_for_rank(record: OutputReading, rank: int) -> OutputReading:
    """The same labels for a result of `rank` axes: heads of one spec may score a picture
    as a whole, `[batch, classes]`, or its places, `[batch, classes, rows, columns]`.
    """
    match record:
        case LabelsOutput() if rank == 4:
            return ClassMapOutput(record.labels)
        case ClassMapOutput() if rank == 2:
            return LabelsOutput(record.labels, min(len(record.labels) or 1, MOST_TOLD))
        case _:
            return record
