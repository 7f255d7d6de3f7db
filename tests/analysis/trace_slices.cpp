// The last step of make_trace: values to the file's element types, with bad ones where asked for.
#include <algorithm>
#include <limits>
#include <stdexcept>

#include "tests/analysis/trace_rows.h"

namespace blockscope::testing {
namespace {

bool is_float(const DatasetSpec& spec) {
  return spec.type == ElementType::f32 || spec.type == ElementType::array;
}

std::size_t layer_axis(const DatasetSpec& spec) {
  for (std::size_t i = 1; i < spec.rank; ++i) {
    if (spec.axes[i] == Axis::layer) return i;
  }
  return 0;
}

/// One element of `values` becomes NaN or infinite, one vector of `dim` zero, with their chances.
void spoil(Values& values, std::size_t dim, const TraceMakerOptions& o, std::mt19937_64& random) {
  std::uniform_real_distribution<double> chance;
  std::uniform_int_distribution<std::size_t> any(0, values.size() - 1);
  const auto hit = [&](double rate) { return rate > 0.0 && chance(random) < rate; };
  if (hit(o.nan)) values[any(random)] = std::numeric_limits<double>::quiet_NaN();
  if (hit(o.inf)) values[any(random)] = std::numeric_limits<double>::infinity();
  if (dim > 0 && hit(o.zero)) {
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(any(random) / dim * dim);
    std::fill_n(first, dim, 0.0);
  }
}

template <typename Element, typename Convert>
Buffer converted(const Values& values, Convert convert) {
  std::vector<Element> words;
  words.reserve(values.size());
  for (const double value : values) words.push_back(convert(value));
  return make_buffer(std::move(words));
}

}  // namespace

Buffer to_file_type(const Values& values, const DatasetSpec& spec, const TraceMeta& meta) {
  if (spec.type == ElementType::u8) {
    return converted<std::uint8_t>(values, [](double v) { return static_cast<std::uint8_t>(v); });
  }
  if (spec.type == ElementType::i32) {
    return converted<std::int32_t>(values, [](double v) { return static_cast<std::int32_t>(v); });
  }
  if (spec.type == ElementType::array && meta.array_type == ArrayType::bf16) {
    return converted<std::uint16_t>(values,
                                    [](double v) { return to_bf16(static_cast<float>(v)); });
  }
  return converted<float>(values, [](double v) { return static_cast<float>(v); });
}

std::vector<ArraySlice> to_slices(const RowValues& row, const TraceMeta& meta,
                                  const TraceMakerOptions& options, std::mt19937_64& random) {
  std::vector<ArraySlice> slices;
  for (const auto& [field, values] : row) {
    const DatasetSpec& spec = spec_of(field);
    if (!exists_in(spec, meta)) continue;
    const bool per_layer = layer_axis(spec) == 1;
    const std::size_t parts = per_layer ? meta.layers.size() : 1;
    const std::size_t size = values.size() / parts;
    if (values.size() * element_size(spec, meta) != row_bytes(spec, meta)) {
      throw std::logic_error("make_trace: a dataset of another size: " + std::string(spec.path));
    }
    for (std::size_t layer = 0; layer < parts; ++layer) {
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(layer * size);
      Values part(first, first + static_cast<std::ptrdiff_t>(size));
      const auto channels = static_cast<std::size_t>(axis_length(spec.axes[spec.rank - 1], meta));
      if (is_float(spec) && per_layer) {
        spoil(part, spec.type == ElementType::array ? channels : 0, options, random);
      }
      slices.push_back({field, per_layer ? static_cast<std::int64_t>(layer) : kAllLayers,
                        to_file_type(part, spec, meta)});
    }
  }
  return slices;
}

}  // namespace blockscope::testing
