"""Export profiles: derived graphs with the input and output names that other programs expect."""
