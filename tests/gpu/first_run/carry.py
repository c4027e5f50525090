"""Only takes the wheels that come with it."""

from __future__ import annotations

from call import Call

Call("carry").finish()
