"""tokenizer.json through the `tokenizers` package, with a bound on how much it expands a text."""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from math import prod
from typing import Any, NoReturn

from specc.diagnostics.diagnostic import Failed, raise_error
from specc.diagnostics.source import Span
from specc.io.safe_read import escape_text
from specc.preprocessing.tokenizer_files import TextTokenizer, TokenizerFile

MAX_GROWTH = 1024
"""Maximum factor by which all steps of one kind together may lengthen a text (E0941)."""
NESTED_KEYS = ("normalizers", "pretokenizers", "processors", "decoders")
TOKENIZER_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def max_text_growth(content: Mapping[str, object]) -> int:
    """Return the largest factor by which one part of a tokenizer may lengthen a text."""
    return max(_growth(content.get(part)) for part in TOKENIZER_PARTS)


def _growth(step: object) -> int:
    if not isinstance(step, dict):
        return 1
    nested = next((step[name] for name in NESTED_KEYS if isinstance(step.get(name), list)), None)
    if nested is not None:
        return prod(map(_growth, nested))
    rule = GROWTH_RULES.get(str(step.get("type")))
    return rule(step) if rule else 1


def _replacement(step: Mapping[str, object]) -> int:
    """Return how many characters replace the fewest that a pattern matches."""
    match step:
        case {"content": str(content), "pattern": {"String": str(text)}} if text:
            return max(1, -(-len(content) // len(text)))
        case {"content": str(content)} if len(content) > 1:
            return len(content) + _matches_nothing(step.get("pattern"))
    return 1


def _matches_nothing(pattern: object) -> bool:
    """Return whether a pattern may match between two characters; true if Python cannot read it."""
    match pattern:
        case {"Regex": str(text)}:
            with suppress(re.error, OverflowError, RecursionError):
                return bool(re.compile(text).fullmatch(""))
    return True


def _template(step: Mapping[str, object]) -> int:
    """Return the pieces of a template: 1 for a text, the count of its ids for a special token."""
    match step:
        case {"single": list(pieces), "special_tokens": dict(known)}:
            return max(1, sum(_piece_size(piece, known) for piece in pieces))
        case {"single": list(pieces)}:
            return max(1, len(pieces))
    return 1


def _piece_size(piece: object, known: Mapping[str, object]) -> int:
    match piece:
        case {"SpecialToken": {"id": name}}:
            match known.get(str(name)):
                case {"ids": list(ids)}:
                    return len(ids)
    return 1


def _mapped(step: Mapping[str, object]) -> int:
    """Return the longest text in a sentencepiece map: its size, a table, zero-terminated texts."""
    try:
        data = base64.b64decode(str(step["precompiled_charsmap"]))
    except (KeyError, ValueError):
        return 1
    texts = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
    return max(1, *map(len, texts))


GROWTH_RULES: Mapping[str, Callable[[Mapping[str, object]], int]] = {
    "Replace": _replacement,
    "Prepend": lambda step: 1 + len(str(step.get("prepend") or "")),
    "Precompiled": _mapped,
    "TemplateProcessing": _template,
    # a byte that is no ASCII letter becomes a two-byte character
    "ByteLevel": lambda _: 2,
    "Metaspace": lambda _: 2,  # one more character per word
    "NFKC": lambda _: 18,  # U+FDFA
    "NFKD": lambda _: 18,
    "NFC": lambda _: 3,  # U+1D160
    "NFD": lambda _: 4,  # U+1F82
    "Lowercase": lambda _: 2,  # U+0130
    # one letter becomes four by decomposition, or gets a space on either side
    "BertNormalizer": lambda _: 12,
}
"""Factor by which a step may lengthen a text; steps of other kinds do not."""


Tokenizer = Any
"""A `tokenizers.Tokenizer`; the package is optional and therefore not imported for annotations."""

FITS_NOT = ["check that it is the tokenizer.json of a fast tokenizer, whole and unchanged"]


def check_tokenizer_file(data: bytes, name: str, span: Span | None = None) -> TokenizerFile:
    """Return a tokenizer.json as a file to carry. Raise E0941 if the JSON, or the package
    `tokenizers` where it is installed, rejects it.
    """

    def complain(why: str) -> NoReturn:
        raise_error(
            "E0941",
            f"the tokenizer `{escape_text(name)}` cannot be used: {why}",
            span,
            helps=FITS_NOT,
        )

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        complain("it is not UTF-8 text")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        complain("it is not JSON")
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        complain("it describes no tokenizer")
    check_growth(content, complain)
    if _library() is not None:
        with _faults(complain):
            _loaded(text)
    return TokenizerFile.of(text)


def tokenize_text(text: str, record: TextTokenizer) -> list[int]:
    """Return the ids of a text. Raise E0908 if the file has none, E0940 without the package,
    E0941 if the file is damaged.
    """

    def complain(why: str) -> NoReturn:
        raise_error(
            "E0908",
            "the model's tokenizer has no ids for this text",
            notes=[why],
            helps=[
                "its vocabulary lacks a part of the text and an entry that stands for the unknown"
            ],
        )

    tokenizer = load_tokenizer(record.file)
    with _faults(complain):
        found: list[int] = tokenizer.encode(text, add_special_tokens=record.special).ids
    if record.spread is None:
        return found
    token, rows = record.spread
    return [i for one in found for i in ([one] * rows if one == token else [one])]


def token_parts(text: str, pair: str | None, record: TextTokenizer) -> Tokenizer:
    """The `tokenizers.Encoding` of a text or a pair, with segments, offsets and words."""
    tokenizer = load_tokenizer(record.file)
    with _faults(_unusable):
        return tokenizer.encode(text, pair, add_special_tokens=record.special)


def token_names(ids: Sequence[int], record: TextTokenizer) -> list[str]:
    """Each id as the vocabulary has it, `##ing`; empty for one that it does not have."""
    tokenizer = load_tokenizer(record.file)
    return [str(tokenizer.id_to_token(number) or "") for number in ids]


def joined_tokens(names: Sequence[str], record: TextTokenizer) -> str:
    """Tokens of the vocabulary as text, as the decoder of the file joins them."""
    decoder = load_tokenizer(record.file).decoder
    if decoder is None:
        return " ".join(names)
    with _faults(_unusable):
        return str(decoder.decode(list(names)))


def plain_text_of(ids: Sequence[int], record: TextTokenizer, *, special: bool) -> str:
    """The text of ids, with the names of special tokens where `special` is true."""
    tokenizer = load_tokenizer(record.file)
    with _faults(_unusable):
        return str(tokenizer.decode(list(ids), skip_special_tokens=not special))


def has_subword_prefix(record: TextTokenizer) -> bool:
    """Whether the vocabulary marks tokens inside words, as `##` does."""
    return _marks_subwords(record.file.text)


@lru_cache(maxsize=8)
def _marks_subwords(text: str) -> bool:
    return bool(json.loads(text)["model"].get("continuing_subword_prefix"))


def detokenize(ids: Sequence[int], record: TextTokenizer) -> str:
    """The text of ids. Special tokens, and ids that the file does not have, have none."""
    tokenizer = load_tokenizer(record.file)
    with _faults(_unusable):
        text: str = tokenizer.decode(list(ids), skip_special_tokens=True)
    return text


def tokenizer_label(number: int, record: TextTokenizer) -> str:
    """Return the text of an id, or the name of a special token; "" for an unknown id."""
    name = load_tokenizer(record.file).id_to_token(number)
    return detokenize([number], record).strip() or str(name or "")


def load_tokenizer(file: TokenizerFile) -> Tokenizer:
    """The tokenizer of a file. Fails with E0940 without the package, E0941 for a damaged file."""
    assert file.text, "the model's files are opened before they are used"
    if _library() is None:
        raise_error(
            "E0940",
            "reading this model's text needs the package `tokenizers`, which is not installed",
            helps=[
                "pip install -e '.[text]'",
                "or give ids, from Python: specc.load(…).run(…=[[1, 2, 3]])",
            ],
        )
    with _faults(_unusable):
        # a downloaded model may contain any file
        check_growth(json.loads(file.text), _unusable)
        return _loaded(file.text)


def _unusable(why: str) -> NoReturn:
    raise_error("E0941", f"the tokenizer of the model cannot be used: {why}", helps=FITS_NOT)


def _library() -> Any | None:
    """Return the optional package `tokenizers`, or None."""
    try:
        import tokenizers
    except ImportError:
        return None
    return tokenizers


def check_growth(content: Mapping[str, object], complain: Callable[[str], NoReturn]) -> None:
    """Complains of what would make a short text fill the memory."""
    if max_text_growth(content) > MAX_GROWTH:
        complain(f"it can make a text more than {MAX_GROWTH} times as long")


@lru_cache(maxsize=8)
def _loaded(text: str) -> Tokenizer:
    library = _library()
    assert library is not None, "the callers looked"
    made = library.Tokenizer.from_str(text)
    made.no_truncation()
    made.no_padding()
    if isinstance(made.model, library.models.BPE) and made.model.dropout:
        model = made.model  # a second name of the tokenizer's own model
        model.dropout = None
    return made


@contextmanager
def _faults(complain: Callable[[str], NoReturn]) -> Iterator[None]:
    """Turn what the library raises into a complaint; a panic in Rust is no `Exception`."""
    try:
        yield
    except (Failed, MemoryError):
        raise
    except BaseException as fault:
        if not isinstance(fault, Exception) and type(fault).__module__ != "pyo3_runtime":
            raise
        words = " ".join(escape_text(fault).split())[:200] or "the library gives no reason"
        complain(f"{words[0].lower()}{words[1:]}")
