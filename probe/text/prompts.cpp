// See prompts.h.
#include "probe/text/prompts.h"

#include <fmt/format.h>

#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/text/bpe_model.h"
#include "probe/text/text_json.h"

namespace blockscope {

using nlohmann::json;

namespace {

constexpr std::int64_t kMaxGenLength = 1 << 24;

/// The object of one line and its place, for errors like "prompts.jsonl:12: key prompt: ...".
class LineReader {
 public:
  LineReader(json& object, std::string place) : object_(object), place_(std::move(place)) {}

  [[noreturn]] void fail(const std::string& what) const { throw PromptError(place_ + ": " + what); }
  [[noreturn]] void fail(const std::string& key, const std::string& expected,
                         const json& got) const {
    fail(fmt::format("key {}: expected {}, got {}", key, expected, describe_json(got)));
  }

  /// Absent and null are the same.
  json* find(const std::string& key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::int64_t integer(const std::string& key, const json& value, std::int64_t low,
                       std::int64_t high) const {
    const bool in_range = value.is_number_unsigned()
                              ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(high)
                              : value.is_number_integer() && value.get<std::int64_t>() <= high;
    if (!in_range || value.get<std::int64_t>() < low) {
      fail(key, fmt::format("an integer from {} to {}", low, high), value);
    }
    return value.get<std::int64_t>();
  }

 private:
  json& object_;
  std::string place_;
};

std::vector<ChatMessage> read_messages(const LineReader& line, const json& value) {
  if (!value.is_array() || value.empty()) line.fail("messages", "a list of messages", value);
  std::vector<ChatMessage> messages;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const json& item = value[i];
    const std::string key = fmt::format("messages[{}]", i);
    if (!item.is_object()) line.fail(key, "an object with role and content", item);
    for (const char* unsupported : {"tool_calls", "reasoning_content"}) {
      const auto found = item.find(unsupported);
      if (found != item.end() && !found->is_null()) {
        line.fail(
            fmt::format("key {}.{}: not supported. HINT: render the prompt elsewhere and give "
                        "it as \"prompt\"",
                        key, unsupported));
      }
    }
    ChatMessage message;
    for (const auto& [name, target] :
         {std::pair{"role", &message.role}, std::pair{"content", &message.content}}) {
      const auto found = item.find(name);
      if (found == item.end() || !found->is_string()) {
        line.fail(key + "." + name, "a string", found == item.end() ? json() : *found);
      }
      *target = found->get<std::string>();
    }
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      line.fail(key + ".role", "system, user or assistant", item["role"]);
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

std::vector<TokenId> read_ids(const LineReader& line, const json& value) {
  if (!value.is_array() || value.empty()) line.fail("input_ids", "a list of token ids", value);
  std::vector<TokenId> ids;
  ids.reserve(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    ids.push_back(static_cast<TokenId>(
        line.integer(fmt::format("input_ids[{}]", i), value[i], 0, kMaxTokenId)));
  }
  return ids;
}

PromptInput read_input(LineReader& line) {
  std::string found;
  json* value = nullptr;
  for (const char* key : {"prompt", "text", "messages", "input_ids"}) {
    json* candidate = line.find(key);
    if (candidate == nullptr) continue;
    if (value != nullptr) {
      line.fail(fmt::format("expected one of prompt, text, messages, input_ids, got {} and {}",
                            found, key));
    }
    value = candidate;
    found = key;
  }
  if (value == nullptr) {
    line.fail("expected one of prompt, text, messages, input_ids, got none");
  }
  if (found == "messages") return read_messages(line, *value);
  if (found == "input_ids") return read_ids(line, *value);
  if (!value->is_string()) line.fail(found, "a string", *value);
  auto& text = value->get_ref<std::string&>();
  if (text.empty()) line.fail(found, "a text that is not empty", *value);
  return std::move(text);  // it may be long
}

/// The value of the first of these keys that is present; empty if none is.
std::string read_name(const LineReader& line, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const json* value = line.find(key);
    if (value == nullptr) continue;
    if (value->is_number_integer()) return value->dump();
    if (!value->is_string() || value->get_ref<const std::string&>().empty()) {
      line.fail(key, "a string or an integer", *value);
    }
    return value->get<std::string>();
  }
  return {};
}

std::vector<std::string> read_answers(const LineReader& line) {
  const json* value = line.find("answer");
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  std::vector<std::string> answers;
  if (!value->is_array()) line.fail("answer", "a string or a list of strings", *value);
  for (const json& answer : *value) {
    if (!answer.is_string()) line.fail("answer", "a string or a list of strings", answer);
    answers.push_back(answer.get<std::string>());
  }
  return answers;
}

Prompt read_prompt(LineReader& line) {
  Prompt prompt;
  prompt.id = read_name(line, {"id", "doc_id"});
  prompt.task = read_name(line, {"task"});
  prompt.input = read_input(line);
  prompt.answers = read_answers(line);
  if (const json* metric = line.find("metric")) {
    prompt.metric = metric->is_string() ? parse_metric(metric->get<std::string>()) : std::nullopt;
    if (!prompt.metric) {
      line.fail("metric", fmt::format("one of {}", metric_names()), *metric);
    }
  }
  if (const json* length = line.find("gen_length")) {
    prompt.gen_length = line.integer("gen_length", *length, 1, kMaxGenLength);
  }
  return prompt;
}

json parse_line(std::string_view text, const std::string& place) {
  json object;
  try {
    object =
        parse_json(text, place, "every line is one JSON object, such as {\"prompt\": \"...\"}");
  } catch (const CheckpointError& error) {
    throw PromptError(error.what());
  }
  if (!object.is_object()) {
    throw PromptError(
        fmt::format("{}: expected a JSON object, got {}", place, describe_json(object)));
  }
  return object;
}

/// Reads the next line without its line end, at most kMaxPromptLineBytes. Returns false at the end
/// of the stream.
bool read_line(std::istream& stream, std::string& line, const std::string& where,
               std::size_t number) {
  line.clear();
  std::streambuf& buffer = *stream.rdbuf();
  bool any = false;
  for (int c = buffer.sbumpc(); c != std::char_traits<char>::eof(); c = buffer.sbumpc()) {
    any = true;
    if (c == '\n') break;
    if (line.size() >= kMaxPromptLineBytes) {
      throw PromptError(fmt::format("{}:{}: expected a line of at most {} bytes, got a longer one",
                                    where, number, kMaxPromptLineBytes));
    }
    line.push_back(static_cast<char>(c));
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return any;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t") == std::string_view::npos;
}

}  // namespace

PromptSet read_prompts(std::istream& stream, const std::string& where) {
  static const std::set<std::string, std::less<>> known = {
      "prompt", "text",   "messages", "input_ids",  "id",
      "doc_id", "answer", "metric",   "gen_length", "task"};
  PromptSet set;
  std::unordered_map<std::string, std::size_t> line_of_id;
  std::set<std::string> unknown;
  std::string text;
  for (std::size_t number = 1; read_line(stream, text, where, number); ++number) {
    std::string_view line = text;
    if (number == 1 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    if (is_blank(line)) continue;
    const std::string place = fmt::format("{}:{}", where, number);
    json object = parse_line(line, place);
    LineReader reader(object, place);
    Prompt prompt = read_prompt(reader);
    prompt.line = number;
    if (prompt.id.empty()) prompt.id = fmt::format("line-{}", number);
    const auto [first, inserted] = line_of_id.emplace(prompt.id, number);
    if (!inserted) {
      reader.fail(fmt::format("expected an id of its own, got \"{}\", which line {} has", prompt.id,
                              first->second));
    }
    for (const auto& [key, value] : object.items()) {
      if (!known.contains(key) && unknown.insert(key).second) {
        set.warnings.push_back(fmt::format("{}: key \"{}\" is ignored", place, key));
      }
    }
    set.prompts.push_back(std::move(prompt));
  }
  if (set.prompts.empty()) {
    throw PromptError(fmt::format(
        "{}: expected at least one prompt, got none. HINT: one JSON object per line, such as "
        "{{\"prompt\": \"...\"}}",
        where));
  }
  return set;
}

PromptSet read_prompts(const std::filesystem::path& file) {
  std::error_code error;
  std::ifstream stream(file, std::ios::binary);
  if (!stream || std::filesystem::is_directory(file, error)) {
    throw PromptError(fmt::format("{}: expected a readable file, got none", file.string()));
  }
  return read_prompts(stream, file.string());
}

std::vector<TokenId> tokenize_prompt(const Prompt& prompt, const Tokenizer& tokenizer,
                                     const ChatTemplate* chat, const ChatOptions& options,
                                     std::int64_t vocab_size, std::size_t most) {
  const auto fail = [&](const std::string& what) {
    const std::string line = prompt.line > 0 ? fmt::format(" (line {})", prompt.line) : "";
    throw PromptError(fmt::format("prompt {}{}: {}", prompt.id, line, what));
  };
  const auto encode = [&](const std::string& text, bool special) -> std::vector<TokenId> {
    const bool counted = text.size() < kCountedTextBytes;
    try {
      return tokenizer.encode(text, special,
                              counted ? std::numeric_limits<std::size_t>::max() : most);
    } catch (const PromptError& error) {
      fail(error.what());
      throw;
    }
  };
  std::vector<TokenId> ids;
  if (const auto* text = std::get_if<std::string>(&prompt.input)) {
    ids = encode(*text, true);
  } else if (const auto* messages = std::get_if<std::vector<ChatMessage>>(&prompt.input)) {
    if (chat == nullptr) {
      fail(
          "messages need a chat template, but the checkpoint has none. HINT: pass the text as "
          "\"prompt\"");
    }
    ids = encode(chat->render(*messages, options), false);
  } else {
    ids = std::get<std::vector<TokenId>>(prompt.input);
  }
  if (ids.empty()) fail("expected at least one token, got none");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      fail(
          fmt::format("token {}: expected an id from 0 to {}, got {}. HINT: tokenizer and model "
                      "must belong together",
                      i, vocab_size - 1, ids[i]));
    }
  }
  return ids;
}

std::uint64_t fnv1a_64(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char byte : bytes) {
    hash ^= static_cast<unsigned char>(byte);
    hash *= 0x100000001b3U;
  }
  return hash;
}

std::uint64_t prompt_hash(std::span<const TokenId> ids) {
  std::string bytes;
  bytes.reserve(ids.size() * 4);
  for (const TokenId id : ids) {
    const auto value = static_cast<std::uint32_t>(id);
    for (const unsigned shift : {0U, 8U, 16U, 24U}) {
      bytes.push_back(static_cast<char>((value >> shift) & 0xFFU));
    }
  }
  return fnv1a_64(bytes);
}

}  // namespace blockscope
