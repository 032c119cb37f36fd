"""Drop token ids of a generation_config.json that are outside the vocabulary."""

from collections.abc import Iterator, Mapping, Sequence

from specc.decode.settings_errors import VocabularySizes
from specc.frontend.generate_and_reading_sections import get_vocabulary_sizes
from specc.ir.model import ModelDefinition

FILTERING_SETTINGS: Mapping[str, str] = {
    "stop": "eos_token_id",
    "pad": "pad_token_id",
    "suppress_tokens": "suppress_tokens` or `bad_words_ids",
    "begin_suppress_tokens": "begin_suppress_tokens",
    "bad_words_ids": "bad_words_ids",
}
"""Settings that an id beyond the vocabulary does not change, with their keys."""
GENERATED_SETTINGS: Mapping[str, str] = {
    "start": "decoder_start_token_id",
    "begin": "forced_bos_token_id",
    "forced_eos_token_id": "forced_eos_token_id",
}
"""Settings with tokens that the model reads or generates, with their keys."""


def drop_unknown_tokens(model: ModelDefinition, settings: dict[str, object]) -> Iterator[str]:
    """Remove unknown ids of `FILTERING_SETTINGS` in place; yield a remark per key."""
    vocabulary = _vocabulary(model)
    for word, key in FILTERING_SETTINGS.items():
        value = settings.get(word)
        items = value if isinstance(value, list) else [value]
        unknown = [i for i in items if vocabulary.beyond(word, [i])]
        if value is None or not unknown:
            continue
        # a file whose only stop is unknown ends no sequence, whatever the spec says
        settings[word] = [item for item in items if item not in unknown]
        if word == "pad":
            del settings[word]
        yield f"`{key}` has {_shown(unknown)}, which the vocabulary does not have; ignored"


def unknown_token(model: ModelDefinition, settings: Mapping[str, object]) -> tuple[str, str]:
    """Return the key of a token that would be read or generated and is beyond the
    vocabulary, and what is wrong; two empty texts where there is none.
    """
    vocabulary = _vocabulary(model)
    for word, key in GENERATED_SETTINGS.items():
        value = settings.get(word)
        if value is not None and (fault := vocabulary.beyond(word, value)):
            return key, f"cannot be followed: {fault.title}"
    return "", ""


def _vocabulary(model: ModelDefinition) -> VocabularySizes:
    generation = model.generation
    assert generation is not None
    if generation.source not in model.graph.outputs:
        return VocabularySizes()
    return get_vocabulary_sizes(model.graph, generation.growing, generation.source)


def _shown(items: Sequence[object]) -> str:
    """Format the first three items, each truncated to 60 characters."""
    some = ", ".join(str(item)[:60] for item in items[:3])
    return some if len(items) <= 3 else f"{some}, …"
