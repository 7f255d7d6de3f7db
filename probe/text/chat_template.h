// Chat messages to prompt text, for the ChatML family that this runtime serves: Qwen2, Qwen2.5,
// Qwen3, SDAR / TraDo. A checkpoint's Jinja template is never executed. It is reduced to its tokens
// (white-space control applied, quotes and subscripts unified) and compared with the templates known
// here; a known one is rendered by a few lines of C++ that a test compares with jinja2, any other is
// refused with the advice to pass pre-rendered text.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

struct ChatMessage {
  std::string role;     // "system", "user" or "assistant"
  std::string content;  // UTF-8
};

/// The members of the family differ in these ways only.
enum class ChatFormat {
  kChatMl,         // nothing but the turns
  kQwen2,          // adds "You are a helpful assistant." if there is no system message
  kQwen25,         // adds Qwen2.5's default system message if there is none
  kQwen3,          // strips <think> of earlier turns, honours enable_thinking (SDAR, TraDo, Qwen3)
  kQwen3Instruct,  // Qwen3's layout without thinking (the 2507 instruct models)
};

struct ChatOptions {
  bool add_generation_prompt = true;  // ends with "<|im_start|>assistant\n"
  bool enable_thinking = true;  // kQwen3 only: false appends an empty <think> block to that
};

class ChatTemplate {
 public:
  /// Recognises a template's text; `where` names its source. Throws CheckpointError if unknown.
  static ChatTemplate recognise(std::string_view template_text, const std::string& where);

  /// Reads a checkpoint folder: chat_template.jinja wins over tokenizer_config.json's
  /// `chat_template` (a string, or a list whose entry "default" counts). Throws CheckpointError if
  /// there is none or it is unknown.
  static ChatTemplate from_directory(const std::filesystem::path& directory);

  explicit ChatTemplate(ChatFormat format) : format_(format) {}

  /// The prompt text, to be encoded with add_special_tokens = false. Throws PromptError for an
  /// empty list or a role outside system, user, assistant (tool calls can't be rendered).
  std::string render(const std::vector<ChatMessage>& messages, const ChatOptions& options) const;

  ChatFormat format() const { return format_; }

  /// Name for logs and traces: "chatml", "qwen2", "qwen2.5", "qwen3", "qwen3-instruct".
  std::string_view name() const;

 private:
  ChatFormat format_;
};

}  // namespace blockscope
