"""Safe file input and output: reads with size limits, strict JSON, atomic writes."""
