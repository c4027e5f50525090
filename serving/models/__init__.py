"""The models that Triton's Python backend runs for images."""
