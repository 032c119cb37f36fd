"""Open checkpoints that are stored in a single weights file or in several shards."""

import re
from collections.abc import Iterable, Mapping, Set
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.io import safe_read
from specc.io.file_type_detection import (
    format_conversion_command,
    identify_file_format,
    is_gguf_path,
)
from specc.io.json_io import NO_LIMITS, parse_strict_json
from specc.io.safe_read import (
    Closeable,
    UnreadableFileError,
    escape_text,
    raise_unreadable_file_error,
    read_regular_file,
)
from specc.ir.array import Array
from specc.weights.formats.gguf_file_and_tensor_names import open_gguf
from specc.weights.formats.safetensors import SPEC_LAYOUT_METADATA, TensorFile, open_safetensors
from specc.weights.formats.safetensors_header import TensorEntry

MAX_INDEX_BYTES = 100_000_000
INDEX_SUFFIX = ".safetensors.index.json"
NO_WEIGHTS_HELP = (
    "download the weights into it, pass the directory or file that contains them with --weights, "
    "or initialize randomly with --init 0"
)
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_SHARD_SUFFIX = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")
_OTHER_FORMATS = {
    ".h5": "is a TensorFlow checkpoint, but specc reads only safetensors",
    ".msgpack": "is a Flax checkpoint, but specc reads only safetensors",
    ".ot": "is a checkpoint of Rust's tch, but specc reads only safetensors",
    ".gguf": "is a llama.cpp file: pass its path",
    ".incomplete": "is an incomplete download: download it again",
    ".part": "is an incomplete download: download it again",
}
"""Names of weight file formats that are not supported, keyed by file suffix."""


ALL_ROWS = slice(None)
"""The slice that selects all rows of a tensor."""


class Checkpoint(Closeable):
    """A checkpoint in one or several files, with all tensors keyed by name. `path` is the path that
    the user passed.

    An adapter changes the `adapted_tensors`. The `decoded_tensors` are stored in quantized or
    transformed form, and are decoded row by row. The `optional_tensors` may remain unused.
    """

    adapted_tensors: Set[str] = frozenset()
    decoded_tensors: Set[str] = frozenset()
    optional_tensors: Set[str] = frozenset()

    def __init__(self, path: Path, files: Iterable[TensorFile]) -> None:
        self.path = path
        self.files = tuple(files)
        self._file_by_tensor: dict[str, TensorFile] = {}
        for file in self.files:
            for name in file.tensors:
                if name in self._file_by_tensor:
                    _raise_bad_index(
                        path,
                        f"the tensor `{escape_text(name)}` is in "
                        f"{escape_text(self._file_by_tensor[name].path.name)} "
                        f"and in {escape_text(file.path.name)}",
                    )
                self._file_by_tensor[name] = file
        self.tensors: Mapping[str, TensorEntry] = {
            n: f.tensors[n] for n, f in self._file_by_tensor.items()
        }

    @property
    def has_spec_layout(self) -> bool:
        """Return True if, according to the metadata, tensor names and shapes are those of the
        spec.
        """
        return all(SPEC_LAYOUT_METADATA.items() <= file.metadata.items() for file in self.files)

    @property
    def all_files(self) -> tuple[TensorFile, ...]:
        """Return all files of the checkpoint, including those of adapters."""
        return self.files

    def get_file(self, name: str) -> TensorFile:
        """Return the file that contains a tensor."""
        return self._file_by_tensor[name]

    def read_tensor(self, name: str, rows: slice = ALL_ROWS) -> Array:
        """Return a copy of a tensor, or only of its rows `rows`."""
        file = self._file_by_tensor[name]
        return file.read_tensor(name) if rows == ALL_ROWS else file.get_array(name)[rows]

    def check_unchanged(self) -> None:
        """Raise E0512 if a file of the checkpoint has changed since it was opened."""
        for file in self.files:
            file.check_unchanged()

    def close(self) -> None:
        """Close all files of the checkpoint."""
        for file in self.files:
            file.close()


def open_checkpoint(path: str | Path, modules: Mapping[str, str] | None = None) -> Checkpoint:
    """Open a checkpoint: a safetensors file, an index of shards, or a directory that contains
    either.

    `modules` maps name prefixes to additional directories. The tensors in these directories are
    added with the prefix. Raise E0502, E0506, E0509, E0514, E0518 or E0802 on failure.
    """
    with ExitStack() as stack:
        checkpoint = stack.enter_context(_open_checkpoint(path))
        for prefix, directory in (modules or {}).items():
            module_files = stack.enter_context(_open_checkpoint(directory)).files
            for file in module_files:
                file.tensors = {f"{prefix}.{n}": e for n, e in file.tensors.items()}
            checkpoint = Checkpoint(checkpoint.path, (*checkpoint.files, *module_files))
        stack.pop_all()
    return checkpoint


def _open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint without additional module directories."""
    path = Path(path)
    if _is_directory(path):
        path = _find_weights_file(path)
    if path.name.endswith(INDEX_SUFFIX):
        return _open_shards(path)
    if path.suffix in _PICKLE_SUFFIXES:
        raise_pickle_error(path)
    return Checkpoint(path, _open_files([path]))


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _find_weights_file(directory: Path) -> Path:
    """Return a directory's weights file or index. Raise E0514 for no file and E0518 for several."""
    names = _list_directory(directory)
    # The file names of transformers take precedence, in the search order of transformers. The order
    # matters, because saving a small model over a large model leaves the old index in the
    # directory.
    for default in ("model.safetensors", f"model{INDEX_SUFFIX}"):
        if default in names:
            return directory / default
    indexes = _filter_by_suffix(names, INDEX_SUFFIX)
    single = _filter_by_suffix(names, ".safetensors")
    candidates = indexes or single  # an index takes precedence over its shards
    if len(candidates) == 1:
        return directory / candidates[0]
    if not candidates:
        _reject_pickles(directory, names)
    _raise_ambiguous_directory(directory, names, [*indexes, *single])


def _reject_pickles(directory: Path, names: list[str]) -> None:
    """Raise E0514 if a directory has pickle files that are likely to contain weights."""
    # training scripts also write pickles without weights, e.g. optimizer.pt
    if pickles := _filter_by_suffix(names, _PICKLE_SUFFIXES):
        weight_files = [name for name in pickles if name.startswith("pytorch_model")]
        raise_pickle_error(*(directory / name for name in weight_files or pickles[:1]))


def _filter_by_suffix(names: Iterable[str], suffixes: str | tuple[str, ...]) -> list[str]:
    return [name for name in names if name.endswith(suffixes)]


def _list_directory(directory: Path) -> list[str]:
    """Return the file names in a directory. Raise E0802 if the directory cannot be read."""
    try:
        return sorted(p.name for p in directory.iterdir())
    except OSError as error:
        raise_error(
            "E0802",
            f"cannot list the directory `{escape_text(directory)}`: {str(error.strerror).lower()}",
            helps=["check the permissions of the directory"],
        )


def _raise_ambiguous_directory(
    directory: Path, names: list[str], weight_files: list[str]
) -> NoReturn:
    """Raise an error because a directory contains several sets of weights, or none."""
    location = escape_text(directory)
    note = "found: " + ", ".join(map(escape_text, weight_files[:8]))
    stems = {_SHARD_SUFFIX.sub("", name) for name in weight_files if _SHARD_SUFFIX.search(name)}
    if len(stems) == 1 and all(map(_SHARD_SUFFIX.search, weight_files)):
        missing_index = escape_text(stems.pop()) + INDEX_SUFFIX
        raise_error(
            "E0518",
            f"the directory `{location}` contains shards but no index",
            notes=[note],
            helps=[f"download `{missing_index}`"],
        )
    if weight_files:
        first_file = safe_read.quote_argument(directory / weight_files[0])
        raise_error(
            "E0518",
            f"the directory `{location}` has several sets of weights",
            notes=[note],
            helps=[
                "keep one of them in the directory, or choose one when compiling, e.g. "
                f"`specc compile SPEC --weights {first_file}`"
            ],
        )
    raise_error(
        "E0518",
        f"the directory `{location}` contains no weights",
        notes=[
            "searched for model.safetensors, an index of shards, and other .safetensors files",
            *_describe_other_formats(names),
        ],
        helps=[safe_read.suggest_cached_snapshot(directory) or NO_WEIGHTS_HELP],
    )


def _describe_other_formats(names: list[str]) -> list[str]:
    """Return descriptions of the weight files whose format is not supported."""
    return [
        f"`{escape_text(name)}` {description}"
        for name in names
        for ending, description in _OTHER_FORMATS.items()
        if name.endswith(ending)
    ]


def raise_pickle_error(*paths: Path) -> NoReturn:
    """Raise E0514 because a checkpoint contains pickles (PyTorch `.bin` or `.pt`)."""
    names = [escape_text(path) for path in paths]
    suffix = f" (and {len(names) - 1} more like it)" if len(names) > 1 else ""
    raise_error(
        "E0514",
        f"`{names[0]}`{suffix} is a PyTorch checkpoint; specc reads only safetensors",
        notes=["such a file is a Python pickle, which can run code when it is loaded"],
        helps=[f"convert it in an environment with torch: {format_conversion_command(*names)}"],
    )


def _open_files(paths: Iterable[Path]) -> list[TensorFile]:
    """Open all files. If a file cannot be opened, close the files that are already open."""
    with ExitStack() as stack:
        files = [
            stack.enter_context(open_gguf(p) if is_gguf_path(p) else open_safetensors(p))
            for p in paths
        ]
        stack.pop_all()
    return files


def _open_shards(path: Path) -> Checkpoint:
    """Open the shards listed in the index `path`. Raise E0509 if the index is invalid."""
    shard_by_tensor = _read_weight_map(path)
    shards = sorted(set(shard_by_tensor.values()))
    for shard in shards:
        _check_shard(path, shard)
    with ExitStack() as stack:
        files = _open_files(path.parent / shard for shard in shards)
        for file in files:
            stack.enter_context(file)
        checkpoint = Checkpoint(path, files)
        _check_index(checkpoint, shard_by_tensor)
        stack.pop_all()
    return checkpoint


def _check_shard(index: Path, shard: str) -> None:
    """Raise an error if the untrusted index refers to a `shard` outside the index's directory."""
    is_hidden = shard.startswith(".")
    has_directory = "/" in shard or "\\" in shard
    if is_hidden or has_directory or not shard.endswith(".safetensors"):
        _raise_bad_index(
            index,
            f"it lists `{escape_text(shard[:200])}`, which is not a .safetensors file in its "
            "directory",
        )
    if not (index.parent / shard).exists():
        _raise_bad_index(index, f"it lists the file `{escape_text(shard)}`, which does not exist")


def _check_index(checkpoint: Checkpoint, shard_by_tensor: Mapping[str, str]) -> None:
    """Raise E0509 if the index does not list exactly the tensors of its shards."""
    for name, shard in shard_by_tensor.items():
        is_present = name in checkpoint.tensors
        if not is_present or checkpoint.get_file(name).path.name != shard:
            _raise_bad_index(
                checkpoint.path,
                f"the tensor `{escape_text(name)}` is missing in {escape_text(shard)}",
            )
    # the index must list every tensor of a shard
    for name in checkpoint.tensors:
        if name not in shard_by_tensor:
            file_name = escape_text(checkpoint.get_file(name).path.name)
            _raise_bad_index(
                checkpoint.path, f"the tensor `{escape_text(name)}` in {file_name} is not listed"
            )


def _read_weight_map(path: Path) -> dict[str, str]:
    """Read the mapping from tensor names to shard files in an index."""
    try:
        data = read_regular_file(path, MAX_INDEX_BYTES)
    except UnreadableFileError as error:
        raise_unreadable_file_error(path, error.reason, "check the path")
    if foreign_format := identify_file_format(data[:64], escape_text(path.name)):
        raise_error(
            "E0509",
            f"`{escape_text(path)}` is {foreign_format[0]}, expected an index",
            helps=[foreign_format[1]],
        )
    try:
        fields = parse_strict_json(data.decode("utf-8-sig"), NO_LIMITS)
    except UnicodeDecodeError as error:
        _raise_bad_index(path, f"it is not UTF-8: invalid byte {error.start}")
    # the index is invalid JSON, has a duplicate key, or is nested too deeply
    except ValueError as error:
        _raise_bad_index(path, escape_text(error))
    return _select_files(path, fields)


def _select_files(path: Path, fields: object) -> dict[str, str]:
    """Return the `weight_map` of a parsed index, which maps tensor names to shard files."""
    weight_map = fields.get("weight_map") if isinstance(fields, dict) else None
    entries = weight_map if isinstance(weight_map, dict) else {}
    files = {name: file for name, file in entries.items() if isinstance(file, str)}
    if invalid := [name for name in entries if name not in files]:
        reason = f"`weight_map` maps `{escape_text(invalid[0])}` to a value that is not a file name"
        _raise_bad_index(path, reason)
    if not files:
        _raise_bad_index(path, "missing `weight_map`, which maps tensor names to file names")
    return files


def _raise_bad_index(path: Path, reason: str) -> NoReturn:
    raise_error(
        "E0509",
        f"the index `{escape_text(path)}` and its files do not match",
        notes=[reason],
        helps=["download the whole checkpoint again"],
    )
