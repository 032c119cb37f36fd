"""Formats by file extension; image directories."""

from collections.abc import Sequence
from pathlib import Path

from specc.batch_inference.file_format import (
    ColumnType,
    FileFormat,
    RowBlock,
    Rows,
    TableColumn,
    check_readable,
    translate_os_errors,
)
from specc.batch_inference.parquet import ParquetFile
from specc.batch_inference.text_lines import CsvFile, JsonLinesFile, TextLinesFile
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text, raise_unreadable

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def find_images(directory: Path) -> list[Path]:
    """Return the images in a directory and its subdirectories, sorted by path."""
    found = (p for p in directory.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
    return sorted((p for p in found if p.is_file()), key=lambda p: p.as_posix())


class ImageDirectory:
    """A directory of images, as a table: `image` is the file, `path` its path relative to the
    directory.
    """

    def columns(self, path: Path) -> tuple[TableColumn, ...]:
        """Return the columns `image` and `path`."""
        return TableColumn("image", ColumnType("text")), TableColumn("path", ColumnType("text"))

    def blocks(self, path: Path, file: int, rows: int) -> list[RowBlock]:
        """Yield blocks of consecutive images."""
        count = len(find_images(path))
        return [
            RowBlock(file=file, start=start, rows=min(rows, count - start))
            for start in range(0, count, rows)
        ]

    def read(self, path: Path, block: RowBlock, columns: Sequence[str]) -> Rows:
        """Return the paths of the images in a block."""
        some = find_images(path)[block.start : block.start + block.rows]
        return {
            "image": [str(p) for p in some],
            "path": [p.relative_to(path).as_posix() for p in some],
        }


FILE_FORMATS: dict[str, type[FileFormat]] = {
    ".parquet": ParquetFile,
    ".jsonl": JsonLinesFile,
    ".ndjson": JsonLinesFile,
    ".csv": CsvFile,
    ".txt": TextLinesFile,
}


def find_format(path: Path) -> FileFormat:
    """Return the reader of a file or directory. Raise E0873 for an unknown extension."""
    if path.is_dir():
        return ImageDirectory()
    made = FILE_FORMATS.get(path.suffix.lower())
    if made is None:
        raise_error(
            "E0873",
            f"`{escape_text(path)}` is not a table that specc reads",
            notes=[
                f"the file extension decides: {', '.join(FILE_FORMATS)}, or a directory of images"
            ],
            helps=["give the file one of these extensions, or convert it"],
        )
    return made()


def find_files(given: Sequence[str]) -> list[Path]:
    """Return the files and image directories to read, in order. Raise E0802 if one is not
    readable, E0873 for a directory of neither tables nor images.
    """
    found: list[Path] = []
    for name in given:
        path = Path(name)
        with translate_os_errors(path):
            files = _files_at(path, name)
        for file in files:
            if not file.is_dir():
                find_format(file)  # an unsupported suffix is reported first
                check_readable(file)
        found += files
    return found


def _files_at(path: Path, name: str) -> list[Path]:
    # an empty name is not a path, although `Path` makes it the working directory
    if not name or not path.exists():
        fix = "pass the path of a table, or of a directory of tables or images"
        raise_unreadable(name, "no such file or directory", fix)
    return _in_folder(path) if path.is_dir() else [path]


def _in_folder(directory: Path) -> list[Path]:
    tables = sorted(
        p
        for p in directory.iterdir()
        if p.suffix.lower() in FILE_FORMATS and p.name[0] not in "._" and p.is_file()
    )
    if tables:
        return tables
    if not find_images(directory):
        raise_error(
            "E0873",
            f"the directory `{escape_text(directory)}` contains neither tables nor images",
            notes=[f"tables have the extension {', '.join(FILE_FORMATS)}"],
            helps=["pass the files themselves"],
        )
    return [directory]
