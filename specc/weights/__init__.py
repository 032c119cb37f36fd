"""Parameters of a model: checkpoints, file formats, initialization, quantization."""
