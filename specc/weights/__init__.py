"""Parameters of a model and where their values come from."""
