"""specc: describe an attention model in a page, get an ONNX model that runs."""

__version__ = "0.1.0"
