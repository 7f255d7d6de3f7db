// One compiled Oniguruma pattern. It has the engine, syntax and UTF-8 rules of the `tokenizers`
// package. Backtracking is bounded, so no pattern or text can hang a run.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

struct re_pattern_buffer;  // Oniguruma's compiled pattern

namespace blockscope {

/// Half-open byte range.
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const Span&) const = default;
};

class Regex {
 public:
  /// Throws CheckpointError if the pattern doesn't compile; `where` names file and key.
  Regex(std::string_view pattern, const std::string& where);
  ~Regex();
  Regex(Regex&& other) noexcept;
  Regex& operator=(Regex&& other) noexcept;
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  /// First match at or after byte `start` of `text` (well-formed UTF-8); look-behind and anchors
  /// see all of `text` and nothing else. Throws PromptError if the engine's bounds are exceeded.
  std::optional<Span> find(std::string_view text, std::size_t start) const;

  /// Calls `visit` with every match from left to right; an empty match right after a match is
  /// skipped.
  void for_each(std::string_view text, const std::function<void(const Span&)>& visit) const;

  /// A pattern that matches `literal` and nothing else.
  static std::string escape(std::string_view literal);

 private:
  re_pattern_buffer* handle_ = nullptr;
  std::string where_;
};

}  // namespace blockscope
