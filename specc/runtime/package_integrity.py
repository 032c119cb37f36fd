"""Open the files of a package, and verify their sizes, hashes and links.

This module imports neither the IR nor the preprocessing. Other threads can therefore open sessions
while the main thread imports the IR and the preprocessing.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specc import backend
from specc.artifact.package_index_and_format_versions import (
    COMPARED_BYTES,
    INDEX_FILE,
    PackageIndex,
    WeightFileMetadata,
    read_package_index,
)
from specc.backend import ModelFile
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.io.atomic_write import FileDigest
from specc.io.safe_read import (
    UnreadableFileError,
    compute_file_sha256,
    escape_text,
    get_regular_file_size,
    is_safe_relative_path,
    read_regular_file,
)

CHANGED_CONTENT = "its content has changed since the package was written"


def _explain_irregular_file(directory: Path, location: str) -> str:
    """Return the reason why the file `location` in a directory is not allowed: its path contains a
    link, it has several hard links, or it cannot be read. Return "" for a regular file.
    """
    path = directory / location
    expected_path = os.path.join(os.path.realpath(directory), *location.split("/"))
    try:
        if os.path.realpath(path) != expected_path:
            return "its path contains a link"
        # a write through another hard link would change the weights
        if (links := os.lstat(path).st_nlink) != 1:
            return f"it has {links} hard links, which ONNX rejects"
    except (OSError, RuntimeError, ValueError):  # the links form a cycle, or the name is invalid
        return "it cannot be read"
    return ""


def describe_file_mismatch(
    directory: Path, location: str, metadata: WeightFileMetadata, *, verify_contents: bool = False
) -> str:
    """Describe the difference between the file `location` in a directory and its recorded metadata.
    Return "" if the file matches. If `verify_contents` is True, also compare the hash of the whole
    file.
    """
    path = directory / location
    if not is_safe_relative_path(location):
        return "it is outside the directory of the model"
    if (size := get_regular_file_size(path)) is None:
        return "it is missing, or it is not a regular file"
    if reason := _explain_irregular_file(directory, location):
        return reason
    if size != metadata.bytes:
        return f"it has {size} bytes, but had {metadata.bytes} when the model was compiled"
    # Compare the first bytes of a checkpoint, which contain tensor names, shapes and offsets.
    if metadata.head and compute_file_sha256(path, COMPARED_BYTES) != metadata.head:
        return "the weights file has changed since the model was compiled"
    if verify_contents and compute_file_sha256(path) != metadata.sha256:
        return "its content has changed since the model was compiled"
    return ""


def describe_out_of_bounds_tensor(
    tensor_ends: Iterable[tuple[str, int]], sizes: Mapping[str, int]
) -> str:
    """Describe the first external tensor that is outside the recorded files or extends past the end
    of its file. Return "" if there is no such tensor. `tensor_ends` contains the file and the end
    offset of each tensor, and `sizes` maps recorded files to their sizes in bytes.
    """
    for location, end in tensor_ends:
        if location not in sizes:
            return f"it references weights in `{escape_text(location)[:200]}`, outside the package"
        # a corrupted file may contain negative offsets
        if not 0 < end <= sizes[location]:
            return f"it references weights past the end of `{escape_text(location)[:200]}`"
    return ""


@dataclass(frozen=True)
class PackageFiles:
    """The files of a package, checked against its index. `models` maps graph names to parsed
    models.
    """

    path: Path
    index: PackageIndex
    models: Mapping[str, ModelFile] = field(repr=False)

    def open_in_background(self, threads: int) -> None:
        """Open the graphs of the decode loop on the CPU in background threads."""
        if "step" in self.models and self.index.metadata:
            for role in {"encode", "step"} & self.models.keys():
                self.models[role].open_in_background(threads)


def open_package_files(directory: Path, *, verify_contents: bool = False) -> PackageFiles:
    """Open the files of a package.

    Raise E0802 if there is no package index, E0831 if the index is invalid, and E0830 if files do
    not match the index.
    """
    index = read_package_index(directory)
    # Another process may replace the package while the files are read. That process writes the
    # index last, so read all files again if the index has changed.
    while True:
        try:
            files = _open_files(directory, index, verify_contents)
            if verify_contents:
                read_package_index(directory, verify_contents=True)
            return files
        except SpeccError:
            new_index = read_package_index(directory)
            if new_index == index:
                raise
            index = new_index  # another process has replaced the package


def _open_files(directory: Path, index: PackageIndex, verify_contents: bool) -> PackageFiles:
    verify_contents = verify_contents or index.checks_hashes_on_open
    graphs = set(index.graphs.values())
    for name, digest in index.files.items():
        _check_size(directory, name, digest)
        # The content hashes of graphs are verified when the graphs are read.
        is_verified = verify_contents and name not in graphs
        if is_verified and compute_file_sha256(directory / name) != digest.sha256:
            _raise_inconsistent(directory, name, CHANGED_CONTENT)
    for name, linked in index.linked_files.items():
        if reason := describe_file_mismatch(
            directory, name, linked, verify_contents=verify_contents
        ):
            _raise_inconsistent(directory, name, reason)
    reader = backend.load_runner()
    models: dict[str, ModelFile] = {}
    for role, name in index.graphs.items():
        models[role] = reader.parse_model(
            read_package_file(directory, name, index.files[name]), directory / name
        )
        _check_weights(directory, name, models[role], index)
    return PackageFiles(directory, index, models)


def _check_size(directory: Path, name: str, digest: FileDigest) -> None:
    size = get_regular_file_size(directory / name)
    if size is None:
        _raise_inconsistent(directory, name, "it is missing, or it is not a regular file")
    if size != digest.bytes:
        reason = f"it has {size} bytes, but had {digest.bytes} when the package was written"
        _raise_inconsistent(directory, name, reason)


def read_package_file(directory: Path, name: str, digest: FileDigest) -> bytes:
    """Read a file of a package. Raise E0830 if the hash of the file differs from `digest`."""
    _check_size(directory, name, digest)
    try:
        data = read_regular_file(directory / name, digest.bytes)
    except UnreadableFileError as error:
        _raise_inconsistent(directory, name, f"it cannot be read: {error.reason}")
    if hashlib.sha256(data).hexdigest() != digest.sha256:
        _raise_inconsistent(directory, name, CHANGED_CONTENT)
    return data


def _check_weights(directory: Path, name: str, file: ModelFile, index: PackageIndex) -> None:
    """Raise E0830 unless all weights of a graph are in files that the package index lists."""
    # The index also lists linked checkpoints. Weights in other files would not be verified.
    sizes = {n: f.bytes for n, f in index.files.items()}
    sizes |= {n: f.bytes for n, f in index.linked_files.items()}
    external_files = file.list_external_files()
    if reason := describe_out_of_bounds_tensor(external_files, sizes):
        _raise_inconsistent(directory, name, reason)
    for location, _ in external_files:
        if (digest := index.files.get(location)) is not None:
            facts = WeightFileMetadata(digest.bytes, digest.sha256)
            if reason := describe_file_mismatch(directory, location, facts):
                _raise_inconsistent(directory, location, reason)


def _raise_inconsistent(directory: Path, name: str, reason: str) -> NoReturn:
    raise_error(
        "E0830",
        f"`{escape_text(name)[:200]}` does not belong to the package `{escape_text(directory)}`",
        notes=[reason, f"its files are listed in `{INDEX_FILE}`"],
        helps=["compile the package again, or copy its whole directory"],
    )
