"""Find and read spec files, including used and extended files, and config.json files."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import NoReturn

from specc.diagnostics.diagnostic import Source, Span, raise_error
from specc.diagnostics.suggest import find_similar_name, suggest_similar_name
from specc.frontend.elaboration_context import SpecNamespace
from specc.frontend.json_parser_with_spans import (
    JsonObject,
    decode_config_source,
    parse_config_json,
)
from specc.frontend.spec_modules import build_module
from specc.io import safe_read
from specc.io.json_io import NO_LIMITS, parse_strict_json
from specc.io.safe_read import UnreadableFileError, escape_text, read_regular_file, resolve_symlinks
from specc.library.std_library import StdLibrary, read_spec_source
from specc.syntax import ast
from specc.syntax.parse import guess_syntax, parse_spec

MAX_CONFIG_BYTES = 16 << 20
CONFIG_FILE_NAME = "config.json"


CONFIG_HELP = "pass the path of a config.json, or of the directory that contains it"


def load_config_json(path: str | Path, help: str = CONFIG_HELP) -> JsonObject:
    """Read a config file, or the config.json of a directory. Raise E0802 or E0410 to E0415."""
    path = Path(path)
    try:
        if path.is_dir():
            path = path / CONFIG_FILE_NAME
        data = read_regular_file(path, MAX_CONFIG_BYTES)
    except (UnreadableFileError, OSError, ValueError) as error:
        reason = error.reason if isinstance(error, UnreadableFileError) else "not a valid file name"
        raise_error(
            "E0802",
            f"cannot read the configuration `{escape_text(str(path))}`: {reason}",
            helps=safe_read.suggest_similar_path(path, has_config_json) or [help],
        )
    return parse_config_json(decode_config_source(data, escape_text(str(path))))


def has_config_json(directory: str | Path) -> bool:
    """Return True if a path is a directory with a config.json. Return False for "" or a file."""
    try:
        return (
            bool(directory)
            and Path(directory).is_dir()
            and (Path(directory) / CONFIG_FILE_NAME).exists()
        )
    except (OSError, ValueError):
        return False


SPEC_SUFFIXES = (".specc", ".yaml", ".yml")


def get_specs_directory() -> Path:
    """Return the specs directory: `specc/_specs` in a wheel or `<checkout>/specs` in a checkout."""
    package_directory = Path(__file__).parents[1] / "_specs"
    return package_directory if package_directory.is_dir() else Path(__file__).parents[2] / "specs"


@cache
def find_builtin_specs() -> Mapping[str, Path]:
    """Return the paths of the built-in specs by name."""
    return {
        p.stem: p
        for p in sorted((get_specs_directory() / "models").iterdir())
        if p.suffix in SPEC_SUFFIXES
    }


def is_builtin_spec(spec: str) -> bool:
    """Return True if a SPEC argument is the name of a built-in spec rather than a path."""
    return spec in find_builtin_specs()


def disambiguate_spec_path(name: str) -> str:
    """Return `./llama` for the name `llama` of a built-in spec, and any other path unchanged."""
    return os.path.join(".", name) if is_builtin_spec(name) else name


def find_shadowed_spec_path(spec: str) -> str:
    """Return the path, such as `./llama`, of a file that has the name of a built-in spec, or ""."""
    if is_builtin_spec(spec) and os.path.lexists(spec):
        return disambiguate_spec_path(spec)
    return ""


def format_shadowing_note(spec: str) -> str:
    """Return a note about a file or directory that has the same name as a built-in spec, or ""."""
    path = find_shadowed_spec_path(spec)
    return path and (
        f"`{spec}` is the built-in spec; write `{path}` for the file or directory with that name"
    )


def _suggest_gguf_file(directory: str) -> str:
    """Suggest compiling a GGUF file in a directory, or return "" if the directory contains none."""
    files = map(safe_read.quote_argument, sorted(Path(directory).glob("*.gguf"))[:1])
    return "".join(f"compile the GGUF file: specc compile {file}" for file in files)


def _suggest_base_model(directory: str) -> str:
    """Suggest compiling the base model of a LoRA adapter, or return "" for other directories."""
    if not (Path(directory) / "adapter_config.json").is_file():
        return ""
    adapter = safe_read.quote_argument(directory)
    return f"merge this adapter into its base model: specc compile BASE --adapter {adapter}"


def suggest_sentence_transformers_directory(directory: str) -> str:
    """Suggest the parent directory of a sentence-transformers module, or return "" for other
    directories.
    """
    parent = Path(os.path.normpath(Path(directory, "..")))
    if not (parent / "modules.json").is_file():
        return ""
    return f"pass the sentence-transformers directory that contains it: `{escape_text(parent)}`"


def _raise_missing_config(directory: str) -> NoReturn:
    """Raise E0222 if a directory has no config.json."""
    cache_help = (
        _suggest_gguf_file(directory)
        or _suggest_base_model(directory)
        or suggest_sentence_transformers_directory(directory)
        or safe_read.suggest_cached_snapshot(Path(directory))
    )
    raise_error(
        "E0222",
        f"the checkpoint directory `{directory}` has no config.json",
        helps=[cache_help]
        if cache_help
        else [
            "download the config.json that belongs to the weights",
            f"or pass the spec: specc compile SPEC --weights {safe_read.quote_argument(directory)}",
        ],
    )


WEIGHT_FILES = {
    ".gguf": "a GGUF file contains its architecture: specc compile FILE",
    ".safetensors": "compile the directory with its config.json, or SPEC --weights FILE",
    **dict.fromkeys(
        (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".pkl"),
        "convert them to safetensors: `model.save_pretrained(DIR)` writes a directory to compile",
    ),
}
"""Help texts for passing a weight file instead of a spec, by file suffix."""


def _is_spec_path(path: Path) -> bool:
    """Return True for a path of a spec file, a GGUF file or a checkpoint directory."""
    return path.suffix in (*SPEC_SUFFIXES, ".gguf") or has_config_json(path)


def _raise_unknown_spec(spec: str, models: Iterable[str]) -> NoReturn:
    """Raise E0222 for a name that is neither a spec nor a directory."""
    if weights_help := WEIGHT_FILES.get(Path(spec).suffix.lower()):
        raise_error(
            "E0222", f"`{escape_text(spec)}` is a weights file, not a spec", helps=[weights_help]
        )
    list_help = f"`specc list specs` lists the {len([*models])} built-in specs"
    helps = suggest_similar_name(spec, models, list_help)
    if len(Path(spec).parts) > 1:
        # names of built-in specs do not contain these characters, so `spec` must be a path
        helps = ["check the path, which is relative to the working directory"]
    if not find_similar_name(spec, models):
        helps = safe_read.suggest_similar_path(Path(spec), _is_spec_path) or helps
    if hub_help := safe_read.suggest_local_model_path(spec):
        helps.append(hub_help)
    raise_error("E0222", f"`{spec}` is neither a spec file nor a built-in spec", helps=helps)


def _resolve_spec_path(path: Path, display_name: str, span: Span | None) -> Path:
    """Resolve the path of a spec. Raise E0802 if symbolic links form a cycle."""
    try:
        return resolve_symlinks(path)
    except UnreadableFileError as error:
        raise_error("E0802", f"the spec file `{display_name}` cannot be read: {error.reason}", span)


def read_spec_file(path: Path, display_name: str, span: Span | None = None) -> ast.File:
    """Parse a spec file. Raise E0802 for an unreadable file."""
    source = read_spec_source(path, display_name, span)
    _check_is_spec(source, span)
    return _parse_cached(source.name, source.text)


SPEC_KEYS = ("specc", "extends", "items", "dims")
"""Keys that identify specs. Every YAML or JSON spec contains one of them, or a string for `model`,
which is a map in many other files, such as tokenizer.json.
"""
YAML_SPEC_KEY = re.compile(
    rf"^[ \t]*[\"']?(?:(?:{'|'.join(SPEC_KEYS)})[\"']?[ \t]*:|"
    r"model[\"']?[ \t]*:[ \t]+[^\s#&{\[])",
    re.MULTILINE,
)
FLOW_MAPPING = re.compile(r"^[ \t]*[{?]", re.MULTILINE)
NOT_A_SPEC_HELP = "pass a spec, which begins with `specc 1`, or a checkpoint directory"


def _check_is_spec(source: Source, span: Span | None) -> None:
    """Raise E0222 for a file that is not a spec according to its suffix and content, such as a
    config.json or a README.md.
    """
    path = Path(source.name)
    if _has_spec_content(path.suffix.lower(), source.text):
        return
    help = NOT_A_SPEC_HELP
    if path.name == CONFIG_FILE_NAME:
        help = f"pass the directory that contains it: `{escape_text(path.parent)}`"
    raise_error("E0222", f"`{escape_text(source.name)}` is not a spec", span, helps=[help])


def _has_spec_content(suffix: str, text: str) -> bool:
    """Return False if the text of a file with the given suffix cannot be a spec."""
    match suffix:
        case ".json":
            try:
                keys = parse_strict_json(text, NO_LIMITS)
            except ValueError:  # the parser reports the error with its position
                return True
            return (
                not isinstance(keys, dict)
                or isinstance(keys.get("model"), str)
                or not keys.keys().isdisjoint(SPEC_KEYS)
            )
        case ".yaml" | ".yml":
            has_mapping = (YAML_SPEC_KEY.search(text), FLOW_MAPPING.search(text))
            # the parser reports E0114 for a DSL spec in a YAML file
            return not text.strip() or guess_syntax(text) == "specc" or any(has_mapping)
        case ".specc":
            return True
    match guess_syntax(text):
        case "yaml" if text.lstrip().startswith("{"):
            return _has_spec_content(".json", text)
        case "yaml":
            return YAML_SPEC_KEY.search(text) is not None
        case syntax:
            return syntax is not None or not suffix


@lru_cache(maxsize=256)
def _parse_cached(name: str, text: str) -> ast.File:
    """Parse the text of a spec. Syntax trees are immutable, so the result is cached."""
    return parse_spec(Source(name, text))


@cache
def _load_std() -> StdLibrary:
    """Load the standard library. The library is cached for all commands of a process."""
    return StdLibrary(get_specs_directory() / "std", get_specs_directory() / "std.json")


@dataclass
class SpecLibrary:
    """A loader of specs, which contains the standard library and caches the spec files that a
    command reads. `unsaved_texts` maps paths to the documents that are not yet saved in the editor,
    which take precedence over files.
    """

    modules: dict[Path, SpecNamespace] = field(default_factory=dict)
    unsaved_texts: Mapping[Path, str] = field(default_factory=dict)

    @cached_property
    def _std(self) -> Mapping[str, tuple[ast.Block | ast.AttentionDef, SpecNamespace]]:
        return _load_std()

    def find_std_item(self, name: str) -> tuple[ast.Block | ast.AttentionDef, SpecNamespace] | None:
        """Return the std block or definition `name` and its module, or None."""
        return self._std.get(name)

    def list_std_names(self) -> tuple[str, ...]:
        """Return the names of all std blocks and definitions."""
        return tuple(self._std)

    def load_spec(self, spec: str | Source) -> SpecNamespace:
        """Return the module of a built-in spec, spec file or source text. Raise E0222 or E0802."""
        if isinstance(spec, Source):
            return self._load_source(spec)
        if not spec:
            help = "pass the name of a built-in spec, or a path"
            raise_error("E0222", "expected a spec, got an empty string", helps=[help])
        models = find_builtin_specs()
        if spec in models:
            return self.load_module(models[spec], spec=models[spec].name)
        path = Path(spec)
        is_weights_file = path.suffix.lower() in WEIGHT_FILES
        if is_weights_file or (path.suffix not in SPEC_SUFFIXES and not path.is_file()):
            if path.is_dir() and not (path / "config.json").exists():
                _raise_missing_config(spec)
            _raise_unknown_spec(spec, models)
        return self.load_module(path, spec=spec)

    def _load_source(self, source: Source) -> SpecNamespace:
        """Return the module of a source text, whose paths are relative to the working directory."""
        _check_is_spec(source, None)
        module = build_module(parse_spec(source), source.name)
        module.directory = _resolve_spec_path(Path(), source.name, None)
        # use "\0" in the key, because no file name contains this character
        self.modules[module.directory / "\0"] = module
        return module

    def load_module(self, path: Path, spec: str, span: Span | None = None) -> SpecNamespace:
        """Return the cached module of the file `path`. `spec` is the file name in messages."""
        key = _resolve_spec_path(path, spec, span)
        # the cache key is the resolved path, because `./a.specc` and `a.specc` are one module
        if key not in self.modules:
            text = self.unsaved_texts.get(key)
            file = read_spec_file(path, spec, span) if text is None else _parse_cached(spec, text)
            module = build_module(file, spec)
            module.directory = key.parent
            # a built-in spec may be open as an unsaved document in an editor
            module.is_builtin = key == find_builtin_specs().get(key.stem) and not self.unsaved_texts
            self.modules[key] = module
        return self.modules[key]

    def load_imported_module(
        self, path: str, importer: SpecNamespace, span: Span | None
    ) -> SpecNamespace:
        """Return the module that a `use` or `extends` statement names: a built-in spec, or a file
        relative to `importer`. Raise E0222 for a file that does not exist, and E0803 for a file
        outside the directory that contains `importer`.
        """
        models = find_builtin_specs()
        used_path = Path(path)
        if used_path.suffix not in SPEC_SUFFIXES:
            if path in models:
                return self.load_module(models[path], models[path].name, span)
            # for a path without a suffix, try the suffixes in the order of `SPEC_SUFFIXES`
            existing_paths = [
                f"{path}{s}" for s in SPEC_SUFFIXES if (importer.directory / f"{path}{s}").is_file()
            ]
            if not existing_paths:
                helps = suggest_similar_name(path, models, f"built-in specs: {', '.join(models)}")
                raise_error(
                    "E0222",
                    f"`{path}` is neither a spec file nor a built-in spec",
                    span,
                    helps=helps,
                )
            path, used_path = existing_paths[0], Path(existing_paths[0])
        resolved_path = _resolve_spec_path(importer.directory / used_path, path, span)
        # resolve symbolic links first, because a link could lead outside the directory
        if used_path.is_absolute() or not resolved_path.is_relative_to(importer.directory):
            helps = ["move it to that directory or a subdirectory, or use a built-in spec"]
            raise_error(
                "E0803",
                f"`{path}` is outside the directory of the spec that uses it",
                span,
                helps=helps,
            )
        return self.load_module(resolved_path, path, span)


def find_error_doc_pages() -> dict[str, Path]:
    """Return the paths of the documentation pages by diagnostic code."""
    package_directory = Path(__file__).parents[1] / "_errors"
    directory = (
        package_directory
        if package_directory.is_dir()
        else Path(__file__).parents[2] / "docs" / "errors"
    )
    return {p.stem: p for p in sorted(directory.glob("[EW]*.md"))}


def parse_page_title(page: str) -> str:
    """Return the title of a diagnostic code's page from the heading `# CODE: title`."""
    return page.partition("\n")[0].partition(": ")[2]
