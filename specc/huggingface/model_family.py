"""Find the built-in spec for a config.json, by `model_type` and `architectures`."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from specc.diagnostics.diagnostic import Source, raise_error
from specc.diagnostics.suggest import find_similar_name, format_suggestion
from specc.frontend.generate_stream_and_reading_sections import (
    has_generate_section,
    list_graph_blocks,
)
from specc.frontend.json_parser_with_spans import JsonArray, JsonMember, JsonObject, JsonScalar
from specc.frontend.spec_modules import Program, build_program
from specc.frontend.used_specs import MODEL_TYPE_KEY
from specc.io.file_type_detection import is_gguf_path
from specc.io.safe_read import escape_text
from specc.library.spec_file_lookup import (
    CONFIG_FILE_NAME,
    SpecLibrary,
    find_builtin_specs,
    has_config_json,
    load_config_json,
    suggest_sentence_transformers_directory,
)
from specc.syntax import ast
from specc.syntax.parse import parse_spec

ARCHITECTURES_KEY = "architectures"
MIN_KEY_SHARE = 0.8
"""A model type with a similar name is suggested instead of the best spec if its spec reads at least
this fraction of the keys that the best spec reads.
"""

UNSUPPORTED_TYPES = {
    "informer": "its attention samples keys at random at inference, so its outputs are not a "
    "function of its inputs",
    "gemma3n": "its image encoder is timm's MobileNetV5, which no spec supports; the spec "
    "gemma3n_text supports only its language model",
    "vits": "the length of its waveform depends on predicted durations, and it samples noise at "
    "inference",
    **dict.fromkeys(
        ("lightglue", "superglue", "superpoint"),
        "the number of keypoints depends on the pixel values, but the size of an axis must not "
        "depend on values",
    ),
    **dict.fromkeys(
        ("csm", "moshi"),
        "a second decoder generates the codebooks of each step one after another, which `generate` "
        "does not support",
    ),
    "musicgen_melody": "no spec supports the chroma features that precede its input; see musicgen",
}
"""The reason why a model type has no built-in spec, keyed by model type."""
UNSUPPORTED_CLASSES = {
    **dict.fromkeys(
        ("SpeechT5ForTextToSpeech", "SpeechT5ForSpeechToSpeech"),
        "its speech decoder applies dropout at inference, so its outputs are not a function of "
        "its inputs",
    )
}
"""The reason why a class of a supported model type has no graph, keyed by class name."""
TIMM_TYPE, TIMM_ARCHITECTURE_KEY, TIMM_CONFIG_KEY = "timm_wrapper", "architecture", "pretrained_cfg"
"""The `model_type` of timm networks in specs, the config.json key with the name of the network, and
a key that only timm's config.json files contain. These files have no `model_type`.
"""
EXPECTED_VALUES = re.compile(r'^\s*expect "(\w+)" in \(([^)]*)\)', re.MULTILINE)
CONFIG_SECTION = re.compile(
    r"^config(?: \{\n.*?^\}|:\n(?:(?:[ #].*)?\n)*)", re.MULTILINE | re.DOTALL
)
HEADERS = {".specc": "specc 1\nmodel config\n", ".yaml": "specc: 1\nmodel: config\n"}
TYPE_NAME = re.compile(r'"([^"]*)"|(\w+)')


def load_checkpoint_config(path: str) -> JsonObject:
    """Load a config.json from a file or directory, or convert a GGUF file's metadata to a
    config.json.

    Raise the same errors as `load_config_json` and `read_gguf_config`.
    """
    if not is_gguf_path(path):
        return load_config_json(path)
    # import here, because weight formats import NumPy, which is not required without a checkpoint
    from specc.huggingface.gguf_metadata import read_gguf_config

    return read_gguf_config(path)


def has_checkpoint_config(path: str) -> bool:
    """Return True if a path is a directory with a config.json, or a GGUF file."""
    return is_gguf_path(path) or has_config_json(path)


def describe_config_source(path: str) -> str:
    """Describe the source of a checkpoint's config, for messages (see `load_checkpoint_config`)."""
    location = "metadata of" if is_gguf_path(path) else "config.json in"
    return f"the {location} `{escape_text(path)}`"


def find_spec_for_checkpoint(directory: str) -> str:
    """Return the built-in spec for a checkpoint's `model_type`. Raise E0419 if no spec exists."""
    data = load_checkpoint_config(directory)
    member, value = data.find_non_null_member(MODEL_TYPE_KEY), read_model_type(data)
    path = escape_text(Path(directory) / CONFIG_FILE_NAME)
    if not value:
        raise_error(
            "E0419",
            f"`{path}` has no model type",
            member.value.span if member else None,
            notes=[f'"{MODEL_TYPE_KEY}" is missing, or not a string'],
            helps=[
                suggest_sentence_transformers_directory(directory)
                or "pass the spec: specc compile --spec my.specc DIR"
            ],
        )
    spec_name = find_spec_for_model_type(data, value)
    if not spec_name:
        similar = _find_nearest_type(value, data)
        raise_error(
            "E0419",
            f"unsupported model type `{escape_text(value)[:60]}`",
            member.value.span if member else None,
            notes=[UNSUPPORTED_TYPES[value]] if value in UNSUPPORTED_TYPES else [],
            helps=[
                *([f"the most similar supported type is `{similar}`"] if similar else []),
                "`specc list types` prints the supported types",
                "write a spec and pass it: specc compile --spec my.specc DIR (docs/families.md)",
            ],
        )
    return spec_name


def is_generative(path: Path) -> bool:
    """Return True if the graph that is compiled by default for a spec file or a checkpoint
    directory has a `generate` section. Raise an error if the spec or the config.json cannot be
    read.
    """
    library, is_checkpoint = SpecLibrary(), path.is_dir()
    spec = find_spec_for_checkpoint(str(path)) if is_checkpoint else str(path)
    program = build_program(library.load_spec(spec), library)
    data = load_checkpoint_config(str(path)) if is_checkpoint else None
    graph = find_graph_for_architecture(program, data) if data else ""
    return has_generate_section(program, graph)


def suggest_spec_for_config_value(spec: str, key: str, value: str) -> list[str]:
    """Suggest another spec for a config value that `spec` does not expect. `spec` is a path or the
    name of a built-in spec.
    """
    if key != MODEL_TYPE_KEY:
        condition = f'implement this value, and add it to the expected values of "{key}"'
    elif names := [
        n for n, p in find_builtin_specs().items() if value in read_supported_model_types(p)
    ]:
        return [f"the built-in spec `{names[0]}` supports this model type"]
    else:
        condition = f'add the model type to the expected values of "{key}", and change the rest'
    command = f"specc expand {escape_text(spec)} --keep-from -o mine.specc"
    return [
        f"to support it, write the spec to a file: {command}",
        f"in this file, {condition} (docs/families.md)",
    ]


def find_spec_for_model_type(config: JsonObject, model_type: str) -> str:
    """Return the built-in spec for a model type (for timm networks, also the architecture), or ""
    if there is none. Raise E0419 if no spec expects the architecture.
    """
    specs = find_builtin_specs()
    names = [name for name, path in specs.items() if model_type in read_supported_model_types(path)]
    if model_type != TIMM_TYPE:
        return next(iter(names), "")
    architecture = _read_text(config, TIMM_ARCHITECTURE_KEY)
    expected = {n: read_expected_config_values(specs[n], TIMM_ARCHITECTURE_KEY) for n in names}
    if name := next((n for n in names if architecture in expected[n]), ""):
        return name
    architectures = sorted(set[str]().union(*expected.values()))
    similar = find_similar_name(architecture, architectures)
    member = config.find_non_null_member(TIMM_ARCHITECTURE_KEY)
    title = f"unsupported timm architecture `{escape_text(architecture)[:60]}`"
    raise_error(
        "E0419",
        title if architecture else "the timm checkpoint has no `architecture` in its config.json",
        member.value.span if member else None,
        notes=[f"specs of timm networks: {', '.join(names)}"],
        helps=[
            *([f"the most similar supported architecture is `{similar}`"] if similar else []),
            "write a spec and pass it: specc compile --spec my.specc DIR (docs/families.md)",
        ],
    )


def read_model_type(config: JsonObject) -> str:
    """Return the `model_type` in a config.json, or "" if it is absent, as for timm networks."""
    if config.find_non_null_member(MODEL_TYPE_KEY) is None and config.find_non_null_member(
        TIMM_CONFIG_KEY
    ):
        return TIMM_TYPE
    return _read_text(config, MODEL_TYPE_KEY)


def _read_text(data: JsonObject, key: str) -> str:
    """Return the string value of a key, or "" if the key is absent or not a string."""
    match data.find_non_null_member(key):
        case JsonMember(value=JsonScalar(value=str(text))):
            return text
    return ""


def map_model_types_to_specs() -> dict[str, str]:
    """Map every supported `model_type` to the first built-in spec that supports it."""
    specs: dict[str, str] = {}
    for name, path in find_builtin_specs().items():
        for model_type in read_supported_model_types(path):
            specs.setdefault(model_type, name)
    return specs


def _find_nearest_type(model_type: str, data: JsonObject) -> str:
    """Return the supported model type that is most similar to an unsupported config.json, or "" if
    no spec reads a key of this config.json.

    Prefer a type with a similar name if its spec reads nearly as many keys as the best spec.
    """
    types = map_model_types_to_specs()
    key_counts = count_matching_keys_by_spec(data, types.values())
    best_spec = next(iter(key_counts), "")
    similar_type = find_similar_name(model_type, types) or ""
    # two common keys are not enough for a suggestion, because every config.json has keys like
    # `vocab_size`
    if similar_type and (
        key_counts[best_spec] <= 2
        or key_counts[types[similar_type]] >= MIN_KEY_SHARE * key_counts[best_spec]
    ):
        return similar_type
    if not key_counts[best_spec]:
        return ""
    return best_spec if best_spec in types else next(t for t, s in types.items() if s == best_spec)


def count_matching_keys_by_spec(
    config: JsonObject, spec_names: Iterable[str] = ()
) -> dict[str, int]:
    """Return the number of config.json keys that each built-in spec reads, in descending order.
    Among specs with equal counts, specs that read fewer keys in total come first.
    """
    keys = set(config.members)
    selected = set(spec_names)
    keys_by_spec = {
        name: read_supported_config_keys(path)
        for name, path in find_builtin_specs().items()
        if not selected or name in selected
    }
    counts = {name: len(keys & sources) for name, sources in keys_by_spec.items()}
    return dict(
        sorted(counts.items(), key=lambda entry: (-entry[1], len(keys_by_spec[entry[0]]), entry[0]))
    )


@cache
def read_supported_config_keys(path: Path) -> frozenset[str]:
    """Return the config.json keys that a built-in spec reads. Parse only the spec's config."""
    sections = CONFIG_SECTION.findall(path.read_text(encoding="utf-8"))
    source = Source(path.name, HEADERS[path.suffix] + "\n".join(sections))
    entries = [
        entry
        for item in parse_spec(source).items
        if isinstance(item, ast.ConfigSection)
        for entry in item.entries
        if isinstance(entry, ast.ConfigField)
    ]
    texts = (s.value for e in entries for s in e.sources if isinstance(s, ast.StringLiteral))
    return frozenset(text.split(".")[0] for text in texts)


def read_supported_model_types(path: Path) -> frozenset[str]:
    """Return the model types that the built-in spec `path` expects, without parsing the spec."""
    return read_expected_config_values(path, MODEL_TYPE_KEY)


def read_expected_config_values(path: Path, key: str) -> frozenset[str]:
    """Return the values that a built-in spec expects for a config key, without parsing the spec."""
    for match in EXPECTED_VALUES.finditer(path.read_text(encoding="utf-8")):
        if match[1] == key:
            return frozenset(a or b for a, b in TYPE_NAME.findall(match[2])) - {"none"}
    return frozenset()


def read_architectures(config: JsonObject) -> list[str]:
    """Return the class names in `architectures`, or [] if the key is absent. Raise E0420 if a value
    is invalid.
    """
    member = config.find_non_null_member(ARCHITECTURES_KEY)
    return _read_classes(member) if member else []


def find_graph_for_architecture(program: Program, config: JsonObject) -> str:
    """Return the graph for the architecture in config.json, or "" if the spec or the file names no
    architecture. Raise E0420 if the spec has no graph for the architecture.
    """
    graphs = [g for g in list_graph_blocks(program) if g.architectures]
    member = config.find_non_null_member(ARCHITECTURES_KEY)
    classes = read_architectures(config)
    # without class names in the file or the spec, the caller uses the first graph
    if not graphs or not classes or member is None:
        return ""
    for graph in graphs:
        if set(classes) & set(graph.architectures):
            return graph.name
    architectures = [name for graph in graphs for name in graph.architectures]
    similar = find_similar_name(classes[0], architectures)
    raise_error(
        "E0420",
        f"no graph of `{program.module.path}` corresponds to `{escape_text(classes[0])[:80]}`",
        member.value.span,
        notes=[
            *(UNSUPPORTED_CLASSES[name] for name in classes if name in UNSUPPORTED_CLASSES),
            f"supported class names: {', '.join(architectures)}",
        ],
        helps=[
            *([format_suggestion(similar)] if similar else []),
            f"select a graph: --graph {graphs[0].name}",
        ],
    )


def _read_classes(member: JsonMember) -> list[str]:
    """Return the class names in config.json. Raise E0420 unless they are strings or null."""
    value = member.value
    items = value.items if isinstance(value, JsonArray) else (value,)
    class_names = [item.value for item in items if isinstance(item, JsonScalar)]
    if class_names == [None]:
        return []
    names = [name for name in class_names if isinstance(name, str)]
    if len(names) < len(items):
        raise_error(
            "E0420",
            f'"{ARCHITECTURES_KEY}" is not a list of class names',
            value.span,
            helps=['write class names, such as ["BertForMaskedLM"], or select a graph: --graph'],
        )
    return names
