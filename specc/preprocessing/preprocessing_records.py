"""Preprocessing records: one dataclass per type of input preprocessing or output postprocessing."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal, TypeAlias

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.io.json_io import JsonReader, JsonRecord, make_int_range_reader, parse_tagged_record
from specc.preprocessing.tokenizer_files import MAX_ID, AliasedFieldRecord, HfTokenizer, TokenId

Resampling = Literal["bilinear", "bicubic", "box", "nearest", "lanczos", "hamming"]
Sizing = Literal["", "area", "within", "patches", "tiles", "anyres", "square"]
NO_SIZE = (0, 0)

MAX_SIDE = 8192  # maximum side of an image in pixels; 8192² is the 64-megapixel limit
MAX_VOCABULARY = 1_000_000  # maximum number of tokens
MAX_TOKEN = 256  # maximum number of characters per token
MAX_LABELS = 100_000
MAX_LABEL = 1000  # maximum number of characters per label
MAX_SAMPLE_RATE, MAX_WINDOW_LENGTH = 768_000, 65_536  # in samples per second; in samples

Vocabulary: TypeAlias = Annotated[
    tuple[str, ...],
    partial(JsonReader.read_strings, max_count=MAX_VOCABULARY, max_length=MAX_TOKEN),
]
Labels: TypeAlias = Annotated[
    tuple[str, ...], partial(JsonReader.read_strings, max_count=MAX_LABELS, max_length=MAX_LABEL)
]
PerChannel: TypeAlias = Annotated[tuple[float, ...], partial(JsonReader.read_numbers, max_count=3)]
SampleRate: TypeAlias = Annotated[int, make_int_range_reader(1, MAX_SAMPLE_RATE)]
MelBins: TypeAlias = Annotated[int, make_int_range_reader(1, 4096)]
FrameCount: TypeAlias = Annotated[int, make_int_range_reader(1, 1_000_000)]


def _read_invert(fields: JsonReader, name: str) -> bool | str:
    return "auto" if fields.get_required(name) == "auto" else fields.read_bool(name)


def _read_lengths(fields: JsonReader, name: str) -> tuple[int, ...]:
    """Read at most two sizes, or three for the option `patches`. `fitted` requires two sizes."""
    count = len(fields.read_list(name, 3 if name == "patches" else 2))
    if name == "fitted" and count == 1:
        fields.raise_invalid(name, "needs two lengths: shorter side, longer side")
    return fields.read_ints(name, count, 1, MAX_SIDE)


def _read_tuples(
    fields: JsonReader, name: str, count: int, low: int, high: int
) -> tuple[tuple[int, ...], ...]:
    """Read a list of lists, each of which contains `count` integers from `low` to `high`."""
    items = (
        JsonReader({"item": v}, (*fields.path, f"{name}[{i}]"), fields.report_error)
        for i, v in enumerate(fields.read_list(name, MAX_LABELS))
    )
    return tuple(item.read_ints("item", count, low, high) for item in items)


@immutable_dataclass(slots=True, kw_only=True)
class ImageConfig(AliasedFieldRecord):
    """An image resized to `size` and normalized: `(pixel * scale - mean) / std`, pixels 0 to 255.

    `size` is (height, width). `channels` is 1 (luminance) or 3 (RGB). The filter `box` averages the
    area of an output pixel. `bilinear` and `bicubic` widen their kernel when downscaling.
    `do_center_crop` first crops the largest center region with the aspect ratio of `size`. By
    default, the image is stretched. `resize_lengths` is the size before the center crop to `size`:
    height and width, or the shorter side. Smaller images are padded with black. If
    `resizes_to_uint8` is True, resizing rounds to 8-bit integers, as in Pillow. If
    `shortest_longest_edge` is set, the aspect ratio is kept: the shorter side is resized to the
    first length unless the longer side would exceed the second length. Sides are multiples of
    `size_multiple`, and the image is zero-padded at the bottom and right to `size`. If
    `pads_all_sides` is True, the aspect ratio is kept, and the image is padded with black on all
    sides to `size`. `do_align_long_axis` first rotates an image by 90° clockwise if its orientation
    (portrait or landscape) differs from that of `size`. `invert` replaces a pixel by 255 - pixel;
    `auto` inverts an image with a light border, for models that were trained on light strokes over
    a dark background.

    If `sizing` is set, the output size depends on the image: a multiple of `size_multiple` within
    `size_bounds`. For tiled images, `size` is the tile size. `patch_lengths` splits the image into
    flattened patches: (side) puts channels last; (side, merge, frames) forms blocks of merge ×
    merge patches, repeated for each frame. `shape_input` contains image shapes. `overview_tokens`
    is the number of tokens before those of the tiles. If `max_side` is set, a feature map of more
    than 1.21 · `max_side`² tiles is shrunk, and several images in one prompt are not tiled.
    """

    tag = "image"
    size: Annotated[
        tuple[int, int], partial(JsonReader.read_ints, count=2, low=0, high=MAX_SIDE)
    ] = NO_SIZE
    channels: Annotated[int, make_int_range_reader(1, 3)] = 3
    resample: Resampling = "bilinear"
    scale: float = 1 / 255
    mean: PerChannel = (0.0,)
    std: PerChannel = (1.0,)
    invert: Annotated[bool | Literal["auto"], _read_invert] = False
    do_center_crop: bool = False
    resize_lengths: Annotated[tuple[int, ...], _read_lengths] = ()
    resizes_to_uint8: bool = False
    shortest_longest_edge: Annotated[tuple[int, ...], _read_lengths] = ()
    size_multiple: Annotated[int, make_int_range_reader(1, MAX_SIDE)] = 1
    pads_all_sides: bool = False
    do_align_long_axis: bool = False
    sizing: Sizing = ""
    size_bounds: Annotated[
        tuple[tuple[int, ...], ...], partial(_read_tuples, count=2, low=1, high=MAX_SIDE**2)
    ] = ()
    do_image_splitting: bool = True
    patch_lengths: Annotated[tuple[int, ...], _read_lengths] = ()
    shape_input: str = ""
    overview_tokens: Annotated[int, make_int_range_reader(0, MAX_SIDE**2)] = 0
    max_side: Annotated[int, make_int_range_reader(0, MAX_SIDE)] = 0

    def check_fields(self, fields: JsonReader) -> None:
        """Raise an error if the size is missing or if the numbers of channels are inconsistent."""
        if self.size != NO_SIZE or self.sizing in ("", "tiles", "anyres", "square"):
            fields.read_ints("size", 2, 1, MAX_SIDE)
        if self.sizing not in ("", "square") and not self.size_bounds:
            fields.raise_invalid("bounds", "is empty")
        if self.channels == 2:
            fields.raise_invalid("channels", "is neither 1 nor 3")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                fields.raise_invalid(name, f"has {len(values)} values for {self.channels} channels")
        if min(self.std) <= 0:
            fields.raise_invalid("std", "contains a value that is not positive")
        if self.scale <= 0:
            fields.raise_invalid("scale", "is not positive")


@immutable_dataclass
class VocabTokenizer(AliasedFieldRecord):
    """A tokenizer that maps text to ids of `vocab`, and unknown words to `unknown_token_id`."""

    vocab: Vocabulary
    end_token_id: TokenId = None
    start_token_id: TokenId = None
    unknown_token_id: TokenId = None

    @property
    def vocab_size(self) -> int:
        """Return the vocabulary size."""
        return len(self.vocab)

    def check_fields(self, fields: JsonReader) -> None:
        """Raise an error if the vocabulary has gaps or if a special token id is out of range."""
        if not self.vocab or not all(self.vocab):
            fields.raise_invalid("vocab", "is empty or contains an empty token")
        if len(set(self.vocab)) != self.vocab_size:
            fields.raise_invalid("vocab", "contains a duplicate token")
        end, unknown = self.end_token_id, self.unknown_token_id
        _check_ids(fields, self.vocab_size, end=end, start=self.start_token_id, unknown=unknown)


@immutable_dataclass
class CharTokenizer(VocabTokenizer):
    """A character-level tokenizer. Multi-character entries (`<pad>`) are special tokens."""

    tag = "characters"


@immutable_dataclass
class WordTokenizer(VocabTokenizer):
    """A word-level tokenizer. `do_lower_case` lowercases words before the lookup."""

    tag = "words"
    do_lower_case: bool = False


@immutable_dataclass
class ByteTokenizer(AliasedFieldRecord):
    """A byte-level tokenizer. The id of a UTF-8 byte is `byte + offset`, and ids below `offset` are
    special tokens. ByT5 (arXiv:2105.13626) has offset 3: pad 0, eos 1, unk 2.
    """

    tag = "bytes"
    offset: Annotated[int, make_int_range_reader(0, MAX_VOCABULARY)] = 0
    end_token_id: TokenId = None
    start_token_id: TokenId = None

    @property
    def vocab_size(self) -> int:
        """Return the vocabulary size."""
        return 256 + self.offset

    def check_fields(self, fields: JsonReader) -> None:
        """Raise an error if a special token id is outside the vocabulary."""
        _check_ids(fields, self.vocab_size, end=self.end_token_id, start=self.start_token_id)


def _check_ids(fields: JsonReader, size: int, **ids: int | None) -> None:
    for name, number in ids.items():
        if number is not None and number >= size:
            fields.raise_invalid(name, f"is not between 0 and {size - 1}")


@immutable_dataclass(slots=True, kw_only=True)
class WaveformConfig(AliasedFieldRecord):
    """A waveform, float32 [samples], with values from -1 to 1. `do_normalize` scales a waveform to
    mean 0 and variance 1, as in wav2vec 2.0 (arXiv:2006.11477, sec. 2).
    """

    tag = "waveform"
    sample_rate: SampleRate = 16_000
    do_normalize: bool = True


@immutable_dataclass(slots=True, kw_only=True)
class LogMelConfig(AliasedFieldRecord):
    """A log-mel spectrogram, float32 [bins, frames], for Whisper (arXiv:2212.04356, sec. 2.2).

    Audio shorter than `num_samples` is padded with silence. Longer audio raises an error unless
    `do_truncate` is True. `window_length` and `hop_length` are in samples.
    """

    tag = "log_mel"
    num_mel_bins: MelBins = 80
    num_frames: FrameCount = 3000
    sample_rate: SampleRate = 16_000
    window_length: Annotated[int, make_int_range_reader(2, MAX_WINDOW_LENGTH)] = 400
    hop_length: Annotated[int, make_int_range_reader(1, MAX_WINDOW_LENGTH)] = 160
    do_truncate: bool = False

    @property
    def num_samples(self) -> int:
        """Return the number of samples in `num_frames` hops."""
        return self.num_frames * self.hop_length

    def check_fields(self, fields: JsonReader) -> None:
        """Raise an error if the audio is too short for reflection padding by half a window."""
        if self.num_samples <= self.window_length // 2:
            fields.raise_invalid("frames", "cover less than half a window")


@immutable_dataclass(slots=True, kw_only=True)
class FilterBankConfig(AliasedFieldRecord):
    """Kaldi log filter banks, float32 [frames, bins], for the Audio Spectrogram Transformer
    (arXiv:2104.01778, sec. 2.1). The window has 400 samples, and the hop 160.

    Shorter audio is zero-padded. Longer audio is truncated if `do_truncate` is True, and an error
    otherwise. If `do_normalize` is True, each value is normalized to `(x - mean) / (2 * std)`.
    """

    tag = "filter_banks"
    num_mel_bins: MelBins = 128
    num_frames: FrameCount = 1024
    sample_rate: SampleRate = 16_000
    mean: float = -4.2677393
    std: float = 4.5689974
    do_normalize: bool = True
    do_truncate: bool = True

    def check_fields(self, fields: JsonReader) -> None:
        """Raise an error if the standard deviation is not positive."""
        if self.std <= 0:
            fields.raise_invalid("std", "is not positive")


@immutable_dataclass
class ArrayConfig(JsonRecord):
    """An output printed as an array with `digits` significant digits, the default format."""

    tag = "numbers"
    digits: Annotated[int, make_int_range_reader(1, 17)] = 4


TextConfig: TypeAlias = CharTokenizer | WordTokenizer | ByteTokenizer | HfTokenizer
TEXT_CONFIGS = (CharTokenizer, WordTokenizer, ByteTokenizer, HfTokenizer)
"""The record classes of text inputs, i.e. all tokenizers."""
AudioConfig: TypeAlias = WaveformConfig | LogMelConfig | FilterBankConfig
AUDIO_CONFIGS = (WaveformConfig, LogMelConfig, FilterBankConfig)
TEXT_RECORDS: Mapping[str, type[TextConfig]] = {record.tag: record for record in TEXT_CONFIGS}
TEXT_TAGS = tuple(TEXT_RECORDS)
AUDIO_TAGS = tuple(record.tag for record in AUDIO_CONFIGS)


def _read_vocabulary(fields: JsonReader, name: str) -> TextConfig:
    return parse_tagged_record(fields.read_object(name), TEXT_RECORDS)


def _read_image(fields: JsonReader, name: str) -> ImageConfig:
    return parse_tagged_record(fields.read_object(name), {ImageConfig.tag: ImageConfig})


@immutable_dataclass
class ClassificationOutput(AliasedFieldRecord):
    """Class scores along the last axis, printed as the `top_k` labels with their probabilities."""

    tag = "choice"
    labels: Labels = ()
    top_k: Annotated[int, make_int_range_reader(1, MAX_LABELS)] = 1


@immutable_dataclass
class TextOutput(JsonRecord):
    """Token ids, or logits along the last axis, that are decoded to text."""

    tag = "text"
    vocabulary: Annotated[TextConfig, _read_vocabulary]


@immutable_dataclass
class ImageOutput(JsonRecord):
    """Normalized pixels, which the inverse of `image` (without `auto`) converts to an image."""

    tag = "picture"
    image: Annotated[ImageConfig, _read_image]


@immutable_dataclass
class SegmentationOutput(JsonRecord):
    """A segmentation map: scores `[batch, classes, height, width]` or class ids `[batch, height,
    width]`. `palette` contains the RGB values of each class. If it is empty, specc chooses colors.
    """

    tag = "class_map"
    labels: Labels = ()
    palette: Annotated[
        tuple[tuple[int, ...], ...], partial(_read_tuples, count=3, low=0, high=255)
    ] = ()

    def check_fields(self, fields: JsonReader) -> None:
        """Raise an error if the palette size differs from the number of labels."""
        if self.palette and self.labels and len(self.palette) != len(self.labels):
            counts = f"{len(self.palette)} colors for {len(self.labels)} labels"
            fields.raise_invalid("palette", f"has {counts}")


def _read_name(fields: JsonReader, name: str) -> str:
    text = fields.read_string(name)
    if len(text) > MAX_TOKEN:
        fields.raise_invalid(name, f"is not a string of at most {MAX_TOKEN} characters")
    return text


ShortText: TypeAlias = Annotated[str, _read_name]


@immutable_dataclass(slots=True, kw_only=True)
class CtcOutput(AliasedFieldRecord):
    """CTC best-path decoding of scores [batch, positions, tokens]: select the best token at each
    position, merge repeated tokens, and remove blanks.

    `mask_output` is the output with the padding mask, or "". `word_delimiter` is the token between
    words, decoded to `word_separator`. Ids outside `vocab` become `unknown_token`.
    """

    tag = "transcript"
    vocab: Vocabulary
    blank_token_id: Annotated[int, make_int_range_reader(0, MAX_ID)] = 0
    mask_output: ShortText = ""
    word_delimiter: ShortText = "|"
    word_separator: ShortText = " "
    unknown_token: ShortText = "<unk>"
    do_lower_case: bool = False

    def check_fields(self, fields: JsonReader) -> None:
        """Raise an error if the vocabulary is empty or lacks the blank token."""
        if not self.vocab:
            fields.raise_invalid("vocab", "is empty")
        _check_ids(fields, len(self.vocab), blank=self.blank_token_id)


@immutable_dataclass(slots=True, kw_only=True)
class DetectionOutput(AliasedFieldRecord):
    """Class logits [batch, queries, classes] of an object detector, printed as a table of at most
    `max_detections` boxes with scores above `threshold`.

    The output `boxes_output` contains (center_x, center_y, width, height) from 0 to 1.
    `score_function` is `softmax` over the classes and "no object" (the last class), or `sigmoid`
    per class.
    """

    tag = "boxes"
    labels: Labels = ()
    boxes_output: ShortText = "pred_boxes"
    score_function: Literal["softmax", "sigmoid"] = "softmax"
    threshold: float = 0.5
    max_detections: Annotated[int, make_int_range_reader(1, MAX_LABELS)] = 100


InputConfig: TypeAlias = ImageConfig | AudioConfig | TextConfig | ArrayConfig
OutputFormat: TypeAlias = (
    ClassificationOutput
    | ArrayConfig
    | TextOutput
    | CtcOutput
    | ImageOutput
    | SegmentationOutput
    | DetectionOutput
)
INPUT_RECORDS: Mapping[str, type[InputConfig]] = {
    record.tag: record for record in (ImageConfig, *AUDIO_CONFIGS, *TEXT_CONFIGS, ArrayConfig)
}
OUTPUT_RECORDS: Mapping[str, type[OutputFormat]] = {
    record.tag: record
    for record in (
        *(ClassificationOutput, ArrayConfig, TextOutput, CtcOutput),
        *(ImageOutput, SegmentationOutput, DetectionOutput),
    )
}
