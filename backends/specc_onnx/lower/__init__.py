"""Lowering: one rule per op, and the emitter that rules write through.

Input: a node's op and the names of its operands. Output: the names of its results;
`rules.lower` holds the rules.
"""
