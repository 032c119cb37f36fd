"""Generate specs/std.json, the syntax trees of the standard library:
`python -m specc.library.std_table_generator`.
"""

import json
from pathlib import Path

from specc.frontend.spec_modules import build_module
from specc.library.spec_files import get_specs_directory
from specc.library.std import compute_source_digest, read_std_sources
from specc.syntax.ast_json import tree_to_json
from specc.syntax.parse import parse_spec


def render_std_table(folder: Path) -> str:
    """The table of a folder of specs: for each file the hash of its text, the names it
    defines, its tree.
    """
    rows = []
    for name, source in read_std_sources(folder).items():
        file = parse_spec(source)
        row = {
            "of": compute_source_digest(source),
            "names": list(build_module(file, name).items),
            "tree": tree_to_json(file),
        }
        rows.append(
            f"{json.dumps(name)}:{json.dumps(row, ensure_ascii=False, separators=(',', ':'))}"
        )
    return "{" + ",\n".join(rows) + "}\n"


if __name__ == "__main__":
    (get_specs_directory() / "std.json").write_text(
        render_std_table(get_specs_directory() / "std"), encoding="utf-8"
    )
