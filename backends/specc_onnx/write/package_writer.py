"""Write a package, which consists of several graphs with shared weights and the index `specc.json`.

The names of weight files and of some extra files contain a content hash, whereas entry files have
fixed names. Entry files are written after all other files, and `specc.json` is written last, so
that a concurrent reader sees the old package, the new package, or a hash mismatch.
"""

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from specc.artifact.package_index_and_format_versions import (
    INDEX_FILE,
    PackageIndex,
    find_deletable_files,
    is_portable_file_name,
    read_previous_package_index,
)
from specc.backend import ExtraFile, PackageGraph, PackageMetadata, WeightStorage, WriteResult
from specc.io.atomic_write import FileDigest, OutputDirectory
from specc.io.file_type_detection import filter_unreferenced_files, is_package_index, is_specc_model
from specc.io.output_paths import (
    normalize_output_path,
    raise_file_type_error,
    raise_overwrite_error,
    reject_input_overwrite,
    reject_unportable_file_name,
)
from specc.io.safe_read import compute_file_sha256, get_regular_file_size
from specc.ir.target import Target
from specc.version import __version__
from specc.weights.parameter_sources import ParameterSource
from specc_onnx.lower import onnx_targets
from specc_onnx.write.model_writer import build_verified_models, write_verified_models


def write_package(
    graphs: Mapping[str, PackageGraph],
    directory: Path,
    parameters: ParameterSource,
    *,
    target: Target,
    metadata: PackageMetadata,
    opset: int = onnx_targets.DEFAULT_OPSET,
    weights_as: WeightStorage = "auto",
    dtype: str = "",
    extra_files: Sequence[ExtraFile] = (),
    verify_load: bool = True,
    input_paths: Sequence[Path] = (),
    force: bool = False,
    checks_hashes_on_open: bool = False,
) -> WriteResult:
    """Write `graphs`, keyed by role, into `directory`, and replace an existing package. If
    `checks_hashes_on_open` is True, content hashes are compared whenever the package is loaded.
    Raise E0833 unless `force` is True if a file that specc did not write would be overwritten.
    Raise E0814 if one of the `input_paths` would be overwritten, or an error of `write_model`.
    """
    directory = normalize_output_path(directory)
    reject_unportable_file_name(directory)
    _check_names(graphs, extra_files)
    previous_index = read_previous_package_index(directory)
    unchanged_extras = _check_output_files(
        directory, previous_index, graphs, extra_files, input_paths=input_paths, force=force
    )
    prepared_graphs = build_verified_models(
        [graph.graph for graph in graphs.values()],
        directory,
        parameters,
        target=target,
        opset=opset,
        weights_as=weights_as,
        dtype=dtype,
        verify_load=verify_load,
    )
    previous_files = _find_superseded_files(directory, previous_index)
    superseded_files = [name for name in previous_files if name not in unchanged_extras]
    with OutputDirectory(directory, superseded=superseded_files) as out:
        entries = [(graph.file, graph.metadata) for graph in graphs.values()]
        data = write_verified_models(out, "model", prepared_graphs, parameters, entries)
        index = PackageIndex(
            model=metadata.model,
            graphs={role: graph.file for role, graph in graphs.items()},
            extras=_write_extras(out, extra_files, unchanged_extras),
            files={**out.file_digests, **unchanged_extras},
            version=__version__,
            preexisting=tuple(sorted(unchanged_extras)),
            linked_files=prepared_graphs.placement.weight_files,
            metadata=metadata.entries,
            sources=metadata.sources,
            checks_hashes_on_open=checks_hashes_on_open,
        )
        index_content = index.serialize()
        out.write_named_file(INDEX_FILE, [index_content])
    sizes = {**{n: facts.bytes for n, facts in index.files.items()}, INDEX_FILE: len(index_content)}
    files = tuple((directory / name, size) for name, size in sizes.items())
    return WriteResult(directory, data, prepared_graphs.placement.plan, files)


def _find_superseded_files(directory: Path, previous_index: PackageIndex | None) -> Sequence[str]:
    """Return the names of the previous package's files that the new package does not reference."""
    if previous_index is None:
        return []
    return filter_unreferenced_files(
        directory,
        find_deletable_files(directory, previous_index),
        excluded_models=previous_index.files,
    )


def _check_output_files(
    directory: Path,
    previous_index: PackageIndex | None,
    graphs: Mapping[str, PackageGraph],
    extra_files: Sequence[ExtraFile],
    *,
    input_paths: Sequence[Path],
    force: bool,
) -> dict[str, FileDigest]:
    """Return the extra files that already exist with the same content. Raise E0811, E0814 or E0833
    if another output file must not be written.
    """
    file_names = [
        *(p.file for p in graphs.values()),
        *(e.name for e in extra_files if not e.is_hashed),
        INDEX_FILE,
    ]
    for name in file_names:
        _check_is_file(directory / name)
    unchanged_extras = _find_unchanged_extras(directory, previous_index, extra_files)
    for name in (n for n in file_names if n not in unchanged_extras):
        reject_input_overwrite(directory / name, input_paths)
        if not force:
            _check_replaceable(directory / name, previous_index)
    return unchanged_extras


def _check_names(graphs: Mapping[str, PackageGraph], extra_files: Sequence[ExtraFile]) -> None:
    """Assert that the package contains a graph. Assert that file names contain no directory and are
    distinct, even on case-insensitive file systems.
    """
    names = [*(p.file for p in graphs.values()), *(e.name for e in extra_files)]
    assert graphs, "a package requires a graph"
    assert all(map(is_portable_file_name, names)), f"invalid file names in {names}"
    assert len({n.lower() for n in names}) == len(names), f"duplicate file names in {names}"
    assert len({e.role or e.name for e in extra_files}) == len(extra_files), (
        "duplicate roles of extra files"
    )


def _find_unchanged_extras(
    directory: Path, previous_index: PackageIndex | None, extras: Sequence[ExtraFile]
) -> dict[str, FileDigest]:
    """Return existing extra files that have the same content and were not written by specc."""
    written_files = _collect_written_files(previous_index)
    unchanged_files = {}
    for extra in extras:
        path = directory / extra.name
        if extra.is_hashed or extra.name in written_files:
            continue
        digest = hashlib.sha256(extra.content).hexdigest()
        if (
            get_regular_file_size(path) == len(extra.content)
            and compute_file_sha256(path) == digest
        ):
            unchanged_files[extra.name] = FileDigest(len(extra.content), digest)
    return unchanged_files


def _collect_written_files(previous_index: PackageIndex | None) -> set[str]:
    """Return the names of the files that specc wrote for the previous package, if any."""
    return set(previous_index.files) - set(previous_index.preexisting) if previous_index else set()


def _check_is_file(path: Path) -> None:
    """Raise E0811 if an output path is a directory, a device or a link."""
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode):
        kinds = (
            (stat.S_ISDIR, "a directory"),
            (stat.S_ISLNK, "a symbolic link, but a package must contain the file itself"),
        )
        description = next(
            (description for is_kind, description in kinds if is_kind(mode)), "a device or a pipe"
        )
        raise_file_type_error(path, description)


def _check_replaceable(path: Path, previous_index: PackageIndex | None) -> None:
    """Raise E0833 unless `path` is empty, an index or model of specc, or an unchanged output."""
    size = get_regular_file_size(path)
    # an empty file may be replaced even if specc did not write it
    if not size or _is_specc_file(path):
        return
    digest = (
        previous_index.files[path.name]
        if previous_index and path.name in _collect_written_files(previous_index)
        else None
    )
    if digest is None or digest.bytes != size or compute_file_sha256(path) != digest.sha256:
        description = (
            "a model that specc did not compile"
            if path.suffix == ".onnx"
            else "a file that specc did not write"
        )
        raise_overwrite_error(
            path,
            f"the file is {description}",
            "write to another directory with -o, or overwrite it with --force",
        )


def _is_specc_file(path: Path) -> bool:
    """Return True if a file is a package index or a model with specc's metadata."""
    if path.name == INDEX_FILE:
        return is_package_index(path)
    return path.suffix == ".onnx" and is_specc_model(path)


def _write_extras(
    out: OutputDirectory,
    extra_files: Sequence[ExtraFile],
    unchanged_extras: Mapping[str, FileDigest],
) -> dict[str, str]:
    """Write the extra files and return their names by role."""
    names = {}
    for extra_file in extra_files:
        name = extra_file.name
        if extra_file.is_hashed:
            stem, dot, suffix = extra_file.name.partition(".")
            name = out.write_content_addressed_file(stem, dot + suffix, [extra_file.content])
        elif name not in unchanged_extras:
            out.write_named_file(name, [extra_file.content])
        names[extra_file.role or extra_file.name] = name
    return names
