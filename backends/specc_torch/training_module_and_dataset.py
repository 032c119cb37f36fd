"""Train a spec: modules, data sets, and saving of trained weights.

model = specc_torch.module("my.yaml")
data = specc_torch.Dataset(model, rows)
for inputs, targets in data.loader(64):
    loss = cross_entropy(model(**inputs)["logits"], targets["logits"])
specc_torch.save(model, "my.safetensors")
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from specc.diagnostics.diagnostic import raise_error
from specc.driver.compile_options import ARGUMENT_TYPES
from specc.driver.option_kinds import check_argument_values
from specc.driver.spec_loader import open_spec_argument, translate_errors_to_spec_syntax
from specc.driver.weight_sources import WeightSources, load_training_model
from specc.io.output_paths import TRAINED_WEIGHTS_OUTPUT, resolve_output_path
from specc.ir.array import Array
from specc.runtime.training_collator import (
    TrainingCollator,
    TrainingExample,
    check_training_examples,
)
from specc_torch.spec_module import SpecModule

Tensors: TypeAlias = dict[str, Tensor]


@translate_errors_to_spec_syntax()
def module(
    spec: str | Path,
    *,
    weights: str | Path = "",
    init: int | None = None,
    init_missing: int | None = None,
    adapter: str | Path = "",
    config: str | Path = "",
    set: Mapping[str, object] | None = None,
    context: int = 0,
    graph: str = "",
) -> SpecModule:
    """Build the graph of a spec as an `nn.Module` with the spec's parameter names and tied
    weights.

    Calling the module, as in `model(pixel_values=x)`, returns the outputs by name. The arguments
    have the same meaning as those of `specc.compile`. The initial parameter values are read from
    `weights` or from the weights that the spec names, or are random with the seed `init` (by
    default 0). Raise the same errors as `specc.compile`.
    """
    check_argument_values(ARGUMENT_TYPES, locals())  # `locals()` contains only arguments here
    opened_spec = open_spec_argument(
        spec, config=config, config_values=set, weights=str(weights), context_length=int(context)
    )
    sources = WeightSources(
        weights=str(weights) if weights else "",
        init=None if init is None else int(init),
        init_missing=None if init_missing is None else int(init_missing),
        adapter=str(adapter) if adapter else "",
    )
    training_model = load_training_model(opened_spec, sources, graph)
    return SpecModule(
        training_model.graph,
        training_model.parameter_values,
        ties=training_model.ties,
        defaults=training_model.defaults,
        training_collator=TrainingCollator(
            graph=training_model.graph,
            preprocessing=training_model.preprocessing,
            defaults=training_model.defaults,
            generation=training_model.generation,
        ),
    )


def batch(model: nn.Module, examples: Sequence[TrainingExample]) -> tuple[Tensors, Tensors]:
    """Return the inputs and targets of training examples on the model's device (see `Dataset`).

    Raise E0946, E0947 or another E09xx error for invalid examples.
    """
    spec_module = unwrap_spec_module(model)
    device = next((p.device for p in spec_module.parameters()), torch.device("cpu"))
    inputs, targets = _get_training_collator(spec_module).make_batch(examples)
    return _to_tensors(inputs, device), _to_tensors(targets, device)


class Dataset(TorchDataset[TrainingExample]):
    """A map-style data set of training examples, preprocessed lazily by the spec's `reading`
    section.

    An example maps input names to values that `Model.run` accepts (arrays, texts, images or image
    paths), and output names to targets (a label, a string or numbers). For a generative model, an
    example needs to contain only the complete sequence, under the name of the generated input. The
    decoder input is then the start token followed by the sequence (shifted right). The targets are
    the tokens of the sequence followed by a stop token. Invalid examples raise E0946 or E0947.
    """

    def __init__(self, model: nn.Module, examples: Sequence[TrainingExample]) -> None:
        self.training_collator = _get_training_collator(unwrap_spec_module(model))
        self.examples = check_training_examples(examples)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> TrainingExample:
        return self.examples[index]

    def collate(self, examples: Sequence[TrainingExample]) -> tuple[Tensors, Tensors]:
        """Collate examples into `(inputs, targets)`.

        `inputs` are the arguments of `model(**inputs)`. `targets` are int64 or float32, depending
        on the output, and are padded with -100.
        """
        inputs, targets = self.training_collator.make_batch(examples)
        device = torch.device("cpu")
        return _to_tensors(inputs, device), _to_tensors(targets, device)

    def loader(
        self, batch_size: int, *, shuffle: bool = True, seed: int = 0, num_workers: int = 0
    ) -> DataLoader[TrainingExample]:
        """Return a `DataLoader` with batches of `batch_size` examples, shuffled with `seed`."""
        generator = torch.Generator().manual_seed(seed)
        return DataLoader(
            self,
            batch_size=batch_size,
            shuffle=shuffle,
            generator=generator,
            num_workers=num_workers,
            collate_fn=self.collate,
        )


def save(
    model: nn.Module,
    path: str | Path,
    metadata: Mapping[str, str] | None = None,
    *,
    force: bool = False,
) -> None:
    """Write the parameters to a safetensors file for `specc compile --weights` or for the `weights`
    section of a spec.

    Tied parameters are stored once. The file is written atomically. A file that specc did not write
    is overwritten only if `force` is True (E0833). Parameter names do not contain the prefixes of
    wrappers (`torch.compile`, `DataParallel`).
    """
    unwrap_spec_module(model).save(path, metadata, force=force)


def check_output_path(path: str | Path, *, force: bool = False) -> None:
    """Raise E0811, E0816 or E0833 before training if `save` cannot write to `path`."""
    resolve_output_path(path, TRAINED_WEIGHTS_OUTPUT, force=force)


def unwrap_spec_module(model: nn.Module) -> SpecModule:
    """Return the `SpecModule` inside wrappers such as `DataParallel`. Raise E0820 if there is no
    `SpecModule`.
    """
    inner_module = model
    # `torch.compile` stores the wrapped module as `_orig_mod`, and `DataParallel` as `module`
    while not isinstance(inner_module, SpecModule):
        names = [n for n in ("_orig_mod", "module") if n in inner_module._modules]
        submodule = inner_module._modules[names[0]] if names else None
        if submodule is None:
            raise_error(
                "E0820",
                f"`model` must be a module of specc_torch, got a {type(model).__name__}",
                helps=['build one with specc_torch.module("my.yaml")'],
            )
        inner_module = submodule
    return inner_module


def _get_training_collator(model: SpecModule) -> TrainingCollator:
    if model.training_collator is None:
        raise_error(
            "E0820",
            "this module was built from a graph without preprocessing",
            helps=['build it with specc_torch.module("my.yaml")'],
        )
    return model.training_collator


def _to_tensors(arrays: Mapping[str, Array], device: torch.device) -> Tensors:
    return {
        name: torch.from_numpy(np.ascontiguousarray(array)).to(device)
        for name, array in arrays.items()
    }
