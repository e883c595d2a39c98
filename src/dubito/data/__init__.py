"""Data: named sets, made toys, and the user's own files."""

from dubito.data import toys
from dubito.data.errors import DataError
from dubito.data.sets import DataSet, Split, available, data_folder, load, names, standardise
from dubito.data.tables import Table, read

__all__ = [
    "DataError",
    "DataSet",
    "Split",
    "Table",
    "available",
    "data_folder",
    "load",
    "names",
    "read",
    "standardise",
    "toys",
]
