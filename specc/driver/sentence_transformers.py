"""Compile sentence-transformers directories: generate a spec from modules.json."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specc.diagnostics.diagnostic import Source, raise_error
from specc.frontend.generate_stream_and_reading_sections import list_graph_blocks
from specc.frontend.json_parser_with_spans import JsonMember, JsonObject
from specc.frontend.spec_modules import Program
from specc.huggingface.audio_and_ctc_processor_files import (
    ENCODER_PART,
    MODULES_FILE,
    SENTENCE_CONFIGS,
    SENTENCE_TRANSFORMERS_FILE,
    find_first_file,
    read_json_object,
    read_optional_json_object,
)
from specc.huggingface.model_family import find_spec_for_checkpoint
from specc.huggingface.tokenizer_config import iterate_ignored_settings
from specc.io.json_io import NO_LIMITS, Json, parse_strict_json
from specc.io.safe_read import escape_text, read_required_file
from specc.syntax import ast
from specc.syntax.parse import decode_spec

CONFIG_FILE = "config.json"
MAX_MODULES_BYTES = 2**20
HIDDEN_OUTPUT = "last_hidden_state"
LEGACY_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Config keys that older files use for the pooling modes, in concatenation order."""
POOLING_EQUATIONS = {
    "cls": "gather(x, argmax(cast(kept, to=int), axis=1), axis=1)",
    "max": "masked_max_pool(x, kept)",
    "mean": "masked_mean_pool(x, kept)",
    "mean_sqrt_len_tokens": "sum(x * _rows, axis=1) / sqrt(max(sum(_rows, axis=1), 1.0))",
    "weightedmean": "sum(x * _rows * _weights, axis=1) / max(sum(_rows * _weights, axis=1), 1e-9)",
    "lasttoken": "last_token(x, kept)",
}
"""The equation of each pooling mode. `x` are the hidden states, `kept` is the mask, `_rows` is the
mask of shape [batch, seq, 1], and `_weights` are 1-based positions.
"""
ACTIVATION_MODULES = ("Tanh", "GELU", "ReLU", "SiLU", "Sigmoid")
ACTIVATION_EQUATIONS = {"Identity": "{}"} | {n: f"{n.lower()}({{}})" for n in ACTIVATION_MODULES}
BASE_GRAPH = "embeddings"
SENTENCE_OUTPUT = "sentence_embedding"


@dataclass
class SentenceTransformersSpec:
    """A spec generated from a sentence-transformers directory: the source text, the directory of
    the encoder, and the weight paths of the other modules by tensor name prefix.
    """

    source: Source
    encoder_directory: str
    weight_path_by_prefix: Mapping[str, str]
    remarks: tuple[str, ...]


@dataclass(kw_only=True)
class _GraphBody:
    """A builder of the generated graph's source text that tracks the size of the embedding."""

    root: Path
    lines: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    weight_path_by_prefix: dict[str, str] = field(default_factory=dict)
    vector_size: int = 0
    excludes_prompt: bool = False


def find_encoder_directory(directory: str) -> str:
    """Return the directory of the encoder's config.json: `directory` itself, or the directory named
    by the first entry of modules.json.
    """
    path = Path(directory)
    has_modules = bool(directory) and os.path.lexists(path / MODULES_FILE)
    if not has_modules or os.path.lexists(path / CONFIG_FILE):
        return directory
    modules = _read_modules(path)
    has_path = bool(modules) and modules[0].get("path")
    return str(_resolve_module_directory(path, modules[0])) if has_path else directory


def build_sentence_transformers_spec(
    directory: str, open_program: Callable[[str], Program]
) -> SentenceTransformersSpec | None:
    """Return the spec of a sentence-transformers directory. Return None for any other directory.
    Return None for a cross-encoder, which is compiled like any checkpoint with a classification
    head. Raise E0427 if a module of the directory is not supported.
    """
    root = Path(directory)
    if not directory or not os.path.lexists(root / MODULES_FILE):
        return None
    modules = _read_modules(root)
    kinds = [_get_module_class(root, str(m.get("type", ""))) for m in modules]
    if not kinds or kinds[0] != "Transformer":
        _raise_unsupported(root / MODULES_FILE, "the first module is not a Transformer")
    encoder = _resolve_module_directory(root, modules[0])
    if _is_cross_encoder(encoder, kinds):
        return None
    base = find_spec_for_checkpoint(str(encoder))
    block = _find_encoder_graph(open_program(base), encoder)
    body = _GraphBody(root=root)
    for module_index, (module, kind) in enumerate(zip(modules[1:], kinds[1:], strict=True), 1):
        add_module = MODULE_BUILDERS.get(kind)
        if add_module is None:
            supported = ", ".join(["Transformer", *MODULE_BUILDERS])
            _raise_unsupported(
                root / MODULES_FILE, f"`{kind}` is not supported", [f"supported: {supported}"]
            )
        add_module(body, _resolve_module_directory(root, module) / CONFIG_FILE, module_index)
    if not body.vector_size:
        _raise_unsupported(root / MODULES_FILE, "no module pools the tokens into one vector")
    config_path = find_first_file([encoder], SENTENCE_CONFIGS)
    text = _format_spec(base, block, body)
    module_names = ", ".join([f"Transformer (the spec `{base}`)", *kinds[1:]])
    return SentenceTransformersSpec(
        source=Source(f"<{escape_text(directory)}>", text),
        encoder_directory=str(encoder),
        weight_path_by_prefix=body.weight_path_by_prefix,
        remarks=(
            f"`{escape_text(directory)}` is read according to {MODULES_FILE}: {module_names}",
            *iterate_ignored_settings(config_path, root / SENTENCE_TRANSFORMERS_FILE),
        ),
    )


def _get_module_class(root: Path, type: str) -> str:
    """Return the class name of a module. Raise E0427 if the class is defined in the repository."""
    library, _, kind = type.rpartition(".")
    if library.partition(".")[0] != "sentence_transformers":
        reason = "is a class of the repository, whose code specc does not run"
        _raise_unsupported(root / MODULES_FILE, f"`{escape_text(type)[:60]}` {reason}")
    return kind


def wrap_encoder_config(data: JsonObject) -> JsonObject:
    """Nest the encoder's config.json under ENCODER_PART, the name of the encoder in the spec."""
    return JsonObject({ENCODER_PART: JsonMember(data.span, data)}, data.span)


def _is_cross_encoder(encoder: Path, kinds: Sequence[str]) -> bool:
    """Return True for a cross-encoder with a classification head. Raise E0427 for other tasks."""
    path = find_first_file([encoder], SENTENCE_CONFIGS) or encoder / SENTENCE_CONFIGS[0]
    config = read_optional_json_object(path)
    task = config.get("transformer_task", "feature-extraction")
    if task == "sequence-classification" and len(kinds) == 1:
        return True
    if task != "feature-extraction":
        _raise_unsupported(path, f"the transformer_task `{task}` is not supported")
    modalities = config.get("modality_config")
    text_config = modalities.get("text") if isinstance(modalities, dict) else None
    if isinstance(text_config, dict) and text_config.get("method_output_name") != HIDDEN_OUTPUT:
        _raise_unsupported(path, f"`method_output_name` is not `{HIDDEN_OUTPUT}`")
    return False


def _find_encoder_graph(program: Program, encoder: Path) -> ast.Block:
    """Return the graph of the encoder's spec that computes hidden states from token ids. If several
    graphs compute hidden states, return the graph of the class in config.json, or `embeddings`, the
    graph of the base model.
    """
    graphs = [
        block
        for block in list_graph_blocks(program)
        if block.architectures
        and block.params[0].name == "input_ids"
        and HIDDEN_OUTPUT in [result.name for result in block.results]
    ]
    architectures = read_optional_json_object(encoder / CONFIG_FILE).get("architectures")
    classes = architectures if isinstance(architectures, list) else []
    if graphs:
        graphs.sort(key=lambda block: block.name != BASE_GRAPH)
        graphs.sort(key=lambda block: not any(name in classes for name in block.architectures))
        return graphs[0]
    reason = f"no graph of `{program.name}` computes `{HIDDEN_OUTPUT}` from text only"
    _raise_unsupported(encoder / CONFIG_FILE, reason)


def _format_spec(base: str, block: ast.Block, body: _GraphBody) -> str:
    """Format the generated spec: the encoder's inputs, its hidden states, and the other modules."""
    mask_param = next((p for p in block.params if p.type.name == "keep"), None)
    names = [p.name for p in block.params]
    params = [*map(_format_parameter, block.params)]
    mask = mask_param.name if mask_param else "input_ids >= 0"
    kept_line = f"  kept = {mask}"
    if body.excludes_prompt:
        params.append(f"pooling_mask: int[batch, seq] = cast({mask}, to=int)")
        kept_line = f"  kept = {mask} & (pooling_mask != 0)"
    results = ", ".join("x" if r.name == HIDDEN_OUTPUT else "_" for r in block.results)
    call = f"{ENCODER_PART}.{block.name}({', '.join(names)})"
    return "\n".join(
        [
            "specc 1",
            'model sentence_transformer "A sentence-transformers directory."',
            f'use "{base}" as {ENCODER_PART} from "{ENCODER_PART}"',
            "dims batch >= 1, seq >= 1",
            f"graph sentence_embeddings({', '.join(params)})"
            f" -> ({SENTENCE_OUTPUT}: float[batch, _]) {{",
            f"  {results} = {call}",
            kept_line,
            "  _rows = insert(cast(kept, to=float), axis=2)",
            f"  _weights = insert(cast(positions({mask}), to=float) + 1.0, axis=2)",
            *body.lines,
            "  return v",
            "}",
            *body.blocks,
            "reading { input_ids = text(tokenizer()) }",
            "",
        ]
    )


def _format_parameter(param: ast.BlockParameter) -> str:
    """Format an encoder input in spec syntax, with defaults that read the encoder's config."""
    side = f" {param.type.side}" if param.type.side else ""
    text = f"{param.name}: {param.type.name}[batch, seq]{side}"
    if param.default is None or param.default.span is None:
        return text
    default = " ".join(param.default.span.text.split())
    return f"{text} = " + re.sub(r"\bpad\b", f"{ENCODER_PART}.pad", default)


def _add_pooling(body: _GraphBody, file: Path, number: int) -> None:
    """Add a pooling layer with one pooling mode, or with several concatenated pooling modes."""
    config = read_json_object(file)
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in LEGACY_POOLING_KEYS.items() if config.get(key)] or ["mean"]
    mode_list = [modes] if isinstance(modes, str) else modes
    if not isinstance(mode_list, list) or not mode_list:
        _raise_unsupported(file, "`pooling_mode` has no mode")
    unknown = [str(mode) for mode in mode_list if mode not in POOLING_EQUATIONS]
    if unknown:
        reason = f"the pooling mode `{unknown[0]}` is not supported"
        _raise_unsupported(file, reason, [f"supported: {', '.join(POOLING_EQUATIONS)}"])
    width = config.get("embedding_dimension", config.get("word_embedding_dimension"))
    if not isinstance(width, int):
        _raise_unsupported(file, "`embedding_dimension` is not an integer")
    _check_keys(config, file, {*LEGACY_POOLING_KEYS, "pooling_mode", "embedding_dimension",
                        "word_embedding_dimension", "include_prompt"})  # fmt: skip
    body.excludes_prompt = config.get("include_prompt") is False
    parts = ", ".join(POOLING_EQUATIONS[mode] for mode in mode_list)
    is_single = len(mode_list) == 1
    body.lines.append(f"  v = {parts}" if is_single else f"  v = concat([{parts}], axis=1)")
    body.vector_size = width * len(mode_list)


def _add_dense(body: _GraphBody, file: Path, number: int) -> None:
    """Add a linear layer with its activation and optional residual connection."""
    config = read_json_object(file)
    _check_keys(config, file, {"in_features", "out_features", "bias", "activation_function",
                        "module_input_name", "module_output_name", "use_residual"})  # fmt: skip
    activation = str(config.get("activation_function", "torch.nn.Tanh"))
    equation = ACTIVATION_EQUATIONS.get(
        activation.rpartition(".")[2] if activation.startswith("torch.") else ""
    )
    if equation is None:
        reason = f"the activation_function `{activation}` is not supported"
        _raise_unsupported(file, reason, [f"supported: {', '.join(ACTIVATION_EQUATIONS)}"])
    width = config.get("out_features")
    if not isinstance(width, int):
        _raise_unsupported(file, "`out_features` is not an integer")
    bias = "true" if config.get("bias", True) else "false"
    path = _add_module_weights(body, file, number)

    def format_linear(x: str, out: str, scope: str) -> str:
        return equation.format(f"(linear({x}, out={out}, bias={bias}) @ {scope})")

    line = f"{format_linear('v', str(width), f'{path}.linear')}"
    if config.get("use_residual") and width == body.vector_size:
        # in a block, equal input and output dimensions have the same name
        body.blocks.append(
            f"block {path}_of(x: float[b, d]) -> float[b, d] "
            f"{{ return {format_linear('x', 'd', 'linear')} + x }}"
        )
        line = f"{path}_of(v) @ {path}"
    elif config.get("use_residual"):
        line += f" + (linear(v, out={width}, bias=false) @ {path}.residual)"
    body.lines.append(f"  v = {line}")
    body.vector_size = width


def _add_layer_norm(body: _GraphBody, file: Path, number: int) -> None:
    """Add a LayerNorm of the sentence embedding."""
    _check_keys(read_json_object(file), file, {"dimension"})
    path = _add_module_weights(body, file, number)
    body.lines.append(f"  v = layer_norm(v, eps=1e-5) @ {path}.norm")


def _add_normalize(body: _GraphBody, file: Path, number: int) -> None:
    """Add an L2 normalization of the sentence embedding."""
    if os.path.lexists(file):
        _check_keys(read_json_object(file), file, {"module_input_name", "module_output_name"})
    body.lines.append("  v = l2_normalize(v)")


def _add_dropout(body: _GraphBody, file: Path, number: int) -> None:
    """Check the keys of a dropout module. Dropout has no effect at inference."""


MODULE_BUILDERS: Mapping[str, Callable[[_GraphBody, Path, int], None]] = {
    "Pooling": _add_pooling,
    "Dense": _add_dense,
    "LayerNorm": _add_layer_norm,
    "Normalize": _add_normalize,
    "Dropout": _add_dropout,
}
"""Supported sentence-transformers modules after the `Transformer` module."""


def _add_module_weights(body: _GraphBody, file: Path, number: int) -> str:
    """Add the directory of a module's weights, and return the prefix of its parameter names."""
    path = f"module_{number}"
    body.weight_path_by_prefix[path] = str(file.parent)
    return path


def _check_keys(config: Mapping[str, object], file: Path, known_keys: set[str]) -> None:
    """Raise E0427 for an unknown key, or if the module input is not the sentence embedding."""
    for key in config:
        if key not in known_keys:
            _raise_unsupported(file, f"`{escape_text(key)[:60]}` is not supported")
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, SENTENCE_OUTPUT):
            _raise_unsupported(file, f"`{key}` is not `{SENTENCE_OUTPUT}`")


def _read_modules(root: Path) -> list[dict[str, Json]]:
    """Return the entries of modules.json. Raise E0427 if modules.json is invalid."""
    path = root / MODULES_FILE
    try:
        value = parse_strict_json(
            decode_spec(read_required_file(path, MAX_MODULES_BYTES), str(path)).text, NO_LIMITS
        )
    except ValueError as error:
        _raise_unsupported(path, escape_text(error)[:200])
    if not isinstance(value, list):
        _raise_unsupported(path, "not a list of modules")
    modules = [item for item in value if isinstance(item, dict)]
    if len(modules) < len(value):
        _raise_unsupported(path, "a module is not an object")
    return modules


def _resolve_module_directory(root: Path, module: Mapping[str, Json]) -> Path:
    """Resolve the directory of a module. Raise E0427 if the directory is outside the repository."""
    name = str(module.get("path", ""))
    path = Path(os.path.normpath(root / name))
    if not path.is_relative_to(Path(os.path.normpath(root))):
        _raise_unsupported(
            root / MODULES_FILE, f"the path `{escape_text(name)[:60]}` is outside the directory"
        )
    return path


def _raise_unsupported(path: Path, reason: str, notes: Sequence[str] = ()) -> NoReturn:
    raise_error(
        "E0427",
        f"`{escape_text(path)}`: {reason}",
        notes=notes,
        helps=[
            "compile only the encoder, which ignores modules.json: "
            "specc compile --spec NAME DIR --graph sentence_embeddings"
        ],
    )
