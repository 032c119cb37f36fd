"""Rules over the tokens of each sequence so far, as ONNX nodes; `specc.decode.token_choice` in
Python.

A history is i64[rows, n]: the tokens of the prompt without its padding, then those that
were generated. Every row ends at the last column; `NO_TOKEN` fills the columns before it.
"""

from collections.abc import Sequence
from itertools import groupby

from specc.ir.derived_graphs import DecodingConfig
from specc.ir.dim import Dim
from specc.ir.types import Type
from specc_onnx.generate.generation_context import NO_TOKEN
from specc_onnx.generate.onnx_sampling import emit_prompt_tokens
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.tensor_helpers import emit_cast, emit_unsqueeze

HISTORY_DIM = Dim.symbol("history")
SLICE_TO_END = 2**31 - 1


def has_history(d: DecodingConfig) -> bool:
    """Return whether a rule reads the tokens of a sequence, or counts those of a prompt."""
    return bool(d.no_repeat_ngram_size or d.bad_words_ids or (d.min_length and d.stop))


def get_history_type(rows: Dim) -> Type:
    """Return the type of a history."""
    return Type("i64", (rows, HISTORY_DIM))


def emit_prompt_history(g: Emitter, d: DecodingConfig, prompt: str, keep: str | None) -> str:
    """Emit the history of a prompt i64[rows, n] without padding (`keep` bool[rows, n] is its mask),
    with as many columns before it as the longest of `bad_words_ids` needs.
    """
    if keep is not None:
        prompt = _emit_right_aligned(g, prompt, keep)
    front = max((len(run) - 1 for run in d.bad_words_ids), default=0)
    if not front:
        return prompt
    rows = g.node("Shape", prompt, start=0, end=1)
    shape = g.node("Concat", rows, g.vector(front), axis=0)
    empty = g.node("Expand", g.constant(NO_TOKEN, "i64"), shape)
    return g.node("Concat", empty, prompt, axis=1)


def _emit_right_aligned(g: Emitter, prompt: str, keep: str) -> str:
    """Emit the non-padding tokens in their order, right-aligned and preceded by `NO_TOKEN`."""
    kept = emit_cast(g, keep, "bool", "i64")
    length = g.node("Shape", prompt, start=1, end=2)
    behind = g.node("CumSum", kept, g.constant(1, "i64"), exclusive=1, reverse=1)
    places = g.node("Sub", g.node("Sub", length, g.vector(1)), behind)
    # padding goes to a column that is dropped
    places = g.node("Where", keep, places, length)
    rows = g.node("Shape", prompt, start=0, end=1)
    wide = g.node("Concat", rows, g.node("Add", length, g.vector(1)), axis=0)
    empty = g.node("Expand", g.constant(NO_TOKEN, "i64"), wide)
    made = g.node("ScatterElements", empty, places, prompt, axis=1)
    return g.node("Slice", made, g.vector(0), length, g.vector(1))


def emit_banned_tokens(g: Emitter, d: DecodingConfig, history: str, vocabulary: int) -> list[str]:
    """Write which tokens may not come next by each rule, each bool[rows, vocabulary]."""
    found = []
    if d.no_repeat_ngram_size:
        found.append(_emit_repeated_ngrams(g, history, d.no_repeat_ngram_size, vocabulary))
    ordered = sorted(d.bad_words_ids, key=len)
    for length, runs in groupby(ordered, key=len):
        found.append(_emit_completed_runs(g, history, length, [*runs], vocabulary))
    if d.min_length and d.stop:
        there = g.node("GreaterOrEqual", history, g.constant(0, "i64"))
        count = g.node("ReduceSum", emit_cast(g, there, "bool", "i64"), g.vector(1))
        early = g.node("Less", count, g.constant(d.min_length, "i64"))
        stops = g.constant([[i in d.stop for i in range(vocabulary)]], "bool")
        found.append(g.node("And", early, stops))
    return found


def _emit_repeated_ngrams(g: Emitter, history: str, size: int, vocabulary: int) -> str:
    """Emit the tokens that would repeat an n-gram of the history (arXiv:1705.04304, sec. 2.5)."""
    # Column s of these is where a run begins at s; there is none in a short history.
    ends = g.node("Slice", history, g.vector(size - 1), g.vector(SLICE_TO_END), g.vector(1))
    same = g.node("Equal", ends, ends)
    for n in range(size - 1):
        newest = n - size + 1
        begins = g.node("Slice", history, g.vector(n), g.vector(newest), g.vector(1))
        last = g.node(
            "Slice", history, g.vector(newest), g.vector(newest + 1 or SLICE_TO_END), g.vector(1)
        )
        same = g.node("And", same, g.node("Equal", begins, last))
    return emit_prompt_tokens(g, ends, same, vocabulary)


def _emit_completed_runs(
    g: Emitter, history: str, length: int, runs: Sequence[Sequence[int]], vocabulary: int
) -> str:
    """Emit a mask of the last tokens of those `runs` whose other tokens the history ends with."""
    if length == 1:
        alone = {run[0] for run in runs}
        return g.constant([[i in alone for i in range(vocabulary)]], "bool")
    tail = g.node("Slice", history, g.vector(1 - length), g.vector(SLICE_TO_END), g.vector(1))
    firsts = g.constant([[list(run[:-1]) for run in runs]], "i64")
    alike = emit_cast(g, g.node("Equal", emit_unsqueeze(g, tail, 1), firsts), "bool", "i64")
    count = g.node("ReduceSum", alike, g.vector(2), keepdims=False)
    hits = g.node("Equal", count, g.constant(length - 1, "i64"))
    lasts = g.constant([[run[-1] for run in runs]], "i64")
    return emit_prompt_tokens(g, g.node("Expand", lasts, g.node("Shape", hits)), hits, vocabulary)
