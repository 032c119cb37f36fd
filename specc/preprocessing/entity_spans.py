"""Token classification: group labeled tokens to spans."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.preprocessing.encodings import TextEncoding
from specc.preprocessing.task_kinds import Task
from specc.preprocessing.tokenizer_files import TextTokenizer
from specc.preprocessing.tokenizer_library import has_subword_prefix, joined_tokens, token_names

AGGREGATION_STRATEGIES = ("none", "simple", "first", "average", "max")
OUTSIDE = "O"
"""The label of tokens that are in no span."""
Facts: TypeAlias = dict[str, Any]
Token: TypeAlias = Mapping[str, Any]


def group_entities(
    text: str,
    row: TextEncoding,
    shares: NDArray[np.float64],
    task: Task,
    record: TextTokenizer,
    strategy: str,
) -> list[Facts]:
    """The spans of a text from the probabilities [tokens, labels] of its tokens; the
    tokens themselves where the strategy is `none`. Those labeled `O` are left out.
    """
    tokens = _tokens(text, row, shares, task, record)
    if strategy in ("none", "simple"):
        labeled = [_labeled(token, token["scores"], task) for token in tokens]
    else:
        labeled = [_word(some, task, record, strategy) for some in _grouped_words(tokens)]
    if strategy == "none":
        return [_plain(one) for one in labeled if one["entity"] != OUTSIDE]
    spans = [_span(some, record) for some in _grouped_labels(labeled)]
    return [one for one in spans if one["entity_group"] != OUTSIDE]


def _tokens(
    text: str, row: TextEncoding, shares: NDArray[np.float64], task: Task, record: TextTokenizer
) -> list[Token]:
    """The tokens of the text itself, each with whether it goes on a word."""
    names, marked = token_names(row.ids, record), has_subword_prefix(record)
    found: list[Token] = []
    for i, (start, end) in enumerate(row.offsets):
        if row.special[i]:
            continue
        word, piece = names[i], text[start:end]
        goes_on = (
            len(word) != len(piece)
            if marked
            else start > 0 and " " not in text[start - 1 : start + 1]
        )
        if row.ids[i] == task.unknown:
            word, goes_on = piece, False
        place = {"start": start, "end": end, "index": i}
        found.append({"word": word, "scores": shares[i], "goes_on": goes_on, **place})
    return found


def _labeled(token: Token, scores: NDArray[np.float64], task: Task, **changed: object) -> Facts:
    """A token with its likeliest label."""
    best = int(scores.argmax())
    found = {"entity": task.label(best), "score": float(scores[best])}
    return {**token, **found, **changed}


def _grouped_words(tokens: Sequence[Token]) -> list[list[Token]]:
    """The tokens of each word."""
    words: list[list[Token]] = []
    for token in tokens:
        if words and token["goes_on"]:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _word(tokens: Sequence[Token], task: Task, record: TextTokenizer, strategy: str) -> Facts:
    """A word with one label: of its first token, its surest, or their mean."""
    scores = tokens[0]["scores"]
    if strategy == "max":
        scores = max(tokens, key=lambda token: token["scores"].max())["scores"]
    elif strategy == "average":
        scores = np.mean([token["scores"] for token in tokens], axis=0)
    word = joined_tokens([token["word"] for token in tokens], record)
    return _labeled(tokens[0], scores, task, word=word, end=tokens[-1]["end"])


def _tag(label: str) -> tuple[str, str]:
    """`B-PER` as B and PER; a label without a prefix is inside."""
    if label[:2] in ("B-", "I-"):
        return label[0], label[2:]
    return "I", label


def _grouped_labels(tokens: Sequence[Token]) -> list[list[Token]]:
    """Neighbors with one label; `B-` begins a new span."""
    groups: list[list[Token]] = []
    for token in tokens:
        begins, tag = _tag(token["entity"])
        if groups and begins != "B" and tag == _tag(groups[-1][-1]["entity"])[1]:
            groups[-1].append(token)
        else:
            groups.append([token])
    return groups


def _span(tokens: Sequence[Token], record: TextTokenizer) -> Facts:
    """Tokens as one span, with the mean of their scores."""
    return {
        "entity_group": tokens[0]["entity"].split("-", 1)[-1],
        "score": float(np.mean([token["score"] for token in tokens])),
        "word": joined_tokens([token["word"] for token in tokens], record),
        "start": tokens[0]["start"],
        "end": tokens[-1]["end"],
    }


def _plain(token: Token) -> Facts:
    names = ("entity", "score", "index", "word", "start", "end")
    return {name: token[name] for name in names}
