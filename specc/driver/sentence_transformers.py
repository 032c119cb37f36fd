"""Compile sentence-transformers directories: `modules.json` as a spec that uses the encoder."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Source
from specc.frontend.generate_and_reading_sections import list_graphs
from specc.frontend.json_nodes import JsonMember, JsonObject
from specc.frontend.spec_modules import Program
from specc.huggingface.model_family import find_spec_for_checkpoint
from specc.huggingface.processor_files import (
    MODULES,
    PART,
    SENTENCE_BERT,
    SETTINGS,
    read_json_object,
)
from specc.huggingface.settings_notes import READ_OF_ENCODER, READ_OF_SETTINGS, unread_settings
from specc.io.json_io import NO_LIMITS, Json, parse_strict_json
from specc.io.safe_read import UnreadableFile, escape_text, read_regular_file
from specc.syntax import ast
from specc.syntax.parse import decode_spec

CONFIG = "config.json"
LARGEST = 2**20
HIDDEN = "last_hidden_state"
LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Keys of older files, in the order in which the library concatenates the modes."""
POOLED = {
    "cls": "gather(x, argmax(cast(kept, to=int), axis=1), axis=1)",
    "max": "masked_max_pool(x, kept)",
    "mean": "masked_mean_pool(x, kept)",
    "mean_sqrt_len_tokens": "sum(x * rows, axis=1) / sqrt(max(sum(rows, axis=1), 1.0))",
    "weightedmean": "sum(x * rows * weights, axis=1) / max(sum(rows * weights, axis=1), 1e-9)",
    "lasttoken": "last_token(x, kept)",
}
"""The equation of each pooling mode, over hidden states `x`, the mask `kept`, the same as
`rows` [batch, seq, 1] and positions from 1 as `weights`."""
ACTIVATIONS = {
    "Tanh": "tanh({})",
    "Identity": "{}",
    "GELU": "gelu({})",
    "ReLU": "relu({})",
    "SiLU": "silu({})",
    "Sigmoid": "sigmoid({})",
}
SENTENCE = "sentence_embedding"


@dataclass
class WrappedEncoder:
    """A directory as a spec: its text, the directory of the encoder, and the files of
    other modules' weights by the prefix that their tensors get.
    """

    source: Source
    encoder: str
    weights: Mapping[str, str]
    remarks: tuple[str, ...]


@dataclass(kw_only=True)
class _Body:
    """The statements of the graph so far, the blocks they call, and how wide the vector
    `v` is.
    """

    where: Path
    lines: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    weights: dict[str, str] = field(default_factory=dict)
    width: int = 0
    prompt_left_out: bool = False


def find_encoder_directory(folder: str) -> str:
    """The directory of a repository that holds the encoder's config.json: itself, or the
    one that the first entry of its modules.json names.
    """
    path = Path(folder)
    if not folder or not os.path.lexists(path / MODULES) or has_file(path, CONFIG):
        return folder
    listed = _listed(path)
    first = str(listed[0].get("path", "")) if listed else ""
    return str(_inside(path, first)) if first else folder


def has_file(folder: Path, name: str) -> bool:
    """Whether a directory has a file of that name."""
    return os.path.lexists(folder / name)


def wrapped_spec(folder: str, program_of: Callable[[str], Program]) -> WrappedEncoder | None:
    """The spec of a sentence-transformers directory; None for any other, and for
    cross-encoders, which are checkpoints with a head of their own. Fails with E0427.
    """
    root = Path(folder)
    if not folder or not has_file(root, MODULES):
        return None
    modules = _listed(root)
    kinds = [str(m.get("type", "")).rpartition(".")[2] for m in modules]
    if not kinds or kinds[0] != "Transformer":
        _refuse(root / MODULES, "the first module is not a Transformer")
    encoder = _inside(root, str(modules[0].get("path", "")))
    if _is_head(encoder, kinds):
        return None
    base = find_spec_for_checkpoint(str(encoder))
    block = _hidden_graph(program_of(base), encoder)
    body = _Body(where=root)
    for number, (module, kind) in enumerate(zip(modules[1:], kinds[1:], strict=True), 1):
        add = MODULE.get(kind)
        if add is None:
            known = ", ".join(["Transformer", *MODULE])
            _refuse(root / MODULES, f"`{kind}` is not followed", [f"these are: {known}"])
        place = _inside(root, str(module.get("path", "")))
        add(body, place, number)
    if not body.width:
        _refuse(root / MODULES, "no module pools the tokens to one vector")
    text = _text(base, block, body)
    read = ", ".join([f"Transformer (the spec `{base}`)", *kinds[1:]])
    return WrappedEncoder(
        source=Source(f"<{escape_text(folder)}>", text),
        encoder=str(encoder),
        weights=body.weights,
        remarks=(
            f"`{escape_text(folder)}` is read as its {MODULES} says: {read}",
            *unread_settings(encoder / SENTENCE_BERT, READ_OF_ENCODER),
            *unread_settings(root / SETTINGS, READ_OF_SETTINGS),
        ),
    )


def encoder_config_table(data: JsonObject) -> JsonObject:
    """The encoder's config as the table that the spec reads it from."""
    member = JsonMember(data.span, data)
    return JsonObject({PART: member}, data.span)


def _is_head(encoder: Path, kinds: Sequence[str]) -> bool:
    """Whether the Transformer has a head of its own, as cross-encoders have. E0427 for a
    way of calling it that is not followed.
    """
    path = encoder / SENTENCE_BERT
    told = read_json_object(path) if os.path.lexists(path) else {}
    task = told.get("transformer_task", "feature-extraction")
    if task == "sequence-classification" and len(kinds) == 1:
        return True
    if task != "feature-extraction":
        _refuse(path, f"the transformer_task `{task}` is not followed")
    modes = told.get("modality_config")
    text = modes.get("text") if isinstance(modes, dict) else None
    if isinstance(text, dict) and text.get("method_output_name") != HIDDEN:
        _refuse(path, f"`method_output_name` is not `{HIDDEN}`")
    return False


def _hidden_graph(program: Program, encoder: Path) -> ast.Block:
    """The graph of the encoder's spec that gives hidden states for token ids."""
    for block in list_graphs(program):
        names = [result.name for result in block.results]
        ids = block.params[0]
        if block.made_for and HIDDEN in names and ids.name == "input_ids":
            return block
    why = f"no graph of `{program.name}` gives `{HIDDEN}` of a text alone"
    _refuse(encoder / CONFIG, why)


def _text(base: str, block: ast.Block, body: _Body) -> str:
    """The spec: the encoder's inputs, hidden states, and the modules behind them."""
    keep = next((p for p in block.params if p.type.name == "keep"), None)
    names = [p.name for p in block.params]
    params = [f"{p.name}: {_type_of(p)}{_default_of(p)}" for p in block.params]
    mask = keep.name if keep else "input_ids >= 0"
    kept = f"  kept = {mask}"
    if body.prompt_left_out:
        params.append(f"pooling_mask: int[batch, seq] = cast({mask}, to=int)")
        kept = f"  kept = {mask} & (pooling_mask != 0)"
    results = [r.name if r.name == HIDDEN else "_" for r in block.results]
    hidden = ", ".join("x" if name == HIDDEN else "_" for name in results)
    called = f"{PART}.{block.name}({', '.join(names)})"
    return "\n".join(
        [
            "specc 1",
            'model sentence_transformer "A sentence-transformers directory."',
            f'use "{base}" as {PART} from "{PART}"',
            "dims batch >= 1, seq >= 1",
            f"graph sentence_embeddings({', '.join(params)}) -> ({SENTENCE}: float[batch, _]) {{",
            f"  {hidden} = {called}",
            kept,
            "  rows = insert(cast(kept, to=float), axis=2)",
            f"  weights = insert(cast(positions({mask}), to=float) + 1.0, axis=2)",
            *body.lines,
            "  return v",
            "}",
            *body.blocks,
            "reading { input_ids = text(tokenizer()) }",
            "",
        ]
    )


def _type_of(param: ast.BlockParameter) -> str:
    """The type of an input of the encoder, as its spec writes it."""
    side = f" {param.type.side}" if param.type.side else ""
    return f"{param.type.name}[batch, seq]{side}"


def _default_of(param: ast.BlockParameter) -> str:
    """The default of an input; config values are those of the encoder."""
    if param.default is None or param.default.span is None:
        return ""
    text = " ".join(param.default.span.text.split())
    return " = " + re.sub(r"\bpad\b", f"{PART}.pad", text)


def _pooling(body: _Body, place: Path, number: int) -> None:
    """Pooling: one mode, or several side by side."""
    told = read_json_object(place / CONFIG)
    modes = told.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in LEGACY.items() if told.get(key)] or ["mean"]
    listed = [modes] if isinstance(modes, str) else modes
    if not isinstance(listed, list) or not listed:
        _refuse(place / CONFIG, "`pooling_mode` names no mode")
    unknown = [str(mode) for mode in listed if mode not in POOLED]
    if unknown:
        why = f"the pooling mode `{unknown[0]}` is not followed"
        _refuse(place / CONFIG, why, [f"these are: {', '.join(POOLED)}"])
    width = told.get("embedding_dimension", told.get("word_embedding_dimension"))
    if not isinstance(width, int):
        _refuse(place / CONFIG, "`embedding_dimension` is no number")
    _only(told, place, {*LEGACY, "pooling_mode", "embedding_dimension",
                        "word_embedding_dimension", "include_prompt"})  # fmt: skip
    body.prompt_left_out = told.get("include_prompt") is False
    parts = ", ".join(POOLED[mode] for mode in listed)
    one = len(listed) == 1
    body.lines.append(f"  v = {parts}" if one else f"  v = concat([{parts}], axis=1)")
    body.width = width * len(listed)


def _dense(body: _Body, place: Path, number: int) -> None:
    """A linear layer with an activation, and a residual where it has one."""
    told = read_json_object(place / CONFIG)
    _only(told, place, {"in_features", "out_features", "bias", "activation_function",
                        "module_input_name", "module_output_name", "use_residual"})  # fmt: skip
    named = str(told.get("activation_function", "torch.nn.Tanh"))
    form = ACTIVATIONS.get(named.rpartition(".")[2] if named.startswith("torch.") else "")
    if form is None:
        why = f"the activation_function `{named}` is not followed"
        _refuse(place / CONFIG, why, [f"these are: {', '.join(ACTIVATIONS)}"])
    width = told.get("out_features")
    if not isinstance(width, int):
        _refuse(place / CONFIG, "`out_features` is no number")
    bias = "true" if told.get("bias", True) else "false"
    path = _weights(body, place, number)

    def layer(x: str, out: str, under: str) -> str:
        return form.format(f"(linear({x}, out={out}, bias={bias}) @ {under})")

    line = f"{layer('v', str(width), f'{path}.linear')}"
    if told.get("use_residual") and width == body.width:
        # a block, in which the width has one name whatever the encoder calls it
        body.blocks.append(
            f"block {path}_of(x: float[b, d]) -> float[b, d] "
            f"{{ return {layer('x', 'd', 'linear')} + x }}"
        )
        line = f"{path}_of(v) @ {path}"
    elif told.get("use_residual"):
        line += f" + (linear(v, out={width}, bias=false) @ {path}.residual)"
    body.lines.append(f"  v = {line}")
    body.width = width


def _layer_norm(body: _Body, place: Path, number: int) -> None:
    """LayerNorm over the vector."""
    _only(read_json_object(place / CONFIG), place, {"dimension"})
    path = _weights(body, place, number)
    body.lines.append(f"  v = layer_norm(v, eps=1e-5) @ {path}.norm")


def _normalize(body: _Body, place: Path, number: int) -> None:
    """L2 normalization."""
    if has_file(place, CONFIG):
        _only(read_json_object(place / CONFIG), place, {"module_input_name", "module_output_name"})
    body.lines.append("  v = l2_normalize(v)")


def _dropout(body: _Body, place: Path, number: int) -> None:
    """Dropout, which changes nothing at inference."""


MODULE: Mapping[str, Callable[[_Body, Path, int], None]] = {
    "Pooling": _pooling,
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Normalize": _normalize,
    "Dropout": _dropout,
}
"""The modules that are followed behind the Transformer."""


def _weights(body: _Body, place: Path, number: int) -> str:
    """The path of a module's weights in the spec, noting the file they are in."""
    path = f"module_{number}"
    body.weights[path] = str(place)
    return path


def _only(told: Mapping[str, object], place: Path, known: set[str]) -> None:
    """E0427 for a key that is not known, and for an input that is not the vector."""
    for key in told:
        if key not in known:
            _refuse(place / CONFIG, f"`{escape_text(key)[:60]}` is not followed")
    for key in ("module_input_name", "module_output_name"):
        if told.get(key) not in (None, SENTENCE):
            _refuse(place / CONFIG, f"`{key}` is not `{SENTENCE}`")


def _listed(root: Path) -> list[dict[str, Json]]:
    """The entries of modules.json. E0427 for anything else."""
    path = root / MODULES
    try:
        value = parse_strict_json(
            decode_spec(read_regular_file(path, LARGEST), str(path)).text, NO_LIMITS
        )
    except UnreadableFile as error:
        raise_error("E0802", f"`{escape_text(str(path))}` cannot be read: {error.reason}")
    except ValueError as error:
        _refuse(path, escape_text(str(error))[:200])
    if not isinstance(value, list):
        _refuse(path, "it is no list of modules")
    found = [item for item in value if isinstance(item, dict)]
    if len(found) < len(value):
        _refuse(path, "one of its modules is no object")
    return found


def _inside(root: Path, name: str) -> Path:
    """The directory of a module. E0427 for one that is not in the repository."""
    path = Path(os.path.normpath(root / name))
    if not path.is_relative_to(Path(os.path.normpath(root))):
        _refuse(root / MODULES, f"the path `{escape_text(name)[:60]}` leads out of it")
    return path


def _refuse(path: Path, why: str, notes: Sequence[str] = ()) -> NoReturn:
    raise_error(
        "E0427",
        f"`{escape_text(str(path))}`: {why}",
        notes=notes,
        helps=[
            "compile the encoder alone, which ignores modules.json: "
            "specc compile --spec NAME DIR --graph sentence_embeddings"
        ],
    )
