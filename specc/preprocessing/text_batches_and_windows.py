"""Encode texts and text pairs, and batch the encodings with padding and masks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import TEXT_CONFIGS, TextConfig
from specc.preprocessing.text_codec import encode_text_to_ids, pad_token_sequences
from specc.preprocessing.tokenizer_files import HfTokenizer
from specc.preprocessing.tokenizer_library import encode_with_offsets


def encode_text_inputs(
    graph: Graph,
    preprocessing: PreprocessingConfig,
    inputs: Mapping[str, object],
    generated_input: str = "",
) -> dict[str, object]:
    """Return `inputs` with texts encoded to ids, and with omitted padding masks added. Ids are
    int64 [batch, longest], and masks are bool [batch, longest].
    """
    encoded: dict[str, object] = {}
    for name, value in inputs.items():
        config = preprocessing.get_input_config(name) if name in graph.inputs else None
        if not isinstance(config, TEXT_CONFIGS) or not _is_text(value):
            encoded[name] = value
            continue
        texts = [value] if isinstance(value, str) else _iterate_items(value)
        sequences = encode_input_texts(texts, config, name)
        arrays = batch_sequences(graph, name, sequences, generated_input=generated_input)
        encoded |= {key: a for key, a in arrays.items() if key == name or key not in inputs}
    return encoded


def encode_input_texts(texts: Sequence[object], tokenizer: TextConfig, name: str) -> list[Array]:
    """Encode the texts of the input `name`. Raise the error of the first text that cannot be
    encoded, with the number of the text.
    """
    results: list[Array] = []
    for number, text in enumerate(texts):
        notes = (f"text {number + 1} of {len(texts)} in `{name}`",) if len(texts) > 1 else ()
        if not isinstance(text, str):
            actual = "None" if text is None else f"a value of type {type(text).__name__}"
            fix = "remove it, or use an empty string"
            raise_error("E0906", f"{actual} is not a string", notes=notes, helps=[fix])
        try:
            results.append(encode_text_to_ids(text, tokenizer))
        except SpeccError as failed:
            error = failed.diagnostics[0]
            raise SpeccError(replace(error, notes=(*error.notes, *notes))) from None
    return results


def batch_sequences(
    graph: Graph, name: str, sequences: Sequence[Array], *, generated_input: str = ""
) -> dict[str, Array]:
    """Batch sequences of token ids or audio samples. Return the input `name` and its padding mask.

    Sequences are zero-padded on the side that the mask declares. If the mask allows padding on
    either side, the `generated_input` is padded on the left and other inputs on the right. Raise
    E0912 if sequences have different lengths and there is no mask input.
    """
    mask_input = find_mask_input(graph, name)
    if not mask_input:
        lengths = sorted({len(row) for row in sequences})
        if len(lengths) > 1:
            raise_error(
                "E0912",
                f"the sequences of `{name}` have lengths {lengths[0]} to {lengths[-1]}, but "
                "the model has no padding mask",
                notes=["no padding mask (`keep` input) has the axes of the sequences"],
                helps=[
                    "batch sequences of equal length, or add `keep: keep[batch, n]` to the "
                    "graph's inputs"
                ],
            )
        return {name: np.stack(sequences) if sequences else np.zeros((0, 0), np.int64)}
    ids, mask = pad_token_sequences(
        sequences, 0, pad_left=is_left_padded(graph, name, generated_input)
    )
    return {name: ids, mask_input: mask}


def is_left_padded(graph: Graph, name: str, generated_input: str) -> bool:
    """Return True if padding is on the left: if the mask requires it or, for a generated input,
    allows it.
    """
    mask_input = find_mask_input(graph, name)
    side = graph.input_facts[mask_input].padding_side if mask_input else ""
    return side == "left" or (side == "any" and name == generated_input)


def find_mask_input(graph: Graph, name: str, rank: int | None = None) -> str:
    """Return the name of the input's padding mask, or "" if there is none. A mask has the axes of
    the input or, if `rank` is set, its first `rank` axes.
    """
    shape = graph.inputs[name].shape[:rank]
    inputs = graph.inputs.items()
    return next(
        (
            n
            for n, v in inputs
            if graph.input_facts[n].padding_side and v.shape == shape and n != name
        ),
        "",
    )


def _is_text(value: object) -> bool:
    """Return True if a list contains strings."""
    return isinstance(value, str) or any(isinstance(x, str) for x in _iterate_items(value))


def _iterate_items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


TOKEN_TYPES = "token_type_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedText:
    """The tokens of a text or text pair. `type_ids` are segment ids, and `offsets` are in
    characters. `sequence_ids` are 0 or 1 (None for special tokens), and `word_ids` are word indices
    within a text.
    """

    ids: tuple[int, ...]
    type_ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...] = ()
    special_tokens_mask: tuple[bool, ...] = ()
    sequence_ids: tuple[int | None, ...] = ()
    word_ids: tuple[int | None, ...] = ()

    def select_tokens(self, positions: Sequence[int]) -> "TokenizedText":
        """Return a copy that contains only the tokens at `positions`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return TokenizedText(
            **{name: tuple(v[i] for i in positions) if v else () for name, v in values.items()}
        )

    def pad_to_length(self, length: int, fill: int) -> "TokenizedText":
        """Pad the encoding with `fill`, or truncate it, to `length` tokens."""
        ids = (*self.ids, *[fill] * (length - len(self.ids)))[:length]
        return replace(self, ids=ids, type_ids=(0,) * length)


def encode_text(text: str, pair: str | None, tokenizer: TextConfig) -> TokenizedText:
    """Tokenize a text or text pair. Raise E0906 for a pair without a tokenizer.json, and the errors
    of `encode_text_to_ids`.
    """
    ids = encode_text_to_ids(text, tokenizer).tolist()
    if not isinstance(tokenizer, HfTokenizer):
        if pair is not None:
            raise_error(
                "E0906",
                "expected a single text, got a text pair",
                notes=["text pairs require a tokenizer.json"],
                helps=["pass one text"],
            )
        return TokenizedText(ids=tuple(ids), type_ids=(0,) * len(ids))
    if pair is not None:
        encode_text_to_ids(pair, tokenizer)  # check the second text separately
    library_encoding = encode_with_offsets(text, pair, tokenizer)
    encoding = TokenizedText(
        ids=tuple(library_encoding.ids),
        type_ids=tuple(library_encoding.type_ids),
        offsets=tuple(library_encoding.offsets),
        special_tokens_mask=tuple(map(bool, library_encoding.special_tokens_mask)),
        sequence_ids=tuple(library_encoding.sequence_ids),
        word_ids=tuple(library_encoding.word_ids),
    )
    # add special tokens of the spec that the tokenizer file does not add
    if pair is None and len(ids) != len(encoding.ids):
        before = 1 if tokenizer.start_token_id is not None and ids[0] != encoding.ids[0] else 0
        after = len(ids) - len(encoding.ids) - before
        if after in (0, 1):
            return _add_special_tokens(encoding, ids, before, after)
    return encoding


SPECIAL_TOKEN_FIELDS: Mapping[str, object] = {
    "type_ids": 0, "offsets": (0, 0), "special_tokens_mask": True, "sequence_ids": None,
    "word_ids": None,
}  # fmt: skip
"""The fields of a special token in a `TokenizedText`, except its id."""


def _add_special_tokens(
    encoding: TokenizedText, ids: Sequence[int], before: int, after: int
) -> TokenizedText:
    """Add special tokens of the spec: `before` tokens at the start, `after` tokens at the end."""
    extended_fields = {
        name: (*[value] * before, *getattr(encoding, name), *[value] * after)
        for name, value in SPECIAL_TOKEN_FIELDS.items()
    }
    return replace(encoding, ids=tuple(ids), **extended_fields)


def truncate_encoding(
    encoding: TokenizedText, max_tokens: int, truncate_left: bool = False
) -> TokenizedText:
    """Truncate an encoding to `max_tokens` tokens. Remove tokens at the end of the text, or at the
    beginning if `truncate_left` is True. Special tokens at both ends are kept. Like the
    `tokenizers` package, do not truncate an encoding with more than `max_tokens` special tokens.
    """
    excess = len(encoding.ids) - max_tokens
    if excess <= 0 or not max_tokens or sum(encoding.special_tokens_mask) > max_tokens:
        return encoding
    start = max(_find_content_end(encoding) - excess, 0)
    if truncate_left:
        start = next(
            (n for n, is_special in enumerate(encoding.special_tokens_mask) if not is_special), 0
        )
    return encoding.select_tokens([*range(start), *range(start + excess, len(encoding.ids))])


def _find_content_end(encoding: TokenizedText) -> int:
    """Return the end position of the last token that is not a special token."""
    end = len(encoding.ids)
    while end and encoding.special_tokens_mask and encoding.special_tokens_mask[end - 1]:
        end -= 1
    return end


DOC_STRIDE = 128
"""Maximum overlap of consecutive context windows in tokens."""


def split_into_context_windows(encoding: TokenizedText, max_tokens: int) -> list[TokenizedText]:
    """Split the second text of a pair into windows. The first text and a window have at most
    `max_tokens` tokens in total. Windows overlap by half of `max_tokens`, but at most by
    `DOC_STRIDE`.
    """
    context_positions = [
        i for i, sequence_id in enumerate(encoding.sequence_ids) if sequence_id == 1
    ]
    context_tokens = max_tokens - (len(encoding.ids) - len(context_positions))
    if len(encoding.ids) <= max_tokens:
        return [encoding]
    if context_tokens < 1:
        raise_error(
            "E0907",
            f"the question leaves no tokens for the context (maximum: {max_tokens} tokens)",
            helps=["use a shorter question, or a larger `max_seq_len`"],
        )
    step = context_tokens - min(max_tokens // 2, DOC_STRIDE, context_tokens - 1)
    first, last = context_positions[0], context_positions[-1]
    windows = []
    for start in range(0, len(context_positions), step):
        window = context_positions[start : start + context_tokens]
        positions = [*range(first), *window, *range(last + 1, len(encoding.ids))]
        windows.append(encoding.select_tokens(positions))
        if start + context_tokens >= len(context_positions):
            break
    return windows


def batch_encodings(
    graph: Graph,
    name: str,
    encodings: Sequence[TokenizedText],
    *,
    with_token_types: bool,
    generated_input: str,
) -> dict[str, Array]:
    """Batch encodings. Return the input `name` [batch, longest], the padding mask and, if
    `with_token_types` is True, the token type ids.
    """
    ids = [np.array(encoding.ids, np.int64) for encoding in encodings]
    arrays = batch_sequences(graph, name, ids, generated_input=generated_input)
    if with_token_types and TOKEN_TYPES in graph.inputs:
        token_types = [np.array(encoding.type_ids, np.int64) for encoding in encodings]
        pad_left = is_left_padded(graph, name, generated_input)
        arrays[TOKEN_TYPES], _ = pad_token_sequences(token_types, 0, pad_left=pad_left)
    return arrays
