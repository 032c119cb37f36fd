"""Download model repositories, and read their tokenizers and chat templates."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from specc.diagnostics.diagnostic import Span, raise_error
from specc.huggingface.audio_and_ctc_processor_files import Settings, get_token_text
from specc.huggingface.tokenizer_config import apply_tokenizer_config
from specc.io.file_type_detection import is_gguf_path
from specc.io.json_io import NO_LIMITS, parse_strict_json
from specc.io.safe_read import escape_text, read_required_file
from specc.preprocessing.chat_template import MAX_TEMPLATE, MAX_TOKENS, ChatTemplate
from specc.preprocessing.tokenizer_files import MAX_BYTES, TOKENIZER_FILE, TokenizerFile
from specc.preprocessing.tokenizer_library import parse_tokenizer_file

if TYPE_CHECKING:
    from specc.huggingface.gguf_metadata import GGUFTokenizer


def read_tokenizer_file(path: Path, name: str, span: Span | None) -> TokenizerFile:
    """Read a tokenizer.json. Raise E0802 for an unreadable file, and E0941 for invalid content."""
    data = read_required_file(path, MAX_BYTES, f"the tokenizer `{escape_text(name)}`", span)
    return parse_tokenizer_file(data, name, span)


def read_checkpoint_tokenizer(
    path: Path, span: Span | None
) -> tuple[TokenizerFile, ChatTemplate | None]:
    """Read a tokenizer found by `find_tokenizer_file`, with the tokenizer settings and the chat
    template of its checkpoint. Raise E0423, E0802 or E0941 if a file is invalid.
    """
    if is_gguf_path(path):
        tokenizer = _read_gguf_tokenizer_file(path)
        assert tokenizer is not None, "found before"
        file = parse_tokenizer_file(tokenizer.tokenizer_json.encode(), str(path), span)
        template = tokenizer.tokenizer_config.get(CHAT_TEMPLATE_KEY)
        return file, select_default_chat_template(template, tokenizer.tokenizer_config, path, span)
    file = read_tokenizer_file(path, str(path), span)
    file = TokenizerFile.from_text(
        apply_tokenizer_config(path.parent, file.json_text).tokenizer_json
    )
    return file, read_chat_template(path.parent, span)


def find_tokenizer_file(directories: Sequence[Path]) -> Path | None:
    """Return the first tokenizer.json or GGUF file with a tokenizer in `directories`, else None."""
    return next(filter(None, map(_find_tokenizer, directories)), None)


def _find_tokenizer(directory: Path) -> Path | None:
    if is_gguf_path(directory) and directory.is_file():
        return directory if _read_gguf_tokenizer_file(directory) else None
    path = directory / TOKENIZER_FILE
    return path if os.path.lexists(path) else None


def _read_gguf_tokenizer_file(path: Path) -> "GGUFTokenizer | None":
    # import here, because weight formats import NumPy, which is not required without a checkpoint
    from specc.huggingface.gguf_metadata import read_gguf_tokenizer

    return read_gguf_tokenizer(path)


TOKENIZER_CONFIG_FILE, TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"
MAX_TEMPLATE_FILE_BYTES = 16 << 20
CHAT_TEMPLATE_KEY = "chat_template"
DEFAULT_TEMPLATE = "default"
"""Name of the default template if a tokenizer has several chat templates."""


def read_chat_template(directory: Path, span: Span | None) -> ChatTemplate | None:
    """Read the chat template of a directory if it contains one. Raise E0802 or E0423 for an invalid
    file.
    """
    path, template_file = directory / TOKENIZER_CONFIG_FILE, directory / TEMPLATE_FILE
    config = _read_object(path, span) if os.path.lexists(path) else {}
    template: object = config.get(CHAT_TEMPLATE_KEY)
    # as in transformers, a separate template file takes precedence
    if os.path.lexists(template_file):
        template, path = _read_text(template_file, span), template_file
    return select_default_chat_template(template, config, path, span)


def select_default_chat_template(
    chat_template: object, config: Settings, path: Path, span: Span | None
) -> ChatTemplate | None:
    """Return the default chat template in `chat_template`, with the special tokens in `config`.
    Raise E0423 if the template is invalid.
    """
    if isinstance(chat_template, list | dict):
        chat_template = _select_template(chat_template, path, span)
    if chat_template is None:
        return None
    if not isinstance(chat_template, str) or not 0 < len(chat_template) <= MAX_TEMPLATE:
        _raise_unusable(path, f"expected a string of at most {MAX_TEMPLATE} characters", span)
    return ChatTemplate(chat_template, _read_tokens(config, path, span))


def list_chat_template_files(directory: Path) -> list[Path]:
    """Return the files that determine the chat template of a directory."""
    return [
        path
        for path in (directory / TOKENIZER_CONFIG_FILE, directory / TEMPLATE_FILE)
        if os.path.lexists(path)
    ]


def _select_template(templates: object, path: Path, span: Span | None) -> object:
    """Return the default template, or the only template, or None if `templates` is empty. Raise
    E0423 if several templates have no default.
    """
    templates_by_name: dict[str, object] = {**templates} if isinstance(templates, dict) else {}
    for item in templates if isinstance(templates, list) else ():
        match item:
            case {"name": str(name), "template": template}:
                templates_by_name[name] = template
            case _:
                _raise_unusable(path, "a chat template has no name", span)
    if DEFAULT_TEMPLATE in templates_by_name or not templates_by_name:
        return templates_by_name.get(DEFAULT_TEMPLATE)
    if len(templates_by_name) > 1:
        names = escape_text(", ".join(templates_by_name))[:80]
        _raise_unusable(
            path, f"no chat template is named `{DEFAULT_TEMPLATE}`; found: {names}", span
        )
    return next(iter(templates_by_name.values()))


def _read_tokens(config: Settings, path: Path, span: Span | None) -> dict[str, str]:
    """Read the special tokens, such as `bos_token`, keyed by name. The config stores each token as
    a string or an object.
    """
    tokens = {k: get_token_text(v) for k, v in config.items() if k.endswith("_token")}
    special_tokens = {key: token for key, token in tokens.items() if token and key.isidentifier()}
    if len(special_tokens) > MAX_TOKENS:
        _raise_unusable(path, f"more than {MAX_TOKENS} special tokens", span)
    return special_tokens


def _read_object(path: Path, span: Span | None) -> dict[str, object]:
    try:
        value = parse_strict_json(_read_text(path, span), NO_LIMITS)
    except ValueError as error:
        _raise_unusable(path, escape_text(error)[:200], span)
    if not isinstance(value, dict):
        _raise_unusable(path, "expected an object", span)
    return {**value}


def _read_text(path: Path, span: Span | None) -> str:
    try:
        return read_required_file(path, MAX_TEMPLATE_FILE_BYTES, span=span).decode("utf-8-sig")
    except UnicodeDecodeError:
        _raise_unusable(path, "it is not UTF-8", span)


def _raise_unusable(path: Path, reason: str, span: Span | None) -> NoReturn:
    raise_error(
        "E0423",
        f"the chat template in `{escape_text(path)}` cannot be used: {reason}",
        span,
        helps=[
            "download the file that belongs to the weights, or compile from a directory without it"
        ],
    )


HUB_PREFIX = "hf:"
_MODEL_ID = re.compile(r"((?:[\w-][\w.-]*/)?[\w-][\w.-]*)(?:@([\w./-]+))?")
_DOWNLOADED_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.jinja")
"""Name patterns of files that `compile` may read, excluding pickles and other weight formats."""
_OTHER_FILES = ("original/*", "consolidated*", "onnx/*", "openvino/*", "coreml/*")
_COMMIT_DIGITS = 40


def download_model(model: str) -> tuple[str, tuple[str, ...]]:
    """Download a model to the Hub cache. Return the model directory and a remark with the commit.

    A local path is returned unchanged. Cached files are not downloaded again. `HF_ENDPOINT`,
    `HF_HOME`, `HF_HUB_OFFLINE` and access tokens have the same effect as in `huggingface_hub`.
    Raise E0801 if the package `huggingface_hub` is missing, and E0806 if the name is invalid or the
    download fails.
    """
    if not model.startswith(HUB_PREFIX):
        return model, ()
    match = _MODEL_ID.fullmatch(model.removeprefix(HUB_PREFIX))
    if match is None:
        _raise_download(model, "expected `hf:org/name` or `hf:org/name@revision`")
    name, revision = match[1], match[2]
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ModuleNotFoundError:
        raise_error(
            "E0801",
            f"`{escape_text(model)}` requires the package `huggingface_hub`, "
            "which is not installed",
            helps=["pip install -e '.[hub]'"],
        )
    try:
        directory = snapshot_download(
            name,
            revision=revision,
            allow_patterns=[*_DOWNLOADED_PATTERNS],
            ignore_patterns=[*_OTHER_FILES],
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        message = str(error).strip().partition("\n")[0]
        _raise_download(model, message or type(error).__name__)
    commit = Path(directory).name
    if revision == commit or len(commit) != _COMMIT_DIGITS:
        return directory, ()
    pinned_name = f"{HUB_PREFIX}{name}@{commit}"
    return directory, (
        f"`{escape_text(model)}` is commit {commit} now; to pin it: `{pinned_name}`",
    )


def _raise_download(model: str, reason: str) -> NoReturn:
    raise_error(
        "E0806",
        f"`{escape_text(model)}` cannot be downloaded from the Hugging Face Hub",
        notes=[escape_text(reason)[:300]],
        helps=["check the name, the revision, the network, and `hf auth login` for gated models"],
    )
