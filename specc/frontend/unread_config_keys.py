"""Warn about config.json keys that a spec neither reads nor ignores (W0418)."""

from collections.abc import Iterator
from itertools import zip_longest

from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.diagnostics.source import Span
from specc.diagnostics.suggest import did_you_mean, format_suggestion
from specc.frontend.config_json import JsonMember, JsonObject
from specc.frontend.hf_rope_scaling import ROPE_KEYS, parse_rope_defaults, read_rope_config
from specc.frontend.rope_frequencies import get_max_rope_length
from specc.syntax import ast

IGNORED_KEY_GROUPS = {
    "metadata of the file and the model": "_commit_hash _name_or_path "
    "_num_labels architectures auto_map custom_pipelines model_type name_or_path "
    "transformers_version",
    "element types, which the weight files have": "dtype torch_dtype torchscript",
    "read in training only": "finetuning_task gradient_checkpointing "
    "initializer_factor initializer_range problem_type use_bfloat16",
    "additional outputs of other programs": "output_attentions output_hidden_states "
    "return_dict use_cache use_return_dict",
    "implementation choices": "_attn_implementation "
    "_attn_implementation_autoset attn_implementation chunk_size_feed_forward "
    "pretraining_tp",
    "class names, whose number the weights have": "id2label label2id num_labels",
    "special tokens, which tokenizer and generation settings have": "bos_token_id cls_token_id "
    "decoder_start_token_id eos_token_id mask_token_id pad_token_id prefix "
    "sep_token_id tokenizer_class unk_token_id",
    "generation settings": "bad_words_ids begin_suppress_tokens diversity_penalty "
    "do_sample early_stopping encoder_no_repeat_ngram_size "
    "exponential_decay_length_penalty forced_bos_token_id forced_decoder_ids "
    "forced_eos_token_id generation_max_length length_penalty max_length min_length "
    "no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores "
    "remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens "
    "task_specific_params temperature top_k top_p typical_p",
    "settings of other programs": "is_encoder_decoder tf_legacy_loss tie_encoder_decoder tpu_name",
}
"""Keys of published configs that do not affect the computation, by reason."""
IGNORED_BY_ALL = frozenset(key for keys in IGNORED_KEY_GROUPS.values() for key in keys.split())

NO_EFFECT_VALUES: dict[str, object] = {
    "add_cross_attention": False,
    "is_decoder": False,
    "pruned_heads": {},
    "rope_type": "default",
    "tie_word_embeddings": True,
}
"""Keys that every complete config of its time contains, with the value that has no effect; any
other value is reported."""

TRAINING_KEY_SUFFIXES = (
    "dropout",
    "drop_path",
    "layerdrop",
    "dropout_prob",
    "dropout_rate",
    "pdrop",
)
"""Suffixes of keys that affect training only, such as dropout."""


def find_unread_keys(entries: list[ast.ConfigEntry], data: JsonObject) -> list[Diagnostic]:
    """Return W0418, once, for keys of a config.json that the spec does not read, at any depth."""
    known = set(iterate_known_keys(entries))
    strange = dict(_iterate_unread_keys(known, data, ""))
    return [_make_unread_warning(strange, known)] if strange else []


def _iterate_unread_keys(
    known: set[str], data: JsonObject, prefix: str
) -> Iterator[tuple[str, JsonMember]]:
    """Yield the members that no known path names, with their paths. A path to a value inside of
    an object reads that value alone.
    """
    for key, member in data.members.items():
        path = f"{prefix}{key}"
        if key in IGNORED_BY_ALL or _is_without_effect(key, member) or path in known:
            continue
        depth = path.count(".")
        longest = max((p.count(".") for p in known if _begins_with(p, path)), default=-1)
        if longest > depth and isinstance(member.value, JsonObject):
            yield from _iterate_unread_keys(known, member.value, f"{path}.")
        elif longest < depth:
            yield path, member


def _begins_with(known: str, path: str) -> bool:
    """Return True if a known path, with `*` for any key, begins with a path."""
    pairs = zip_longest(path.split("."), known.split("."), fillvalue="*")
    return all(pattern in ("*", part) for part, pattern in pairs if part != "*")


def find_limited_contexts(entries: list[ast.ConfigEntry], data: JsonObject) -> Iterator[Diagnostic]:
    """Yield W0436 for each field whose rotary frequencies change beyond the original
    context, as those of `dynamic` and `longrope` do.
    """
    for entry in entries:
        if not isinstance(entry, ast.Field):
            continue
        for source in entry.sources:
            match source:
                case ast.Call(function=ast.Name(path="rope_config")):
                    rope = read_rope_config(source, entry, data, None)
                    if original := get_max_rope_length(rope):
                        table = parse_rope_defaults(source).find_section(data)
                        yield _make_context_warning(rope.kind, original, table, entry)


def _make_context_warning(
    kind: str, original: int, data: JsonObject, entry: ast.Field
) -> Diagnostic:
    table = data.find_non_null("rope_parameters") or data.find_non_null("rope_scaling")
    assert table is not None, "a scaling rule is in one of the two"
    return Diagnostic(
        "W0436",
        f"the model is compiled for at most {original} tokens, the original context of its "
        f"rotary scaling `{kind}`",
        Label(table.key, "other frequencies for longer sequences"),
        others=(Label(entry.span, "read here"),) if entry.span else (),
        notes=(
            "transformers changes the frequencies at run time, by the longest sequence of a "
            "batch: beyond the original context the numbers differ",
        ),
        helps=("compile for the longest sequence you need: --context-length N",),
        severity="warning",
    )


def _is_without_effect(key: str, member: JsonMember) -> bool:
    """Return whether a key only affects training, or has its default value."""
    # Dropout has many names and is inactive at inference. Null means absent.
    if key.endswith(TRAINING_KEY_SUFFIXES) or member.is_null:
        return True
    value = member.value.to_plain()
    # 0 is not false: such a file means something else
    return (
        key in NO_EFFECT_VALUES
        and value == NO_EFFECT_VALUES[key]
        and type(value) is type(NO_EFFECT_VALUES[key])
    )


def iterate_known_keys(entries: list[ast.ConfigEntry]) -> Iterator[str]:
    """Yield the keys that a spec reads, as dotted paths."""
    for entry in entries:
        match entry:
            case ast.Expect(key=key):
                yield key
            case ast.IgnoredKeys(keys=keys):
                yield from keys
            case ast.Field(sources=sources):
                for source in sources:
                    yield from _iterate_source_keys(source)


def _iterate_source_keys(source: ast.Expr) -> Iterator[str]:
    """Return the keys after `from`."""
    match source:
        case ast.TextLiteral(value=path):
            yield path
        case ast.Call(function=ast.Name(path="rope_config")):
            defaults = parse_rope_defaults(source)
            yield from ROPE_KEYS
            yield defaults.theta_key
            yield from (f"{defaults.section}.{key}" for key in (*ROPE_KEYS, defaults.theta_key))
        case ast.Call(args=args):
            for arg in args:
                yield from _iterate_source_keys(arg)


def _make_unread_warning(strange: dict[str, JsonMember], known: set[str]) -> Diagnostic:
    names = list(strange)
    first = strange[names[0]]
    shown = ", ".join(f"`{name[:60]}`" for name in names[:12])
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    near = did_you_mean(names[0], known)
    return Diagnostic(
        "W0418",
        f"the spec does not read {shown}{more}",
        Label(_get_key_span(first), "the compiled model ignores this"),
        helps=(
            *([format_suggestion(near)] if near else []),
            f'if it changes no result, add to `config`: ignore "{names[0][:60]}"',
        ),
        severity="warning",
    )


def _get_key_span(member: JsonMember) -> Span:
    return member.key
