"""Render chat templates (Jinja) in a subprocess with resource limits."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.io.json_io import Json, JsonReader
from specc.io.safe_read import escape_text

MAX_TEMPLATE = 256_000
"""Maximum length of a template in characters. Published templates have at most a tenth of this
length."""
MAX_TEXT = 1_000_000
"""Maximum length of the messages, and of the rendered text, in characters."""
MAX_MESSAGES = 10_000
MAX_TOKENS = 100
CPU_SECONDS = 5
"""CPU time limit for rendering in seconds. The wall-clock limit is four times as high."""
MEMORY_LIMIT = 512 << 20
WORKER_SCRIPT = Path(__file__).with_name("chat_template_worker.py")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A chat template and the special tokens that it may contain, such as `bos_token`."""

    text: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def from_fields(fields: JsonReader) -> "ChatTemplate":
        """Create a chat template from untrusted JSON fields."""
        text = fields.get_required("text")
        if not isinstance(text, str) or not 0 < len(text) <= MAX_TEMPLATE:
            fields.raise_invalid("text", "is not a template")
        child = fields.read_object("tokens")
        if len(child.list_keys()) > MAX_TOKENS:
            fields.raise_invalid("tokens", "is too large")
        tokens = {name: child.get_required(name) for name in child.list_keys()}
        child.reject_unknown_keys()
        fields.reject_unknown_keys()
        texts = {n: t for n, t in tokens.items() if isinstance(t, str) and n.isidentifier()}
        if len(texts) != len(tokens):
            fields.raise_invalid("tokens", "is not a map of strings")
        return ChatTemplate(text, texts)


def parse_messages(value: object) -> list[dict[str, Json]]:
    """Parse a chat into messages. A string is one user message. Raise E0425 for an invalid chat."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_MESSAGES:
        _raise_invalid_chat("expected a list of messages")
    messages: list[dict[str, Json]] = []
    for number, message in enumerate(value):
        messages.append(_parse_message(number, message))
    _check_chat_size(messages)
    return messages


def _parse_message(number: int, message: object) -> dict[str, Json]:
    """Parse message `number` of a chat. Error messages contain the number."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        _raise_invalid_chat(f"message {number} has no `role`")
    if "content" not in message:
        _raise_invalid_chat(f"message {number} has no `content`")
    return dict(message)


def _check_chat_size(messages: list[dict[str, Json]]) -> None:
    """Raise E0425 if a chat is too long or cannot be serialized to JSON."""
    try:
        size = len(json.dumps(messages))
    except (TypeError, ValueError, RecursionError):
        _raise_invalid_chat("not serializable as JSON")
    if size > MAX_TEXT:
        _raise_invalid_chat(f"more than {MAX_TEXT} characters")


IMAGE_KEYS = ("path", "image", "url")
"""Keys for the image file in a message part, as in transformers."""


def list_message_images(messages: list[dict[str, Json]]) -> list[object]:
    """Return the image files of message parts such as `{"type": "image", "path": "a.png"}`."""
    return [
        next((part[key] for key in IMAGE_KEYS if isinstance(part.get(key), str)), "")
        for part in _list_image_parts(messages)
        if any(isinstance(part.get(key), str) for key in IMAGE_KEYS)
    ]


def _list_image_parts(messages: list[dict[str, Json]]) -> list[dict[str, Json]]:
    contents = [content for m in messages if isinstance(content := m["content"], list)]
    parts = [part for content in contents for part in content if isinstance(part, dict)]
    return [part for part in parts if part.get("type") == "image"]


def add_image_content_parts(messages: list[dict[str, Json]], count: int) -> list[dict[str, Json]]:
    """Insert `count` image parts into the last message, unless a message contains images."""
    if not count or _list_image_parts(messages):
        return messages
    *earlier_messages, last_message = messages
    content = last_message["content"]
    parts: list[Json] = [*content] if isinstance(content, list) else []
    if not isinstance(content, list):
        parts = [{"type": "text", "text": content}]
    images: list[Json] = [{"type": "image"} for _ in range(count)]
    return [*earlier_messages, {**last_message, "content": [*images, *parts]}]


def render_chat_template(template: ChatTemplate, messages: list[dict[str, Json]]) -> str:
    """Render a chat. Raise E0423 if the template fails or times out, and E0426 without jinja2."""
    if find_spec("jinja2") is None:
        raise_error(
            "E0426",
            "a chat template requires the package `jinja2`, which is not installed",
            helps=["pip install -e '.[chat]'", "or pass the formatted prompt"],
        )
    request = {
        "path": sys.path,
        "template": template.text,
        "tokens": dict(template.tokens),
        "messages": messages,
        "cpu_seconds": CPU_SECONDS,
        "memory_bytes": MEMORY_LIMIT,
        "max_length": MAX_TEXT,
    }
    # pass the package paths, because the subprocess runs without site packages and user settings
    command = [sys.executable, "-I", "-S", str(WORKER_SCRIPT)]
    try:
        process = subprocess.run(
            command,
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=4 * CPU_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        _raise_template_failed(f"it takes more than {4 * CPU_SECONDS} seconds")
    try:
        response = json.loads(process.stdout)
    except ValueError:
        response = None
    match response:
        case {"text": str(text)} if process.returncode == 0:
            return text
        case {"error": str(reason)}:
            _raise_template_failed(" ".join(escape_text(reason).split())[:300])
    # the operating system killed the subprocess before it could report an error
    _raise_template_failed("it takes too much time or memory")


def _raise_template_failed(reason: str) -> NoReturn:
    raise_error(
        "E0423",
        "the model's chat template cannot format this chat",
        notes=[reason],
        helps=[
            "some templates require a user message first, or do not support a system role: "
            "check the template"
        ],
    )


def _raise_invalid_chat(reason: str) -> NoReturn:
    raise_error(
        "E0425",
        f"invalid chat: {reason}",
        helps=['write [{"role": "user", "content": "your message"}, …]'],
    )
