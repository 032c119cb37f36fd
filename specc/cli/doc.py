"""Say what a block, mask, score, bias, normalizer or word takes, gives and means."""

from argparse import ArgumentParser, Namespace
from dataclasses import replace

from specc.elaborate.vocabulary import WORDS
from specc.lang import tree
from specc.lang.dsl.write import statement
from specc.library.files import Files, shipped
from specc.text.diagnostic import fail
from specc.text.suggest import suggest


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("name", metavar="NAME", help="a name that `specc list` shows")
    parser.add_argument(
        "--source",
        action="store_true",
        help="the whole definition, to read or to copy; of a shipped spec its file",
    )


def run(given: Namespace) -> int:
    """Print its signature and text."""
    library = Files()
    if given.source and _spec_alone(given.name, library):
        print(shipped()[given.name].read_text(encoding="utf-8"), end="")
        return 0
    if given.name in WORDS:
        word = WORDS[given.name]
        print(f"{word.shown()}\n\n{word.doc}")
        # a word may be a normalizer too, where one is due
        if given.name not in library.standard_names():
            return 0
        print()
    found = library.standard(given.name)
    if found is None:
        known = [*WORDS, *library.standard_names()]
        helps = suggest(given.name, known, "`specc list` shows what there is")
        if given.name in shipped():
            helps = [
                f"it is a spec: `specc show {given.name}`",
                f"its text: `specc doc {given.name} --source`",
            ]
        fail("E0204", f"nothing is called `{given.name}`", helps=helps)
    item, module = found
    if isinstance(item, tree.Block) and not given.source:
        item = replace(item, body=(), end=())
    print(f"{chr(10).join(statement(item, 0))}\n\n({module.path})")
    return 0


def _spec_alone(name: str, library: Files) -> bool:
    """Whether a shipped spec is called so, and nothing that a spec can call."""
    other = name in WORDS or name in library.standard_names()
    return name in shipped() and not other
