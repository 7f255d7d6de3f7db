// How the weights of a step are spread over the keys: by distance from the block, by distance from
// the query, and by region.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "probe/record/recorder.h"

namespace blockscope {

int64_t Recorder::keys_before(const TraceMeta& meta, const SequencePass& pass) {
  return meta.bidirectional ? std::min(pass.block_start, pass.context_length) : pass.context_length;
}

/// External key i is position i, and i + B behind a bidirectional model's block.
std::vector<int64_t> Recorder::key_range_ends(const SequencePass& pass) const {
  const TraceMeta& meta = options_.meta;
  const int64_t count = pass.context_length;
  const int64_t before = keys_before(meta, pass);
  const auto traced = traced_.find(pass.sequence);
  const int64_t prompt = traced == traced_.end() ? 0 : traced->second.prompt_length;
  std::vector<int64_t> ends{kFirstPositions, prompt, before, count};
  if (traced != traced_.end()) {
    const std::vector<uint8_t>& regions = traced->second.regions;
    for (size_t i = 1; i < regions.size(); ++i) {
      if (regions[i] != regions[i - 1]) ends.push_back(static_cast<int64_t>(i));
    }
  }
  for (int64_t i = 1; i < kAnswerBlocks; ++i) {  // answer blocks; none begins inside the prompt
    const int64_t begin = pass.block_start - i * meta.block_length;
    if (begin <= prompt) break;
    ends.push_back(begin);
  }
  for (int64_t bin = 0; bin < meta.distance_bins; ++bin) {
    ends.push_back(before + 1 - (int64_t{1} << bin));
    if (meta.bidirectional) ends.push_back(before - 1 + (int64_t{2} << bin));
  }
  for (int64_t& end : ends) end = std::clamp<int64_t>(end, 0, count);
  std::sort(ends.begin(), ends.end());
  return ends;
}

std::vector<std::vector<int64_t>> Recorder::key_ranges(const PassContext& context,
                                                       int64_t layer) const {
  if (options_.meta.regions.empty() || !reads_layer(context, layer)) return {};
  std::vector<std::vector<int64_t>> ranges;
  size_t most = 0;
  for (const SequencePass& pass : context.sequences) {
    ranges.push_back(key_range_ends(pass));
    const int64_t first = options_.meta.first_key(layer, pass.context_length);
    for (int64_t& end : ranges.back()) end = std::max<int64_t>(end - first, 0);
    most = std::max(most, ranges.back().size());
  }
  for (std::vector<int64_t>& ends : ranges) ends.resize(most, ends.back());  // empty ranges
  return ranges;
}

void Recorder::record_spread(const SequencePass& pass, const AttentionReads& reads, size_t s,
                             int64_t layer_index) {
  const WeightSpread& spread = reads.spread;
  if (!spread.entropy.defined()) return;
  const auto row = static_cast<int64_t>(s);
  put_head_rows(s, Field::spread_entropy, layer_index, spread.entropy, row);
  put_head_rows(s, Field::spread_largest, layer_index, spread.largest, row);
  when_on_host(s,
               {spread.largest.select(0, row), spread.range.select(0, row),
                spread.key.select(0, row), spread.offset.select(0, row)},
               [this, s, &pass, layer = reads.layer, ends = spread.ends[s]](
                   const HostTensors& weights) { put_spread(pass, s, layer, ends, weights); });
}

void Recorder::put_spread(const SequencePass& pass, size_t s, int64_t layer,
                          const std::vector<int64_t>& ends, const HostTensors& weights) {
  const auto& [largest, of_range, of_key, of_offset] =
      std::tie(weights[0], weights[1], weights[2], weights[3]);
  const TraceMeta& meta = options_.meta;
  const int64_t layer_index = this->layer_index(layer);
  Slot& slot = slot_at(s);
  const int64_t before = keys_before(meta, pass);
  const int64_t first = meta.first_key(layer, pass.context_length);
  const TracedSequence& traced = traced_.at(pass.sequence);
  const RegionPlaces region(meta.regions.size());
  const SequenceRegions regions{region, traced.prompt_length, pass.block_start,
                                pass.block_start + meta.block_length, traced.regions};
  const auto distances = static_cast<size_t>(meta.distance_bins * (meta.bidirectional ? 2 : 1));
  const auto offsets = static_cast<size_t>(2 * meta.block_length - 1);
  const auto internal_keys = static_cast<size_t>(of_key.size(1));
  const size_t missing = static_cast<size_t>(meta.block_length) - internal_keys;
  std::vector<float> by_distance, by_offset, by_region, by_answer_block;
  for (const int64_t head : meta.heads) {
    const auto values = [&](const at::Tensor& all) {
      return all.const_data_ptr<float>() + head * all.stride(0);
    };
    const bool known = !std::isnan(values(largest)[2]);
    const float nothing = known ? 0.0F : std::numeric_limits<float>::quiet_NaN();
    std::vector<float> distance(distances, nothing);
    std::vector<float> of_region(meta.regions.size(), nothing);
    std::vector<float> of_block(static_cast<size_t>(kAnswerBlocks), nothing);
    int64_t begin = first;
    const float* range = values(of_range);
    for (const int64_t range_end : ends) {
      const int64_t end = first + range_end;
      const float weight = *range++;
      if (begin == end) continue;
      const bool after = begin >= before;
      const int64_t bin = std::min(distance_bin(after ? begin - before + 1 : before - end + 1),
                                   meta.distance_bins - 1);
      const int64_t place = after ? meta.distance_bins + bin : meta.distance_bins - 1 - bin;
      distance.at(static_cast<size_t>(place)) += weight;
      const int64_t position = after ? begin + meta.block_length : begin;
      of_region[regions.at(position, false)] += weight;
      const int64_t back = regions.answer_block(position);
      if (back >= 0) of_block[static_cast<size_t>(back)] += weight;
      begin = end;
    }
    const float* key = values(of_key);
    for (size_t i = 0; i < internal_keys; ++i) {
      const bool mask = i < pass.masked.size() && pass.masked[i];
      of_region[mask ? region.masks : region.decided] += key[i];
    }
    by_distance.insert(by_distance.end(), distance.begin(), distance.end());
    by_region.insert(by_region.end(), of_region.begin(), of_region.end());
    by_answer_block.insert(by_answer_block.end(), of_block.begin(), of_block.end());
    std::vector<float> offset(offsets, nothing);
    if (internal_keys > 0) {
      std::copy_n(values(of_offset), 2 * internal_keys - 1,
                  offset.begin() + static_cast<std::ptrdiff_t>(missing));
    }
    by_offset.insert(by_offset.end(), offset.begin(), offset.end());
  }
  put_floats(slot, Field::spread_distance, layer_index, by_distance.data(), by_distance.size());
  put_floats(slot, Field::spread_region, layer_index, by_region.data(), by_region.size());
  put_floats(slot, Field::spread_answer_block, layer_index, by_answer_block.data(),
             by_answer_block.size());
  put_floats(slot, Field::spread_offset, layer_index, by_offset.data(), by_offset.size());
}

}  // namespace blockscope
