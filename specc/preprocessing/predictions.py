"""Convert model outputs to predictions: labels, entities, answers, candidates, embeddings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.preprocessing.preprocessing_records import CtcOutput, TextConfig
from specc.preprocessing.tasks import Options, Task
from specc.preprocessing.text_batches_and_windows import TokenizedText
from specc.preprocessing.tokenizer_files import HfTokenizer
from specc.preprocessing.tokenizer_library import (
    decode_token_ids,
    decode_token_strings,
    get_token_strings,
    has_subword_prefix,
)

Floats = NDArray[np.float64]
Prediction: TypeAlias = object
"""The prediction for one text, stored as a JSON value."""
Fields: TypeAlias = dict[str, Any]
"""The JSON object of a predicted label, span, answer, candidate or token."""


@dataclass(frozen=True, kw_only=True)
class TaskResults:
    """The outputs of a run, the encodings of its sequences, the input texts and the task options.
    `encodings` is empty if the inputs are token ids. `text_indices` maps each sequence to the index
    of its text. A long context is split into several sequences.
    """

    task: Task
    results: Mapping[str, Array]
    text_config: TextConfig | None = None
    encodings: Sequence[TokenizedText] = ()
    text_indices: Sequence[int] = ()
    inputs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Options = field(default_factory=dict)

    @property
    def tokenizer(self) -> HfTokenizer:
        """The tokenizer, which tasks with character offsets require."""
        assert isinstance(self.text_config, HfTokenizer), "the task requires a tokenizer"
        return self.text_config

    def read_scores(self, name: str, rank: int) -> Floats:
        """Return the output `name` in float64. Raise E0916 if its rank is not `rank`."""
        value = self.results[name]
        if value.dtype.kind != "f" or value.ndim != rank or not value.size:
            raise_error(
                "E0916",
                f"the output `{escape_text(name)}` does not have the shape of scores for the task",
                notes=[f"expected {rank} axes, got {value.dtype}{list(value.shape)}"],
            )
        return np.asarray(value, np.float64)


def make_predictions(task_results: TaskResults) -> list[Prediction]:
    """Return the predictions of a task, one per text."""
    return TASK_PREDICTIONS[task_results.task.kind](task_results)


def compute_probabilities(logits: Array) -> NDArray[np.float64]:
    """Return the softmax over the last axis in float64. The result is uniform if no score is
    finite.
    """
    scores = logits.astype(np.float64)
    maximum = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - np.where(np.isfinite(maximum), maximum, 0))
        total = powers.sum(axis=-1, keepdims=True)
        is_valid = np.isfinite(total) & (total > 0)
        uniform = 1 / max(1, scores.shape[-1])
        return np.where(is_valid, powers / np.where(is_valid, total, 1), uniform)


def apply_score_function(scores: Floats, function: str) -> Floats:
    """Apply softmax, sigmoid or no function to `scores` along the last axis."""
    if function == "softmax":
        return compute_probabilities(scores)
    if function == "sigmoid":
        # use the form of the sigmoid in which `exp` does not overflow
        exponentials = np.exp(-np.abs(scores))
        return np.where(scores >= 0, 1 / (1 + exponentials), exponentials / (1 + exponentials))
    return scores


def _rank_labels(labels: Sequence[str], scores: Sequence[float]) -> list[Fields]:
    """Return the labels and scores in order of decreasing score (stable sort)."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    return [{"label": labels[i], "score": float(scores[i])} for i in order]


def _predict_text_classification(task_results: TaskResults) -> list[Prediction]:
    logits = task_results.read_scores("logits", 2)
    function = task_results.options.get("function_to_apply") or task_results.task.score_function
    labels = [task_results.task.get_label(i) for i in range(logits.shape[1])]
    top_k = task_results.options.get("top_k") or len(labels)
    rows = apply_score_function(logits, function)
    return [_rank_labels(labels, row.tolist())[:top_k] for row in rows]


def _predict_token_classification(task_results: TaskResults) -> list[Prediction]:
    probabilities = compute_probabilities(task_results.read_scores("logits", 3))
    return [
        _group_entities(task_results, i, probabilities[i][_find_token_positions(task_results, i)])
        for i in range(len(task_results.encodings))
    ]


def _find_token_positions(task_results: TaskResults, n: int) -> slice:
    """Return the positions of sequence `n` that are not padding."""
    length = len(task_results.encodings[n].ids)
    if task_results.options.get("padded_left"):
        max_length = max(len(encoding.ids) for encoding in task_results.encodings)
        return slice(max_length - length, max_length)
    return slice(0, length)


def _predict_answers(task_results: TaskResults) -> list[Prediction]:
    starts = task_results.read_scores("start_logits", 2)
    ends = task_results.read_scores("end_logits", 2)
    answers_by_text: list[list[Fields]] = [[] for _ in task_results.inputs["question"]]
    for i, encoding in enumerate(task_results.encodings):
        positions, n = _find_token_positions(task_results, i), task_results.text_indices[i]
        context = task_results.inputs["context"][n]
        answers_by_text[n] += _find_answers(
            task_results, encoding, starts[i][positions], ends[i][positions], context
        )
    top_k = int(task_results.options["top_k"])
    ranked = [sorted(a, key=lambda answer: -answer["score"])[:top_k] for a in answers_by_text]
    return [answers[0] if top_k == 1 and answers else answers for answers in ranked]


def _find_answers(
    task_results: TaskResults, encoding: TokenizedText, start: Floats, end: Floats, context: str
) -> list[Fields]:
    """Return the most likely answer spans in one window of the context."""
    is_context = np.array([part == 1 for part in encoding.sequence_ids])
    is_candidate = is_context | (np.array(encoding.ids) == task_results.task.cls_token_id)
    start_probabilities, end_probabilities = (
        compute_probabilities(np.where(is_candidate, logits, -np.inf)) * is_context
        for logits in (start, end)
    )
    max_length = int(task_results.options["max_answer_len"])
    spans = np.tril(np.triu(start_probabilities[:, None] * end_probabilities[None]), max_length - 1)
    top_k = int(task_results.options["top_k"])
    best_indices = np.argsort(-spans, axis=None, kind="stable")[:top_k]
    answers = []
    for index in best_indices:
        first, last = divmod(int(index), len(encoding.ids))
        if not (is_context[first] and is_context[last]):
            continue
        low, high = _find_word_span(encoding, first)[0], _find_word_span(encoding, last)[1]
        score = float(spans[first, last])
        answer: Fields = {"score": score, "start": low, "end": high}
        answers.append({**answer, "answer": context[low:high]})
    return answers


def _find_word_span(encoding: TokenizedText, token_index: int) -> tuple[int, int]:
    """Return the character span of a token's word, or of the token if it has no word index."""
    word = encoding.word_ids[token_index]
    if word is None:
        return encoding.offsets[token_index]
    offsets_of_word = [
        offsets
        for offsets, word_id, sequence_id in zip(
            encoding.offsets, encoding.word_ids, encoding.sequence_ids, strict=True
        )
        if word_id == word and sequence_id == encoding.sequence_ids[token_index]
    ]
    return min(start for start, _ in offsets_of_word), max(end for _, end in offsets_of_word)


def _predict_masked_tokens(task_results: TaskResults) -> list[Prediction]:
    logits = task_results.read_scores("logits", 3)
    mask_id = task_results.task.mask_token_id
    predictions: list[Prediction] = []
    for i, encoding in enumerate(task_results.encodings):
        mask_positions = [n for n, token in enumerate(encoding.ids) if token == mask_id]
        if not mask_positions:
            helps = ["insert a mask token in place of the word to predict"]
            if mask_id is not None:
                mask = decode_token_ids(
                    [mask_id], task_results.tokenizer, skip_special_tokens=False
                )
                helps = ['write `{0}`: "Paris is the {0} of France."'.format(escape_text(mask))]
            raise_error("E0906", "the text contains no mask token", helps=helps)
        positions = _find_token_positions(task_results, i)
        probabilities = compute_probabilities(logits[i][positions][mask_positions])
        candidates = [
            _rank_candidates(task_results, encoding, n, row, has_other_masks=len(probabilities) > 1)
            for n, row in zip(mask_positions, probabilities, strict=True)
        ]
        predictions.append(candidates[0] if len(candidates) == 1 else candidates)
    return predictions


def _rank_candidates(
    task_results: TaskResults,
    encoding: TokenizedText,
    position: int,
    probabilities: Floats,
    *,
    has_other_masks: bool,
) -> list[Fields]:
    """Return the `top_k` most likely tokens at a mask position. Each candidate contains the text
    with this token in place of the mask token. Other mask tokens remain in the text.
    """
    tokenizer, pad_id = task_results.tokenizer, task_results.task.pad_token_id
    top_k = int(task_results.options["top_k"])
    candidates: list[Fields] = []
    for token in np.argsort(-probabilities, kind="stable")[:top_k].tolist():
        ids = [*encoding.ids[:position], token, *encoding.ids[position + 1 :]]
        ids = [number for number in ids if number != pad_id]
        text = decode_token_ids(ids, tokenizer, skip_special_tokens=not has_other_masks)
        word = decode_token_ids([token], tokenizer, skip_special_tokens=False)
        fields = {"score": float(probabilities[token]), "token": token}
        candidates.append({**fields, "token_str": word, "sequence": text})
    return candidates


def _predict_choices(task_results: TaskResults) -> list[Prediction]:
    probabilities = compute_probabilities(task_results.read_scores("logits", 2))
    return [_rank_labels(task_results.inputs["choices"], row.tolist()) for row in probabilities]


def _predict_image_labels(task_results: TaskResults) -> list[Prediction]:
    logits = task_results.read_scores("logits_per_image", 2)
    probabilities = apply_score_function(logits, task_results.task.score_function)
    labels = task_results.inputs["candidate_labels"]
    return [_rank_labels(labels, row.tolist()) for row in probabilities]


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
    """Return the pairwise cosine similarities [n, n] of vectors [n, d] (0 for a zero vector)."""
    rows = np.asarray(vectors, np.float64)
    lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    unit = rows / np.where(lengths > 0, lengths, 1)
    return np.asarray(unit @ unit.T)


def decode_ctc_path(ids: Sequence[int], config: CtcOutput) -> str:
    """Decode the best CTC path of a sequence to text. Repeated tokens are merged, and blanks are
    removed.
    """
    vocabulary_size = len(config.vocab)
    tokens = [config.vocab[i] if i < vocabulary_size else config.unknown_token for i in ids]
    merged_tokens = [token for token, _ in groupby(tokens)]
    blank = config.vocab[config.blank_token_id]
    text = "".join(
        config.word_separator if token == config.word_delimiter else token
        for token in merged_tokens
        if token != blank
    ).strip()
    return text.lower() if config.do_lower_case else text


AGGREGATION_STRATEGIES = ("none", "simple", "first", "average", "max")
OUTSIDE_LABEL = "O"
"""The label of tokens that are outside entities."""


def _group_entities(task_results: TaskResults, n: int, probabilities: Floats) -> list[Fields]:
    """Group the tokens of text `n` into entity spans, as the token classification pipeline of
    transformers does. `probabilities` are label probabilities [tokens, labels]. Spans labeled `O`
    are omitted. With the strategy `none`, return the labeled tokens.
    """
    task, tokenizer = task_results.task, task_results.tokenizer
    strategy = task_results.options["aggregation_strategy"]
    tokens = _list_tokens(task_results, n, probabilities)
    if strategy in ("none", "simple"):
        labeled = [_label_token(token, token["scores"], task) for token in tokens]
    else:
        words = _group_tokens(tokens, lambda _, token: token["continues_word"])
        labeled = [_make_word(group, task, tokenizer, strategy) for group in words]
    if strategy == "none":
        return _list_entity_tokens(labeled)
    spans = [_make_span(group, tokenizer) for group in _group_tokens(labeled, _continues_span)]
    return [span for span in spans if span["entity_group"] != OUTSIDE_LABEL]


def _list_entity_tokens(labeled_tokens: Sequence[Fields]) -> list[Fields]:
    """Return the labeled tokens that are inside entities."""
    names = ("entity", "score", "index", "word", "start", "end")
    entity_tokens = [token for token in labeled_tokens if token["entity"] != OUTSIDE_LABEL]
    return [{name: token[name] for name in names} for token in entity_tokens]


def _list_tokens(task_results: TaskResults, n: int, probabilities: Floats) -> list[Fields]:
    """Return the tokens of text `n`, with the flag `continues_word` for tokens inside words."""
    tokenizer, encoding = task_results.tokenizer, task_results.encodings[n]
    text = task_results.inputs["text"][n]
    names, marks_subwords = (
        get_token_strings(encoding.ids, tokenizer),
        has_subword_prefix(tokenizer),
    )
    tokens: list[Fields] = []
    for i, (start, end) in enumerate(encoding.offsets):
        if encoding.special_tokens_mask[i]:
            continue
        word, surface = names[i], text[start:end]
        continues_word = (
            len(word) != len(surface)
            if marks_subwords
            else start > 0 and " " not in text[start - 1 : start + 1]
        )
        if encoding.ids[i] == task_results.task.unknown_token_id:
            word, continues_word = surface, False
        location = {"start": start, "end": end, "index": i}
        tokens.append(
            {"word": word, "scores": probabilities[i], "continues_word": continues_word, **location}
        )
    return tokens


def _label_token(token: Fields, scores: Floats, task: Task, **changes: object) -> Fields:
    """Return a token with its most likely label and the label's score. `changes` replace fields."""
    best = int(scores.argmax())
    label = {"entity": task.get_label(best), "score": float(scores[best])}
    return {**token, **label, **changes}


def _group_tokens(
    tokens: Sequence[Fields], continues: Callable[[Fields, Fields], bool]
) -> list[list[Fields]]:
    """Group consecutive tokens. A token joins the group of the previous token if
    `continues(previous, token)` is true.
    """
    groups: list[list[Fields]] = []
    for token in tokens:
        if groups and continues(groups[-1][-1], token):
            groups[-1].append(token)
        else:
            groups.append([token])
    return groups


def _make_word(
    tokens: Sequence[Fields], task: Task, tokenizer: HfTokenizer, strategy: str
) -> Fields:
    """Merge the tokens of a word. `strategy` selects the scores of the word: the scores of the
    first token, those of the best token, or the mean scores.
    """
    scores = tokens[0]["scores"]
    if strategy == "max":
        scores = max(tokens, key=lambda token: token["scores"].max())["scores"]
    elif strategy == "average":
        scores = np.mean([token["scores"] for token in tokens], axis=0)
    word = decode_token_strings([token["word"] for token in tokens], tokenizer)
    return _label_token(tokens[0], scores, task, word=word, end=tokens[-1]["end"])


def _split_bio_tag(label: str) -> tuple[str, str]:
    """Split `B-PER` into B and PER. A label without a prefix is treated as if it had the prefix I
    (inside).
    """
    if label[:2] in ("B-", "I-"):
        return label[0], label[2:]
    return "I", label


def _continues_span(previous: Fields, token: Fields) -> bool:
    """Return True if a token continues the previous token's span: the entity type is the same, and
    the prefix is not `B-`.
    """
    prefix, tag = _split_bio_tag(token["entity"])
    return prefix != "B" and tag == _split_bio_tag(previous["entity"])[1]


def _make_span(tokens: Sequence[Fields], tokenizer: HfTokenizer) -> Fields:
    """Merge the tokens of a span, whose score is the mean of the token scores."""
    return {
        "entity_group": tokens[0]["entity"].split("-", 1)[-1],
        "score": float(np.mean([token["score"] for token in tokens])),
        "word": decode_token_strings([token["word"] for token in tokens], tokenizer),
        "start": tokens[0]["start"],
        "end": tokens[-1]["end"],
    }
