"""Load, bind, initialize and quantize the parameters of a model. Read and write weight files."""
