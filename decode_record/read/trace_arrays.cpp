#include "decode_record/read/trace_arrays.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "decode_record/read/raw_trace.h"

namespace blockscope {
namespace {

constexpr std::size_t kWidenBytes = std::size_t{8} << 20U;  // 16-bit words read at one time

/// The type after reading: 16-bit floats are widened.
h5::Element as_read(h5::Element element) {
  return h5::is_half(element) ? h5::Element::f32 : element;
}

void widen_all(h5::Element element, std::span<const std::uint16_t> words, std::byte* out) {
  if (element == h5::Element::bf16) {  // the upper half of a float32, in a loop of its own for speed
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::uint32_t bits = std::uint32_t{words[i]} << 16U;
      std::memcpy(out + i * sizeof(bits), &bits, sizeof(bits));
    }
    return;
  }
  for (const std::uint16_t word : words) {
    const float value = h5::widen(element, word);
    std::memcpy(out, &value, sizeof(value));
    out += sizeof(value);
  }
}

}  // namespace

class TraceArrays::Impl {
 public:
  explicit Impl(const std::string& path) : trace(path, RawTrace::Opening::known) {}
  RawTrace trace;
};

TraceArrays::TraceArrays(const std::string& path) : impl_(std::make_unique<Impl>(path)) {
  for (const DatasetSpec& spec : kDatasets) {
    if (!impl_->trace.has(spec.field)) continue;
    const h5::Element element = impl_->trace.dataset(spec.field).element;
    TraceArray array;
    array.path = spec.path;
    array.type = h5::name_of(as_read(element));
    array.stored_type = h5::name_of(element);
    array.description = spec.description;
    for (std::size_t i = 0; i < spec.rank; ++i) array.axes.emplace_back(to_string(spec.axes[i]));
    for (const hsize_t length : impl_->trace.shape(spec.field)) {
      array.shape.push_back(static_cast<std::int64_t>(length));
    }
    list_.push_back(std::move(array));
  }
}

TraceArrays::TraceArrays(TraceArrays&&) noexcept = default;
TraceArrays& TraceArrays::operator=(TraceArrays&&) noexcept = default;
TraceArrays::~TraceArrays() = default;

void TraceArrays::read(std::string_view path, std::span<const std::int64_t> start,
                       std::span<const std::int64_t> count, std::span<std::byte> out) const {
  const auto array = std::ranges::find(list_, path, &TraceArray::path);
  if (array == list_.end()) {
    throw UsageError(
        fmt::format("{}: {}: this trace has no such dataset", impl_->trace.path(), path));
  }
  const std::size_t rank = array->shape.size();
  bool inside = start.size() == rank && count.size() == rank;
  for (std::size_t i = 0; inside && i < rank; ++i) {
    inside = start[i] >= 0 && count[i] >= 0 && start[i] <= array->shape[i] &&
             count[i] <= array->shape[i] - start[i];
  }
  if (!inside) {
    throw UsageError(fmt::format("{}:{}: expected a box in [{}], got [{}] + [{}]",
                                 impl_->trace.path(), path, fmt::join(array->shape, ", "),
                                 fmt::join(start, ", "), fmt::join(count, ", ")));
  }
  const auto spec = std::ranges::find(kDatasets, path, &DatasetSpec::path);
  const h5::Dataset& dataset = impl_->trace.dataset(spec->field);
  std::size_t elements = 1;
  for (const std::int64_t length : count) elements *= static_cast<std::size_t>(length);
  const std::size_t bytes = elements * h5::size_of(as_read(dataset.element));
  if (out.size() != bytes) {
    throw UsageError(
        fmt::format("{}: expected a buffer of {} bytes, got {}", dataset.name, bytes, out.size()));
  }
  if (elements == 0) return;
  std::vector<hsize_t> from(start.begin(), start.end());
  std::vector<hsize_t> box(count.begin(), count.end());
  if (!h5::is_half(dataset.element)) {
    h5::read_words(dataset, from, box, out.data());
    return;
  }
  // Part of the first axis at a time: the words need half as much memory again as the values.
  const std::size_t row = elements / static_cast<std::size_t>(count[0]);
  const auto most = std::max<hsize_t>(1, kWidenBytes / (2 * row));
  const hsize_t end = from[0] + box[0];
  std::vector<std::uint16_t> words;
  std::byte* to = out.data();
  for (; from[0] < end; from[0] += box[0]) {
    box[0] = std::min(most, end - from[0]);
    words.resize(static_cast<std::size_t>(box[0]) * row);
    h5::read_words(dataset, from, box, words.data());
    widen_all(dataset.element, words, to);
    to += words.size() * sizeof(float);
  }
}

}  // namespace blockscope
