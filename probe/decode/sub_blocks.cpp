#include "probe/decode/sub_blocks.h"

#include <algorithm>

namespace blockscope {
namespace {

/// First position of the sub-block that holds the first mask; 0 without a mask.
size_t open_sub_block(const std::vector<bool>& masked, int64_t sub_block_length) {
  const auto first = std::find(masked.begin(), masked.end(), true);
  if (first == masked.end()) return 0;
  const auto length = static_cast<size_t>(sub_block_length);
  return static_cast<size_t>(first - masked.begin()) / length * length;
}

}  // namespace

std::vector<bool> open_positions(const std::vector<bool>& masked, int64_t sub_block_length) {
  const size_t begin = open_sub_block(masked, sub_block_length);
  const size_t end = begin + static_cast<size_t>(sub_block_length);
  std::vector<bool> open(masked.size(), false);
  for (size_t p = begin; p < std::min(end, masked.size()); ++p) open[p] = masked[p];
  return open;
}

RowRange rows_to_compute(const std::vector<bool>& masked, int64_t sub_block_length, bool cached) {
  const size_t begin = open_sub_block(masked, sub_block_length);
  if (!cached || masked[begin]) return {0, static_cast<int64_t>(masked.size())};
  return {static_cast<int64_t>(begin), sub_block_length};
}

std::vector<int64_t> predicting_rows(const RowRange& computed) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < computed.count; ++row) rows.push_back(std::max<int64_t>(row - 1, 0));
  return rows;
}

std::vector<bool> predicted_positions(const std::vector<bool>& masked, const RowRange& computed) {
  std::vector<bool> predicted(masked.size(), false);
  const auto first = static_cast<size_t>(computed.first);
  predicted[first] = masked[first];
  std::fill_n(predicted.begin() + computed.first + 1, computed.count - 1, true);
  return predicted;
}

bool stop_reached(const std::vector<int64_t>& tokens, int64_t prompt_length,
                  const std::vector<int64_t>& stop_ids, int64_t mask_token_id) {
  for (auto token = tokens.begin() + prompt_length; token != tokens.end(); ++token) {
    if (*token == mask_token_id) return false;
    if (std::find(stop_ids.begin(), stop_ids.end(), *token) != stop_ids.end()) return true;
  }
  return false;
}

}  // namespace blockscope
