"""Calibration of quantized weights with the activations on sample inputs."""
