"""Readers of file headers, one module per format. Each has ``read(view) -> Header`` and refuses what the backends would
not decode alike."""
