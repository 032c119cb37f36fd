"""Read the image settings in preprocessor_config.json: resize, crop and normalization."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from specc.diagnostics.diagnostic import Span
from specc.frontend.json_parser_with_spans import JsonObject
from specc.huggingface.audio_and_ctc_processor_files import (
    PREPROCESSOR,
    PROCESSOR,
    find_first_file,
    format_ignored_key_remark,
)
from specc.huggingface.image_processor_defaults import CHANNEL_KEYS, ImageSettingsReader
from specc.io.safe_read import escape_text
from specc.library.spec_file_lookup import load_config_json

Options: TypeAlias = Mapping[str, object]
"""Options of the preprocessing function `image(…)` in a spec, keyed by name."""
PROCESSOR_KEY = "image_processor"
"""The key of the image processor settings in a processor_config.json."""
MIN_CROP_RATIO = 0.01
CONVNEXT_WARP_SIZE = 384
"""ConvNeXt resizes images of at least this size without a center crop."""

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


def read_image_options(
    spec_options: Options, directories: Sequence[Path], span: Span | None
) -> dict[str, object]:
    """Read the options of image preprocessing. The first config file in `directories` overrides
    `spec_options`. Raise E0422 if the file is not supported, or if the image sizes of file and
    model differ.
    """
    file = _find_file(directories)
    if file is None:
        return dict(spec_options)
    reader = ImageSettingsReader(file, span, str(spec_options.get("sizing", "")))
    if reader.defaults.sizing or spec_options.get("sizing"):
        size_options = _read_dynamic_size_options(reader, spec_options)
        return {**spec_options, **size_options, **reader.read_pixel_options()}
    file_options = _read_fixed_size_options(reader)
    expected = spec_options.get("size")
    size = [*expected] if isinstance(expected, list | tuple) else None
    if size is not None and file_options["size"] not in (None, size):
        reader.raise_unsupported(
            "size", f"it resizes images to {file_options['size']}, the model expects {size}"
        )
    # if the model has one channel, use the first of the three channel statistics in the file
    if spec_options.get("channels") == 1:
        for key in ("mean", "std"):
            value = file_options[key]
            file_options[key] = value[:1] if isinstance(value, list) else value
    return {**spec_options, **{k: v for k, v in file_options.items() if v is not None}}


def find_preprocessor_config(directories: Sequence[Path]) -> Path | None:
    """Return the path of the first preprocessor config, or None if there is no such file."""
    return find_first_file(directories, (PREPROCESSOR, PROCESSOR))


def iterate_image_config_remarks(directories: Sequence[Path]) -> Iterator[str]:
    """Yield remarks on the config file that is used, and on its ignored keys."""
    file, path = _find_file(directories), find_preprocessor_config(directories)
    if file is None or path is None:
        return
    yield f"image preprocessing settings are from `{escape_text(path)}`"
    known_keys = _SUPPORTED_KEYS | _IGNORED_KEYS | {"do_pad", "data_format", "max_size", "pad_size"}
    for key, member in file.members.items():
        value = member.value.to_python()
        if key not in known_keys and value:
            yield format_ignored_key_remark(key, path)
        if key in CHANNEL_KEYS and isinstance(value, list) and len(value) == 1:
            yield f"`{key}` in `{escape_text(path)}` has one value, used for all channels"


def _find_file(directories: Sequence[Path]) -> JsonObject | None:
    """Return the image processor settings in the first config file, or None if there is none."""
    path = find_preprocessor_config(directories)
    if path is None:
        return None
    data = load_config_json(path)
    part = data.find_non_null_member(PROCESSOR_KEY)
    if part is not None and isinstance(part.value, JsonObject):
        return part.value
    # A config of an audio or text processor contains no image settings.
    image_keys = ("image_mean", "size", "do_resize", "crop_size")
    has_images = path.name == PREPROCESSOR and any(map(data.find_non_null_member, image_keys))
    return data if has_images else None


def _read_fixed_size_options(reader: ImageSettingsReader) -> dict[str, object]:
    """Return the options of `image(…)` that are set in the file."""
    _check_supported(reader)
    fitted = _read_fitted_size(reader) if reader.defaults.side_multiple else None
    # use None for options that are set by the spec, because False would override the spec
    if fitted:
        size, resized = reader.read_size("pad_size", (), short_edge=False) or None, None
    else:
        size, resized = _read_sizes(reader)
    is_page = reader.defaults.is_page
    return {
        "size": size,
        "resized": resized,
        "fitted": fitted,
        "multiple": reader.defaults.side_multiple if fitted else None,
        "centered": is_page or None,
        "aligned": (is_page and reader.read_bool("do_align_long_axis", False)) or None,
        "crop": False,
        **reader.read_pixel_options(),
    }


def _check_supported(reader: ImageSettingsReader) -> None:
    """Raise E0422 if the value of a key is not supported."""
    # images in a fixed frame are always padded, and document pages without a frame are never
    # padded
    padding_values = (True, False) if reader.defaults.side_multiple else (reader.defaults.is_page,)
    for key, expected in (("do_pad", padding_values), ("data_format", ("channels_first",))):
        if reader.read_value(key, expected[0]) not in expected:
            reader.raise_unsupported(key, "unsupported value")


def _read_sizes(reader: ImageSettingsReader) -> tuple[list[int] | None, list[int] | None]:
    """Read the output size and the size before the center crop. The output size is None if the
    model determines it. The size before the crop is None if there is no crop.
    """
    if reader.defaults.is_page:
        return _read_page_size(reader), None
    size = reader.read_size(
        "size", reader.defaults.size, short_edge=reader.defaults.resizes_short_edge
    )
    if not reader.read_bool("do_resize", True):
        if reader.read_bool("do_center_crop", bool(reader.defaults.crop)):
            reader.raise_unsupported("do_resize", "a crop without resizing is not supported")
        return None, None  # use the input size of the model
    if reader.defaults.crop_ratio:
        return _read_crop_sizes(reader, size)
    if not reader.read_bool("do_center_crop", bool(reader.defaults.crop)):
        if len(size) == 1:
            reader.raise_unsupported("size", "without a crop the aspect ratio is undefined")
        return size, None
    crop_size = reader.read_size("crop_size", (reader.defaults.crop,) * 2, short_edge=False)
    return crop_size, size


def _read_crop_sizes(
    reader: ImageSettingsReader, size: list[int]
) -> tuple[list[int], list[int] | None]:
    """Read the sizes for ConvNeXt, which crops only images smaller than `CONVNEXT_WARP_SIZE`."""
    if len(size) != 1:
        reader.raise_unsupported("size", "expected an object with `shortest_edge`")
    (edge,) = size
    if edge >= CONVNEXT_WARP_SIZE:
        return [edge, edge], None
    crop_ratio = reader.read_number("crop_pct", reader.defaults.crop_ratio)
    if crop_ratio < MIN_CROP_RATIO:
        reader.raise_unsupported("crop_pct", f"expected at least {MIN_CROP_RATIO}")
    return [edge, edge], [int(edge / crop_ratio)]


def _read_fitted_size(reader: ImageSettingsReader) -> list[int] | None:
    """Read the shorter side and the maximum longer side. Return None if the size is fixed."""
    if not reader.read_bool("do_resize", True):
        reader.raise_unsupported("do_resize", "images without resizing are not supported")
    max_size = reader.read_value("max_size", reader.defaults.size[1])
    sizes: list[int] = []
    match reader.read_value("size", {}):
        case {"shortest_edge": int(shorter), "longest_edge": int(longer), **rest}:
            sizes = [] if any(rest.values()) else [shorter, longer]
        case {"height": int(), "width": int()}:
            return None
        # files from before 2023 contain the shorter side and `max_size`
        case int(shorter) if isinstance(max_size, int):
            sizes = [shorter, max_size]
        # if sizes are missing, use the default of the processor class
        case {**rest} if not rest:
            sizes = list(reader.defaults.size)
    # exclude booleans, which the pattern `int()` also matches
    if not sizes or any(isinstance(n, bool) or n < 1 for n in sizes):
        reader.raise_unsupported("size", "unsupported size")
    return sizes


def _read_page_size(reader: ImageSettingsReader) -> list[int]:
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
    size = reader.read_size("size", reader.defaults.size, short_edge=False)
    if len(size) != 2:
        reader.raise_unsupported("size", "expected `height` and `width`")
    return size


FIXED_SETTINGS: Mapping[str, Sequence[object]] = {
    "do_resize": (True,),
    "do_center_crop": (None, False),
    "return_row_col_info": (None, True, False),
}
"""The only supported value of each setting, unless a sizing rule supports other values."""


def _read_dynamic_size_options(reader: ImageSettingsReader, spec: Options) -> Options:
    """Read the options of the processor's rule for dynamic image sizes. `spec` contains the options
    in the spec. Raise E0422 if a setting is not supported.
    """
    sizing, default = reader.defaults.sizing, reader.defaults.settings
    if spec.get("sizing", "") != sizing:
        reader.raise_unsupported(
            "image_processor_type", "the spec of this model uses a different `sizing`"
        )
    for key, supported in FIXED_SETTINGS.items():
        value = reader.read_value(key, default.get(key, supported[0]))
        if value not in (True, *supported) if sizing == "anyres" else value not in supported:
            reader.raise_unsupported(key, "unsupported value")
    return SIZING_READERS[sizing](reader, spec)


def _read_area(reader: ImageSettingsReader, spec: Options) -> Options:
    bounds = []
    for key, part in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        is_present = reader.read_value(key, None) is not None
        bounds.append(reader.read_int(*((key,) if is_present else ("size", part, key))))
    patches = spec.get("patches")
    keys = ("patch_size", "merge_size", "temporal_patch_size")
    for key, expected in zip(
        keys, patches if isinstance(patches, list | tuple) else (), strict=False
    ):
        reader.check_int(key, expected)
    return {"bounds": [bounds]}


def _read_within(reader: ImageSettingsReader, spec: Options) -> Options:
    parts = (("height", "longest_edge"), ("width", "longest_edge"))
    return {"bounds": [[reader.read_int("size", *names) for names in parts]]}


def _read_patches(reader: ImageSettingsReader, spec: Options) -> Options:
    match spec.get("patches"):
        case [int(side)]:
            reader.check_int("patch_size", side)
    return {"bounds": [[1, reader.read_int("max_num_patches")]]}


def _read_tiles(reader: ImageSettingsReader, spec: Options) -> Options:
    reader.check_int("max_image_size", _get_tile_size(spec), "longest_edge")
    splits_image = reader.read_bool("do_image_splitting", True)
    return {"bounds": [[1, reader.read_int("size", "longest_edge")]], "split": splits_image}


def _read_grids(reader: ImageSettingsReader, spec: Options) -> Options:
    tile_size = _get_tile_size(spec)
    reader.check_int("size", tile_size, "shortest_edge", "height")
    if reader.read_value("crop_size", reader.defaults.settings.get("crop_size")) is not None:
        reader.check_int("crop_size", tile_size, "height", "shortest_edge")
    key = "image_grid_pinpoints"
    match reader.read_value(key, spec.get("bounds")):
        # the graph counts tiles based on the grid sizes in config.json
        case value if value == spec.get("bounds"):
            return {}
    reader.raise_unsupported(key, "differs from the tile sizes in the config.json of the model")


def _read_square(reader: ImageSettingsReader, spec: Options) -> Options:
    for part in ("height", "width"):
        reader.check_int("size", _get_tile_size(spec), part)
    if not reader.read_bool("do_pad", True):
        reader.raise_unsupported("do_pad", "unsupported value")
    return {}


def _get_tile_size(spec: Options) -> object:
    size = spec.get("size")
    return size[0] if isinstance(size, list | tuple) and size else None


SIZING_READERS: Mapping[str, Callable[[ImageSettingsReader, Options], Options]] = {
    "area": _read_area,
    "within": _read_within,
    "patches": _read_patches,
    "tiles": _read_tiles,
    "anyres": _read_grids,
    "square": _read_square,
}
"""The function that reads the size bounds for each sizing rule in `image(sizing=…)`."""
