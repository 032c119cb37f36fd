"""Lowering: one rule per op, and the emitter that builds ONNX nodes for the rules.

Input: a node's op and the names of its operands. Output: the names of its results;
`rules.lower` holds the rules.
"""
