"""Read the image settings in preprocessor_config.json: resize, crop and normalization."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specc.diagnostics.diagnostic import Label, Span, raise_error
from specc.frontend.config_json import JsonList, JsonMember, JsonObject, get_finite_number
from specc.huggingface.processor_files import PREPROCESSOR, PROCESSOR, find_first_file
from specc.huggingface.tiled_image_processor_config import read_dynamic_size_options
from specc.io.safe_read import escape_text
from specc.library.spec_files import load_config_json

PROCESSOR_KEY = "image_processor"
"""The key of the image processor settings in a processor_config.json."""
RESAMPLING_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Names of Pillow's resampling filters by number."""
MISSING_CONFIG_HELP = (
    "download the file that belongs to the weights, or compile from a directory without it, "
    "to use the preprocessing of the spec"
)
MIN_CROP_RATIO = 0.01
CONVNEXT_WARP_SIZE = 384
"""Minimum image size at which ConvNeXt resizes images without a crop."""

_HALF_STATS = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
_CLIP_STATS = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_IMAGENET_STATS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of each channel in ImageNet."""


@dataclass(frozen=True, kw_only=True)
class _Defaults:
    """Default settings of an image processor class of transformers.

    `resizes_short_edge`: a single integer is the size of the shorter side, not of both sides.
    `crop_ratio` is the crop ratio of ConvNeXt. `side_multiple`: images keep their aspect ratio,
    have sides that are multiples of this number, and are padded to the model's size. `is_page`:
    images keep their aspect ratio and are centered. `normalize` is the default of `do_normalize`.
    `sizing` is the rule for dynamic image sizes; `settings` are the defaults of its options.
    """

    filter: int
    size: tuple[int, ...] = ()
    channel_stats: tuple[tuple[float, ...], tuple[float, ...]] = _HALF_STATS
    resizes_short_edge: bool = False
    crop: int = 0
    crop_ratio: float = 0.0
    side_multiple: int = 0
    is_page: bool = False
    normalize: bool = True
    sizing: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)


_CLIP = _Defaults(
    size=(224,), filter=3, channel_stats=_CLIP_STATS, resizes_short_edge=True, crop=224
)
_BLIP = _Defaults(size=(384, 384), filter=3, channel_stats=_CLIP_STATS)
_DETR = _Defaults(size=(800, 1333), filter=2, channel_stats=_IMAGENET_STATS, side_multiple=1)
_CLASS_DEFAULTS: Mapping[str, _Defaults] = {
    "ViT": _Defaults(size=(224, 224), filter=2),
    "DeiT": _Defaults(size=(256, 256), filter=3, crop=224),
    "Beit": _Defaults(size=(224, 224), filter=3),
    "CLIP": _CLIP,
    "Bit": _CLIP,
    "Siglip": _Defaults(size=(224, 224), filter=3, resizes_short_edge=True),
    "Blip": _BLIP,
    "Gemma3": _Defaults(size=(224, 224), filter=2),
    "GotOcr2": _BLIP,
    "ConvNext": _Defaults(size=(384,), filter=3, resizes_short_edge=True, crop_ratio=224 / 256),
    "Segformer": _Defaults(size=(512, 512), filter=2, channel_stats=_IMAGENET_STATS),
    "Detr": _DETR,
    "ConditionalDetr": _DETR,
    "DeformableDetr": _DETR,
    "RTDetr": _Defaults(size=(640, 640), filter=2, channel_stats=_IMAGENET_STATS, normalize=False),
    "Mask2Former": _Defaults(size=(384, 384), filter=2, channel_stats=_IMAGENET_STATS),
    "OwlViT": _Defaults(size=(768, 768), filter=3, channel_stats=_CLIP_STATS),
    "Yolos": _Defaults(size=(800, 1333), filter=2, channel_stats=_IMAGENET_STATS, side_multiple=16),
    "Donut": _Defaults(size=(2560, 1920), filter=2, channel_stats=_IMAGENET_STATS, is_page=True),
}
_IDEFICS3 = _Defaults(filter=1, sizing="tiles", settings={"size": 1456, "max_image_size": 364})
_SIZED_DEFAULTS: Mapping[str, _Defaults] = {
    "Qwen2VL": _Defaults(
        filter=3, channel_stats=_CLIP_STATS, sizing="area",
        settings={
            "size": {"shortest_edge": 3136, "longest_edge": 1003520},
            "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
        },
    ),
    "Pixtral": _Defaults(
        filter=3, channel_stats=_CLIP_STATS, sizing="within", settings={"size": 1024}
    ),
    "Idefics3": _IDEFICS3,
    "SmolVLM": _IDEFICS3,
    "LlavaNext": _Defaults(
        filter=3, channel_stats=_CLIP_STATS, sizing="anyres",
        settings={"size": 224, "crop_size": 224},
    ),
    "LlavaOnevision": _Defaults(
        filter=3, channel_stats=_CLIP_STATS, sizing="anyres", settings={"size": 384}
    ),
    "Owlv2": _Defaults(
        filter=2, channel_stats=_CLIP_STATS, sizing="square", settings={"size": 960}
    ),
    "Siglip2": _Defaults(
        filter=2, sizing="patches", settings={"patch_size": 16, "max_num_patches": 256}
    ),
}  # fmt: skip
"""Defaults of image processors whose output size depends on the image."""
_CLASS_SUFFIX = r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$"
_SUPPORTED_KEYS = frozenset(
    {
        "do_resize", "size", "resample", "do_center_crop", "crop_size", "crop_pct",
        "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std",
        "do_thumbnail", "do_align_long_axis", "min_pixels", "max_pixels", "patch_size",
        "merge_size", "temporal_patch_size", "max_num_patches", "max_image_size",
        "do_image_splitting", "image_grid_pinpoints",
    }
)  # fmt: skip
_IGNORED_KEYS = frozenset(
    {
        "image_processor_type", "feature_extractor_type", "processor_class",
        "do_convert_rgb", "do_reduce_labels", "reduce_labels", "input_data_format",
        "return_tensors", "device", "disable_grouping", "default_to_square",
        "_valid_processor_keys", "backend", "image_seq_length", "format",
        "do_convert_annotations", "return_row_col_info",
    }
)  # fmt: skip
_BY_CHANNEL = ("image_mean", "image_std")


def read_image_options(
    spec_options: Mapping[str, object], directories: Sequence[Path], span: Span | None
) -> dict[str, object]:
    """Read the options of image preprocessing: `spec_options`, overridden by the config file in the
    first of `directories` that has one. Raise E0422 if the file is not supported, or if the image
    sizes of file and model differ.
    """
    file = _find_file(directories)
    if file is None:
        return dict(spec_options)
    reader = _FileReader(file, span, str(spec_options.get("sizing", "")))
    if reader.kind.sizing or spec_options.get("sizing"):
        kind = reader.kind
        size_options = read_dynamic_size_options(reader, kind.sizing, kind.settings, spec_options)
        return {**spec_options, **size_options, **reader.read_pixel_options()}
    file_options = reader.read_options()
    expected = spec_options.get("size")
    size = [*expected] if isinstance(expected, list | tuple) else None
    if size is not None and file_options["size"] not in (None, size):
        reader.raise_unsupported(
            "size", f"it resizes images to {file_options['size']}, the model needs {size}"
        )
    # use the first of three channel statistics in the file if the model has one channel
    if spec_options.get("channels") == 1:
        for key in ("mean", "std"):
            value = file_options[key]
            file_options[key] = value[:1] if isinstance(value, list) else value
    return {**spec_options, **{k: v for k, v in file_options.items() if v is not None}}


def find_preprocessor_config(directories: Sequence[Path]) -> Path | None:
    """Return the path of the first preprocessor config, or None if there is no such file."""
    return find_first_file(directories, (PREPROCESSOR, PROCESSOR))


def describe_image_config(directories: Sequence[Path]) -> Iterator[str]:
    """Yield remarks on the config file that is used, and on its ignored keys."""
    file, path = _find_file(directories), find_preprocessor_config(directories)
    if file is None or path is None:
        return
    yield f"image preprocessing settings are from `{escape_text(path)}`"
    known_keys = _SUPPORTED_KEYS | _IGNORED_KEYS | {"do_pad", "data_format", "max_size", "pad_size"}
    for key, member in file.members.items():
        value = member.value.to_plain()
        if key not in known_keys and value:
            yield f"`{escape_text(key)[:60]}` in `{escape_text(path)}` has no effect"
        if key in _BY_CHANNEL and isinstance(value, list) and len(value) == 1:
            yield f"`{key}` in `{escape_text(path)}` has one value, used for all channels"


def _find_file(directories: Sequence[Path]) -> JsonObject | None:
    """Return the image processor settings in the first config file, or None."""
    path = find_preprocessor_config(directories)
    if path is None:
        return None
    data = load_config_json(path)
    part = data.find_non_null(PROCESSOR_KEY)
    if part is not None and isinstance(part.value, JsonObject):
        return part.value
    # A config of an audio or text processor contains no image settings.
    image_keys = ("image_mean", "size", "do_resize", "crop_size")
    has_images = path.name == PREPROCESSOR and any(map(data.find_non_null, image_keys))
    return data if has_images else None


class _FileReader:
    """Reads the image options in a preprocessor config. Raises E0422 for an unsupported key."""

    def __init__(self, file: JsonObject, span: Span | None, sizing: str = "") -> None:
        self.file, self.span, self.sizing = file, span, sizing
        self.kind = self._find_processor_defaults()

    def read_options(self) -> dict[str, object]:
        """Return the options of `image(…)` that the file sets."""
        self._check_supported()
        fitted = _read_fitted_size(self) if self.kind.side_multiple else None
        # set None if the option of the spec applies, because False would override the option
        if fitted:
            size, resized = self.read_size("pad_size", (), edge=False) or None, None
        else:
            size, resized = self._read_sizes()
        is_page = self.kind.is_page
        return {
            "size": size,
            "resized": resized,
            "fitted": fitted,
            "multiple": self.kind.side_multiple if fitted else None,
            "centered": is_page or None,
            "aligned": (is_page and self.read_bool("do_align_long_axis", False)) or None,
            "crop": False,
            **self.read_pixel_options(),
        }

    def _check_supported(self) -> None:
        """Raise E0422 if the value of a key is not supported."""
        # images in a fixed frame are always padded, and document pages without a frame are never
        # padded
        padding_values = (True, False) if self.kind.side_multiple else (self.kind.is_page,)
        for key, expected in (("do_pad", padding_values), ("data_format", ("channels_first",))):
            if self.read_value(key, expected[0]) not in expected:
                self.raise_unsupported(key, "unsupported value")

    def read_pixel_options(self) -> dict[str, object]:
        """Read the resampling, rescale and normalization options, and validate disabled options."""
        mean, std = self._read_channel_values("image_mean"), self._read_channel_values("image_std")
        if not self.read_bool("do_normalize", self.kind.normalize):
            mean, std = [0.0], [1.0]
        scale = self.read_number("rescale_factor", 1 / 255)
        if not self.read_bool("do_rescale", True):
            scale = 1.0
        filter = self._read_filter()
        return {"resize": filter, "rounded": True, "scale": scale, "mean": mean, "std": std}

    def _find_processor_defaults(self) -> _Defaults:
        """Return the defaults of the image processor class. If the file names no class, return the
        defaults of ViT, or of the processor for the spec's `sizing` rule.
        """
        for key in ("image_processor_type", "feature_extractor_type"):
            if self.file.find_non_null(key) is None:
                continue
            class_name = re.sub(_CLASS_SUFFIX, "", str(self.read_value(key, "")))
            defaults = {**_CLASS_DEFAULTS, **_SIZED_DEFAULTS}
            if class_name not in defaults:
                self.raise_unsupported(key, f"expected one of {', '.join(defaults)}")
            return defaults[class_name]
        candidates = (c for c in _SIZED_DEFAULTS.values() if c.sizing == self.sizing)
        return next(candidates, _CLASS_DEFAULTS["ViT"])

    def read_value(self, key: str, default: object) -> object:
        """Return the value of a key, or `default` if the key is absent or null."""
        member = self.file.find_non_null(key)
        return default if member is None else member.value.to_plain()

    def _read_sizes(self) -> tuple[list[int] | None, list[int] | None]:
        """Read the output size and the size before the center crop. The output size is None if the
        model determines it, and the size before the crop is None without a crop.
        """
        if self.kind.is_page:
            return _read_page_size(self), None
        size = self.read_size("size", self.kind.size, edge=self.kind.resizes_short_edge)
        if not self.read_bool("do_resize", True):
            if self.read_bool("do_center_crop", bool(self.kind.crop)):
                self.raise_unsupported("do_resize", "a crop without resizing is not supported")
            return None, None  # use the input size of the model
        if self.kind.crop_ratio:
            return _read_crop_sizes(self, size)
        if not self.read_bool("do_center_crop", bool(self.kind.crop)):
            if len(size) == 1:
                self.raise_unsupported("size", "without a crop the aspect ratio is undefined")
            return size, None
        crop_size = self.read_size("crop_size", (self.kind.crop,) * 2, edge=False)
        return crop_size, size

    def read_size(self, key: str, default: tuple[int, ...], *, edge: bool) -> list[int]:
        """Read a height and width, or the size of the shorter side."""
        match self.read_value(key, None):
            case None:
                return list(default)
            case bool():
                pass
            case int(number) if number > 0:
                return [number] if edge else [number, number]
            case {"height": int(rows), "width": int(columns), **rest} if not any(rest.values()):
                return [rows, columns]
            case {"shortest_edge": int(length), **rest} if not any(rest.values()):
                return [length]
        self.raise_unsupported(key, "unsupported size")

    def _read_filter(self) -> str:
        number = self.read_value("resample", self.kind.filter)
        if type(number) is int and 0 <= number < len(RESAMPLING_FILTERS):
            return RESAMPLING_FILTERS[number]
        self.raise_unsupported("resample", "unknown resampling filter")

    def _read_channel_values(self, key: str) -> list[float]:
        member = self.file.find_non_null(key)
        if member is None:
            return list(self.kind.channel_stats[_BY_CHANNEL.index(key)])
        value = member.value
        items = value.items if isinstance(value, JsonList) else (value,)
        values = [float(n) for n in map(get_finite_number, items) if n is not None]
        if len(values) != len(items) or len(values) not in (1, 3):
            self.raise_unsupported(key, "expected one number per channel, or one for all")
        return values

    def read_number(self, key: str, default: float) -> float:
        member = self.file.find_non_null(key)
        value = default if member is None else get_finite_number(member.value)
        if value is None or value <= 0:
            self.raise_unsupported(key, "expected a number > 0")
        return float(value)

    def read_bool(self, key: str, default: bool) -> bool:
        member = self.file.find_member(key)  # transformers treats null as False
        value = default if member is None else member.value.to_plain()
        if not isinstance(value, bool | None):
            self.raise_unsupported(key, "expected true or false")
        return value is True

    def raise_unsupported(self, key: str, reason: str) -> NoReturn:
        """Raise E0422 at a key of the file, or at the spec if the file lacks the key."""
        member: JsonMember | None = self.file.find_non_null(key)
        related_labels = [Label(self.span, "read for this entry of the spec")] if self.span else []
        raise_error(
            "E0422",
            f'unsupported "{escape_text(key)}" in the image preprocessing settings',
            member.span if member else self.file.span,
            reason,
            related_labels=related_labels,
            helps=[MISSING_CONFIG_HELP],
        )


def _read_crop_sizes(reader: _FileReader, size: list[int]) -> tuple[list[int], list[int] | None]:
    """Read the sizes for ConvNeXt, which only crops small images."""
    if len(size) != 1:
        reader.raise_unsupported("size", "expected an object with `shortest_edge`")
    (edge,) = size
    if edge >= CONVNEXT_WARP_SIZE:
        return [edge, edge], None
    crop_ratio = reader.read_number("crop_pct", reader.kind.crop_ratio)
    if crop_ratio < MIN_CROP_RATIO:
        reader.raise_unsupported("crop_pct", f"expected at least {MIN_CROP_RATIO}")
    return [edge, edge], [int(edge / crop_ratio)]


def _read_fitted_size(reader: _FileReader) -> list[int] | None:
    """Read the shorter side and the maximum longer side. Return None if the size is fixed."""
    if not reader.read_bool("do_resize", True):
        reader.raise_unsupported("do_resize", "images without resizing are not supported")
    max_size = reader.read_value("max_size", reader.kind.size[1])
    sizes: list[int] = []
    match reader.read_value("size", {}):
        case {"shortest_edge": int(shorter), "longest_edge": int(longer), **rest}:
            sizes = [] if any(rest.values()) else [shorter, longer]
        case {"height": int(), "width": int()}:
            return None
        # files from before 2023 contain the shorter side and `max_size`
        case int(shorter) if isinstance(max_size, int):
            sizes = [shorter, max_size]
        # without sizes, the default of the processor class applies
        case {**rest} if not rest:
            sizes = list(reader.kind.size)
    # exclude booleans, which match `int` in a pattern
    if not sizes or any(isinstance(n, bool) or n < 1 for n in sizes):
        reader.raise_unsupported("size", "unsupported size")
    return sizes


def _read_page_size(reader: _FileReader) -> list[int]:
    """Read the height and width of a document page. Raise E0422 for dynamic size settings."""
    for key, expected in (
        ("do_resize", True), ("do_thumbnail", True), ("do_center_crop", False),
    ):  # fmt: skip
        if reader.read_bool(key, expected) is not expected:
            reader.raise_unsupported(key, "document pages must be resized, not cropped")
    match reader.read_value("size", None):
        # files from before 2023 contain the width before the height
        case [int(columns), int(rows)] if columns > 0 and rows > 0:
            return [rows, columns]
    size = reader.read_size("size", reader.kind.size, edge=False)
    if len(size) != 2:
        reader.raise_unsupported("size", "expected `height` and `width`")
    return size
