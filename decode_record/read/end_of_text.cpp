#include "decode_record/read/end_of_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

namespace blockscope {
namespace {

/// As the tokenizers of published models name them.
constexpr std::array<std::string_view, 18> kNames{
    "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|eos|>", "<|end|>",
    "<|role_end|>", "<eos>", "<end_of_turn>", "</s>", "[EOS]", "<|return|>", "<|eot|>",
    "<|endofsentence|>",
    // What fills a text up after its end.
    "<pad>", "<|pad|>", "[PAD]", "<|fim_pad|>"};

}  // namespace

std::set<std::int64_t> stop_ids(const TraceReader& trace) {
  std::set<std::int64_t> ids;
  const auto run = nlohmann::json::parse(trace.info().meta.run_json, nullptr, false);
  if (!run.is_object() || !run.contains("stop_ids") || !run["stop_ids"].is_array()) return ids;
  for (const auto& id : run["stop_ids"]) {
    if (id.is_number_integer()) ids.insert(id.get<std::int64_t>());
  }
  return ids;
}

EndOfText::EndOfText(const TraceReader& trace) : tokens_(stop_ids(trace)) {
  const std::vector<std::int64_t> named = trace.tokens_of_pieces(kNames);
  tokens_.insert(named.begin(), named.end());
}

std::size_t trailing_end_of_text(std::span<const std::int64_t> tokens, const EndOfText& ends) {
  std::size_t count = 0;
  while (count < tokens.size() && ends.contains(tokens[tokens.size() - 1 - count])) ++count;
  return count;
}

std::vector<std::int32_t> end_of_text_runs(std::span<const std::int64_t> tokens,
                                           const EndOfText& ends) {
  std::vector<std::int32_t> runs(tokens.size(), 0);
  for (std::size_t first = 0; first < tokens.size();) {
    std::size_t end = first;
    while (end < tokens.size() && ends.contains(tokens[end])) ++end;
    if (end - first >= 2) {
      std::fill(runs.begin() + static_cast<std::ptrdiff_t>(first),
                runs.begin() + static_cast<std::ptrdiff_t>(end), -1);
      runs[first] = static_cast<std::int32_t>(end - first);
    }
    first = std::max(end, first + 1);
  }
  return runs;
}

std::string end_of_text_label(std::int32_t run, const std::string& text) {
  if (run == 0) return text;
  return run > 0 ? end_of_text_mark(static_cast<std::size_t>(run)) : "\u00B7";
}

std::string end_of_text_mark(std::size_t count) {
  return fmt::format("\u27E8end of text \u00D7{}\u27E9", count);
}

}  // namespace blockscope
