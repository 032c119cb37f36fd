"""Parameters of a model and the sources of their values."""
