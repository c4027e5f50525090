"""BMP (BITMAPCOREHEADER and the BITMAPINFOHEADER family): uncompressed pixels only."""

from __future__ import annotations

import struct

import numpy as np

from onestream.preprocess.headers.base import Header, SizeCheck, corrupt, unsupported

_FILE_HEADER, _CORE_HEADER = 14, 12
_INFO_HEADERS = (40, 52, 56, 64, 108, 124)
_NONE, _BITFIELDS = 0, 3
_BGR_MASKS = (0xFF0000, 0xFF00, 0xFF)
_EFFORT = 1.5
_DEPTHS = (1, 4, 8, 24, 32)


def read(view: memoryview, check_size: SizeCheck) -> Header:
    """Read a BMP header and check that its pixels lie inside the file."""
    data_at, header_bytes = struct.unpack_from("<I", view, 10)[0], struct.unpack_from("<I", view, 14)[0]
    compression, colors, entry = _NONE, 0, 4
    if header_bytes == _CORE_HEADER:
        width, height, _, bits = struct.unpack_from("<HHHH", view, 18)
        entry = 3
    elif header_bytes in _INFO_HEADERS:
        width, height, _, bits, compression, _, _, _, colors, _ = struct.unpack_from("<iiHHIIiiII", view, 18)
    else:
        raise unsupported(f"a BMP with a header of {header_bytes} bytes", f"{_CORE_HEADER} or one of {_INFO_HEADERS}")
    height = abs(height)
    check_size(height, width)
    if bits not in _DEPTHS or compression not in (_NONE, _BITFIELDS) or (compression == _BITFIELDS and bits != 32):
        raise unsupported(f"a BMP of {bits} bit with compression {compression}", "1, 4, 8, 24 or 32 bit, uncompressed")
    headers_end = _FILE_HEADER + header_bytes
    if compression == _BITFIELDS:
        masks = struct.unpack_from("<III", view, 54)
        if masks != _BGR_MASKS:
            raise unsupported(f"a BMP with bit masks {[f'{mask:x}' for mask in masks]}", "blue, green, red, 8 bit each")
        headers_end = max(headers_end, 66)
    colors = (colors or 1 << bits) if bits <= 8 else 0
    if not headers_end + colors * entry <= data_at or (bits <= 8 and colors > 1 << bits):
        raise corrupt(f"the BMP's pixels begin at byte {data_at}, inside its headers and {colors} palette entries")
    end = data_at + (width * bits + 31) // 32 * 4 * height
    if end > len(view):
        raise corrupt(f"the BMP is cut short: its pixels end at byte {end} of {len(view)}")
    if bits <= 8 and _highest_index(view[data_at:end], bits) >= colors:
        raise corrupt(f"the BMP's pixels name colours beyond the {colors} of its palette")
    return Header("BMP", height, width, effort=_EFFORT)


def _highest_index(pixels: memoryview, bits: int) -> int:
    packed = np.frombuffer(pixels, np.uint8)
    if bits == 8 or not packed.size:
        return int(packed.max(initial=0))
    if bits == 4:
        return int(max((packed >> 4).max(), (packed & 15).max()))
    return int(packed.any())
