"""Apply export profiles to derived graphs, build genai_config.json, and read the tokenizer and
config files that packages contain.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from specc.analysis.length_limits import find_length_limits
from specc.backend import ExtraFile
from specc.decode.setting_validation import ensure_list, parse_strategy_setting
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.driver.compile_options import PROFILES
from specc.driver.hf_decoder_profile import (
    IDS,
    LOGITS,
    MASK,
    POSITIONS,
    ExportedGraphs,
    build_decoder,
    raise_unsupported_profile_error,
)
from specc.driver.hf_encoder_decoder_profile import build_encoder_decoder_graphs
from specc.huggingface.audio_and_ctc_processor_files import find_repository_files
from specc.io.json_io import get_exact_integer
from specc.io.safe_read import escape_text, read_required_file
from specc.ir.graph import Graph, select_entries
from specc.ir.model_definition import (
    DecodeState,
    DerivedGraphs,
    GenerateSection,
    ModelDefinition,
    count_codebooks,
)

GENAI_FILE = "genai_config.json"
DEFAULT_MAX_LENGTH = 131072
"""Maximum sequence length in the config if the model has no limit. KV caches grow on demand, so a
large value does not increase memory use.
"""

GENAI_OPTIONS = (
    *("temperature", "top_k", "top_p", "repetition_penalty"),
    *("num_beams", "num_return_sequences", "length_penalty"),
)
"""Decoding strategy options that have the same name in onnxruntime-genai."""
CACHE_NAME_PATTERNS = {
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
    "present_key_names": "present.%d.key",
    "present_value_names": "present.%d.value",
}


def build_genai_config(
    model: ModelDefinition,
    generation: GenerateSection,
    graph: Graph,
    states: tuple[DecodeState, ...],
) -> dict[str, Any]:
    """Build the content of genai_config.json. `graph` is the decoder with the `genai` profile's
    input and output names. `states` are the key and value caches of the decoder, two per layer.
    """
    settings = generation.settings
    inputs = {n: n for n in (IDS, MASK, POSITIONS) if n in graph.inputs}
    kv_heads, head_size = states[0].type.shape[1].number, states[0].type.shape[3].number
    decoder = {
        "filename": "model.onnx",
        "head_size": head_size,
        "num_hidden_layers": len(states) // 2,
        "num_key_value_heads": kv_heads,
        "inputs": inputs | {n: p for n, p in CACHE_NAME_PATTERNS.items() if n.startswith("past")},
        "outputs": {"logits": LOGITS}
        | {n: p for n, p in CACHE_NAME_PATTERNS.items() if n.startswith("present")},
    }
    max_length = _find_max_sequence_length(model, generation)

    return {
        "model": {
            "type": "decoder",
            "vocab_size": graph.outputs[LOGITS].shape[-1].number,
            "context_length": max_length,
            **_collect_special_tokens(settings),
            "decoder": decoder,
        },
        "search": {
            **_translate_search_options(settings),
            "max_length": max_length,
            "past_present_share_buffer": False,
        },
    }


def _find_max_sequence_length(model: ModelDefinition, generation: GenerateSection) -> int:
    """Return the maximum sequence length in tokens: the size of the smallest position embedding
    table. If there are no position embeddings, return the config value `context` or
    `DEFAULT_MAX_LENGTH`.
    """
    symbol = model.graph.inputs[generation.sequence_input].shape[1].name or ""
    if limit := find_length_limits(model.graph).get(symbol):
        return limit.max_length
    context = get_exact_integer(model.config.get("context"))
    return context if context is not None and context > 0 else DEFAULT_MAX_LENGTH


def _collect_special_tokens(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the special tokens in the generation settings. `pad` defaults to the first stop
    token.
    """
    start, stop = (
        [] if tokens is None else [*ensure_list(tokens)]
        for tokens in (settings.get("start"), settings.get("stop"))
    )
    tokens = {
        "bos_token_id": start[0] if start else None,
        "eos_token_id": stop[0] if len(stop) == 1 else stop or None,
        "pad_token_id": settings.get("pad", stop[0] if stop else None),
    }
    return {name: value for name, value in tokens.items() if value is not None}


def _translate_search_options(settings: Mapping[str, object]) -> dict[str, object]:
    """Translate generation settings to the search options of onnxruntime-genai."""
    strategy, strategy_options = parse_strategy_setting(settings.get("strategy") or "greedy")
    options = {"do_sample": strategy == "sample", **select_entries(strategy_options, GENAI_OPTIONS)}
    if strategy_options.get("early_stopping") is not None:
        options["early_stopping"] = strategy_options["early_stopping"] is True
    return options


RETURNED_LOGITS: Mapping[str, Literal["newest", "new"]] = {
    "specc": "newest",
    "hf": "new",
    "genai": "newest",
}
"""The positions for which the step graph returns logits, keyed by profile. With the `hf` profile,
the graph returns the logits of all new positions. With other profiles, the graph returns only the
last position's logits.
"""


def check_export_profile(profile: str) -> None:
    """Raise E0751 if the export profile does not exist."""
    if profile not in PROFILES:
        raise_error(
            "E0751",
            f"unknown naming convention `{escape_text(profile)}`",
            helps=suggest_similar_name(profile, PROFILES, f"expected one of {', '.join(PROFILES)}"),
        )


def apply_export_profile(
    profile: str, model: ModelDefinition, derived_graphs: DerivedGraphs
) -> ExportedGraphs:
    """Return the graphs in `derived_graphs` with the names and tensor layouts that `profile`
    requires.

    The profile `specc` exports `encode` (if the model has an encoder) and `step` unchanged. The
    profile `hf` exports `model`, or `encoder_model`, `decoder_model` and `decoder_with_past_model`.
    The profile `genai` exports `model` and `genai_config.json`. Raise E0752 if the profile cannot
    represent the model.
    """
    generation = model.generation
    assert generation is not None, f"{model.name} has no `generate` section"
    if profile == "specc":
        encode = {"encode": derived_graphs.encode} if derived_graphs.encode else {}
        return ExportedGraphs({**encode, "step": derived_graphs.step}, derived_graphs.states)
    if codebooks := count_codebooks(model.graph.inputs[generation.sequence_input].type):
        raise_unsupported_profile_error(profile, f"it has {codebooks} codebooks per step")
    if profile == "hf" and derived_graphs.encode is not None:
        exported = build_encoder_decoder_graphs(derived_graphs, generation.logits_output)
    else:
        graph, states = build_decoder(profile, derived_graphs, generation.logits_output)
        exported = ExportedGraphs({"model": graph}, states)
    if profile == "genai":
        files = {GENAI_FILE: build_genai_config(model, generation, graph, states)}
        exported = replace(exported, json_files=files)
    # each graph is named after the stem of its model file
    renamed_graphs = {stem: replace(graph, name=stem) for stem, graph in exported.graphs.items()}
    return replace(exported, graphs=renamed_graphs)


CONFIG_FILE = "config.json"


TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"


REPOSITORY_FILES = (
    CONFIG_FILE,
    "generation_config.json",
    TOKENIZER,
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "source.spm",
    "target.spm",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
)
"""Names of companion files that other programs store next to the weights."""


MAX_COMPANION_BYTES = 64 * 2**20


DEFAULT_TOKENIZER_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast"}
"""The generated tokenizer config of a checkpoint that only has a `tokenizer.json`."""


def find_tokenizer_and_config_paths(directories: Sequence[Path]) -> list[Path]:
    """Return the paths of companion files, each in the first directory that contains it."""
    return find_repository_files(directories, REPOSITORY_FILES)


def read_runtime_files(
    profile: str, directories: Sequence[Path], excluded: Collection[str]
) -> Iterator[ExtraFile]:
    """Yield the companion files (tokenizer, config) that the runtime of a profile loads from a
    package, except those in `excluded`.

    onnxruntime-genai loads tokenizer.json and tokenizer_config.json. If a checkpoint only has
    tokenizer.json, tokenizer_config.json is generated. Raise E0802 if a file cannot be read.
    """
    if profile == "specc":
        return
    names = set(excluded)
    for path in find_tokenizer_and_config_paths(directories):
        if path.name not in names:
            names.add(path.name)
            yield ExtraFile(path.name, read_required_file(path, MAX_COMPANION_BYTES))
    if TOKENIZER in names and TOKENIZER_CONFIG not in names:
        yield ExtraFile.from_json(TOKENIZER_CONFIG, DEFAULT_TOKENIZER_CONFIG)


def describe_missing_runtime_files(profile: str, directories: Sequence[Path]) -> tuple[str, ...]:
    """Return a note for each missing file that the profile's runtime needs to load the package."""
    present_names = {path.name for path in find_tokenizer_and_config_paths(directories)}
    if profile == "hf" and CONFIG_FILE not in present_names:
        return (
            "Optimum and transformers.js require a config.json next to the graphs; there is none "
            "next to the weights",
        )
    if profile == "genai" and TOKENIZER not in present_names:
        return (
            "onnxruntime-genai requires a tokenizer.json next to the graph to tokenize; "
            "there is none next to the weights",
        )
    return ()
