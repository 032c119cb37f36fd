"""Decide where each weight is stored: in the ONNX file (inline), in an external data file, or in
the checkpoint.

Graphs that are written together share one plan, which stores each parameter once. The plan is
computed from checkpoint headers before lowering. A linked weight stays in the checkpoint with its
element type, and the graph casts it. A copied weight is converted when it is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from onnx import TensorProto

from specc.artifact.package_index_and_format_versions import WeightFileMetadata
from specc.backend import WeightStorage
from specc.diagnostics.diagnostic import raise_error
from specc.ir.graph import Graph
from specc.ir.ops.quantized import is_quantized_tensor_name
from specc.ir.types import Type
from specc.weights.external_data import (
    ExternalDataPlan,
    ExternalTensor,
    can_store_tensors_inline,
    count_tensor_bytes,
    plan_external_data,
    resolve_external_path,
)
from specc.weights.parameter_sources import ParameterSource
from specc_onnx.lower.onnx_targets import FLOAT_DTYPES
from specc_onnx.write.onnx_graph import OnnxBuildResult

MAX_INLINE_BYTES = 1 << 20
"""Weights whose total size in bytes is below this limit are stored in the ONNX file by default."""

WIDENING_SINCE = {"f16": 17, "bf16": 17, "f8_e4m3": 19, "f8_e5m2": 19}
"""The first opset that can cast each storage type to a wider type."""


@dataclass(frozen=True)
class WeightPlacement:
    """The storage location of each weight. `tensors` contains the tensors of the weights, in
    storage order. `ties` maps tied parameters to stored parameters. If `is_inline` is True, weights
    that are not linked are stored in each ONNX file. `weight_files` contains the external weight
    files. It is empty until the files have been written.
    """

    tensors: Mapping[str, ExternalTensor]
    ties: Mapping[str, str]
    plan: ExternalDataPlan
    is_inline: bool
    weight_files: Mapping[str, WeightFileMetadata] = field(default_factory=dict)

    @property
    def storage_dtypes(self) -> dict[str, str]:
        """Return the storage dtypes of the weights, keyed by weight name."""
        return {name: tensor.dtype for name, tensor in self.tensors.items()}


def plan_weight_placement(
    graphs: Sequence[Graph],
    values: ParameterSource,
    directory: Path,
    storage: WeightStorage,
    opset: int,
    *,
    alignment: int = 1,
    matrix_dtype: str = "",
) -> WeightPlacement:
    """Plan where the weights of all graphs are stored under `directory`. `matrix_dtype` is the
    storage dtype of f32 matrices. Raise E0823 if inline weights are too large.
    """
    types = collect_parameter_types(graphs)
    # Tied weights are stored once.
    ties = {
        name: stored_name
        for name in types
        if (stored_name := values.get_tied_source(name)) is not None
    }
    dtypes = {
        ties.get(name, name): _choose_dtype(values, name, type.dtype, matrix_dtype)
        for name, type in types.items()
    }
    allows_links = storage in ("auto", "link")
    reasons: dict[Path, str] = {}
    tensors = []
    for name, dtype in dtypes.items():
        # a matrix that is converted to `matrix_dtype` is copied from the checkpoint
        is_converted = bool(matrix_dtype) and len(values.parameters[name].shape) > 1
        can_link = not is_converted or values.get_stored_dtype(name) == dtype
        link_directory = directory if allows_links and can_link else None
        tensors.append(_make_external_tensor(name, dtype, values, link_directory, opset, reasons))
    is_inline = _is_inline(tensors, storage, len(graphs) == 1)
    plan = plan_external_data(
        tensors, directory, link=allows_links and not is_inline, alignment=alignment
    )
    plan = replace(plan, copy_reasons={**reasons, **plan.copy_reasons})
    if storage == "link":
        _check_all_linked(plan, tensors)
    return WeightPlacement({p.name: p for p in tensors}, ties, plan, is_inline)


def _is_inline(tensors: Sequence[ExternalTensor], storage: WeightStorage, is_single: bool) -> bool:
    """Return True if weights are inline. Raise E0823 if inline weights are too large."""
    total_bytes = sum(p.nbytes for p in tensors)
    is_small = total_bytes < MAX_INLINE_BYTES and is_single
    is_inline = storage == "inline" or (storage == "auto" and is_small)
    if is_inline and not can_store_tensors_inline(tensors):
        raise_error(
            "E0823",
            f"{total_bytes / 2**30:.1f} GiB of weights exceed the 2 GiB limit of one ONNX file",
            notes=["the limit is 2 GiB"],
            helps=["remove `--weights-as inline` to write the weights to a file next to the model"],
        )
    return is_inline


def _choose_dtype(values: ParameterSource, name: str, dtype: str, matrix_dtype: str) -> str:
    """Return the storage dtype of a parameter: `matrix_dtype` for f32 matrices, or `dtype`."""
    is_matrix = dtype == "f32" and len(values.parameters[name].shape) > 1
    # scales of quantized weights keep their dtype
    return (
        matrix_dtype if matrix_dtype and is_matrix and not is_quantized_tensor_name(name) else dtype
    )


def collect_parameter_types(graphs: Sequence[Graph]) -> dict[str, Type]:
    """Return the types of the parameters of all graphs, in order of first use."""
    types: dict[str, Type] = {}
    for graph in graphs:
        for name, value in graph.parameters.items():
            first_type = types.setdefault(name, value.type)
            assert first_type == value.type, (
                f"{name} is {first_type} in one graph and {value.type} in {graph.name}"
            )
    return types


def _make_external_tensor(
    name: str,
    dtype: str,
    values: ParameterSource,
    directory: Path | None,
    opset: int,
    reasons: dict[Path, str],
) -> ExternalTensor:
    """Return the description of a weight in its storage dtype. The storage dtype is the dtype in
    the checkpoint file only if a model in the output `directory` can link the file. `reasons`
    records why files cannot be linked.
    """
    shape = values.parameters[name].shape
    file_dtype = values.get_stored_dtype(name)
    byte_range = values.find_byte_range(name) if directory is not None else None
    if byte_range is not None and directory is not None:
        reason = resolve_external_path(byte_range.path, directory)
        if isinstance(reason, str):
            reasons[byte_range.path], byte_range = reason, None
    can_widen = dtype in FLOAT_DTYPES and WIDENING_SINCE.get(file_dtype, opset + 1) <= opset
    if byte_range is None or not (file_dtype == dtype or can_widen):
        return ExternalTensor(name, dtype, count_tensor_bytes(shape, dtype))
    return ExternalTensor(name, file_dtype, count_tensor_bytes(shape, file_dtype), byte_range)


def _check_all_linked(plan: ExternalDataPlan, tensors: list[ExternalTensor]) -> None:
    """Raise E0824 if `--weights-as link` would copy a weight."""
    unlinked_names = [p.name for p in tensors if p.name not in plan.linked_tensors and p.nbytes]
    if unlinked_names:
        reasons = list(plan.copy_reasons.values()) or [
            "no checkpoint next to the output stores them in this layout and dtype"
        ]
        raise_error(
            "E0824",
            f"{len(unlinked_names)} of {len(tensors)} weights cannot be stored as references to "
            "the checkpoint",
            notes=[*reasons, f"the first one is `{unlinked_names[0]}`"],
            helps=[
                "write the model to the directory of the checkpoint, or use `--weights-as copy`"
            ],
        )


def set_initializer_data(
    built_model: OnnxBuildResult,
    placement: WeightPlacement,
    values: ParameterSource,
    weight_file: str | None,
) -> None:
    """Add the weights to a model's initializers. If the weights are inline, add their values to the
    model. Otherwise, add the location of each weight, in the weight file `weight_file` or in the
    checkpoint, as ONNX external data.
    """
    plan = placement.plan
    locations = (
        plan.linked_tensors if placement.is_inline else plan.get_tensor_locations(weight_file or "")
    )
    for name, tensor in built_model.weights.items():
        if (location := locations.get(name)) is not None:
            tensor.data_location = TensorProto.EXTERNAL
            for key in ("location", "offset", "length"):
                tensor.external_data.add(key=key, value=str(getattr(location, key)))
        elif placement.is_inline:
            tensor.raw_data = b"".join(values.iterate_chunks(name, placement.tensors[name].dtype))
