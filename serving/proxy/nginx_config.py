"""nginx's configuration for a ``Proxy``: the values that fill ``nginx_template.conf``, and the filling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

from onestream.serving.errors import BadProxy
from onestream.serving.proxy.settings import PATH, REQUEST_OVERHEAD_BYTES, Proxy
from onestream.wire.refusals import bad_image

MOST_JSON_BYTES = 9999
"""What Triton may read as JSON of one request. A nest of over 100,000 bytes overruns Triton 2.51's stack, and the JSON
of every pipeline has some hundred: the picture follows as binary data. Four digits, since nginx compares no numbers."""

# Of Mustache, what the template needs: comments, sections and variables; the first two in lines of their own.
_COMMENT = re.compile(r"^\{\{!.*\}\}\n", re.MULTILINE)
_SECTION = re.compile(r"^\{\{([#^])(\w+)\}\}\n(.*?)^\{\{/\2\}\}\n", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(r"\{\{(\w+)\}\}")


def nginx_config(proxy: Proxy, *, folder: str) -> str:
    """The configuration.

    Args:
        proxy: what it does.
        folder: an absolute path where nginx may write: its process id, and bodies that are too large for memory.

    Raises:
        BadProxy: the path of the folder holds what cannot be written into a configuration.
    """
    if not PATH.fullmatch(folder):
        raise BadProxy(f"{folder!r}: the temporary folder may not hold spaces, quotes or other signs that nginx reads")
    most_bytes = {model.name: model.max_body_bytes + REQUEST_OVERHEAD_BYTES for model in proxy.models}
    values: dict[str, object] = {name: getattr(proxy, name) for name in Proxy.__slots__} | {
        "folder": folder,
        "access_log": "off" if proxy.access_log == "off" else f"{proxy.access_log} requests",
        "most_json_bytes": MOST_JSON_BYTES,
        "too_large": bad_image("too_large", "the request is larger than the limit of this server"),
        "models": [
            {"name": model.name, "streams": model.streams, "most_bytes": most_bytes[model.name]}
            for model in proxy.models
        ],
        # gRPC names the model inside the message, so that all have the largest limit.
        "image_bytes": max((most_bytes[model.name] for model in proxy.models if not model.streams), default=None),
        "has_streams": any(model.streams for model in proxy.models),
    }
    template = resources.files("onestream.serving.proxy") / "nginx_template.conf"
    return _filled(_COMMENT.sub("", template.read_text(encoding="utf-8")), values)


def _filled(template: str, values: Mapping[str, object]) -> str:
    def section(found: re.Match[str]) -> str:
        kind, name, inside = found.groups()
        value = values[name]
        if kind == "^":
            return "" if value else _filled(inside, values)
        several = value if isinstance(value, list) else [{}] if value else []
        return "".join(_filled(inside, {**values, **one}) for one in several)

    return _VARIABLE.sub(lambda found: str(values[found[1]]), _SECTION.sub(section, template))
