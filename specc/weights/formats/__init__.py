"""Readers of tensor file formats (safetensors, GGUF, GloVe) and decoders of quantized weights."""
