// Chat messages to prompt text, for the ChatML family that this runtime serves: Qwen2, Qwen2.5,
// Qwen3, SDAR / TraDo. The checkpoint's own Jinja template is evaluated by a small renderer
// (template_parser.h) that knows the constructs such templates use and compares equal to jinja2.
// A template outside that subset, or whose turns are not ChatML's
//   <|im_start|>role\ncontent<|im_end|>\n ... <|im_start|>assistant\n
// is refused with the advice to pass pre-rendered text. No code of a checkpoint runs: a template
// can't reach anything but the messages.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

struct ChatMessage {
  std::string role;     // "system", "user" or "assistant"
  std::string content;  // UTF-8
};

struct ChatOptions {
  bool add_generation_prompt = true;  // ends with "<|im_start|>assistant\n"
  /// Qwen3 and SDAR: false appends an empty <think> block to the generation prompt. Absent: not
  /// passed to the template, which is what transformers does by default.
  std::optional<bool> enable_thinking;
};

class ChatTemplate {
 public:
  /// Parses a template and checks that it renders ChatML; `where` names its source. Throws
  /// CheckpointError.
  static ChatTemplate recognise(std::string_view template_text, const std::string& where);

  /// Reads a checkpoint folder: chat_template.jinja wins over tokenizer_config.json's
  /// `chat_template` (a string, or a list whose entry "default" counts). The template sees the
  /// named special tokens of tokenizer_config.json (bos_token, ...). Throws CheckpointError if
  /// there is none or it is not ChatML.
  static ChatTemplate from_directory(const std::filesystem::path& directory);

  /// Nothing but the turns; for checkpoints without a template of their own.
  static ChatTemplate chatml();

  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ChatTemplate(const ChatTemplate&);
  ChatTemplate& operator=(const ChatTemplate&);

  /// The prompt text, to be encoded with add_special_tokens = false. Throws PromptError for an
  /// empty list, a role outside system, user, assistant (tool calls can't be rendered), or what the
  /// template itself rejects.
  std::string render(const std::vector<ChatMessage>& messages, const ChatOptions& options) const;

  /// Whether ChatOptions::enable_thinking can change what it renders: the template asks for it.
  bool switches_thinking() const;

  /// Where the template came from: a path, or "built-in ChatML".
  const std::string& source() const;

  /// 64-bit FNV-1a of the template's text, to name it in traces.
  std::uint64_t text_hash() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace blockscope
