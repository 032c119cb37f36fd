"""What the inputs and outputs of a model mean to people: the `reading` of a spec, as a compiled model keeps
it.

`to_json` and `from_json` are inverse. `from_json` trusts nothing: a model file may come from anywhere. The
compiler builds its records through `from_json` too, with a complaint of its own that points into the spec.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, cast

from specc.reading.fields import Complain, Fields, Json, damaged
from specc.reading.tokenizer import TextTokenizer, TokenizerFile, files_from, files_to_json

Resize = Literal["bilinear", "bicubic", "box", "nearest"]
RESIZES: tuple[Resize, ...] = ("bilinear", "bicubic", "box", "nearest")

MAX_SIDE = 8192  # pixels a side of what a model takes; 8192² is the 64 Mpixel limit on pictures
MAX_VOCABULARY = 1_000_000  # tokens
MAX_TOKEN = 256  # characters
MAX_LABELS = 100_000
MAX_LABEL = 1000  # characters
MAX_PORTS = 1000  # inputs or outputs with a reading
TEXTS = ("characters", "bytes", "tokenizer")


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: `x = (v - mean) / std` with `v = pixel * scale`, pixels from 0 to 255, resized to `size`.

    `size` is (rows, columns). `channels` is 1 (brightness) or 3 (red, green, blue). `box` averages the area a
    result pixel covers; `bilinear` and `bicubic` widen their kernel when they shrink. `crop` cuts out the
    largest middle part that has the shape of `size`; else the picture is stretched. `invert` turns a pixel
    into 255 - pixel; `auto` does so when the border of the picture is light, for models that were trained on
    light strokes over a dark ground.
    """

    size: tuple[int, int]
    channels: int = 3
    resize: Resize = "bilinear"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    invert: bool | Literal["auto"] = False
    crop: bool = False

    def to_json(self) -> Json:
        """The record as JSON."""
        return {
            "kind": "image",
            "size": list(self.size),
            "channels": self.channels,
            "resize": self.resize,
            "scale": self.scale,
            "mean": list(self.mean),
            "std": list(self.std),
            "invert": self.invert,
            "crop": self.crop,
        }

    @staticmethod
    def from_fields(fields: Fields) -> "Image":
        """The record from JSON; every field but `size` may be absent."""
        rows, columns = fields.integers("size", 2, 1, MAX_SIDE)
        channels = fields.integer("channels", 1, 3) if fields.has("channels") else 3
        if channels == 2:
            fields.refuse("channels", "is neither 1 nor 3")
        mean = fields.numbers("mean", 3) if fields.has("mean") else (0.0,)
        std = fields.numbers("std", 3) if fields.has("std") else (1.0,)
        for key, values in (("mean", mean), ("std", std)):
            if len(values) not in (1, channels):
                fields.refuse(key, f"holds {len(values)} numbers for {channels} channels")
        if any(value <= 0 for value in std):
            fields.refuse("std", "holds a number that is not positive")
        scale = fields.number("scale") if fields.has("scale") else 1 / 255
        if scale <= 0:
            fields.refuse("scale", "is not positive")
        invert: bool | Literal["auto"] = False
        if fields.has("invert"):
            invert = "auto" if fields.get("invert") == "auto" else fields.flag("invert")
        resize = fields.choice("resize", RESIZES) if fields.has("resize") else "bilinear"
        crop = fields.flag("crop") if fields.has("crop") else False
        return Image((rows, columns), channels, cast(Resize, resize), scale, mean, std, invert, crop)


@dataclass(frozen=True, slots=True)
class TextCharacters:
    """Text, one id a character: the position of the character in `vocab`.

    Entries of more than one character (`<pad>`, `<end>`) are specials: they have an id and no text. `start`
    and `end` are put around a text that is read; where `unknown` is given it stands for characters that
    `vocab` lacks.
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
        return {
            "kind": "characters",
            "vocab": list(self.vocab),
            "end": self.end,
            "start": self.start,
            "unknown": self.unknown,
        }

    @staticmethod
    def from_fields(fields: Fields) -> "TextCharacters":
        """The record from JSON."""
        vocab = fields.texts("vocab", MAX_VOCABULARY, MAX_TOKEN)
        if not vocab or not all(vocab):
            fields.refuse("vocab", "is empty or holds an empty token")
        if len(set(vocab)) != len(vocab):
            fields.refuse("vocab", "holds a token twice")
        end, start, unknown = (fields.identity(key, len(vocab)) for key in ("end", "start", "unknown"))
        return TextCharacters(vocab, end, start, unknown)


@dataclass(frozen=True, slots=True)
class TextBytes:
    """Text, one id a byte of its UTF-8: `byte + offset`. The ids below `offset` are specials.

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
        return {"kind": "bytes", "offset": self.offset, "end": self.end, "start": self.start}

    @staticmethod
    def from_fields(fields: Fields) -> "TextBytes":
        """The record from JSON."""
        offset = fields.integer("offset", 0, MAX_VOCABULARY) if fields.has("offset") else 0
        end, start = fields.identity("end", 256 + offset), fields.identity("start", 256 + offset)
        return TextBytes(offset, end, start)


TextReading: TypeAlias = TextCharacters | TextBytes | TextTokenizer
Files: TypeAlias = Mapping[str, TokenizerFile]


def text_reading(kind: str, fields: Fields, files: Files) -> TextReading:
    """The record of one way to read text."""
    match kind:
        case "characters":
            return TextCharacters.from_fields(fields)
        case "bytes":
            return TextBytes.from_fields(fields)
        case _:
            return TextTokenizer.from_fields(fields, files)


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array: the reading of everything without one. `digits` are significant digits when shown."""

    digits: int = 4

    def to_json(self) -> Json:
        """The record as JSON."""
        return {"kind": "numbers", "digits": self.digits}

    @staticmethod
    def from_fields(fields: Fields) -> "Numbers":
        """The record from JSON."""
        return Numbers(fields.integer("digits", 1, 17) if fields.has("digits") else 4)


@dataclass(frozen=True, slots=True)
class Choice:
    """Scores of classes along the last axis, shown as the `top` most probable labels with their share."""

    labels: tuple[str, ...] = ()
    top: int = 1

    def to_json(self) -> Json:
        """The record as JSON."""
        return {"kind": "choice", "labels": list(self.labels), "top": self.top}

    @staticmethod
    def from_fields(fields: Fields) -> "Choice":
        """The record from JSON. Without labels, classes go by their numbers."""
        labels = fields.texts("labels", MAX_LABELS, MAX_LABEL) if fields.has("labels") else ()
        return Choice(labels, fields.integer("top", 1, MAX_LABELS) if fields.has("top") else 1)


@dataclass(frozen=True, slots=True)
class TextOf:
    """Ids, or scores of ids along the last axis, shown as text."""

    vocabulary: TextReading

    def to_json(self) -> Json:
        """The record as JSON."""
        return {"kind": "text", "vocabulary": self.vocabulary.to_json()}

    @staticmethod
    def from_fields(fields: Fields, files: Files) -> "TextOf":
        """The record from JSON."""
        child = fields.child("vocabulary")
        record = text_reading(child.choice("kind", TEXTS), child, files)
        child.done()
        return TextOf(record)


@dataclass(frozen=True, slots=True)
class ImageOf:
    """Pixels as `image` reads them, shown as a picture (the inversion of `invert=auto` is not undone)."""

    image: Image

    def to_json(self) -> Json:
        """The record as JSON."""
        return {"kind": "picture", "image": self.image.to_json()}

    @staticmethod
    def from_fields(fields: Fields) -> "ImageOf":
        """The record from JSON."""
        child = fields.child("image")
        child.choice("kind", ("image",))
        image = Image.from_fields(child)
        child.done()
        return ImageOf(image)


@dataclass(frozen=True, slots=True)
class ClassMap:
    """Scores `[batch, classes, rows, columns]` or class ids `[batch, rows, columns]`: a map of colors.

    `palette` holds red, green and blue from 0 to 255 for each class; without one, specc chooses.
    """

    labels: tuple[str, ...] = ()
    palette: tuple[tuple[int, int, int], ...] = ()

    def to_json(self) -> Json:
        """The record as JSON."""
        palette: list[Json] = [list(color) for color in self.palette]
        return {"kind": "class_map", "labels": list(self.labels), "palette": palette}

    @staticmethod
    def from_fields(fields: Fields) -> "ClassMap":
        """The record from JSON."""
        labels = fields.texts("labels", MAX_LABELS, MAX_LABEL) if fields.has("labels") else ()
        count = len(fields.items("palette", MAX_LABELS)) if fields.has("palette") else 0
        colors = []
        for i, color in enumerate(fields.items("palette", MAX_LABELS) if count else []):
            one = Fields({"color": color}, (*fields.path, f"palette[{i}]"), fields.complain)
            red, green, blue = one.integers("color", 3, 0, 255)
            colors.append((red, green, blue))
        if colors and labels and len(colors) != len(labels):
            fields.refuse("palette", f"holds {count} colors for {len(labels)} labels")
        return ClassMap(labels, tuple(colors))


InputReading: TypeAlias = Image | TextReading | Numbers
OutputReading: TypeAlias = Choice | Numbers | TextOf | ImageOf | ClassMap


@dataclass(frozen=True, slots=True)
class Reading:
    """The readings of a model's inputs and of the outputs it shows, in the order of the spec.

    An input that is not listed is read as `Numbers`; where nothing is shown, every output is.
    """

    inputs: tuple[tuple[str, InputReading], ...] = ()
    shows: tuple[tuple[str, OutputReading], ...] = ()

    def of_input(self, name: str) -> InputReading:
        """How the input `name` is read."""
        return dict(self.inputs).get(name, Numbers())

    @property
    def files(self) -> tuple[TokenizerFile, ...]:
        """The tokenizer files, each once."""
        records = [r for _, r in self.inputs] + [r.vocabulary for _, r in self.shows if isinstance(r, TextOf)]
        return tuple(dict.fromkeys(r.file for r in records if isinstance(r, TextTokenizer)))

    def placed(self, stem: str) -> "Reading":
        """As the model called `stem` carries it: files that are too large to be inside have their names."""
        return self._changed(lambda file: file.placed(stem))

    def named(self, names: Mapping[str, str]) -> "Reading":
        """With the files of these hashes beside the model under these names, as a package of graphs has them."""
        return self._changed(lambda file: file.named(names.get(file.sha256, file.name)))

    def opened(self, folder: Path) -> "Reading":
        """With what lies in files beside the model in `folder`. Fails with E0942."""
        return self._changed(lambda file: file.opened(folder))

    def _changed(self, change: Callable[[TokenizerFile], TokenizerFile]) -> "Reading":
        made = {file: change(file) for file in self.files}
        if not made:
            return self
        inputs = ((n, replace(r, file=made[r.file]) if isinstance(r, TextTokenizer) else r) for n, r in self.inputs)
        shows: list[tuple[str, OutputReading]] = []
        for name, shown in self.shows:
            if isinstance(shown, TextOf) and isinstance(shown.vocabulary, TextTokenizer):
                shown = TextOf(replace(shown.vocabulary, file=made[shown.vocabulary.file]))
            shows.append((name, shown))
        return Reading(tuple(inputs), tuple(shows))

    def to_json(self) -> Json:
        """The record as JSON."""
        inputs: dict[str, Json] = {name: reading.to_json() for name, reading in self.inputs}
        shows: dict[str, Json] = {name: reading.to_json() for name, reading in self.shows}
        files: dict[str, Json] = {"tokenizers": files_to_json(self.files)} if self.files else {}
        return {"inputs": inputs, "shows": shows, **files}

    @staticmethod
    def from_json(value: object) -> "Reading":
        """The record from JSON of unknown origin; files beside the model are not read yet. Fails with E0915."""
        whole = Fields(value, ("reading",))
        inputs, shows = whole.child("inputs"), whole.child("shows")
        files = files_from(whole.child("tokenizers")) if whole.has("tokenizers") else {}
        whole.done()
        for part in (inputs, shows):
            if len(part.names()) > MAX_PORTS or any(len(name) > MAX_TOKEN for name in part.names()):
                damaged(part.path, "is too large")
        return Reading(
            tuple(
                (name, input_reading(inputs.get(name), (*inputs.path, name), damaged, files)) for name in inputs.names()
            ),
            tuple(
                (name, output_reading(shows.get(name), (*shows.path, name), damaged, files)) for name in shows.names()
            ),
        )


def input_reading(
    value: object, path: tuple[str, ...] = (), complain: Complain = damaged, files: Files | None = None
) -> InputReading:
    """One input's record from JSON; `complain` is told the path of a field and what is wrong with it.

    `files` are the tokenizers that a record may name by their hash.
    """
    fields = Fields(value, path, complain)
    record: InputReading
    match fields.choice("kind", ("image", *TEXTS, "numbers")):
        case "image":
            record = Image.from_fields(fields)
        case "numbers":
            record = Numbers.from_fields(fields)
        case kind:
            record = text_reading(kind, fields, files or {})
    fields.done()
    return record


def output_reading(
    value: object, path: tuple[str, ...] = (), complain: Complain = damaged, files: Files | None = None
) -> OutputReading:
    """One output's record from JSON; `complain` and `files` as in `input_reading`."""
    fields = Fields(value, path, complain)
    record: OutputReading
    match fields.choice("kind", ("choice", "numbers", "text", "picture", "class_map")):
        case "choice":
            record = Choice.from_fields(fields)
        case "numbers":
            record = Numbers.from_fields(fields)
        case "text":
            record = TextOf.from_fields(fields, files or {})
        case "picture":
            record = ImageOf.from_fields(fields)
        case _:
            record = ClassMap.from_fields(fields)
    fields.done()
    return record
