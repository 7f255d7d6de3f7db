// The part of a trace that is written once: attributes, axis coordinates, texts. It is read back as
// a TraceMeta. Internal to decode_record.
#pragma once

#include <string>

#include "decode_record/hdf5/h5.h"
#include "decode_record/schema/same_layout.h"
#include "decode_record/schema/trace_layout.h"

namespace blockscope {

/// The element type of a dataset in the file.
h5::Element file_element(const DatasetSpec& spec, const TraceMeta& meta);

/// The path of a dataset in a file of `meta.format_version`: schema 1 had other names for five.
std::string stored_path(const DatasetSpec& spec, const TraceMeta& meta);

/// Attributes of the root and of /model, which must exist.
void write_header_attributes(const h5::File& file, const TraceMeta& meta);

/// The bytes of a `fixed` dataset.
std::vector<std::byte> fixed_values(const DatasetSpec& spec, const TraceMeta& meta);

/// Reads everything but `pieces`. Throws NotATrace, UnsupportedVersion or CorruptTrace.
TraceMeta read_header(const h5::File& file);

}  // namespace blockscope
