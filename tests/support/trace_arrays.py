"""The datasets of a trace through h5py, for tests that compare all of them."""

import h5py


def stored(file):
    """The datasets of an open file by path, unread."""
    found = {}
    file.visititems(lambda name, item: found.update({"/" + name: item}) if isinstance(item, h5py.Dataset) else None)
    return found


def datasets(path):
    """Their values by path."""
    with h5py.File(path) as file:
        return {name: item[()] for name, item in stored(file).items()}
