"""Pictures with lines of text: read from JSON lines and ICDAR's files into one value, and loaded for PyTorch."""
