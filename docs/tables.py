"""Write the generated pages of the documentation. A test fails if a page is stale.

Run `python docs/tables.py` after a change to a spec, an op, a built-in function, a diagnostic code
or the public Python API.
"""

import ast
import re
from pathlib import Path

from docs.generators import json_schema, textmate_grammar
from specc.diagnostics.machine_formats_and_exit_codes import get_error_category
from specc.diagnostics.render import extract_docstring_summary
from specc.frontend.builtins import BUILTINS
from specc.ir import ops
from specc.ir.op import OPS_BY_NAME
from specc.library.spec_file_lookup import (
    find_builtin_specs,
    find_error_doc_pages,
    parse_page_title,
    read_spec_file,
)

ROOT = Path(__file__).parents[1]
EXTENSION = ROOT / "editors" / "vscode"
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
CITATION = re.compile(r"([^:]+?) \(([^()]*\b(?:19|20)\d\d\b[^()]*)\)(, .*|: .*|)")
SENTENCE_END = re.compile(r"(?<!app)(?<!sec)(?<!eq)(?<!fig)(?<!\bal)\.(?= [A-Z`]|$)")
MODEL_GROUPS = (
    (
        "Large language models",
        "afmoe arcee bamba bloom codegen cohere cohere2 cwm deepseek_v2 deepseek_v3 ernie4_5 "
        "exaone exaone4 falcon falcon_h1 flex_olmo gemma gemma2 gemma3_text glm glm4 glm4_moe gpt2 "
        "gpt_neo gpt_neox gpt_oss gptj granite granitemoe granitemoehybrid helium "
        "hyperclovax jais2 jamba lfm2 llama minimax_m2 ministral ministral3 mistral mistral4 "
        "mixtral mpt nemotron olmo olmo2 olmo3 olmoe openai_gpt opt phi phi3 qwen2 qwen2_moe "
        "qwen3 qwen3_moe qwen3_next qwen3_5_text "
        "phimoe gemma3n_text gemma4_text "
        "apertus biogpt bitnet cohere2_moe ctrl dbrx diffllama dots1 gpt_bigcode gpt_neox_japanese "
        "granitemoe_swa jetmoe minicpm3 nanochat "
        "persimmon hunyuan_v1_dense hunyuan_v1_moe "
        "minimax modernbert_decoder xglm zamba2 recurrent_gemma llama4_text nemotron_h seed_oss "
        "smollm3 stablelm starcoder2",
    ),
    (
        "Encoders",
        "albert bert bert_generation big_bird convbert deberta_v2 distilbert dpr electra ernie esm "
        "eurobert fnet gte jina_embeddings_v3 layoutlm layoutlmv3 lilt longformer mobilebert "
        "modernbert mpnet nomic_bert nystromformer perceiver rembert roberta roc_bert roformer "
        "splinter squeezebert xlm xlnet xmod",
    ),
    (
        "Encoder-decoders",
        "bart bigbird_pegasus blenderbot encoder_decoder fsmt led m2m_100 marian mbart mvp "
        "nllb_moe numbers pegasus pegasus_x prophetnet small_translator switch_transformers t5 "
        "transformer",
    ),
    (
        "Vision",
        "beit bit conditional_detr convnext cvt deformable_detr deit depth_anything detr "
        "detr_backbone digits dinov2 dinov3_convnext dinov3_vit dpt efficientnet focalnet glpn "
        "hiera ijepa imagegpt levit mask2former mobilenet_v1 mobilenet_v2 mobilevit poolformer "
        "pvt_v2 regnet resnet rt_detr sam sam_vision segformer swin timesformer timm_convnext "
        "timm_resnet timm_vit upernet videomae vit vit_mae vit_segmenter vitpose vivit yolos",
    ),
    (
        "Audio",
        "ast conformer encodec moonshine musicgen musicgen_decoder parakeet_ctc speech_to_text "
        "speecht5 speecht5_hifigan streaming_ctc wav2vec2 wav2vec2_bert whisper",
    ),
    ("Time series", "patchtsmixer patchtst timesfm"),
    (
        "Multimodal",
        "aya_vision blip blip_2 blip_text blip_vision chinese_clip clap clap_audio clap_text "
        "clip clip_text clip_vision clipseg cohere2_vision florence2 florence2_vision gemma3 "
        "gemma4 gemma4_vision got_ocr2 grounding_dino grounding_dino_encoder idefics3 "
        "idefics3_vision image_captioner internvl internvl_vision lfm2_vl llava llava_next "
        "mistral3 owlvit owlvit_text owlvit_vision paligemma pixtral_vision qwen2_5_vl "
        "qwen2_audio qwen2_vl qwen2_vl_text qwen3_5 qwen3_vl qwen3_vl_text siglip siglip2 "
        "siglip2_vision siglip_text siglip_vision trocr vision_encoder_decoder",
    ),
    (
        "Recurrent models and state space models",
        "autoencoder bilstm_tagger conv_lm dates elman gru_lm jordan "
        "linear_attention_lm lstm_lm mamba mamba2 rnn_attention rnn_encdec rnnsearch rwkv "
        "seq2seq textbook_decoder token_shift_lm",
    ),
    (
        "Classic attention and teaching examples",
        "coverage_pointer decomposable feedforward glimpses glove_classifier "
        "graph_attention han kernel_regression kv_lookup luong luong_concat luong_dot "
        "luong_general luong_local_m luong_local_p luong_location memory_network "
        "ntm_read prefix_lm show_attend_tell soft_prompt_lm sparsemax_lm transformer_xl "
        "universal_transformer xor",
    ),
)
"""The sections of docs/models.md and their models. Every built-in model is listed once."""
MODELS_HEAD = """\
# Models

This page lists the built-in models by use. `specc show NAME` prints the architecture,
`specc doc NAME --source` prints the spec with its comments, and `specc list types` lists the
supported values of `model_type` in `config.json`. [families.md](families.md) describes how to
compile a checkpoint and how to add a model.

The column *checked against* names the independent implementation with which a test compares the
model. The test uses small configurations with random weights, at batch size 1 and in a padded batch
of three; the outputs must agree to 1e-5 of the largest value. The page [parity.md](parity.md) lists
the measured differences. The column *HF class* lists the transformers classes (`architectures` in
`config.json`) whose checkpoints can be compiled.

Generated by `docs/tables.py`.
"""


def render_models_page() -> str:
    """Return docs/models.md with one table per group of built-in models."""
    paths = find_builtin_specs()
    grouped = [name for _, names in MODEL_GROUPS for name in names.split()]
    if sorted(grouped) != sorted(paths):
        wrong = {*grouped} ^ {*paths} | {n for n in grouped if grouped.count(n) > 1}
        raise ValueError(f"MODEL_GROUPS lists each built-in model once: {', '.join(sorted(wrong))}")
    lines = [MODELS_HEAD]
    for heading, names in MODEL_GROUPS:
        lines += [f"## {heading}", "", "| model | spec | paper | HF class | checked against |"]
        lines += ["|---|---|---|---|---|"]
        lines += [render_model_row(name, paths[name]) for name in names.split()] + [""]
    return "\n".join(lines)


def render_model_row(name: str, path: Path) -> str:
    """Return the table row of a built-in model, based on its spec and its parity test."""
    text = path.read_text(encoding="utf-8")
    file = read_spec_file(path, path.name)
    head = extract_head_sentence(text.split("\n\n")[0])
    title, paper, detail = split_head_sentence(head)
    if file.extends:
        title, paper, detail = file.doc or title, "", f": derived from `{file.extends}`"
    model = f"**{title}**" + link_arxiv(detail)
    classes = [c for item in file.items for c in getattr(item, "architectures", ())]
    link = f"[`{name}`](../specs/models/{path.name})"
    cells = [model, link, link_arxiv(paper), ", ".join(f"`{c}`" for c in dict.fromkeys(classes))]
    return "| " + " | ".join([*cells, describe_parity_check(name, file.extends)]) + " |"


def link_arxiv(citation: str) -> str:
    """Return a citation with links for its arXiv numbers."""
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", citation)


def split_head_sentence(head: str) -> tuple[str, str, str]:
    """Split `title (citation): description` into its parts, the last with its separator."""
    match = CITATION.fullmatch(head)
    if match:
        return match[1], match[2], match[3]
    title, colon, detail = head.partition(": ")
    return title, "", colon + detail


def extract_head_sentence(head: str) -> str:
    """Return the first sentence of the head comment, which contains the title and the source."""
    comments = (line for line in head.splitlines() if line.startswith("#"))
    text = " ".join(line[1:].strip() for line in comments)
    return SENTENCE_END.split(text, maxsplit=1)[0].replace(", no arXiv number", "")


def describe_parity_check(name: str, base: str) -> str:
    """Return the implementation that the parity test of a spec compares with."""
    for candidate in (name, base):
        for directory, prefix in (("parity", "test_parity"), ("models", "test")):
            test = ROOT / "tests" / directory / f"{prefix}_{candidate}.py"
            if candidate and test.exists():
                tree = ast.parse(test.read_text(encoding="utf-8"))
                summary = extract_docstring_summary(ast.get_docstring(tree))
                if " matches " in summary:
                    return summary.split(" matches ", 1)[-1].rstrip(".")
    return find_transformers_family(name) or "float64 reference"


def find_transformers_family(name: str) -> str:
    """Return how shared parity tests compare the spec with transformers, or "" if none does."""
    path = ROOT / "specs" / "models" / f"{name}.specc"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    # in `for LlamaForCausalLM {`, the class name begins with the model family
    family = re.search(r"\bfor ([A-Z]\w*?)(?:For[A-Z]\w*|LMHeadModel|MTModel|Model)\b", text)
    tests = (ROOT / "tests" / "parity").glob("test_parity_*.py")
    if family and any(f'"{family[1]}' in t.read_text(encoding="utf-8") for t in tests):
        return "transformers, `save_pretrained` directory"
    return ""


def render_ops_page() -> str:
    """Return docs/ops.md with every IR operation, its signature and its documentation."""
    lines = [
        "# Operations",
        "",
        "This page lists the operations of the IR, which are defined in `specc.ir.ops`.",
        "[adding-an-op.md](adding-an-op.md) explains the dependence marks in the signatures.",
        "Generated by `docs/tables.py`.",
        "",
    ]
    for module in (ops.tensor, ops.indexing, ops.interpolation, ops.nn, ops.recurrent, ops.loop):
        lines += [f"## {extract_docstring_summary(module.__doc__).rstrip('.')}", ""]
        for op in OPS_BY_NAME.values():
            if op.__module__ == module.__name__:
                text = " ".join((op.__doc__ or "").split())
                lines += [f"**`{op.name}`** `{op.signature.text}`  ", text, ""]
    return "\n".join(lines)


def render_builtins_page() -> str:
    """Return docs/builtins.md with every built-in function, its signature and its documentation."""
    lines = [
        "# Built-in functions",
        "",
        "This page lists the functions of the language that are implemented in Python.",
        "`specc doc NAME` prints the entry of NAME. Blocks, masks, scores, biases and normalizers",
        "of the standard library are written in the language itself, in `specs/std`.",
        "Generated by `docs/tables.py`.",
        "",
    ]
    for name in sorted(BUILTINS):
        lines += [
            f"**`{BUILTINS[name].format_signature()}`**  ",
            " ".join(BUILTINS[name].doc.split()),
            "",
        ]
    return "\n".join(lines)


def render_codes_page() -> str:
    """Return docs/errors/README.md with every diagnostic code, its exit status and its title."""
    rows = "\n".join(
        f"| [{code}]({code}.md) | {get_error_category(code).value} | "
        f"{parse_page_title(page.read_text(encoding='utf-8'))} |"
        for code, page in find_error_doc_pages().items()
    )
    return (
        "# Diagnostic codes\n\n`specc explain CODE` describes a diagnostic code. "
        "The meaning of a code never changes.\nGenerated by `docs/tables.py`.\n\n"
        f"| code | exit status | title |\n|---|---|---|\n{rows}\n"
    )


API = {
    "specc": {
        "specc/api.py": ("check", "compile"),
        "specc/model_loading.py": ("load",),
        "specc/model.py": ("Model",),
        "specc/runtime/inference_model.py": ("InferenceModel.close", "InferenceModel.weights"),
        "specc/runtime/generation_stream_and_results.py": ("GenerationStream", "GenerationResult"),
        "specc/diagnostics/diagnostic.py": ("SpeccError", "Diagnostic"),
    },
    "specc_torch": {
        "backends/specc_torch/training_module_and_dataset.py": (
            "module",
            "batch",
            "Dataset",
            "save",
            "check_output_path",
        )
    },
}
"""The public names of the Python API, by package and source file."""


def render_api_page() -> str:
    """Return docs/api.md with every public function and class, from the syntax trees of the
    sources.

    The source modules are not imported, so PyTorch is not needed.
    """
    lines = [
        "# Python API",
        "",
        "This page lists the public functions and classes with their docstrings; tests run the",
        "examples. [inputs.md](inputs.md) describes inputs, [generation.md](generation.md) the",
        "generation settings, and [training.md](training.md) data sets for training.",
        "Generated by `docs/tables.py`.",
        "",
    ]
    for package, files in API.items():
        lines += [f"## {package}", ""]
        for file, names in files.items():
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            for name in names:
                lines += describe_definition(tree, name)
    return "\n".join(lines)


def describe_definition(tree: ast.Module, name: str) -> list[str]:
    """Return the page entry of a function, of a method, or of a class with its public methods."""
    outer, _, inner = name.partition(".")
    known = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    node = known[outer]
    if inner:
        methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
        return render_signature(methods[inner], f"Model.{inner}")
    if isinstance(node, ast.FunctionDef):
        return render_signature(node, name)
    lines = [f"### {name}", "", *render_docstring(node), ""]
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and is_documented(method):
            lines += render_signature(method, f"{name}.{method.name}")
    return lines


def is_documented(method: ast.FunctionDef) -> bool:
    """Return True if a method is public and has a docstring."""
    return not method.name.startswith("_") and ast.get_docstring(method) is not None


def render_signature(node: ast.FunctionDef, name: str) -> list[str]:
    """Return the Markdown heading, signature and docstring of a function."""
    given = node.args
    for every in (given.posonlyargs, given.args):
        every[:] = [argument for argument in every if argument.arg != "self"]
    plain = f"{name}({ast.unparse(given)})"
    if len(plain) > 88:
        parts = render_arguments(given)
        plain = "\n".join([f"{name}(", *(f"    {part}," for part in parts), ")"])
    # a quoted return type is imported only for annotations
    returns = ast.unparse(node.returns).strip(chr(39)) if node.returns else ""
    result = f" -> {returns}" if returns else ""
    if any(ast.unparse(d).endswith("property") for d in node.decorator_list):
        plain, result = name, f": {returns}"
    return [f"### {name}", "", "```text", plain + result, "```", "", *render_docstring(node), ""]


def render_arguments(given: ast.arguments) -> list[str]:
    """Return the arguments of a long signature, formatted one per line."""
    lines = []
    first = len(given.args) - len(given.defaults)
    for number, argument in enumerate(given.args):
        default = given.defaults[number - first] if number >= first else None
        lines.append(render_argument(argument, default))
    if given.vararg:
        lines.append(f"*{ast.unparse(given.vararg)}")
    elif given.kwonlyargs:
        lines.append("*")
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        lines.append(render_argument(argument, default))
    return [*lines, *([f"**{ast.unparse(given.kwarg)}"] if given.kwarg else [])]


def render_argument(argument: ast.arg, default: ast.expr | None) -> str:
    """Return an argument formatted with its type and default."""
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default else "")


def render_docstring(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """Return a docstring as Markdown, with its examples in code fences."""
    lines: list[str] = []
    for part in (ast.get_docstring(node) or "").split("\n\n"):
        example = part.startswith(">>>")
        lines += ["", *(["```python", part, "```"] if example else [part])]
    return lines[1:]


def render_pages() -> dict[Path, str]:
    """Return the contents of every generated file, by file path."""
    return {
        ROOT / "docs" / "models.md": render_models_page(),
        ROOT / "specs" / "schema.json": json_schema.render_json_schema(),
        EXTENSION / "syntaxes" / "specc.tmLanguage.json": textmate_grammar.render_textmate_json(),
        ROOT / "docs" / "ops.md": render_ops_page(),
        ROOT / "docs" / "builtins.md": render_builtins_page(),
        ROOT / "docs" / "api.md": render_api_page(),
        ROOT / "docs" / "errors" / "README.md": render_codes_page(),
    }


if __name__ == "__main__":
    for path, text in render_pages().items():
        path.write_text(text, encoding="utf-8")
