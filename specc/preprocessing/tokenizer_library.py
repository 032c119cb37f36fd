"""tokenizer.json through the `tokenizers` package, within the bounds of `tokenizer_limits`."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NoReturn

from specc.diagnostics.diagnostic import Failed, raise_error
from specc.diagnostics.source import Span
from specc.io.safe_read import escape_text
from specc.preprocessing.tokenizer_files import TextTokenizer, TokenizerFile
from specc.preprocessing.tokenizer_limits import (
    MAX_NORMALIZED,
    UNWATCHED_LENGTH,
    call_with_time_limit,
    check_tokenizer_limits,
    max_text_growth,
)

Tokenizer = Any
"""A `tokenizers.Tokenizer`; the package is optional and therefore not imported for annotations."""

FITS_NOT = ["check that it is the complete, unmodified tokenizer.json of a fast tokenizer"]


def check_tokenizer_file(data: bytes, name: str, span: Span | None = None) -> TokenizerFile:
    """Return a tokenizer.json as a file to carry. Raise E0941 if the JSON, or the package
    `tokenizers` where it is installed, rejects it.
    """

    def raise_tokenizer_error(why: str) -> NoReturn:
        raise_error(
            "E0941",
            f"the tokenizer `{escape_text(name)}` cannot be used: {why}",
            span,
            helps=FITS_NOT,
        )

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise_tokenizer_error("it is not UTF-8")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise_tokenizer_error("it is not JSON")
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise_tokenizer_error("it describes no tokenizer")
    check_tokenizer_limits(content, raise_tokenizer_error)
    if _import_tokenizers() is not None:
        with _convert_errors(raise_tokenizer_error):
            _load_tokenizer(text)
    return TokenizerFile.of(text)


def tokenize_text(text: str, record: TextTokenizer) -> list[int]:
    """Return the ids of a text. Raise E0908 if the file has none, E0940 without the package,
    E0941 if the file is damaged.
    """

    def raise_tokenizer_error(why: str) -> NoReturn:
        raise_error(
            "E0908",
            "the model's tokenizer cannot encode this text",
            notes=[why],
            helps=["a part of the text is not in its vocabulary, which has no unknown token"],
        )

    whole = text.replace(*record.replace) if record.replace else text
    found: list[int] = _encode(whole, None, record, raise_tokenizer_error).ids
    if record.spread is None:
        return found
    token, rows = record.spread
    return [i for one in found for i in ([one] * rows if one == token else [one])]


def token_parts(text: str, pair: str | None, record: TextTokenizer) -> Tokenizer:
    """The `tokenizers.Encoding` of a text or a pair, with segments, offsets and words."""
    return _encode(text, pair, record, _fail_unusable)


def _encode(
    text: str, pair: str | None, record: TextTokenizer, complain: Callable[[str], NoReturn]
) -> Tokenizer:
    """Return the encoding of a text or a pair, within limits of memory and time."""
    tokenizer, growth = _open_tokenizer(record.file)
    size = len(text) + len(pair or "")
    if size * growth > MAX_NORMALIZED:
        _too_costly(f"it can make {size} characters {growth} times as long")
    with _convert_errors(complain):
        if size <= UNWATCHED_LENGTH:
            return tokenizer.encode(text, pair, add_special_tokens=record.special)
        given = text if pair is None else (text, pair)
        encode = partial(tokenizer.encode_batch, [given], add_special_tokens=record.special)
        return call_with_time_limit(encode, size, _too_costly)[0]


def token_names(ids: Sequence[int], record: TextTokenizer) -> list[str]:
    """Return each id as the vocabulary has it, `##ing`; "" for an unknown id."""
    tokenizer = load_tokenizer(record.file)
    return [str(tokenizer.id_to_token(number) or "") for number in ids]


def decode_token_strings(names: Sequence[str], record: TextTokenizer) -> str:
    """Convert tokens to text with the decoder of the file."""
    decoder = load_tokenizer(record.file).decoder
    if decoder is None:
        return " ".join(names)
    with _convert_errors(_fail_unusable):
        return str(decoder.decode(list(names)))


def plain_text_of(ids: Sequence[int], record: TextTokenizer, *, special: bool) -> str:
    """Decode ids, with the names of special tokens if `special` is true."""
    tokenizer = load_tokenizer(record.file)
    with _convert_errors(_fail_unusable):
        if len(ids) <= UNWATCHED_LENGTH:
            return str(tokenizer.decode(list(ids), skip_special_tokens=not special))
        decode = partial(tokenizer.decode_batch, [list(ids)], skip_special_tokens=not special)
        return str(call_with_time_limit(decode, len(ids), _too_costly)[0])


def has_subword_prefix(record: TextTokenizer) -> bool:
    """Return whether the vocabulary marks tokens inside words, as `##` does."""
    return _marks_subwords(record.file.text)


@lru_cache(maxsize=8)
def _marks_subwords(text: str) -> bool:
    return bool(json.loads(text)["model"].get("continuing_subword_prefix"))


def detokenize(ids: Sequence[int], record: TextTokenizer) -> str:
    """Decode ids without special tokens and unknown ids."""
    return plain_text_of(ids, record, special=False)


def tokenizer_label(number: int, record: TextTokenizer) -> str:
    """Return the text of an id, or the name of a special token; "" for an unknown id."""
    name = load_tokenizer(record.file).id_to_token(number)
    return detokenize([number], record).strip() or str(name or "")


def load_tokenizer(file: TokenizerFile) -> Tokenizer:
    """Load a tokenizer. Raise E0940 without the tokenizers package, E0941 for an invalid file."""
    return _open_tokenizer(file)[0]


def _open_tokenizer(file: TokenizerFile) -> tuple[Tokenizer, int]:
    """Return the tokenizer of a file, and the factor by which it may lengthen a text."""
    assert file.text, "the model's files are opened before they are used"
    if _import_tokenizers() is None:
        raise_error(
            "E0940",
            "tokenizing for this model needs the package `tokenizers`, which is not installed",
            helps=[
                "pip install -e '.[text]'",
                "or pass ids in Python: specc.load(…).run(…=[[1, 2, 3]])",
            ],
        )
    with _convert_errors(_fail_unusable):
        return _open_foreign(file.text)


@lru_cache(maxsize=8)
def _open_foreign(text: str) -> tuple[Tokenizer, int]:
    """Check and load the tokenizer of a downloaded model, which may contain any file."""
    content = json.loads(text)
    check_tokenizer_limits(content, _fail_unusable)
    return _load_tokenizer(text), max_text_growth(content)


def _fail_unusable(why: str) -> NoReturn:
    raise_error("E0941", f"the tokenizer of the model cannot be used: {why}", helps=FITS_NOT)


def _too_costly(why: str) -> NoReturn:
    raise_error(
        "E0941",
        f"the tokenizer of the model cannot be used for this text: {why}",
        helps=["give a shorter text", *FITS_NOT],
    )


def _import_tokenizers() -> Any | None:
    """Return the optional package `tokenizers`, or None."""
    try:
        import tokenizers
    except ImportError:
        return None
    return tokenizers


@lru_cache(maxsize=8)
def _load_tokenizer(text: str) -> Tokenizer:
    library = _import_tokenizers()
    assert library is not None, "checked by the callers"
    made = library.Tokenizer.from_str(text)
    made.no_truncation()
    made.no_padding()
    if isinstance(made.model, library.models.BPE) and made.model.dropout:
        model = made.model  # a second name of the tokenizer's own model
        model.dropout = None
    return made


@contextmanager
def _convert_errors(complain: Callable[[str], NoReturn]) -> Iterator[None]:
    """Convert errors of the library to a complaint; a panic in Rust is not an `Exception`."""
    try:
        yield
    except (Failed, MemoryError):
        raise
    except BaseException as fault:
        if not isinstance(fault, Exception) and type(fault).__module__ != "pyo3_runtime":
            raise
        words = " ".join(escape_text(fault).split())[:200] or "the library gives no reason"
        complain(f"{words[0].lower()}{words[1:]}")
