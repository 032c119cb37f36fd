"""Print the predictions of a model with a task."""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from specc.cli.run_outputs import array_as_json, parse_run_outputs
from specc.cli.run_task_inputs import read_task_words
from specc.cli.terminal import print_json_result, print_note
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.preprocessing.predictions import cosine_similarities
from specc.preprocessing.show_results import format_percent
from specc.preprocessing.task_kinds import Task
from specc.runtime.open_model import OpenedModel
from specc.runtime.task_runner import Predictions, run_task

Facts: TypeAlias = Any
"""A prediction, plain JSON."""
OPTIONS = ("aggregation_strategy", "function_to_apply", "hypothesis_template", "prompt_name")
MOST_NUMBERS = 8
"""Values of a vector that are printed."""
VECTORS = "sentence_embedding"


def run_for_task(
    opened: OpenedModel, task: Task, given: Namespace, settings: Mapping[str, object]
) -> int:
    """Run the model for its task on the words of the command line and print what it
    predicts. E0753 for an option that belongs to another task.
    """
    read, files = read_task_words(task, given.inputs)
    outputs = parse_run_outputs(given, [*opened.files, *files])
    outputs.check()
    if outputs.attention:
        helps = [f"give the tokens: {task.text}=[[1, 2, 3]]"]
        raise_error("E0753", "`--attention` plots token ids alone here", helps=helps)
    told = {**settings, **{n: vars(given)[n] for n in OPTIONS if vars(given)[n]}}
    for name in told:
        if name not in task.options:
            flag = "--" + name.replace("_", "-")
            _no_option(flag, task)
    if given.similarity and task.kind != "sentence-similarity":
        _no_option("--similarity", task)
    made = run_task(opened.whole, {**_inputs(read), **told})
    if made.truncated:
        print_note(
            f"{made.truncated} texts are longer than {task.max_length} tokens, which is all "
            "that the model reads of a text"
        )
    _print(made, compare=given.similarity)
    outputs.save(made)
    return 0


def _inputs(read: Mapping[str, Sequence[Facts]]) -> dict[str, object]:
    """The values by slot; images as a list of paths."""
    return {name: list(values) for name, values in read.items()}


def _no_option(flag: str, task: Task) -> None:
    raise_error(
        "E0753", f"`{flag}` does not apply to the task `{task.kind}`", helps=[f"leave out `{flag}`"]
    )


def _print(made: Predictions, *, compare: bool) -> None:
    """The predictions as one JSON line, or as lines for people."""
    lines = [*predicted_lines(made.task, made.predictions)]
    found: dict[str, object] = {
        "task": made.task,
        "predictions": made.predictions,
        "shown": lines,
        "results": {name: array_as_json(array) for name, array in made.items()},
    }
    if compare:
        table = cosine_similarities(made[VECTORS])
        found["cosines"] = table.tolist()
        lines = [*_cosine_lines(table)]
        found["shown"] = lines
    if not print_json_result("run", found):
        print(*lines, sep="\n", end="\n" if lines else "")


def predicted_lines(task: str, predictions: Sequence[Facts]) -> Iterator[str]:
    """Predictions for people: a block of lines for each text, numbered where there are
    several.
    """
    write: Callable[[Facts], Iterator[str]] = LINES.get(task, _label_lines)
    width = len(str(len(predictions) - 1))
    for number, one in enumerate(predictions):
        lead = f"{number:>{width}}:  " if len(predictions) > 1 else ""
        for line in [*write(one)] or ["(nothing found)"]:
            yield lead + line
            lead = " " * len(lead)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns of one width; the last one is left as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for row in rows:
        cells = [f"{c:<{w}}" for c, w in zip(row[:-1], widths, strict=True)]
        yield "  ".join([*cells, row[-1]]).rstrip()


def _score(value: float) -> str:
    """A probability in percent; a value outside 0 to 1 as a number."""
    return format_percent(value) if 0 <= value <= 1 else f"{value:.4g}"


def _label_lines(ranked: Sequence[Facts]) -> Iterator[str]:
    yield from _table([(escape_text(r["label"]), _score(r["score"])) for r in ranked])


def _span_lines(spans: Sequence[Facts]) -> Iterator[str]:
    rows = [
        (
            escape_text(str(s.get("entity_group", s.get("entity")))),
            _score(s["score"]),
            f"{s['start']}-{s['end']}",
            escape_text(s["word"]),
        )
        for s in spans
    ]
    yield from _table(rows) if rows else ()


def _answer_lines(found: Facts) -> Iterator[str]:
    answers = [found] if isinstance(found, Mapping) else found
    rows = [
        (_score(a["score"]), f"{a['start']}-{a['end']}", escape_text(a["answer"])) for a in answers
    ]
    yield from _table(rows) if rows else ()


def _candidate_lines(found: Sequence[Facts]) -> Iterator[str]:
    each = found if found and isinstance(found[0], list) else [found]
    for some in each:
        yield from _table(
            [
                (escape_text(c["token_str"]), _score(c["score"]), escape_text(c["sequence"]))
                for c in some
            ]
        )


def _vector_lines(vector: Sequence[float]) -> Iterator[str]:
    values = "  ".join(f"{v:.4g}" for v in vector[:MOST_NUMBERS])
    more = f"  … ({len(vector)} values)" if len(vector) > MOST_NUMBERS else ""
    yield f"[{values}{more}]"


def _cosine_lines(table: Array) -> Iterator[str]:
    """The cosine of every two texts, a row for each."""
    for row in table:
        yield "  ".join(f"{value:7.4f}" for value in row)


LINES: Mapping[str, Callable[[Facts], Iterator[str]]] = {
    "token-classification": _span_lines,
    "question-answering": _answer_lines,
    "fill-mask": _candidate_lines,
    "sentence-similarity": _vector_lines,
}
