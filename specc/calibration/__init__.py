"""Calibration of weight quantization with the activations on sample inputs."""
