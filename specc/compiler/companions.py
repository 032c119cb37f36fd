"""Files beside published weights that other programs want beside the graphs: what a model
is, how its texts are tokens, how it writes. They are carried as they are.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from specc.backend import Extra
from specc.compiler.sidefiles import found_in
from specc.files.read import Unreadable, read_regular, shown
from specc.text.diagnostic import fail

CONFIG = "config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
NAMES = (
    CONFIG,
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
"""What published programs save beside weights, and look for when they load."""
LARGEST = 64 * 2**20
GENERAL = {"tokenizer_class": "PreTrainedTokenizerFast"}
"""What a `tokenizer.json` by itself is: the file has all that there is to say."""


def paths(folders: Sequence[Path]) -> list[Path]:
    """The files there are, each from the first folder that has it."""
    found = (found_in(folders, name) for name in NAMES)
    return [path for path in found if path is not None]


def companions(
    profile: str, folders: Sequence[Path], besides: Collection[str]
) -> Iterator[Extra]:
    """The files for a package of another program's form, `besides` those it has already.

    onnxruntime-genai needs both files of a tokenizer; where a checkpoint has the first
    alone, the second is written. Fails with E0802.
    """
    if profile == "specc":
        return
    names = set(besides)
    for path in paths(folders):
        if path.name not in names:
            names.add(path.name)
            yield Extra(path.name, _content(path))
    if TOKENIZER in names and TOKENIZER_CONFIG not in names:
        yield Extra.of_data(TOKENIZER_CONFIG, GENERAL)


def _content(path: Path) -> bytes:
    try:
        return read_regular(path, LARGEST)
    except Unreadable as error:
        fail("E0802", f"`{shown(str(path))}` cannot be read: {error.reason}")


def remarks(profile: str, folders: Sequence[Path]) -> tuple[str, ...]:
    """What a program of this form will miss."""
    there = {path.name for path in paths(folders)}
    if profile == "hf" and CONFIG not in there:
        return (
            "programs of the form `hf` want a config.json beside the graphs; none lies "
            "beside the weights",
        )
    if profile == "genai" and TOKENIZER not in there:
        return (
            "onnxruntime-genai wants a tokenizer.json beside the graph to read texts; "
            "none lies beside the weights",
        )
    return ()
