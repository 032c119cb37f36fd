"""Run a tokenizer.json with `tokenizers`, with limits on text growth, memory and time."""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import pairwise
from math import prod
from threading import Thread
from typing import Any, NoReturn, TypeVar

from specc.diagnostics.diagnostic import Span, SpeccError, raise_error
from specc.io.platform_and_signals import discard_native_stderr
from specc.io.safe_read import escape_text
from specc.preprocessing.tokenizer_files import PLAIN_REPLACEMENT, HfTokenizer, TokenizerFile

Result = TypeVar("Result")
MAX_GROWTH = 1024
"""Maximum factor by which the steps of a tokenizer component may lengthen a text (E0941)."""
NESTED_KEYS = ("normalizers", "pretokenizers", "processors", "decoders")
TOKENIZER_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def compute_max_text_growth(content: Mapping[str, object]) -> int:
    """Return the largest factor by which a component of a tokenizer may lengthen a text."""
    return max(_compute_growth(content.get(part)) for part in TOKENIZER_PARTS)


def _compute_growth(step: object) -> int:
    if not isinstance(step, dict):
        return 1
    nested = next((step[name] for name in NESTED_KEYS if isinstance(step.get(name), list)), None)
    if nested is not None:
        return prod(map(_compute_growth, nested))
    rule = GROWTH_RULES.get(str(step.get("type")))
    return rule(step) if rule else 1


def _compute_replacement_growth(step: Mapping[str, object]) -> int:
    """Return the ratio between the length of a replacement and the length of the shortest match."""
    match step:
        case {"content": str(content), "pattern": {"String": str(text)}} if text:
            return max(1, -(-len(content) // len(text)))
        case {"content": str(content)} if len(content) > 1:
            return len(content) + _can_match_empty(step.get("pattern"))
    return 1


def _can_match_empty(pattern: object) -> bool:
    """Return True if a pattern may match the empty string, or if Python cannot parse it."""
    match pattern:
        case {"Regex": str(text)}:
            with suppress(re.error, OverflowError, RecursionError):
                return bool(re.compile(text).fullmatch(""))
    return True


def _compute_template_growth(step: Mapping[str, object]) -> int:
    """Return the length of a template: 1 per text, and the number of ids of each special token."""
    match step:
        case {"single": list(pieces), "special_tokens": dict(special_tokens)}:
            return max(1, sum(_count_piece_ids(piece, special_tokens) for piece in pieces))
        case {"single": list(pieces)}:
            return max(1, len(pieces))
    return 1


def _count_piece_ids(piece: object, special_tokens: Mapping[str, object]) -> int:
    match piece:
        case {"SpecialToken": {"id": name}}:
            match special_tokens.get(str(name)):
                case {"ids": list(ids)}:
                    return len(ids)
    return 1


def _compute_charsmap_growth(step: Mapping[str, object]) -> int:
    """Return the maximum length of a replacement in a SentencePiece charsmap."""
    try:
        data = base64.b64decode(str(step["precompiled_charsmap"]))
    except (KeyError, ValueError):
        return 1
    texts = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
    return max(1, *map(len, texts))


GROWTH_RULES: Mapping[str, Callable[[Mapping[str, object]], int]] = {
    "Replace": _compute_replacement_growth,
    "Prepend": lambda step: 1 + len(str(step.get("prepend") or "")),
    "Precompiled": _compute_charsmap_growth,
    "TemplateProcessing": _compute_template_growth,
    # byte-level encoding maps a non-ASCII byte to a two-byte character
    "ByteLevel": lambda _: 2,
    "Metaspace": lambda _: 2,  # Metaspace adds one character per word
    "NFKC": lambda _: 18,  # U+FDFA becomes 18 characters
    "NFKD": lambda _: 18,
    "NFC": lambda _: 3,  # U+1D160 becomes three characters
    "NFD": lambda _: 4,  # U+1F82 becomes four characters
    "Lowercase": lambda _: 2,  # U+0130 becomes two characters
    # a letter may decompose into four characters, or get spaces on both sides
    "BertNormalizer": lambda _: 12,
}
"""The maximum factor by which each type of step lengthens a text. Other types do not lengthen a
text."""

MAX_TRIE_NODES = 1 << 22
"""Maximum number of trie nodes for a vocabulary (E0941). The `tokenizers` package needs up to 290
bytes per node. A vocabulary of 900 000 natural-language pieces has about 3 million nodes.
"""
MAX_NORMALIZED_LENGTH = 1 << 25
"""Maximum length in characters of a text after all steps of one component (E0941). The `tokenizers`
package needs up to 32 bytes per character."""
MAX_LENGTH_WITHOUT_LIMIT = 256
"""Maximum number of characters or ids that a call processes without a time limit. A time limit
requires a thread, and starting a thread takes as long as a call with 256 characters.
"""
TIMEOUT_SECONDS = 20
"""Time limit of a call in seconds. The limit increases by 20 µs per character, while typical
tokenizers need 1 µs per character.
"""
MAX_OVERDUE_CALLS = 2
"""Maximum number of calls that are still running in threads after the time limit (E0941)."""


def check_tokenizer_limits(
    content: Mapping[str, object], report_error: Callable[[str], NoReturn]
) -> None:
    """Raise an error if loading a tokenizer or encoding a short text would exhaust the memory."""
    if compute_max_text_growth(content) > MAX_GROWTH:
        report_error(f"it may expand a text by a factor of more than {MAX_GROWTH}")
    texts = _list_added_texts(content)
    if sum(map(len, texts)) * _compute_growth(content.get("normalizer")) > MAX_TRIE_NODES:
        report_error(f"its added tokens have more than {MAX_TRIE_NODES} characters")
    match content.get("model"):
        case {"vocab": list(pieces)}:
            # the vocabulary of a Unigram model is a list of (text, score) pairs
            texts = [str(piece[0]) for piece in pieces if isinstance(piece, list) and piece]
            if count_trie_nodes(texts) > MAX_TRIE_NODES:
                report_error(f"its vocabulary has more than {MAX_TRIE_NODES} distinct prefixes")


def _list_added_texts(content: Mapping[str, object]) -> list[str]:
    """Return the texts of a tokenizer's added tokens."""
    tokens = content.get("added_tokens")
    tokens = tokens if isinstance(tokens, list) else []
    return [str(token.get("content")) for token in tokens if isinstance(token, dict)]


def count_trie_nodes(texts: list[str]) -> int:
    """Return the number of distinct prefixes of `texts`, or an upper bound <= MAX_TRIE_NODES."""
    total = sum(map(len, texts))
    if total <= MAX_TRIE_NODES:
        return total
    texts = sorted(texts)
    return total - sum(_get_common_prefix_length(a, b) for a, b in pairwise(texts))


def _get_common_prefix_length(first: str, second: str) -> int:
    """Return the length of the longest common prefix of two strings."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def call_with_timeout(
    call: Callable[[], Result], text_length: int, report_error: Callable[[str], NoReturn]
) -> Result:
    """Run a call that releases the GIL with a timeout, for `text_length` characters or ids.

    Raise an error when the timeout is reached. A call of the `tokenizers` package cannot be
    interrupted. Its thread ends with the call or with the process. While `MAX_OVERDUE_CALLS`
    overdue calls are running, raise the error immediately.
    """
    _overdue_calls[:] = [thread for thread in _overdue_calls if thread.is_alive()]
    if len(_overdue_calls) >= MAX_OVERDUE_CALLS:
        report_error(f"{len(_overdue_calls)} earlier calls are still running after the time limit")
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # a Rust panic is a `BaseException`, not an `Exception`
            errors.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    seconds = TIMEOUT_SECONDS + text_length * 20e-6
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        _overdue_calls.append(thread)
        report_error(f"it takes more than {seconds:.0f} seconds")
    return results[0]


_overdue_calls: list[Thread] = []
"""Threads of calls that have exceeded the time limit."""


Tokenizer = Any
"""A `tokenizers.Tokenizer`. Annotations cannot use this class, because the package is optional."""

TOKENIZER_HELPS = ["check that it is the complete, unmodified tokenizer.json of a fast tokenizer"]


def parse_tokenizer_file(data: bytes, name: str, span: Span | None = None) -> TokenizerFile:
    """Check a tokenizer.json and return its record. Raise E0941 if the file is not valid JSON, or
    if the `tokenizers` package is installed and rejects the file.
    """

    def raise_tokenizer_error(reason: str) -> NoReturn:
        title = f"cannot use the tokenizer `{escape_text(name)}`: {reason}"
        raise_error("E0941", title, span, helps=TOKENIZER_HELPS)

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise_tokenizer_error("it is not UTF-8")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise_tokenizer_error("it is not JSON")
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise_tokenizer_error("it is not a tokenizer definition")
    check_tokenizer_limits(content, raise_tokenizer_error)
    if _import_tokenizers() is not None:
        with _convert_errors(raise_tokenizer_error):
            _load_tokenizer(text)
    return TokenizerFile.from_text(text)


def tokenize_text(text: str, tokenizer: HfTokenizer) -> list[int]:
    """Tokenize a text. Raise E0908 (no token id), E0940 (no package) or E0941 (invalid file)."""

    def raise_tokenizer_error(reason: str) -> NoReturn:
        helps = ["part of the text is not in the vocabulary, which has no unknown token"]
        title = "the model's tokenizer cannot encode this text"
        raise_error("E0908", title, notes=[reason], helps=helps)

    if (replacement := tokenizer.placeholder_replacement) and len(replacement) == PLAIN_REPLACEMENT:
        text = text.replace(replacement[0], replacement[1])
    if tokenizer.prompt_start_token_id is not None:
        marker_ids = (
            tokenizer.prompt_start_token_id,
            *(tokenizer.image_token_repetition or ())[:1],
        )
        text = tokenizer.insert_image_prompt_tokens(text, *get_token_strings(marker_ids, tokenizer))
    ids: list[int] = _encode(text, None, tokenizer, raise_tokenizer_error).ids
    if tokenizer.image_token_repetition is None:
        return ids
    token, repetitions = tokenizer.image_token_repetition
    return [n for i in ids for n in ([i] * repetitions if i == token else [i])]


def encode_with_offsets(text: str, pair: str | None, tokenizer: HfTokenizer) -> Tokenizer:
    """Tokenize a text or pair to a `tokenizers.Encoding` with token types, offsets and words."""
    return _encode(text, pair, tokenizer, _raise_unusable)


def _encode(
    text: str, pair: str | None, tokenizer: HfTokenizer, report_error: Callable[[str], NoReturn]
) -> Tokenizer:
    """Tokenize a text or pair, with limits on memory and time."""
    backend, growth = _open_tokenizer(tokenizer.file)
    size, special = len(text) + len(pair or ""), tokenizer.adds_special_tokens
    if size * growth > MAX_NORMALIZED_LENGTH:
        _raise_limit_exceeded(f"it may expand {size} characters by a factor of {growth}")
    with _convert_errors(report_error):
        if size <= MAX_LENGTH_WITHOUT_LIMIT:
            return backend.encode(text, pair, add_special_tokens=special)
        texts = text if pair is None else (text, pair)
        encode = partial(backend.encode_batch, [texts], add_special_tokens=special)
        return call_with_timeout(encode, size, _raise_limit_exceeded)[0]


def get_token_strings(ids: Sequence[int], tokenizer: HfTokenizer) -> list[str]:
    """Return the vocabulary entry of each id, such as `##ing`, or "" for an unknown id."""
    backend = load_tokenizer(tokenizer.file)
    return [str(backend.id_to_token(number) or "") for number in ids]


def decode_token_strings(tokens: Sequence[str], tokenizer: HfTokenizer) -> str:
    """Convert tokens to text with the decoder of the tokenizer file."""
    decoder = load_tokenizer(tokenizer.file).decoder
    if decoder is None:
        return " ".join(tokens)
    with _convert_errors(_raise_unusable):
        return str(decoder.decode(list(tokens)))


def decode_token_ids(
    ids: Sequence[int], tokenizer: HfTokenizer, *, skip_special_tokens: bool = True
) -> str:
    """Decode token ids to text, by default without special tokens."""
    backend, skip = load_tokenizer(tokenizer.file), skip_special_tokens
    with _convert_errors(_raise_unusable):
        if len(ids) <= MAX_LENGTH_WITHOUT_LIMIT:
            return str(backend.decode(list(ids), skip_special_tokens=skip))
        decode = partial(backend.decode_batch, [list(ids)], skip_special_tokens=skip)
        return str(call_with_timeout(decode, len(ids), _raise_limit_exceeded)[0])


def has_subword_prefix(tokenizer: HfTokenizer) -> bool:
    """Return True if the vocabulary marks tokens inside words with a prefix such as `##`."""
    return _marks_subwords(tokenizer.file.json_text)


@lru_cache(maxsize=8)
def _marks_subwords(text: str) -> bool:
    return bool(json.loads(text)["model"].get("continuing_subword_prefix"))


def decode_token(token_id: int, tokenizer: HfTokenizer) -> str:
    """Return the text of a token id, the name of a special token, or "" for an unknown id."""
    text = decode_token_ids([token_id], tokenizer).strip()
    return text or get_token_strings([token_id], tokenizer)[0]


def load_tokenizer(file: TokenizerFile) -> Tokenizer:
    """Load a tokenizer. Raise E0940 if the package is missing, and E0941 if the file is invalid."""
    return _open_tokenizer(file)[0]


def _open_tokenizer(file: TokenizerFile) -> tuple[Tokenizer, int]:
    """Return the tokenizer of a file, and the maximum factor by which it lengthens a text."""
    assert file.json_text, "tokenizer files are loaded before use"
    if _import_tokenizers() is None:
        raise_error(
            "E0940",
            "tokenizing text requires the package `tokenizers`, which is not installed",
            helps=[
                "pip install -e '.[text]'",
                "or pass ids in Python: specc.load(…).run(…=[[1, 2, 3]])",
            ],
        )
    with _convert_errors(_raise_unusable):
        return _check_and_load_tokenizer(file.json_text)


@lru_cache(maxsize=8)
def _check_and_load_tokenizer(text: str) -> tuple[Tokenizer, int]:
    """Check and load a tokenizer.json, which is untrusted, because it may be downloaded."""
    content = json.loads(text)
    check_tokenizer_limits(content, _raise_unusable)
    return _load_tokenizer(text), compute_max_text_growth(content)


def _raise_unusable(reason: str) -> NoReturn:
    raise_error("E0941", f"cannot use the tokenizer of the model: {reason}", helps=TOKENIZER_HELPS)


def _raise_limit_exceeded(reason: str) -> NoReturn:
    title = f"cannot use the tokenizer of the model for this text: {reason}"
    raise_error("E0941", title, helps=["pass a shorter text", *TOKENIZER_HELPS])


def _import_tokenizers() -> Any | None:
    """Return the optional package `tokenizers`, or None if it is not installed."""
    try:
        import tokenizers
    except ImportError:
        return None
    return tokenizers


@lru_cache(maxsize=8)
def _load_tokenizer(text: str) -> Tokenizer:
    library = _import_tokenizers()
    assert library is not None, "checked by the callers"
    tokenizer = library.Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, library.models.BPE) and tokenizer.model.dropout:
        model = tokenizer.model  # `model` is a reference, so this changes the tokenizer
        model.dropout = None
    return tokenizer


@contextmanager
def _convert_errors(report_error: Callable[[str], NoReturn]) -> Iterator[None]:
    """Return a context manager that converts library errors and Rust panics to diagnostics."""
    try:
        with discard_native_stderr():
            yield
    except (SpeccError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
            raise
        message = " ".join(escape_text(error).split())[:200] or "the library reports no reason"
        report_error(f"{message[0].lower()}{message[1:]}")
