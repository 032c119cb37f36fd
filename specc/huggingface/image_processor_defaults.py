"""Read individual settings in a preprocessor_config.json, with the defaults of transformers' image
processor classes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from specc.diagnostics.diagnostic import Label, Span, raise_error
from specc.frontend.json_parser_with_spans import (
    JsonArray,
    JsonMember,
    JsonObject,
    get_finite_number,
)
from specc.io.json_io import get_exact_integer
from specc.io.safe_read import escape_text

RESAMPLING_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""The names of Pillow's resampling filters, keyed by number."""
MISSING_CONFIG_HELP = (
    "download the file that belongs to the weights, or compile from a directory without it, "
    "to use the preprocessing of the spec"
)
_HALF_STATS = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
_CLIP_STATS = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_IMAGENET_STATS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of each channel in ImageNet."""


@dataclass(frozen=True, kw_only=True)
class _Defaults:
    """Default settings of an image processor class of transformers.

    If `resizes_short_edge` is True, a single integer is the size of the shorter side, not of both
    sides. `crop_ratio` is the crop ratio of ConvNeXt. If `side_multiple` is set, images keep their
    aspect ratio, have sides that are multiples of `side_multiple`, and are padded to the model's
    size. If `is_page` is True, images keep their aspect ratio and are centered. `normalize` is the
    default of `do_normalize`. `sizing` is the rule for dynamic image sizes, and `settings` are the
    defaults of its options.
    """

    filter: int = 2
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
_DETR = _Defaults(size=(800, 1333), channel_stats=_IMAGENET_STATS, side_multiple=1)
_CLASS_DEFAULTS: Mapping[str, _Defaults] = {
    "ViT": _Defaults(size=(224, 224)),
    "DeiT": _Defaults(size=(256, 256), filter=3, crop=224),
    "Beit": _Defaults(size=(224, 224), filter=3),
    "CLIP": _CLIP,
    "Bit": _CLIP,
    "Siglip": _Defaults(size=(224, 224), filter=3, resizes_short_edge=True),
    "Blip": _BLIP,
    "Gemma3": _Defaults(size=(224, 224)),
    "GotOcr2": _BLIP,
    "ConvNext": _Defaults(size=(384,), filter=3, resizes_short_edge=True, crop_ratio=224 / 256),
    "Segformer": _Defaults(size=(512, 512), channel_stats=_IMAGENET_STATS),
    "Detr": _DETR,
    "ConditionalDetr": _DETR,
    "DeformableDetr": _DETR,
    "GroundingDino": _DETR,
    "RTDetr": _Defaults(size=(640, 640), channel_stats=_IMAGENET_STATS, normalize=False),
    "Mask2Former": _Defaults(size=(384, 384), channel_stats=_IMAGENET_STATS),
    "OwlViT": _Defaults(size=(768, 768), filter=3, channel_stats=_CLIP_STATS),
    "Yolos": _Defaults(size=(800, 1333), channel_stats=_IMAGENET_STATS, side_multiple=16),
    "Donut": _Defaults(size=(2560, 1920), channel_stats=_IMAGENET_STATS, is_page=True),
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
    "Owlv2": _Defaults(channel_stats=_CLIP_STATS, sizing="square", settings={"size": 960}),
    "Siglip2": _Defaults(sizing="patches", settings={"patch_size": 16, "max_num_patches": 256}),
}  # fmt: skip
"""Default settings of image processors whose output size depends on the size of the image."""
_CLASS_SUFFIX = r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$"
CHANNEL_KEYS = ("image_mean", "image_std")
"""Settings with one value per channel."""


class ImageSettingsReader:
    """A reader of individual settings in a preprocessor config. A missing setting has the default
    of the image processor class (`defaults`). The methods raise E0422 for an unsupported value.
    """

    def __init__(self, file: JsonObject, span: Span | None, sizing: str = "") -> None:
        self.file, self.span, self.sizing = file, span, sizing
        self.defaults = self._find_processor_defaults()

    def read_pixel_options(self) -> dict[str, object]:
        """Read the resampling, rescale and normalization options, and validate disabled options."""
        mean, std = self._read_channel_values("image_mean"), self._read_channel_values("image_std")
        if not self.read_bool("do_normalize", self.defaults.normalize):
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
            if self.file.find_non_null_member(key) is None:
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
        member = self.file.find_non_null_member(key)
        return default if member is None else member.value.to_python()

    def read_size(self, key: str, default: tuple[int, ...], *, short_edge: bool) -> list[int]:
        """Read a height and width, or the size of the shorter side."""
        match self.read_value(key, None):
            case None:
                return list(default)
            case bool():
                pass
            case int(number) if number > 0:
                return [number] if short_edge else [number, number]
            case {"height": int(rows), "width": int(columns), **rest} if not any(rest.values()):
                return [rows, columns]
            case {"shortest_edge": int(length), **rest} if not any(rest.values()):
                return [length]
        self.raise_unsupported(key, "unsupported size")

    def read_int(self, key: str, *subkeys: str) -> int:
        """Read a positive integer: the value of `key` or, if the value is an object, the first of
        its members in `subkeys`.
        """
        value = self.read_value(key, self.defaults.settings.get(key))
        if isinstance(value, dict):
            value = next((value[part] for part in subkeys if value.get(part) is not None), None)
        length = get_exact_integer(value)
        if length is None or length < 1:
            self.raise_unsupported(key, "expected an integer > 0")
        return length

    def check_int(self, key: str, expected: object, *subkeys: str) -> None:
        """Raise E0422 if the length under `key` differs from `expected`, the value in the spec. If
        `expected` is not an integer, any length is accepted.
        """
        length = self.read_int(key, *subkeys)
        if isinstance(expected, int) and length != expected:
            self.raise_unsupported(key, f"got {length}, expected {expected}")

    def _read_filter(self) -> str:
        number = self.read_value("resample", self.defaults.filter)
        if type(number) is int and 0 <= number < len(RESAMPLING_FILTERS):
            return RESAMPLING_FILTERS[number]
        self.raise_unsupported("resample", "unknown resampling filter")

    def _read_channel_values(self, key: str) -> list[float]:
        member = self.file.find_non_null_member(key)
        if member is None:
            return list(self.defaults.channel_stats[CHANNEL_KEYS.index(key)])
        value = member.value
        items = value.items if isinstance(value, JsonArray) else (value,)
        values = [float(n) for n in map(get_finite_number, items) if n is not None]
        if len(values) != len(items) or len(values) not in (1, 3):
            self.raise_unsupported(key, "expected one number per channel, or one for all")
        return values

    def read_number(self, key: str, default: float) -> float:
        """Return the positive number under a key, or `default` if the key is absent or null."""
        member = self.file.find_non_null_member(key)
        value = default if member is None else get_finite_number(member.value)
        if value is None or value <= 0:
            self.raise_unsupported(key, "expected a number > 0")
        return float(value)

    def read_bool(self, key: str, default: bool) -> bool:
        """Return the boolean under a key, or `default` if the key is absent. Null means False."""
        member = self.file.find_member(key)  # transformers treats null as False
        value = default if member is None else member.value.to_python()
        if not isinstance(value, bool | None):
            self.raise_unsupported(key, "expected true or false")
        return value is True

    def raise_unsupported(self, key: str, reason: str) -> NoReturn:
        """Raise E0422 at a key of the file, or at the spec if the file lacks the key."""
        member: JsonMember | None = self.file.find_non_null_member(key)
        related_labels = [Label(self.span, "read for this entry of the spec")] if self.span else []
        raise_error(
            "E0422",
            f'unsupported "{escape_text(key)}" in the image preprocessing settings',
            member.span if member else self.file.span,
            reason,
            related_labels=related_labels,
            helps=[MISSING_CONFIG_HELP],
        )
