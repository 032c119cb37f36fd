"""A chat as what a model that writes is given: ids by its template and its tokenizer."""

from dataclasses import replace

from specc.data.chat import filled, messages_of
from specc.data.tokenizer import TextTokenizer
from specc.data.tokenizing import ids_of
from specc.run.inputs import Entrance
from specc.text.diagnostic import fail


def chat_ids(entrance: Entrance, messages: object) -> list[int]:
    """A chat as the ids that the model is to go on behind: of a text, or of messages with
    `role` and `content`. E0424 where the model has no template, else as
    `specc.data.chat` does.
    """
    growing = entrance.growing
    record = entrance.reading.of_input(growing) if growing else None
    if not isinstance(record, TextTokenizer) or record.chat is None:
        fail(
            "E0424",
            "this model has no chat template",
            helps=["give the text itself as the prompt"],
        )
    text = filled(record.chat, messages_of(messages))
    # the template has put special tokens where they belong
    return ids_of(text, replace(record, special=False))
