"""Run compiled models: inference sessions, inputs, generation, streaming, attention maps."""
