"""Versions of the JSON formats of package indices and model manifests. specc writes the current
version, and reads version 1 by renaming its keys.
"""

from collections.abc import Callable, Mapping
from typing import NoReturn, TypeAlias

from specc.io.json_io import InvalidJsonError, JsonFields, parse_strict_json

FORMAT_VERSION = 2
KeyRenames: TypeAlias = Mapping[str, "str | tuple[str, KeyRenames]"]
"""New keys by old key. A pair also contains the renames in the value or in each list element."""

_GENERATE_SECTION: KeyRenames = {"growing": "sequence_input", "source": "logits_output"}
_STATE: KeyRenames = {
    "next": "next_output",
    "batch": "batch_axis",
    "rows": "time_axis",
    "most": "max_positions",
    "initial": "initial_output",
}
_CHUNKS: KeyRenames = {"rows": "step_length", "made": "output_lengths", "alone": "per_step_inputs"}
_GENERATION_METADATA: KeyRenames = {
    "generation": ("generate_section", _GENERATE_SECTION),
    "reading": "preprocessing",
    "states": ("states", _STATE),
    "handed": "loop_invariant_inputs",
    "whole": "full_inputs",
    "first": "first_token_logits",
    "context": "max_context",
    "table": "length_limiting_table",
    "drawn": "random_weights",
    "bounds": "length_bounds",
    "in_place": "in_place_states",
    "apart": "allows_mixed_lengths",
    "chunks": ("chunks", _CHUNKS),
}
VERSION_1_INDEX_KEYS: KeyRenames = {
    "kept": "preexisting",
    "linked": "linked_files",
    "every_load": "checks_hashes_on_open",
    "about": ("metadata", {"generating": ("generation", _GENERATION_METADATA)}),
    "seal": "index_sha256",
}
"""Renamed keys of the package index `specc.json`."""
VERSION_1_MANIFEST_KEYS: KeyRenames = {
    "generation": ("generate_section", _GENERATE_SECTION),
    "streaming": ("stream_section", {"growing": "sequence_input", "sources": "streamed_outputs"}),
    "reading": "preprocessing",
    "stored": "initializers",
    "decodes": "decoding",
    "scoring": "scoring_graph",
    "weights": ("weights", {"drawn": "random_init", "every_load": "checks_hashes_on_open"}),
}
"""Renamed keys of the manifest of a model."""


def _rename_keys(data: object, renames: KeyRenames) -> object:
    """Return a copy of JSON data with renamed keys. Keys without a new name are copied."""
    if isinstance(data, list):
        return [_rename_keys(element, renames) for element in data]
    if not isinstance(data, dict):
        return data
    copy = {}
    for key, value in data.items():
        match renames.get(key, key):
            case (new_key, nested_renames):
                copy[new_key] = _rename_keys(value, nested_renames)
            case new_key:
                copy[new_key] = value
    return copy


def parse_versioned_record(
    text: str | bytes, version_1_keys: KeyRenames, artifact: str, fail: Callable[[str], NoReturn]
) -> JsonFields:
    """Parse a JSON object of the current format version or of version 1. Call `fail` if the text is
    not a valid JSON object of these versions.
    """
    data: object
    try:
        data = parse_strict_json(text if isinstance(text, str) else text.decode("utf-8"))
    except InvalidJsonError as error:
        fail(str(error))
    except ValueError:
        fail("the text is not JSON")
    version = data.get("format") if isinstance(data, dict) else None
    if version == 1:
        data = _rename_keys(data, version_1_keys)
    elif version != FORMAT_VERSION:
        expected = f"expected {FORMAT_VERSION}; compile the {artifact} again"
        fail(f"unsupported format version {version!r:.40}, {expected}")
    return JsonFields(data, report_error=lambda path, text: fail(f"`{'.'.join(path)}` {text}"))
