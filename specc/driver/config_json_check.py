"""Check that a config.json matches a spec. The checks report unexpected values (E0405), unused keys
(W0418) and limited context lengths (W0436).
"""

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

from specc.diagnostics.diagnostic import Diagnostic, Label, raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.hf_rope_scaling import ROPE_KEYS, parse_rope_config_options, read_rope_config
from specc.frontend.json_parser_with_spans import WHOLE_OBJECT, JsonMember, JsonObject, JsonScalar
from specc.frontend.rope_frequencies import get_max_rope_length
from specc.frontend.spec_modules import Program
from specc.frontend.symbolic_check import FIELD_PATH, check_spec_symbolically
from specc.frontend.used_specs import (
    MODEL_TYPE_KEY,
    add_use_label_to_errors,
    get_config_section,
    list_config_entries,
)
from specc.huggingface.model_family import suggest_spec_for_config_value
from specc.syntax import ast
from specc.weights.parameter_name_patterns import split_name_at_numbers


def check_model_type(program: Program, data: JsonObject, *, is_type_checked: bool = True) -> bool:
    """Return True if the spec declares a model_type. Raise E0405 if the config, or the part of the
    config that a used spec reads, has a different model_type.
    """
    expected = [e for e in list_config_entries(program) if isinstance(e, ast.ExpectedConfigValues)]
    checked = [e for e in expected if is_type_checked or e.key != MODEL_TYPE_KEY]
    module = program.chain[0]
    _check_expected_keys(
        checked, data, Path(module.path).stem if module.is_builtin else module.path
    )
    for part in program.used_specs:
        if (section := get_config_section(part, data)) is not None:
            with add_use_label_to_errors(part.use):
                # if a part of the config has no model_type, assume the model_type that the spec
                # declares
                is_typed = section.find_non_null_member(MODEL_TYPE_KEY) is not None
                check_model_type(
                    part.program, section, is_type_checked=is_typed and section is not data
                )
    return any(e.key == MODEL_TYPE_KEY for e in expected)


def _check_expected_keys(
    expectations: Iterable[ast.ExpectedConfigValues], data: JsonObject, spec: str
) -> None:
    """Raise E0405 if the config file belongs to another model family or variant.

    The value `none` in an `expect` entry matches a key that is absent or null. `spec` is the path
    of a spec file, or the name of a built-in spec.
    """
    for entry in expectations:
        member = data.find_member(entry.key)
        value = _format_member(member)
        if value not in entry.values:
            actual = f"`{value}`" if member and not member.is_null else "missing"
            labels = Label.tuple_from_span(entry.span, "expected by this spec")
            raise_error(
                "E0405",
                f'"{entry.key}" is {actual}, expected {" or ".join(entry.values)}',
                member.value.span if member else None,
                helps=suggest_spec_for_config_value(spec, entry.key, value),
                related_labels=labels,
            )


def _format_member(member: JsonMember | None) -> str:
    """Format a config value in the syntax of `expect`: text, a boolean, a number, or `none`."""
    if member is None or member.is_null:
        return "none"
    value = member.value.value if isinstance(member.value, JsonScalar) else None
    return value if isinstance(value, str) else member.value.span.text


def warn_about_unused_keys(
    program: Program, data: JsonObject, outer_keys: tuple[str, ...] = ()
) -> Iterator[Diagnostic]:
    """Yield a W0418 warning for each part of the config that contains keys that the spec does not
    read. `outer_keys` are the keys that the enclosing spec reads.
    """
    sources = {key for part in program.used_specs for key in part.use.sources}
    entries = [*_list_entries_for_config(program), ast.IgnoredConfigKeys((*sources, *outer_keys))]
    known_keys = set(iterate_declared_config_keys(entries))
    if unused_keys := dict(_iterate_unused_keys(known_keys, data, "")):
        yield _make_unused_keys_warning(
            unused_keys, known_keys - data.members.keys(), is_builtin=program.is_builtin
        )
    for part in program.used_specs:
        section = get_config_section(part, data)
        if section is not None and section is not data:
            prefixes = [f"{key}." for key in part.use.sources]
            read_keys = [k.removeprefix(p) for k in known_keys for p in prefixes if k.startswith(p)]
            yield from warn_about_unused_keys(part.program, section, tuple(read_keys))


def _list_entries_for_config(program: Program) -> list[ast.ConfigEntry]:
    """Return the `config` entries of a spec and of the used specs that may read the same config."""
    parts = [p.program for p in program.used_specs if WHOLE_OBJECT in p.use.sources]
    return [*list_config_entries(program), *(e for p in parts for e in _list_entries_for_config(p))]


def warn_about_context_limits(program: Program, data: JsonObject) -> Iterator[Diagnostic]:
    """Yield W0436 for each part of the config whose RoPE settings limit the context length."""
    fields = [e for e in list_config_entries(program) if isinstance(e, ast.ConfigField)]
    for entry in fields:
        for source in entry.sources:
            match source:
                case ast.Call(function=ast.Name(path="rope_config")):
                    rope = read_rope_config(source, entry, data, None)
                    if original := get_max_rope_length(rope):
                        table = parse_rope_config_options(source).find_rope_settings(data)
                        yield _make_context_warning(rope.kind, original, table, entry)
    for part in program.used_specs:
        if (section := get_config_section(part, data)) is not None:
            yield from warn_about_context_limits(part.program, section)


IGNORED_KEY_GROUPS = {
    "metadata of the file and the model": "_commit_hash _name_or_path "
    "_num_labels architectures auto_map custom_pipelines model_type name_or_path "
    "transformers_version",
    "element types (determined by the weight files)": "dtype torch_dtype torchscript",
    "read only in training": "finetuning_task gradient_checkpointing "
    "initializer_factor initializer_range problem_type use_bfloat16",
    "augmentation and losses of speech models in training": "apply_spec_augment "
    "contrastive_logits_temperature ctc_loss_reduction ctc_zero_infinity diversity_loss_weight "
    "guided_attention_loss_num_heads guided_attention_loss_scale guided_attention_loss_sigma "
    "mask_channel_length mask_channel_min_space mask_channel_other mask_channel_prob "
    "mask_channel_selection mask_feature_length mask_feature_min_masks mask_feature_prob "
    "mask_time_length mask_time_min_masks mask_time_min_space mask_time_other mask_time_prob "
    "mask_time_selection num_negatives use_guided_attention_loss",
    "optional outputs in transformers": "output_attentions output_hidden_states "
    "return_dict use_cache use_return_dict",
    "implementation choices": "_attn_implementation "
    "_attn_implementation_autoset attn_implementation chunk_size_feed_forward "
    "pretraining_tp",
    "class names (their number follows from the weights)": "id2label label2id num_labels",
    "special tokens (read from tokenizer and generation configs)": "bos_token_id cls_token_id "
    "decoder_start_token_id eos_token_id mask_token_id pad_token_id prefix "
    "sep_token_id tokenizer_class unk_token_id",
    "generation settings": "bad_words_ids begin_suppress_tokens diversity_penalty "
    "do_sample early_stopping encoder_no_repeat_ngram_size "
    "exponential_decay_length_penalty forced_bos_token_id forced_decoder_ids "
    "forced_eos_token_id generation_max_length length_penalty max_length min_length "
    "no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores "
    "remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens "
    "task_specific_params temperature top_k top_p typical_p",
    "quantization of the weights (read together with them)": "quantization_config",
    "settings of other programs": "is_encoder_decoder tf_legacy_loss tie_encoder_decoder tpu_name",
}
"""Keys in published config.json files that specs ignore, grouped by the reason."""


IGNORED_BY_ALL = frozenset(key for keys in IGNORED_KEY_GROUPS.values() for key in keys.split())


NO_EFFECT_VALUES: dict[str, object] = {
    "add_cross_attention": False,
    "is_decoder": False,
    "pruned_heads": {},
    "rope_type": "default",
    "tie_word_embeddings": True,
}
"""Keys that transformers writes to every config.json, with the values that have no effect."""


TRAINING_KEY_SUFFIXES = (
    "dropout",
    "drop_path",
    "layerdrop",
    "dropout_prob",
    "dropout_rate",
    "pdrop",
)
"""The suffixes of keys that affect only training, such as dropout."""


def _iterate_unused_keys(
    known_keys: set[str], data: JsonObject, prefix: str
) -> Iterator[tuple[str, JsonMember]]:
    """Yield (path, member) for each key that is not in `known_keys`. If only some members of an
    object are known, yield the other members.
    """
    for key, member in data.members.items():
        path = f"{prefix}{key}"
        if key in IGNORED_BY_ALL or _has_no_effect(key, member) or path in known_keys:
            continue
        depth = path.count(".")
        max_depth = max((p.count(".") for p in known_keys if _has_prefix(p, path)), default=-1)
        if max_depth > depth and isinstance(member.value, JsonObject):
            yield from _iterate_unused_keys(known_keys, member.value, f"{path}.")
        elif max_depth < depth:
            yield path, member


def _has_prefix(known_key: str, path: str) -> bool:
    """Return True if `known_key` begins with `path`. A `*` in `known_key` matches any key."""
    pairs = zip_longest(path.split("."), known_key.split("."), fillvalue="*")
    return all(pattern in ("*", part) for part, pattern in pairs if part != "*")


def _make_context_warning(
    kind: str, max_length: int, data: JsonObject, entry: ast.ConfigField
) -> Diagnostic:
    """Return W0436 for a field whose RoPE settings support at most `max_length` tokens."""
    table = data.find_non_null_member("rope_parameters") or data.find_non_null_member(
        "rope_scaling"
    )
    assert table is not None, "one of the two keys contains the RoPE scaling"
    return Diagnostic(
        "W0436",
        f"the model supports at most {max_length} tokens, the original context length of its "
        f"RoPE scaling `{kind}`",
        Label(table.key, "longer sequences require different frequencies"),
        related_labels=Label.tuple_from_span(entry.span, "read here"),
        notes=(
            "transformers recomputes the frequencies from the longest sequence of each batch, "
            "so its results differ for sequences beyond this length",
        ),
        helps=("compile for the longest sequence you need: --context-length N",),
        severity="warning",
    )


def _has_no_effect(key: str, member: JsonMember) -> bool:
    """Return True if a key affects only training, or if the value of the key has no effect."""
    # a null value counts as absent, and dropout keys, which have many names, affect only training
    if key.endswith(TRAINING_KEY_SUFFIXES) or member.is_null:
        return True
    value, default = member.value.to_python(), NO_EFFECT_VALUES.get(key)
    # compare types, because 0 and false have different meanings in a config file
    return key in NO_EFFECT_VALUES and value == default and type(value) is type(default)


def iterate_declared_config_keys(entries: list[ast.ConfigEntry]) -> Iterator[str]:
    """Yield the config.json keys that a spec reads, expects or ignores, as dotted paths."""
    for entry in entries:
        match entry:
            case ast.ExpectedConfigValues(key=key):
                yield key
            case ast.IgnoredConfigKeys(keys=keys):
                yield from keys
            case ast.ConfigField(sources=sources):
                for source in sources:
                    yield from _iterate_source_keys(source)


def _iterate_source_keys(source: ast.Expr) -> Iterator[str]:
    """Yield the config.json keys that the expression after `from` reads."""
    match source:
        case ast.StringLiteral(value=path):
            yield path
        case ast.Call(function=ast.Name(path="rope_config")):
            defaults = parse_rope_config_options(source)
            keys = (*ROPE_KEYS, defaults.theta_key)
            yield from keys
            yield from (f"{defaults.subconfig_key}.{key}" for key in keys)
        case ast.Call(args=args):
            for arg in args:
                yield from _iterate_source_keys(arg)


def find_axis_config_keys(
    program: Program, config: JsonObject | None, graph: str, parameter: str, axis: int
) -> str:
    """Return the config.json keys that determine the size of one axis of a parameter, such as
    "`hidden_size`", or "" if there are none. The keys belong to the config fields in the symbolic
    size of the axis.
    """
    if config is None:
        return ""
    pattern = split_name_at_numbers(parameter)
    sizes = (
        str(facts.type.shape[axis])
        for trial in check_spec_symbolically(program, graph, has_config_file=True)
        for name, facts in trial.model.graph.parameter_facts.items()
        if split_name_at_numbers(name) == pattern
    )
    keys = _iterate_field_keys(next(sizes, ""), program, config)
    return ", ".join(f"`{key}`" for key in dict.fromkeys(keys))


def _iterate_field_keys(expression: str, program: Program, config: JsonObject) -> Iterator[str]:
    """Yield the keys in `config` that set the config fields used in an expression."""
    fields = program.map_fields_by_path()
    for path in FIELD_PATH.findall(expression):
        if path in fields and path not in program.assignments:
            yield from _iterate_keys_of_field(fields[path], program, config)


def _iterate_keys_of_field(
    entry: ast.ConfigField, program: Program, config: JsonObject
) -> Iterator[str]:
    """Yield the key in `config` that sets a field, or the keys for the fields in its default."""
    keys = [s.value for s in entry.sources if isinstance(s, ast.StringLiteral)]
    if key := next(filter(config.find_non_null_member, keys), ""):
        yield key
    else:
        yield from _iterate_field_keys(_get_source_text(entry.default), program, config)


def _get_source_text(expression: ast.Expr | None) -> str:
    """Return the source text of an expression, or "" if the expression is None."""
    return expression.span.text if expression and expression.span else ""


IGNORED_KEY_LABEL = "ignored by the compiled model"


def _make_unused_keys_warning(
    unused_keys: dict[str, JsonMember], missing_keys: set[str], *, is_builtin: bool
) -> Diagnostic:
    """Return the warning W0418 for the keys in `unused_keys`. `missing_keys` are the keys that the
    spec reads but the config lacks.
    """
    names = [name[:60] for name in unused_keys]
    keys_text = ", ".join(f"`{name}`" for name in names[:12])
    count_text = f" and {len(names) - 12} more" if len(names) > 12 else ""
    first, *others = [member.key for member in unused_keys.values()][:12]
    fix = f'if the key does not change results, add to `config`: ignore "{names[0]}"'
    if is_builtin:
        fix = (
            "correct a misspelled key; any other key has no effect on the compiled model, so check "
            "that the key does not change the model"
        )
    return Diagnostic(
        "W0418",
        f"keys of config.json that the spec does not read: {keys_text}{count_text}",
        Label(first, IGNORED_KEY_LABEL),
        tuple(Label(key, IGNORED_KEY_LABEL) for key in others),
        helps=(*_suggest_key_corrections(names[:12], missing_keys), fix),
        severity="warning",
    )


def _suggest_key_corrections(names: list[str], missing_keys: set[str]) -> Iterator[str]:
    """Yield a help text for each unused key that is similar to a missing key."""
    for name in names:
        for suggestion in suggest_similar_name(name, missing_keys):
            yield suggestion if len(names) == 1 else f"`{name}`: {suggestion}"
