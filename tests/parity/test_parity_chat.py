"""Chat templates of published models: rendered prompts and token ids equal those of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from support.published_models import randomize_weights

import specc
from specc.cli.main import main
from specc.huggingface.hub_download_and_chat_templates import read_chat_template
from specc.preprocessing.chat_template import parse_messages, render_chat_template
from specc.runtime.generation_request import prepare_chat_inputs

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

TEMPLATES = {
    "marked": """\
{% for message in messages %}
{{ '<|start|>' + message['role'] + '\\n' + message['content'] | trim + '<|stop|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}""",
    "in turns": """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}\
{% set system_message = false %}{% endif %}{% for message in loop_messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('roles must alternate') }}{% endif %}\
{% if loop.index0 == 0 and system_message %}{% set content = '<<' + system_message + '>>' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ '[I] ' + content.strip() + ' [/I]' }}{% else %}\
{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "of blocks": """\
{{- bos_token }}
{%- for m in messages %}
    {%- if loop.index > 2 %}{% break %}{% endif %}
    {% generation %}[{{ m | tojson }}]{% endgeneration %}

    {{- m.content | upper }}
{%- endfor %}
{% if tools is not none %}tools{% endif %}
{% if add_generation_prompt %}>{% endif %}
""",
    "with a namespace": """\
{%- set ns = namespace(n=0) -%}
{%- for message in messages if message.role != 'system' -%}
  {%- set ns.n = ns.n + 1 -%}
  {{ '<' ~ ns.n ~ ':' ~ message.role ~ '>' ~ message.content ~ eos_token }}
{%- endfor -%}
{{ {'b': 1, 'a': [1, 2]} | tojson(indent=2) }}
""",
}
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hello  "}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a é < 'b'\n"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c d"},
    ],
]


def tokenizer_at(directory: Path, template: str) -> Any:
    """Save a fast tokenizer with the chat template."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<unk>", "<s>", "</s>", "<|start|>", "<|stop|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["hello Be brief"], trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    theirs.chat_template = template
    theirs.save_pretrained(directory)
    return theirs


@pytest.mark.parametrize("name", TEMPLATES)
def test_rendered_prompts_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = tokenizer_at(tmp_path, TEMPLATES[name])
    template = read_chat_template(tmp_path, None)
    assert template is not None
    for chat in CHATS:
        wanted = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert render_chat_template(template, parse_messages(chat)) == wanted


def test_a_package_continues_a_chat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The token ids of transformers, special tokens once; the same text from Python and the command
    line, from a string and a file.
    """
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, eos_token_id=2, bos_token_id=1,
    )  # fmt: skip
    model = randomize_weights(transformers.LlamaForCausalLM(config))
    model.save_pretrained(tmp_path)
    theirs = tokenizer_at(tmp_path, TEMPLATES["in turns"])
    out = tmp_path / "package"
    specc.compile(tmp_path, out, graphs="step")
    ours = specc.load(out)
    for chat in CHATS:
        wanted = theirs.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        ids = prepare_chat_inputs(ours.input_signature, chat)[ours.input_signature.sequence_input]
        assert ids == [wanted]
    (written,) = ours.chat("hello  ", max_tokens=8).results()
    (tmp_path / "chat.json").write_text(json.dumps(CHATS[0]), encoding="utf-8")
    capsys.readouterr()
    for said in ("hello  ", f"@{tmp_path / 'chat.json'}"):
        assert main(["run", str(out), "--chat", said, "--max-tokens", "8"]) == 0
        assert capsys.readouterr().out.rstrip("\n") == (written[0].text or "").rstrip("\n")
