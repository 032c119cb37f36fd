"""The chat template that lies beside published weights: `chat_template.jinja`, or what
`tokenizer_config.json` says, with the special tokens that a template may name.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from specc.data.chat import MOST_TEMPLATE, MOST_TOKENS, ChatTemplate
from specc.files.json import ANY, parse
from specc.files.read import Unreadable, read_regular, shown
from specc.text.diagnostic import fail
from specc.text.source import Span

CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
LARGEST = 16 << 20
KEY = "chat_template"
USUAL = "default"
"""The name of the template that is meant where there are several."""


def chat_in(folder: Path, span: Span | None) -> ChatTemplate | None:
    """The template of a folder, if it has one. Fails with E0802 and E0423."""
    path, own = folder / CONFIG, folder / TEMPLATE
    config = _object(path, span) if os.path.lexists(path) else {}
    said: object = config.get(KEY)
    # a file of its own goes before, as published programs have it
    if os.path.lexists(own):
        said, path = _text(own, span), own
    if isinstance(said, list | dict):
        said = _usual(_named(said, path, span), path, span)
    if said is None:
        return None
    if not isinstance(said, str) or not 0 < len(said) <= MOST_TEMPLATE:
        _unusable(path, f"it is no text of at most {MOST_TEMPLATE} characters", span)
    return ChatTemplate(said, _tokens(config, path, span))


def chat_files(folder: Path) -> list[Path]:
    """The files that a template is read from."""
    return [f for f in (folder / CONFIG, folder / TEMPLATE) if os.path.lexists(f)]


def _named(several: object, path: Path, span: Span | None) -> dict[str, object]:
    """Templates by their names, of a list of objects or of a table. Fails with E0423."""
    if isinstance(several, dict):
        return {**several}
    named: dict[str, object] = {}
    for one in several if isinstance(several, list) else ():
        match one:
            case {"name": str(name), "template": template}:
                named[name] = template
            case _:
                _unusable(path, "one of its templates has no name", span)
    return named


def _usual(named: Mapping[str, object], path: Path, span: Span | None) -> object:
    """Of templates with names the usual one, or the only one; None where there are none.
    Fails with E0423 for several of which none is usual, as published programs do.
    """
    if USUAL in named or not named:
        return named.get(USUAL)
    if len(named) > 1:
        names = shown(", ".join(named))[:80]
        _unusable(path, f"none of its templates, {names}, is called `{USUAL}`", span)
    return next(iter(named.values()))


def _tokens(
    config: Mapping[str, object], path: Path, span: Span | None
) -> dict[str, str]:
    """The special tokens by name: `bos_token`, written as a text or as an object."""
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            value = value.get("content")
        if key.endswith("_token") and key.isidentifier() and isinstance(value, str):
            found[key] = value
    if len(found) > MOST_TOKENS:
        _unusable(path, f"it names more than {MOST_TOKENS} special tokens", span)
    return found


def _object(path: Path, span: Span | None) -> dict[str, object]:
    try:
        value = parse(_text(path, span), ANY)
    except ValueError as error:
        _unusable(path, shown(str(error))[:200], span)
    if not isinstance(value, dict):
        _unusable(path, "it holds no object", span)
    return {**value}


def _text(path: Path, span: Span | None) -> str:
    try:
        return read_regular(path, LARGEST).decode("utf-8-sig")
    except Unreadable as error:
        fail("E0802", f"`{shown(str(path))}` cannot be read: {error.reason}", span)
    except UnicodeDecodeError:
        _unusable(path, "it is not UTF-8 text", span)


def _unusable(path: Path, why: str, span: Span | None) -> NoReturn:
    fail(
        "E0423",
        f"the chat template in `{shown(str(path))}` cannot be used: {why}",
        span,
        helps=["get the file that belongs to the weights, or compile without it"],
    )
