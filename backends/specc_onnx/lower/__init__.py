"""One rule per op: what it is in ONNX, for a target and an opset; and the emitter that
the rules write through.

In come a node's op and the names of its operands, out go the names of its results;
`table.lower` holds the rules.
"""
