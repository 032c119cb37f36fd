"""Read and write `specc.json`, the index of a package (file sizes, hashes, graph metadata). Rename
the keys of indices and manifests in version 1 of the JSON formats.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeAlias

from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.diagnostics.render import format_repr
from specc.io.atomic_write import FileDigest
from specc.io.json_io import (
    InvalidJsonError,
    JsonReader,
    get_exact_integer,
    parse_strict_json,
    to_json_value,
)
from specc.io.safe_read import (
    UnreadableFileError,
    compute_file_sha256,
    escape_text,
    get_regular_file_size,
    is_safe_relative_path,
    read_regular_file,
)

FORMAT_VERSION = 2
KeyRenames: TypeAlias = Mapping[str, "str | tuple[str, KeyRenames]"]
"""Maps each old key to its new key, or to a pair: the new key and the renames inside its value."""

_GENERATE_SECTION: KeyRenames = {"growing": "sequence_input", "source": "logits_output"}
_STATE: KeyRenames = {
    "next": "next_output",
    "batch": "batch_axis",
    "rows": "time_axis",
    "most": "max_positions",
    "initial": "initial_output",
}
_CHUNKS: KeyRenames = {"rows": "step_length", "made": "output_lengths", "alone": "per_step_inputs"}
_GENERATION_METADATA: KeyRenames = {
    "generation": ("generate_section", _GENERATE_SECTION),
    "reading": "preprocessing",
    "states": ("states", _STATE),
    "handed": "loop_invariant_inputs",
    "whole": "full_inputs",
    "first": "first_token_logits",
    "context": "max_context",
    "table": "length_limiting_table",
    "drawn": "random_weights",
    "bounds": "length_bounds",
    "in_place": "in_place_states",
    "apart": "allows_mixed_lengths",
    "chunks": ("chunks", _CHUNKS),
}
VERSION_1_INDEX_KEYS: KeyRenames = {
    "kept": "preexisting",
    "linked": "linked_files",
    "every_load": "checks_hashes_on_open",
    "about": ("metadata", {"generating": ("generation", _GENERATION_METADATA)}),
    "seal": "index_sha256",
}
"""Keys of the package index `specc.json` that version 1 of the format names differently."""
VERSION_1_MANIFEST_KEYS: KeyRenames = {
    "generation": ("generate_section", _GENERATE_SECTION),
    "streaming": ("stream_section", {"growing": "sequence_input", "sources": "streamed_outputs"}),
    "reading": "preprocessing",
    "stored": "initializers",
    "decodes": "decoding",
    "scoring": "scoring_graph",
    "weights": ("weights", {"drawn": "random_init", "every_load": "checks_hashes_on_open"}),
}
"""Keys of a model's manifest that version 1 of the format names differently."""


def _rename_keys(data: object, renames: KeyRenames) -> object:
    """Return a copy of JSON data with renamed keys. Keys that are not in `renames` are kept."""
    if isinstance(data, list):
        return [_rename_keys(element, renames) for element in data]
    if not isinstance(data, dict):
        return data
    copy = {}
    for key, value in data.items():
        match renames.get(key, key):
            case (new_key, nested_renames):
                copy[new_key] = _rename_keys(value, nested_renames)
            case new_key:
                copy[new_key] = value
    return copy


def parse_versioned_json(
    text: str | bytes, version_1_keys: KeyRenames, artifact: str, report: Callable[[str], NoReturn]
) -> JsonReader:
    """Parse a JSON object of the current format version or of version 1. Call `report` with the
    reason if the text is invalid or has an unsupported version.
    """
    data: object
    try:
        data = parse_strict_json(text if isinstance(text, str) else text.decode("utf-8"))
    except InvalidJsonError as error:
        report(str(error))
    except ValueError:
        report("the text is not JSON")
    version = data.get("format") if isinstance(data, dict) else None
    if version == 1:
        data = _rename_keys(data, version_1_keys)
    elif version != FORMAT_VERSION:
        expected = f"expected {FORMAT_VERSION}; compile the {artifact} again"
        report(f"unsupported format version {version!r:.40}, {expected}")
    return JsonReader(data, report_error=lambda path, text: report(f"`{'.'.join(path)}` {text}"))


COMPARED_BYTES = 1 << 20
"""Number of bytes at the start of a weight file to verify when a model is opened."""
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class WeightFileMetadata:
    """Metadata of a weight file: its size in bytes, the SHA-256 of its content, and `head`, the
    SHA-256 of its first `COMPARED_BYTES` bytes (`""` if unknown).
    """

    bytes: int
    sha256: str
    head: str = ""


def parse_weight_file_metadata(data: object) -> dict[str, WeightFileMetadata] | None:
    """Parse the metadata of weight files, keyed by relative path. Return None if it is invalid."""
    if not isinstance(data, dict):
        return None
    weight_files = {}
    for name, entry in data.items():
        match entry:
            case {"bytes": int() as size, "sha256": str(sha256), "head": str(head)} if (
                is_file_size(size) and is_sha256(sha256) and (not head or is_sha256(head))
            ):
                weight_files[str(name)] = WeightFileMetadata(size, sha256, head)
            case _:
                return None
    return weight_files


def is_file_size(value: object) -> bool:
    """Return True if a value is a valid file size."""
    size = get_exact_integer(value)
    return size is not None and 0 <= size < 2**53


def is_sha256(text: str) -> bool:
    """Return True if a string is a SHA-256 hash, i.e. 64 lowercase hexadecimal digits."""
    return _HASH.fullmatch(text) is not None


def read_weight_file_metadata(path: Path, sha256: str) -> WeightFileMetadata:
    """Return the metadata of a weight file with the content hash `sha256`."""
    size, head = get_regular_file_size(path), compute_file_sha256(path, COMPARED_BYTES)
    assert size is not None, f"{path} was read a moment ago"
    assert head is not None, f"{path} was read a moment ago"
    return WeightFileMetadata(size, sha256, head)


INDEX_FILE = "specc.json"
MAX_BYTES = 64 * 2**20
"""Maximum size of a package index in bytes."""
MAX_FILES = 10_000
MAX_GRAPHS = 64
BLANK_HASH = "0" * 64
"""Placeholder in a package index for its hash, which is used while the hash is computed."""
_PORTABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")


@dataclass(frozen=True, kw_only=True)
class PackageIndex:
    """The index of a package.

    `graphs` and `extras` map roles to file names. `files` maps the name of each file of the package
    to its size and hash. `preexisting` are files that already existed with the same content, and
    are therefore not deleted when the package is replaced. `linked_files` maps the relative path of
    each linked checkpoint file to its metadata. `metadata` is JSON data for the program that opens
    the package. `sources` are the spec files, keyed by name. If `checks_hashes_on_open` is True,
    opening the package verifies the weight files' hashes.
    """

    model: str
    graphs: Mapping[str, str]
    files: Mapping[str, FileDigest]
    version: str
    extras: Mapping[str, str] = field(default_factory=dict)
    preexisting: tuple[str, ...] = ()
    linked_files: Mapping[str, WeightFileMetadata] = field(default_factory=dict)
    metadata: Mapping[str, object] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    checks_hashes_on_open: bool = False

    def __repr__(self) -> str:
        return format_repr(f"index of {self.model}: {', '.join(self.graphs)}")

    def serialize(self) -> bytes:
        """Serialize the index, including its hash, as JSON. The output is deterministic."""
        data = {
            "format": FORMAT_VERSION,
            "specc": self.version,
            "model": self.model,
            "graphs": dict(self.graphs),
            "extras": dict(self.extras),
            "files": to_json_value(self.files),
            "preexisting": list(self.preexisting),
            "linked_files": to_json_value(self.linked_files),
            "checks_hashes_on_open": self.checks_hashes_on_open,
            "metadata": dict(self.metadata),
            "sources": dict(self.sources),
            "index_sha256": BLANK_HASH,
        }
        # The index is sorted and contains no timestamps, so a second compilation produces equal
        # bytes.
        text = json.dumps(data, ensure_ascii=False, sort_keys=True, indent=1)
        return _add_index_hash(text.encode(errors="backslashreplace") + b"\n")


def _add_index_hash(data: bytes) -> bytes:
    """Replace `BLANK_HASH` in `data`, the bytes of an index, with the hash of `data`."""
    return data.replace(BLANK_HASH.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def has_valid_index_hash(data: bytes) -> bool:
    """Return True if the hash in an index matches the bytes of the index."""
    try:
        fields = parse_strict_json(data.decode("utf-8"))
    except ValueError:
        return False
    # version 1 of the format stores the hash under `seal`
    values = (
        [fields.get(key) for key in ("index_sha256", "seal")] if isinstance(fields, dict) else []
    )
    index_hash = next((value for value in values if value is not None), None)
    if not isinstance(index_hash, str) or not is_sha256(index_hash):
        return False
    return _add_index_hash(data.replace(index_hash.encode(), BLANK_HASH.encode(), 1)) == data


def is_portable_file_name(name: str) -> bool:
    """Return True for a portable file name without a directory, except the index file name."""
    return (
        _PORTABLE_NAME.fullmatch(name) is not None and not name.endswith(".") and name != INDEX_FILE
    )


def is_package_directory(path: str | Path) -> bool:
    """Return True if a path is a directory that contains a package index."""
    try:
        return (Path(path) / INDEX_FILE).is_file()
    except (OSError, ValueError):
        return False


def read_package_index(directory: Path, *, verify_contents: bool = False) -> PackageIndex:
    """Read the index of the package in `directory`. If `verify_contents` is True, verify the hash
    of the index. Raise E0802 if the index cannot be read, and E0831 for an invalid or modified
    index.
    """
    location = directory / INDEX_FILE
    try:
        data = read_regular_file(location, MAX_BYTES)
    except UnreadableFileError as error:
        raise_error(
            "E0802",
            f"the package `{escape_text(directory)}` cannot be read: its `{INDEX_FILE}`: "
            f"{error.reason}",
            helps=["`specc compile --graphs` writes a package directory"],
        )
    index = parse_package_index(data, escape_text(location))
    if verify_contents and not has_valid_index_hash(data):
        _raise_invalid_index(
            escape_text(location), "its content has changed since the package was written"
        )
    return index


def parse_package_index(data: bytes, location: str) -> PackageIndex:
    """Parse a package index that was read from `location`. Raise E0831 if the index is invalid."""
    fields = parse_versioned_json(
        data, VERSION_1_INDEX_KEYS, "package", partial(_raise_invalid_index, location)
    )
    files = _read_files(fields, location)
    index = PackageIndex(
        model=fields.read_string("model"),
        graphs=fields.read_string_map("graphs"),
        files=files,
        version=fields.read_string("specc"),
        extras=fields.read_string_map("extras"),
        preexisting=_read_kept_files(fields, files, location),
        linked_files=_read_linked_checkpoints(fields, location),
        metadata=fields.read_dict("metadata"),
        sources=fields.read_string_map("sources"),
        checks_hashes_on_open=fields.get_optional("checks_hashes_on_open") is True,
    )
    _check_roles(index, location)
    return index


def _read_files(data: JsonReader, location: str) -> dict[str, FileDigest]:
    """Parse files' sizes and hashes, keyed by name. Raise E0831 if a name contains a directory."""
    digests = {}
    for name, entry in _limit_files(data.read_dict("files"), location).items():
        match entry:
            case {"bytes": int() as n, "sha256": str(sha)} if is_file_size(n) and is_sha256(sha):
                digests[name] = FileDigest(n, sha)
            case _:
                _raise_invalid_index(
                    location, f"`{escape_text(name)[:200]}` has no size or no hash"
                )
    # File names are relative to the package directory, and must not refer to other directories.
    for name in digests:
        if not is_portable_file_name(name):
            _raise_invalid_index(location, f"`{escape_text(name)[:200]}` is not a plain file name")
    return digests


def _read_kept_files(data: JsonReader, files: Collection[str], location: str) -> tuple[str, ...]:
    """Parse the names of files that are not deleted when the package is replaced."""
    entries = data.read_list("preexisting") if "preexisting" in data.list_keys() else []
    names = tuple(name for name in entries if isinstance(name, str) and name in files)
    if len(names) < len(entries):
        _raise_invalid_index(location, "`preexisting` is not a list of files of the package")
    return names


def _read_linked_checkpoints(data: JsonReader, location: str) -> dict[str, WeightFileMetadata]:
    """Parse the metadata of linked checkpoint files in the directory of the package."""
    files = parse_weight_file_metadata(_limit_files(data.read_dict("linked_files"), location))
    if files is None:
        _raise_invalid_index(location, "`linked_files` contains a file without size or hashes")
    for path in files:
        if not is_safe_relative_path(path):
            _raise_invalid_index(location, f"`{escape_text(path)[:200]}` is not inside it")
    return files


def _limit_files(entries: dict[str, object], location: str) -> dict[str, object]:
    """Return the entries of a file table. Raise E0831 if there are more than `MAX_FILES`."""
    if len(entries) > MAX_FILES:
        _raise_invalid_index(location, f"more than {MAX_FILES} files")
    return entries


def _check_roles(index: PackageIndex, location: str) -> None:
    """Raise E0831 for an unknown file, a duplicate graph, no graph, or more than `MAX_GRAPHS`
    graphs.
    """
    for role, name in (*index.graphs.items(), *index.extras.items()):
        if name not in index.files:
            _raise_invalid_index(
                location, f"`{escape_text(role)[:200]}` is not a file of the package"
            )
    has_duplicate = len({*index.graphs.values()}) < len(index.graphs)
    if len(index.graphs) > MAX_GRAPHS or has_duplicate:
        _raise_invalid_index(location, f"more than {MAX_GRAPHS} graphs, or a duplicate graph")
    if not index.graphs:
        _raise_invalid_index(location, "the list of graphs is empty")


def read_previous_package_index(directory: Path) -> PackageIndex | None:
    """Return the index of the package that a compilation replaces, or None if it is invalid."""
    try:
        return read_package_index(directory)
    except SpeccError:
        return None


def find_deletable_files(directory: Path, index: PackageIndex) -> list[str]:
    """Return the unmodified files of a previous package, which a new package may delete. Files
    whose names contain a hash are compared by name and size, all other files by content.
    """
    superseded = []
    for name, digest in index.files.items():
        # Files that are older than the package, or were changed later, must not be deleted.
        if name in index.preexisting or get_regular_file_size(directory / name) != digest.bytes:
            continue
        match = re.fullmatch(r".*-([0-9a-f]{16})(\.[^-]*)?", name)
        has_hash_name = match is not None and digest.sha256.startswith(match[1])
        if has_hash_name or compute_file_sha256(directory / name) == digest.sha256:
            superseded.append(name)
    return superseded


def _raise_invalid_index(location: str, reason: str) -> NoReturn:
    raise_error(
        "E0831",
        f"the package cannot be opened: `{location}` is invalid",
        notes=[reason],
        helps=["compile the package again, or copy its whole directory"],
    )
