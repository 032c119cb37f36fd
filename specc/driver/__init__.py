"""Compiler driver: open a spec, bind weights, run the passes, lower, write."""
