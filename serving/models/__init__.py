"""What Triton's Python backend runs for images."""
