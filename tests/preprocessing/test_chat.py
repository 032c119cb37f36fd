"""Chat templates: rendered as in transformers, sandboxed, limited in time and memory, with error
codes."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.preprocessing_records import parse_input_record

from specc.diagnostics.diagnostic import SpeccError
from specc.huggingface.hub_download_and_chat_templates import read_chat_template
from specc.preprocessing import chat_template
from specc.preprocessing.chat_template import ChatTemplate, parse_messages, render_chat_template
from specc.preprocessing.tokenizer_files import HfTokenizer, TokenizerFile

HELLO: Any = [{"role": "user", "content": "hello"}]


def render(template: str, messages: Any = HELLO, **tokens: str) -> str:
    return render_chat_template(ChatTemplate(template, tokens), messages)


def get_error_note(template: str, messages: Any = HELLO) -> str:
    with pytest.raises(SpeccError) as failed:
        render(template, messages)
    (diagnostic,) = failed.value.diagnostics
    assert diagnostic.code == "E0423"
    return diagnostic.notes[0]


def test_supported_template_features() -> None:
    """Special tokens, `break`, `tojson`, `generation` blocks, whitespace control."""
    template = """\
{{ bos_token }}
{%- for m in messages %}
    {%- if loop.index > 1 %}{% break %}{% endif %}
    {% generation %}[{{ m | tojson }}]{% endgeneration %}

{%- endfor %}
{% if add_generation_prompt %}>{% endif %}
"""
    wanted = '<s>[{"role": "user", "content": "hé<"}]>'
    assert render(template, [{"role": "user", "content": "hé<"}], bos_token="<s>") == wanted


HOSTILE = {
    "reaches for the machine": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "changes what it is given": "{{ messages.append(1) }}",
    "takes all memory": "{{ ['a' * 1000000000] * 1000000 }}{% set x = namespace(v='a') %}{% for i in range(60) %}{% set x.v = x.v + x.v %}{% endfor %}{{ x.v }}",
    "fills with blanks": "{{ 'a'.center(100000000000) }}",
    "writes too much": "{% for i in range(99999) %}{{ '0123456789012345' }}{% endfor %}",
    "nests without end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "says no": "{{ raise_exception('only\\x1b[31m users') }}",
    "is damaged": "{% for %}",
    "names what is not there": "{{ messages[7].role.x }}",
    "counts too far": "{% for i in range(10**9) %}{% endfor %}",
    "is a large product": "{{ 10 ** (10 ** 10) }}",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_templates_are_stopped(what: str) -> None:
    start = time.monotonic()
    note = get_error_note(HOSTILE[what])
    assert time.monotonic() - start < 4 * chat_template.CPU_SECONDS + 10
    assert note
    assert "\x1b" not in note


@pytest.mark.slow
def test_template_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "CPU_SECONDS", 1)
    turns = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
    start = time.monotonic()
    assert "too much time" in get_error_note(turns) or "seconds" in get_error_note(turns)
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    "given",
    [
        [], {}, 3, None, [3], [{"role": "user"}], [{"content": "x"}], [{"role": 3, "content": "x"}],
        [{"role": "user", "content": {1, 2}}], [{"role": "user", "content": "x" * 1_000_001}],
    ],
)  # fmt: skip
def test_invalid_messages(given: object) -> None:
    with pytest.raises(SpeccError, match="E0425"):
        parse_messages(given)


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("a\nb\n{% for %}", 3),
        ("a\n\n{{ 1 / 0 }}", 3),
        ("{% macro f() %}\n{{ raise_exception('x') }}\n{% endmacro %}\n\n{{ f() }}", 2),
    ],
)
def test_template_errors_name_the_line(template: str, line: int) -> None:
    assert f"in line {line}: " in get_error_note(template)


def test_missing_jinja(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "find_spec", lambda name: None)
    with pytest.raises(SpeccError, match="E0426"):
        render("x")


CONFIGS = [
    ({"chat_template": "a"}, None, "a"),
    ({"chat_template": "a"}, "b", "b"),
    ({}, "b", "b"),
    ({}, None, None),
    ({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}, None, "d"),
    ({"chat_template": [{"name": "rag", "template": "r"}]}, None, "r"),
    ({"chat_template": {"rag": "r", "default": "d"}}, None, "d"),
    ({"chat_template": []}, None, None),
    ({"chat_template": None}, None, None),
]  # fmt: skip


@pytest.mark.parametrize(("config", "own", "wanted"), CONFIGS)
def test_template_sources(
    config: dict[str, Any], own: str | None, wanted: str | None, tmp_path: Path
) -> None:
    more = {
        "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "model_max_length": int(1e30),
    }  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, **more}))
    if own is not None:
        (tmp_path / "chat_template.jinja").write_text(own)
    found = read_chat_template(tmp_path, None)
    assert (found and found.text) == wanted
    if found:
        assert found.tokens == {"bos_token": "<s>", "eos_token": "</s>"}


DAMAGED = [
    "[1]", "{", "\xff",
    *(json.dumps({"chat_template": t}) for t in (3, True, ["x"], [[1]], [{}], [{"name": 1, "template": "x"}],
      [{"name": [1], "template": "x"}], [{"name": {}, "template": "x"}], [{"name": "default", "template": 2}],
      {"default": 3}, [{"name": "a", "template": "x"}, {"name": "b", "template": "y"}])),
    json.dumps({"chat_template": "x", **{f"a{n}_token": "x" for n in range(101)}}),
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_tokenizer_config(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(SpeccError, match="E0423"):
        read_chat_template(tmp_path, None)


def test_template_is_part_of_the_model() -> None:
    file = TokenizerFile.from_text("{}")
    record = HfTokenizer(file=file, chat_template=ChatTemplate("t", {"bos_token": "<s>"}))
    assert parse_input_record(record.to_json(), files={file.sha256: file}) == record


@pytest.mark.parametrize(
    "data",
    [{"text": 3, "tokens": {}}, {"text": "", "tokens": {}}, {"text": "x" * 256_001, "tokens": {}},
     {"text": "x", "tokens": {"a b": "c"}}, {"text": "x", "tokens": {"a": 3}}, {"text": "x", "tokens": 3},
     {"text": "x", "tokens": {}, "more": 1}, "x"],
)  # fmt: skip
def test_invalid_template_record(data: object) -> None:
    file = TokenizerFile.from_text("{}")
    record = {"kind": "tokenizer", "file": file.sha256, "chat": data}
    with pytest.raises(SpeccError, match="E0915"):
        parse_input_record(record, files={file.sha256: file})
