"""The text of an exception of a backend or a model: its type and message, also when making the message fails. Pure."""

from __future__ import annotations


def exception_text(error: BaseException) -> str:
    """`<type>: <text>`. Never raises: it is called where nothing would catch that, in threads that must go on."""
    try:
        text = str(error)
    except Exception:
        text = "<its text cannot be read>"
    return f"{type(error).__name__}: {text}"
