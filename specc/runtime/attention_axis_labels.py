"""Label query and key positions of attention maps with tokens, audio times or image patches."""

import math
from dataclasses import dataclass

import numpy as np

from specc.drawing.attention_maps import AttentionMapAxis, PatchGrid, Role
from specc.drawing.drawing_elements import Bytes
from specc.io.safe_read import escape_text
from specc.ir.array import Array, Arrays
from specc.ir.dim import Dim
from specc.preprocessing.images import denormalize_image
from specc.preprocessing.preprocessing_records import (
    TEXT_CONFIGS,
    ImageConfig,
    LogMelConfig,
    TextConfig,
    TextOutput,
    WaveformConfig,
)
from specc.preprocessing.text_codec import decode_text, get_token_label
from specc.runtime.single_model_file import LoadedModel

CLASS_TOKENS = ("[CLS]", "[DIST]")
"""Labels of the tokens before the image patches, named as in the ViT and DeiT papers."""


@dataclass(frozen=True, kw_only=True)
class AttentionAxisLabeler:
    """A labeler of attention map axes for a model and its prepared inputs. `generated_tokens`
    (int64 [batch, target]) is None unless the model is generative.
    """

    model: LoadedModel
    arrays: Arrays
    generated_tokens: Array | None = None

    def label_axis(self, dim: Dim | None, count: int) -> AttentionMapAxis:
        """Label the `count` positions of an axis with tokens, audio times or image patches, or else
        with indices. `dim` is the symbolic size of the axis, or None if it is unknown.
        """
        return (
            self._label_text(dim, count)
            or self._label_frames(count)
            or self._find_patches(count)
            or AttentionMapAxis(role="unnamed", labels=tuple(map(str, range(count))))
        )

    def label_axes(
        self, dims: tuple[Dim | None, Dim | None], shape: tuple[int, ...]
    ) -> tuple[AttentionMapAxis, AttentionMapAxis]:
        """Return the labeled query and key axes of an attention map with the given shape."""
        query_dim, key_dim = dims
        query_axis = self.label_axis(query_dim, shape[-2])
        is_generated = (
            self.generated_tokens is not None and self.generated_tokens.shape[1] == shape[-2]
        )
        if is_generated and query_dim != key_dim:
            query_axis = self._label_generated_tokens() or query_axis
        return query_axis, self.label_axis(key_dim, shape[-1])

    def get_input_image(self) -> Bytes | None:
        """Return the denormalized pixels [height, width, 3] of the first image, or None if there is
        none.
        """
        image_input = self._find_image()
        if image_input is None:
            return None
        name, config = image_input
        images = np.asarray(self.arrays[name])[0]
        # use the first image of the first batch element
        pixels = denormalize_image(images[0] if images.ndim == 4 else images, config)
        return pixels.repeat(3, 2) if pixels.shape[2] == 1 else pixels

    def describe_inputs(self) -> str:
        """Return the text inputs, or a description of the input types if there is no text."""
        parts = [self._describe_axis(n, a) for n, a in self.arrays.items()]
        return "   ".join(filter(None, parts))

    def _describe_axis(self, name: str, array: Array) -> str:
        config = self.model.manifest.preprocessing.get_input_config(name)
        sequence_input = self.model.input_signature.sequence_input
        is_generated = self.generated_tokens is not None and name == sequence_input
        if isinstance(config, TEXT_CONFIGS) and array.ndim == 2 and len(array):
            return "" if is_generated else "".join(make_token_labels(array[0], config))
        if isinstance(config, ImageConfig):
            return f"an image of {config.size[0]} × {config.size[1]} pixels"
        if isinstance(config, WaveformConfig | LogMelConfig):
            return f"audio of {_compute_duration(array, config):.3g} s"
        return ""

    def _label_text(self, length: Dim | None, count: int) -> AttentionMapAxis | None:
        """Label an axis with the `count` tokens of a text input of size `length`. Return None if no
        input matches.
        """
        sequence_input = self.model.input_signature.sequence_input
        for name, array in self.arrays.items():
            tokenizer = self._find_tokenizer(name)
            if tokenizer is None or array.shape[1:] != (count,):
                continue
            if self.model.manifest.graph.inputs[name].shape[1] == length:
                role: Role = "generated" if name == sequence_input else "input"
                return AttentionMapAxis(role=role, labels=make_token_labels(array[0], tokenizer))
        return None

    def _find_tokenizer(self, name: str) -> TextConfig | None:
        """Return the tokenizer of an input. A generated input may use the output's tokenizer."""
        config = self.model.manifest.preprocessing.get_input_config(name)
        if isinstance(config, TEXT_CONFIGS):
            return config
        is_generated = name == self.model.input_signature.sequence_input
        return self._find_output_tokenizer() if is_generated else None

    def _find_output_tokenizer(self) -> TextConfig | None:
        """Return the tokenizer of the generated text, or None if the model has no tokenizer."""
        outputs = self.model.manifest.preprocessing.outputs
        return next((r.vocabulary for _, r in outputs if isinstance(r, TextOutput)), None)

    def _label_frames(self, count: int) -> AttentionMapAxis | None:
        """Label each audio frame with its start time in seconds."""
        for name, array in self.arrays.items():
            config = self.model.manifest.preprocessing.get_input_config(name)
            if isinstance(config, WaveformConfig | LogMelConfig) and count:
                duration = _compute_duration(array, config)
                labels = tuple(f"{n * duration / count:.2f} s" for n in range(count))
                return AttentionMapAxis(role="audio", labels=labels, duration_seconds=duration)
        return None

    def _find_patches(self, count: int) -> AttentionMapAxis | None:
        image_input = self._find_image()
        if image_input is None:
            return None
        height, width = self.arrays[image_input[0]].shape[-2:]
        if (grid := infer_patch_grid(count, (height, width))) is None:
            return None
        patches = (f"{r + 1}, {c + 1}" for r in range(grid.rows) for c in range(grid.columns))
        return AttentionMapAxis(
            role="image", labels=(*CLASS_TOKENS[: grid.prefix_tokens], *patches), grid=grid
        )

    def _find_image(self) -> tuple[str, ImageConfig] | None:
        """Return the name and preprocessing of the first image input, or None if there is none."""
        for name, config in self.model.manifest.preprocessing.inputs:
            if isinstance(config, ImageConfig) and name in self.arrays:
                # preprocessed images may be patches, which cannot be displayed
                shape = self.arrays[name].shape
                if len(shape) in (4, 5) and shape[-3] == config.channels and all(shape):
                    return name, config
        return None

    def _label_generated_tokens(self) -> AttentionMapAxis | None:
        """Label the generated tokens of batch element 0. Return None if there is no tokenizer."""
        tokenizer = self._find_output_tokenizer()
        if tokenizer is None or self.generated_tokens is None:
            return None
        labels = make_token_labels(self.generated_tokens[0], tokenizer)
        return AttentionMapAxis(role="generated", labels=labels)

    def decode_generated_text(self) -> str:
        """Return the generated text, or "" if the model does not generate text."""
        tokenizer = self._find_output_tokenizer()
        if tokenizer is None or self.generated_tokens is None:
            return ""
        return escape_text(decode_text(self.generated_tokens[0], tokenizer))


def infer_patch_grid(key_count: int, image_size: tuple[int, int]) -> PatchGrid | None:
    """Infer the patch grid of an image from the number of keys. Return None if no grid fits."""
    for prefix_tokens in (1, 0, 2):
        patches = key_count - prefix_tokens
        if patches < 1:
            continue
        patch_side = math.sqrt(image_size[0] * image_size[1] / patches)
        rows, columns = image_size[0] / patch_side, image_size[1] / patch_side
        if rows.is_integer() and columns.is_integer():
            return PatchGrid(rows=int(rows), columns=int(columns), prefix_tokens=prefix_tokens)
    return None


def make_token_labels(ids: Array, tokenizer: TextConfig) -> tuple[str, ...]:
    """Return one label per token id. Special tokens without text are labeled with a dot."""
    return tuple(get_token_label(int(i), tokenizer) for i in ids)


def _compute_duration(array: Array, config: WaveformConfig | LogMelConfig) -> float:
    """Return the duration of the audio batch in seconds, including padding."""
    samples = config.num_samples if isinstance(config, LogMelConfig) else array.shape[-1]
    return samples / config.sample_rate
