"""Every field of a published family's config that changes its numbers is obeyed or
refused, never passed over.

The fields are those of transformers' config class, found by asking it. Each is set to
other values in a tiny model's config.json. Where that changes the published model's
results or weights, the spec must give the same results from the same file, or refuse
the file with a code.
"""

import copy
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.published import Arrays

import specc_numpy
from specc.compiler import weights as loading
from specc.compiler.rules import rules_of, wanted_of
from specc.compiler.spec import open_spec
from specc.elaborate.context import Env
from specc.elaborate.model import context_of, elaborate, requirements
from specc.text.diagnostic import Failed
from specc.weights.values import array_of

pytestmark = pytest.mark.parity

WITHIN = 1e-5
IDS = np.array([[3, 17, 1, 29, 8, 8, 22, 5, 11, 2, 30, 19]])
SHORT = IDS[:, :7] % 31


@dataclass(frozen=True)
class Family:
    """A spec, the published class it is, a tiny configuration, and how both are run."""

    spec: str
    config: str
    model: str
    tiny: Mapping[str, Any]
    inputs: Callable[[Mapping[str, Any]], Arrays]
    run: Callable[[Any, Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]
    others: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


def text_inputs(config: Mapping[str, Any]) -> Arrays:
    """A text without padding."""
    return {"input_ids": IDS, "attention_mask": np.ones(IDS.shape, bool)}


def run_decoder(
    model: Any, x: Mapping[str, torch.Tensor]
) -> Mapping[str, torch.Tensor]:
    """The scores of each next word."""
    return {
        "logits": model(
            input_ids=x["input_ids"], use_cache=False, return_dict=True
        ).logits
    }


def run_bert(model: Any, x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Both heads."""
    made = model(
        input_ids=x["input_ids"], token_type_ids=x["token_type_ids"], return_dict=True
    )
    return {n: made[n] for n in ("prediction_logits", "seq_relationship_logits")}


def run_t5(model: Any, x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """The scores of each next word of the answer."""
    made = model(
        input_ids=x["source"],
        decoder_input_ids=x["target"],
        use_cache=False,
        return_dict=True,
    )
    return {"logits": made.logits}


def pixels(config: Mapping[str, Any]) -> Arrays:
    """A picture of the size that the configuration names."""
    size = config["image_size"]
    drawn = np.random.default_rng(1).standard_normal(
        (1, config["num_channels"], size, size)
    )
    return {"pixels": drawn.astype(np.float32).astype(np.float64)}


def noisy_pixels(config: Mapping[str, Any]) -> Arrays:
    """A picture, and the noise that says which patches are seen."""
    count = (config["image_size"] // config["patch_size"]) ** 2
    return {
        **pixels(config),
        "noise": np.random.default_rng(2).permutation(count)[None] / count,
    }


ACTIVATIONS = ("relu", "gelu", "gelu_new", "quick_gelu", "silu", "mish")
SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "hidden_size": 32,
}
DECODER = {"vocab_size": 31, "max_position_embeddings": 20, **SIZES}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
DIVISORS = [1.0 + n / 4 for n in range(4)]
ROPES: tuple[Any, ...] = (
    {"rope_type": "default", "rope_theta": 50.0},
    {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0, "partial_rotary_factor": 0.5},
    {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0},
    {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": DIVISORS, "long_factor": DIVISORS, "factor": 4.0},
    YARN,
    *({**YARN, **more} for more in (
        {"mscale": 0.7}, {"mscale": 0.7, "mscale_all_dim": 0.4}, {"mscale_all_dim": 0.4}, {"truncate": False},
        {"mscale": 0, "mscale_all_dim": 0.4}, {"mscale": 1.0, "mscale_all_dim": 1.0}, {"attention_factor": 1.3},
        {"attention_factor": 1.3, "mscale": 0.7, "mscale_all_dim": 0.4}, {"beta_fast": 8.0}, {"beta_slow": 0.2},
        {"beta_fast": 0}, {"beta_slow": 0}, {"beta_fast": None}, {"factor": 1.0}, {"factor": None},
        {"partial_rotary_factor": 0.5}, {"rope_theta": 3.0}, {"original_max_position_embeddings": 4},
        {"type": "linear"}, {"beta_fast": 8.0, "beta_slow": 0.2, "truncate": False})),
    {k: v for k, v in YARN.items() if k != "original_max_position_embeddings"},
    {k: v for k, v in YARN.items() if k != "rope_theta"},
    {k: v for k, v in YARN.items() if k != "factor"},
    LLAMA3,
    {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"},
    {k: v for k, v in LLAMA3.items() if k != "low_freq_factor"},
    {k: v for k, v in LLAMA3.items() if k != "high_freq_factor"},
    {k: v for k, v in LLAMA3.items() if k != "factor"},
    {**LLAMA3, "partial_rotary_factor": 0.5},
    {},
)  # fmt: skip
OLD_ROPES: tuple[Any, ...] = tuple(
    {("type" if k == "rope_type" else k): v for k, v in rope.items() if k != "rope_theta"}
    for rope in (ROPES[2], YARN, {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4}, LLAMA3,
                 {"rope_type": "yarn", "factor": 4.0}, {"rope_type": "dynamic", "factor": 2.0})
)  # fmt: skip
ROTARY: Mapping[str, tuple[Any, ...]] = {
    "rope_parameters": ROPES,
    "rope_scaling": OLD_ROPES,
    "rope_theta": (50.0, 7),
    "partial_rotary_factor": (0.5,),
    "original_max_position_embeddings": (8,),
    "default_theta": (77.0,),
    "num_key_value_heads": (4, 2, 1),
    "head_dim": (6, 16),
    "layer_types": (["full_attention", "sliding_attention"],),
}

FAMILIES = [
    Family(
        "bert", "BertConfig", "BertForPreTraining", {**DECODER, "type_vocab_size": 3},
        lambda c: {**text_inputs(c), "token_type_ids": SHORT.repeat(2, 1)[:, :12] % 2}, run_bert,
        {"position_embedding_type": ("relative_key", "relative_key_query")},
    ),
    Family("gpt2", "GPT2Config", "GPT2LMHeadModel",
           {"vocab_size": 31, "n_positions": 20, "n_embd": 32, "n_layer": 3, "n_head": 4}, text_inputs, run_decoder),
    Family("llama", "LlamaConfig", "LlamaForCausalLM", DECODER, text_inputs, run_decoder, ROTARY),
    Family("mistral", "MistralConfig", "MistralForCausalLM", {**DECODER, "num_key_value_heads": 2, "head_dim": 8},
           text_inputs, run_decoder, {**ROTARY, "sliding_window": (3, None)}),
    Family("mixtral", "MixtralConfig", "MixtralForCausalLM",
           {**DECODER, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4}, text_inputs, run_decoder,
           {**ROTARY, "sliding_window": (3, None), "num_experts_per_tok": (1, 3)}),
    Family("bloom", "BloomConfig", "BloomForCausalLM",
           {"vocab_size": 31, "hidden_size": 24, "n_layer": 2, "n_head": 6}, text_inputs, run_decoder),
    Family(
        "t5", "T5Config", "T5ForConditionalGeneration",
        {"vocab_size": 31, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3,
         "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12},
        lambda c: {"source": IDS, "source_keep": np.ones(IDS.shape, bool), "target": SHORT,
                   "target_keep": np.ones(SHORT.shape, bool)},
        run_t5, {"feed_forward_proj": ("gated-gelu", "gated-silu", "gelu", "gated-relu")},
    ),
    Family("vit", "ViTConfig", "ViTForImageClassification",
           {**SIZES, "image_size": 12, "patch_size": 3, "num_channels": 2, "id2label": {"0": "a", "1": "b"}}, pixels,
           lambda m, x: {"logits": m(x["pixels"], return_dict=True).logits}, {"id2label": (None,)}),
    Family(
        "vit_mae", "ViTMAEConfig", "ViTMAEForPreTraining",
        {**SIZES, "image_size": 12, "patch_size": 3, "num_channels": 2, "decoder_hidden_size": 16,
         "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2, "decoder_intermediate_size": 24},
        noisy_pixels, lambda m, x: {"patches": m(x["pixels"], noise=x["noise"], return_dict=True).logits},
    ),
    Family("mamba", "MambaConfig", "MambaForCausalLM",
           {"vocab_size": 31, "hidden_size": 20, "state_size": 4, "num_hidden_layers": 2, "conv_kernel": 3,
            "time_step_rank": 3}, text_inputs, run_decoder,
           {"time_step_rank": (5,), "expand": (1, 3), "conv_kernel": (4,), "state_size": (7,)}),
    Family("swin", "SwinConfig", "SwinForImageClassification",
           {"image_size": 16, "patch_size": 2, "num_channels": 2, "embed_dim": 8, "depths": [2, 2],
            "num_heads": [2, 4], "window_size": 3, "id2label": {"0": "a", "1": "b"}}, pixels,
           lambda m, x: {"logits": m(x["pixels"], return_dict=True).logits},
           {"id2label": (None,), "depths": ([1, 3],), "num_heads": ([4, 1],), "window_size": (2, 4, 8)}),
    Family("convnext", "ConvNextConfig", "ConvNextForImageClassification",
           {"image_size": 16, "patch_size": 2, "num_channels": 2, "hidden_sizes": [6, 8], "depths": [2, 1],
            "num_stages": 2, "id2label": {"0": "a", "1": "b"}}, pixels,
           lambda m, x: {"logits": m(x["pixels"], return_dict=True).logits},
           {"id2label": (None,), "depths": ([1, 3],), "hidden_sizes": ([8, 4],), "layer_scale_init_value": (0.0, 0.5)}),
    Family("rwkv", "RwkvConfig", "RwkvForCausalLM",
           {"vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 3, "intermediate_size": 40,
            "attention_hidden_size": 24, "context_length": 16},
           text_inputs, run_decoder, {"rescale_every": (1, 2, 0, -2), "num_hidden_layers": (7,)}),
]  # fmt: skip
EXPERTS = {
    **DECODER,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
LATENT = {
    **DECODER, "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "kv_lora_rank": 12, "q_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 6, "n_group": 4, "topk_group": 2, "num_key_value_heads": 4,
}  # fmt: skip
SPARSE: Mapping[str, tuple[Any, ...]] = ROTARY | {
    "num_experts_per_tok": (1, 3), "first_k_dense_replace": (0, 2), "q_lora_rank": (None,), "topk_group": (1, 4),
    "topk_method": ("group_limited_greedy",), "n_group": (2, None), "sliding_window": (3, None),
    "mlp_only_layers": ([1], None), "decoder_sparse_step": (2,), "n_shared_experts": (2,),
}  # fmt: skip
FAMILIES_OF_EXPERTS = [
    Family("qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", {**EXPERTS, "moe_intermediate_size": 24},
           text_inputs, run_decoder, SPARSE),
    Family("gpt_oss", "GptOssConfig", "GptOssForCausalLM", EXPERTS, text_inputs, run_decoder, SPARSE),
    Family("deepseek_v2", "DeepseekV2Config", "DeepseekV2ForCausalLM", LATENT, text_inputs, run_decoder, SPARSE),
    Family("deepseek_v3", "DeepseekV3Config", "DeepseekV3ForCausalLM", LATENT, text_inputs, run_decoder, SPARSE),
]  # fmt: skip
EVERY = [
    *FAMILIES,
    *(pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES_OF_EXPERTS),
]


def named(value: object) -> str:
    """A test is called as its spec."""
    return value.spec if isinstance(value, Family) else ""


def others(name: str, value: Any) -> tuple[Any, ...]:
    """Other values of a field, by its kind and what it is now."""
    if isinstance(value, str) and name.endswith(
        ("_act", "activation_function", "act_fn")
    ):
        return ACTIVATIONS
    match value:
        case bool():
            return (not value,)
        case int():
            return (max(2 * value, 1),)
        case float():
            return (value * 3 + 0.1,)
        case str():
            return ("relu",)
        case None:
            return (True, 3, 0.5)
        case list():
            return ([*value, *value],)
        case dict():
            return ({"0": "a", "1": "b", "2": "c"},)
    return ()


def changes(family: Family) -> Iterator[tuple[str, Any]]:
    """Every field of the class, and of the tiny configuration, with each other value it
    is tried with.
    """
    usual = getattr(transformers, family.config)(**family.tiny).to_dict()
    for name in sorted({*usual, *family.others}):
        tried = (*family.others.get(name, ()), *others(name, usual.get(name)))
        yield from ((name, value) for value in tried)


@dataclass(frozen=True)
class Made:
    """A published model made small, and its results."""

    model: Any
    results: Arrays

    def weights(self) -> Arrays:
        """Every weight, tied ones under each name."""
        return {n: p.numpy() for n, p in self.model.state_dict().items()}

    def same(self, other: "Made") -> bool:
        """Whether neither weights nor results differ."""
        pairs = ((self.weights(), other.weights()), (self.results, other.results))
        return all(
            a.keys() == b.keys() and all(np.array_equal(x, b[n]) for n, x in a.items())
            for a, b in pairs
        )


def published(family: Family, settings: Mapping[str, Any], folder: Path) -> Made:
    """What transformers makes of a config.json, with weights that only their names and
    shapes decide.
    """
    (folder / "config.json").write_text(json.dumps(settings))
    config = getattr(transformers, family.config).from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager"
    )
    model = getattr(transformers, family.model)(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            drawn = np.random.default_rng(list(name.encode())).standard_normal(
                tuple(p.shape)
            )
            drawn = (
                drawn / p[0].numel() ** 0.5
                if p.dim() > 1
                else 0.3 * drawn + name.endswith("weight")
            )
            p.copy_(torch.from_numpy(drawn))
        given = {
            n: torch.from_numpy(x.copy()) for n, x in family.inputs(settings).items()
        }
        # run on a copy: some classes change their weights when they first run
        made = family.run(copy.deepcopy(model).double(), given)
    return Made(model, {n: x.double().numpy() for n, x in made.items()})


def ours(
    family: Family, settings: Mapping[str, Any], theirs: Any, folder: Path
) -> Arrays:
    """What the spec gives in float64 for the same config.json and the file that the
    model is saved as.
    """
    theirs.float().save_pretrained(folder / "saved")
    (folder / "saved" / "config.json").write_text(json.dumps(settings))
    spec = open_spec(family.spec, config=str(folder / "saved"))
    model = elaborate(spec.program, spec.library, spec.reader)
    context = context_of(spec.library)
    config = requirements(context, spec.program, spec.reader)
    rules = rules_of(
        context, spec.program, Env(module=spec.program.module, config=config)
    )
    values = loading.bound(
        wanted_of(model.graph), rules, str(folder / "saved" / "model.safetensors")
    )
    weights = {
        name: array_of(values, values.tied_to(name) or name) for name in values.wanted
    }
    return specc_numpy.run(model.graph, family.inputs(settings), weights)


def agree(found: Arrays, wanted: Arrays) -> bool:
    """Whether all results are those that are due."""
    return all(
        found[n].shape == x.shape
        and np.abs(found[n] - x).max(initial=0) <= WITHIN * np.abs(x).max(initial=0)
        for n, x in wanted.items()
    )


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """One thread, as the models are tiny; no bars and no remarks."""
    threads, level = torch.get_num_threads(), transformers.logging.get_verbosity()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    yield
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity(level)
    transformers.logging.enable_progress_bar()


@pytest.mark.parametrize("family", EVERY, ids=named)
def test_every_field_that_changes_numbers_is_obeyed_or_refused(
    family: Family, tmp_path: Path
) -> None:
    base = {
        "model_type": getattr(transformers, family.config).model_type,
        **family.tiny,
    }
    usual = published(family, base, tmp_path)
    assert agree(ours(family, base, usual.model, tmp_path), usual.results)
    usual.model.double()
    outcome: Counter[str] = Counter()
    for name, value in changes(family):
        outcome[
            _tried(family, {**base, name: value}, usual, tmp_path) or f"{name}: {value}"
        ] += 1
    wrong = sorted(outcome.keys() - OUTCOMES)
    assert not wrong, f"passed over: {wrong}"
    assert outcome["obeyed"] >= 5, outcome
    assert outcome["breaks"] < outcome.total() / 3, outcome


PAIRS = 25


@pytest.mark.parametrize("family", EVERY, ids=named)
def test_two_fields_at_once_are_obeyed_or_refused(
    family: Family, tmp_path: Path
) -> None:
    """Two values off their defaults together, of those that count alone."""
    model_type = getattr(transformers, family.config).model_type
    base = {"model_type": model_type, **family.tiny}
    usual = published(family, base, tmp_path)
    tried = [
        (n, v) for n, v in changes(family) if n not in family.tiny or n in family.others
    ]
    rng, found = random.Random(0), Counter[str]()
    while found.total() < PAIRS:
        (a, x), (b, y) = rng.choice(tried), rng.choice(tried)
        if a == b:
            continue
        settings = {**base, a: x, b: y}
        outcome = _tried(family, settings, usual, tmp_path)
        found[outcome or f"{a}: {x}, {b}: {y}"] += 1
    assert not sorted(found.keys() - OUTCOMES)


OUTCOMES = {"breaks", "the same", "no numbers", "refused", "obeyed"}
"""What may come of another value: transformers itself cannot use it (its own error, or
results that are no numbers); nothing changes; the spec refuses it; the spec obeys it.
"""


def _tried(
    family: Family, settings: Mapping[str, Any], usual: Made, folder: Path
) -> str:
    """One of `OUTCOMES`, or nothing where the spec gives other numbers without a word."""
    try:
        made = published(family, settings, folder)
    except Exception:
        # whatever transformers, torch or Python say of a value that no model can have
        return "breaks"
    if made.same(usual):
        return "the same"
    if not all(np.isfinite(x).all() for x in made.results.values()):
        return "no numbers"
    try:
        found = ours(family, settings, made.model, folder)
    except Failed:
        return "refused"
    return "obeyed" if agree(found, made.results) else ""
