"""A tokenizer.json gives the ids and text of transformers' PreTrainedTokenizerFast."""

from pathlib import Path

import pytest

pytest.importorskip(
    "tokenizers", reason="requires the package tokenizers: pip install -e '.[text]'"
)
from support.tokenizer_files import KINDS, LINES, train_tokenizer
from transformers import PreTrainedTokenizerFast

from specc.preprocessing.text_codec import decode_text, encode_text_to_ids
from specc.preprocessing.tokenizer_files import HfTokenizer, TokenizerFile

pytestmark = pytest.mark.parity

TEXTS = [
    *LINES,
    "",
    " ",
    "  two blanks ",
    "a\nb\t<|endoftext|> [SEP] </s> x",
    "naïve 🙂🙃 Ωmega",
    "don't ; , . stop !",
]


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_text(kind: str, special: bool, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(train_tokenizer(kind), encoding="utf-8")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path))
    ours = HfTokenizer(
        file=TokenizerFile.from_text(path.read_text(encoding="utf-8")), adds_special_tokens=special
    )
    for text in TEXTS:
        ids = encode_text_to_ids(text, ours).tolist()
        assert ids == theirs(text, add_special_tokens=special)["input_ids"], text
        expected = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert decode_text(ids, ours) == expected, text
