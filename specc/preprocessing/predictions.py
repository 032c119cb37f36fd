"""Convert model outputs to predictions: labels, entity spans, answers, candidates, embeddings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.preprocessing.preprocessing_records import TextReading
from specc.preprocessing.result_formatting import compute_probabilities
from specc.preprocessing.task_kinds import Options, Task
from specc.preprocessing.text_batches import TextEncoding
from specc.preprocessing.tokenizer_files import JsonTokenizer
from specc.preprocessing.tokenizer_library import (
    decode_token_ids,
    decode_token_strings,
    get_token_strings,
    has_subword_prefix,
)

Floats = NDArray[np.float64]
Prediction: TypeAlias = object
"""The prediction for one text, a JSON value."""
Facts: TypeAlias = dict[str, Any]
"""The JSON object of a label, span, answer, candidate or token."""


@dataclass(frozen=True, kw_only=True)
class TaskResults:
    """Results of a run, the encodings of its sequences, the input texts and the options.
    `encodings` is empty if the inputs are token ids. `text_indices` maps each sequence to the index
    of its text, because a long context is split into several sequences.
    """

    task: Task
    results: Mapping[str, Array]
    record: TextReading | None = None
    encodings: Sequence[TextEncoding] = ()
    text_indices: Sequence[int] = ()
    inputs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Options = field(default_factory=dict)

    @property
    def tokenizer(self) -> JsonTokenizer:
        """The tokenizer, which tasks with character offsets require."""
        assert isinstance(self.record, JsonTokenizer), "the task needs a tokenizer"
        return self.record

    def read_scores(self, name: str, rank: int) -> Floats:
        """Return an output in float64. Raise E0916 if it has a different rank."""
        value = self.results[name]
        if value.dtype.kind != "f" or value.ndim != rank or not value.size:
            _raise_unexpected_scores(name, value, rank)
        return np.asarray(value, np.float64)


def make_predictions(task_results: TaskResults) -> list[Prediction]:
    """Return the predictions of the task, one per text."""
    return TASK_PREDICTIONS[task_results.task.kind](task_results)


def apply_function(scores: Floats, function: str) -> Floats:
    """Apply softmax, sigmoid or the identity along the last axis."""
    if function == "softmax":
        return compute_probabilities(scores)
    if function == "sigmoid":
        # uses the form of the sigmoid that does not overflow
        small = np.exp(-np.abs(scores))
        return np.where(scores >= 0, 1 / (1 + small), small / (1 + small))
    return scores


def _rank_labels(labels: Sequence[str], scores: Sequence[float]) -> list[Facts]:
    """Return the labels with their scores, sorted by descending score (stable)."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    return [{"label": labels[i], "score": float(scores[i])} for i in order]


def _predict_text_classification(task_results: TaskResults) -> list[Prediction]:
    logits = task_results.read_scores("logits", 2)
    function = task_results.options.get("function_to_apply") or task_results.task.score_function
    labels = [task_results.task.get_label(i) for i in range(logits.shape[1])]
    most = task_results.options.get("top_k") or len(labels)
    rows = apply_function(logits, function)
    return [_rank_labels(labels, row.tolist())[:most] for row in rows]


def _predict_token_classification(task_results: TaskResults) -> list[Prediction]:
    shares = compute_probabilities(task_results.read_scores("logits", 3))
    strategy = str(task_results.options["aggregation_strategy"])
    return [
        group_entities(
            text,
            row,
            shares[i][_find_token_positions(task_results, i)],
            task_results.task,
            task_results.tokenizer,
            strategy,
        )
        for i, (text, row) in enumerate(
            zip(task_results.inputs["text"], task_results.encodings, strict=True)
        )
    ]


def _find_token_positions(task_results: TaskResults, row: int) -> slice:
    """Return the positions of the tokens of a sequence, without padding."""
    length = len(task_results.encodings[row].ids)
    if task_results.options.get("padded_left"):
        longest = max(len(r.ids) for r in task_results.encodings)
        return slice(longest - length, longest)
    return slice(0, length)


def _predict_answers(task_results: TaskResults) -> list[Prediction]:
    starts, ends = (
        task_results.read_scores("start_logits", 2),
        task_results.read_scores("end_logits", 2),
    )
    found: list[list[Facts]] = [[] for _ in task_results.inputs["question"]]
    for i, row in enumerate(task_results.encodings):
        at, text = (
            _find_token_positions(task_results, i),
            task_results.inputs["context"][task_results.text_indices[i]],
        )
        found[task_results.text_indices[i]] += _find_answers(
            task_results, row, starts[i][at], ends[i][at], text
        )
    most = int(task_results.options["top_k"])
    ranked = [sorted(some, key=lambda answer: -answer["score"])[:most] for some in found]
    return [some[0] if most == 1 and some else some for some in ranked]


def _find_answers(
    task_results: TaskResults, encoding: TextEncoding, start: Floats, end: Floats, context: str
) -> list[Facts]:
    """Return the most likely spans of one window of the context."""
    inside = np.array([part == 1 for part in encoding.sequence_ids])
    counted = inside | (np.array(encoding.ids) == task_results.task.cls_token_id)
    begins, finishes = (
        compute_probabilities(np.where(counted, logits, -np.inf)) * inside
        for logits in (start, end)
    )
    longest = int(task_results.options["max_answer_len"])
    spans = np.tril(np.triu(begins[:, None] * finishes[None]), longest - 1)
    most = int(task_results.options["top_k"])
    best = np.argsort(-spans, axis=None, kind="stable")[:most]
    found = []
    for place in best:
        first, last = divmod(int(place), len(encoding.ids))
        if not (inside[first] and inside[last]):
            continue
        low, high = _find_word_span(encoding, first)[0], _find_word_span(encoding, last)[1]
        score = float(spans[first, last])
        answer: Facts = {"score": score, "start": low, "end": high}
        found.append({**answer, "answer": context[low:high]})
    return found


def _find_word_span(encoding: TextEncoding, token_index: int) -> tuple[int, int]:
    """Return the character span of the word that contains a token, or that of the token if there is
    no word index.
    """
    word = encoding.word_ids[token_index]
    if word is None:
        return encoding.offsets[token_index]
    same = [
        offsets
        for offsets, other, part in zip(
            encoding.offsets, encoding.word_ids, encoding.sequence_ids, strict=True
        )
        if other == word and part == encoding.sequence_ids[token_index]
    ]
    return min(a for a, _ in same), max(b for _, b in same)


def _predict_masked_tokens(task_results: TaskResults) -> list[Prediction]:
    logits = task_results.read_scores("logits", 3)
    found: list[Prediction] = []
    for i, row in enumerate(task_results.encodings):
        masks = [n for n, token in enumerate(row.ids) if token == task_results.task.mask_token_id]
        if not masks:
            helps = ["insert a mask token in place of the word to predict"]
            if task_results.task.mask_token_id is not None:
                mask = escape_text(
                    decode_token_ids(
                        [task_results.task.mask_token_id], task_results.tokenizer, special=True
                    )
                )
                helps = [f'write `{mask}`: "Paris is the {mask} of France."']
            raise_error("E0906", "the text contains no mask token", helps=helps)
        shares = compute_probabilities(logits[i][_find_token_positions(task_results, i)][masks])
        each = [
            [
                _make_candidate(task_results, row, at, int(token), float(share[token]), masks)
                for token in np.argsort(-share, kind="stable")[: int(task_results.options["top_k"])]
            ]
            for at, share in zip(masks, shares, strict=True)
        ]
        found.append(each[0] if len(masks) == 1 else each)
    return found


def _make_candidate(
    task_results: TaskResults,
    encoding: TextEncoding,
    position: int,
    token: int,
    probability: float,
    masks: Sequence[int],
) -> Facts:
    """Return the prediction for a mask token."""
    ids = [*encoding.ids[:position], token, *encoding.ids[position + 1 :]]
    ids = [number for number in ids if number != task_results.task.pad_token_id]
    # if there are several mask tokens, the others remain in the text
    sequence = decode_token_ids(ids, task_results.tokenizer, special=len(masks) > 1)
    word = decode_token_ids([token], task_results.tokenizer, special=True)
    found = {"score": probability, "token": token}
    return {**found, "token_str": word, "sequence": sequence}


def _predict_choices(task_results: TaskResults) -> list[Prediction]:
    shares = compute_probabilities(task_results.read_scores("logits", 2))
    return [_rank_labels(task_results.inputs["choices"], row.tolist()) for row in shares]


def _predict_image_labels(task_results: TaskResults) -> list[Prediction]:
    logits = task_results.read_scores("logits_per_image", 2)
    shares = apply_function(logits, task_results.task.score_function)
    return [_rank_labels(task_results.inputs["candidate_labels"], row.tolist()) for row in shares]


TASK_PREDICTIONS: Mapping[str, Callable[[TaskResults], list[Prediction]]] = {
    "text-classification": _predict_text_classification,
    "next-sentence-prediction": _predict_text_classification,
    "token-classification": _predict_token_classification,
    "question-answering": _predict_answers,
    "fill-mask": _predict_masked_tokens,
    "multiple-choice": _predict_choices,
    "zero-shot-image-classification": _predict_image_labels,
    "sentence-similarity": lambda task_results: task_results.results["sentence_embedding"].tolist(),
}


def compute_cosine_similarities(vectors: Array) -> Floats:
    """Return the pairwise cosine similarities [n, n] of vectors [n, d]; a zero vector has
    similarity 0.
    """
    rows = np.asarray(vectors, np.float64)
    lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    unit = rows / np.where(lengths > 0, lengths, 1)
    return np.asarray(unit @ unit.T)


def _raise_unexpected_scores(name: str, value: Array, rank: int) -> NoReturn:
    raise_error(
        "E0916",
        f"the output `{escape_text(name)}` does not have the shape of scores for the task",
        notes=[f"expected {rank} axes, got {value.dtype}{list(value.shape)}"],
    )


AGGREGATION_STRATEGIES = ("none", "simple", "first", "average", "max")
OUTSIDE_LABEL = "O"
"""The label of tokens outside entities."""


def group_entities(
    text: str,
    encoding: TextEncoding,
    probabilities: Floats,
    task: Task,
    record: JsonTokenizer,
    strategy: str,
) -> list[Facts]:
    """Return the entity spans of a text from probabilities [tokens, labels], without spans labeled
    `O`. With the strategy `none`, return the labeled tokens.
    """
    tokens = _list_tokens(text, encoding, probabilities, task, record)
    if strategy in ("none", "simple"):
        labeled = [_label_tokens(token, token["scores"], task) for token in tokens]
    else:
        words = _group_tokens(tokens, lambda _, token: token["goes_on"])
        labeled = [_make_word(some, task, record, strategy) for some in words]
    if strategy == "none":
        return _list_entity_tokens(labeled)
    spans = [_make_span(some, record) for some in _group_tokens(labeled, _continues_span)]
    return [one for one in spans if one["entity_group"] != OUTSIDE_LABEL]


def _list_entity_tokens(labeled: Sequence[Facts]) -> list[Facts]:
    """Return the labeled tokens inside entities."""
    names = ("entity", "score", "index", "word", "start", "end")
    named = [one for one in labeled if one["entity"] != OUTSIDE_LABEL]
    return [{name: one[name] for name in names} for one in named]


def _list_tokens(
    text: str, encoding: TextEncoding, probabilities: Floats, task: Task, record: JsonTokenizer
) -> list[Facts]:
    """Return the tokens of the text, each with a flag for tokens that continue a word."""
    names, marked = get_token_strings(encoding.ids, record), has_subword_prefix(record)
    found: list[Facts] = []
    for i, (start, end) in enumerate(encoding.offsets):
        if encoding.special_tokens_mask[i]:
            continue
        word, piece = names[i], text[start:end]
        goes_on = (
            len(word) != len(piece)
            if marked
            else start > 0 and " " not in text[start - 1 : start + 1]
        )
        if encoding.ids[i] == task.unknown_token_id:
            word, goes_on = piece, False
        place = {"start": start, "end": end, "index": i}
        found.append({"word": word, "scores": probabilities[i], "goes_on": goes_on, **place})
    return found


def _label_tokens(token: Facts, scores: Floats, task: Task, **changed: object) -> Facts:
    """Yield each token with its most likely label."""
    best = int(scores.argmax())
    found = {"entity": task.get_label(best), "score": float(scores[best])}
    return {**token, **found, **changed}


def _group_tokens(
    tokens: Sequence[Facts], continues: Callable[[Facts, Facts], bool]
) -> list[list[Facts]]:
    """Group tokens; a token that `continues` the previous token joins its group."""
    groups: list[list[Facts]] = []
    for token in tokens:
        if groups and continues(groups[-1][-1], token):
            groups[-1].append(token)
        else:
            groups.append([token])
    return groups


def _make_word(tokens: Sequence[Facts], task: Task, record: JsonTokenizer, strategy: str) -> Facts:
    """Merge the tokens of a word; its label is that of its first token, of its best token, or of
    the mean scores (`strategy`).
    """
    scores = tokens[0]["scores"]
    if strategy == "max":
        scores = max(tokens, key=lambda token: token["scores"].max())["scores"]
    elif strategy == "average":
        scores = np.mean([token["scores"] for token in tokens], axis=0)
    word = decode_token_strings([token["word"] for token in tokens], record)
    return _label_tokens(tokens[0], scores, task, word=word, end=tokens[-1]["end"])


def _split_bio_tag(label: str) -> tuple[str, str]:
    """Split `B-PER` into B and PER; a label without a prefix is treated as inside (I)."""
    if label[:2] in ("B-", "I-"):
        return label[0], label[2:]
    return "I", label


def _continues_span(previous: Facts, token: Facts) -> bool:
    """Return True if a token continues the span of the previous token: their labels are equal, and
    there is no `B-`.
    """
    begins, tag = _split_bio_tag(token["entity"])
    return begins != "B" and tag == _split_bio_tag(previous["entity"])[1]


def _make_span(tokens: Sequence[Facts], record: JsonTokenizer) -> Facts:
    """Merge tokens into one span with the mean of their scores."""
    return {
        "entity_group": tokens[0]["entity"].split("-", 1)[-1],
        "score": float(np.mean([token["score"] for token in tokens])),
        "word": decode_token_strings([token["word"] for token in tokens], record),
        "start": tokens[0]["start"],
        "end": tokens[-1]["end"],
    }
