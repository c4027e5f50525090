"""Readers of file headers, one module per format. Each has ``read(view, check_size) -> Header``, calls ``check_size``
with (height, width) as soon as it knows them, and refuses what the backends would not decode alike."""
