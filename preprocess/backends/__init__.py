"""The backends that execute a definition: ``reference`` (Pillow and NumPy), ``dali`` and ``cvcuda``.

``onestream.preprocess.compile`` imports each when it is asked for.
"""
