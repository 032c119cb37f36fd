"""Lower IR ops to ONNX: one lowering rule per op, and the emitter with which rules build ONNX
nodes. A rule maps the op of a node and the names of its operands to the names of its results. The
table of all rules is `registry.lower`.
"""
