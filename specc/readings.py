"""A spec's `reading { … }` as the record the runner works by, vocabulary files read in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from specc.elaborate.modules import Program
from specc.input import Unreadable, read_regular
from specc.ir.model import Model
from specc.lang import tree
from specc.lang.read import decode
from specc.reading.fields import Complain
from specc.reading.record import OutputReading, Reading, input_reading, output_reading
from specc.reading.text import read_vocabulary
from specc.text.diagnostic import fail
from specc.text.source import Span

LARGEST_VOCABULARY = 16 * 2**20


def reading_of(program: Program, model: Model) -> Reading:
    """How each input is read and each result shown. Paths are seen from the file that says them."""
    spans = {e.name: e.span for item, _ in program.items(tree.Reading) for e in item.entries}
    folders = {m.path: m.folder for m in program.chain}

    def record(name: str, data: Any, make: Any) -> Any:
        folder = folders[data["home"]]
        plain = _resolved({k: v for k, v in data.items() if k != "home"}, folder, spans.get(name))

        def complain(path: tuple[str, ...], what: str) -> NoReturn:
            fail("E0203", f"`{'.'.join(path) or name}` {what}", spans.get(name))

        return make(plain, (), complain)

    return Reading(
        tuple((n, record(n, d, input_reading)) for n, d in model.reading.items()),
        tuple((n, record(n, d, _output_reading)) for n, d in model.showing.items()),
    )


def _output_reading(value: dict[str, Any], path: tuple[str, ...], complain: Complain) -> OutputReading:
    """A result's record. `text(…)` says by its vocabulary how ids become text, as for an input how text becomes ids."""
    if value["kind"] in ("characters", "bytes"):
        value = {"kind": "text", "vocabulary": value}
    return output_reading(value, path, complain)


def _resolved(data: Mapping[str, Any], folder: Path, span: Span | None) -> dict[str, Any]:
    """The call's positional arguments under their names: `text(characters("x.vocab"))`, `choice(labels)`."""
    made = {k: v for k, v in data.items() if k != "args"}
    args = list(data.get("args", ()))
    match made["kind"]:
        case "choice" | "class_map" if args:
            made["labels"] = _labels(args.pop(0), made["kind"], span)
        case "text" if args:
            return _text(args[0], made, folder, span)
        case "characters" if args:
            made["vocab"] = _vocabulary(args.pop(0), folder, span)
        case "picture" if args:
            if not isinstance(args[0], dict):
                fail("E0203", "`picture` takes the `image(…)` whose colors it gives back", span)
            made["image"] = _resolved(args.pop(0), folder, span)
        case "image" if args:
            fail("E0211", "`image` takes options only: image(size=[8, 8], channels=1)", span)
    return made


def _labels(given: Any, kind: str, span: Span | None) -> list[str]:
    if not isinstance(given, list):
        helps = [f'write `{kind}(["cat", "dog"])`, or name a config list']
        fail("E0203", f"the labels of `{kind}` are a list", span, helps=helps)
    return [str(label) for label in given]


def _text(vocabulary: Any, options: dict[str, Any], folder: Path, span: Span | None) -> dict[str, Any]:
    if not isinstance(vocabulary, dict):
        fail("E0203", '`text` takes what it is read by: text(characters("x.vocab")) or text(bytes())', span)
    inner = _resolved(vocabulary, folder, span)
    rest = {k: v for k, v in options.items() if k != "kind"}
    return {**inner, **rest}


def _vocabulary(given: Any, folder: Path, span: Span | None) -> list[str]:
    if isinstance(given, list):
        return [str(token) for token in given]
    path = (folder / str(given)).resolve()
    if not path.is_relative_to(folder.resolve()):
        helps = ["put it into that folder or below it"]
        fail("E0803", f"`{given}` lies outside the folder of the spec", span, helps=helps)
    try:
        data = read_regular(path, LARGEST_VOCABULARY)
    except Unreadable as error:
        fail("E0802", f"the vocabulary `{given}` cannot be read: {error.reason}", span)
    return list(read_vocabulary(decode(data, str(given))))
