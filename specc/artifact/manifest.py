"""The manifest of a compiled model, stored in the metadata of the model file. A manifest contains
the spec, the graph, the config, the origin of the weights, and the quantization.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import field, replace
from functools import partial
from typing import NoReturn

from specc.artifact.package_index_and_format_versions import (
    FORMAT_VERSION,
    VERSION_1_MANIFEST_KEYS,
    parse_versioned_json,
)
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.render import format_repr
from specc.io.json_io import (
    JsonReader,
    get_exact_integer,
    replace_non_finite_numbers,
    to_json_value,
)
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.ir.input_shapes_and_defaults import DEFAULTS_GRAPH_NAME
from specc.ir.ir_parser import parse_ir
from specc.ir.ir_printer_and_lexer import format_ir
from specc.ir.model_definition import GenerateSection, StreamSection
from specc.ir.ops.quantized import (
    MAX_GROUP_SIZE,
    QUANTIZED_BITS,
    ActivationRounding,
    QuantizationFormat,
    WeightLayout,
)
from specc.ir.types import Type
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.version import __version__


@immutable_dataclass
class RandomInitMetadata:
    """The seed of randomly initialized weights. `count` is the number of random weights in a new
    task head, or 0 if all weights of the model are random.
    """

    seed: int
    count: int = 0

    def __str__(self) -> str:
        if not self.count:
            return f"the weights are random (seed {self.seed})"
        noun, verb = ("weights", "are") if self.count > 1 else ("weight", "is")
        return f"{self.count} {noun} of a new head {verb} random (seed {self.seed})"


SCALAR_SETTINGS = (
    "max_tokens",
    "seed",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
)
"""Generation settings that a standalone generator takes as scalar inputs."""

FIXED_SETTINGS: Mapping[str, str] = {
    "strategy": "strategy",
    "start": "start",
    "stop": "stop",
    "pad": "pad",
    "num_beams": "beams",
    "num_return_sequences": "n_best",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "suppress_tokens": "suppress",
    "begin_suppress_tokens": "begin_suppress",
    "min_tokens": "min_tokens",
    "min_length": "min_length",
    "no_repeat_ngram_size": "no_repeat",
    "bad_words_ids": "banned",
    "renormalize_logits": "renormalize",
    "begin": "begin",
    "forced_eos_token_id": "last_token",
}
"""Generation settings that are fixed at compile time, mapped to their keys in the metadata."""

UNSUPPORTED_SETTINGS = ("typical_p", "epsilon_cutoff", "eta_cutoff", "guidance_scale")
"""Generation settings that a standalone generator does not support. The first three require sorting
the whole distribution, and `guidance_scale` requires two forward passes per token."""

RECORDED_SETTINGS: Mapping[str, str] = {
    **FIXED_SETTINGS,
    **{name: name for name in (*SCALAR_SETTINGS, "stop_strings", "max_length")},
}
"""Generation settings in the metadata: settings that are fixed at compile time, and default values
of settings that are inputs."""


QUANTIZED_LAYOUTS: tuple[WeightLayout, ...] = ("rows", "columns")
MAX_FLOAT32_ERROR = 1e39
"""Upper bound of a weight's absolute quantization error, larger than any float32 value."""
ACTIVATION_ROUNDINGS: tuple[ActivationRounding, ...] = ("none", "row", "block", "tensor", "layer")


@immutable_dataclass(slots=True, kw_only=True)
class QuantizedWeight:
    """A quantized weight: its format, the initializers of its scales and zero points (`""` if
    symmetric), its quantization method `recipe`, and its quantization errors. `error` is relative
    to the weight, and `max_error` is the maximum absolute error of an element.
    """

    format: QuantizationFormat
    scales: str
    zero_points: str
    recipe: str
    error: float
    max_error: float


def _parse_quantized_weight(fields: JsonReader) -> QuantizedWeight:
    """Parse the metadata of a quantized weight. Raise E0917 if a field is invalid."""
    bits = fields.read_int("bits", min(QUANTIZED_BITS), max(QUANTIZED_BITS))
    if bits not in QUANTIZED_BITS:
        fields.raise_invalid("bits", "is neither 4 nor 8")
    group_size = fields.read_int("block", 0, MAX_GROUP_SIZE)
    if group_size & (group_size - 1) or (not group_size and bits != 8):
        fields.raise_invalid("block", "is not a valid block size")
    has_zero_points = fields.has_field("zero_points")
    return QuantizedWeight(
        format=QuantizationFormat(
            bits=bits,
            group_size=group_size,
            layout=fields.read_choice("layout", QUANTIZED_LAYOUTS),
            rounding=fields.read_choice("rounding", ACTIVATION_ROUNDINGS),
            is_transposed=fields.read_bool("turned"),
            has_zero_points=has_zero_points,
        ),
        scales=fields.read_string("scales"),
        zero_points=fields.read_string("zero_points") if has_zero_points else "",
        recipe=fields.read_string("recipe"),
        error=fields.read_number("error"),
        max_error=fields.read_number("worst", MAX_FLOAT32_ERROR),
    )


METADATA_KEY = "specc"
DOC_METADATA_KEY = "specc.doc"
"""Metadata key for the description of the spec."""
MAX_BYTES = 64 * 2**20
"""Maximum size of a manifest in bytes."""
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@immutable_dataclass(kw_only=True)
class Manifest:
    """The manifest of a compiled model.

    `sources` are the spec files, keyed by name. `weights` describes the origin of the weights:
    `seed`, or the checkpoint's metadata. The key `random_init` describes a randomly initialized
    task head. `initializers` maps each parameter to its initializer in the model file. In a
    standalone generator, `decoding` contains the generation settings, and `scoring_graph` computes
    the logits. The inputs of `graph` are then only those of the spec. `precision` describes
    quantized weights as JSON-compatible values, and `quantized` is its parsed form. `graph` uses
    the dequantized weights. `attentions` locates the attention weights of each layer
    (`attention_weight_locations` in `specc.backend`).
    """

    name: str
    doc: str
    graph: Graph
    defaults: Graph | None
    preprocessing: PreprocessingConfig
    config: Mapping[str, object]
    generation: Mapping[str, object] | None
    sources: Mapping[str, str]
    weights: Mapping[str, object]
    initializers: Mapping[str, str]
    target: str
    opset: int
    version: str = __version__
    attentions: tuple[Mapping[str, str], ...] = field(default=())
    decoding: Mapping[str, object] | None = None
    scoring_graph: Graph | None = None
    streaming: StreamSection | None = None
    precision: Mapping[str, object] = field(default_factory=dict)
    quantized: Mapping[str, QuantizedWeight] = field(default_factory=dict)

    def __repr__(self) -> str:
        return format_repr(f"manifest {self.name}, {self.graph.format_signature()}, {self.target}")

    @property
    def random_init_metadata(self) -> RandomInitMetadata | None:
        """The seed of randomly initialized weights, or None if all weights were loaded."""
        match self.weights:
            case {"seed": int(seed)}:
                return RandomInitMetadata(seed)
            case {"random_init": {"seed": int(seed), "weights": list(names)}}:
                return RandomInitMetadata(seed, len(names))
        return None

    @property
    def generate_section(self) -> GenerateSection | None:
        """Return the `generate` section of the spec, or None if it is missing or invalid."""
        return parse_generate_section(self.generation)

    def serialize(self) -> str:
        """Serialize the manifest as JSON. The output is deterministic."""
        graphs = [self.graph, *([self.defaults] if self.defaults else [])]
        # these fields exist only in standalone generators and in models with quantized weights
        optional_fields = {
            "decoding": self.decoding,
            "scoring_graph": self.scoring_graph and format_ir(self.scoring_graph),
            "precision": self.precision or None,
            "stream_section": self.streaming and self.streaming.to_json(),
        }
        data = {
            "format": FORMAT_VERSION,
            "specc": self.version,
            "model": self.name,
            "doc": self.doc,
            "target": self.target,
            "opset": self.opset,
            "config": replace_non_finite_numbers(self.config),
            "generate_section": self.generation,
            "preprocessing": self.preprocessing.to_json(),
            "weights": to_json_value(self.weights),
            "initializers": to_json_value(self.initializers),
            "attentions": to_json_value(self.attentions),
            **{
                n: to_json_value(value) for n, value in optional_fields.items() if value is not None
            },
            "sources": to_json_value(self.sources),
            "graphs": format_ir(*graphs),
        }
        text = json.dumps(data, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        # escape lone surrogates, which represent invalid UTF-8 in file names
        return LONE_SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def parse_generate_section(data: object) -> GenerateSection | None:
    """Parse a `generate` section from JSON without checks. Return None for an invalid section."""
    match data:
        case {
            "name": str(name),
            "sequence_input": str(sequence_input),
            "logits_output": str(logits_output),
            "settings": dict(settings),
        }:
            return GenerateSection(name, sequence_input, logits_output, settings)
    return None


def _parse_stream_section(data: object) -> StreamSection | None:
    """Parse a `stream` section from JSON. Return None for an invalid section."""
    match data:
        case {"sequence_input": str(sequence_input), "streamed_outputs": [str(), *_] as outputs}:
            return StreamSection(sequence_input, tuple(map(str, outputs)))
    return None


def parse_manifest(text: str, path: str) -> Manifest:
    """Parse the manifest `text` of the model at `path`. Raise E0917 for an invalid manifest."""
    if len(text) > MAX_BYTES:
        raise_error(
            "E0917", f"the specc metadata in `{path}` is larger than {MAX_BYTES // 2**20} MiB"
        )
    data = parse_versioned_json(
        text, VERSION_1_MANIFEST_KEYS, "model", partial(raise_invalid_manifest_error, path)
    )
    graphs = parse_ir(data.read_string("graphs"), path)
    defaults = graphs.pop(DEFAULTS_GRAPH_NAME, None)
    # a single graph is the model graph, even if the name of the graph is `DEFAULTS_GRAPH_NAME`
    graph = next(iter(graphs.values()), defaults)
    if graph is None:
        raise_invalid_manifest_error(path, "the graph is missing")
    scoring_graph = None
    if "scoring_graph" in data.list_keys():
        scoring_graph = next(iter(parse_ir(data.read_string("scoring_graph"), path).values()), None)
    initializers = data.read_string_map("initializers")
    if missing := [n for n in graph.parameters if n not in initializers]:
        reason = f"it lacks the location of the weight `{escape_text(missing[0])}`"
        raise_invalid_manifest_error(path, reason)
    return Manifest(
        name=data.read_string("model"),
        doc=data.read_string("doc"),
        graph=_mark_ties(graph, initializers),
        defaults=defaults if defaults is not graph else None,
        preprocessing=PreprocessingConfig.from_json(data.get_optional("preprocessing")),
        config=data.read_dict("config"),
        generation=data.read_dict("generate_section")
        if data.has_field("generate_section")
        else None,
        sources=data.read_string_map("sources"),
        weights=data.read_dict("weights"),
        initializers=initializers,
        target=data.read_string("target"),
        opset=get_exact_integer(data.get_optional("opset")) or 0,
        version=data.read_string("specc"),
        attentions=_read_attentions(data, path),
        decoding=data.read_dict("decoding") if "decoding" in data.list_keys() else None,
        scoring_graph=scoring_graph and _mark_ties(scoring_graph, initializers),
        streaming=_parse_stream_section(data.get_optional("stream_section")),
        precision=data.read_dict("precision") if "precision" in data.list_keys() else {},
        quantized=_read_quantized_weights(data, scoring_graph or graph, path),
    )


def _mark_ties(graph: Graph, initializers: Mapping[str, str]) -> Graph:
    """Return a copy of the graph in which weights are tied only if they share an initializer.
    Weights that are tied in the spec may have separate values in the model.
    """
    roots: dict[tuple[str, Type], str] = {}
    parameter_facts = {}
    for name, facts in graph.parameter_facts.items():
        root = roots.setdefault((initializers.get(name, name), facts.type), name)
        parameter_facts[name] = replace(facts, tied_to="" if root == name else root)
    return replace(graph, parameter_facts=parameter_facts)


def _read_quantized_weights(
    data: JsonReader, graph: Graph, path: str
) -> dict[str, QuantizedWeight]:
    """Parse the metadata of all quantized weights, keyed by name. Raise E0917 unless each weight is
    a matrix or a stack of matrices in the graph.
    """
    if "precision" not in data.list_keys() or not data.read_dict("precision"):
        return {}
    fields = data.read_object("precision")
    # the reasons why matrices are not quantized are validated but not stored
    fields.read_string_map("kept")
    weights = fields.read_object("rounded")
    for name in weights.list_keys():
        value = graph.parameters.get(name)
        if value is None or value.type.rank not in (2, 3):
            raise_invalid_manifest_error(path, f"unknown quantized matrix `{escape_text(name)}`")
    return {
        name: _parse_quantized_weight(weights.read_object(name)) for name in weights.list_keys()
    }


def _read_attentions(data: JsonReader, path: str) -> tuple[dict[str, str], ...]:
    """Parse the metadata of all attention layers. Models compiled by older versions have no such
    metadata.
    """
    attentions = []
    for layer in data.read_list("attentions") if "attentions" in data.list_keys() else ():
        if not isinstance(layer, dict) or not all(isinstance(t, str) for t in layer.values()):
            raise_invalid_manifest_error(path, "the list of attentions is invalid")
        attentions.append(layer)
    return tuple(attentions)


def raise_invalid_manifest_error(path: str, reason: str) -> NoReturn:
    """Raise E0917 with the reason why the manifest of the model at `path` is invalid."""
    raise_error("E0917", f"the specc metadata in `{path}` is invalid: {reason}")
