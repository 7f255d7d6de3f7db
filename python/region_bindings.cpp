// Regions of keys for blockscope.record(): parts of prompts that have names, and the places of
// positions on the axes `distance` and `region`.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "decode_record/schema/prompt_parts.h"
#include "decode_record/schema/trace_meta.h"
#include "python/bindings.h"

namespace blockscope::python {
namespace {

std::vector<std::uint8_t> to_numbers(const nb::bytes& bytes) {
  const auto* const first = static_cast<const std::uint8_t*>(bytes.data());
  return {first, first + bytes.size()};
}

/// SequenceRegions that owns its parts.
class RegionsHandle {
  std::vector<std::uint8_t> parts_;
  SequenceRegions regions_;

 public:
  RegionsHandle(std::size_t count, std::int64_t prompt_length, std::int64_t block_start,
                std::int64_t block_end, const nb::bytes& parts)
      : parts_(to_numbers(parts)),
        regions_{RegionPlaces(count), prompt_length, block_start, block_end, parts_} {}
  RegionsHandle(const RegionsHandle&) = delete;
  RegionsHandle& operator=(const RegionsHandle&) = delete;

  std::size_t at(std::int64_t position, bool mask) const { return regions_.at(position, mask); }

  /// The external keys stand at the positions [begin, end) outside the block. Neighbours with the
  /// same place on the axes `distance`, `region` and `answer_block` (kAnswerBlocks: on none) make a
  /// range -> the ends of the ranges among the keys, and the place of each on the three axes;
  /// int64.
  std::tuple<nb::bytearray, nb::bytearray, nb::bytearray, nb::bytearray> places(
      const std::vector<std::pair<std::int64_t, std::int64_t>>& parts, std::int64_t bins) const {
    using Place = std::array<std::int64_t, 3>;
    std::vector<std::int64_t> ends;
    std::array<std::vector<std::int64_t>, 3> axes;
    std::optional<Place> last;
    std::int64_t keys = 0;
    for (const auto& [begin, end] : parts) {
      for (std::int64_t position = begin; position < end; ++position, ++keys) {
        const bool after = position >= regions_.block_end;
        const std::int64_t far =
            after ? position - regions_.block_end + 1 : regions_.block_start - position;
        const std::int64_t bin = std::min(distance_bin(std::max<std::int64_t>(far, 1)), bins - 1);
        const std::int64_t back = regions_.answer_block(position);
        const Place place{after ? bins + bin : bins - 1 - bin,
                          static_cast<std::int64_t>(regions_.at(position, false)),
                          back < 0 ? kAnswerBlocks : back};
        if (place != last) {
          if (last) ends.push_back(keys);
          for (std::size_t i = 0; i < axes.size(); ++i) axes[i].push_back(place[i]);
          last = place;
        }
      }
    }
    if (last) ends.push_back(keys);
    return {to_bytearray(ends), to_bytearray(axes[0]), to_bytearray(axes[1]),
            to_bytearray(axes[2])};
  }
};

}  // namespace

void bind_regions(nb::module_& module) {
  module.attr("answer_blocks") = kAnswerBlocks;
  nb::class_<RegionsHandle>(module, "SequenceRegions")
      .def(nb::init<std::size_t, std::int64_t, std::int64_t, std::int64_t, const nb::bytes&>(),
           nb::arg("count"), nb::arg("prompt_length"), nb::arg("block_start"), nb::arg("block_end"),
           nb::arg("parts"))
      .def("at", &RegionsHandle::at, nb::arg("position"), nb::arg("mask"))
      .def("places", &RegionsHandle::places, nb::arg("parts"), nb::arg("bins"));
  nb::class_<PromptParts>(module, "PromptParts")
      .def(
          "__init__",
          [](PromptParts* parts, const nb::bytes& rules, const nb::bytes& where) {
            const std::string name = to_string(where);
            new (parts) PromptParts(region_rules_of(to_string(rules), name), name);
          },
          nb::arg("rules"), nb::arg("where"))
      .def("region_names", &PromptParts::region_names)
      .def(
          "regions_of",
          [](const PromptParts& parts, const nb::bytes& prompt,
             const std::vector<std::int64_t>& ids,
             const std::optional<std::vector<nb::bytes>>& pieces) {
            std::optional<TokenizedText> text;
            if (pieces) text.emplace(to_strings(*pieces));
            const std::vector<std::uint8_t> regions = PromptParts::regions_of(
                parts.parts_of(to_string(prompt), ids, text ? &*text : nullptr));
            return nb::bytes(regions.data(), regions.size());
          },
          nb::arg("prompt"), nb::arg("ids"), nb::arg("pieces").none());
}

}  // namespace blockscope::python
