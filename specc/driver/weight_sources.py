"""Load parameters from a checkpoint or from the spec's weights file, or initialize them from a
seed. Open specs for training.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from specc.artifact.package_index_and_format_versions import WeightFileMetadata
from specc.diagnostics.diagnostic import Diagnostic, SpeccError, raise_error
from specc.driver import preprocessing_section
from specc.driver.config_json_check import find_axis_config_keys
from specc.driver.spec_check_and_elaboration import elaborate_spec, iterate_sibling_graphs
from specc.driver.spec_loader import LoadedSpec
from specc.driver.weights_section_and_load_transforms import (
    evaluate_weight_rules,
    find_spec_weights_file,
    iterate_graph_parameters,
    list_model_parameters,
)
from specc.frontend.elaboration_limits_and_errors import extend_recursion_limit
from specc.frontend.spec_values import SpecValue
from specc.huggingface.adapter_config import find_embedded_adapter, open_adapter
from specc.huggingface.generation_config import apply_generation_config
from specc.huggingface.quantization_config import GGUF_QUANTIZATION, CheckpointQuantization
from specc.io.file_type_detection import is_gguf_path
from specc.io.json_io import to_json_value
from specc.io.safe_read import compute_file_sha256
from specc.ir.array import Arrays
from specc.ir.graph import Graph
from specc.ir.model_definition import GenerateSection
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.transforms import pass_pipeline
from specc.weights.checkpoint_binding import TaskHeadInitialization, bind_parameters
from specc.weights.checkpoint_files import open_checkpoint
from specc.weights.checkpoint_weight_streaming import (
    CheckpointWeights,
    find_transposed_parameters,
    remove_weight_transposes,
)
from specc.weights.external_data import count_tensor_bytes
from specc.weights.formats.safetensors_header import FLOAT_DTYPES
from specc.weights.lora import AdaptedCheckpoint
from specc.weights.lora_scaling_and_targets import check_adapter_tensors_used
from specc.weights.parameter_sources import ParameterSource, RandomInitWeights, read_parameter
from specc.weights.quantized_checkpoint import DequantizedCheckpoint
from specc.weights.weight_rules_and_initializers import (
    ModelParameter,
    WeightRules,
    resolve_weight_ties,
    select_graph_weight_rules,
)


def count_weight_bytes(parameters: ParameterSource) -> tuple[int, int]:
    """Return the sizes of the weights in memory at run time and in storage, in bytes."""
    memory_bytes, stored_bytes = 0, 0
    for name, parameter in parameters.parameters.items():
        if parameters.get_tied_source(name) is None:
            dtype = parameters.get_stored_dtype(name)
            stored_bytes += count_tensor_bytes(parameter.shape, dtype)
            # the runtime converts floats, but not integers, to float32
            memory_bytes += count_tensor_bytes(
                parameter.shape, "f32" if dtype in FLOAT_DTYPES else dtype
            )
    return memory_bytes, stored_bytes


def count_parameters(weights: CheckpointWeights | RandomInitWeights) -> int:
    """Return the number of parameters. Tied parameters count once."""
    return sum(
        prod(parameters.shape)
        for name, parameters in weights.parameters.items()
        if weights.get_tied_source(name) is None
    )


@dataclass(frozen=True, kw_only=True)
class WeightSources:
    """The sources of parameter values: either the checkpoint `weights` or the seed `init` for all
    parameters. LoRA weights in the directory `adapter` (by default, the checkpoint directory) are
    merged into the checkpoint weights. If neither a checkpoint nor a seed is given, the weights
    file of the spec is loaded. A missing task head is initialized from the seed `init_missing`.
    """

    weights: str = ""
    init: int | None = None
    init_missing: int | None = None
    adapter: str = ""


def load_parameters(
    spec: LoadedSpec, graph: Graph, sources: WeightSources
) -> CheckpointWeights | RandomInitWeights:
    """Load the parameters from a checkpoint or the spec's weights file, or initialize them from a
    seed.

    Raise E0523 if no weight source is given.
    """
    with extend_recursion_limit(spec.program.module.file.span):
        rules, config = evaluate_weight_rules(spec.program, spec.config_options)
    parameters = _list_parameters(spec, graph, config)
    rules = select_graph_weight_rules(
        rules,
        {parameter.name: parameter for parameter in parameters},
        lambda: iterate_graph_parameters(iterate_sibling_graphs(spec, graph.name)),
    )
    _check_seeds(sources)
    if sources.init is not None:
        _check_only_seed(sources)
        return initialize_parameters(graph, parameters, rules, sources.init)
    path = sources.weights or spec.checkpoint
    path = path or find_spec_weights_file(spec.program, is_required=True)
    if path:
        head_initialization = TaskHeadInitialization(
            sources.init_missing,
            _map_initializers(graph),
            lambda: _find_shared_parameters(spec, graph),
        )
        modules = spec.module_weights if path == spec.checkpoint else {}
        return bind_checkpoint(
            parameters,
            rules,
            path,
            head_initialization,
            sources.adapter or find_embedded_adapter(sources.weights or spec.checkpoint),
            modules,
            quantization=spec.quantization,
        )
    if parameters:
        raise_error(
            "E0523",
            f"no weights specified for `{spec.program.name}`",
            helps=[
                "--weights FILE or DIR loads a checkpoint",
                '`weights { from "model.safetensors" }` in the spec names a file next to it',
                "--init SEED initializes the weights randomly",
            ],
        )
    # a model without parameters requires no weight source
    return initialize_parameters(graph, parameters, rules, 0)


def _list_parameters(
    spec: LoadedSpec, graph: Graph, config: Mapping[str, SpecValue]
) -> list[ModelParameter]:
    """Return the parameters of a graph, and a function that returns the config.json keys that
    determine their sizes.
    """
    file = spec.config_options.config_file
    find_keys = partial(find_axis_config_keys, spec.program, file, graph.name)
    return [
        replace(parameter, find_config_keys=find_keys)
        for parameter in list_model_parameters(graph, config)
    ]


def get_checkpoint_warnings(
    weights: CheckpointWeights | RandomInitWeights,
) -> tuple[Diagnostic, ...]:
    """Return the warnings about the parameters in a checkpoint."""
    return weights.warnings if isinstance(weights, CheckpointWeights) else ()


def _check_seeds(sources: WeightSources) -> None:
    for seed in (sources.init, sources.init_missing):
        if seed is not None and not 0 <= seed < 2**64:
            raise_error("E0525", f"the seed {seed} is not an integer from 0 to 2^64 - 1")


def _check_only_seed(sources: WeightSources) -> None:
    """Raise E0525 if `--init` is combined with another weight source."""
    conflicts = (
        (
            sources.adapter,
            "`--adapter` requires trained weights, but `--init` initializes them randomly",
            "remove --init or --adapter",
        ),
        (
            sources.weights,
            "`--weights` and `--init` are mutually exclusive",
            "remove --weights or --init",
        ),
        (
            sources.init_missing is not None,
            "`--init-missing` has no effect with `--init`, which initializes all weights",
            "remove --init-missing, or replace --init by --weights DIR",
        ),
    )
    for is_given, title, fix in conflicts:
        if is_given:
            raise_error("E0525", title, helps=[fix])


def _map_initializers(graph: Graph) -> dict[str, str]:
    """Return the initializers of a graph's parameters, keyed by parameter name."""
    return {name: facts.initializer for name, facts in graph.parameter_facts.items()}


def _find_shared_parameters(spec: LoadedSpec, graph: Graph) -> frozenset[str]:
    """Return the parameters that all graphs of a spec share, or none if there is only one graph."""
    names = [
        frozenset(other_graph.parameters)
        for other_graph in iterate_sibling_graphs(spec, graph.name)
    ]
    if not names:
        return frozenset()
    return frozenset(graph.parameters).intersection(*names)


def initialize_parameters(
    graph: Graph, parameters: list[ModelParameter], rules: WeightRules, seed: int
) -> RandomInitWeights:
    """Return randomly initialized parameters. The values depend on the initializers and the
    seed.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    return RandomInitWeights(
        seed, by_name, _map_initializers(graph), resolve_weight_ties(by_name, rules)
    )


def bind_checkpoint(
    parameters: list[ModelParameter],
    rules: WeightRules,
    path: str,
    head_initialization: TaskHeadInitialization | None = None,
    adapter: str = "",
    module_weights: Mapping[str, str] = {},
    quantization: CheckpointQuantization | None = None,
) -> CheckpointWeights:
    """Bind every parameter to tensors of a weight file or checkpoint directory.

    The LoRA weights in the directory `adapter` are merged, and `head_initialization` initializes a
    missing task head. `module_weights` maps tensor name prefixes to the directories of additional
    tensors. Weights quantized by `quantization` are dequantized or repacked.
    """
    checkpoint = open_checkpoint(path, module_weights)
    try:
        quantization = GGUF_QUANTIZATION if is_gguf_path(checkpoint.path) else quantization
        if quantization:
            checkpoint = DequantizedCheckpoint(
                checkpoint, quantization.method, quantization.settings
            )
        if adapter:
            checkpoint = AdaptedCheckpoint(checkpoint, open_adapter(adapter))
        weights = bind_parameters(parameters, rules, checkpoint, head_initialization)
        return (
            check_adapter_tensors_used(weights)
            if isinstance(checkpoint, AdaptedCheckpoint)
            else weights
        )
    except BaseException:
        checkpoint.close()
        raise


def keep_checkpoint_weight_layout(
    graph: Graph, weights: CheckpointWeights | RandomInitWeights
) -> tuple[Graph, CheckpointWeights | RandomInitWeights]:
    """Return the graph with the checkpoint's layout for each weight that is used only by linear
    layers and MatMuls. Weights in this layout can remain in the checkpoint as external data.
    """
    if isinstance(weights, RandomInitWeights):
        return graph, weights
    transposed_graph, names = pass_pipeline.transpose_linear_weights(
        graph, find_transposed_parameters(weights)
    )
    return transposed_graph, remove_weight_transposes(weights, names)


def build_weight_manifest(
    weights: ParameterSource,
    seed: int | None,
    weight_files: Mapping[str, WeightFileMetadata],
    *,
    hash_contents: bool,
) -> dict[str, object]:
    """Return the manifest entries about the origin and location of the weights.

    If `hash_contents` is true, whole files are hashed now and each time the model is loaded.
    """
    entries = {
        **_describe_weight_origin(weights, seed, hash_contents),
        "beside": to_json_value(weight_files),
    }
    return {**entries, "checks_hashes_on_open": True} if hash_contents else entries


def _describe_weight_origin(
    values: ParameterSource, seed: int | None, hash_contents: bool
) -> dict[str, object]:
    """Return the manifest entries on the origin of the weights: the random seed, or the size and
    header hash of each file.
    """
    if not isinstance(values, CheckpointWeights):
        return {} if seed is None else {"seed": seed}
    entries: list[dict[str, object]] = []
    for file in values.checkpoint.all_files:
        entry = {"name": file.path.name, "bytes": file.size, "header": file.header_hash}
        entries.append(
            {**entry, "sha256": compute_file_sha256(file.path)} if hash_contents else entry
        )
    origin: dict[str, object] = {"files": sorted(entries, key=lambda entry: str(entry["name"]))}
    if isinstance(values.checkpoint, AdaptedCheckpoint):
        origin["adapted"] = sorted(values.checkpoint.adapted_tensors)
    if (initialized := values.head_weights) is not None:
        origin["random_init"] = {
            "seed": initialized.seed,
            "weights": sorted(initialized.parameters),
        }
    return origin


@dataclass(frozen=True, kw_only=True)
class TrainingModel:
    """A model to train, loaded from a spec. `parameter_values` are the values of all parameters
    that are not tied to another parameter, and `ties` maps each tied parameter to the parameter
    whose values it shares. `defaults` computes the defaults of optional inputs.
    """

    graph: Graph
    parameter_values: Arrays
    ties: Mapping[str, str]
    defaults: Graph | None
    preprocessing: PreprocessingConfig
    generation: GenerateSection | None
    warnings: tuple[Diagnostic, ...] = ()


def load_training_model(spec: LoadedSpec, sources: WeightSources, graph: str = "") -> TrainingModel:
    """Load the model of a spec for training, with weights from a checkpoint, the spec's weights
    file, or a seed (default 0).

    Raise the same errors as `specc compile`.
    """
    weights = sources.weights or spec.checkpoint
    directories = preprocessing_section.find_tokenizer_directories(weights, spec.config_file)
    spec = replace(spec, config_options=replace(spec.config_options, is_training=True))
    model = apply_generation_config(elaborate_spec(spec, graph), directories).model_definition
    if sources.init is None and not weights and not find_spec_weights_file(spec.program):
        # initialize the weights randomly if there is no weights file
        sources = replace(sources, init=0)
    with closing(_load_for_training(spec, model.graph, sources)) as values:
        tie_sources = {name: values.get_tied_source(name) for name in model.graph.parameters}
        ties = {name: other for name, other in tie_sources.items() if other is not None}
        untied_names = [name for name in tie_sources if name not in ties]
        arrays = {name: read_parameter(values, name, "f32") for name in untied_names}
        warnings = get_checkpoint_warnings(values)
    return TrainingModel(
        # simplify the graph as in a compiled model, e.g. move loop-invariant nodes out of loops
        graph=pass_pipeline.simplify_graph(model.graph, fuse_loops=False),
        parameter_values=arrays,
        ties=ties,
        defaults=model.defaults,
        preprocessing=preprocessing_section.build_preprocessing_config(
            spec.program, model, directories
        ),
        generation=model.generation,
        warnings=(*spec.warnings, *warnings, *model.warnings),
    )


def _load_for_training(
    spec: LoadedSpec, graph: Graph, sources: WeightSources
) -> CheckpointWeights | RandomInitWeights:
    """Load the parameters. Raise E0802 if the weights file of the spec does not exist yet. The help
    message explains how to train without existing weights.
    """
    try:
        return load_parameters(spec, graph, sources)
    except SpeccError as failed:
        first, *others = failed.diagnostics
        if first.code != "E0802" or sources.weights or spec.checkpoint:
            raise
        fix = "to train from scratch, pass a seed: module(…, init=0)"
        helps = (fix, *first.helps)
        raise SpeccError(replace(first, helps=helps), *others) from None
