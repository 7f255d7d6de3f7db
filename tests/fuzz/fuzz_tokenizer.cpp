// Any bytes as tokenizer.json (the part before the first form feed) and as text (the rest), with a
// good tokenizer.json if the first part is empty: either an Error, or ids in range whose decoding
// is valid UTF-8 and, with a byte-level decoder, whose pieces join to it. The text is also read as
// a chat template.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "decode_record/base/error.h"
#include "probe/text/chat_template.h"
#include "probe/text/tokenizer.h"
#include "probe/text/unicode.h"

namespace {

using blockscope::Tokenizer;

constexpr const char* kGood = R"({"version": "1.0", "added_tokens": [
  {"id": 7, "content": "<e>", "special": true, "lstrip": true, "rstrip": true, "normalized": false},
  {"id": 8, "content": "Word", "single_word": true, "normalized": true}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true, "use_regex": true},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ã": 4, "©": 5, "Ã©": 6},
            "merges": ["a b", "Ã ©"]}})";

/// Other decoders drop a text's beginning, or look at several tokens at once.
bool pieces_join(const std::string& document) {
  const auto file = nlohmann::json::parse(document, nullptr, false);
  if (!file.is_object() || !file.contains("decoder")) return true;
  const std::string decoder =
      file["decoder"].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (const char* step : {"ByteFallback", "Metaspace", "Replace", "Strip"}) {
    if (decoder.find(step) != std::string::npos) return false;
  }
  return true;
}

void check_text(const Tokenizer& tokenizer, const std::string& text, bool join) {
  const auto ids = tokenizer.encode(text, true);
  std::string pieces;
  for (const auto id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= tokenizer.vocab_size()) std::abort();
    pieces += tokenizer.token_bytes(id);
  }
  const std::string decoded = tokenizer.decode(ids);
  if (blockscope::find_invalid_utf8(decoded)) std::abort();
  if (join && decoded.find(' ') == std::string::npos &&
      blockscope::replace_invalid_utf8(pieces).find(' ') == std::string::npos &&
      decoded != blockscope::replace_invalid_utf8(pieces)) {
    std::abort();  // spaces: a tokenizer without decoder joins with them
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = input.find('\f');
  const std::string document = input.substr(0, cut);
  const std::string text = cut == std::string::npos ? "ab <e>é Word" : input.substr(cut + 1);
  static const Tokenizer good = Tokenizer::from_json(kGood, "good");
  try {
    if (document.empty()) {
      check_text(good, text, true);
    } else {
      check_text(Tokenizer::from_json(document, "fuzz"), text, pieces_join(document));
    }
  } catch (const blockscope::Error&) {
  }
  if (!document.empty()) return 0;
  try {
    const auto chat = blockscope::ChatTemplate::recognise(text, "fuzz");
    chat.render({{"user", "x"}, {"assistant", "<think>y</think>z"}, {"user", text}}, {});
  } catch (const blockscope::Error&) {
  }
  return 0;
}
