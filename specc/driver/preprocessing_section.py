"""Read the `reading { ... }` section: preprocessing of inputs and postprocessing of outputs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Label, Span, SpeccError, raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.spec_modules import Program
from specc.huggingface.audio_and_ctc_processor_files import (
    find_word_vocabulary_file,
    list_audio_processor_files,
    list_unused_preprocessor_keys,
    read_audio_options,
    read_ctc_transcript_options,
    read_preprocessor_config,
)
from specc.huggingface.hub_download_and_chat_templates import (
    find_tokenizer_file,
    list_chat_template_files,
    read_checkpoint_tokenizer,
    read_tokenizer_file,
)
from specc.huggingface.image_processor_config import (
    find_preprocessor_config,
    iterate_image_config_remarks,
    read_image_options,
)
from specc.huggingface.tokenizer_config import describe_ignored_settings
from specc.io.file_type_detection import is_gguf_path
from specc.io.json_io import JsonReader, parse_tagged_record, to_json_value
from specc.io.safe_read import escape_text, read_required_file
from specc.ir.model_definition import ModelDefinition
from specc.preprocessing.preprocessing_config import (
    PreprocessingConfig,
    adapt_output_format_to_rank,
)
from specc.preprocessing.preprocessing_records import (
    AUDIO_TAGS,
    INPUT_RECORDS,
    OUTPUT_RECORDS,
    TEXT_TAGS,
    WordTokenizer,
)
from specc.preprocessing.tokenizer_files import TOKENIZER_FILE, TokenizerFile
from specc.preprocessing.vocabulary import (
    explain_unreachable_tokens,
    find_unreachable_tokens,
    parse_vocabulary,
)
from specc.syntax import ast
from specc.syntax.parse import decode_spec

MAX_LISTED = 8
"""Maximum number of tokens that a warning about unreachable tokens lists."""
MAX_VOCABULARY_BYTES = 16 * 2**20
FILE_ERROR_CODES = frozenset({"E0802", "E0940"})
"""Error codes for missing or unreadable files and for missing Python packages."""
FILE_READINGS = ("characters", "words", "tokenizer")
"""Preprocessing functions whose argument can be the name of a file."""
OPTIONS_ONLY = {"image": "size=[8, 8], channels=1", **dict.fromkeys(AUDIO_TAGS, "rate=16000")}
"""Preprocessing functions without positional arguments, each with an example of its options."""
_NO_VOCABULARY = object()
"""Sentinel for a missing tokenizer or vocabulary."""


@dataclass(frozen=True)
class _PreprocessingContext:
    """The location of a `reading` entry, and data shared by all entries. File paths are relative to
    `directory`, the spec's directory. `paths` are the directories passed at compile time, and
    `language` is the language of an adapter. `files` caches the contents of tokenizer files, keyed
    by SHA-256 hash.
    """

    directory: Path
    span: Span | None
    paths: tuple[Path, ...] = ()
    language: str = ""
    files: dict[str, TokenizerFile] = field(default_factory=dict)


def build_preprocessing_config(
    program: Program, model: ModelDefinition, paths: Sequence[Path] = (), language: str = ""
) -> PreprocessingConfig:
    """Build the preprocessing of each input and the postprocessing of each output.

    File paths are relative to the spec file that contains them. `language` selects a part of a
    multilingual vocabulary. `text(tokenizer())` uses the first tokenizer.json in `paths`, a list of
    directories and GGUF files. Without a tokenizer.json, the model takes token ids as input.
    """
    spans = _find_entry_spans(program)
    spec_directories = {m.path: m.directory for m in program.chain}
    base = _PreprocessingContext(Path(), None, tuple(paths), language)

    def read_record(name: str, data: Any, records: Any) -> Any:
        context = replace(base, directory=spec_directories[data["home"]], span=spans.get(name))
        record = _resolve_arguments({k: v for k, v in data.items() if k != "home"}, context)

        def raise_entry_error(path: tuple[str, ...], problem: str) -> NoReturn:
            span = spans.get(name)
            if path == ("kind",):
                choices = problem.removeprefix("is not one of ").split(", ")
                kind = record["kind"]
                helps = suggest_similar_name(kind, choices, f"expected one of {', '.join(choices)}")
                raise_error("E0203", f"unknown reading `{escape_text(kind)}`", span, helps=helps)
            raise_error("E0203", f"`{'.'.join(path) or name}` {problem}", span)

        if record.get("absent") is _NO_VOCABULARY:
            return None
        if records is OUTPUT_RECORDS and record["kind"] in TEXT_TAGS:
            # as postprocessing, a tokenizer decodes the output to text
            record = {"kind": "text", "vocabulary": record}
        fields = JsonReader(record, report_error=raise_entry_error, shared=context.files)
        return parse_tagged_record(fields, records)

    inputs = [(n, read_record(n, d, INPUT_RECORDS)) for n, d in model.input_configs.items()]
    output_entries = model.output_formats.items()
    outputs = [(n, read_record(n, d, OUTPUT_RECORDS)) for n, d in output_entries]
    ranks = {name: len(v.shape) for name, v in model.graph.outputs.items()}
    return PreprocessingConfig(
        tuple(item for item in inputs if item[1] is not None),
        tuple(
            (n, adapt_output_format_to_rank(r, ranks.get(n, 0)))
            for n, r in outputs
            if r is not None
        ),
    )


def _find_entry_spans(program: Program) -> dict[str, Span | None]:
    """Return the source span of each `reading` entry, keyed by the name of the input or output."""
    items = (item for item, _ in program.iterate_items(ast.PreprocessingSection))
    return {entry.name: entry.span for item in items for entry in item.entries}


def check_preprocessing_section(program: Program, model: ModelDefinition) -> list[Diagnostic]:
    """Return the errors in a spec's `reading` section, except errors about missing files."""
    empty = replace(model, input_configs={}, output_formats={})
    entries = [replace(empty, input_configs={n: d}) for n, d in model.input_configs.items()]
    entries += [replace(empty, output_formats={n: d}) for n, d in model.output_formats.items()]
    errors: list[Diagnostic] = []
    for entry in entries:
        try:
            build_preprocessing_config(program, entry)
        except SpeccError as failed:
            errors += [d for d in failed.diagnostics if d.code not in FILE_ERROR_CODES]
    return errors


def find_tokenizer_directories(*paths: str) -> tuple[Path, ...]:
    """Return the paths that may contain a tokenizer: GGUF files, and directories, including that of
    a config.json.
    """
    directories = []
    for path in dict.fromkeys(p.removesuffix("/config.json") for p in paths if p):
        try:
            directories += [Path(path)] if is_gguf_path(path) or Path(path).is_dir() else []
        except (OSError, ValueError):
            # an invalid path is reported when the weights are opened
            continue
    return tuple(directories)


def describe_preprocessing_files(model: ModelDefinition, paths: Sequence[Path]) -> tuple[str, ...]:
    """Return remarks on the tokenizer, vocabulary and audio settings that were found in `paths`."""
    if not paths:
        return ()
    kinds = [e["kind"] for e in model.input_configs.values() if isinstance(e, dict)]
    return (
        *_describe_audio_settings(model, paths),
        *(iterate_image_config_remarks(paths) if "image" in kinds else ()),
        *_describe_text_files(
            model, paths, "tokenizer", find_tokenizer_file(paths), TOKENIZER_FILE
        ),
        *_describe_text_files(
            model, paths, "words", find_word_vocabulary_file(paths), "vocabulary"
        ),
    )


def _describe_text_files(
    model: ModelDefinition, paths: Sequence[Path], kind: str, path: Path | None, noun: str
) -> Iterator[str]:
    """Yield a remark on the tokenizer or vocabulary file that is used by default."""
    entries = (*model.input_configs.items(), *model.output_formats.items())
    names = [name for name, data in entries if _needs_checkpoint_file(data, kind)]
    if names and path is not None:
        yield f"the {kind} {'are' if kind == 'words' else 'is'} `{escape_text(path)}`"
        if kind == "tokenizer" and not is_gguf_path(path):
            file = read_tokenizer_file(path, str(path), None)
            yield from describe_ignored_settings(path.parent, file.json_text)
    elif names:
        noun = "supported tokenizer" if is_gguf_path(paths[0]) else noun
        ids = f"`{names[0]}` expects token ids, not text"
        yield f"`{escape_text(paths[0])}` has no {noun}: {ids}"


def _describe_audio_settings(model: ModelDefinition, paths: Sequence[Path]) -> Iterator[str]:
    """Yield remarks on the audio settings in use, and on ignored keys of the settings file."""
    entries: list[Any] = [*model.input_configs.values()]
    kinds = [e["kind"] for e in entries if isinstance(e, dict) and e["kind"] in AUDIO_TAGS]
    path, _ = read_preprocessor_config(paths) if kinds else (None, {})
    if path is None:
        return
    yield f"audio settings are from `{escape_text(path)}`"
    for key in list_unused_preprocessor_keys(kinds[0], paths):
        yield f"`{escape_text(key)[:60]}` in `{escape_text(path)}` is ignored"


def list_preprocessing_files(
    program: Program, model: ModelDefinition, paths: Sequence[Path]
) -> list[Path]:
    """Return the files that preprocessing loads: vocabularies, tokenizers and audio settings."""
    spec_directories = {m.path: m.directory for m in program.chain}
    files = [find_tokenizer_file(paths), find_preprocessor_config(paths)]
    if files[0] is not None:
        files += list_chat_template_files(files[0].parent)
    entries: list[Any] = [*model.input_configs.values(), *model.output_formats.values()]
    for data in entries:
        files += list_audio_processor_files(data.get("kind", ""), paths)
        files += [find_word_vocabulary_file(paths)] if _needs_checkpoint_file(data, "words") else []
        files += [spec_directories[data["home"]] / name for name in _iterate_named_files(data)]
    return [*filter(None, files)]


def _iterate_named_files(data: Any) -> Iterator[str]:
    """Yield the file names in the arguments of a preprocessing call and of its nested calls."""
    if isinstance(data, dict) and "kind" in data:
        for argument in data.get("args", ()):
            is_name = isinstance(argument, str) and data["kind"] in FILE_READINGS
            # file names cannot contain null bytes
            if is_name and "\0" not in argument:
                yield argument
            yield from _iterate_named_files(argument)


def _needs_checkpoint_file(data: object, kind: str) -> bool:
    """Return True if preprocessing uses a tokenizer or vocabulary from the checkpoint."""
    if isinstance(data, dict) and data.get("kind") == "text" and data.get("args"):
        data = data["args"][0]
    return isinstance(data, dict) and data.get("kind") == kind and not data.get("args")


def _resolve_arguments(data: Mapping[str, Any], context: _PreprocessingContext) -> dict[str, Any]:
    """Convert a preprocessing call, such as `text(characters("x.vocab"))` or `choice(labels)`, to a
    JSON-compatible record in which each positional argument becomes a named field.
    """
    record = {k: v for k, v in data.items() if k != "args"}
    args, kind = list(data.get("args", ())), record["kind"]
    if args and kind in OPTIONS_ONLY:
        example = f"{kind}({OPTIONS_ONLY[kind]})"
        raise_error("E0211", f"`{kind}` accepts only options: {example}", context.span)
    match kind:
        case "choice" | "class_map" | "boxes" if args:
            record["labels"] = _check_labels(args[0], kind, context.span)
        case "text" if args:
            return _resolve_text(args[0], record, context)
        case "characters" if args:
            record["vocab"] = _resolve_vocabulary(args[0], context)
        case "words":
            record |= _resolve_words(args, context)
        case "tokenizer":
            record |= _resolve_tokenizer(args, context)
        case "transcript":
            return _resolve_transcript(args, record, context)
        case "picture" if args:
            if not isinstance(args[0], dict):
                title = "`picture` requires the `image(…)` whose normalization it inverts"
                raise_error("E0203", title, context.span)
            record["image"] = _resolve_arguments(args[0], context)
        case "image":
            record = read_image_options(record, context.paths, context.span)
        case _ if kind in AUDIO_TAGS:
            return read_audio_options(kind, record, context.paths, context.span)
    return record


def _check_labels(labels: object, kind: str, span: Span | None) -> list[str]:
    if not isinstance(labels, list):
        helps = [f'write `{kind}(["cat", "dog"])`, or name a config list']
        raise_error("E0203", f"the labels of `{kind}` must be a list", span, helps=helps)
    return [*map(str, labels)]


def _resolve_text(
    vocabulary: Any, options: dict[str, Any], context: _PreprocessingContext
) -> dict[str, Any]:
    if not isinstance(vocabulary, dict):
        examples = 'text(characters("x.vocab")), text(words("x.vocab")), text(bytes()), '
        title = f'`text` requires a vocabulary or tokenizer: {examples}text(tokenizer("x.json"))'
        raise_error("E0203", title, context.span)
    record = _resolve_arguments(vocabulary, context)
    other_options = {k: v for k, v in options.items() if k != "kind"}
    return {**record, **other_options}


def _resolve_vocabulary(source: object, context: _PreprocessingContext) -> list[str]:
    if isinstance(source, list):
        return _check_vocabulary_texts(source, context.span)
    return _read_vocabulary_file(_resolve_path(str(source), context), str(source), context.span)


def _check_vocabulary_texts(tokens: Sequence[object], span: Span | None) -> list[str]:
    """Return the entries of a vocabulary list. Raise E0985 if an entry is not a string."""
    for token in tokens:
        if not isinstance(token, str):
            text = escape_text(json.dumps(token, default=str))[:60]
            helps = ['write a list of strings: ["one", "two"]']
            if isinstance(token, int | float):
                helps = [f'quote a token that is a number: "{text}"']
            raise_error("E0985", f"`{text}` in a vocabulary is not a string", span, helps=helps)
    return [token for token in tokens if isinstance(token, str)]


def _read_vocabulary_file(path: Path, name: str, span: Span | None) -> list[str]:
    """Read the tokens of a vocabulary file, which is called `name` in messages."""
    description = f"the vocabulary `{escape_text(name)}`"
    data = read_required_file(path, MAX_VOCABULARY_BYTES, description, span)
    return list(parse_vocabulary(decode_spec(data, name)))


def _resolve_words(args: list[Any], context: _PreprocessingContext) -> dict[str, Any]:
    """Return the vocabulary from a file, from a list, or from the file next to the weights. Return
    `absent` for an empty list or a missing vocabulary. The user can provide a vocabulary later.
    """
    if args == [[]]:
        return {"absent": _NO_VOCABULARY}
    if args:
        return {"vocab": _resolve_vocabulary(args[0], context)}
    path = find_word_vocabulary_file(context.paths, context.span)
    if path is None:
        return {"absent": _NO_VOCABULARY}
    return {"vocab": _read_vocabulary_file(path, path.name, context.span)}


def _resolve_transcript(
    args: list[Any], options: dict[str, Any], context: _PreprocessingContext
) -> dict[str, Any]:
    """Return the fields of a transcript, including its tokens, or `absent` if it has no tokens."""
    if args:
        return {**options, "vocab": _resolve_vocabulary(args[0], context)}
    # the pad token of the tokenizer is the CTC blank
    fields = read_ctc_transcript_options(context.paths, context.span, context.language)
    return {**options, **({"absent": _NO_VOCABULARY} if fields is None else fields)}


def _resolve_tokenizer(args: list[Any], context: _PreprocessingContext) -> dict[str, Any]:
    """Return the fields of a tokenizer, or `absent` if there is no tokenizer."""
    if len(args) > 1 or not all(isinstance(a, str) for a in args):
        fix = (
            'write `tokenizer("tokenizer.json")`, or `tokenizer()` for the file next to the weights'
        )
        raise_error("E0203", "`tokenizer` accepts one file name", context.span, helps=[fix])
    path = _resolve_path(args[0], context) if args else find_tokenizer_file(context.paths)
    if path is None:
        return {"absent": _NO_VOCABULARY}
    if args:
        file, chat = read_tokenizer_file(path, args[0], context.span), None
    else:
        file, chat = read_checkpoint_tokenizer(path, context.span)
    context.files[file.sha256] = file
    return {"file": file.sha256, **({"chat": to_json_value(chat)} if chat else {})}


def _resolve_path(name: str, context: _PreprocessingContext) -> Path:
    """Resolve a file path. Raise E0803 if the path is outside the directory of the spec."""
    try:
        path = (context.directory / name).resolve()
    # `resolve` raises RuntimeError for a cycle of symbolic links
    except (OSError, ValueError, RuntimeError):
        raise_error("E0802", f"`{escape_text(name)[:200]}` is not a file name", context.span)
    if not path.is_relative_to(context.directory.resolve()):
        title = f"`{escape_text(name)}` is outside the directory of the spec"
        helps = ["move it to that directory or a subdirectory"]
        raise_error("E0803", title, context.span, helps=helps)
    return path


def warn_about_unreachable_tokens(
    program: Program, config: PreprocessingConfig
) -> Iterator[Diagnostic]:
    """Yield W0756 for each input whose vocabulary has tokens that no text can produce."""
    spans = _find_entry_spans(program)
    for name, record in config.inputs:
        if isinstance(record, WordTokenizer) and (words := find_unreachable_tokens(record)):
            span = spans.get(name)
            listed = ", ".join(f"`{escape_text(word[:40])}`" for word in words[:MAX_LISTED])
            more = f" and {len(words) - MAX_LISTED} more" if len(words) > MAX_LISTED else ""
            yield Diagnostic(
                "W0756",
                f"the tokenizer of `{name}` can never produce the tokens {listed}{more}",
                Label.from_span(span, "tokenized with this vocabulary"),
                notes=tuple(explain_unreachable_tokens(record, words)),
                helps=("write the tokens as they occur in texts",),
                severity="warning",
            )
