"""Settings of a sentence-transformers directory are applied, reported or rejected."""

import json
from pathlib import Path
from typing import Any

import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.sentence_transformers import POOLING_EQUATIONS
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec

KIND = "sentence_transformers.models"
FILES: dict[str, Any] = {
    "config.json": {"model_type": "bert", "architectures": ["BertModel"]},
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": f"{KIND}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{KIND}.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": f"{KIND}.Dense"},
        {"idx": 3, "name": "3", "path": "3_Normalize", "type": f"{KIND}.Normalize"},
    ],
    "1_Pooling/config.json": {"embedding_dimension": 8, "pooling_mode": "cls"},
    "2_Dense/config.json": {"in_features": 8, "out_features": 4, "bias": True},
    "3_Normalize/config.json": {"module_input_name": "sentence_embedding"},
    "sentence_bert_config.json": {"max_seq_length": 8},
    "config_sentence_transformers.json": {"similarity_fn_name": "cosine"},
}
CHANGED = {
    "1_Pooling/config.json": {"pooling_mode": "max", "include_prompt": False},
    "2_Dense/config.json": {"out_features": 5, "bias": False, "use_residual": True},
    "3_Normalize/config.json": {"module_input_name": "token_embeddings"},
    "sentence_bert_config.json": {"transformer_task": "fill-mask"},
    "config_sentence_transformers.json": {
        "similarity_fn_name": "dot", "model_type": "SparseEncoder",
    },
}  # fmt: skip


ENCODER_ARGUMENTS: dict[str, Any] = {
    "processing_kwargs": {"text": {"add_special_tokens": False}},
    "processing_kwargs ": {"image": {"size": 8}},
    "tokenizer_args": {"unk_token": "?"},
    "processor_kwargs": {"unk_token": "?"},
    "model_args": {"dtype": "float16"},
    "config_args": {"layer_norm_eps": 0.1},
    "query_length": 4,
    "document_length": 4,
}
"""Arguments that sentence-transformers gives to other programs and specc does not follow."""


def get_outcome(directory: Path, files: dict[str, Any]) -> tuple[str, ...]:
    """Return the expanded spec and remarks, or the error code."""
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(json.dumps(content))
    try:
        spec = open_spec(str(directory))
    except SpeccError as failed:
        return (failed.diagnostics[0].code,)
    texts = [m.file.span.source.text for m in spec.library.modules.values() if m.file.span]
    return (*texts, *spec.remarks)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        *((n, k, v) for n, told in CHANGED.items() for k, v in told.items()),
        *((n, "never_heard_of", 3) for n in CHANGED),
        *(("sentence_bert_config.json", k.strip(), v) for k, v in ENCODER_ARGUMENTS.items()),
    ],
)
def test_every_setting_has_an_effect(name: str, key: str, value: object, tmp_path: Path) -> None:
    plain = get_outcome(tmp_path, FILES)
    assert len(plain) > 1, plain
    changed = {**FILES, name: {**FILES[name], key: value}}
    assert get_outcome(tmp_path, changed) != plain


@pytest.mark.parametrize("mode", POOLING_EQUATIONS)
def test_every_pooling_mode_uses_all_names(mode: str, tmp_path: Path) -> None:
    get_outcome(
        tmp_path,
        FILES | {"1_Pooling/config.json": {"embedding_dimension": 8, "pooling_mode": mode}},
    )
    assert not check_spec(open_spec(str(tmp_path))).warnings


def test_custom_code(tmp_path: Path) -> None:
    """`custom_st.Transformer` is not the Transformer of the library."""
    first, *rest = FILES["modules.json"]
    modules = [{**first, "type": "custom_st.Transformer"}, *rest]
    assert get_outcome(tmp_path, {**FILES, "modules.json": modules}) == ("E0427",)


@pytest.mark.parametrize(
    ("architectures", "graph"),
    [
        (["XLMRobertaModel"], "embeddings"),
        (["AltCLIPTextModel"], "projected_embeddings"),
        (["RobertaForMaskedLM"], "embeddings"),
        (None, "embeddings"),
    ],
)
def test_the_encoder_is_the_graph_of_its_class(
    architectures: list[str] | None, graph: str, tmp_path: Path
) -> None:
    """Of several graphs with hidden states, that of the class in config.json, or of the base."""
    config = {"model_type": "xlm-roberta", "architectures": architectures}
    text = "".join(get_outcome(tmp_path, {**FILES, "config.json": config}))
    assert f".{graph}(input_ids" in text
