"""The plain competitor: a Triton ensemble of three Python models, as most people deploy a classifier.

Pillow for each image, ONNX Runtime with its default session options, top-k in NumPy; Triton batches before every step.
The three ``*.py`` files are the ``model.py`` of a model each and import nothing of this project; ``repository.py``
puts them, with the ``*.pbtxt`` beside them, into a model repository.
"""
