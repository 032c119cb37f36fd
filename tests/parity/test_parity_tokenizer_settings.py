"""The settings of tokenizer_config.json change the ids of texts as in transformers, or a
note names the one that nothing follows.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from support.text_checkpoints import TOKENIZERS
from tokenizers import Tokenizer

from specc.huggingface.tokenizer_config import apply_tokenizer_settings

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
TEXTS = [
    "The Quick brown FOX, doesn't it?",
    "naïve Café: 日本 [MASK] <s> zebra",
    " Spaced  Out ",
    "",
]
CLASSES = {
    "wordpiece": ("BertTokenizer", "PreTrainedTokenizerFast"),
    "byte_bpe": ("RobertaTokenizer", "GPT2Tokenizer", "PreTrainedTokenizerFast"),
    "unigram": ("PreTrainedTokenizerFast",),
}
SETTINGS: dict[str, tuple[Any, ...]] = {
    "do_lower_case": (True, False),
    "strip_accents": (True, False, None),
    "tokenize_chinese_chars": (True, False),
    "add_prefix_space": (True, False),
    "add_bos_token": (True, False),
    "add_eos_token": (True, False),
    "split_special_tokens": (True, False),
    "additional_special_tokens": (["<new>"], ["[MASK]"]),
    "model_max_length": (4,),
    "padding_side": ("left",),
    "truncation_side": ("left",),
    "clean_up_tokenization_spaces": (True, False),
    "never_heard_of": (1,),
}
ONE = [{k: v} for k, values in SETTINGS.items() for v in values]
TWO = [
    {"add_bos_token": b, "add_eos_token": e, "do_lower_case": lower}
    for b, e, lower in itertools.product((True, False), repeat=3)
]
DEFAULTS = {"do_lower_case": True, "add_prefix_space": False}
"""What the classes take where the file says nothing: given in every case, since a class
changes tokens without being told.
"""


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in CLASSES.items() for name in names]
)
def test_settings_are_followed_or_named(kind: str, name: str, tmp_path: Path) -> None:
    TOKENIZERS[kind](segments=False).save_pretrained(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    about = json.loads((tmp_path / "tokenizer_config.json").read_text())
    seen = set()
    for change in [{}, *ONE, *TWO]:
        settings = {**about, "tokenizer_class": name, **DEFAULTS, **change}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        found = apply_tokenizer_settings(text, settings)
        ours = Tokenizer.from_str(found.tokenizer_json)
        ours.no_truncation()
        ours.no_padding()
        wanted = [theirs(one)["input_ids"] for one in TEXTS]
        made = [ours.encode(one).ids for one in TEXTS]
        seen.add(str(wanted))
        if made != wanted:
            assert set(found.ignored_keys) & change.keys(), (
                change,
                found.ignored_keys,
                made,
                wanted,
            )
    # the Unigram tokenizer has no bos_token and no normalizer that a setting changes
    assert len(seen) > 1 or kind == "unigram", "no setting changed a token"


def test_a_lowercased_text_keeps_special_tokens() -> None:
    """`do_lower_case` of sentence-transformers goes before the normalizer of the file."""
    text = TOKENIZERS["byte_bpe"](segments=False).backend_tokenizer.to_str()
    ours = Tokenizer.from_str(
        apply_tokenizer_settings(text, {}, lowercases_text=True).tokenizer_json
    )
    plain = Tokenizer.from_str(text)
    assert ours.encode("FOX <mask>").ids == plain.encode("fox <mask>").ids
