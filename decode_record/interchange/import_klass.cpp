#include "decode_record/interchange/import_klass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "decode_record/base/error.h"
#include "decode_record/interchange/import_state.h"
#include "decode_record/json/json_document.h"

namespace blockscope {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kKlassDepth = 8;
constexpr double kMostKl = 1e30;
constexpr double kLeastKl = -0.01;  // a little below 0, because sums are rounded
constexpr std::int64_t kNoToken = -1;

/// One element of all_tokens or decoded_tokens. Positions are absolute.
struct Token {
  std::int64_t position = 0;
  std::int64_t token = 0;
  float confidence = 0.0F;
  ordered_json kl;  // a number, "inf", or null
};

ordered_json read_kl(const JsonNode& node) {
  if (node.is_null()) return nullptr;
  if (node.is_text()) {
    if (node.text() != "inf") node.refuse("a number, \"inf\" or null");
    return "inf";
  }
  return node.number(kLeastKl, kMostKl);
}

Token read_token_info(const JsonNode& node, const ImportedTrajectory& facts) {
  Token token;
  token.position = node.member("position").integer(0, kLargestLength - 1);
  const JsonNode id = node.member("token_id");
  // A run without probabilities for every position writes null for positions it did not decide.
  token.token = id.is_null() ? kNoToken : id.integer(0, facts.vocab_size - 1);
  token.confidence =
      read_confidence(node.member("confidence"), std::numeric_limits<float>::quiet_NaN());
  token.kl = read_kl(node.member("kl_divergence"));
  return token;
}

bool same_confidence(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// The masks of a step, by rising position.
std::vector<Token> read_masks(const JsonNode& step, const ImportedTrajectory& facts) {
  std::vector<Token> tokens;
  for (const JsonNode& node : step.member("all_tokens").elements()) {
    tokens.push_back(read_token_info(node, facts));
    if (tokens.size() > 1 && tokens[tokens.size() - 2].position >= tokens.back().position) {
      node.member("position").refuse("more than the position before it");
    }
  }
  if (tokens.empty()) step.member("all_tokens").refuse("at least one token: a step needs a mask");
  return tokens;
}

class KlassReader {
 public:
  KlassReader(const JsonNode& root, const ImportFacts& facts) : root_(root) {
    trajectory_.tool = "KLASS";
    const auto steps = root.elements();
    if (steps.empty()) root.refuse("at least one step");
    if (!facts.vocab_size || !facts.mask_token_id) {
      throw UsageError(
          fmt::format("{}: needed, because KLASS's files do not say it. HINT: give "
                      "the model's",
                      facts.vocab_size ? "--mask-token-id" : "--vocab-size"));
    }
    trajectory_.vocab_size = *facts.vocab_size;
    trajectory_.mask_token_id = *facts.mask_token_id;
    trajectory_.block_causal = facts.block_causal;
    const std::int64_t first = steps.front().member("step").integer(0, 1);
    dialect_ = first == kKlassDream.first_step ? kKlassDream : kKlassLlada;
  }

  ImportedTrajectory read(const ImportFacts& facts) {
    const auto steps = root_.elements();
    std::vector<std::vector<Token>> masks;
    std::int64_t end = 0;  // of the sequence
    for (const JsonNode& step : steps) {
      masks.push_back(read_masks(step, trajectory_));
      end = std::max(end, masks.back().back().position + 1);
    }
    const SequenceStart start = start_of(steps.front(), masks.front(), end, facts);
    check_import_size(root_, steps.size(), static_cast<std::size_t>(start.gen_length));
    ImportState state(trajectory_, start);
    ordered_json kept = ordered_json::array();
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto number = static_cast<std::int64_t>(i) + dialect_.first_step;
      if (steps[i].member("step").integer(0) != number) {
        steps[i].member("step").refuse(fmt::format("{}, one more than before", number));
      }
      kept.push_back(add_step(steps[i], masks[i], state));
    }
    SequenceEnd ending;
    const JsonNode text = steps.back().member("decoded_text");
    // Dream's text has the prompt in it.
    if (dialect_.name == kKlassLlada.name && !text.is_null()) ending.text = text.text();
    trajectory_.sequences.push_back(state.finish(std::move(ending)));
    const ordered_json all = {{"dialect", dialect_.name}, {"steps", std::move(kept)}};
    trajectory_.kept = all.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    return std::move(trajectory_);
  }

 private:
  /// At the first step every position of the block is a mask. So its masks say where the prompt
  /// ends and how long a block is.
  SequenceStart start_of(const JsonNode& step, const std::vector<Token>& masks, std::int64_t end,
                         const ImportFacts& facts) {
    const JsonNode node = step.member("all_tokens");
    const std::int64_t first = masks.front().position;
    const auto count = static_cast<std::int64_t>(masks.size());
    if (masks.back().position - first + 1 != count) {
      node.complain(
          "expected a mask at every position from the first to the last: at step 1 "
          "nothing of the block is decided");
    }
    if (facts.prompt_length && *facts.prompt_length != first) {
      node.complain(
          fmt::format("expected the first mask at {}, after the prompt that "
                      "--prompt-length or --input-ids gives, got {}",
                      *facts.prompt_length, first));
    }
    if (!facts.block_length && facts.block_causal) {
      throw UsageError(
          "--block-length: needed with --block-causal, because the prompt may reach into the "
          "first block. HINT: give the model's");
    }
    const std::int64_t length = facts.block_length.value_or(count);
    const std::int64_t expected =
        std::min(facts.block_causal ? length - first % length : length, end - first);
    if (count != expected) {
      node.complain(
          fmt::format("expected the {} masks of a block of {}, got {}", expected, length, count));
    }
    check_block_length(node, length, end);
    trajectory_.block_length = length;
    SequenceStart start;
    start.prompt = facts.prompt;
    if (start.prompt.empty()) {
      start.prompt.assign(static_cast<std::size_t>(first), trajectory_.mask_token_id);
    }
    start.gen_length = end - first;
    return start;
  }

  /// The file must list exactly the masks of the block.
  static void check_masks(const JsonNode& step, const std::vector<Token>& masks,
                          const ImportState& state) {
    const std::int64_t origin = state.prompt_length();
    const std::int64_t block =
        state.block_of(std::max<std::int64_t>(masks.front().position - origin, 0));
    const auto [begin, end] = state.range_of(block);
    std::vector<std::int64_t> expected;
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int64_t token = state.frame().generated_tokens[static_cast<std::size_t>(p)];
      if (token == state.frame().mask_token_id) expected.push_back(p + origin);
    }
    for (std::size_t i = 0; i < std::max(expected.size(), masks.size()); ++i) {
      const std::int64_t wanted = i < expected.size() ? expected[i] : -1;
      const std::int64_t got = i < masks.size() ? masks[i].position : -1;
      if (wanted == got) continue;
      const auto word = [](std::int64_t position) {
        return position < 0 ? std::string("none") : fmt::format("position {}", position);
      };
      step.member("all_tokens")
          .complain(fmt::format("element {}: expected the masks that are left in block {}: {}, "
                                "got {}",
                                i, block, word(wanted), word(got)));
    }
  }

  /// Keeps the values that a trace has no dataset for.
  ordered_json add_step(const JsonNode& step, const std::vector<Token>& masks,
                        ImportState& state) const {
    check_masks(step, masks, state);
    std::map<std::int64_t, const Token*> known;
    for (const Token& token : masks) known[token.position] = &token;
    const auto decoded = step.member("decoded_tokens").elements();
    const auto count = static_cast<std::int64_t>(decoded.size());
    if (step.member("decoded_tokens_num").integer(0) != count) {
      step.member("decoded_tokens_num").refuse(fmt::format("{}, as decoded_tokens has", count));
    }
    std::vector<std::int64_t> positions;
    std::vector<std::int64_t> tokens;
    std::vector<float> confidence;
    ordered_json texts = ordered_json::array();
    for (const JsonNode& node : decoded) {
      const Token token = read_token_info(node, trajectory_);
      check_decoded(node, token, known);
      positions.push_back(token.position - state.prompt_length());
      tokens.push_back(token.token);
      confidence.push_back(token.confidence);
      const JsonNode text = node.member("decoded_token");
      texts.push_back(text.is_null() ? ordered_json(nullptr) : ordered_json(text.text()));
    }
    std::vector<BestToken> best;
    ordered_json kl = ordered_json::array();
    for (const Token& token : masks) {
      if (token.token != kNoToken) {
        best.push_back({token.position - state.prompt_length(), token.token, token.confidence});
      }
      kl.push_back(token.kl);
    }
    state.add_step(step, make_transfer(positions, tokens, confidence), std::move(best));
    const JsonNode text = step.member("decoded_text");
    return {{"decoded_text", text.is_null() ? ordered_json(nullptr) : ordered_json(text.text())},
            {"decoded_token", std::move(texts)},
            {"kl_divergence", std::move(kl)}};
  }

  static void check_decoded(const JsonNode& node, const Token& token,
                            const std::map<std::int64_t, const Token*>& known) {
    const auto found = known.find(token.position);
    if (found == known.end()) {
      node.member("position")
          .refuse(
              "a position of all_tokens: only a mask can be decoded (KLASS's fallback may choose "
              "others where a step must decode more than are left; such a run has no trajectory)");
    }
    if (token.token == kNoToken) node.member("token_id").refuse("a token");
    const Token& same = *found->second;
    if (same.token != token.token) {
      node.member("token_id").refuse(fmt::format("{}, as all_tokens has", same.token));
    }
    if (!same_confidence(same.confidence, token.confidence)) {
      node.member("confidence").refuse(fmt::format("{}, as all_tokens has", same.confidence));
    }
    if (same.kl != token.kl) {
      node.member("kl_divergence").refuse(fmt::format("{}, as all_tokens has", same.kl.dump()));
    }
  }

  JsonNode root_;
  KlassDialect dialect_ = kKlassLlada;
  ImportedTrajectory trajectory_;
};

}  // namespace

ImportedTrajectory parse_klass(std::string_view text, const std::string& name,
                               const ImportFacts& facts) {
  const nlohmann::json document = parse_document(text, name, kKlassDepth);
  const JsonNode root(document, name, refuse_trajectory);
  return KlassReader(root, facts).read(facts);
}

}  // namespace blockscope
