"""Run compiled models: sessions, inputs, generation, streaming, attention maps."""
