"""What executes a definition: ``reference`` (Pillow and NumPy) and ``dali``. Imported when they are compiled for."""
