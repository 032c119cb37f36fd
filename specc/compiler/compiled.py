"""What comes of a compilation, for whoever asked for it."""

from dataclasses import dataclass, field
from pathlib import Path

from specc.ir.model import Model
from specc.text.brief import brief, card, number
from specc.text.diagnostic import Diagnostic


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What `compile` wrote: files with their sizes, and what the user should know;
    `forms` is how each attention is done, and why.
    """

    path: Path
    files: tuple[tuple[Path, int], ...]
    model: Model
    remarks: tuple[str, ...] = ()
    warnings: tuple[Diagnostic, ...] = field(default=())
    forms: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return brief(f"compiled {self.model.name}: {self.path}, {self._size}")

    def _repr_html_(self) -> str:
        """What was written, for a notebook."""
        return card(
            f"specc compiled {self.model.name}",
            [
                ("graph", self.model.graph.signed()),
                *((str(path), f"{number(size)} bytes") for path, size in self.files),
                *(("remark", remark) for remark in self.remarks),
                *(("warning", f"{d.code}: {d.title}") for d in self.warnings),
            ],
        )

    @property
    def _size(self) -> str:
        count = len(self.files)
        files = "1 file" if count == 1 else f"{count} files"
        return f"{files}, {number(sum(size for _, size in self.files))} bytes"
