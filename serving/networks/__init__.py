"""The built-in networks, and how their weights become ONNX files."""
