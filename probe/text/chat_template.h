// Chat messages to prompt text. The checkpoint's own Jinja template is evaluated by a small
// renderer (template_parser.h). The renderer knows the constructs that the templates of the
// supported families use (LLaDA, LLaDA2, Dream, Llama 3, Fast-dLLM v2, SDAR, TraDo, Qwen), and its
// text equals that of jinja2 as transformers configures it. A template outside that subset is
// refused by name and line. No code of a checkpoint runs: a template reaches nothing but the
// messages, the special tokens and the date, and its time and memory are bounded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
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
  bool add_generation_prompt = true;  // ends with the head of the assistant's turn
  /// Qwen3 and SDAR: false appends an empty <think> block to the generation prompt. Absent: not
  /// passed to the template, which is what transformers does by default.
  std::optional<bool> enable_thinking;
};

class ChatTemplate {
 public:
  /// bos_token, eos_token, ...: variables of a template.
  using SpecialTokens = std::map<std::string, std::string>;

  /// Parses a template and checks that it renders a message of the user; `where` names its source.
  /// Throws CheckpointError.
  static ChatTemplate recognise(std::string_view template_text, const std::string& where,
                                const SpecialTokens& special_tokens = {});

  /// Reads a checkpoint folder: chat_template.jinja wins over tokenizer_config.json's
  /// `chat_template` (a string, or a list whose entry "default" counts). The template sees the
  /// named special tokens of tokenizer_config.json. Throws CheckpointError if there is none or it
  /// can't be evaluated.
  static ChatTemplate from_directory(const std::filesystem::path& directory);

  /// Nothing but the turns of ChatML, for tests:
  ///   <|im_start|>role\ncontent<|im_end|>\n ... <|im_start|>assistant\n
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

  /// Whether the prompt may hold today's date (strftime_now), so that another day gives other
  /// tokens.
  bool reads_date() const;

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
