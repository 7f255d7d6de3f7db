// See chat_template.h.
#include "probe/text/chat_template.h"

#include <fmt/format.h>

#include <utility>

#include "decode_record/base/error.h"
#include "probe/text/prompts.h"
#include "probe/text/template_parser.h"
#include "probe/text/template_renderer.h"
#include "probe/text/text_json.h"
#include "probe/text/unicode.h"

namespace blockscope {

using nlohmann::json;

namespace {

constexpr std::size_t kMaxTemplateBytes = 256 * 1024;  // the longest known has 20 KiB
constexpr std::string_view kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + "
    "'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}";

}  // namespace

struct ChatTemplate::Impl {
  std::vector<TemplateNode> nodes;
  SpecialTokens special_tokens;
  std::string where;
  std::uint64_t text_hash = 0;
  bool switches_thinking = false;
  bool reads_date = false;

  static std::shared_ptr<Impl> parse(std::string_view text, const std::string& where,
                                     const SpecialTokens& special_tokens);
  std::string render(const std::vector<ChatMessage>& messages, const ChatOptions& options) const;
  void require_user_turn() const;
};

std::shared_ptr<ChatTemplate::Impl> ChatTemplate::Impl::parse(std::string_view text,
                                                              const std::string& where,
                                                              const SpecialTokens& special_tokens) {
  if (text.size() > kMaxTemplateBytes) {
    throw CheckpointError(fmt::format("{}: expected a template of at most {} bytes, got {}. {}",
                                      where, kMaxTemplateBytes, text.size(), kTemplateAdvice));
  }
  if (const auto position = find_invalid_utf8(text)) {
    throw CheckpointError(fmt::format("{}: expected UTF-8, got a malformed sequence at byte {}. {}",
                                      where, *position, kTemplateAdvice));
  }
  auto impl = std::make_shared<Impl>();
  impl->where = where;
  impl->text_hash = fnv1a_64(text);
  impl->switches_thinking = text.find("enable_thinking") != std::string_view::npos;
  impl->reads_date = text.find("strftime_now") != std::string_view::npos;
  impl->special_tokens = special_tokens;
  impl->nodes = parse_template(text, impl->where);
  impl->require_user_turn();
  return impl;
}

std::string ChatTemplate::Impl::render(const std::vector<ChatMessage>& messages,
                                       const ChatOptions& options) const {
  json context(special_tokens);
  context["add_generation_prompt"] = options.add_generation_prompt;
  if (options.enable_thinking) context["enable_thinking"] = *options.enable_thinking;
  context["tools"] = nullptr;
  context["documents"] = nullptr;
  json& list = context["messages"] = json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  return render_template(nodes, context, where);
}

/// A template may refuse other conversations, but one without the words of the user is of no use.
void ChatTemplate::Impl::require_user_turn() const {
  constexpr std::string_view kProbe = "probe-u";
  std::string got;
  try {
    got = render({{"user", std::string(kProbe)}}, ChatOptions{});
  } catch (const PromptError& error) {
    throw CheckpointError(error.what());
  }
  if (got.find(kProbe) != std::string::npos) return;
  got = json(got).dump(-1, ' ', true, json::error_handler_t::replace);
  if (got.size() > 120) got = got.substr(0, 120) + "...";
  throw CheckpointError(fmt::format(
      "{}: expected a chat template that shows the user's message, got one that renders {}. {}",
      where, got, kTemplateAdvice));
}

ChatTemplate::ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::ChatTemplate(const ChatTemplate&) = default;
ChatTemplate& ChatTemplate::operator=(const ChatTemplate&) = default;

ChatTemplate ChatTemplate::recognise(std::string_view template_text, const std::string& where,
                                     const SpecialTokens& special_tokens) {
  return ChatTemplate(Impl::parse(template_text, where, special_tokens));
}

ChatTemplate ChatTemplate::chatml() { return recognise(kChatMl, "built-in ChatML"); }

namespace {

/// The template in tokenizer_config.json: a string, or the entry "default" of a list.
std::optional<std::string> read_config_template(const JsonView& config) {
  const auto value = config.find("chat_template");
  if (!value) return std::nullopt;
  if (value->raw().is_string()) return value->string();
  for (const JsonView& entry : value->elements()) {
    if (entry.at("name").string() == "default") return entry.at("template").string();
  }
  value->fail("a template named \"default\"");
}

ChatTemplate::SpecialTokens read_special_tokens(const JsonView& config) {
  ChatTemplate::SpecialTokens tokens;
  for (const char* key : {"bos_token", "eos_token", "pad_token", "unk_token", "mask_token",
                          "sep_token", "cls_token"}) {
    const auto value = config.find(key);
    if (!value) continue;
    tokens[key] = value->raw().is_object() ? value->at("content").string() : value->string();
  }
  return tokens;
}

}  // namespace

ChatTemplate ChatTemplate::from_directory(const std::filesystem::path& directory) {
  const std::filesystem::path config_file = directory / "tokenizer_config.json";
  const std::filesystem::path template_file = directory / "chat_template.jinja";
  std::error_code error;
  SpecialTokens special_tokens;
  std::optional<std::string> text;
  std::string where = config_file.string() + ": key chat_template";
  if (std::filesystem::exists(config_file, error)) {
    const json document = parse_json(read_text_file(config_file), config_file.string());
    const JsonView config(document, config_file.string());
    special_tokens = read_special_tokens(config);
    text = read_config_template(config);
  }
  if (std::filesystem::exists(template_file, error)) {
    text = read_text_file(template_file);
    where = template_file.string();
  }
  if (!text) {
    throw CheckpointError(fmt::format(
        "{}: expected chat_template.jinja, or chat_template in tokenizer_config.json, got neither. "
        "HINT: this checkpoint has no chat format; pass the prompt as text",
        directory.string()));
  }
  return ChatTemplate(Impl::parse(*text, where, special_tokens));
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                 const ChatOptions& options) const {
  if (messages.empty()) throw PromptError("messages: expected at least one, got none");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      throw PromptError(fmt::format(
          "messages[{}].role: expected system, user or assistant, got \"{}\". HINT: tool calls are "
          "not supported; render the prompt elsewhere and pass it as text",
          i, role));
    }
    if (const auto position = find_invalid_utf8(messages[i].content)) {
      throw PromptError(
          fmt::format("messages[{}].content: expected UTF-8, got a malformed sequence at byte {}",
                      i, *position));
    }
  }
  return impl_->render(messages, options);
}

const std::string& ChatTemplate::source() const { return impl_->where; }

bool ChatTemplate::switches_thinking() const { return impl_->switches_thinking; }

bool ChatTemplate::reads_date() const { return impl_->reads_date; }

std::uint64_t ChatTemplate::text_hash() const { return impl_->text_hash; }

}  // namespace blockscope
