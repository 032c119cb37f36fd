"""Safe file input and output: size limits for reads, strict JSON, atomic writes."""
