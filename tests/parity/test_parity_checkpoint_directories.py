"""`make parity-real` on checkpoint directories: it reports which agree, which are refused and which
differ, and continues after each.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file, save_file
from support import checkpoint_comparison
from support.published_models import randomize_weights

pytestmark = pytest.mark.parity
LLAMA: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "eos_token_id": 2, "bos_token_id": 1,
}  # fmt: skip


def told(
    home: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    patch.setenv("SPECC_CHECKPOINTS", str(home))
    code = checkpoint_comparison.main()
    return code, capsys.readouterr().out


def test_directories_that_agree_are_refused_or_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = randomize_weights(transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)))
    model.save_pretrained(tmp_path / "deep" / "llama")
    t5 = transformers.T5Config(
        vocab_size=31,
        d_model=16,
        d_ff=24,
        num_layers=1,
        num_heads=2,
        d_kv=8,
        decoder_start_token_id=0,
        eos_token_id=1,
    )
    randomize_weights(transformers.T5ForConditionalGeneration(t5)).save_pretrained(tmp_path / "t5")
    (tmp_path / "words.txt").write_text("one line\n\nanother\n", encoding="utf-8")
    code, out = told(tmp_path, monkeypatch, capsys)
    assert code == 0
    assert "| deep/llama | llama decoder |" in out
    assert out.count("| yes | agrees |") == 2
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text(json.dumps({"model_type": "no_such"}))
    code, out = told(tmp_path, monkeypatch, capsys)
    assert code == 1
    assert "E0419" in out
    assert out.count("| agrees |") == 2  # the others are compared all the same


def test_a_difference_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The published model reads other weights than specc."""
    directory = tmp_path / "llama"
    model = randomize_weights(transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)))
    model.save_pretrained(directory)
    usual = checkpoint_comparison._class_of

    def other(config: Any) -> Any:
        kind = usual(config)

        class Other:
            @staticmethod
            def from_pretrained(path: Path, **given: Any) -> Any:
                made = load_file(path / "model.safetensors")
                made["model.norm.weight"] = np.ascontiguousarray(made["model.norm.weight"] * 1.001)
                (tmp_path / "other").mkdir(exist_ok=True)
                save_file(made, tmp_path / "other" / "model.safetensors", {"format": "pt"})
                config = (path / "config.json").read_text()
                (tmp_path / "other" / "config.json").write_text(config)
                return kind.from_pretrained(tmp_path / "other", **given)

        return Other

    monkeypatch.setattr(checkpoint_comparison, "_class_of", other)
    monkeypatch.setattr(checkpoint_comparison, "list_checkpoints", lambda home: [directory])
    code, out = told(tmp_path, monkeypatch, capsys)
    assert code == 1
    assert "differs" in out


def test_nothing_to_compare_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(tmp_path, monkeypatch, capsys)[0] == 2
