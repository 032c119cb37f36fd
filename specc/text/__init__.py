"""Source text, and what we say about it. Knows nothing of models."""
