"""The one error of this package."""


class DataError(ValueError):
    """Data that cannot be found, fetched or read; the message is one sentence with the cure."""
