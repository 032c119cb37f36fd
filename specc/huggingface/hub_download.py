"""Download a model from the Hugging Face Hub, given as `hf:org/name` or `hf:org/name@revision`."""

import re
from pathlib import Path
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text

HUB_PREFIX = "hf:"
_MODEL_ID = re.compile(r"((?:[\w-][\w.-]*/)?[\w-][\w.-]*)(?:@([\w./-]+))?")
_DOWNLOADED_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.jinja")
"""Patterns of files that `compile` may read, without pickles and other weight formats."""
_OTHER_FILES = ("original/*", "consolidated*", "onnx/*", "openvino/*", "coreml/*")
_COMMIT_DIGITS = 40


def download_model(model: str) -> tuple[str, tuple[str, ...]]:
    """Download a model to the Hub cache. Return the model directory and a remark with the commit.

    A local path is returned unchanged. Cached files are not downloaded again. `HF_ENDPOINT`,
    `HF_HOME`, `HF_HUB_OFFLINE` and access tokens work as in `huggingface_hub`. Raise E0801 if the
    package `huggingface_hub` is missing, and E0806 if the name is invalid or the download fails.
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
            f"`{escape_text(model)}` needs the package `huggingface_hub`, which is not installed",
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
