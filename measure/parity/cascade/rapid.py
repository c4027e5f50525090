"""The package rapidocr as a subject: the usual way to read text with PP-OCR's networks."""

from __future__ import annotations

import numpy as np

from onestream.measure.parity.subject import Observation, Photo, Refused, Subject
from onestream.measure.rapid_ocr import networks_of, open_rapid_ocr, settings_of
from onestream.preprocess import BackendMissing
from onestream.serving.cascade import Cascade
from onestream.wire.install import install_command
from onestream.wire.tensor_names import QUADS, TEXTS


class RapidOcr(Subject[Photo]):
    """Reads as a cascade for which ``rapid_ocr.can_read`` holds.

    Raises ``BackendMissing`` naming the command that installs it, and ``WeightsError`` as ``fetch_network`` does.
    """

    def __init__(self, cascade: Cascade) -> None:
        super().__init__("rapidocr", judged=False)
        try:
            self._read = open_rapid_ocr(settings_of(cascade), networks_of(cascade))
        except ImportError as error:
            raise BackendMissing(f"rapidocr cannot be imported ({error}); run: {install_command('bench')}") from None

    def observe(self, photo: Photo) -> Observation:
        """The lines that it reads."""
        try:
            lines = self._read(photo.data)
        except Exception as error:  # the code is not ours
            raise Refused(f"{type(error).__name__}: {error}") from None
        answer = {
            QUADS: np.array([line.quad for line in lines], np.float32).reshape(1, -1, 4, 2),
            TEXTS: np.array([[line.text.encode() for line in lines]], object),
        }
        return Observation({}, answers={"": answer})
