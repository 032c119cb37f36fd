"""Graph transforms: rewrites, quantization, mixed precision."""
