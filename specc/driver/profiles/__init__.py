"""Export profiles: derived graphs with the input and output names other programs expect."""
