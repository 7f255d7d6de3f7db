// The part of TraceFile that reads rows back, for a resumed run.
#include <algorithm>

#include "decode_record/write/trace_file.h"

namespace blockscope {
namespace {

/// Rows [first, first + count) of a dataset.
struct Box {
  Box(const h5::Dataset& dataset, std::int64_t first, std::int64_t count)
      : start(dataset.extent.size(), 0), shape(dataset.extent) {
    start[0] = static_cast<hsize_t>(first);
    shape[0] = static_cast<hsize_t>(count);
    for (const hsize_t length : shape) size *= length;
  }
  std::vector<hsize_t> start, shape;
  std::size_t size = 1;  // elements
};

}  // namespace

std::vector<std::int64_t> TraceFile::read_ints(Field field, std::int64_t first,
                                               std::int64_t count) const {
  const h5::Dataset& dataset = *column(field).dataset;
  const Box box(dataset, first, count);
  std::vector<std::int64_t> result(box.size);
  if (result.empty()) return result;
  if (dataset.element == h5::Element::i64) {
    h5::read(dataset, box.start, box.shape, result.data());
    return result;
  }
  std::vector<std::int32_t> narrow(result.size());
  h5::read(dataset, box.start, box.shape, narrow.data());
  std::ranges::copy(narrow, result.begin());
  return result;
}

std::vector<std::uint8_t> TraceFile::read_bytes(Field field, std::int64_t first,
                                                std::int64_t count) const {
  const h5::Dataset& dataset = *column(field).dataset;
  const Box box(dataset, first, count);
  std::vector<std::uint8_t> result(box.size);
  if (box.size != 0) h5::read(dataset, box.start, box.shape, result.data());
  return result;
}

}  // namespace blockscope
