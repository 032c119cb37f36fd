"""Read config fields from a Hugging Face config.json, and warn about keys that a spec neither reads
nor ignores (W0418).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Label, raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.config_json import (
    JsonList,
    JsonMember,
    JsonNode,
    JsonObject,
    JsonScalar,
    get_finite_number,
)
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.foreign_names import resolve_hf_activation
from specc.frontend.hf_rope_scaling import ROPE_KEYS, parse_rope_defaults, read_rope_config
from specc.frontend.rope_frequencies import get_max_rope_length
from specc.frontend.spec_values import (
    MISSING,
    ChoiceValue,
    MissingValue,
    RawConfig,
    Rope,
    SpecValue,
)
from specc.io.json_io import Json
from specc.ir.dim import Dim
from specc.syntax import ast


def read_hf_config_field(entry: ast.Field, env: LexicalScope) -> SpecValue | MissingValue:
    """Return the value of a field from the first source key that the file contains, or MISSING.

    The value null is `none` for an optional field, and false for a bool, because transformers tests
    the truth value. For any other field, null is treated as absent.
    """
    data = env.config_file
    if data is None:
        return MISSING
    for source in entry.sources:
        value = _read_source(source, entry, data, env)
        if not isinstance(value, MissingValue):
            return value
    members = [data.find_member(s.value) for s in entry.sources if isinstance(s, ast.TextLiteral)]
    if not any(members):
        return MISSING
    if entry.type.optional:
        return None
    return False if entry.type.name == "bool" else MISSING


def _read_source(
    source: ast.Expr, entry: ast.Field, data: JsonObject, env: LexicalScope
) -> SpecValue | MissingValue:
    """Return the value that an expression after `from` reads, or MISSING."""
    match source:
        case ast.Call(function=ast.Name(path="rope_config")):
            default = entry.default and env.evaluate_value(entry.default)
            return read_rope_config(
                source, entry, data, default if isinstance(default, Rope) else None
            )
        # `len("id2label")` counts classes, and `repeated("attention_types")` expands repetitions
        case (
            ast.TextLiteral(value=path)
            | ast.Call(
                function=ast.Name(path="len" | "repeated"), args=(ast.TextLiteral(value=path),)
            )
        ):
            member = data.find_non_null(path)
        case _:
            raise_error(
                "E0406",
                'a config value is read by a key, `len("…")`, `repeated("…")` or `rope_config(…)`',
                source.span,
            )
    if member is None:
        return MISSING
    reader = _MemberReader(entry, member, env)
    function = source.function.path if isinstance(source, ast.Call) else ""
    if function == "len":
        return reader.count_items()
    value = reader.expand_layer_pattern() if function else member.value
    return reader.convert_value(value, entry.type)


MAX_EXPANDED_LAYERS = 4096
"""The maximum length of an expanded list, which has one value per layer."""


def _split_layer_pattern(pattern: JsonNode) -> tuple[tuple[JsonNode, ...], int]:
    """Return the values and the repeat count of `[["global", "local"], 12]`, or -1 as the count of
    an invalid pattern.
    """
    match pattern:
        case JsonList(items=(JsonList(items=values), JsonScalar(value=bool()))):
            return values, -1
        case JsonList(items=(JsonList(items=values), JsonScalar(value=int() as times))):
            return values, times
    return (), -1


def _list_json_items(value: JsonNode, type: ast.TypeName) -> tuple[JsonNode, ...]:
    """Return the items of a list or pair. A single value is one item, or both items of a pair."""
    if isinstance(value, JsonList):
        return value.items
    if isinstance(value, JsonObject) and type.name == "list":
        # a list may be an object `{"0": …, "1": …}`, like `id2label`
        members = [value.members.get(str(n)) for n in range(len(value.members))]
        items = tuple(member.value for member in members if member)
        if len(items) == len(members):
            return items
    return (value,) * (2 if type.name == "pair" else 1)


@dataclass(frozen=True, slots=True)
class _MemberReader:
    """A converter of config file members to a field's declared type."""

    entry: ast.Field
    member: JsonMember
    env: LexicalScope

    def count_items(self) -> Dim:
        """Return the number of items of a list or an object. Raise E0403 for any other value."""
        match self.member.value:
            case JsonList(items=items) | JsonObject(members=items):
                return Dim.from_value(len(items)).with_origin(self.member.get_origin())
        title = f"{self.member.key.text} must be a list or an object"
        raise_error("E0403", title, self.member.value.span)

    def expand_layer_pattern(self) -> JsonList:
        """Expand `[[["global", "local"], 12]]` to 24 values. Raise E0403 for an invalid list."""
        expanded: list[JsonNode] = []
        value = self.member.value
        patterns = value.items if isinstance(value, JsonList) else ()
        for pattern in patterns:
            values, times = _split_layer_pattern(pattern)
            # check the length before a huge list is created
            if times < 0 or times * len(values) > MAX_EXPANDED_LAYERS - len(expanded):
                patterns = ()
                break
            expanded += times * values
        if not patterns:
            raise_error(
                "E0403",
                f"{self.member.key.text} must be a list of patterns with repeat counts",
                value.span,
                f'such as `[[["a", "b"], 3]]`, with at most {MAX_EXPANDED_LAYERS} values in total',
                related_labels=Label.labels_from_span(self.entry.span, "declared here"),
            )
        return JsonList(tuple(expanded), value.span)

    def convert_value(self, value: JsonNode, type: ast.TypeName) -> SpecValue:
        """Convert a JSON value to the declared type `type`, or return a record unchanged. A single
        value becomes a list with one item, or both items of a pair.
        """
        if type.name == "record" and isinstance(value, JsonObject):
            return RawConfig(self.member.key.text.strip('"'), value)
        element = type.element_type
        if element is None:
            return self.convert_scalar(value, type)
        items = _list_json_items(value, type)
        if type.name == "pair" and len(items) != 2:
            self.raise_wrong_type(value, type, f"a list of {len(items)}")
        return tuple(self.convert_value(item, element) for item in items)

    def convert_scalar(self, value: JsonNode, type: ast.TypeName) -> SpecValue:
        """Convert a scalar to the declared type. Raise E0403 for a scalar of the wrong type."""
        if not isinstance(value, JsonScalar):
            self.raise_wrong_type(
                value, type, "a list" if isinstance(value, JsonList) else "a record"
            )
        scalar = value.value
        match type.name:
            case "text" if isinstance(scalar, str):
                return scalar
            case "activation" if isinstance(scalar, str):
                return resolve_hf_activation(scalar, self.env, value.span)
            case "choice" if scalar in type.names:
                return ChoiceValue(str(scalar), type.names)
            case "bool" if isinstance(scalar, bool):
                return scalar
            # a bool is an int in Python, but not in a config file
            case "int" if isinstance(scalar, int) and not isinstance(scalar, bool):
                return Dim.from_value(scalar).with_origin(self.member.get_origin())
            case "float" if isinstance(scalar, int | float) and not isinstance(scalar, bool):
                # infinity represents an unlimited bound, e.g. of `clip`
                return scalar if math.isinf(scalar) else float(get_finite_number(value) or 0.0)
        self.raise_wrong_type(value, type, scalar)

    def raise_wrong_type(self, value: JsonNode, type: ast.TypeName, json_value: Json) -> NoReturn:
        """Raise E0403 for a value of the wrong type, and quote a short value in the message."""
        kinds = {
            "int": "an integer",
            "float": "a number",
            "bool": "true or false",
            "text": "a string",
            "activation": "the name of an activation",
            "pair": "one number or a list of two",
        }
        expected = kinds.get(type.name, type.name)
        span, label = value.span, f"`{self.entry.name}` takes {expected}"
        if type.name == "choice" and isinstance(value, JsonScalar):
            json_value, expected, label = repr(json_value), f"one of {', '.join(type.names)}", ""
        elif json_value is not None and len(span.text) < 60:
            json_value = span.text
        title = f"{self.member.key.text} is {json_value}, expected {expected}"
        labels = Label.labels_from_span(self.entry.span, "declared here")
        raise_error("E0403", title, span, label, related_labels=labels)


IGNORED_KEY_GROUPS = {
    "metadata of the file and the model": "_commit_hash _name_or_path "
    "_num_labels architectures auto_map custom_pipelines model_type name_or_path "
    "transformers_version",
    "element types, which the weight files determine": "dtype torch_dtype torchscript",
    "read only in training": "finetuning_task gradient_checkpointing "
    "initializer_factor initializer_range problem_type use_bfloat16",
    "augmentation and losses of speech models in training": "apply_spec_augment "
    "contrastive_logits_temperature ctc_loss_reduction ctc_zero_infinity diversity_loss_weight "
    "guided_attention_loss_num_heads guided_attention_loss_scale guided_attention_loss_sigma "
    "mask_channel_length mask_channel_min_space mask_channel_other mask_channel_prob "
    "mask_channel_selection mask_feature_length mask_feature_min_masks mask_feature_prob "
    "mask_time_length mask_time_min_masks mask_time_min_space mask_time_other mask_time_prob "
    "mask_time_selection num_negatives use_guided_attention_loss",
    "additional outputs of other programs": "output_attentions output_hidden_states "
    "return_dict use_cache use_return_dict",
    "implementation choices": "_attn_implementation "
    "_attn_implementation_autoset attn_implementation chunk_size_feed_forward "
    "pretraining_tp",
    "class names, whose number the weights determine": "id2label label2id num_labels",
    "special tokens, which tokenizer and generation settings define": "bos_token_id cls_token_id "
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
"""Keys in published configs that do not affect the computation, by reason."""
IGNORED_BY_ALL = frozenset(key for keys in IGNORED_KEY_GROUPS.values() for key in keys.split())

NO_EFFECT_VALUES: dict[str, object] = {
    "add_cross_attention": False,
    "is_decoder": False,
    "pruned_heads": {},
    "rope_type": "default",
    "tie_word_embeddings": True,
}
"""The keys that transformers writes to every config.json, each with its value without effect."""

TRAINING_KEY_SUFFIXES = (
    "dropout",
    "drop_path",
    "layerdrop",
    "dropout_prob",
    "dropout_rate",
    "pdrop",
)
"""The suffixes of keys that affect only training, such as dropout."""


def find_unread_config_keys(entries: list[ast.ConfigEntry], data: JsonObject) -> list[Diagnostic]:
    """Return a list that contains W0418 if a spec does not read all keys of a config.json."""
    known_keys = set(iterate_handled_config_keys(entries))
    unread_keys = dict(_iterate_unread_keys(known_keys, data, ""))
    return [_make_unread_warning(unread_keys, known_keys)] if unread_keys else []


def _iterate_unread_keys(
    known_keys: set[str], data: JsonObject, prefix: str
) -> Iterator[tuple[str, JsonMember]]:
    """Yield (path, member) for each key that is not in `known_keys`. A known path to a member of an
    object does not cover the other members.
    """
    for key, member in data.members.items():
        path = f"{prefix}{key}"
        if key in IGNORED_BY_ALL or _has_no_effect(key, member) or path in known_keys:
            continue
        depth = path.count(".")
        max_depth = max((p.count(".") for p in known_keys if _has_prefix(p, path)), default=-1)
        if max_depth > depth and isinstance(member.value, JsonObject):
            yield from _iterate_unread_keys(known_keys, member.value, f"{path}.")
        elif max_depth < depth:
            yield path, member


def _has_prefix(known_key: str, path: str) -> bool:
    """Return True if `known_key` begins with `path`. A `*` in `known_key` matches any key."""
    pairs = zip_longest(path.split("."), known_key.split("."), fillvalue="*")
    return all(pattern in ("*", part) for part, pattern in pairs if part != "*")


def warn_about_rope_context_limits(
    entries: list[ast.ConfigEntry], data: JsonObject
) -> Iterator[Diagnostic]:
    """Yield W0436 for each field whose RoPE frequencies depend on the context length."""
    for entry in entries:
        if not isinstance(entry, ast.Field):
            continue
        for source in entry.sources:
            match source:
                case ast.Call(function=ast.Name(path="rope_config")):
                    rope = read_rope_config(source, entry, data, None)
                    if original := get_max_rope_length(rope):
                        table = parse_rope_defaults(source).find_rope_settings(data)
                        yield _make_context_warning(rope.kind, original, table, entry)


def _make_context_warning(
    kind: str, max_length: int, data: JsonObject, entry: ast.Field
) -> Diagnostic:
    """Return W0436 for a field whose RoPE settings support at most `max_length` tokens."""
    table = data.find_non_null("rope_parameters") or data.find_non_null("rope_scaling")
    assert table is not None, "a scaling rule is in one of the two"
    return Diagnostic(
        "W0436",
        f"the model supports at most {max_length} tokens, the original context length of its "
        f"RoPE scaling `{kind}`",
        Label(table.key, "longer sequences need other frequencies"),
        related_labels=Label.labels_from_span(entry.span, "read here"),
        notes=(
            "transformers recomputes the frequencies from the longest sequence of each batch, "
            "so its results differ for sequences beyond this length",
        ),
        helps=("compile for the longest sequence you need: --context-length N",),
        severity="warning",
    )


def _has_no_effect(key: str, member: JsonMember) -> bool:
    """Return True if a key affects only training, or has a value without effect."""
    # dropout has many names and is inactive at inference, and null is treated as absent
    if key.endswith(TRAINING_KEY_SUFFIXES) or member.is_null:
        return True
    value, default = member.value.to_plain(), NO_EFFECT_VALUES.get(key)
    # 0 is not treated as false, because 0 and false have different meanings in a config file
    return key in NO_EFFECT_VALUES and value == default and type(value) is type(default)


def iterate_handled_config_keys(entries: list[ast.ConfigEntry]) -> Iterator[str]:
    """Yield the config.json keys that a spec reads, expects or ignores, as dotted paths."""
    for entry in entries:
        match entry:
            case ast.ExpectedValues(key=key):
                yield key
            case ast.IgnoredKeys(keys=keys):
                yield from keys
            case ast.Field(sources=sources):
                for source in sources:
                    yield from _iterate_source_keys(source)


def _iterate_source_keys(source: ast.Expr) -> Iterator[str]:
    """Yield the config.json keys that an expression after `from` reads."""
    match source:
        case ast.TextLiteral(value=path):
            yield path
        case ast.Call(function=ast.Name(path="rope_config")):
            defaults = parse_rope_defaults(source)
            keys = (*ROPE_KEYS, defaults.theta_key)
            yield from keys
            yield from (f"{defaults.subconfig_key}.{key}" for key in keys)
        case ast.Call(args=args):
            for arg in args:
                yield from _iterate_source_keys(arg)


def _make_unread_warning(unread: dict[str, JsonMember], known_keys: set[str]) -> Diagnostic:
    names = [name[:60] for name in unread]
    keys_text = ", ".join(f"`{name}`" for name in names[:12])
    count_text = f" and {len(names) - 12} more" if len(names) > 12 else ""
    first_key, member = next(iter(unread.items()))
    return Diagnostic(
        "W0418",
        f"keys of config.json that the spec does not read: {keys_text}{count_text}",
        Label(member.key, "ignored by the compiled model"),
        helps=(
            *suggest_similar_name(first_key, known_keys),
            f'if the key does not change results, add to `config`: ignore "{names[0]}"',
        ),
        severity="warning",
    )
