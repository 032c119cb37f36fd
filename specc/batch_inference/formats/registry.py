"""Formats by file extension."""

from collections.abc import Sequence
from pathlib import Path

from specc.batch_inference.formats.file_format import (
    FileFormat,
    ImageDirectory,
    check_readable,
    find_images,
    translate_os_errors,
)
from specc.batch_inference.formats.parquet import ParquetFile
from specc.batch_inference.formats.text_lines import CsvFile, JsonLinesFile, TextLinesFile
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text

FORMATS: dict[str, type[FileFormat]] = {
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
    made = FORMATS.get(path.suffix.lower())
    if made is None:
        raise_error(
            "E0873",
            f"`{escape_text(str(path))}` is no table that specc reads",
            notes=[f"the ending decides: {', '.join(FORMATS)}, or a folder of pictures"],
            helps=["give the file one of these endings, or convert it"],
        )
    return made()


def find_files(given: Sequence[str]) -> list[Path]:
    """The files and folders that are read, in order. A folder that holds tables stands
    for these, one with pictures for itself. E0802 for what is not there or cannot be
    read, E0873 for a folder of neither.
    """
    found: list[Path] = []
    for name in given:
        path = Path(name)
        with translate_os_errors(path):
            files = _files_at(path, name)
        for file in files:
            if not file.is_dir():
                find_format(file)  # an ending that nobody reads is told before all else
                check_readable(file)
        found += files
    return found


def _files_at(path: Path, name: str) -> list[Path]:
    # no name is no place, though to `Path` it is the working folder
    if not name or not path.exists():
        raise_error(
            "E0802",
            f"cannot read `{escape_text(name)}`: there is no such file or folder",
            helps=["give the path of a table, or of a folder of tables or pictures"],
        )
    return _in_folder(path) if path.is_dir() else [path]


def _in_folder(folder: Path) -> list[Path]:
    tables = sorted(
        p
        for p in folder.iterdir()
        if p.suffix.lower() in FORMATS and p.name[0] not in "._" and p.is_file()
    )
    if tables:
        return tables
    if not find_images(folder):
        raise_error(
            "E0873",
            f"the folder `{escape_text(str(folder))}` holds neither tables nor pictures",
            notes=[f"tables end in {', '.join(FORMATS)}"],
            helps=["give the files themselves"],
        )
    return [folder]
