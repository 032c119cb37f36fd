"""Map operation, option and activation names of other libraries to those of this language."""

from collections.abc import Collection
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Failed, Fix, Label
from specc.diagnostics.suggest import did_you_mean, format_suggestion, normalize_identifier
from specc.frontend.foreign_names_table import FOREIGN_OPERATIONS
from specc.syntax import ast

FOREIGN_BY_NAME = {
    normalize_identifier(name): fix for fix in FOREIGN_OPERATIONS for name in fix.names
}
"""Replacements by normalized name (without case and separators)."""

FOREIGN_LIBRARIES = frozenset(
    {
        *("torch", "nn", "functional", "F", "tf", "keras", "layers", "ops"),
        *("np", "numpy", "jnp", "jax", "lax", "flax", "mx", "math"),
        *("einops", "transformers", "onnx", "self", "module", "model"),
    }
)
"""Module names before a dot in other libraries: `nn.Linear`."""

FOREIGN_OPTIONS = {
    "dim": "axis",
    "dims": "axis",
    "axes": "axis",
    "kernelsize": "kernel",
    "numheads": "heads",
    "nhead": "heads",
    "nheads": "heads",
    "numkvheads": "kv_heads",
    "outfeatures": "out",
    "outchannels": "out",
    "units": "out",
    "filters": "out",
    "hiddensize": "hidden",
    "hiddendim": "hidden",
    "dimfeedforward": "hidden",
    "intermediatesize": "hidden",
    "activation": "act",
    "numembeddings": "size",
    "vocabsize": "size",
    "embeddingdim": "dim",
    "epsilon": "eps",
    "numlayers": "layers",
    "numgroups": "groups",
    "softcap": "cap",
    "attnmask": "mask",
    "attentionmask": "mask",
    "min": "low",
    "max": "high",
    "repeats": "length",
    "shifts": "by",
    "depth": "size",
    "numclasses": "size",
    "splitsizeorsections": "into",
    "dtype": "to",
}
"""Option names of other libraries, normalized, and the corresponding option."""


RENAMED_STD_DEFINITIONS = {
    "around": "local_window",
    "as_grid": "tokens_to_feature_map",
    "asking": "query_mask",
    "between": "bilinear_weights",
    "bucket_of": "t5_relative_position_bucket",
    "by_distance": "relative_position_bias",
    "centered": "gaussian_window",
    "class_head": "classification_head",
    "distance_buckets": "t5_relative_position_bias",
    "ending": "trailing_window",
    "first_row": "cls_token",
    "from_greatest": "subtract_max",
    "gumbel": "gumbel_noise",
    "heads_joined": "merge_heads",
    "heads_of": "split_heads",
    "in_best_groups": "group_limited_topk",
    "kth_greatest": "kth_largest",
    "last_kept": "last_token",
    "masked_max": "masked_max_pool",
    "masked_mean": "masked_mean_pool",
    "mean_row": "mean_pool",
    "near_sound": "conv_position_embedding",
    "paint": "pixel_shuffle_head",
    "patch_rows": "patch_embed",
    "pixels_of": "unpatchify",
    "pooled_to": "adaptive_avg_pool2d",
    "sentence_of": "sentence_pooling",
    "shared_by": "repeat_kv",
    "shares": "adaptive_pool_weights",
    "sinusoid_grid": "sinusoid_2d",
    "sound_front": "conv_feature_extractor",
    "sound_layer": "wav2vec2_layer",
    "square_pair": "relative_position_index_2d",
    "squares": "relative_position_bias_2d",
    "sum_of_layers": "weighted_layer_sum",
    "summary_of": "sequence_summary",
    "tanh_pooler": "pooler",
    "time_norm": "masked_instance_norm",
    "time_statistics": "statistics_pooling",
    "token_head": "mlm_head",
    "unit": "l2_normalize",
    "unit_row": "l2_normalize",
    "upsampled": "upsample_bilinear",
}
"""Former name of a std definition: its current name. Kept for one release."""


def suggest_for_foreign_operation(name: str, known: Collection[str]) -> str:
    """Return the replacement for an operation of another library or a former name of a
    std definition, or "".
    """
    if RENAMED_STD_DEFINITIONS.get(name) in known:
        return f"`{name}` is now `{RENAMED_STD_DEFINITIONS[name]}`"
    fix = FOREIGN_BY_NAME.get(normalize_identifier(name))
    return fix.text if fix and all(need in known for need in fix.needs) else ""


def suggest_for_library_path(path: str, known: Collection[str]) -> str:
    """Return the replacement for a path such as `nn.Linear` or `x.reshape`, or ""."""
    name = path.rpartition(".")[2]
    if fix := suggest_for_foreign_operation(name, known):
        return fix
    near = name if name in known else did_you_mean(name, known)
    return f"write `{near}`; see `specc doc {near}`" if near else ""


def match_foreign_option(name: str, known: Collection[str]) -> str | None:
    """Return our name for an option of another library, or a similarly spelled option."""
    foreign = FOREIGN_OPTIONS.get(normalize_identifier(name))
    return foreign if foreign in known else did_you_mean(name, known)


OPTION_HELPS = {
    **dict.fromkeys(
        ("dropout", "attentiondropout", "attndropout", "dropoutp", "dropoutrate", "droppath"),
        "write `dropout(x, p=0.1)` where training drops values; compiled models do not contain it",
    ),
    "heads": "the number of heads follows from the shape of the queries; remove the option",
    **dict.fromkeys(
        ("batchfirst", "training", "inplace", "device"),
        "remove the option: it changes no result here",
    ),
    **dict.fromkeys(
        ("iscausal", "causal"), "write `mask=causal`, with padding `mask=causal & visible(keep)`"
    ),
}
"""Help for options of other libraries, normalized, that have no equivalent option."""


def raise_unknown_option(called: str, option: ast.Option, known: Collection[str]) -> NoReturn:
    """Raise E0201 for an unknown option, with a fix if one known option is similar."""
    near = match_foreign_option(option.name, known)
    at = option.name_span or option.span
    takes = f"`{called}` takes: {', '.join(known)}" if known else f"`{called}` takes no options"
    plain = normalize_identifier(option.name)
    if "head" in plain:
        plain = "heads"
    own = "" if {plain, FOREIGN_OPTIONS.get(plain)} & {*known} else OPTION_HELPS.get(plain, "")
    raise Failed(
        Diagnostic(
            "E0201",
            f"`{called}` has no option `{option.name}`",
            Label(at, "unknown option") if at else None,
            helps=(own,) if own else (f"{format_suggestion(near)} {takes}" if near else takes,),
            fixes=(Fix(at, near),) if near and at and not own else (),
        )
    )
