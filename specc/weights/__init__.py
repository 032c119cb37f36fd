"""Parameter values: checkpoints and their binding, file formats, initialization, quantization."""
