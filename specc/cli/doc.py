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
        "--source", action="store_true", help="the whole definition, to read or to copy"
    )


def run(given: Namespace) -> int:
    """Print its signature and text."""
    library = Files()
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
            helps = [f"it is a spec: `specc show {given.name}`"]
        fail("E0204", f"nothing is called `{given.name}`", helps=helps)
    item, module = found
    if isinstance(item, tree.Block) and not given.source:
        item = replace(item, body=(), end=())
    print(f"{chr(10).join(statement(item, 0))}\n\n({module.path})")
    return 0
