"""Read the `reading { ... }` section: preprocessing of inputs, display of outputs."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Failed, raise_error
from specc.diagnostics.source import Span
from specc.diagnostics.suggest import suggest_similar_name
from specc.driver.vocabulary_checks import check_vocabulary_texts
from specc.frontend.spec_modules import Program
from specc.huggingface.image_processor_config import (
    describe_image_config,
    find_preprocessor_config,
    image_reading_options,
)
from specc.huggingface.processor_files import (
    audio_reading_files,
    audio_reading_options,
    ctc_transcript_options,
    read_preprocessor_config,
    read_word_vocabulary,
    unused_preprocessor_keys,
)
from specc.huggingface.repository_files import chat_template_files, read_chat_template
from specc.io.json_io import RaiseFieldError
from specc.io.safe_read import UnreadableFile, escape_text, read_regular_file
from specc.ir.model import ModelDefinition
from specc.preprocessing.audio_records import SOUNDS
from specc.preprocessing.preprocessing_config import (
    PreprocessingConfig,
    parse_input_record,
    parse_output_record,
)
from specc.preprocessing.records import TEXTS, Files, InputReading, OutputReading, labels_for_rank
from specc.preprocessing.tokenizer_files import MAX_BYTES, NAME, TokenizerFile
from specc.preprocessing.tokenizer_library import check_tokenizer_file
from specc.preprocessing.vocabulary import read_vocabulary
from specc.syntax import ast
from specc.syntax.parse import decode_spec

LARGEST_VOCABULARY = 16 * 2**20
OF_FILES = frozenset({"E0802", "E0940"})
"""Codes of a file that is not there or cannot be read, and of a package that is missing."""
OPTIONS_ONLY = {"image": "size=[8, 8], channels=1", **dict.fromkeys(SOUNDS, "rate=16000")}
"""Readings that take no argument, and an example of their options."""
_ABSENT = object()
"""Marks a tokenizer that no one gave; nothing that a spec can write is this object."""


@dataclass(frozen=True)
class _Place:
    """Where an entry stands: the folder that paths are seen from, and what has been
    found for the whole spec.

    `given` are folders named at compile time, `language` the one that an adapter is of,
    `files` the tokenizers found so far, by hash.
    """

    folder: Path
    span: Span | None
    given: tuple[Path, ...] = ()
    language: str = ""
    files: dict[str, TokenizerFile] = field(default_factory=dict)


def build_record(
    program: Program, model: ModelDefinition, given: Sequence[Path] = (), language: str = ""
) -> PreprocessingConfig:
    """How each input is read and each result shown. Paths are seen from the file that
    says them. Of a vocabulary for several languages that of `language` is taken.

    `text(tokenizer())` takes the tokenizer.json in the first of the folders `given`
    that has one. Where none has, the input has no reading: it takes ids.
    """
    spans = {e.name: e.span for item, _ in program.items(ast.Reading) for e in item.entries}
    folders = {m.path: m.folder for m in program.chain}
    shared = _Place(Path(), None, tuple(given), language)

    def record(name: str, data: Any, make: Any) -> Any:
        place = replace(shared, folder=folders[data["home"]], span=spans.get(name))
        plain = _resolved({k: v for k, v in data.items() if k != "home"}, place)

        def complain(path: tuple[str, ...], what: str) -> NoReturn:
            if path == ("kind",):
                _no_such(plain["kind"], what, spans.get(name))
            raise_error("E0203", f"`{'.'.join(path) or name}` {what}", spans.get(name))

        return None if plain.get("absent") is _ABSENT else make(plain, (), complain, place.files)

    inputs = [(n, record(n, d, _input_reading)) for n, d in model.reading.items()]
    shows = [(n, record(n, d, _output_reading)) for n, d in model.showing.items()]
    ranks = {name: len(v.type.shape) for name, v in model.graph.outputs.items()}
    return PreprocessingConfig(
        tuple(i for i in inputs if i[1] is not None),
        tuple((n, labels_for_rank(r, ranks.get(n, 0))) for n, r in shows if r is not None),
    )


def check_reading(program: Program, model: ModelDefinition) -> list[Diagnostic]:
    """What is wrong with the readings of a spec, whatever lies in the files that they name."""
    entries = [replace(model, reading={n: d}, showing={}) for n, d in model.reading.items()]
    entries += [replace(model, reading={}, showing={n: d}) for n, d in model.showing.items()]
    found: list[Diagnostic] = []
    for entry in entries:
        try:
            build_record(program, entry)
        except Failed as failed:
            found += [d for d in failed.diagnostics if d.code not in OF_FILES]
    return found


def _no_such(kind: str, what: str, span: Span | None) -> NoReturn:
    """E0203 for a word that is no reading; `what` lists those that are."""
    words = what.removeprefix("is none of ").split(", ")
    helps = suggest_similar_name(kind, words, f"there are {', '.join(words)}")
    raise_error(
        "E0203", f"nothing is read or shown as `{escape_text(kind)}` here", span, helps=helps
    )


def tokenizer_directories(*paths: str) -> tuple[Path, ...]:
    """Those of these paths that are folders: where a tokenizer may lie."""
    found = []
    for path in dict.fromkeys(filter(None, paths)):
        try:
            found += [Path(path)] if Path(path).is_dir() else []
        except (OSError, ValueError):
            # no name that a file can have; whoever reads it says so
            continue
    return tuple(found)


def reading_notes(model: ModelDefinition, given: Sequence[Path]) -> tuple[str, ...]:
    """What became of `tokenizer()` and `words()`, and of what says how sound is heard,
    where folders were named.
    """
    if not given:
        return ()
    kinds = [e["kind"] for e in model.reading.values() if isinstance(e, dict)]
    return (
        *_of_sound(model, given),
        *(describe_image_config(given) if "image" in kinds else ()),
        *_of_text(model, given, "tokenizer", find_tokenizer_file(given), NAME),
        *_of_text(model, given, "words", read_word_vocabulary(given), "vocabulary"),
    )


def _of_text(
    model: ModelDefinition, given: Sequence[Path], kind: str, path: Path | None, what: str
) -> Iterator[str]:
    """By which file texts are read, where the spec leaves it open."""
    entries = (*model.reading.items(), *model.showing.items())
    asked = [name for name, data in entries if _asks(data, kind)]
    if asked and path is not None:
        yield f"the {kind} {'are' if kind == 'words' else 'is'} `{escape_text(str(path))}`"
    elif asked:
        what = f"holds no {what}: `{asked[0]}` takes ids, not text"
        yield f"`{escape_text(str(given[0]))}` {what}"


def _of_sound(model: ModelDefinition, given: Sequence[Path]) -> Iterator[str]:
    """What says how inputs are heard, and the keys of it that nothing follows."""
    entries: list[Any] = [*model.reading.values()]
    kinds = [e["kind"] for e in entries if isinstance(e, dict) and e["kind"] in SOUNDS]
    path, _ = read_preprocessor_config(given) if kinds else (None, {})
    if path is None:
        return
    yield f"sound is heard as `{escape_text(str(path))}` says"
    for key in unused_preprocessor_keys(kinds[0], given):
        yield f"nothing follows `{escape_text(key)[:60]}` in `{escape_text(str(path))}`"


def reading_files(program: Program, model: ModelDefinition, given: Sequence[Path]) -> list[Path]:
    """The files that the readings name: vocabularies, and tokenizers said or given."""
    folders = {m.path: m.folder for m in program.chain}
    found = [find_tokenizer_file(given), find_preprocessor_config(given)] if given else []
    if found and found[0] is not None:
        found += chat_template_files(found[0].parent)
    entries: list[Any] = [*model.reading.values(), *model.showing.values()]
    for data in entries:
        found += audio_reading_files(data.get("kind", ""), given) if given else ()
        found += [read_word_vocabulary(given)] if _asks(data, "words") else []
        names = [name for call in _calls(data) for name in _named(call)]
        found += [folders[data["home"]] / name for name in names]
    return [path for path in found if path is not None]


def _named(call: Mapping[str, Any]) -> list[str]:
    """The files that a call of a reading names."""
    if call.get("kind") not in ("characters", "words", "tokenizer"):
        return []
    # A file's name is text; with a zero byte it can be no name.
    words = [word for word in call.get("args", ()) if isinstance(word, str)]
    return [word for word in words if "\0" not in word]


def _calls(data: Any) -> Iterator[dict[str, Any]]:
    """A call and those among its arguments."""
    if isinstance(data, dict) and "kind" in data:
        yield data
        for inner in data.get("args", ()):
            yield from _calls(inner)


def _asks(data: object, kind: str) -> bool:
    """Whether a reading asks for the tokenizer, or the words, given at compile time."""
    inner = (
        data["args"][0]
        if isinstance(data, dict) and data.get("kind") == "text" and data.get("args")
        else data
    )
    return isinstance(inner, dict) and inner.get("kind") == kind and not inner.get("args")


def _input_reading(
    value: dict[str, Any], path: tuple[str, ...], complain: RaiseFieldError, files: Files
) -> InputReading:
    return parse_input_record(value, path, complain, files)


def _output_reading(
    value: dict[str, Any], path: tuple[str, ...], complain: RaiseFieldError, files: Files
) -> OutputReading:
    """A result's record. `text(…)` says by its vocabulary how ids become text, as for
    an input how text becomes ids.
    """
    if value["kind"] in TEXTS:
        value = {"kind": "text", "vocabulary": value}
    return parse_output_record(value, path, complain, files)


def _resolved(data: Mapping[str, Any], place: _Place) -> dict[str, Any]:
    """The call's positional arguments under their names: `text(characters("x.vocab"))`,
    `choice(labels)`.
    """
    made = {k: v for k, v in data.items() if k != "args"}
    args = list(data.get("args", ()))
    kind = made["kind"]
    if args and kind in OPTIONS_ONLY:
        _options_only(kind, OPTIONS_ONLY[kind], place.span)
    match kind:
        case "choice" | "class_map" if args:
            made["labels"] = _labels(args.pop(0), kind, place.span)
        case "text" if args:
            return _text(args[0], made, place)
        case "characters" if args:
            made["vocab"] = _vocabulary(args.pop(0), place)
        case "words":
            made |= _words(args, place)
        case "tokenizer":
            made |= _tokenizer(args, place)
        case "transcript":
            return _transcript(args, made, place)
        case "picture" if args:
            made["image"] = _resolved(_image_of(args.pop(0), place), place)
        case "image":
            made = image_reading_options(made, place.given, place.span)
        case _ if kind in SOUNDS:
            return audio_reading_options(kind, made, place.given, place.span)
    return made


def _image_of(given: object, place: _Place) -> dict[str, Any]:
    """The `image(…)` that a `picture` is made of."""
    if not isinstance(given, dict):
        title = "`picture` takes the `image(…)` whose colors it gives back"
        raise_error("E0203", title, place.span)
    return given


def _options_only(kind: str, example: str, span: Span | None) -> NoReturn:
    raise_error("E0211", f"`{kind}` takes options only: {kind}({example})", span)


def _labels(given: object, kind: str, span: Span | None) -> list[str]:
    if not isinstance(given, list):
        helps = [f'write `{kind}(["cat", "dog"])`, or name a config list']
        raise_error("E0203", f"the labels of `{kind}` are a list", span, helps=helps)
    return [str(label) for label in given]


def _text(vocabulary: Any, options: dict[str, Any], place: _Place) -> dict[str, Any]:
    if not isinstance(vocabulary, dict):
        title = (
            '`text` takes what it is read by: text(characters("x.vocab")), '
            'text(words("x.vocab")), text(bytes()), text(tokenizer("x.json"))'
        )
        raise_error("E0203", title, place.span)
    inner = _resolved(vocabulary, place)
    rest = {k: v for k, v in options.items() if k != "kind"}
    return {**inner, **rest}


def _vocabulary(given: object, place: _Place) -> list[str]:
    if isinstance(given, list):
        return check_vocabulary_texts(given, place.span)
    return _listed(_inside(str(given), place), str(given), place.span)


def _listed(path: Path, name: str, span: Span | None) -> list[str]:
    """The tokens of a vocabulary file, by the name that it is told by."""
    what = f"the vocabulary `{escape_text(name)}`"
    data = _content(path, LARGEST_VOCABULARY, what, span)
    return list(read_vocabulary(decode_spec(data, name)))


def _words(args: list[Any], place: _Place) -> dict[str, Any]:
    """The words of a file or list, or those beside the weights; `absent` where there are
    none, in an empty list too: a spec may leave them to whoever uses it.
    """
    if args == [[]]:
        return {"absent": _ABSENT}
    if args:
        return {"vocab": _vocabulary(args[0], place)}
    path = read_word_vocabulary(place.given, place.span)
    if path is None:
        return {"absent": _ABSENT}
    return {"vocab": _listed(path, path.name, place.span)}


def _transcript(args: list[Any], options: dict[str, Any], place: _Place) -> dict[str, Any]:
    """The fields of a transcript's record: its tokens are listed, lie in a file, or in
    the vocab.json given at compile time; `absent` where there is none.
    """
    if args:
        return {**options, "vocab": _vocabulary(args[0], place)}
    told = ctc_transcript_options(place.given, place.span, place.language)
    if told is None:
        return {**options, "absent": _ABSENT}
    # what the files call padding is what their tokenizer leaves out
    return {**options, **told}


def _tokenizer(args: list[Any], place: _Place) -> dict[str, Any]:
    """The fields of a tokenizer's record; `absent` where none is named and none was given."""
    if len(args) > 1 or not all(isinstance(a, str) for a in args):
        helps = [
            'write `tokenizer("tokenizer.json")`, or `tokenizer()` for the one beside the weights'
        ]
        raise_error("E0203", "`tokenizer` takes the name of one file", place.span, helps=helps)
    path = _inside(args[0], place) if args else find_tokenizer_file(place.given)
    if path is None:
        return {"absent": _ABSENT}
    name = args[0] if args else str(path)
    file = check_tokenizer_file(
        _content(path, MAX_BYTES, f"the tokenizer `{escape_text(name)}`", place.span),
        name,
        place.span,
    )
    place.files[file.sha256] = file
    # beside the tokenizer, and of the same origin
    chat = None if args else read_chat_template(path.parent, place.span)
    said = {"file": file.sha256}
    return {**said, "chat": chat.to_json()} if chat else said


def find_tokenizer_file(folders: Sequence[Path]) -> Path | None:
    """The tokenizer.json of the first folder that has one."""
    return next((folder / NAME for folder in folders if os.path.lexists(folder / NAME)), None)


def _inside(given: str, place: _Place) -> Path:
    """A file in or below the folder of the spec. E0803 for any other."""
    try:
        path = (place.folder / given).resolve()
    except (OSError, ValueError, RuntimeError):  # RuntimeError: links in a circle
        raise_error("E0802", f"`{escape_text(given)[:200]}` is no name of a file", place.span)
    if not path.is_relative_to(place.folder.resolve()):
        helps = ["put it into that folder or below it"]
        raise_error(
            "E0803",
            f"`{escape_text(given)}` lies outside the folder of the spec",
            place.span,
            helps=helps,
        )
    return path


def _content(path: Path, most: int, what: str, span: Span | None) -> bytes:
    try:
        return read_regular_file(path, most)
    except UnreadableFile as error:
        raise_error("E0802", f"{what} cannot be read: {error.reason}", span)
