"""What an optional dependency is called when it is missing."""


class MissingExtra(ImportError):
    """A dependency that few need is not installed; the message is a sentence that says how to get it."""
