"""The datasets of a trace through h5py, for tests that compare all of them."""

import h5py

# Datasets that have another name since schema 2 (docs/trace_format.md).
SCHEMA_1_NAMES = {
    "/steps/changed": "/steps/transferred",
    "/draft/target_rank_under_draft": "/draft/target_rank",
    "/draft/target_probability_under_draft": "/draft/target_probability",
    "/draft/drafted_rank_under_target": "/draft/draft_rank",
    "/draft/drafted_probability_under_target": "/draft/draft_probability",
}


def stored_path(file, path):
    """Where an open file of any schema holds what schema 2 calls `path`."""
    return SCHEMA_1_NAMES.get(path, path) if int(file.attrs["format_version"]) == 1 else path


def stored(file):
    """The datasets of an open file by path, unread."""
    found = {}
    file.visititems(lambda name, item: found.update({"/" + name: item}) if isinstance(item, h5py.Dataset) else None)
    return found


def datasets(path):
    """Their values by path."""
    with h5py.File(path) as file:
        return {name: item[()] for name, item in stored(file).items()}
