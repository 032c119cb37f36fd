"""The formats by the ending of a file, and the files that a path stands for."""

from collections.abc import Sequence
from pathlib import Path

from specc.files.read import shown
from specc.map.formats.lines import Csv, JsonLines, TextLines
from specc.map.formats.parquet import Parquet
from specc.map.formats.pictures import Pictures, pictures_in
from specc.map.formats.source import Format, check_readable, reading
from specc.text.diagnostic import fail

FORMATS: dict[str, type[Format]] = {
    ".parquet": Parquet,
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".csv": Csv,
    ".txt": TextLines,
}


def format_of(path: Path) -> Format:
    """Who reads this file or folder. E0873 for an ending that nobody reads."""
    if path.is_dir():
        return Pictures()
    made = FORMATS.get(path.suffix.lower())
    if made is None:
        fail(
            "E0873",
            f"`{shown(str(path))}` is no table that specc reads",
            notes=[
                f"the ending decides: {', '.join(FORMATS)}, or a folder of pictures"
            ],
            helps=["give the file one of these endings, or convert it"],
        )
    return made()


def files_of(given: Sequence[str]) -> list[Path]:
    """The files and folders that are read, in order. A folder that holds tables stands
    for these, one with pictures for itself. E0802 for what is not there or cannot be
    read, E0873 for a folder of neither.
    """
    found: list[Path] = []
    for name in given:
        path = Path(name)
        with reading(path):
            files = _files_at(path, name)
        for file in files:
            if not file.is_dir():
                format_of(file)  # an ending that nobody reads is told before all else
                check_readable(file)
        found += files
    return found


def _files_at(path: Path, name: str) -> list[Path]:
    # no name is no place, though to `Path` it is the working folder
    if not name or not path.exists():
        fail(
            "E0802",
            f"cannot read `{shown(name)}`: there is no such file or folder",
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
    if not pictures_in(folder):
        fail(
            "E0873",
            f"the folder `{shown(str(folder))}` holds neither tables nor pictures",
            notes=[f"tables end in {', '.join(FORMATS)}"],
            helps=["give the files themselves"],
        )
    return [folder]
