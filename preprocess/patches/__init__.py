"""Patches of vision-language models in process, by a definition that ends in ``patches``, without Python's lock.

>>> from onestream.preprocess.patches import Processor
>>> processor = Processor(definition, threads=2)             # doctest: +SKIP
>>> made = processor([open("cat.jpg", "rb").read()])         # doctest: +SKIP
>>> made.pixel_values.shape, made.image_grid_thw             # doctest: +SKIP
((1080, 1176), array([[ 1, 30, 36]]))
"""

from onestream.preprocess.patches.batch import Patched
from onestream.preprocess.patches.pictures import Picture
from onestream.preprocess.patches.processor import DType, Processor
from onestream.preprocess.patches.videos import Video

__all__ = ["DType", "Patched", "Picture", "Processor", "Video"]
