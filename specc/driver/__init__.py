"""Compiler driver: opens a spec, binds weights, runs the passes, lowers and writes graphs."""
