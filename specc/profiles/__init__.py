"""Names of inputs, outputs and axes that other programs expect of a model that generates."""
