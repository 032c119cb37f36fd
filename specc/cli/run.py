"""Run a compiled model on images, texts or arrays and show its results; a model that
generates writes text.
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from specc.cli.messages import answer, manner, remark
from specc.cli.run_inputs import read_arguments
from specc.cli.run_options import arguments
from specc.cli.run_outputs import Outputs, outputs_of, print_results
from specc.cli.run_predictions import run_for_task
from specc.cli.run_tasks import reads_arrays
from specc.cli.run_told import told_array, told_text
from specc.cli.writing_options import settings_given
from specc.compiler.uncompiled import refuse_uncompiled
from specc.data.chat import MOST_TEXT
from specc.data.reading import Reading
from specc.data.show import show
from specc.files.json import ANY, parse
from specc.files.read import Unreadable, read_regular, shown
from specc.ir.array import Array
from specc.run.attention import look, look_back
from specc.run.chat import chat_ids
from specc.run.generation import Writing, arrays_of
from specc.run.opened import Opened, open_compiled, streams_of, task_of
from specc.text.diagnostic import fail

CHAT = 'write [{"role": "user", "content": "a text"}, …]'
__all__ = ["arguments", "run"]


def run(given: Namespace) -> int:
    """Print the results, and write what was asked for."""
    refuse_uncompiled(given.model)
    opened = open_compiled(given.model, graph=given.graph, provider=given.provider)
    entrance, settings = opened.entrance, settings_given(given)
    if opened.chance is not None:
        remark(str(opened.chance))
    task = task_of(opened) if given.chat is None and not given.chunk else None
    if task and not reads_arrays(task, given.inputs, [*entrance.graph.inputs]):
        return run_for_task(opened, task, given, settings)
    read = read_arguments(entrance, given.inputs)
    outputs = outputs_of(given, [*opened.files, *map(Path, read.files)])
    outputs.check()
    if given.chunk or (opened.streamer is not None and opened.scoring is None):
        _stream(opened, read.inputs, outputs, given.chunk)
    elif given.chat is not None:
        said = {
            **read.inputs,
            entrance.growing: [chat_ids(entrance, _messages(given.chat))],
        }
        _write(opened, opened.begin(said, settings), outputs)
    elif opened.computes(read.inputs, settings):
        _compute(opened, read.inputs, outputs)
    else:
        _write(opened, opened.begin(read.inputs, settings), outputs)
    return 0


def _messages(given: str) -> object:
    """A chat of the command line: a text, or the messages in a file. E0802 and E0425."""
    if not given.startswith("@"):
        return given
    try:
        text = read_regular(Path(given[1:]), MOST_TEXT).decode("utf-8-sig")
        return parse(text, ANY)
    except Unreadable as error:
        what = f"the chat `{shown(given[1:])}` cannot be read: {error.reason}"
        fail("E0802", what, helps=["check the path"])
    except ValueError as error:
        # no UTF-8, no JSON, a name given twice
        fail("E0425", f"this is no chat: {shown(str(error))[:200]}", helps=[CHAT])


def _compute(opened: Opened, inputs: Mapping[str, Array], outputs: Outputs) -> None:
    """All at once: results as their readings show them."""
    model = opened.whole
    if outputs.attention:
        seen = look(model, inputs, scope=outputs.choice.scope)
        outputs.looked(seen)
        results = seen.results
    else:
        results = model.run(**inputs)
    _show(model.manifest.reading, results, outputs)


def _show(reading: Reading, results: Mapping[str, Array], outputs: Outputs) -> None:
    """Results as their reading shows them, or whole where a program reads."""
    found = show(reading, results)
    told = {
        "shown": list(found.lines),
        "results": {name: told_array(array) for name, array in results.items()},
    }
    lines = () if answer("run", told) else found.lines
    print(*lines, sep="\n", end="\n" if lines else "")
    outputs.pictures(found.pictures)
    outputs.save(results)


def _stream(
    opened: Opened, inputs: Mapping[str, Array], outputs: Outputs, rows: int
) -> None:
    """Rows in pieces, as a stream would bring them: results as their readings show them.
    E0977 for a model that is not streamed, or has no attention to be drawn.
    """
    streamer = streams_of(opened)
    if outputs.attention:
        opened.looked_at()  # a package that has the whole graph draws it without chunks
        helps = ["leave out `--chunk`"]
        fail("E0977", "what a stream looked at is not drawn", helps=helps)
    results = streamer.run(inputs, rows)
    _show(streamer.entrance.reading, results, outputs)


def _print_pieces(writing: Writing) -> None:
    """A text while it is written, each piece as soon as it is certain."""
    for piece in writing.pieces():
        print(shown(piece[0], keep="\n\t"), end="", flush=True)
    print()


def _comes_in_pieces(writing: Writing) -> bool:
    """Whether a text is shown while it is written: one alone, of words and not of
    numbers, for people. A program reads one object, when all is there.
    """
    at_once = writing.settings.n_best == 1 and len(writing.prompt) == 1
    is_text = writing.writer.decode is not None
    return at_once and is_text and not manner().for_programs


def _write(opened: Opened, writing: Writing, outputs: Outputs) -> None:
    """One text as it comes; several texts, or tokens that are none, when all are there."""
    if outputs.attention:
        opened.looked_at()  # whoever lacks it is told before anything is written
    as_it_comes = _comes_in_pieces(writing)
    if as_it_comes:
        _print_pieces(writing)
    results = writing.results()
    told = {"texts": [[told_text(each) for each in row] for row in results]}
    if not answer("run", told) and not as_it_comes:
        print_results(results)
    # one is drawn and remarked on: the best of the first prompt
    best = results[0][0]
    if why := writing.cut_off(best):
        remark(f"cut off after {len(best.tokens)} tokens, {why}")
    seen: dict[str, Array] = {}
    if outputs.attention:
        looked = look_back(opened.looked_at(), writing, best, outputs.choice.scope)
        outputs.looked(looked)
        seen = looked.results
    outputs.save({**seen, **arrays_of(writing, results)})
