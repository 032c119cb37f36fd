"""Graph transforms: rewrites, quantization and mixed precision."""
