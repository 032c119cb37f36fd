"""Begin a spec of one's own: an instance of a shipped one, with comments; or a draft from
the folder of a checkpoint.
"""

import re
from argparse import ArgumentParser, Namespace
from pathlib import Path

from specc.cli.messages import answer, done
from specc.cli.spec_options import FORCE
from specc.compiler.draft import Draft, drafted
from specc.compiler.instance import SCHEMA, Beginning, begun
from specc.files.place import BEGUN, place
from specc.files.read import shown
from specc.files.write import atomic_write
from specc.lang import tree
from specc.lang.dsl.write import write
from specc.lang.yaml.write import write_yaml
from specc.library.files import root
from specc.text.diagnostic import fail

MODELINE = f"yaml-language-server: $schema=./{SCHEMA}"
CHANGE = "What stands here holds anyway: change what you like, and leave out the rest."
TAKE = "A line behind # follows from the others. Take the # away to say otherwise."


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "words",
        nargs="+",
        metavar="SPEC FILE",
        help="the shipped spec to begin with (see `specc list specs`), and the file to "
        "write: .yaml or .specc; with --from the file alone",
    )
    parser.add_argument(
        "--from",
        dest="folder",
        default="",
        metavar="DIR",
        help="draft it from a checkpoint: its config.json and the names of its tensors",
    )
    parser.add_argument(
        "--no-schema",
        action="store_true",
        help=f"without the line for editors, and without {SCHEMA} beside the file",
    )
    parser.add_argument("--force", action="store_true", help=FORCE)


def run(given: Namespace) -> int:
    """Write the file, and say what to do next."""
    names, path = given.words[:-1], given.words[-1]
    if len(names) != (0 if given.folder else 1):
        _wrong_words(bool(given.folder))
    place(path, BEGUN, force=given.force)  # before any work
    yaml = not path.lower().endswith(".specc")
    name = named(Path(path).stem)
    above = (MODELINE,) if yaml and not given.no_schema else ()
    sign = ": " if yaml else " = "
    draft = None
    if given.folder:
        draft = drafted(given.folder, name, sign, above)
        file = draft.file
    else:
        base = names[0]
        beginning = Beginning(
            name=name,
            extends=base,
            above=(*above, f"Begun as an instance of {base}.", CHANGE, TAKE),
            below=_below(yaml),
            sign=sign,
        )
        file = begun(beginning)
    _write(path, file, yaml, given.force)
    if above:
        _write_schema(Path(path).parent / SCHEMA)
    if answer("new", {"file": path, "extends": file.extends, "draft": told(draft)}):
        return 0
    done(f"{shown(path)}: an instance of {file.extends}")
    if draft is not None:
        _tell(draft)
    done(f"next: specc check {shown(path)}")
    return 0


def told(draft: Draft | None) -> dict[str, object] | None:
    """What a draft is made of, as plain values."""
    if draft is None:
        return None
    return {
        "graph": draft.graph,
        "values": draft.values,
        "certain": draft.certain,
        "unplaced": [*draft.unplaced],
    }


def named(stem: str) -> str:
    """A file's name as one that a spec may have."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", stem)
    return plain if plain[:1].isalpha() else f"my_{plain}"


def _below(yaml: bool) -> tuple[str, ...]:
    """What comes next, to be uncommented."""
    said = "Where trained weights lie, beside this file; `specc compile` reads them:"
    if yaml:
        return (said, "weights:", "  - from: my.safetensors")
    return (said, 'weights { from "my.safetensors" }')


def _write(path: str, file: tree.File, yaml: bool, force: bool) -> None:
    text = (write_yaml(file) if yaml else write(file)).encode()
    atomic_write(place(path, BEGUN, force=force, content=text), [text])


def _write_schema(path: Path) -> None:
    """The schema that the file's first line names; one that is there stays."""
    if not path.exists():
        atomic_write(path, [(root() / "schema.json").read_bytes()])


def _tell(draft: Draft) -> None:
    """What a draft is made of, and what has no place in it."""
    done(
        f"graph: {draft.graph}; {draft.values} values of config.json differ from its own"
    )
    if not draft.certain:
        done("no spec is for models of this type: this is the nearest, to be looked at")
    if draft.unplaced:
        done("not placed:")
    for line in draft.unplaced:
        done(f"  {shown(line)}")
    if not draft.unplaced:
        done("every key and every tensor has its place")


def _wrong_words(drafting: bool) -> None:
    wanted = "one file beside --from" if drafting else "a shipped spec and a file"
    fail(
        "E0407",
        f"`specc new` takes {wanted}",
        helps=["specc new vit my.yaml", "specc new my.yaml --from checkpoint/"],
    )
