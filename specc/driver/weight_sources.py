"""Where parameter values come from: checkpoint, the spec's own file or a seed; training."""

import hashlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from specc.artifact.weight_files import WeightFileFacts
from specc.diagnostics.diagnostic import Diagnostic, Failed, raise_error
from specc.driver import reading_section as readings
from specc.driver.spec_loader import OpenedSpec, elaborate_other_graphs, elaborate_spec
from specc.driver.spec_weight_rules import (
    merge_required_parameters,
    own_weights_path,
    read_weight_rules,
    required_parameters,
)
from specc.frontend.context import Env
from specc.frontend.spec_to_graph import create_context, evaluate_and_check_config
from specc.frontend.step_budget import extend_recursion_limit
from specc.huggingface.adapter_config import open_adapter
from specc.huggingface.generation_config import apply_generation_config
from specc.io.json_io import to_json_value
from specc.io.memory_check import (
    describe_fitting_model,
    describe_weight_memory,
    format_gigabytes,
    get_free_memory,
)
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.ir.model import GenerateSection
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.transforms import pass_pipeline
from specc.weights.checkpoint import open_weights
from specc.weights.checkpoint_binding import bind_parameters
from specc.weights.external_data import count_tensor_bytes
from specc.weights.formats.safetensors_header import FLOATS
from specc.weights.fresh_heads import FreshInit
from specc.weights.lora import AdaptedCheckpoint
from specc.weights.lora_targets import check_adapter_use
from specc.weights.parameter_values import (
    CheckpointBinding,
    ParameterValues,
    SeededValues,
    read_parameter,
)
from specc.weights.transposed_weights import find_transposed_parameters, keep_transposed
from specc.weights.weight_rules import (
    RequiredParameter,
    WeightRules,
    find_tied_pairs,
    rules_of_graph,
)


def check_memory(stored: ParameterValues, numbers: int) -> tuple[str, ...]:
    """That this machine cannot run the model of so many numbers, which another may."""
    held, taken, free = 0, 0, get_free_memory()
    for name, wanted in stored.wanted.items():
        if stored.tied_to(name) is None:
            dtype = stored.stored_dtype(name)
            taken += count_tensor_bytes(wanted.shape, dtype)
            # floats are computed with 32 bits, whatever is stored; whole numbers stay
            held += count_tensor_bytes(wanted.shape, "f32" if dtype in FLOATS else dtype)
    if free is None or held <= free:
        return ()
    return (
        f"{describe_weight_memory(held, taken, numbers)}; {format_gigabytes(free)} of memory are "
        f"free here: {describe_fitting_model(numbers, free)}",
    )


def count_values(values: CheckpointBinding | SeededValues) -> int:
    """How many numbers there are, those that are shared once."""
    return sum(
        prod(wanted.shape) for name, wanted in values.wanted.items() if values.tied_to(name) is None
    )


@dataclass(frozen=True, kw_only=True)
class WeightSources:
    """Where numbers are to come from: a checkpoint at `path`, with the `adapter` merged
    in and a head that it lacks drawn from the seed `missing`; or all from a seed `init`.
    """

    path: str = ""
    init: int | None = None
    missing: int | None = None
    adapter: str = ""


def load_parameter_values(
    spec: OpenedSpec, graph: Graph, sources: WeightSources
) -> CheckpointBinding | SeededValues:
    """The numbers of the parameters: a checkpoint's, the spec's own file's, or a seed's.
    E0523 names the three.
    """
    context = create_context(spec.library)
    with extend_recursion_limit(spec.program.module.file.span):
        config = evaluate_and_check_config(context, spec.program, spec.reader)
    wanted = required_parameters(graph, config)
    env = Env(module=spec.program.module, config=config)
    rules = rules_of_graph(
        read_weight_rules(context, spec.program, env),
        {w.name: w for w in wanted},
        lambda: merge_required_parameters(elaborate_other_graphs(spec, graph.name)),
    )
    for number in (sources.init, sources.missing):
        _check_seed(number)
    if sources.init is not None:
        _check_alone(sources)
        return random_values(graph, wanted, rules, sources.init)
    path = sources.path or spec.checkpoint
    path = path or own_weights_path(spec.program, needed=True)
    if path:
        fresh = FreshInit(sources.missing, _initials(graph), lambda: _body(spec, graph))
        modules = spec.modules if path == spec.checkpoint else {}
        return bind_checkpoint(wanted, rules, path, fresh, sources.adapter, modules)
    if wanted:
        raise_error(
            "E0523",
            f"nothing says where the weights of `{spec.program.name}` come from",
            helps=[
                "--weights FILE or DIR reads a checkpoint",
                '`weights { from "model.safetensors" }` in the spec names one beside it',
                "--init SEED draws random ones, to try the architecture",
            ],
        )
    # a model without parameters needs no numbers, whatever the seed
    return random_values(graph, wanted, rules, 0)


def _check_alone(sources: WeightSources) -> None:
    """E0525 for a seed of all weights beside anything else that gives some."""
    if sources.adapter:
        raise_error(
            "E0525",
            "an adapter belongs to trained weights, not to those of a seed",
            helps=["leave out --init, or --adapter"],
        )
    if sources.path:
        raise_error(
            "E0525",
            "weights come from a file or from a seed, not from both",
            helps=["leave out --weights or --init"],
        )
    if sources.missing is not None:
        raise_error(
            "E0525",
            "`--init` draws every weight, so that none is missing",
            helps=["leave out --init-missing, or --init and name a checkpoint"],
        )


def _check_seed(seed: int | None) -> None:
    if seed is not None and not 0 <= seed < 2**64:
        raise_error("E0525", f"the seed {seed} is no number from 0 to 2^64 - 1")


def _initials(graph: Graph) -> dict[str, str]:
    """How each parameter starts where no file gives it."""
    return {name: facts.initial for name, facts in graph.parameter_facts.items()}


def _body(spec: OpenedSpec, graph: Graph) -> frozenset[str]:
    """The parameters that every graph of a spec with several has."""
    names = [frozenset(other.parameters) for other in elaborate_other_graphs(spec, graph.name)]
    if not names:
        return frozenset()
    return frozenset(graph.parameters).intersection(*names)


def random_values(
    graph: Graph, wanted: list[RequiredParameter], rules: WeightRules, seed: int
) -> SeededValues:
    """Every parameter as its initializer and the seed make it."""
    by_name = {w.name: w for w in wanted}
    return SeededValues(seed, by_name, _initials(graph), find_tied_pairs(by_name, rules))


def bind_checkpoint(
    wanted: list[RequiredParameter],
    rules: WeightRules,
    path: str,
    fresh: FreshInit | None = None,
    adapter: str = "",
    modules: Mapping[str, str] | None = None,
) -> CheckpointBinding:
    """Every parameter matched with the tensors of a file or folder, into which the
    `adapter` of a folder is merged, or drawn as `fresh` says. `modules` are further
    folders by the prefix that their tensors get.
    """
    checkpoint = open_weights(path, modules or {})
    try:
        if adapter:
            checkpoint = AdaptedCheckpoint(checkpoint, open_adapter(adapter))
        binding = bind_parameters(wanted, rules, checkpoint, fresh)
        return check_adapter_use(binding) if isinstance(checkpoint, AdaptedCheckpoint) else binding
    except BaseException:
        checkpoint.close()
        raise


def keep_stored_order(
    graph: Graph, values: CheckpointBinding | SeededValues
) -> tuple[Graph, CheckpointBinding | SeededValues]:
    """The graph reading matrices in the order that their file has them in, where products
    alone read them: they can stay there, and nothing has to be turned over.
    """
    if isinstance(values, SeededValues):
        return graph, values
    made, names = pass_pipeline.transpose_linear_weights(graph, find_transposed_parameters(values))
    return made, keep_transposed(values, names)


def weight_source_facts(
    values: ParameterValues,
    seed: int | None,
    beside: Mapping[str, WeightFileFacts],
    *,
    contents: bool,
) -> dict[str, object]:
    """Where the numbers came from and where they are, for the manifest; with `contents`
    whole files are hashed, now and at every opening of the model.
    """
    facts = {**_origin(values, seed, contents), "beside": to_json_value(beside)}
    return {**facts, "every_load": True} if contents else facts


def _origin(values: ParameterValues, seed: int | None, contents: bool) -> dict[str, object]:
    """The seed, or each file's size and header hash."""
    if not isinstance(values, CheckpointBinding):
        return {} if seed is None else {"seed": seed}
    facts: list[dict[str, object]] = []
    for file in values.checkpoint.every_file:
        fact = {"name": file.path.name, "bytes": file.size, "header": file.header_hash}
        facts.append({**fact, "sha256": hash_file(file.path)} if contents else fact)
    origin: dict[str, object] = {"files": sorted(facts, key=lambda fact: str(fact["name"]))}
    if isinstance(values.checkpoint, AdaptedCheckpoint):
        origin["adapted"] = sorted(values.checkpoint.computed)
    if (drawn := values.drawn) is not None:
        origin["drawn"] = {"seed": drawn.seed, "weights": sorted(drawn.wanted)}
    return origin


def hash_file(path: Path) -> str:
    """The SHA-256 of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """What is trained. `values` holds numbers of parameters that share no other's, `ties`
    which other's the rest share. `defaults` computes inputs that may be left out.
    """

    graph: Graph
    values: Mapping[str, Array]
    ties: Mapping[str, str]
    defaults: Graph | None
    reading: PreprocessingConfig
    generation: GenerateSection | None
    warnings: tuple[Diagnostic, ...] = ()


def open_training_spec(spec: OpenedSpec, sources: WeightSources, graph: str = "") -> TrainingSpec:
    """The spec to be trained, from a checkpoint, its own weights or a seed; where nothing
    says which, from the seed 0. Fails as `compile` does.
    """
    weights = sources.path or spec.checkpoint
    folders = readings.tokenizer_directories(weights, spec.config_file)
    spec = replace(spec, reader=replace(spec.reader, training=True))
    model = apply_generation_config(elaborate_spec(spec, graph), folders).model
    if sources.init is None and not weights and not own_weights_path(spec.program):
        # to be trained, a model need not know anything yet
        sources = replace(sources, init=0)
    with closing(_numbers(spec, model.graph, sources)) as values:
        partners = {name: values.tied_to(name) for name in model.graph.parameters}
        ties = {name: other for name, other in partners.items() if other is not None}
        own = [name for name in partners if name not in ties]
        numbers = {name: read_parameter(values, name, "f32") for name in own}
        warnings = values.warnings if isinstance(values, CheckpointBinding) else ()
    return TrainingSpec(
        # what no step of a loop needs leaves the loop, as in a compiled model
        graph=pass_pipeline.simplify_graph(model.graph, fused=False),
        values=numbers,
        ties=ties,
        defaults=model.defaults,
        reading=readings.build_record(spec.program, model, folders),
        generation=model.generation,
        warnings=(*spec.warnings, *warnings, *model.warnings),
    )


def _numbers(
    spec: OpenedSpec, graph: Graph, sources: WeightSources
) -> CheckpointBinding | SeededValues:
    """The numbers; where a spec names weights that are still to be learned, E0802 says
    how to begin without.
    """
    try:
        return load_parameter_values(spec, graph, sources)
    except Failed as failed:
        first, *others = failed.diagnostics
        if first.code != "E0802" or sources.path or spec.checkpoint:
            raise
        mend = "to learn them from the beginning, give a seed: module(…, init=0)"
        helps = (mend, *first.helps)
        raise Failed(replace(first, helps=helps), *others) from None
