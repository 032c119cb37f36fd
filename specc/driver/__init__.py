"""The compiler driver: open a spec, bind weights, run the passes, and lower and write graphs."""
