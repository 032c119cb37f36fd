"""Say what a block, mask, score, bias, normalizer or word takes, gives and means."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, replace
from typing import NoReturn

from specc.cli.doc_readings import READINGS
from specc.cli.messages import answer
from specc.elaborate.vocabulary import WORDS
from specc.files.read import shown
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
        found = [_of_spec(given.name)]
    else:
        found = meanings(given.name, library, source=given.source)
    items = [vars(one) for one in found]
    if not answer("doc", {"name": given.name, "meanings": items}):
        print("\n\n".join(one.said() for one in found))
    return 0


@dataclass(frozen=True, kw_only=True)
class Described:
    """One thing that a name means: `text` is its head or its whole definition."""

    kind: str
    text: str
    doc: str = ""
    file: str = ""

    def said(self) -> str:
        """For people: the text, what it does, where it is written."""
        # the file of a spec is printed as it is, to be sent into another
        if self.kind == "spec":
            return self.text.removesuffix("\n")
        behind = (self.doc, f"({self.file})" if self.file else "")
        return "\n\n".join([self.text, *filter(None, behind)])


def _of_spec(name: str) -> Described:
    """The whole text of a shipped spec."""
    text = shipped()[name].read_text(encoding="utf-8")
    return Described(kind="spec", text=text, file=shipped()[name].name)


def meanings(name: str, library: Files, *, source: bool) -> list[Described]:
    """What a spec can call by this name: a word may be a normalizer too, where one is
    due. E0204 for a name of nothing.
    """
    word, found = WORDS.get(name), library.standard(name)
    made = [Described(kind="word", text=word.shown(), doc=word.doc)] if word else []
    if found is not None:
        item, module = found
        kind = "block" if isinstance(item, tree.Block) else item.kind
        if isinstance(item, tree.Block) and not source:
            item = replace(item, body=(), end=())
        text = "\n".join(statement(item, 0))
        made.append(Described(kind=kind, text=text, file=str(module.path)))
    if name in READINGS:
        text, doc = READINGS[name]
        made.append(Described(kind="reading", text=text, doc=doc))
    if not made:
        _unknown(name, library)
    return made


def _unknown(name: str, library: Files) -> NoReturn:
    """E0204, with what was probably meant."""
    known = [*WORDS, *library.standard_names(), *READINGS]
    helps = suggest(name, known, "`specc list` shows what there is")
    if name in shipped():
        helps = [
            f"it is a spec: `specc show {name}`",
            f"its text: `specc doc {name} --source`",
        ]
    fail("E0204", f"nothing is called `{shown(name)}`", helps=helps)


def _spec_alone(name: str, library: Files) -> bool:
    """Whether a shipped spec is called so, and nothing that a spec can call."""
    other = name in WORDS or name in library.standard_names()
    return name in shipped() and not other
