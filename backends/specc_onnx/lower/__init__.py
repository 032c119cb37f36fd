"""Lower IR ops to ONNX: one lowering rule per op, and the emitter, with which the rules build ONNX
nodes. A rule maps the op of a node and the ONNX values of the operands to the values of the
results. `registry.lower` is the table of all rules.
"""
