"""From an ONNX model to an engine Triton can load: artifacts, digests, model repositories. Knows nothing of the controller."""
