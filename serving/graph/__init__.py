"""ONNX graphs: a network made servable, with its last steps and its postprocessing inside."""
