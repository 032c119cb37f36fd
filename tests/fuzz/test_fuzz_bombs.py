"""Tokenizer files with exponential cost: an error code, or a result within the usual time and
memory.
"""

import pytest

pytest.importorskip(
    "tokenizers", reason="requires the package tokenizers: pip install -e '.[text]'"
)
from support.resource_limits import run_with_limits
from support.tokenizer_bombs import list_tokenizer_bombs
from support.tokenizer_files import train_tokenizer

READ = """
import resource, time
from specc.preprocessing.text_codec import decode_text, encode_text_to_ids
from specc.preprocessing.tokenizer_files import HfTokenizer
from specc.preprocessing.tokenizer_library import parse_tokenizer_file
from specc.diagnostics.diagnostic import SpeccError
result = {}
for name, text in given.items():
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        record = HfTokenizer(file=parse_tokenizer_file(text.encode(), "tokenizer.json"))
        ids = encode_text_to_ids("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab \\u00e9 \\u4e2d word, word ", record)
        code = len(decode_text(ids, record)) * 0
    except SpeccError as failed:
        code = failed.diagnostics[0].code
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    result[name] = code, round(time.process_time() - start, 2), grown
"""


@pytest.mark.parity
def test_tokenizer_bombs_end_within_limits() -> None:
    given = {
        name: data.decode() for name, data in list_tokenizer_bombs(train_tokenizer("byte_bpe"))
    }
    made = run_with_limits(READ, values=given)
    assert made.keys() == given.keys()
    wrong = {
        n: (c, s, m)
        for n, (c, s, m) in made.items()
        if c not in (0, "E0941", "E0908") or s > 2 or m > 300
    }
    assert not wrong
    assert {n for n, (c, _, _) in made.items() if c == "E0941"} >= {
        "bytes of bytes",
        "template",
        "ligatures",
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "fallback_bpe"])
def test_every_tokenizer_bomb_ends_within_limits(kind: str) -> None:
    for name, data in list_tokenizer_bombs(train_tokenizer(kind)):
        ((code, seconds, grown),) = run_with_limits(READ, values={name: data.decode()}).values()
        assert code in (0, "E0941", "E0908"), name
        assert seconds <= 2, name
        assert grown <= 300, name
