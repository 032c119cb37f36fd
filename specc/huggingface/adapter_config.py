"""Read the adapter_config.json of a LoRA adapter, or the file of a language adapter."""

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, TypeVar

from specc.diagnostics.diagnostic import raise_error
from specc.frontend.json_parser_with_spans import JsonMember, JsonObject, get_finite_number
from specc.io.safe_read import escape_text
from specc.library.spec_file_lookup import load_config_json
from specc.weights.checkpoint_files import raise_pickle_error
from specc.weights.formats.safetensors import open_safetensors
from specc.weights.lora import LoraAdapter
from specc.weights.lora_scaling_and_targets import LoraScaling, LoraTargets

Item = TypeVar("Item", str, int)
ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_WEIGHTS_FILE = "adapter_model.safetensors"
ADAPTER_PICKLE_FILE = "adapter_model.bin"
ADAPTER_PREFIX, ADAPTER_SUFFIX = "adapter.", ".safetensors"
"""Prefix and suffix of a language adapter's file name, such as `adapter.fra.safetensors`."""

_IGNORED_KEYS = frozenset(
    {
        # keys that identify the base model and the library
        "auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version",
        "revision", "runtime_config", "task_type",
        # keys of fully trained modules; such modules are recognized by their tensors
        "bias", "ensure_weight_tying", "lora_bias",
        # training settings, and initializations that do not change the base weights
        "corda_config", "eva_config", "loftq_config", "lora_dropout", "lora_ga_config",
        "megatron_core",
        # options that have an effect only if another key enables the feature
        "qalora_group_size",
    }
)  # fmt: skip
"""Keys of adapter_config.json that do not affect the merged weights."""
_READ_KEYS = frozenset(
    {
        "alpha_pattern", "exclude_modules", "fan_in_fan_out", "init_lora_weights",
        "layers_pattern", "layers_to_transform", "lora_alpha", "modules_to_save",
        "peft_type", "r", "rank_pattern", "target_modules", "use_rslora",
    }
)  # fmt: skip
_SUPPORTED_INITIALIZATIONS = (True, False, None, "gaussian", "eva", "orthogonal")
"""LoRA initializations that do not change the base weights."""
_MODULE_NAME_CHARACTERS = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_."
)


def is_language_adapter(adapter: str) -> bool:
    """Return True if an adapter is a file of complete weights (MMS), not a PEFT directory."""
    return adapter.endswith(ADAPTER_SUFFIX)


def find_embedded_adapter(checkpoint: str) -> str:
    """Return the checkpoint directory if it also contains a LoRA adapter, otherwise "".

    `from_pretrained` of transformers loads such an adapter together with the model.
    """
    return checkpoint if checkpoint and (Path(checkpoint) / ADAPTER_CONFIG_FILE).is_file() else ""


def list_adapter_config_files(adapter: str) -> list[Path]:
    """Return the config files of an adapter, or [] if there is no adapter ("")."""
    has_no_config = not adapter or is_language_adapter(adapter)
    return [] if has_no_config else [Path(adapter) / ADAPTER_CONFIG_FILE]


def get_adapter_language(adapter: str) -> str:
    """Return the language in a file name such as `adapter.fra.safetensors`, otherwise ""."""
    name = Path(adapter).name
    if not is_language_adapter(adapter) or not name.startswith(ADAPTER_PREFIX):
        return ""
    return name.removeprefix(ADAPTER_PREFIX).removesuffix(ADAPTER_SUFFIX).lstrip(".")


def open_adapter(adapter: str) -> LoraAdapter:
    """Open a LoRA or language adapter. Raise E0514, E0529, E0530, E0802 or an error of the file."""
    path = Path(adapter)
    if is_language_adapter(adapter):
        return LoraAdapter.from_mms_adapter(open_safetensors(path))
    config = load_config_json(
        path / ADAPTER_CONFIG_FILE, "pass a directory with an adapter saved by peft"
    )
    scaling, targets = _read_scaling(config), _read_targets(config)
    weights = path / ADAPTER_WEIGHTS_FILE
    if not weights.exists():
        _raise_missing_weights(path)
    file = open_safetensors(weights)
    try:
        return LoraAdapter(file, scaling, targets)
    except BaseException:
        file.close()
        raise


def _raise_missing_weights(adapter: Path) -> NoReturn:
    """Raise E0514 for an adapter with pickled weights, and E0802 for an adapter without weights."""
    if (pickle := adapter / ADAPTER_PICKLE_FILE).exists():
        raise_pickle_error(pickle)
    helps = ["save it again with `save_pretrained` of peft"]
    if (adapter / "config.json").exists():
        helps.append(f"or delete {ADAPTER_CONFIG_FILE} to compile the model without an adapter")
    title = f"the adapter `{escape_text(adapter)}` has no {ADAPTER_WEIGHTS_FILE}"
    raise_error("E0802", title, helps=helps)


def _read_scaling(config: JsonObject) -> LoraScaling:
    """Read the LoRA scaling of an adapter. Raise an error if the adapter cannot be merged."""
    kind = _read_value(config, "peft_type")
    if kind != "LORA":
        _raise_unsupported_setting(
            config, "peft_type", f"unsupported `peft_type` {escape_text(kind)}, expected LORA"
        )
    for key, member in config.members.items():
        if key not in _IGNORED_KEYS | _READ_KEYS and member.value.to_python():
            _raise_unsupported_setting(
                config,
                key,
                f'"{escape_text(key)}" changes the computation of the adapter and is not supported',
            )
    if _read_value(config, "init_lora_weights", True) not in _SUPPORTED_INITIALIZATIONS:
        _raise_unsupported_setting(
            config,
            "init_lora_weights",
            "the initial weights of the adapter training were not those of the checkpoint",
            "convert the adapter when saving it: option "
            "path_initial_model_for_weight_conversion of peft",
        )
    return LoraScaling(
        rank=_read_rank(config, "r", config.find_member("r"), 8),
        alpha=_read_number(config, "lora_alpha", config.find_member("lora_alpha"), 8.0),
        is_rank_stabilized=_read_flag(config, "use_rslora"),
        is_transposed=_read_flag(config, "fan_in_fan_out"),
        ranks={
            k: _read_rank(config, k, m, 0) for k, m in _read_pattern_object(config, "rank_pattern")
        },
        alphas={
            k: _read_number(config, k, m, 0.0)
            for k, m in _read_pattern_object(config, "alpha_pattern")
        },
    )


def _read_targets(config: JsonObject) -> LoraTargets:
    """Read the target modules of an adapter. A regular expression (or `all-linear`) is not
    evaluated, because its run time is unbounded. Tensor names determine the modules instead.
    """
    target_modules = _read_list(config, "target_modules", str)
    has_default_layers = _read_value(config, "layers_pattern") in (None, "", [])
    return LoraTargets(
        # `all-linear` may also be the only item in a list
        target_modules=None
        if target_modules is None or "all-linear" in target_modules
        else target_modules,
        modules_to_save=_read_list(config, "modules_to_save", str) or (),
        excluded_modules=_read_list(config, "exclude_modules", str) or (),
        # with custom layer names, the number before the last component is not always a layer index
        layer_indices=_read_list(config, "layers_to_transform", int)
        if has_default_layers
        else None,
    )


def _read_list(config: JsonObject, key: str, item_type: type[Item]) -> list[Item] | None:
    """Read the list under a key. Convert an integer to a list. Return None for a string or null."""
    value = _read_value(config, key)
    if isinstance(value, str) or value is None:
        return None
    items = value if isinstance(value, list) else [value]
    typed_items = [item for item in items if isinstance(item, item_type)]
    if len(typed_items) < len(items):
        _raise_invalid_config(
            config, config.find_member(key), f'"{key}" contains values of the wrong type'
        )
    return typed_items


def _read_value(config: JsonObject, key: str, default: object = None) -> object:
    member = config.find_member(key)
    return default if member is None else member.value.to_python()


def _read_pattern_object(config: JsonObject, key: str) -> list[tuple[str, JsonMember]]:
    """Read an object that maps suffixes of module names to numbers."""
    member = config.find_non_null_member(key)
    if member is None:
        return []
    if not isinstance(member.value, JsonObject):
        _raise_invalid_config(config, member, f'"{key}" is not an object')
    members: Mapping[str, JsonMember] = member.value.members
    for pattern, entry in members.items():
        # PEFT interprets keys as regular expressions. Only plain names are accepted here, because
        # the run time of regular expressions is unbounded.
        if not set(pattern) <= _MODULE_NAME_CHARACTERS:
            _raise_unsupported_member(
                entry, f'`{escape_text(pattern)[:60]}` in "{key}" is not a suffix of a module name'
            )
    return list(members.items())


def _read_rank(config: JsonObject, key: str, member: JsonMember | None, default: int) -> int:
    value = default if member is None else get_finite_number(member.value)
    if not isinstance(value, int) or value < 1:
        _raise_invalid_config(config, member, f'"{escape_text(key)}" must be an integer > 0')
    return value


def _read_number(config: JsonObject, key: str, member: JsonMember | None, default: float) -> float:
    if member is None:
        return default
    value = get_finite_number(member.value)
    if value is None:
        _raise_invalid_config(config, member, f'"{escape_text(key)}" must be a number')
    return float(value)


def _read_flag(config: JsonObject, key: str) -> bool:
    value = _read_value(config, key)
    if not isinstance(value, bool | None):
        _raise_invalid_config(config, config.find_member(key), f'"{key}" must be true or false')
    return value is True


def _raise_invalid_config(config: JsonObject, member: JsonMember | None, reason: str) -> NoReturn:
    raise_error(
        "E0530",
        "the adapter's config cannot be read",
        member.value.span if member else config.span,
        reason,
        helps=["save it again with `save_pretrained` of peft"],
    )


def _raise_unsupported_setting(
    config: JsonObject, key: str, reason: str, help: str = ""
) -> NoReturn:
    member = config.find_member(key)
    if member is None:
        _raise_invalid_config(config, None, f'"{key}" is missing')
    _raise_unsupported_member(member, reason, help)


def _raise_unsupported_member(member: JsonMember, reason: str, help: str = "") -> NoReturn:
    raise_error(
        "E0529",
        "this adapter cannot be merged exactly",
        member.span,
        reason,
        helps=[
            *([help] if help else []),
            "merge it in peft with `merge_and_unload` and `save_pretrained`, and compile that "
            "directory",
        ],
    )
