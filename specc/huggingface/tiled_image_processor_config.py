"""Read the settings of image processors whose output size depends on the image size."""

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol


class SettingsReader(Protocol):
    """An interface for typed access to the keys of a preprocessor_config.json."""

    def read_value(self, key: str, default: object) -> object:
        """Return the value of a key, or `default` if the key is absent or null."""

    def read_bool(self, key: str, default: bool) -> bool:
        """Return the boolean value of a key, or `default` if the key is absent or null."""

    def raise_unsupported(self, key: str, reason: str) -> NoReturn:
        """Raise E0422 at the position of `key`; the message contains `reason`."""


Options = dict[str, object]
FIXED_SETTINGS: Mapping[str, Sequence[object]] = {
    "do_resize": (True,),
    "do_center_crop": (None, False),
    "return_row_col_info": (None, True, False),
}
"""The only supported values of settings, unless a sizing rule supports other values."""


def read_dynamic_size_options(
    reader: SettingsReader, sizing: str, default: Mapping[str, object], spec: Mapping[str, object]
) -> Options:
    """Read the options of the rule `sizing`. `default` are the default settings of the processor
    class, and `spec` are the options in the spec. Raise E0422 if a setting is not supported.
    """
    if spec.get("sizing", "") != sizing:
        reader.raise_unsupported(
            "image_processor_type", "the spec of this model uses a different `sizing`"
        )
    for key, supported in FIXED_SETTINGS.items():
        value = reader.read_value(key, default.get(key, supported[0]))
        if value not in (True, *supported) if sizing == "anyres" else value not in supported:
            reader.raise_unsupported(key, "unsupported value")
    return SIZING_READERS[sizing](_Settings(reader, default), spec)


class _Settings:
    """The settings in a config file, with the defaults of the processor class."""

    def __init__(self, reader: SettingsReader, default: Mapping[str, object]) -> None:
        self.reader, self.defaults = reader, default

    def read_length(self, key: str, *parts: str) -> int:
        """Read a positive integer: the value of `key` or, if the value is an object, the first of
        its members in `parts`.
        """
        value = self.reader.read_value(key, self.defaults.get(key))
        if isinstance(value, dict):
            value = next((value[part] for part in parts if value.get(part) is not None), None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.reader.raise_unsupported(key, "expected an integer > 0")
        return value

    def check_length(self, key: str, expected: object, *parts: str) -> None:
        """Raise E0422 if the length under `key` differs from `expected`, the value in the spec. If
        `expected` is not an integer, any length is accepted.
        """
        length = self.read_length(key, *parts)
        if isinstance(expected, int) and length != expected:
            self.reader.raise_unsupported(key, f"got {length}, expected {expected}")


def _read_area(settings: _Settings, spec: Mapping[str, object]) -> Options:
    reader, bounds = settings.reader, []
    for key, part in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        is_present = reader.read_value(key, None) is not None
        bounds.append(settings.read_length(*((key,) if is_present else ("size", part, key))))
    patches = spec.get("patches")
    keys = ("patch_size", "merge_size", "temporal_patch_size")
    for key, expected in zip(
        keys, patches if isinstance(patches, list | tuple) else (), strict=False
    ):
        settings.check_length(key, expected)
    return {"bounds": [bounds]}


def _read_within(settings: _Settings, spec: Mapping[str, object]) -> Options:
    parts = (("height", "longest_edge"), ("width", "longest_edge"))
    return {"bounds": [[settings.read_length("size", *names) for names in parts]]}


def _read_patches(settings: _Settings, spec: Mapping[str, object]) -> Options:
    match spec.get("patches"):
        case [int(side)]:
            settings.check_length("patch_size", side)
    return {"bounds": [[1, settings.read_length("max_num_patches")]]}


def _read_tiles(settings: _Settings, spec: Mapping[str, object]) -> Options:
    settings.check_length("max_image_size", _get_tile_size(spec), "longest_edge")
    splits_image = settings.reader.read_bool("do_image_splitting", True)
    return {"bounds": [[1, settings.read_length("size", "longest_edge")]], "split": splits_image}


def _read_grids(settings: _Settings, spec: Mapping[str, object]) -> Options:
    tile_size, reader = _get_tile_size(spec), settings.reader
    settings.check_length("size", tile_size, "shortest_edge", "height")
    if reader.read_value("crop_size", settings.defaults.get("crop_size")) is not None:
        settings.check_length("crop_size", tile_size, "height", "shortest_edge")
    key = "image_grid_pinpoints"
    match reader.read_value(key, spec.get("bounds")):
        # the graph counts tiles based on the grid sizes in config.json
        case value if value == spec.get("bounds"):
            return {}
    reader.raise_unsupported(key, "differs from the tile sizes in the config.json of the model")


def _read_square(settings: _Settings, spec: Mapping[str, object]) -> Options:
    for part in ("height", "width"):
        settings.check_length("size", _get_tile_size(spec), part)
    if not settings.reader.read_bool("do_pad", True):
        settings.reader.raise_unsupported("do_pad", "unsupported value")
    return {}


def _get_tile_size(spec: Mapping[str, object]) -> object:
    size = spec.get("size")
    return size[0] if isinstance(size, list | tuple) and size else None


SIZING_READERS: Mapping[str, Callable[[_Settings, Mapping[str, object]], Options]] = {
    "area": _read_area,
    "within": _read_within,
    "patches": _read_patches,
    "tiles": _read_tiles,
    "anyres": _read_grids,
    "square": _read_square,
}
"""Functions that read the size bounds, by sizing rule in `image(sizing=…)`."""
