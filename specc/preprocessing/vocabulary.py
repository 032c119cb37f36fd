"""Read vocabulary files, and tokenize text into words."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NoReturn

from specc.diagnostics.diagnostic import Label, Source, Span, raise_error
from specc.diagnostics.suggest import find_similar_name
from specc.io.safe_read import escape_text, has_lone_surrogate
from specc.preprocessing.preprocessing_records import MAX_TOKEN, MAX_VOCABULARY, WordTokenizer

SPECIAL_TOKEN = re.compile(r"<[^<>\s]+>|\[[A-Z]+\]")
"""Pattern of special tokens such as `<end>` and `[UNK]`, which text tokenization never produces."""
WORD_PIECE = re.compile(r"\S+")
WORD_OR_PUNCTUATION = re.compile(r"\w+(?:['’-]\w+)*|\S")
MAX_VOCAB_SIZE_FOR_SUGGESTIONS = 100_000
"""Maximum vocabulary size for which similar words are suggested, because the search is slow."""


def encode_words(text: str, tokenizer: WordTokenizer) -> list[int]:
    """Convert the words of a text to ids. Raise E0959 if a word is unknown."""
    ids_by_word, ids = _map_words_to_ids(tokenizer.vocab), []
    for start, end in _split_words(text, tokenizer):
        word = text[start:end]
        word_id = ids_by_word.get(_normalize_word(word, tokenizer), tokenizer.unknown_token_id)
        if word_id is None:
            _raise_unknown_word(Span(Source("<text>", text), start, end), tokenizer)
        ids.append(word_id)
    return ids


def decode_words(ids: Sequence[int], tokenizer: WordTokenizer, unknown: str) -> str:
    """Join the words of `ids` with spaces, without special tokens."""
    parts = [unknown if i == tokenizer.unknown_token_id else tokenizer.vocab[i] for i in ids]
    return " ".join(part for part in parts if not SPECIAL_TOKEN.fullmatch(part))


def find_unreachable_tokens(tokenizer: WordTokenizer) -> list[str]:
    """Return the tokens that tokenization never produces: words with whitespace or, if the
    tokenizer lowercases text, with uppercase letters.
    """
    return [
        word
        for word in tokenizer.vocab
        if not SPECIAL_TOKEN.fullmatch(word)
        and (not WORD_PIECE.fullmatch(word) or _normalize_word(word, tokenizer) != word)
    ]


def explain_unreachable_tokens(tokenizer: WordTokenizer, words: list[str]) -> Iterator[str]:
    """Yield the reasons (e.g. whitespace) why no text is encoded to certain tokens."""
    if any(c.isspace() for word in words for c in word):
        yield "text is split at whitespace, so no token contains whitespace"
    if tokenizer.do_lower_case and any(word != word.lower() for word in words):
        yield "`lower=true` lowercases every text"


def _split_words(text: str, tokenizer: WordTokenizer) -> Iterator[tuple[int, int]]:
    """Yield the start and end offset of each word in a text."""
    ids_by_word = _map_words_to_ids(tokenizer.vocab)
    for piece in WORD_PIECE.finditer(text):
        # `u.s.` and `n't` are single words if the vocabulary contains them
        if _normalize_word(piece.group(), tokenizer) in ids_by_word:
            yield piece.span()
            continue
        for part in WORD_OR_PUNCTUATION.finditer(text, *piece.span()):
            yield part.span()


def _normalize_word(word: str, tokenizer: WordTokenizer) -> str:
    """Lowercase a word if the tokenizer lowercases words."""
    return word.lower() if tokenizer.do_lower_case else word


@lru_cache(maxsize=8)
def _map_words_to_ids(vocab: tuple[str, ...]) -> dict[str, int]:
    """Map each word of a vocabulary to its id. The mapping is cached."""
    return {word: i for i, word in enumerate(vocab) if not SPECIAL_TOKEN.fullmatch(word)}


def _raise_unknown_word(span: Span, tokenizer: WordTokenizer) -> NoReturn:
    ids_by_word, word = _map_words_to_ids(tokenizer.vocab), span.text
    helps = []
    if _normalize_word(word, tokenizer).lower() in ids_by_word:
        helps = [
            f"write `{escape_text(word.lower())}`, which is in the vocabulary, or set "
            "`lower=true` in the spec"
        ]
    elif len(ids_by_word) <= MAX_VOCAB_SIZE_FOR_SUGGESTIONS and (
        similar := find_similar_name(_normalize_word(word, tokenizer), ids_by_word)
    ):
        helps = [f"did you mean `{escape_text(similar)}`?"]
    raise_error(
        "E0959",
        f"the word `{escape_text(word[:MAX_TOKEN])}` is not in the model's vocabulary",
        span,
        "unknown word",
        notes=["the spec does not set `unknown`"],
        helps=[*helps, "remove it, or use words of the vocabulary"],
    )


def parse_vocabulary(source: Source) -> tuple[str, ...]:
    """Parse the tokens of a vocabulary file. Raise E0909 if a line is invalid."""
    tokens: dict[str, Span] = {}
    start = 0
    lines = source.text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    for line in lines:
        span = Span(source, start, start + len(line))
        start += len(line) + 1
        token = _parse_line(line.removesuffix("\r"), span)
        if token in tokens:
            raise_error(
                "E0909",
                "duplicate token in the vocabulary",
                span,
                "again here",
                related_labels=[Label(tokens[token], "first")],
            )
        tokens[token] = span
        if len(tokens) > MAX_VOCABULARY:
            raise_error("E0909", f"the vocabulary has more than {MAX_VOCABULARY} tokens", span)
    if not tokens:
        raise_error(
            "E0909",
            f"the vocabulary `{escape_text(source.name)}` is empty",
            helps=["write one token per line"],
        )
    return tuple(tokens)


def _parse_line(line: str, span: Span) -> str:
    """Parse a line of a vocabulary file to a token."""
    if line.startswith('"'):
        try:
            token = json.loads(line)
        except ValueError:
            raise_error(
                "E0909",
                "this line of the vocabulary starts with a quote but is not a JSON string",
                span,
                helps=[f"write {json.dumps(line, ensure_ascii=False)} to keep these characters"],
            )
        if not isinstance(token, str) or has_lone_surrogate(token):
            raise_error("E0909", "this line of the vocabulary is incomplete", span)
    else:
        token = line
        if format_vocabulary_line(token) != line:
            raise_error(
                "E0909",
                "an editor may lose or change this line of the vocabulary",
                span,
                notes=[
                    "empty lines, spaces at an edge and control characters are "
                    "written as JSON strings"
                ],
                helps=[f"write {json.dumps(token, ensure_ascii=False)}"]
                if token
                else ["remove the empty line"],
            )
    if not token or len(token) > MAX_TOKEN:
        raise_error("E0909", f"a token has 1 to {MAX_TOKEN} characters", span)
    return token


def format_vocabulary_line(token: str) -> str:
    """Return the line of a vocabulary file that represents a token."""
    is_plain = (
        token == token.strip() and token.isprintable() and token and not token.startswith('"')
    )
    return token if is_plain else json.dumps(token, ensure_ascii=not token.isprintable())
