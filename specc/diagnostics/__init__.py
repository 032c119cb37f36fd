"""Source text, diagnostics and how they are printed. Knows nothing of models."""
