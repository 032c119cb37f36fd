"""Elaborate a spec into a `ModelDefinition`, with its config, graphs and generation settings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from specc.diagnostics.diagnostic import Span, SpeccError, raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.block_calls import check_block_results
from specc.frontend.calls import evaluate_call, evaluate_function_value
from specc.frontend.config_values import ConfigReadOptions, evaluate_config
from specc.frontend.declared_types import (
    ErrorContext,
    check_tensor_type,
    is_tensor_type,
    resolve_input_type,
)
from specc.frontend.elaboration_context import (
    ElaborationContext,
    Evaluator,
    LexicalScope,
    ResourceCounters,
    SpecNamespace,
    SymbolicDims,
    raise_dynamic_graph_structure_error,
    record_elaboration_values,
)
from specc.frontend.elaboration_limits_and_errors import (
    ErrorCollectorContext,
    extend_recursion_limit,
)
from specc.frontend.expressions import evaluate_expression
from specc.frontend.generate_stream_and_reading_sections import (
    evaluate_generate_section,
    evaluate_preprocessing_section,
    evaluate_stream_section,
    list_graph_blocks,
    value_to_json,
)
from specc.frontend.requirements_and_dimension_equations import (
    check_requirement,
    evaluate_dim_equations,
    reject_undetermined_dims,
    substitute_requirement_equalities,
)
from specc.frontend.spec_modules import Program, assign_config_values, build_program
from specc.frontend.spec_values import (
    EvalResult,
    RawConfigSection,
    Record,
    ResultTuple,
    SpecValue,
    SubmodelConfig,
    Tensor,
    UnresolvedValueError,
)
from specc.frontend.statements import run_statements
from specc.frontend.step_estimate import StepEstimator
from specc.frontend.used_specs import (
    add_use_label_to_errors,
    assign_used_spec_values,
    iterate_used_specs,
)
from specc.frontend.weight_paths_and_sharing import register_weight_sharing_rules
from specc.ir.dim import DimLimitError
from specc.ir.graph import Graph, GraphBuilder, Input, Value, collect_shape_symbols
from specc.ir.input_shapes_and_defaults import DEFAULTS_GRAPH_NAME, find_circular_input_default
from specc.ir.model_definition import ModelDefinition
from specc.syntax import ast

PADDING_SIDES: Mapping[str, Literal["left", "right", "any"]] = {
    "": "any",
    "left": "left",
    "right": "right",
}
"""The padding side for each keyword after `keep[…]`."""


def create_context(
    program: Program, *, options: ConfigReadOptions | None = None
) -> ElaborationContext:
    """Create the context of an elaboration. In symbolic elaboration, `dims` remain dynamic."""
    options = options or ConfigReadOptions()
    # a config value takes precedence over a dimension with the same name
    lengths = frozenset(program.module.dims) - program.map_fields_by_path().keys()
    return ElaborationContext(
        library=program.library,
        evaluator=Evaluator(
            evaluate=evaluate_expression,
            call=evaluate_call,
            evaluate_function=evaluate_function_value,
            configure_used_spec=_configure_used_spec,
            check_step_estimate=StepEstimator(program.library, options.steps).check_remaining_steps,
        ),
        symbols=SymbolicDims(
            is_symbolic=options.is_symbolic, dynamic_names=lengths, max_length=options.max_length
        ),
        resources=ResourceCounters(steps=options.steps),
        is_training=options.is_training,
    )


def elaborate_model(
    program: Program, options: ConfigReadOptions, graph: str = ""
) -> ModelDefinition:
    """Elaborate a program into a model. Raise SpeccError with all errors. In symbolic elaboration,
    raise UnresolvedValueError if the structure of the graph depends on symbols.
    """
    try:
        with (
            extend_recursion_limit(program.module.file.span),
            record_elaboration_values(is_symbolic=options.is_symbolic),
        ):
            return _elaborate_graph(program, options, graph)
    except UnresolvedValueError as structure_error:
        if options.is_symbolic:
            raise
        raise_dynamic_graph_structure_error(structure_error)
    except DimLimitError as error:
        raise_error("E0309", str(error), program.module.file.span)


def _elaborate_graph(program: Program, reader: ConfigReadOptions, graph: str) -> ModelDefinition:
    context = create_context(program, options=reader)
    config = evaluate_and_check_config(context, program, reader)
    env = LexicalScope(context=context, module=program.module, config=config)
    register_weight_sharing_rules(
        (item for item, _ in program.iterate_items(ast.WeightsSection)), env
    )
    for used_program, _, used_env in iterate_used_specs(program, env):
        rules = (item for item, _ in used_program.iterate_items(ast.WeightsSection))
        register_weight_sharing_rules(rules, used_env, is_from_used_spec=True)
    block = _find_graph(program, graph)
    graph_env = replace(env, config_file=reader.config_file)
    main_graph = _build_graph(block, graph_env)
    context.errors.raise_reported_errors()
    defaults = _build_defaults_graph(program, block, graph_env, reader)
    generation, warnings = evaluate_generate_section(program, block, env, main_graph)
    model = ModelDefinition(
        name=program.name,
        doc=program.doc,
        graph=main_graph,
        defaults=defaults,
        generation=generation,
        streaming=evaluate_stream_section(program, block, generation),
        shared_scopes=context.weights.sharing.used_shared_weight_paths,
        warnings=warnings,
    )
    if reader.is_symbolic:  # the manifest contains only numbers that are known at compile time
        return model
    return replace(
        model,
        input_configs=evaluate_preprocessing_section(program, block, env, ast.InputPreprocessing),
        output_formats=evaluate_preprocessing_section(
            program, block, env, ast.OutputPostprocessing
        ),
        config={k: value_to_json(v) for k, v in config.items()},
    )


def evaluate_and_check_config(
    context: ElaborationContext, program: Program, options: ConfigReadOptions
) -> dict[str, SpecValue]:
    """Evaluate the config of a spec and check its requirements. Raise SpeccError with the violated
    requirements (E0404), or with all other errors if there are none.
    """
    config = _evaluate_config_values(context, program, options)
    assignment_spans = {path: value.span for path, value in program.assignments.items()}
    # the base spec comes first, because requirements of a derived spec may depend on its values
    for item, module in sorted(
        program.iterate_items(ast.RequireStatement), key=lambda pair: -program.chain.index(pair[1])
    ):
        env = LexicalScope(context=context, module=module, config=config)
        try:
            with context.errors.collect_errors():
                check_requirement(item, env, assignment_spans)
        # assume that a requirement which depends on symbols holds
        except UnresolvedValueError:
            _merge_values(config, substitute_requirement_equalities(item.condition, config, env))
    if context.errors.diagnostics:
        # report only the violated requirements, because they may have caused the other errors
        requirement_errors = [d for d in context.errors.diagnostics if d.code == "E0404"]
        raise SpeccError(*(requirement_errors or context.errors.diagnostics))
    return config


def _evaluate_config_values(
    context: ElaborationContext, program: Program, reader: ConfigReadOptions
) -> dict[str, SpecValue]:
    """Evaluate the configs and requirements of used specs, and then the spec's own config."""
    configs: dict[str, SpecValue] = {}
    errors = ErrorCollectorContext()
    for used_spec in program.used_specs:
        with errors, add_use_label_to_errors(used_spec.use):
            used_program, used_reader = assign_used_spec_values(used_spec, program, reader)
            values = evaluate_and_check_config(context, used_program, used_reader)
            used_config = SubmodelConfig(used_program.module, used_reader.config_file)
            configs[used_spec.name] = Record(values, used_reader.path, used_config)
    errors.raise_collected_errors()
    return evaluate_config(context, program, reader, configs)


def _merge_values(config: dict[str, SpecValue], new_values: Mapping[str, SpecValue]) -> None:
    """Update `config` and the configs of used specs in place, because function values refer to
    these configs.
    """
    for name, value in new_values.items():
        current = config[name]
        if isinstance(current, Record) and current.used_spec and isinstance(value, Record):
            # `fields` is a mutable dict here, because `_evaluate_config_values` created it
            assert isinstance(current.fields, dict)
            _merge_values(current.fields, value.fields)
        else:
            config[name] = value


PACKAGE_HELP = 'for a package of graphs write `--graphs all` (in Python `graphs="all"`)'


def _find_graph(program: Program, name: str) -> ast.Block:
    """Return the graph `name`, or by default the first graph. Raise E0219 for an unknown graph."""
    graphs = list_graph_blocks(program)
    # the first graph is the default
    for block in graphs:
        if not name or block.name == name:
            return block
    names = [g.name for g in graphs]
    title = f"`{program.module.path}` has no graph"
    helps = ["add a graph: `graph name(x: float[n]) -> (y: float[n]) { … }`"]
    if graphs:
        title += f" called `{name}`"
        helps = suggest_similar_name(name, names, f"its graphs are {', '.join(names)}")
        if name == "all":
            helps = [PACKAGE_HELP]
    raise_error("E0219", title, helps=helps)


def _build_graph(block: ast.Block, file_env: LexicalScope) -> Graph:
    """Build the IR graph of `block`. Raise SpeccError with all errors in inputs and statements."""
    context, module = file_env.context, file_env.module
    env = _add_inputs(block, file_env)
    context.errors.raise_reported_errors()
    results = ResultTuple(())
    with context.errors.collect_errors():
        context.evaluator.check_step_estimate(block, module, env.config, None)
        context.call_stack.append(f"{block.name}@{block.name_span}")
        results = check_block_results(block, run_statements(block.body, env), env)
    context.errors.raise_reported_errors()
    outputs = {n or "output": v.value for n, v in zip(results.names, results.values, strict=True)}
    length_equations = {e.name: env.dims[e.name] for e in block.where}
    min_lengths = {n: m for n, m in module.dims.items() if m}
    graph = context.builder.build_graph(
        block.name, outputs, min_lengths=min_lengths, length_equations=length_equations
    )
    reject_undetermined_dims(graph, module.dims, block.span)
    return graph


def _add_inputs(block: ast.Block, file_env: LexicalScope) -> LexicalScope:
    """Return a scope with the inputs of a graph. Raise E0303 for an input that is not a tensor."""
    context, env = file_env.context, replace(file_env, names={}, dims={})
    env.dims.update(evaluate_dim_equations(block, env))
    for param in block.params:
        with context.errors.collect_errors():
            if not is_tensor_type(param.type):
                title = f"the graph input `{param.name}` must be a tensor"
                dtype = param.type.name if param.type.name in ("int", "bool") else "float"
                help_ = (
                    f"declare `{param.name}` in `config`, or declare a scalar tensor: `{dtype}[]`"
                )
                raise_error("E0303", title, param.span, helps=[help_])
            type_text = param.type.span.text if param.type.span else param.type.name
            origin = f"the input `{param.name}: {type_text}`"
            declared_type = resolve_input_type(param.type, env, origin)
            side = PADDING_SIDES[param.type.side] if param.type.name == "keep" else ""
            value = context.builder.add_input(
                param.name, Input(declared_type, side, None, param.span)
            )
            env.names[param.name] = Tensor(value, param.span)
    return env


def _build_defaults_graph(
    program: Program, block: ast.Block, file_env: LexicalScope, reader: ConfigReadOptions
) -> Graph | None:
    """Build the graph that computes the input defaults (`= expr`), or return None."""
    with_default = [p for p in block.params if p.default is not None]
    if not with_default:
        return None
    context = create_context(program, options=reader)
    env = _add_inputs(block, replace(file_env, context=context))
    outputs = {}
    for param in with_default:
        with context.errors.collect_errors():
            assert param.default is not None  # `with_default` contains only inputs with a default
            value = env.evaluate_value(param.default)
            error_context = ErrorContext(f"the default of `{param.name}`", param.default.span)
            tensor = check_tensor_type(param.type, value, env, error_context)
            outputs[param.name] = tensor.value
    context.errors.raise_reported_errors()
    graph = context.builder.build_graph(DEFAULTS_GRAPH_NAME, outputs)
    _reject_circular_default(graph, with_default)
    inputs = _find_defaults_inputs(graph)
    # build the graph again, with only the inputs on which the defaults depend
    pruned_builder = GraphBuilder(
        inputs=inputs, nodes=dict(graph.nodes), node_origins=dict(graph.node_origins)
    )
    pruned_builder.input_facts = {k: graph.input_facts[k] for k in pruned_builder.inputs}
    return pruned_builder.build_graph(DEFAULTS_GRAPH_NAME, outputs)


def _reject_circular_default(defaults: Graph, params: Sequence[ast.BlockParameter]) -> None:
    """Raise E0210 if the default of an input depends on the input itself."""
    if name := find_circular_input_default(defaults):
        raise_error(
            "E0210",
            f"the default of `{name}` is defined in terms of itself",
            next((p.default.span for p in params if p.name == name and p.default), None),
            "this depends on it",
            helps=["compute one of the defaults only from inputs that have no default"],
        )


def _find_defaults_inputs(defaults: Graph) -> dict[str, Value]:
    """Return the inputs whose values or shapes are used by the defaults."""
    used_values = {a for n, _ in defaults.nodes for a in n.args} | set(defaults.outputs.values())
    unknown_symbols = collect_shape_symbols(r for _, results in defaults.nodes for r in results)
    unknown_symbols -= collect_shape_symbols(
        v for v in defaults.inputs.values() if v in used_values
    )
    return {
        name: value
        for name, value in defaults.inputs.items()
        if value in used_values
        or (name not in defaults.outputs and collect_shape_symbols([value]) & unknown_symbols)
    }


def _configure_used_spec(
    context: ElaborationContext, module: SpecNamespace, record: EvalResult, span: Span | None
) -> dict[str, SpecValue]:
    """Return the config of a used spec from a record, a section of the config file, or defaults."""
    program = build_program(module, context.library)
    reader = ConfigReadOptions(max_length=context.symbols.max_length)
    if isinstance(record, Record):
        reader.trial_values = record.fields
        values = _evaluate_config_values(context, assign_config_values(program, {}), reader)
        field_names = {f.name for f in program.iterate_fields()}
        if unknown_names := [k for k in record.fields if k not in field_names]:
            title = f"the config of `{module.path}` has no `{unknown_names[0]}`"
            raise_error("E0201", title, span)
        return values
    if isinstance(record, RawConfigSection):
        reader.config_file = record.data
    return _evaluate_config_values(context, program, reader)
