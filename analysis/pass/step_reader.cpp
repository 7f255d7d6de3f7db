#include "analysis/pass/step_reader.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace blockscope {
namespace {

constexpr std::size_t kWindowBytes = std::size_t{256} << 10U;
constexpr std::int64_t kWindowRows = 1024;
constexpr std::size_t kAllWindowsBytes = std::size_t{24} << 20U;

ViewType view_type(const DatasetSpec& spec, const TraceMeta& meta) {
  switch (spec.type) {
    case ElementType::u8:
      return ViewType::u8;
    case ElementType::i32:
      return ViewType::i32;
    case ElementType::f32:
      return ViewType::f32;
    case ElementType::array:
      return meta.array_type == ArrayType::bf16 ? ViewType::bf16 : ViewType::f32;
    case ElementType::i64:
    case ElementType::f16:
      break;
  }
  throw std::logic_error("StepReader: 64-bit columns and maps are not handed to metrics");
}

}  // namespace

StepReader::StepReader(const TraceReader& trace, const FieldPlan& plan, BufferPool& pool)
    : trace_(trace), pool_(pool) {
  for (const Field field : plan.fields) sources_.push_back(make_source(field));
  sources_.push_back(make_source(Field::step_valid));
  const auto windowed =
      std::ranges::count_if(sources_, [](const Source& source) { return source.window_rows > 0; });
  max_windows_bytes_ = kAllWindowsBytes / static_cast<std::size_t>(windowed);
}

StepReader::Source StepReader::make_source(Field field) const {
  const DatasetSpec& spec = spec_of(field);
  const TraceMeta& meta = trace_.info().meta;
  if (!spec.per_row()) throw std::logic_error("StepReader: a field without a row axis");
  Source source;
  source.field = field;
  source.type = view_type(spec, meta);
  source.element_bytes = element_size(spec, meta);
  source.row_bytes = row_bytes(spec, meta);
  source.part_bytes = source.row_bytes;
  const auto* const axes_end = spec.axes.begin() + spec.rank;
  const auto* const layer_axis = std::find(spec.axes.begin(), axes_end, Axis::layer);
  if (layer_axis != axes_end) {
    source.has_layers = true;
    source.layers = meta.layers.size();
    for (const auto* axis = spec.axes.begin() + 1; axis != layer_axis; ++axis) {
      source.outer *= static_cast<std::size_t>(axis_length(*axis, meta));
    }
    source.part_bytes = source.row_bytes / source.outer / std::max<std::size_t>(source.layers, 1);
  }
  source.chunk_per_layer = spec.storage == Storage::row_layer;
  if (spec.storage == Storage::column) {
    const std::size_t rows = kWindowBytes / std::max<std::size_t>(source.row_bytes, 1);
    source.window_rows = std::clamp<std::int64_t>(static_cast<std::int64_t>(rows), 1, kWindowRows);
  }
  return source;
}

std::size_t StepReader::layer_bytes(const std::vector<bool>& slots) const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] && sources_[i].chunk_per_layer) bytes += sources_[i].part_bytes;
  }
  return bytes;
}

std::size_t StepReader::shared_bytes(const std::vector<bool>& slots) const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] && !sources_[i].chunk_per_layer) bytes += sources_[i].row_bytes;
  }
  return bytes;
}

void StepReader::read_valid() {
  const OwnedView values = read_row(sources_.back(), row_);
  const auto bytes = values.view.bytes();
  valid_ = std::make_shared<const std::vector<std::uint8_t>>(bytes.begin(), bytes.end());
  cache_.clear();
  if (!trace_.has(Field::query_end)) return;
  block_start_ = trace_.steps(row_, 1).block_start[0];
  cache_ = trace_.cache(row_);
}

ValidPositions StepReader::valid(std::size_t slot) const {
  if (cache_.empty()) return valid_;
  const auto layer = static_cast<std::size_t>(trace_.info().meta.layers[slot]);
  std::vector<std::uint8_t> computed(valid_->size(), 0);
  for (const PositionRange& range : cache_[layer].query) {
    for (std::int64_t p = range.start; p < range.stop; ++p) {
      const std::int64_t at = p - block_start_;
      if (at < 0 || at >= std::ssize(computed)) continue;
      computed[static_cast<std::size_t>(at)] = (*valid_)[static_cast<std::size_t>(at)];
    }
  }
  if (computed == *valid_) return valid_;
  return std::make_shared<const std::vector<std::uint8_t>>(std::move(computed));
}

void StepReader::prefetch(std::int64_t row) const {
  for (std::size_t i = 0; i + 1 < sources_.size(); ++i) {
    const Source& source = sources_[i];
    if (source.window_rows > 0 || source.chunk_per_layer) continue;
    trace_.prefetch(source.field, row, TraceReader::kAllLayersOfRow);
  }
}

void StepReader::seek(std::int64_t row) {
  row_ = row;
  for (std::size_t i = 0; i + 1 < sources_.size(); ++i) {
    Source& source = sources_[i];
    if (!source.chunk_per_layer) source.row = read_row(source, row);
  }
  read_valid();
}

LayerValues StepReader::layer(std::size_t slot) {
  auto values = std::make_shared<std::vector<OwnedView>>();
  values->reserve(sources_.size() - 1);
  for (std::size_t i = 0; i + 1 < sources_.size(); ++i) {
    values->push_back(layer_of_row(sources_[i], slot));
  }
  return values;
}

OwnedView StepReader::read_row(Source& source, std::int64_t row) {
  const auto view_of = [&](const PooledBytes& bytes, std::size_t offset) {
    return OwnedView{
        bytes.data,
        {bytes.data.get() + offset, source.row_bytes / source.element_bytes, source.type}};
  };
  if (source.window_rows == 0) {
    const PooledBytes bytes = pool_.take(source.row_bytes);
    trace_.read_raw(source.field, row, 1, TraceReader::kAllLayersOfRow, bytes.span());
    return view_of(bytes, 0);
  }
  const std::int64_t first = row / source.window_rows * source.window_rows;
  auto window = std::ranges::find(source.windows, first, &Window::first_row);
  if (window == source.windows.end()) {
    const std::int64_t count = std::min(source.window_rows, trace_.info().num_rows - first);
    const PooledBytes bytes = pool_.take(static_cast<std::size_t>(count) * source.row_bytes);
    trace_.read_raw(source.field, first, count, TraceReader::kAllLayersOfRow, bytes.span());
    const std::size_t keep = std::max<std::size_t>(max_windows_bytes_ / kWindowBytes, 2);
    if (source.windows.size() >= keep) source.windows.pop_back();
    source.windows.push_front(Window{first, bytes});
  } else {
    source.windows.splice(source.windows.begin(), source.windows, window);
  }
  return view_of(source.windows.front().bytes,
                 static_cast<std::size_t>(row - first) * source.row_bytes);
}

OwnedView StepReader::layer_of_row(const Source& source, std::size_t layer) {
  const std::size_t elements = source.part_bytes / source.element_bytes;
  const LayerPart own = layer_part(spec_of(source.field), trace_.info().meta, layer);
  const std::size_t own_elements = own.bytes() / source.element_bytes;
  if (source.chunk_per_layer) {
    const auto place = trace_.locate(source.field, row_, static_cast<std::int64_t>(layer));
    if (place && place->bytes == source.part_bytes) {
      return {nullptr, {}, std::make_shared<LateArray>(LateArray{*place, source.type, own, {}})};
    }
    const PooledBytes bytes = pool_.take(source.part_bytes);
    trace_.read_raw(source.field, row_, 1, static_cast<std::int64_t>(layer), bytes.span());
    drop_padding(bytes.data.get(), own);
    return {bytes.data, {bytes.data.get(), own_elements, source.type}};
  }
  if (!source.has_layers) return source.row;
  if (source.outer == 1) {  // only the last values of it can be padding
    return {source.row.owner, source.row.view.slice(layer * elements, own_elements)};
  }
  const PooledBytes bytes = pool_.take(source.outer * source.part_bytes);
  for (std::size_t i = 0; i < source.outer; ++i) {
    std::memcpy(bytes.data.get() + i * source.part_bytes,
                source.row.view.data + (i * source.layers + layer) * source.part_bytes,
                source.part_bytes);
  }
  return {bytes.data, {bytes.data.get(), source.outer * elements, source.type}};
}

}  // namespace blockscope
