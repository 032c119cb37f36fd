"""A spec as an `nn.Module` with the spec's parameter names."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import format_repr, format_thousands
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.ir.graph_interpreter import bind_inputs, check_input_dtype
from specc.ir.input_shapes_and_defaults import build_input_defaults_graph
from specc.runtime.training_collator import TrainingCollator
from specc.weights.formats.safetensors import SPEC_LAYOUT_METADATA, write_safetensors
from specc.weights.formats.safetensors_header import NUMPY_DTYPES
from specc.weights.parameter_sources import make_initial_values
from specc.weights.weight_rules_and_initializers import parse_initializer
from specc_torch.torch_interpreter import ForwardContext, run_graph_nodes


class ParameterContainer(nn.Module):
    """A submodule that only contains parameters and has no `forward`."""


class SpecModule(nn.Module):
    """A graph with trainable parameters. The keys of `state_dict()` are the spec's parameter names.
    `values` maps parameter names to initial values. All other parameters are initialized by the
    spec's initializers with `seed`. Tied parameters share one `nn.Parameter`. `ties` maps each tied
    parameter's name to the name of the parameter that it shares, and replaces the spec's ties.
    `defaults` computes optional inputs. `training_collator` preprocesses training examples, and is
    None if there is no spec.
    """

    def __init__(
        self,
        graph: Graph,
        values: Mapping[str, Array | Tensor] | None = None,
        *,
        seed: int = 0,
        ties: Mapping[str, str] | None = None,
        defaults: Graph | None = None,
        training_collator: TrainingCollator | None = None,
    ) -> None:
        super().__init__()
        self.graph = graph
        self.defaults = defaults
        self.training_collator = training_collator
        spec_ties = {n: f.tied_to for n, f in graph.parameter_facts.items() if f.tied_to}
        self.ties = spec_ties if ties is None else dict(ties)
        _check_copies(self.ties, values or {})
        parameters: dict[str, nn.Parameter] = {}
        for name in graph.parameters:
            root = _find_tie_root(name, self.ties)
            if root not in parameters:
                parameters[root] = nn.Parameter(
                    _make_initial_parameter(
                        graph, root, _merge_tied_values(root, self.ties, values or {}), seed
                    )
                )
            self._place_parameter(name, parameters[root])

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.parameters())
        return format_repr(
            f"module {self.graph.format_signature()}, {format_thousands(count)} parameters"
        )

    # Dynamo would trace the interpreter for minutes, even for a model with one layer
    @torch.compiler.disable  # type: ignore[untyped-decorator] # of torch
    def forward(self, **inputs: Any) -> dict[str, Tensor]:
        """Run the graph on `inputs` (arrays or tensors by name) and return its outputs by name.
        Raise E0907 or one of E0910 to E0913 for invalid inputs.
        """
        context = self._make_context()
        inputs_by_name = {n: self._convert_input(n, x, context) for n, x in inputs.items()}
        if self.defaults is not None:
            missing_names = [n for n in self.defaults.outputs if n not in inputs_by_name]
            inputs_by_name.update(
                _evaluate_outputs(
                    build_input_defaults_graph(self.defaults, missing_names),
                    inputs_by_name,
                    {},
                    context,
                    missing_names,
                )
            )
        return _evaluate_outputs(
            self.graph,
            inputs_by_name,
            dict(self.named_spec_parameters()),
            context,
            list(self.graph.outputs),
        )

    def named_spec_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield each parameter with its name in the spec. A tied parameter is yielded once under
        each of its names.
        """
        for name in self.graph.parameters:
            scope, parameter_name = self._get_scope(name)
            parameter = scope._parameters[parameter_name]
            assert parameter is not None, f"{name} was removed"
            yield name, parameter

    def save(
        self, path: str | Path, metadata: Mapping[str, str] | None = None, *, force: bool = False
    ) -> None:
        """Write the parameters to a safetensors file atomically. Tied parameters are written once.
        Raise E0833 if `path` exists, specc did not write it, and `force` is False.

        The metadata says that names and shapes are those of the spec, so the `load` rules for
        published checkpoints are not applied to the file.
        """
        tensors = {n: _to_numpy(p) for n, p in self.named_spec_parameters() if n not in self.ties}
        full_metadata = {**(metadata or {}), **SPEC_LAYOUT_METADATA}
        write_safetensors(path, tensors, full_metadata, force=force)

    def _get_scope(self, name: str) -> tuple[nn.Module, str]:
        *path, parameter_name = name.split(".")
        scope: nn.Module = self
        for scope_name in path:
            submodule = scope._modules[scope_name]
            assert submodule is not None
            scope = submodule
        return scope, parameter_name

    def _place_parameter(self, name: str, parameter: nn.Parameter) -> None:
        """Register a parameter under its dotted name. `add_module` rejects names such as `type`."""
        *path, parameter_name = name.split(".")
        scope: nn.Module = self
        for scope_name in path:
            scope = scope._modules.setdefault(scope_name, ParameterContainer())  # type: ignore[assignment]
        scope._parameters[parameter_name] = parameter

    def _make_context(self) -> ForwardContext:
        for parameter in self.parameters():
            return ForwardContext({}, parameter.dtype, parameter.device, self.training)
        return ForwardContext({}, torch.get_default_dtype(), torch.device("cpu"), self.training)

    def _convert_input(self, name: str, value: Any, context: ForwardContext) -> Tensor:
        x = torch.as_tensor(value, device=context.device)
        kind = "f" if x.is_floating_point() else "b" if x.dtype == torch.bool else "i"
        check_input_dtype(self.graph, name, kind, str(x.dtype).removeprefix("torch."))
        return x.to(context.get_torch_dtype(self.graph.inputs[name].type.dtype))


def _evaluate_outputs(
    graph: Graph,
    inputs: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    context: ForwardContext,
    output_names: list[str],
) -> dict[str, Tensor]:
    requested_values = [graph.outputs[name] for name in output_names]
    known_values, lengths = bind_inputs(graph, inputs, parameters, requested_values)
    results = run_graph_nodes(
        graph, known_values, replace(context, lengths=lengths), requested_values
    )
    return {name: results[graph.outputs[name]] for name in output_names}


def _find_tie_root(name: str, ties: Mapping[str, str]) -> str:
    while name in ties:
        name = ties[name]
    return name


def _check_copies(ties: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Raise E0416 if a tied parameter has a different value than the parameter that it shares."""
    for name in ties:
        root = _find_tie_root(name, ties)
        if name in values and root in values and not np.array_equal(values[name], values[root]):
            raise_error(
                "E0416",
                f"`{name}` is tied to `{root}`, but their values differ",
                helps=[
                    f"remove one of them, or pass `ties` without `{name}` to train two "
                    "separate weights"
                ],
            )


def _merge_tied_values(
    root: str, ties: Mapping[str, str], values: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return `values` with an additional value for `root`. If `values` has no value for `root`, use
    the value of a parameter that is tied to `root`.
    """
    if root in values:
        return values
    tied_names = [n for n in ties if n in values and _find_tie_root(n, ties) == root]
    return {**values, root: values[tied_names[0]]} if tied_names else values


def _make_initial_parameter(
    graph: Graph, name: str, values: Mapping[str, Array | Tensor], seed: int
) -> Tensor:
    """Return the initial value of the parameter `name` as float32: the value in `values`, or a
    sample from the parameter's initializer. Raise E0503 if the value has the wrong shape.
    """
    parameter_facts = graph.parameter_facts[name]
    shape = tuple(d.evaluate({}) for d in parameter_facts.type.shape)
    if name not in values:
        return torch.from_numpy(
            make_initial_values(
                parse_initializer(parameter_facts.initializer, parameter_facts.span),
                seed,
                name,
                shape,
            )
        )
    value = values[name]
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value, np.float32))
    if tuple(tensor.shape) != shape:
        raise_error(
            "E0503",
            f"`{name}` has the wrong shape",
            parameter_facts.span,
            notes=[f"expected {list(shape)}, got {list(tensor.shape)}"],
        )
    return tensor.detach().clone().float()


def _to_numpy(parameter: Tensor) -> Array:
    """Convert a parameter to an array of the same dtype."""
    x = parameter.detach().cpu().contiguous()
    if x.dtype == torch.bfloat16:  # NumPy has no bfloat16
        return x.view(torch.int16).numpy().view(NUMPY_DTYPES["bf16"])
    array: Array = x.numpy()
    return array
