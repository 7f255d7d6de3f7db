"""Ways in which a dataset can lead out of its file, each made by h5py: way(file, name, other), where `other`
is a file with a dataset of that name."""

import h5py
import numpy as np


def to_a_link_of_another_file(file, name, other):
    del file[name]
    file[name] = h5py.ExternalLink(str(other), name)


def to_a_soft_link(file, name, other):
    file.move(name, "/elsewhere")
    file[name] = h5py.SoftLink("/elsewhere")


def made_anew(file, name, change):
    """The dataset of the same type and shape, with a changed list of properties."""
    old = file[name]
    kind, shape = old.id.get_type(), old.shape
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    change(plist, old)
    del file[name]
    h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple(shape), plist)


def to_external_storage(file, name, other):
    raw = other.with_suffix(".raw")
    raw.write_bytes(np.zeros(max(file[name].size, 1), file[name].dtype).tobytes())
    made_anew(file, name, lambda plist, old: plist.set_external(str(raw).encode(), 0, h5py.h5s.UNLIMITED))


def to_a_virtual_dataset(file, name, other):
    def change(plist, old):
        whole = h5py.h5s.create_simple(old.shape)
        plist.set_virtual(whole, other.name.encode(), name.encode(), whole)

    made_anew(file, name, change)


def to_a_filter_of_a_plugin(file, name, other):
    def change(plist, old):
        plist.set_chunk(tuple(max(n, 1) for n in old.shape))
        plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))

    made_anew(file, name, change)


REACHES = (to_a_link_of_another_file, to_a_soft_link, to_external_storage, to_a_virtual_dataset,
           to_a_filter_of_a_plugin)
