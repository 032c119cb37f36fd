"""Merge LoRA adapters and language adapters into a checkpoint."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.weights.checkpoint_files import ALL_ROWS, Checkpoint
from specc.weights.formats.safetensors import TensorFile
from specc.weights.formats.safetensors_header import (
    CONVERTIBLE_FLOATS,
    DTYPE_BITS,
    NUMPY_DTYPES,
    Shape,
    TensorEntry,
)
from specc.weights.lora_scaling_and_targets import (
    LoraScaling,
    LoraTargets,
    find_missing_language_adapter_weights,
)
from specc.weights.parameter_name_patterns import format_name_groups, infer_parameter_naming
from specc.weights.weight_value_checks import check_finite

MODULE_PREFIX = "base_model.model."
"""Prefix of every module name in a LoRA adapter file."""
MERGE_CHUNK = 1 << 20
"""Number of weight elements that are merged at once."""

_LORA_SUFFIXES = (
    ("lora_A.weight", "a"),
    ("lora_B.weight", "b"),
    ("lora_B.bias", "bias"),
    ("lora_embedding_A", "table_a"),
    ("lora_embedding_B", "table_b"),
)
"""Suffixes of LoRA tensor names, and the role of each tensor (factor or bias)."""

Float64Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterDelta:
    """An adapter's change to one tensor. The tensor is first replaced by the adapter tensor
    `replacement`, if there is one. Then either `scale` × `vector`, or `scale` × the product of
    `lora_b` and `lora_a`, is added to the tensor. The product is transposed if `is_transposed` is
    True.
    """

    replacement: str = ""
    lora_b: str = ""
    lora_a: str = ""
    is_transposed: bool = False
    vector: str = ""
    scale: float = 0.0

    @property
    def tensors(self) -> list[str]:
        """The names of the adapter tensors that the change uses."""
        names = (self.replacement, self.lora_b, self.lora_a, self.vector)
        return [name for name in names if name]


class LoraAdapter:
    """An adapter file, with its config and its changes, which are keyed by parameter name. If
    `replaces_tensors` is True, tensors of the adapter replace checkpoint tensors of the same name.
    """

    def __init__(
        self,
        file: TensorFile,
        scaling: LoraScaling,
        targets: LoraTargets | None = None,
        *,
        replaces_tensors: bool = False,
    ) -> None:
        self.file = file
        self.scaling = scaling
        self.targets = targets
        self.replaces_tensors = replaces_tensors
        if not file.tensors:
            self._raise_broken("the file has no tensors")
        self.deltas = (
            {name: AdapterDelta(replacement=name) for name in file.tensors}
            if replaces_tensors
            else self._read_deltas()
        )

    @classmethod
    def from_mms_adapter(cls, file: TensorFile) -> "LoraAdapter":
        """Return a language adapter, whose tensors replace checkpoint tensors without scaling."""
        return cls(file, LoraScaling(rank=1, alpha=1.0, ranks={}, alphas={}), replaces_tensors=True)

    def _read_deltas(self) -> dict[str, AdapterDelta]:
        """Return adapter changes, keyed by parameter name. Raise E0530 for unknown tensors."""
        parts: dict[str, dict[str, str]] = {}
        deltas: dict[str, AdapterDelta] = {}
        for name in self.file.tensors:
            stem = name.removeprefix(MODULE_PREFIX)
            matches = ((end, part) for end, part in _LORA_SUFFIXES if stem.endswith(f".{end}"))
            end, part = next(matches, ("", ""))
            # reject unknown tensors: they belong to LoRA variants such as DoRA, and ignoring them
            # would produce wrong weights
            if stem == name or (".lora_" in stem and not part):
                self._raise_broken(f"`{name}` is not a LoRA tensor")
            if part:
                module = stem.removesuffix(f".{end}")
                parts.setdefault(module, {})[part] = name
            else:
                # a fully trained tensor has the name of the parameter, but PEFT inserts
                # `base_layer` into the names of wrapped modules
                deltas[stem.replace(".base_layer.", ".")] = AdapterDelta(replacement=name)
        for module, module_parts in parts.items():
            self._add_module(module, module_parts, deltas)
        return deltas

    def _add_module(
        self, module: str, parts: Mapping[str, str], deltas: dict[str, AdapterDelta]
    ) -> None:
        """Add the changes of a module's weight and bias to `deltas`. `parts` maps roles to the
        names of the module's LoRA tensors.
        """
        scale = self.scaling.get_scale(module)
        is_embedding = "table_a" in parts
        a, b = self._find_factor_pair(
            module, parts, ("table_a", "table_b") if is_embedding else ("a", "b")
        )
        weight = f"{module}.weight"
        delta = deltas.get(weight, AdapterDelta())
        # PEFT stores the factors of an embedding transposed.
        deltas[weight] = replace(
            delta,
            lora_b=b,
            lora_a=a,
            is_transposed=is_embedding or self.scaling.is_transposed,
            scale=scale,
        )
        if bias := parts.get("bias"):
            delta = deltas.get(f"{module}.bias", AdapterDelta())
            deltas[f"{module}.bias"] = replace(delta, vector=bias, scale=scale)

    def _find_factor_pair(
        self, module: str, parts: Mapping[str, str], roles: tuple[str, str]
    ) -> tuple[str, str]:
        """Return the names of a module's LoRA A and B tensors. Raise E0530 for invalid tensors."""
        if missing := [role for role in roles if role not in parts]:
            letter = "A" if missing[0].endswith("a") else "B"
            self._raise_broken(f"missing `lora_{letter}` of `{module}`")
        if self.targets is not None and not self.targets.is_target_module(module):
            self._raise_broken(f"it changes `{module}`, which is not in its `target_modules`")
        a, b = (parts[role] for role in roles)
        self._check_rank(module, a)
        return a, b

    def _check_rank(self, module: str, name: str) -> None:
        """Raise E0530 if a LoRA A matrix has another rank than the config."""
        # The scale is alpha divided by the rank in the config, so a matrix of another rank would be
        # scaled wrongly.
        rank = self.file.tensors[name].shape[:1]
        if rank != (self.scaling.get_rank(module),):
            self._raise_broken(
                f"`{name}` has the rank {rank[0] if rank else 0}, but the rank in the config "
                f"is {self.scaling.get_rank(module)}"
            )

    def _raise_broken(self, reason: str) -> NoReturn:
        raise_error(
            "E0530",
            f"the adapter `{escape_text(self.file.path)}` cannot be read",
            notes=[escape_text(reason)],
            helps=["save it again with `save_pretrained` of peft"],
        )

    def read_float64_tensor(self, name: str) -> Float64Array:
        """Read a tensor in float64. Raise E0507 if an element is not finite."""
        array = self.file.read_tensor(name)
        check_finite(array, f"`{escape_text(name)}` in `{escape_text(self.file.path)}`")
        return array.astype(np.float64)


class AdaptedCheckpoint(Checkpoint):
    """The checkpoint `base` with an adapter merged into it."""

    def __init__(self, base: Checkpoint, adapter: LoraAdapter) -> None:
        super().__init__(base.path, base.files)
        self.base = base
        self.adapter = adapter
        self.deltas = _rename_deltas(base, adapter)
        self.adapted_tensors = frozenset(self.deltas)
        self.decoded_tensors = base.decoded_tensors - self.adapted_tensors
        self.optional_tensors = base.optional_tensors
        self.tensors = {
            **base.tensors,
            **{n: _make_entry(n, c, base, adapter) for n, c in self.deltas.items()},
        }

    @property
    def all_files(self) -> tuple[TensorFile, ...]:
        """Return all files from which tensors are read, including the adapter."""
        return (*self.files, self.adapter.file)

    def get_file(self, name: str) -> TensorFile:
        """Return the file of a tensor, i.e. the adapter if the adapter adds or replaces it."""
        change = self.deltas.get(name)
        is_in_adapter = name not in self.base.tensors or (change is not None and change.replacement)
        return self.adapter.file if is_in_adapter else self.base.get_file(name)

    def read_tensor(self, name: str, rows: slice = ALL_ROWS) -> Array:
        """Return a copy of a tensor, merged with the adapter's change if there is one."""
        change = self.deltas.get(name)
        if change is None:
            return self.base.read_tensor(name, rows)
        return self._apply_delta(name, change)[rows]

    def _apply_delta(self, name: str, change: AdapterDelta) -> Array:
        """Return the tensor `name` after applying the change (a replacement or an addition)."""
        if change.replacement:
            tensor = self.adapter.file.read_tensor(change.replacement)
            check_finite(tensor, f"`{escape_text(change.replacement)}`")
        else:
            tensor = self.base.read_tensor(name)
        dtype = NUMPY_DTYPES[self.tensors[name].dtype]
        if change.vector:
            delta = change.scale * self.adapter.read_float64_tensor(change.vector)
            return np.asarray((tensor.astype(np.float64) + delta).astype(dtype))
        if not change.lora_b:
            return tensor.astype(dtype)
        return self._merge_delta(tensor, change, dtype)

    def _merge_delta(
        self, tensor: Array, change: AdapterDelta, dtype: np.dtype[np.generic]
    ) -> Array:
        """Compute the merged weight W + s·B·A in float64 and round it once. Rows are processed in
        chunks to keep the float64 copies small.
        """
        left = self.adapter.read_float64_tensor(change.lora_b)
        right = self.adapter.read_float64_tensor(change.lora_a)
        rank = right.shape[0]
        b, a = left.reshape(-1, rank), right.reshape(rank, -1)
        if change.is_transposed:
            b, a = a.T, b.T
        a = a * change.scale
        flat, merged = tensor.reshape(tensor.shape[0], -1), np.empty(tensor.shape, dtype)
        rows = max(1, MERGE_CHUNK // max(1, flat.shape[1]))
        merged_rows = merged.reshape(flat.shape)
        for start in range(0, len(flat), rows):
            part = slice(start, start + rows)
            # suppress the overflow warning, because the check for finite values reports the tensor
            with np.errstate(over="ignore"):
                merged_rows[part] = (flat[part].astype(np.float64) + b[part] @ a).astype(dtype)
        return merged

    def check_unchanged(self) -> None:
        """Raise E0512 if a file of the checkpoint or adapter has changed since it was opened."""
        super().check_unchanged()
        self.adapter.file.check_unchanged()

    def close(self) -> None:
        """Close the files of the checkpoint and of the adapter."""
        super().close()
        self.adapter.file.close()


def _rename_deltas(base: Checkpoint, adapter: LoraAdapter) -> dict[str, AdapterDelta]:
    """Return an adapter's changes, keyed by the names of the checkpoint's tensors. Raise E0531 if
    the checkpoint lacks a changed tensor, or if the adapter lacks a tensor that it must replace.
    """
    changed_names = [n for n, c in adapter.deltas.items() if not c.replacement]
    naming = infer_parameter_naming(changed_names, base.tensors.keys(), base.path)
    deltas_by_tensor = {
        naming.resolve_name(name, base.tensors.keys()): change
        for name, change in adapter.deltas.items()
    }
    _check_fully_trained(base, adapter, deltas_by_tensor)
    if adapter.replaces_tensors and (
        missing_names := find_missing_language_adapter_weights(base.tensors, deltas_by_tensor)
    ):
        reason = (
            f"it has no replacement for {escape_text(format_name_groups(sorted(missing_names)))}"
        )
        _raise_incompatible(
            base, adapter, reason, "check that it is complete and was trained for this model"
        )
    # a LoRA adapter may add tensors, but a language adapter only replaces tensors
    unknown = [
        name
        for name, change in deltas_by_tensor.items()
        if name not in base.tensors and (adapter.replaces_tensors or not change.replacement)
    ]
    if unknown:
        _raise_incompatible(
            base,
            adapter,
            f"it changes {escape_text(format_name_groups(sorted(unknown)))}, which the checkpoint "
            f"does not have",
            "check that it is the adapter of this model: a head tied to the embedding table has "
            "no separate weight to adapt",
        )
    return deltas_by_tensor


def _check_fully_trained(
    base: Checkpoint, adapter: LoraAdapter, deltas_by_tensor: Mapping[str, AdapterDelta]
) -> None:
    """Raise E0531 if the adapter lacks a tensor of a module that is fully trained according to its
    config.
    """
    if adapter.targets is None:
        return
    missing_names = [
        n for n in base.tensors if adapter.targets.is_fully_trained(n) and n not in deltas_by_tensor
    ]
    if missing_names:
        # without this error, the model would silently use the tensors of the checkpoint
        names = escape_text(format_name_groups(sorted(missing_names)))
        reason = f"it lacks {names}, which its config lists in `modules_to_save`"
        _raise_incompatible(
            base, adapter, reason, "check that the adapter is complete, or save it again"
        )


def _make_entry(
    name: str, change: AdapterDelta, base: Checkpoint, adapter: LoraAdapter
) -> TensorEntry:
    """Return the header entry of a changed tensor. The new dtype is float32, or float64 if the
    original tensor is float64. Raise E0531 if shapes or dtypes do not match.
    """
    adapter_tensors = adapter.file.tensors
    base_entry = base.tensors.get(name)
    result_entry = adapter_tensors.get(change.replacement) or base_entry
    assert result_entry is not None, f"{name} is in neither the checkpoint nor the adapter"
    # the vocabulary size of a replacement tensor may differ
    entries = (
        [result_entry]
        if adapter.replaces_tensors or base_entry is None
        else [result_entry, base_entry]
    )
    for (label, shape), entry in product(_list_delta_shapes(change, adapter_tensors), entries):
        if shape != entry.shape:
            reason = (
                f"`{escape_text(name)}` is {entry}, but `{escape_text(label)}` gives {list(shape)}"
            )
            _raise_incompatible(base, adapter, reason, "check that it is the adapter of this model")
    dtypes = [result_entry.dtype, *(adapter_tensors[n].dtype for n in change.tensors)]
    if not CONVERTIBLE_FLOATS.issuperset(dtypes):
        dtype_names = ", ".join(sorted(set(dtypes)))
        reason = f"`{escape_text(name)}` is computed from {dtype_names}, expected floats"
        _raise_incompatible(base, adapter, reason, "check that it is the adapter of this model")
    dtype = "f64" if result_entry.dtype == "f64" else "f32"
    nbytes = math.prod(result_entry.shape) * DTYPE_BITS[dtype] // 8
    return TensorEntry(name, dtype, result_entry.shape, 0, nbytes)


def _list_delta_shapes(
    change: AdapterDelta, adapter_tensors: Mapping[str, TensorEntry]
) -> list[tuple[str, Shape]]:
    """Return the description and shape of each array that a change adds or uses as replacement."""
    unpaired = [name for name in (change.replacement, change.vector) if name]
    shapes = [(name, adapter_tensors[name].shape) for name in unpaired]
    if change.lora_b:
        b, a = adapter_tensors[change.lora_b].shape, adapter_tensors[change.lora_a].shape
        shape = _get_product_shape(b, a, is_transposed=change.is_transposed)
        shapes.append((f"{change.lora_b} · {change.lora_a}", shape))
    return shapes


def _get_product_shape(b: Shape, a: Shape, *, is_transposed: bool) -> Shape:
    """Return the shape of B·A (linear, embedding, convolution), or () if the shapes do not
    match.
    """
    if len(b) < 2 or b[1] != a[0] or math.prod(b[2:]) != 1:
        return ()
    return (*a[:0:-1], b[0]) if is_transposed else (b[0], *a[1:])


def _raise_incompatible(base: Checkpoint, adapter: LoraAdapter, reason: str, help: str) -> NoReturn:
    raise_error(
        "E0531",
        f"the adapter `{escape_text(adapter.file.path)}` does not match `{escape_text(base.path)}`",
        notes=[reason],
        helps=[help],
    )
