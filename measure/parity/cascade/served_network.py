"""The network of a stage on a running server: asked with the reference's pixels, it answers what the built one does."""

from __future__ import annotations

from onestream.measure.parity.served import ServedModels
from onestream.measure.parity.subject import Item, Observation, Subject
from onestream.wire.tensor_names import PIXELS


class ServedNetwork(Subject[Item]):
    """``NAME_STAGE_model``. ``address`` is host:port of the server's gRPC service. Raises ``NotServed``."""

    def __init__(self, model: str, address: str, reference: Subject[Item]) -> None:
        super().__init__("server", judged=True)
        self._model, self._reference = model, reference
        self._served = ServedModels(address, [model])
        self.name = self._served.title

    @property
    def digests(self) -> dict[str, str]:
        """See ``ServedModels.digests``."""
        return self._served.digests

    def observe(self, item: Item) -> Observation:
        """What the model returns."""
        expected = self._reference.observe(item)
        pixels = expected.network_pixels
        assert pixels is not None
        outputs = self._served.ask(self._model, PIXELS, pixels[None])
        return Observation({}, decoded_hw=expected.picture_hw, outputs=outputs)

    def close(self) -> None:
        """Close the connection."""
        self._served.close()
