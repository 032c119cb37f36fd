"""Writes specs/std.json, the trees of the standard library:
`python -m specc.library.write_table`. A test compares.
"""

import json
from pathlib import Path

from specc.elaborate.modules import module_of
from specc.lang.read import read
from specc.lang.store import dump
from specc.library.files import root
from specc.library.standard import digest, sources


def text(folder: Path) -> str:
    """The table of a folder of specs: for each file the hash of its text, the names it
    defines, its tree.
    """
    rows = []
    for name, source in sources(folder).items():
        file = read(source)
        row = {
            "of": digest(source),
            "names": list(module_of(file, name).items),
            "tree": dump(file),
        }
        rows.append(
            f"{json.dumps(name)}:{json.dumps(row, ensure_ascii=False, separators=(',', ':'))}"
        )
    return "{" + ",\n".join(rows) + "}\n"


if __name__ == "__main__":
    (root() / "std.json").write_text(text(root() / "std"), encoding="utf-8")
