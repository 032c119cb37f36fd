"""The tokenizer and chat template of a checkpoint: a directory or a GGUF file."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specc.diagnostics.source import Span
from specc.huggingface.repository_files import (
    CHAT_TEMPLATE_KEY,
    choose_chat_template,
    read_chat_template,
)
from specc.huggingface.tokenizer_settings import read_tokenizer_settings
from specc.io.file_signatures import is_gguf_path
from specc.io.safe_read import escape_text, read_required_file
from specc.preprocessing.chat_template import ChatTemplate
from specc.preprocessing.tokenizer_files import MAX_BYTES, TOKENIZER_FILE, TokenizerFile
from specc.preprocessing.tokenizer_library import check_tokenizer_file

if TYPE_CHECKING:
    from specc.huggingface.gguf_tokenizer import GGUFTokenizer


def read_tokenizer_file(path: Path, name: str, span: Span | None) -> TokenizerFile:
    """Return a tokenizer.json, called `name` in messages. Raise E0802 or E0941."""
    data = read_required_file(path, MAX_BYTES, f"the tokenizer `{escape_text(name)}`", span)
    return check_tokenizer_file(data, name, span)


def read_checkpoint_tokenizer(
    path: Path, span: Span | None
) -> tuple[TokenizerFile, ChatTemplate | None]:
    """Return the tokenizer that `find_tokenizer_file` found, with the settings and the chat
    template of its checkpoint. Raise E0423, E0802 or E0941.
    """
    if is_gguf_path(path):
        made = _read_gguf(path)
        assert made is not None, "found before"
        file = check_tokenizer_file(made.text.encode(), str(path), span)
        template = made.settings.get(CHAT_TEMPLATE_KEY)
        return file, choose_chat_template(template, made.settings, path, span)
    file = read_tokenizer_file(path, str(path), span)
    file = TokenizerFile.of(read_tokenizer_settings(path.parent, file.text).text)
    return file, read_chat_template(path.parent, span)


def find_tokenizer_file(directories: Sequence[Path]) -> Path | None:
    """Return the first tokenizer.json in a directory or GGUF file with a tokenizer, else None."""
    return next(filter(None, map(_find_tokenizer, directories)), None)


def _find_tokenizer(directory: Path) -> Path | None:
    if is_gguf_path(directory) and directory.is_file():
        return directory if _read_gguf(directory) else None
    path = directory / TOKENIZER_FILE
    return path if os.path.lexists(path) else None


def _read_gguf(path: Path) -> "GGUFTokenizer | None":
    # weight formats need NumPy, which a spec without a checkpoint does not
    from specc.huggingface.gguf_tokenizer import read_gguf_tokenizer

    return read_gguf_tokenizer(path)
