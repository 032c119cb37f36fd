"""Print and write the outputs of `specc run`: arrays, texts, and predictions of a task."""

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import ZipFile

import numpy as np

from specc.cli.run_task_inputs import read_task_inputs
from specc.cli.terminal import print_json_result, print_note, print_result_line, write_output
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import align_table_columns
from specc.drawing.attention_maps import AttentionSelection, parse_number_list
from specc.drawing.png import require_pillow
from specc.io.file_type_detection import PRODUCER_NAME
from specc.io.output_paths import (
    ARRAYS_OUTPUT,
    ATTENTION_PLOT_OUTPUT,
    IMAGE_OUTPUT,
    OutputFileType,
    resolve_output_path,
)
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.preprocessing.predictions import compute_cosine_similarities
from specc.preprocessing.result_formatting import format_percent
from specc.preprocessing.tasks import Task
from specc.runtime.attention_plot import AttentionCapture, render_attention
from specc.runtime.generation_stream_and_results import GenerationResult
from specc.runtime.inference_model import InferenceModel, list_model_files
from specc.runtime.task_runner import Predictions, run_task

MAX_NUMBERS = 100_000
"""Maximum number of elements in a printed array. Larger arrays can only be written with `-o`."""


def array_to_json(array: Array) -> dict[str, object]:
    """Convert an array to a JSON object. Omit `values` for more than MAX_NUMBERS elements."""
    is_small = array.size <= MAX_NUMBERS
    # convert low-precision floats to float64, because JSON encoders support no other floats
    array_to_convert = array.astype("float64") if array.dtype.kind not in "biufU" else array
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "values": array_to_convert.tolist() if is_small else None,
    }


def generated_sequence_to_json(result: GenerationResult) -> dict[str, object]:
    """Convert a generated sequence to a JSON object. `text` is null if the model has no
    detokenizer. If the model has several codebooks, `tokens` contains one list per codebook.
    """
    codebooks = [[*codebook] for codebook in result.codebooks]
    return {
        "text": result.text,
        "tokens": codebooks or [*map(int, result.tokens)],
        "score": None if result.score is None else float(result.score),
        "complete": result.complete,
    }


@dataclass(frozen=True, kw_only=True)
class RunOutputFiles:
    """The output files of a run: an attention plot, and an .npz file of the results. The output
    files never overwrite the files in `inputs`. `attention_selection` determines the plotted layers
    and heads.
    """

    attention_plot_path: str
    npz_path: str
    inputs: Sequence[Path]
    force: bool
    attention_selection: AttentionSelection = field(default_factory=AttentionSelection)
    uses_log_scale: bool = False

    def check_output_paths(self) -> None:
        """Raise an error for an invalid output path, and E0902 if a PNG requires Pillow."""
        for path, kind in (
            (self.attention_plot_path, ATTENTION_PLOT_OUTPUT),
            (self.npz_path, ARRAYS_OUTPUT),
        ):
            if path:
                resolve_output_path(path, kind, inputs=self.inputs, force=self.force)
        if self.attention_plot_path.lower().endswith(".png"):
            require_pillow()

    def write_images(self, images: Iterable[tuple[str, bytes]]) -> None:
        """Write output images to the current directory."""
        for name, png in images:
            self._write(name, IMAGE_OUTPUT, png)

    def write_attention_plot(self, capture: AttentionCapture) -> None:
        """Write the attention plot in the file format of the path's suffix."""
        suffix = Path(self.attention_plot_path).suffix.lower()
        plot = render_attention(
            capture, suffix, self.attention_selection, log_scale=self.uses_log_scale
        )
        for note in plot.remarks:
            print_note(note)
        self._write(self.attention_plot_path, ATTENTION_PLOT_OUTPUT, plot.content)

    def write_arrays(self, results: Mapping[str, Any]) -> None:
        """Write the results to a reproducible .npz file if `-o` is set."""
        if not self.npz_path:
            return
        buffer = BytesIO()
        np.savez(buffer, **results)
        # mark the file as written by specc, so that later runs may overwrite it
        with ZipFile(buffer, "a") as archive:
            archive.comment = PRODUCER_NAME.encode()
        self._write(self.npz_path, ARRAYS_OUTPUT, buffer.getvalue())

    def _write(self, path: str, kind: OutputFileType, content: bytes) -> None:
        write_output(path, kind, content, inputs=self.inputs, force=self.force)
        print_result_line(f"{escape_text(path)} written", to_stderr=True)


def parse_output_options(args: Namespace, input_paths: Sequence[Path]) -> RunOutputFiles:
    """Parse the options for output files. Raise E0753 for plot options without `--attention`."""
    plot_options = ("scope", "layers", "heads", "log_scale")
    options = [name for name in plot_options if vars(args)[name]]
    if options and not args.attention:
        raise_error(
            "E0753",
            f"`--{options[0].replace('_', '-')}` requires `--attention`, which is missing",
            helps=["add `--attention OUT.html`"],
        )
    return RunOutputFiles(
        attention_plot_path=args.attention,
        npz_path=args.output,
        inputs=input_paths,
        force=args.force,
        attention_selection=AttentionSelection(
            scope=args.scope,
            layers=parse_number_list(args.layers, "--layers") if args.layers else (),
            heads=parse_number_list(args.heads, "--heads") if args.heads else (),
        ),
        uses_log_scale=args.log_scale,
    )


def print_generated_texts(results: Sequence[Sequence[GenerationResult]]) -> None:
    """Print one generated sequence per line, with its score if there are several sequences per
    prompt. If the model has several codebooks, print one line per codebook.
    """
    for sequences in results:
        for result in sequences:
            score = ""
            if result.score is not None and len(sequences) > 1:
                # do not print `-0.0000`
                rounded = 0.0 if abs(result.score) < 5e-5 else result.score
                score = f"{rounded:8.4f}  "
            lines = result.codebooks or (result.tokens,)
            text = "\n".join(" ".join(map(str, tokens)) for tokens in lines)
            if result.text is not None:
                text = escape_text(result.text, keep="\n\t")
            print(f"{score}{text}")


Prediction: TypeAlias = Any
"""A prediction for a task, as a JSON value."""
Cells: TypeAlias = tuple[str, ...]
"""The columns of one line of printed output."""
POSTPROCESSING_OPTIONS = (
    "aggregation_strategy",
    "function_to_apply",
    "hypothesis_template",
    "prompt_name",
)
OPTION_TASKS = {
    "aggregation_strategy": ("token-classification", "token_classification"),
    "function_to_apply": ("text-classification", "sequence_classification"),
    "hypothesis_template": ("zero-shot-image-classification", ""),
    "prompt_name": ("sentence-similarity", "sentence_embeddings"),
    "similarity": ("sentence-similarity", "sentence_embeddings"),
}
"""Maps each option to a task that supports it, and to the name that built-in text encoder specs
give this task's graph.
"""
MAX_VALUES = 8
"""Maximum number of vector elements that are printed."""
EMBEDDING_OUTPUT = "sentence_embedding"


def run_task_command(
    model: InferenceModel, task: Task, args: Namespace, settings: Mapping[str, object]
) -> int:
    """Run the task of the model and print predictions. Raise E0753 for an option of a different
    task.
    """
    inputs, files = read_task_inputs(task, args.inputs)
    outputs = parse_output_options(args, [*list_model_files(model), *files])
    outputs.check_output_paths()
    if outputs.attention_plot_path:
        helps = [f"pass token ids instead of text: {task.text_input}='[[1, 2, 3]]'"]
        raise_error(
            "E0753", "`--attention` cannot be combined with text inputs for this model", helps=helps
        )
    options = {**settings, **{n: vars(args)[n] for n in POSTPROCESSING_OPTIONS if vars(args)[n]}}
    for name in options:
        if name not in task.options:
            _reject_option("--" + name.replace("_", "-"), task)
    if args.similarity and task.kind != "sentence-similarity":
        _reject_option("--similarity", task)
    predictions = run_task(model.selected_model, {**inputs, **options})
    if predictions.truncated:
        print_note(f"{predictions.truncated} texts were truncated to {task.max_length} tokens")
    _print_predictions(predictions, with_similarities=args.similarity)
    outputs.write_arrays(predictions)
    return 0


def reject_task_options(args: Namespace) -> None:
    """Raise E0753 if a task option is given, because the model runs without a task."""
    for name, (task, graph) in OPTION_TASKS.items():
        if vars(args)[name]:
            flag = "--" + name.replace("_", "-")
            title = f"`{flag}` applies only to a model with a task, such as `{task}`"
            helps = [f"remove `{flag}`"]
            if graph:
                helps += [f"or compile with `--graph {graph}`, if `specc check` lists this graph"]
            raise_error("E0753", title, helps=helps)


def _reject_option(flag: str, task: Task) -> None:
    raise_error(
        "E0753", f"`{flag}` does not apply to the task `{task.kind}`", helps=[f"remove `{flag}`"]
    )


def _print_predictions(predictions: Predictions, *, with_similarities: bool) -> None:
    """Print predictions as JSON or text, or, if requested, pairwise cosine similarities."""
    lines = [*format_predictions(predictions.task, predictions.predictions)]
    result: dict[str, object] = {
        "task": predictions.task,
        "predictions": predictions.predictions,
        "lines": lines,
        "results": {name: array_to_json(array) for name, array in predictions.items()},
    }
    if with_similarities:
        table = compute_cosine_similarities(predictions[EMBEDDING_OUTPUT])
        result["cosine_similarities"] = table.tolist()
        lines = [*_format_similarities(table)]
        result["lines"] = lines
    if not print_json_result(result):
        print(*lines, sep="\n", end="\n" if lines else "")


def format_predictions(task: str, predictions: Sequence[Prediction]) -> Iterator[str]:
    """Yield the lines of predictions. If there are several inputs, number the predictions by
    input.
    """
    list_cells = TASK_CELLS.get(task, _list_label_cells)
    width = len(str(len(predictions) - 1))
    for number, prediction in enumerate(predictions):
        prefix = f"{number:>{width}}:  " if len(predictions) > 1 else ""
        # if the text has several mask tokens, a prediction has one list of candidates per mask
        # token
        is_nested = isinstance(prediction, list) and isinstance([*prediction, ""][0], list)
        lines = [
            line
            for group in (prediction if is_nested else [prediction])
            for line in align_table_columns(list_cells(group))
        ]
        for line in lines or ["(no results)"]:
            yield prefix + line
            prefix = " " * len(prefix)


def _format_score(value: float) -> str:
    """Format a probability as a percentage, or as a number if it is outside [0, 1]."""
    return format_percent(value) if 0 <= value <= 1 else f"{value:.4g}"


def _list_label_cells(labels: Sequence[Prediction]) -> list[Cells]:
    return [(escape_text(r["label"]), _format_score(r["score"])) for r in labels]


def _list_entity_cells(entities: Sequence[Prediction]) -> list[Cells]:
    return [
        (
            escape_text(str(s.get("entity_group", s.get("entity")))),
            _format_score(s["score"]),
            f"{s['start']}-{s['end']}",
            escape_text(s["word"]),
        )
        for s in entities
    ]


def _list_answer_cells(prediction: Prediction) -> list[Cells]:
    answers = [prediction] if isinstance(prediction, Mapping) else prediction
    return [
        (_format_score(a["score"]), f"{a['start']}-{a['end']}", escape_text(a["answer"]))
        for a in answers
    ]


def _list_candidate_cells(candidates: Sequence[Prediction]) -> list[Cells]:
    return [
        (escape_text(c["token_str"]), _format_score(c["score"]), escape_text(c["sequence"]))
        for c in candidates
    ]


def _list_vector_cells(vector: Sequence[float]) -> list[Cells]:
    values = "  ".join(f"{v:.4g}" for v in vector[:MAX_VALUES])
    more = f"  … ({len(vector)} values)" if len(vector) > MAX_VALUES else ""
    return [(f"[{values}{more}]",)]


def _format_similarities(similarities: Array) -> Iterator[str]:
    """Yield the pairwise cosine similarities as the lines of a matrix."""
    for row in similarities:
        yield "  ".join(f"{value:7.4f}" for value in row)


TASK_CELLS: Mapping[str, Callable[[Any], list[Cells]]] = {
    "token-classification": _list_entity_cells,
    "question-answering": _list_answer_cells,
    "fill-mask": _list_candidate_cells,
    "sentence-similarity": _list_vector_cells,
}
"""Functions that format predictions, by task. Predictions of other tasks are labels with scores."""
