"""Open a spec with its config: a path, a name, source text, or a checkpoint directory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specc.diagnostics.diagnostic import Diagnostic, Source, SpeccError, raise_error
from specc.driver.config_json_check import (
    check_model_type,
    warn_about_context_limits,
    warn_about_unused_keys,
)
from specc.driver.sentence_transformers import (
    SentenceTransformersSpec,
    build_sentence_transformers_spec,
    find_encoder_directory,
    wrap_encoder_config,
)
from specc.frontend.config_values import ConfigReadOptions
from specc.frontend.json_parser_with_spans import JsonObject
from specc.frontend.spec_inheritance_and_config_overrides import (
    iterate_config_literals,
    parse_config_assignments,
)
from specc.frontend.spec_modules import Program, assign_config_values, build_program
from specc.frontend.used_specs import can_read_hf_config, select_spec_alternatives
from specc.huggingface import model_family
from specc.huggingface.hub_download_and_chat_templates import download_model
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.library.spec_file_lookup import (
    SpecLibrary,
    disambiguate_spec_path,
    find_shadowed_spec_path,
    format_shadowing_note,
    is_builtin_spec,
)
from specc.syntax.parse import convert_help_snippets_to_yaml

if TYPE_CHECKING:
    from specc.huggingface.quantization_config import CheckpointQuantization


@dataclass
class LoadedSpec:
    """An opened spec: its syntax trees, its spec library, and the options for reading the
    config.
    """

    program: Program
    library: SpecLibrary
    config_options: ConfigReadOptions
    spec_name: str
    config_file: str = ""
    remarks: tuple[str, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    checkpoint: str = ""
    """The checkpoint directory, if the caller passes a directory instead of a spec."""
    repository: str = ""
    """The directory passed by the caller: `checkpoint` or a parent directory of `checkpoint`."""
    module_weights: Mapping[str, str] = field(default_factory=dict)
    """Weight directories of additional modules, by tensor name prefix."""
    quantization: "CheckpointQuantization | None" = None
    """The quantization of the checkpoint's weights according to its config.json."""
    graphs: dict[str, Graph | None] = field(default_factory=dict, init=False, repr=False)
    """Graphs built by `iterate_sibling_graphs`, keyed by name. None marks a graph that cannot be
    built.
    """


def open_spec(
    spec: str | Source,
    *,
    config: str = "",
    config_settings: Sequence[str] = (),
    weights: str = "",
    checkpoint_spec: str = "",
    context_length: int = 0,
    library: SpecLibrary | None = None,
) -> LoadedSpec:
    """Read a spec, the specs that it extends, a config file and the values of `--set`.

    The config.json of a checkpoint directory `weights` is used if the spec supports config.json and
    no config file is given. `spec` may itself be a checkpoint directory, whose config.json selects
    the built-in spec unless `checkpoint_spec` is given. A `Source` contains the source text of a
    spec. `context_length` is the maximum sequence length, on which some RoPE variants depend.
    `library` resolves the specs that this spec uses.
    """
    library = library or SpecLibrary()
    spec, download_remarks = (spec, ()) if isinstance(spec, Source) else download_model(spec)
    directory = _find_checkpoint_directory(spec)
    encoder = find_encoder_directory(directory)
    remarks: tuple[str, ...]
    spec_name = _get_display_name(spec)
    wrapped = None
    if not checkpoint_spec:
        wrapped = build_sentence_transformers_spec(
            directory, lambda name: build_program(library.load_spec(name), library)
        )
    if directory:
        config = config or encoder
        source = wrapped.source if wrapped else checkpoint_spec
        spec = source or model_family.find_spec_for_checkpoint(config)
        reader_name = escape_text(_get_display_name(spec))
        remark = f"checkpoint `{escape_text(directory)}`: using the spec `{reader_name}`"
        remarks = wrapped.remarks if wrapped else (remark,)
    else:
        remarks = _describe_named_spec(spec_name, checkpoint_spec)
    program = build_program(library.load_spec(spec), library)
    if not config and can_read_hf_config(program) and model_family.has_checkpoint_config(weights):
        config = weights
        remarks += (f"config values are from {model_family.describe_config_source(weights)}",)
    data = _load_config(config, wrapped)
    program = program if data is None else select_spec_alternatives(program, data)
    program = assign_config_values(program, parse_config_assignments(config_settings))
    reader, remarks = ConfigReadOptions(max_length=context_length), download_remarks + remarks
    loaded = LoadedSpec(program, library, reader, spec_name, config, remarks, checkpoint=encoder)
    loaded.repository = directory
    loaded.module_weights = wrapped.weight_path_by_prefix if wrapped else {}
    return loaded if data is None else _apply_config(loaded, data)


def _describe_named_spec(name: str, checkpoint_spec: str) -> tuple[str, ...]:
    """Return notes that say where the spec was found. Raise E0222 if `checkpoint_spec` is set."""
    if checkpoint_spec:
        path = escape_text(find_shadowed_spec_path(name))
        hint = f"`{name}` names the built-in spec; write `{path}` for the directory"
        raise_error(
            "E0222",
            "`--spec` requires a checkpoint directory with a config.json, and "
            f"`{escape_text(name)}` is not one",
            helps=[hint if path else "pass only the spec, or a checkpoint directory with --spec"],
        )
    return (note,) if (note := format_shadowing_note(name)) else ()


def _load_config(
    config: str, wrapped_encoder: SentenceTransformersSpec | None
) -> JsonObject | None:
    """Load the config file, nested as in the spec, or return None if there is no config file."""
    data = model_family.load_checkpoint_config(config) if config else None
    return wrap_encoder_config(data) if data is not None and wrapped_encoder else data


def _get_display_name(spec: str | Source) -> str:
    """Return the display name of a spec for messages."""
    return spec.name if isinstance(spec, Source) else spec


def _find_checkpoint_directory(spec: str | Source) -> str:
    """Return the checkpoint directory that is passed as a spec, or "" for other paths and names."""
    if isinstance(spec, Source) or is_builtin_spec(spec):
        return ""
    return spec if model_family.has_checkpoint_config(find_encoder_directory(spec)) else ""


def _apply_config(spec: LoadedSpec, data: JsonObject) -> LoadedSpec:
    """Return the spec with the values of a config.json and warnings about unused keys."""
    # import lazily, because weight formats import NumPy, which a spec without a config.json does
    # not need
    from specc.huggingface.quantization_config import read_quantization_config

    family = check_model_type(spec.program, data)
    quantization = read_quantization_config(data)
    # check for unused keys only if the spec declares the model_type of the file
    return replace(
        spec,
        config_options=replace(spec.config_options, config_file=data),
        quantization=quantization,
        remarks=spec.remarks + (quantization.remarks if quantization else ()),
        warnings=(
            *(warn_about_unused_keys(spec.program, data) if family else ()),
            *(
                []
                if spec.config_options.max_length
                else warn_about_context_limits(spec.program, data)
            ),
        ),
    )


SPEC_TEXT_NAME = "<spec>"
"""The name that messages use for a spec passed as source text in Python."""


@contextmanager
def translate_errors_to_spec_syntax() -> Iterator[None]:
    """A context manager that translates code in help messages to the syntax of the spec file."""
    try:
        yield
    except SpeccError as failed:
        raise SpeccError(*convert_help_snippets_to_yaml(failed.diagnostics)) from failed.__cause__


def open_spec_argument(
    spec: str | Path,
    *,
    config: str | Path = "",
    config_values: Mapping[str, object] | None = None,
    weights: str = "",
    context_length: int = 0,
) -> LoadedSpec:
    """Open a spec with the given config values.

    A multi-line string is the source text of a spec. File paths in the source text are relative to
    the current directory. A `Path` is never interpreted as the name of a built-in spec. Raise E0203
    if a value cannot be written as a literal of the spec language.
    """
    # a `Path` is a file path even if it equals the name of a built-in spec
    spec_name = spec if isinstance(spec, str) else disambiguate_spec_path(str(spec))
    # a string with line breaks is source text, not a path
    is_source_text = isinstance(spec, str) and "\n" in spec
    return open_spec(
        Source(SPEC_TEXT_NAME, spec_name) if is_source_text else spec_name,
        config=str(config) if config else "",
        config_settings=[
            f"{name}={value}" for name, value in iterate_config_literals("", config_values or {})
        ],
        weights=weights,
        context_length=context_length,
    )
