"""`specc new` writes instances that equal their parent specs, and drafts specs from checkpoints."""

import json
from pathlib import Path

import numpy as np
import pytest

from specc.cli import main as cli
from specc.cli.new_and_lsp import sanitize_spec_name
from specc.diagnostics.diagnostic import Source, SpeccError
from specc.driver.spec_check_and_elaboration import check_spec, elaborate_spec
from specc.driver.spec_draft import SCHEMA_FILE, DerivedSpec, build_derived_spec_ast, draft_spec
from specc.driver.spec_loader import open_spec, open_spec_argument
from specc.library.spec_file_lookup import find_builtin_specs
from specc.syntax.dsl.dsl_printer import format_dsl
from specc.syntax.parse import parse_spec
from specc.syntax.yaml.yaml_printer import format_yaml
from specc.weights.formats.safetensors import open_safetensors, write_safetensors

LEARNED = Path(__file__).parents[2] / "docs" / "demos" / "learned" / "llama"
SAMPLE = ["vit", "rnnsearch", "encoder_decoder", "dates", "elman"]
"""Specs of every kind for the default suite; the rest are `slow`."""


def print_instance(name: str, sign: str) -> str:
    made = build_derived_spec_ast(DerivedSpec(name="mine", extends=name, comment_separator=sign))
    return format_dsl(made) if sign == " = " else format_yaml(made)


def check_instance(name: str) -> None:
    """Both syntaxes parse to one tree, and the config equals the parent's."""
    yaml, dsl = print_instance(name, ": "), print_instance(name, " = ")
    one, other = parse_spec(Source("m.yaml", yaml)), parse_spec(Source("m.specc", dsl))
    assert [i for i in one.items if "Config" not in type(i).__name__] == []
    assert format_dsl(one).replace(": ", " = ") == format_dsl(other).replace(": ", " = ")
    parent, mine = (check_spec(open_spec_argument(name)), check_spec(open_spec_argument(yaml)))
    assert mine.model is not None
    if parent.model is not None:
        assert mine.model.config == parent.model.config
    for warning in mine.warnings:
        assert warning in parent.warnings or warning.code != "W0418"


@pytest.mark.parametrize("name", SAMPLE)
def test_instance_equals_its_parent(name: str) -> None:
    check_instance(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*find_builtin_specs()} - {*SAMPLE}))
def test_instance_of_every_spec_equals_its_parent(name: str) -> None:
    check_instance(name)


@pytest.mark.parametrize("name", ["rnnsearch", "vit"])
@pytest.mark.parametrize("sign", [": ", " = "])
def test_commented_values_can_be_uncommented(name: str, sign: str) -> None:
    """Every commented value is valid once the comment mark is removed."""
    lines = print_instance(name, sign).splitlines()
    freed = [
        line.replace("# ", "", 1).split("  (")[0] if line.startswith("  # ") and sign in line else line
        for line in lines
    ]  # fmt: skip
    assert freed != lines
    mine, parent = (
        elaborate_spec(open_spec_argument(f"{chr(10).join(x)}\n")).config for x in (freed, lines)
    )
    assert mine == parent


def test_new_writes_the_schema_for_editors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "vit", "my.yaml"]) == 0
    assert "specc check my.yaml" in capsys.readouterr().out
    first = (tmp_path / "my.yaml").read_text().splitlines()[0]
    assert first == f"# yaml-language-server: $schema=./{SCHEMA_FILE}"  # with the space
    assert json.loads((tmp_path / SCHEMA_FILE).read_text())["$schema"].startswith(
        "http://json-schema.org/draft-07"
    )
    assert cli.main(["check", "my.yaml"]) == 0
    assert cli.main(["new", "vit", "plain.yaml", "--no-schema"]) == 0
    assert "$schema" not in (tmp_path / "plain.yaml").read_text()
    assert cli.main(["new", "vit", "deep/my.specc"]) == 0
    assert not (tmp_path / "deep" / SCHEMA_FILE).exists()
    # an existing spec or an edited schema is not overwritten
    assert cli.main(["new", "gpt2", "my.yaml"]) == 1
    assert cli.main(["new", "gpt2", "my.yaml", "--force"]) == 0
    assert "extends: gpt2" in (tmp_path / "my.yaml").read_text()
    (tmp_path / SCHEMA_FILE).write_text("{}")
    assert cli.main(["new", "gpt2", "other.yaml"]) == 0
    assert (tmp_path / SCHEMA_FILE).read_text() == "{}"


@pytest.mark.parametrize(
    ("stem", "name"),
    [("my", "my"), ("7b", "my_7b"), ("a-b c", "a_b_c"), ("", "my_"), ("\x1b", "my__")],
)
def test_spec_name_from_file_name(stem: str, name: str) -> None:
    assert sanitize_spec_name(stem) == name
    assert open_spec_argument(
        format_yaml(
            build_derived_spec_ast(DerivedSpec(name=sanitize_spec_name(stem), extends="xor"))
        )
    )


def test_draft_of_a_known_model_type() -> None:
    draft = draft_spec(str(LEARNED), "mine")
    assert draft.file.extends == "llama"
    assert draft.is_known_model_type
    assert not draft.unmapped
    theirs = elaborate_spec(open_spec(str(LEARNED))).config
    assert elaborate_spec(open_spec_argument(format_yaml(draft.file))).config == theirs


def test_draft_with_a_default_that_depends_on_another_value(tmp_path: Path) -> None:
    """DeepSeek-V3's `eps` is 1e-5 if `lite`, which only the values of the draft set."""
    config = {"model_type": "unknown", "architectures": ["DeepseekV3ForCausalLM"]}
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16}
    others = {"rms_norm_eps": 1e-06, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
    (tmp_path / "config.json").write_text(json.dumps({**config, **sizes, **others}))
    draft = draft_spec(str(tmp_path), "mine")
    assert draft.file.extends.startswith("deepseek")
    assert elaborate_spec(open_spec_argument(format_dsl(draft.file))).config["eps"] == 1e-06


SIDES = {
    "vision_encoder_decoder": {
        "model_type": "vision-encoder-decoder",
        "decoder_start_token_id": 3,
        "encoder": {"model_type": "swin", "window_size": 3, "embed_dim": 48, "depths": [1, 1],
                    "num_heads": [3, 6]},
        "decoder": {"model_type": "bert", "hidden_size": 24, "num_attention_heads": 4,
                    "num_hidden_layers": 2, "is_decoder": True, "add_cross_attention": True},
    },
    "llava": {
        "model_type": "llava",
        "text_config": {"model_type": "qwen2", "num_hidden_layers": 3},
        "vision_config": {"model_type": "clip_vision_model", "num_hidden_layers": 4},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sign"),
    [
        ("llava", ": "),
        *(
            pytest.param(*case, marks=pytest.mark.parity)
            for case in (
                ("llava", " = "),
                ("vision_encoder_decoder", ": "),
                ("vision_encoder_decoder", " = "),
            )
        ),
    ],
)
def test_draft_selects_the_submodel_specs(name: str, sign: str, tmp_path: Path) -> None:
    """The draft names the spec of each submodel, with its config values."""
    (tmp_path / "config.json").write_text(json.dumps(SIDES[name]))
    draft = draft_spec(str(tmp_path), "mine")
    assert draft.file.extends == name
    assert draft.unmapped == ("weights: the directory has no readable weights",)
    text = format_dsl(draft.file) if sign == " = " else format_yaml(draft.file)
    theirs = elaborate_spec(open_spec(str(tmp_path)))
    mine = elaborate_spec(open_spec_argument(f"{text}\n"))
    assert mine.config == theirs.config
    shapes = [
        {name: value.type for name, value in one.graph.parameters.items()} for one in (mine, theirs)
    ]
    assert shapes[0] == shapes[1]


@pytest.fixture
def unknown_checkpoint(tmp_path: Path) -> Path:
    """Write a checkpoint with an unknown model type, similar to a Llama."""
    config = json.loads((LEARNED / "config.json").read_text())
    config |= {"model_type": "our_own", "weird_scale": 3}
    with open_safetensors(LEARNED / "model.safetensors") as file:
        tensors = {name: np.array(file.get_array(name)) for name in file.tensors}
    tensors["model.layers.0.self_attn.extra.weight"] = np.zeros((3, 3), np.float32)
    del tensors["model.norm.weight"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_safetensors(tmp_path / "model.safetensors", tensors)
    return tmp_path


def test_draft_of_an_unknown_model_type(
    unknown_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.main(
            [
                "new",
                str(unknown_checkpoint / "mine.specc"),
                "--from-checkpoint",
                str(unknown_checkpoint),
            ]
        )
        == 0
    )
    told = capsys.readouterr().out
    assert "a spec derived from llama" in told
    assert "based on the most similar spec" in told
    for name in ("weird_scale", "model.norm.weight", "self_attn.extra.weight"):
        assert name in told
    assert "d = 160" in (unknown_checkpoint / "mine.specc").read_text()
    assert cli.main(["check", str(unknown_checkpoint / "mine.specc")]) == 0


def test_draft_without_weights(unknown_checkpoint: Path) -> None:
    (unknown_checkpoint / "model.safetensors").unlink()
    draft = draft_spec(str(unknown_checkpoint), "mine")
    assert any("weights" in line for line in draft.unmapped)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"model_type": 5}', '{"model_type": "\\u001b[31m", "a": 1}']
)
def test_draft_of_an_invalid_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpeccError, match=r"E04|E0948") as failed:
        draft_spec(str(tmp_path), "mine")
    assert "\x1b" not in str(failed.value)


@pytest.mark.parametrize("name", ["vit", "digits"])
def test_doc_prints_the_source_of_a_built_in_spec(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doc", name, "--source"]) == 0
    assert capsys.readouterr().out == find_builtin_specs()[name].read_text(encoding="utf-8")


def test_doc_of_a_spec_prints_its_config_and_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doc", "vit"]) == 0
    text = capsys.readouterr().out
    source = find_builtin_specs()["vit"].read_text(encoding="utf-8")
    assert text.startswith(source.partition("\nspecc 1")[0])
    assert "for ViTForImageClassification" in text
    assert "config {" in text
    assert "block " not in text
