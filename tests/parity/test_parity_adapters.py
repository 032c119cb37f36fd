"""LoRA adapters saved by peft: a directory with the adapter merged into the weights gives the
results of peft's adapted model.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.elaborated_specs import assert_arrays_close
from support.hf_cases import TEXT_SAMPLES
from support.published_models import randomize_weights

import specc

peft = pytest.importorskip("peft")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

LLAMA: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "vocab_size": 31, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "eos_token_id": 2, "bos_token_id": 1,
}  # fmt: skip
BERT: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 40,
}  # fmt: skip
Made = tuple[str, str, dict[str, Any], dict[str, Any]]

CASES: dict[str, Made] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA, {"target_modules": ["q_proj", "down_proj"]}),
    "llama-rslora-ranks": (
        "LlamaForCausalLM", "LlamaConfig", LLAMA,
        {"target_modules": ["q_proj", "v_proj"], "use_rslora": True, "rank_pattern": {"v_proj": 2},
         "alpha_pattern": {"layers.1.self_attn.q_proj": 3}, "lora_alpha": 7},
    ),
    "llama-table-and-head": (
        "LlamaForCausalLM", "LlamaConfig", LLAMA,
        {"target_modules": ["embed_tokens", "lm_head", "o_proj"], "modules_to_save": ["norm"]},
    ),
    "llama-head-saved": ("LlamaForCausalLM", "LlamaConfig", LLAMA, {"target_modules": ["k_proj"], "modules_to_save": ["lm_head", "embed_tokens"]}),
    "gpt2-turned": ("GPT2LMHeadModel", "GPT2Config", GPT2, {"target_modules": ["c_attn", "c_fc", "c_proj"], "bias": "all"}),
    "gpt2-bias-of-its-own": ("GPT2LMHeadModel", "GPT2Config", GPT2, {"target_modules": ["c_attn"], "bias": "lora_only"}),
    "bert-new-head": (
        "BertForSequenceClassification", "BertConfig", BERT,
        {"target_modules": "all-linear", "lora_bias": True, "task_type": "SEQ_CLS", "modules_to_save": ["classifier"]},
    ),
}  # fmt: skip


def adapted(model: Any, given: dict[str, Any], seed: int) -> Any:
    """Return the model with an adapter with random weights: a fresh B is zero."""
    made = peft.get_peft_model(model, peft.LoraConfig(**{"r": 3, "lora_alpha": 5, **given}))
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in made.parameters():
            if p.requires_grad:
                p += 0.2 * torch.randn(p.shape, generator=source).to(p.dtype)
    return made.eval()


@pytest.mark.parametrize("name", CASES)
def test_a_merged_adapter_gives_what_peft_gives(name: str, tmp_path: Path) -> None:
    kind, config, tiny, given = CASES[name]
    base, directory = tmp_path / "base", tmp_path / "adapter"
    model = randomize_weights(getattr(transformers, kind)(getattr(transformers, config)(**tiny)))
    model.save_pretrained(base)
    theirs = adapted(model, given, seed=3)
    theirs.save_pretrained(directory)
    specc.compile(base, tmp_path / "m.onnx", adapter=directory)
    compare(tmp_path / "m.onnx", theirs.double())


def compare(path: Path, theirs: Any, within: float = 1e-5) -> None:
    """Compare one sequence, and three in a padded batch."""
    ours = specc.load(path, threads=1)
    for inputs in (TEXT_SAMPLES.get_sample(0), TEXT_SAMPLES.make_batch("right")):
        known = {
            n: v for n, v in inputs.items() if n in ours.selected_model.input_signature.graph.inputs
        }
        keep = torch.from_numpy(inputs["attention_mask"]).long()
        with torch.no_grad():
            wanted = theirs(
                input_ids=torch.from_numpy(inputs["input_ids"]), attention_mask=keep
            ).logits.numpy()
        got = ours.run(**known)["logits"]
        valid = keep.numpy().astype(bool) if got.ndim == 3 else slice(None)
        assert_arrays_close(got[valid], wanted[valid], "logits", within)


def test_adapter_in_the_checkpoint_directory(tmp_path: Path) -> None:
    """`from_pretrained` loads an adapter in the directory of the model. specc merges it, with a remark."""
    model = randomize_weights(transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)))
    model.save_pretrained(tmp_path)
    adapted(model, {"target_modules": ["q_proj", "v_proj"]}, seed=6).save_pretrained(tmp_path)
    report = specc.compile(tmp_path, tmp_path / "out.onnx")
    assert f"the LoRA adapter in `{tmp_path}` is merged into the weights" in report.remarks
    compare(
        tmp_path / "out.onnx",
        transformers.LlamaForCausalLM.from_pretrained(tmp_path).double().eval(),
    )


def test_base_model_with_the_head_of_the_adapter(tmp_path: Path) -> None:
    """The classifier was trained with the adapter and is in no other file."""
    _, _, tiny, given = CASES["bert-new-head"]
    config = transformers.BertConfig(**tiny)
    whole = randomize_weights(transformers.BertForSequenceClassification(config))
    whole.bert.save_pretrained(tmp_path / "body")
    theirs = adapted(whole, given, seed=4)
    theirs.save_pretrained(tmp_path / "adapter")
    specc.compile(
        tmp_path / "body",
        tmp_path / "m.onnx",
        graph="sequence_classification",
        adapter=tmp_path / "adapter",
    )
    compare(tmp_path / "m.onnx", theirs.double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_weights_are_merged_in_float64(dtype: torch.dtype, tmp_path: Path) -> None:
    """As if the adapter were applied to the widened weights: nothing is rounded to 16 bits."""
    model = randomize_weights(transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)))
    model.to(dtype).save_pretrained(tmp_path / "base")
    # read back: its table of frequencies is in no file, and was rounded with the others
    wide = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    theirs = adapted(wide, {"target_modules": ["q_proj", "o_proj"]}, seed=5)
    theirs.save_pretrained(tmp_path / "adapter")
    specc.compile(tmp_path / "base", tmp_path / "m.onnx", adapter=tmp_path / "adapter")
    compare(tmp_path / "m.onnx", theirs.double())


REFUSED: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "dora": ("use_dora", lambda: {"target_modules": ["q_proj"], "use_dora": True}),
    "a-beginning-of-its-own": ("init_lora_weights", lambda: {"target_modules": ["q_proj"], "init_lora_weights": "olora"}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_adapters_are_refused_by_name(name: str, tmp_path: Path) -> None:
    key, given = REFUSED[name]
    model = randomize_weights(transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)))
    model.save_pretrained(tmp_path / "base")
    adapted(model, given(), seed=1).save_pretrained(tmp_path / "adapter")
    with pytest.raises(specc.SpeccError, match="E0529") as failed:
        specc.compile(tmp_path / "base", tmp_path / "m.onnx", adapter=tmp_path / "adapter")
    primary = failed.value.diagnostics[0].primary
    assert primary is not None
    assert key in primary.span.text
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize("modules", [["embed_tokens"], ["lm_head"]])
def test_tied_weights_are_changed_for_one_user(modules: list[str], tmp_path: Path) -> None:
    """The adapter was trained beside one user of the weight, not both."""
    tied = transformers.LlamaConfig(**{**LLAMA, "tie_word_embeddings": True})
    model = randomize_weights(transformers.LlamaForCausalLM(tied))
    model.save_pretrained(tmp_path / "base")
    adapted(model, {"target_modules": modules}, seed=2).save_pretrained(
        tmp_path / "adapter", save_embedding_layers=False
    )
    with pytest.raises(specc.SpeccError, match="E0531"):
        specc.compile(tmp_path / "base", tmp_path / "m.onnx", adapter=tmp_path / "adapter")


def test_checkpoint_merged_by_peft(tmp_path: Path) -> None:
    """The directory merged by peft, saved and compiled, gives the same results."""
    model = randomize_weights(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)))
    model.save_pretrained(tmp_path / "base")
    theirs = adapted(model, {"target_modules": ["c_attn"], "fan_in_fan_out": True}, 6)
    theirs.save_pretrained(tmp_path / "adapter")
    theirs.merge_and_unload().save_pretrained(tmp_path / "merged")
    specc.compile(tmp_path / "base", tmp_path / "a.onnx", adapter=tmp_path / "adapter")
    specc.compile(tmp_path / "merged", tmp_path / "b.onnx")
    a, b = (specc.load(tmp_path / n).weights() for n in ("a.onnx", "b.onnx"))
    for name, array in a.items():
        # what an adapter changes lies in no file, and so is not left as a file has it
        ours = array if array.shape == b[name].shape else array.T
        assert np.abs(ours - b[name]).max() <= 1e-6 * np.abs(b[name]).max()
