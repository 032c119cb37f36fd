"""Run a compiled model on images, texts or arrays and show its results; a model that generates writes text."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from specc.arguments import read_arguments
from specc.attention import ALIGNMENT, alignment_of, left_out, picture_of
from specc.commands.run_outputs import Outputs
from specc.commands.spec_options import FORCE
from specc.commands.writing_options import settings_given, writing_arguments
from specc.input import shown
from specc.package_index import is_package
from specc.packages import files_of, open_either, open_package
from specc.reading.show import Shown, show
from specc.running import Loaded
from specc.text.diagnostic import fail
from specc.writers.writer import Writer, open_writer, writer_of
from specc.writers.writing import Result, Writing

Array = Any
Arrays = Mapping[str, Array]


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = 'For example: specc run out/numbers "de 305" --max 64'
    parser.add_argument("model", metavar="MODEL.onnx|DIR", help="a compiled model, or a package")
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="a text, @FILE with a text a line, - for the standard input, [[1, 2]] for ids, "
        "a file (.png, .npy, .npz, .json); NAME=INPUT says which input it is; several are a batch (docs/inputs.md)",
    )
    parser.add_argument("--graph", default="", metavar="NAME", help="run this one of a package's graphs, once")
    parser.add_argument("--provider", default="cpu", help="cpu, cuda, … (an execution provider of ONNX Runtime)")
    parser.add_argument("--attention", default="", metavar="OUT.png", help="draw where the model's attention looked")
    parser.add_argument(
        "--scope", default="", metavar="PATTERN", help="which attention to draw, by its scope; the last one otherwise"
    )
    parser.add_argument("-o", "--output", default="", metavar="OUT.npz", help="also write the results as arrays")
    parser.add_argument("--force", action="store_true", help=FORCE)
    writing_arguments(parser)


def run(given: Namespace) -> int:
    """Print the results, and write what was asked for."""
    writer, model = _opened(given)
    settings = settings_given(given)
    entrance = writer.entrance if writer is not None else _only(model).entrance
    _say_seed(_seed(writer, model))
    read = read_arguments(entrance, given.inputs)
    files = [*files_of(given.model, model), *map(Path, read.files)]
    if given.scope and not given.attention:
        fail(
            "E0753",
            "`--scope` says which attention to draw, and none is to be drawn",
            helps=["add --attention OUT.png"],
        )
    outputs = Outputs(given.attention, given.output, files, given.force, given.scope)
    outputs.check()
    if model is not None:
        whole = writer is not None and writer.itself is None and writer.entrance.growing in read.inputs
        if writer is None or (whole and not settings):
            if settings:
                _nothing_to_set(given)
            return _compute(model, read.inputs, outputs)
    assert writer is not None
    return _write(writer, read.inputs, settings, given, outputs)


def _only(model: Loaded | None) -> Loaded:
    assert model is not None, "what is opened writes or computes"
    return model


def _seed(writer: Writer | None, model: Loaded | None) -> int | None:
    """The seed of random weights, where there are any."""
    if model is None:
        return writer.seed if writer is not None else None
    random = bool(model.manifest.graph.parameters) or model.manifest.decodes is not None
    return model.manifest.seed if random else None


def _opened(given: Namespace) -> tuple[Writer | None, Loaded | None]:
    """The model that writes, the model that computes: a package with a step has only the first."""
    if is_package(given.model) and not given.graph:
        package = open_package(given.model)
        if "step" in package.roles and package.index.about:
            return open_writer(package, provider=given.provider), None
    model = open_either(given.model, graph=given.graph, provider=given.provider)
    once = given.graph and model.manifest.decodes is None
    return None if once else writer_of(model), model


def _nothing_to_set(given: Namespace) -> NoReturn:
    """E0701: settings of writing for what does not write."""
    if is_package(given.model):
        fail(
            "E0701",
            f"`{shown(given.model)}` holds no step that specc drives",
            notes=["with `--names`, a package is for other programs"],
            helps=["compile it with `--for step`, without `--names`", "leave out the options of writing"],
        )
    fail(
        "E0701", "this model does not generate, so there is nothing to set", helps=["leave out the options of writing"]
    )


def _say_seed(seed: int | None) -> None:
    if seed is not None:
        print(f"note: the weights are random (seed {seed})", file=sys.stderr)


def _compute(model: Loaded, inputs: Arrays, outputs: Outputs) -> int:
    results = _draw(model, inputs, outputs) if outputs.attention else model.run(**inputs)
    _print(show(model.manifest.reading, results), outputs)
    outputs.save(results)
    return 0


def _print(made: Shown, outputs: Outputs) -> None:
    for line in made.lines:
        print(line)
    outputs.pictures(made.pictures)


def _write(writer: Writer, inputs: Arrays, settings: Mapping[str, Any], given: Namespace, outputs: Outputs) -> int:
    """What a model writes: its text as it comes, or its tokens."""
    writing = writer.generate(**inputs, **settings)
    whole = writing.settings.n_best > 1 or len(writing.prompt) > 1
    if not whole and writer.decode:
        for piece in writing.pieces():
            print(shown(piece[0], keep="\n\t"), end="", flush=True)
        print()
    results = writing.results()
    if whole or not writer.decode:
        _print_results(results)
    first = results[0][0]
    if not first.complete and writing.settings.stop:
        full = len(first.tokens) >= writing.room and writing.room < writing.settings.max_tokens
        why = "all that the model can see is full" if full else "at which it had not ended"
        print(f"note: cut off after {len(first.tokens)} tokens, {why}", file=sys.stderr)
    seen = _draw_written(writing, first, given, outputs) if outputs.attention else {}
    outputs.save({**seen, **_arrays(writing, results)})
    return 0


def _print_results(results: list[list[Result]]) -> None:
    for row in results:
        for result in row:
            score = "" if result.score is None or len(row) == 1 else f"{_plain(result.score):8.4f}  "
            text = " ".join(map(str, result.tokens)) if result.text is None else shown(result.text, keep="\n\t")
            print(f"{score}{text}")


def _plain(score: float) -> float:
    """A score as it is printed, without the sign of a zero."""
    return 0.0 if abs(score) < 5e-5 else score


def _draw_written(writing: Writing, best: Result, given: Namespace, outputs: Outputs) -> Arrays:
    """Where the model looked while it wrote: the whole graph once more, on all that was written."""
    model = _scoring(given)
    growing = writing.writer.entrance.growing
    prompt = writing.prompt[:1]
    tokens = np.array([best.tokens], np.int64)
    batch = writing.writer.entrance.graph.inputs[growing].type.shape[0]
    first = {
        n: v[:1] if writing.writer.entrance.graph.inputs[n].type.shape[:1] == (batch,) else v
        for n, v in writing.prepared.items()
        if writing.writer.entrance.graph.inputs[growing].type.shape[1] not in model.manifest.graph.inputs[n].type.shape
    }
    return _draw(model, {**first, growing: np.concatenate([prompt, tokens[:, :-1]], axis=1)}, outputs, tokens)


def _scoring(given: Namespace) -> Loaded:
    """The whole graph of what is run. E0931 where a package lacks it."""
    if is_package(given.model):
        package = open_package(given.model)
        if "score" not in package.roles:
            fail(
                "E0931",
                "the weights of attention are seen in the whole graph, which this package lacks",
                helps=["compile it with `--for all`, or with `--for score,step`"],
            )
        return package.load("score", provider=given.provider)
    return open_either(given.model, provider=given.provider)


def _draw(model: Loaded, inputs: Mapping[str, Array], outputs: Outputs, written: Array | None = None) -> Arrays:
    """The results; where the model looked goes into a picture."""
    if ALIGNMENT in model.manifest.graph.outputs and not outputs.scope:
        results = model.run(**inputs)
        png = alignment_of(model, inputs, results[ALIGNMENT], written)
    else:
        results, weights = model.attention(**inputs)
        png = picture_of(model, inputs, weights, written, outputs.scope)
        if said := left_out(weights, outputs.scope):
            print(f"note: {said}", file=sys.stderr)
    outputs.looked(png)
    return results


def _arrays(writing: Writing, results: list[list[Result]]) -> Arrays:
    """Tokens i64[batch, n_best, longest] (without n_best where there is one), with scores where there are any."""
    longest = max((len(r.tokens) for row in results for r in row), default=0)
    filler = writing.settings.filler
    tokens = np.array([[[*r.tokens, *[filler] * (longest - len(r.tokens))] for r in row] for row in results], np.int64)
    made: dict[str, Array] = {writing.writer.generation.name: tokens[:, 0] if writing.settings.n_best == 1 else tokens}
    if all(r.score is not None for row in results for r in row):
        made["scores"] = np.array([[r.score for r in row] for row in results], np.float32)
    if all(r.log_probs is not None for row in results for r in row):
        padded = [[[*(r.log_probs or ()), *[0.0] * (longest - len(r.tokens))] for r in row] for row in results]
        scores = np.array(padded, np.float32).reshape(len(results), -1, longest)
        made["log_probabilities"] = scores[:, 0] if writing.settings.n_best == 1 else scores
    return made
