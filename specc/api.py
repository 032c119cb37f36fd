"""The Python interface: what the commands do, as functions. Three lines each.

    specc.check("my.specc")
    specc.compile("vit", "vit.onnx", weights="checkpoint/")
    specc.load("vit.onnx").run(pixel_values=array)

Everything that is wrong with what is given is raised as `specc.Failed`, whose
`diagnostics` hold code, text, place and help.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, Unpack, overload

from specc.batch_inference.job import JobReport, check_job_arguments, run_job
from specc.batch_inference.planning import JobRequest
from specc.decode.generation_settings import GenerationArguments
from specc.diagnostics.diagnostic import Diagnostic, Failed, raise_error
from specc.driver import spec_loader as driver
from specc.driver.compile_model import compile_model
from specc.driver.compile_options import parse_graph_names
from specc.driver.compile_report import CompileReport, refuse_uncompiled
from specc.driver.python_arguments import (
    check_arguments,
    compile_options,
    errors_in_spec_syntax,
    open_spec_argument,
)
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.runtime.attention_selection import AttentionWeights
from specc.runtime.continuous_batching import DEFAULT_BATCH_SIZE
from specc.runtime.generate_each import generate_each
from specc.runtime.generation import GenerationResult, GenerationStream
from specc.runtime.generator import Generator
from specc.runtime.loaded_model import LoadedModel, fix_lengths, run_batches
from specc.runtime.model_handle import ModelHandle
from specc.runtime.open_model import open_compiled, open_stream
from specc.runtime.prompts import encode_chat
from specc.runtime.streaming import InputStream
from specc.runtime.task_runner import is_task_input, run_task

__all__ = ["Diagnostic", "Failed", "GenerationResult", "Model", "check", "compile", "load"]

Results: TypeAlias = dict[str, Array]
"""Arrays by the result's name."""


@errors_in_spec_syntax()
def check(
    spec: str | Path, *, config: str | Path = "", set: Mapping[str, object] | None = None
) -> driver.CheckedSpec:
    r"""Check a spec, a path, the name of a shipped one or its whole text: shapes for every
    size, then with the config's numbers.

    >>> specc.check("xor")
    <specc check: xor, predict: x f32[batch, 2] -> y f32[batch, 1], ...>
    >>> specc.check("specc: 1\nmodel: mine\nextends: vit\nconfig: {lyers: 2}\n")
    Traceback (most recent call last):
    specc.diagnostics.diagnostic.Failed: error[E0201]: the config of `vit` has no `lyers`
    ...
    """
    check_arguments(spec=spec, config=config, set=set)
    return driver.check_spec(open_spec_argument(spec, config=config, given=set))


@errors_in_spec_syntax()
def compile(
    spec: str | Path,
    output: str | Path,
    *,
    weights: str | Path = "",
    init: int | None = None,
    init_missing: int | None = None,
    adapter: str | Path = "",
    config: str | Path = "",
    set: Mapping[str, object] | None = None,
    target: str = "ort-cpu",
    opset: int = 0,
    taps: Sequence[str] = (),
    context_length: int = 0,
    graph: str = "",
    weights_as: str = "",
    inline_defaults: bool = False,
    graphs: str | Sequence[str] = (),
    io_names: str = "specc",
    generation_config: Mapping[str, object] | None = None,
    quantize: str = "",
    quantize_exclude: Sequence[str] = (),
    group_size: int | None = None,
    lm_head_bits: int | str = "",
    quantize_all: bool = False,
    calibration_samples: int | None = None,
    calibration_data: str | Path = "",
    kv_cache: str = "",
    fold_norms: bool = False,
    for_quantizers: bool = False,
    dtype: str = "",
    force: bool = False,
) -> CompileReport:
    """Compile a spec to the ONNX model `output`; options are those of `specc compile`.
    `graphs` writes a package; `generation_config` is for its `generate` graph; `force`
    replaces what specc did not write.

    >>> specc.compile("xor", "xor.onnx")
    <specc compiled xor: xor.onnx, 1 file, ...>
    """
    given = dict(locals())  # all of them, before anything else has a name
    check_arguments(**given)
    chosen = parse_graph_names(graphs)
    _check_generation_config(generation_config, chosen)
    options = compile_options(given, chosen)
    return compile_model(_open(spec, config, set, options.weights, context_length), options)


class Model(ModelHandle):
    """A compiled model, or a package: `run` computes the whole graph, `generate` writes.

    `with specc.load(…) as model:` lets go of it in the end. Several threads may use one
    model at the same time; a `GenerationStream` belongs to the thread that iterates it.
    """

    @overload
    def run(self, batches: Iterable[Mapping[str, object]], /) -> Iterator[Results]: ...

    @overload
    def run(self, **inputs: object) -> Results: ...

    def run(self, *batches: object, **inputs: object) -> Results | Iterator[Results]:
        """The results by name for these inputs: arrays, nested lists, texts, pictures.
        Of batches, each a mapping of inputs by name, the results of one after another,
        made when they are asked for.

        >>> model = specc.load("xor.onnx")
        >>> model.run(x=[[0, 1], [1, 1]])["y"].tolist()
        [[1.0], [0.0]]
        >>> [made["y"].item() for made in model.run({"x": [[a, 1]]} for a in (0, 1))]
        [1.0, 0.0]

        A model with a head for text takes `text=…` (`text_pair=`, `question=` and
        `context=`, `image=` and `candidate_labels=`; docs/tasks.md): the result is a
        `specc.runtime.task_runner.Predictions`, whose `predictions` are labels, spans, answers,
        candidates or vectors, one for each text.

        E09xx on inputs it cannot take.
        """
        if self.scoring is not None and self.scoring.manifest.decodes is not None:
            raise_error(
                "E0832",
                "this model decodes by itself and has no other results",
                helps=["use `generate`"],
            )
        if not batches and is_task_input(self.whole, inputs):
            return run_task(self.whole, inputs)
        if batches:
            return run_batches(self.whole, batches, inputs)
        return self.whole.run(**inputs)

    def fixed(self, **lengths: int) -> LoadedModel:
        """The whole graph for inputs of one length alone: `model.fixed(batch=8)`, which
        runs as this does. What is reckoned with lengths is then settled beforehand, and a
        card records the run and plays it again (a CUDA graph).

        E0981 unless every length of an input is named.
        """
        return fix_lengths(self.whole, lengths)

    def attention(self, **inputs: object) -> tuple[Results, AttentionWeights]:
        """The results, and the weights of every attention by its scope: [batch, heads,
        query, key].
        """
        return self.whole.attention(**inputs)

    def generate(self, *given: object, **settings: object) -> GenerationStream:
        """Write behind what is given: see `specc.runtime.generator.Generator.generate`. E0701 for
        a model that does not.
        """
        return _writing(self).generate(*given, **settings)

    def generate_each(
        self,
        rows: Iterable[object],
        *,
        batch_size: int = DEFAULT_BATCH_SIZE,
        **settings: Unpack[GenerationArguments],
    ) -> Iterator[GenerationResult | Diagnostic]:
        """Write behind each of any number of rows: an iterator in, an iterator out, in
        order; for a bad row what is wrong with it. See `specc.runtime.generate_each`.

        `batch_size` texts stand beside each other, and one that has ended makes room for the
        next. E0701 for a model that does not write, E0891 for a count that is none.
        """
        writer = _writing(self)
        return generate_each(writer, rows, batch_size, writer.chosen(settings))

    def stream(self, **once: object) -> InputStream:
        """Begin a stream, to which rows are `push`ed as they come; `once` are the inputs
        that are the same for all. E0977 for a model that is not streamed.
        """
        return open_stream(self.opened).begin(**once)

    def map(
        self,
        *data: str | Path,
        out: str | Path,
        columns: Mapping[str, str] | None = None,
        keep_columns: Sequence[str] | None = None,
        raw: Sequence[str] = (),
        output_format: str = "",
        engine: str = "local",
        workers: int = 0,
        max_errors: int | None = None,
        **settings: Unpack[GenerationArguments],
    ) -> JobReport:
        """Rows of files in, rows of files out: `specc map` (docs/batch-inference.md).

        `columns` names the column of each input, `settings` are those of writing. What
        a former run has done in the folder `out` is not done again. Fails with E0870 to
        E0888, and with E0970 for arguments that are none.
        """
        check_job_arguments(
            data=data,
            out=out,
            columns=columns,
            keep_columns=keep_columns,
            raw=raw,
            output_format=output_format,
            engine=engine,
            workers=workers,
            max_errors=max_errors,
        )
        job = JobRequest(
            model=str(self.opened.path),
            data=[os.fspath(path) for path in data],
            out=os.fspath(out),
            columns=dict(columns or {}),
            keep=keep_columns,
            settings=dict(settings),
            raw=tuple(raw),
            graph=self.opened.graph,
            provider=self.opened.provider,
            to=output_format,
            workers=workers,
            engine=engine,
            most_errors=max_errors,
        )
        return run_job(job)

    def chat(self, messages: object, **settings: Unpack[GenerationArguments]) -> GenerationStream:
        """Write what comes next in a chat: a text that the user says, or messages with
        `role` and `content`. E0423 to E0426 where there is no template for it.
        """
        ids = encode_chat(self.entrance, messages)
        return self.generate(**{self.entrance.growing: [ids]}, **settings)


def _writing(model: Model) -> Generator:
    """What writes. E0701 where nothing does."""
    if model.writer is None:
        raise_error(
            "E0701", "this model does not generate", helps=["compile a spec that says `generate`"]
        )
    return model.writer


def load(model: str | Path, *, execution_provider: str = "cpu", threads: int = 0) -> Model:
    """Open a compiled model, or a package, on an execution provider: `cpu`, `cuda`, …
    There is no silent fall-back.

    >>> with specc.load("xor.onnx") as model:
    ...     model
    <specc model xor, predict: x f32[batch, 2] -> y f32[batch, 1], cpu>
    """
    check_arguments(model=model, execution_provider=execution_provider, threads=threads)
    refuse_uncompiled(model)
    opened = Model(open_compiled(model, provider=execution_provider, threads=threads))
    # now, so that what cannot be opened is said here and not at the first use
    _ = opened.scoring, opened.writer, opened.opened.streamer
    return opened


def _check_generation_config(settings: object, parts: Sequence[str]) -> None:
    """E0731 for settings that are none, E0753 for settings of a model that does not
    decode by itself.
    """
    if settings is not None and not isinstance(settings, Mapping):
        raise_error(
            "E0731",
            f"settings of generation have names, {escape_text(repr(settings))[:60]} has none",
        )
    if settings and "generate" not in parts:
        raise_error(
            "E0753",
            "`generation_config` is for a model that decodes by itself, and none is asked for",
            helps=['add "generate" to `graphs`', "or pass the settings to `generate`"],
        )


def _open(
    spec: str | Path,
    config: str | Path,
    given: Mapping[str, object] | None,
    weights: str,
    longest: int,
) -> driver.OpenedSpec:
    return open_spec_argument(
        spec, config=config, given=given, weights=weights, longest=int(longest)
    )
