"""Safe file input and output: size limits on reads, strict JSON, atomic writes."""
