"""A folder of pictures as a table: the path of each below the folder, in order."""

from collections.abc import Sequence
from pathlib import Path

from specc.map.formats.source import Block, Rows
from specc.map.kinds import Column, Kind

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def pictures_in(folder: Path) -> list[Path]:
    """The pictures in a folder and those below it, sorted by path."""
    found = (p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS)
    return sorted((p for p in found if p.is_file()), key=lambda p: p.as_posix())


class Pictures:
    """`image` is the file to be read, `path` its path below the folder."""

    def columns(self, path: Path) -> tuple[Column, ...]:
        """The two columns."""
        return Column("image", Kind("text")), Column("path", Kind("text"))

    def blocks(self, path: Path, file: int, rows: int) -> list[Block]:
        """Blocks of neighboring pictures."""
        count = len(pictures_in(path))
        return [
            Block(file=file, start=start, rows=min(rows, count - start))
            for start in range(0, count, rows)
        ]

    def read(self, path: Path, block: Block, columns: Sequence[str]) -> Rows:
        """The paths of a block."""
        some = pictures_in(path)[block.start : block.start + block.rows]
        return {
            "image": [str(p) for p in some],
            "path": [p.relative_to(path).as_posix() for p in some],
        }
