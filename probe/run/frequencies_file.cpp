#include "probe/run/frequencies_file.h"

#include <fmt/format.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/base/sha256.h"
#include "probe/checkpoint/checkpoint.h"
#include "probe/checkpoint/json_object.h"
#include "probe/text/text_json.h"

namespace blockscope {
namespace {

constexpr const char* kFormat = "blockscope-frequencies";
constexpr int64_t kFormatVersion = 1;
constexpr size_t kPieceBytes = size_t{1} << 20U;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr const char* kCountAgain = "blockscope frequencies MODEL text.txt -o FILE makes a table";

/// What the path is instead of a regular file.
const char* what_is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) ? "a folder, pipe or device" : "nothing";
}

/// The length of the piece that begins `text`: up to its last line break, or if there is none, up
/// to its last whole character.
size_t piece_end(std::string_view text) {
  const size_t line = text.rfind('\n');
  if (line != std::string_view::npos) return line + 1;
  size_t end = text.size();
  const auto continues = [&](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
  };
  while (end > 1 && text.size() - end < 4 && continues(end - 1)) --end;
  return end > 1 ? end - 1 : text.size();
}

void add_piece(std::string_view piece, const Tokenizer& tokenizer, const std::string& where,
               FrequencyCounts& counts) {
  std::vector<TokenId> ids;
  try {
    ids = tokenizer.encode(piece, false);
  } catch (const PromptError& error) {
    throw PromptError(fmt::format("{}: {}", where, error.what()));
  }
  for (const TokenId id : ids) {
    if (id >= counts.vocabulary.size) {
      throw CheckpointError(
          fmt::format("tokenizer.json: expected ids below the model's vocabulary size {}, got {}",
                      counts.vocabulary.size, id));
    }
    ++counts.counts[static_cast<size_t>(id)];
  }
  counts.tokens += static_cast<int64_t>(ids.size());
}

void check_vocabulary(const JsonView& root, const VocabularyId& wanted) {
  const JsonView size = root.at("vocab_size");
  if (const int64_t got = size.integer(1, kMost); got != wanted.size) {
    size.fail(fmt::format("{}, the vocabulary size of this model (the table is for another one)",
                          wanted.size),
              kCountAgain);
  }
  const JsonView tokenizer = root.at("tokenizer");
  if (tokenizer.string() != wanted.tokenizer) {
    tokenizer.fail(fmt::format("{}, the SHA-256 of this model's tokenizer.json (the table is for "
                               "another vocabulary)",
                               wanted.tokenizer),
                   kCountAgain);
  }
}

}  // namespace

VocabularyId vocabulary_id(const std::filesystem::path& folder, int64_t vocab_size) {
  return {vocab_size, tokenizer_digest(folder)};
}

std::string to_json(const FrequencyCounts& counts) {
  nlohmann::json pairs = nlohmann::json::array();
  for (size_t id = 0; id < counts.counts.size(); ++id) {
    if (counts.counts[id] > 0) pairs.push_back({id, counts.counts[id]});
  }
  const nlohmann::json json = {{"format", kFormat},
                               {"format_version", kFormatVersion},
                               {"vocab_size", counts.vocabulary.size},
                               {"tokenizer", counts.vocabulary.tokenizer},
                               {"tokens", counts.tokens},
                               {"texts", counts.texts},
                               {"counts", std::move(pairs)}};
  return json.dump() + "\n";
}

void count_tokens(const std::filesystem::path& text, const Tokenizer& tokenizer,
                  FrequencyCounts& counts, const std::function<void(int64_t)>& progress) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(text, error)) {
    throw PromptError(
        fmt::format("{}: expected a text file, got {}", text.string(), what_is_there(text)));
  }
  std::ifstream stream(text, std::ios::binary);
  std::string pending;
  int64_t begin = 0;  // of `pending` in the file
  bool more = static_cast<bool>(stream);
  while (more) {
    const size_t before = pending.size();
    pending.resize(before + kPieceBytes);
    stream.read(pending.data() + before, static_cast<std::streamsize>(kPieceBytes));
    const auto got = static_cast<size_t>(stream.gcount());
    pending.resize(before + got);
    more = got == kPieceBytes;
    const size_t end = more ? piece_end(pending) : pending.size();
    add_piece(std::string_view(pending).substr(0, end), tokenizer,
              fmt::format("{}: the piece from byte {} on", text.string(), begin), counts);
    pending.erase(0, end);
    begin += static_cast<int64_t>(end);
    progress(begin);
  }
  if (stream.bad() || !stream.eof()) {
    throw PromptError(fmt::format("{}: can't be read", text.string()));
  }
  ++counts.texts;
}

std::shared_ptr<const TokenFrequencies> read_frequencies(const std::filesystem::path& file,
                                                         const VocabularyId& wanted) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    throw CheckpointError(fmt::format("{}: expected a regular file, got {}. HINT: {}",
                                      file.string(), what_is_there(file), kCountAgain));
  }
  const std::string text = read_checkpoint_text(file, kMaxTextFileBytes);
  const nlohmann::json json = parse_json(text, file.string(), kCountAgain);
  const JsonView root(json, file.string());
  root.expect_object();
  if (root.at("format").string() != kFormat) {
    root.at("format").fail(fmt::format("\"{}\"", kFormat), kCountAgain);
  }
  root.at("format_version").integer(kFormatVersion, kFormatVersion);
  check_vocabulary(root, wanted);
  const int64_t tokens = root.at("tokens").integer(1, kMost);
  root.at("texts").integer(1, kMost);
  auto result = std::make_shared<TokenFrequencies>();
  result->digest = sha256_hex(text);
  // As in the authors' table, a token that does not occur counts as seen once.
  result->share.assign(static_cast<size_t>(wanted.size),
                       static_cast<float>(1.0 / static_cast<double>(tokens)));
  int64_t sum = 0;
  int64_t last = -1;
  for (const JsonView& pair : root.at("counts").elements()) {
    const std::vector<JsonView> parts = pair.elements();
    if (parts.size() != 2) pair.fail("an id and its count");
    const int64_t id = parts[0].integer(0, wanted.size - 1);
    if (id <= last) {
      parts[0].fail(fmt::format("an id above {}, because ids must rise", last), kCountAgain);
    }
    last = id;
    const int64_t count = parts[1].integer(1, tokens - sum);
    sum += count;
    result->share[static_cast<size_t>(last)] =
        static_cast<float>(static_cast<double>(count) / static_cast<double>(tokens));
  }
  if (sum != tokens) {
    root.at("tokens").fail(fmt::format("{}, the sum of the counts", sum), kCountAgain);
  }
  return result;
}

}  // namespace blockscope
