// See trace_inventory.h.
#include "decode_record/read/trace_inventory.h"

#include <set>

#include "decode_record/base/error.h"
#include "decode_record/read/raw_trace.h"

namespace blockscope {

std::string hdf5_runtime_version() { return h5::library_version(); }

std::vector<DatasetInfo> list_datasets(const std::string& path) {
  const RawTrace trace(path, RawTrace::Opening::known);
  std::vector<DatasetInfo> result;
  for (const DatasetSpec& spec : kDatasets) {
    if (!trace.has(spec.field)) continue;
    const h5::Dataset& dataset = trace.dataset(spec.field);
    DatasetInfo info;
    info.path = spec.path;
    info.type = h5::name_of(dataset.element);
    info.bytes = static_cast<std::int64_t>(h5::size_of(dataset.element));
    for (const hsize_t extent : trace.shape(spec.field)) {
      info.shape.push_back(static_cast<std::int64_t>(extent));
      info.bytes *= info.shape.back();
    }
    for (std::size_t i = 0; i < spec.rank; ++i) info.axes.emplace_back(to_string(spec.axes[i]));
    info.stored_bytes = static_cast<std::int64_t>(h5::stored_bytes(dataset));
    info.compressed = dataset.filtered;
    result.push_back(std::move(info));
  }
  return result;
}

std::vector<std::string> list_parts(const std::string& path) {
  std::set<std::string> parts;
  try {
    const RawTrace trace(path);
    for (const DatasetSpec& spec : kDatasets) {
      if (!trace.has(spec.field)) continue;
      for (const h5::OpenPart& part : trace.dataset(spec.field).sources) {
        parts.insert(part.file.path);
      }
    }
  } catch (const TraceError&) {
    return {};
  }
  return {parts.begin(), parts.end()};
}

}  // namespace blockscope
