"""The plain competitors: what most people deploy to classify, to detect and to read.

*classify*: a Triton ensemble of three Python models, Pillow for each image, top-k in NumPy. *detect*: the same with
OpenCV for each image, whose size travels beside its pixels; boxes and suppression in NumPy. Both run ONNX Runtime
(``network.py``), and Triton batches before every step. *read*: rapidocr in one Python model. The ``*.py`` files are the
``model.py`` of a model each and import nothing of this project; ``benchmarks.competitors`` puts them, with the
``*.pbtxt`` beside them, into a model repository, and asks the model *whole*.
"""
