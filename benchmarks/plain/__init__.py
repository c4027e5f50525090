"""The plain competitors: Triton ensembles of three Python models, as most people deploy a classifier or a detector.

*classify*: Pillow for each image, top-k in NumPy. *detect*: OpenCV for each image, whose size travels beside its
pixels; boxes and suppression in NumPy. Both run ONNX Runtime (``network.py``), and Triton batches before every step.
The ``*.py`` files are the ``model.py`` of a model each and import nothing of this project; ``benchmarks.competitors``
puts them, with the ``*.pbtxt`` beside them, into a model repository.
"""
