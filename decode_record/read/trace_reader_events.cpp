// The part of TraceReader that reads what rows computed and took back.
#include <algorithm>

#include "decode_record/read/trace_check_columns.h"
#include "decode_record/read/trace_reader_impl.h"

namespace blockscope {

void TraceReader::Impl::read_cache(std::int64_t row) {
  CacheWindow window;
  window.first = row / kWindowRows * kWindowRows;
  window.count = std::min(kWindowRows, info.num_rows - window.first);
  for (std::size_t k = 0; k < window.parts.size(); ++k) {
    const CacheFields& fields = kCacheFields[k];
    CacheWindow::Part& part = window.parts[k];
    if (window.first > 0) {
      part.begin = raw.column<std::int64_t>(fields.end, window.first - 1, 1).back();
    }
    part.end = raw.column<std::int64_t>(fields.end, window.first, window.count);
    const std::int64_t count = part.end.back() - part.begin;
    part.start = raw.column<std::int32_t>(fields.start, part.begin, count);
    part.stop = raw.column<std::int32_t>(fields.stop, part.begin, count);
  }
  window_ = std::move(window);
}

std::vector<LayerRanges> TraceReader::Impl::cache(std::int64_t row) {
  check_rows(row, 1);
  if (row < window_.first || row >= window_.first + window_.count) read_cache(row);
  const auto layers = static_cast<std::size_t>(info.meta.num_layers);
  std::vector<LayerRanges> result(layers);
  for (std::size_t k = 0; k < window_.parts.size(); ++k) {
    const CacheWindow::Part& part = window_.parts[k];
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::size_t at = static_cast<std::size_t>(row - window_.first) * layers + layer;
      const std::int64_t begin = (at == 0 ? part.begin : part.end[at - 1]) - part.begin;
      LayerRanges& of = result[layer];
      auto& ranges = k == 0 ? of.query : k == 1 ? of.key : of.value;
      for (std::int64_t i = begin; i < part.end[at] - part.begin; ++i) {
        const auto n = static_cast<std::size_t>(i);
        ranges.push_back({part.start[n], part.stop[n]});
      }
    }
  }
  return result;
}

std::vector<LayerRanges> TraceReader::cache(std::int64_t row) const { return impl_->cache(row); }

std::vector<RevokedToken> TraceReader::revoked(std::int64_t row) const {
  return impl_->revoked(row);
}

}  // namespace blockscope
