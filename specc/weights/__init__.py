"""Load, bind, initialize and quantize the parameters of a model; read and write weight files."""
