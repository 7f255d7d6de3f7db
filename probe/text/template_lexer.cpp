// See template_lexer.h.
#include "probe/text/template_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/text/unicode.h"

namespace blockscope {

namespace {

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

std::string unify_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text.push_back(source[i]);
    } else if (i + 1 >= source.size() || source[i + 1] != '\n') {
      text.push_back('\n');
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string source, const std::string& where) : source_(std::move(source)), where_(where) {}

  std::vector<TemplateToken> run() {
    while (position_ < source_.size()) lex_text_and_tag();
    push(TemplateTokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(fmt::format("{}:{}: expected a chat template, got {}. {}", where_,
                                      line_at(position_), what, kTemplateAdvice));
  }

  std::size_t line_at(std::size_t position) const {
    const auto end =
        source_.begin() + static_cast<std::ptrdiff_t>(std::min(position, source_.size()));
    return 1 + static_cast<std::size_t>(std::count(source_.begin(), end, '\n'));
  }

  void push(TemplateTokenKind kind, std::string text) {
    // Lines are counted from the last token on, so that lexing stays linear.
    const std::size_t end = std::min(position_, source_.size());
    for (; counted_ < end; ++counted_) {
      if (source_[counted_] == '\n') ++line_;
    }
    tokens_.push_back({kind, std::move(text), line_});
  }

  /// Text up to the next tag, then the tag.
  void lex_text_and_tag() {
    std::size_t tag = position_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        push(TemplateTokenKind::kText, source_.substr(position_));
        position_ = source_.size();
        return;
      }
      const char second = source_[tag + 1];
      if (second == '%' || second == '{' || second == '#') break;
      ++tag;
    }
    const char second = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    std::string text = source_.substr(position_, tag - position_);
    if (sign == '-') {
      while (!text.empty() && is_blank(text.back())) text.pop_back();
    } else if (sign != '+' && second != '{') {
      strip_indentation(text);
    }
    if (!text.empty()) push(TemplateTokenKind::kText, std::move(text));
    position_ = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
    if (second == '#') {
      lex_comment();
    } else {
      lex_tag(second == '%');
    }
  }

  /// lstrip_blocks: blanks between the start of a line and a block tag are not output.
  void strip_indentation(std::string& text) const {
    const std::size_t newline = text.rfind('\n');
    const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
    const bool at_line_start =
        newline != std::string::npos || position_ == 0 || source_[position_ - 1] == '\n';
    if (at_line_start &&
        std::all_of(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), is_blank)) {
      text.resize(begin);
    }
  }

  /// After the closing braces: '-' eats white space, a block or comment eats one newline.
  void finish_tag(char sign, bool trim_newline) {
    if (sign == '-') {
      while (position_ < source_.size() && is_blank(source_[position_])) ++position_;
    } else if (trim_newline && sign != '+' && position_ < source_.size() &&
               source_[position_] == '\n') {
      ++position_;
    }
  }

  void lex_comment() {
    const std::size_t end = source_.find("#}", position_);
    if (end == std::string::npos) fail("a comment without end");
    const char sign = end > position_ ? source_[end - 1] : '\0';
    position_ = end + 2;
    finish_tag(sign, true);
  }

  void lex_tag(bool is_block) {
    push(is_block ? TemplateTokenKind::kBeginBlock : TemplateTokenKind::kBeginOutput, {});
    const char closer = is_block ? '%' : '}';
    int depth = 0;  // of brackets: "}}" may also close a dictionary
    while (true) {
      while (position_ < source_.size() && is_blank(source_[position_])) ++position_;
      if (position_ >= source_.size()) fail("a tag without end");
      const char c = source_[position_];
      const std::size_t sign_size = c == '-' || (is_block && c == '+') ? 1 : 0;
      if (depth == 0 && source_.compare(position_ + sign_size, 2, {closer, '}'}) == 0) {
        position_ += sign_size + 2;
        push(is_block ? TemplateTokenKind::kEndBlock : TemplateTokenKind::kEndOutput, {});
        finish_tag(sign_size == 1 ? c : '\0', is_block);
        return;
      }
      depth += (c == '(' || c == '[' || c == '{') ? 1 : (c == ')' || c == ']' || c == '}') ? -1 : 0;
      lex_token();
    }
  }

  void lex_token() {
    const char c = source_[position_];
    const std::size_t begin = position_;
    if (is_name_start(c)) {
      while (position_ < source_.size() &&
             (is_name_start(source_[position_]) || is_digit(source_[position_]))) {
        ++position_;
      }
      push(TemplateTokenKind::kName, source_.substr(begin, position_ - begin));
    } else if (is_digit(c)) {
      while (position_ < source_.size() && is_digit(source_[position_])) ++position_;
      if (position_ - begin > 9) fail("a number of more than 9 digits");
      push(TemplateTokenKind::kInteger, source_.substr(begin, position_ - begin));
    } else if (c == '\'' || c == '"') {
      lex_string(c);
    } else {
      lex_operator();
    }
  }

  void lex_operator() {
    for (const std::string_view two : {"==", "!=", "<=", ">="}) {
      if (source_.compare(position_, 2, two) == 0) {
        position_ += 2;
        push(TemplateTokenKind::kOperator, std::string(two));
        return;
      }
    }
    const char c = source_[position_];
    if (std::string_view("()[]{}.,:|~+-*/%=<>").find(c) == std::string_view::npos) {
      fail(fmt::format("the byte 0x{:02X} in a tag", static_cast<unsigned char>(c)));
    }
    ++position_;
    push(TemplateTokenKind::kOperator, std::string(1, c));
  }

  void lex_string(char quote) {
    std::string value;
    for (++position_; position_ < source_.size(); ++position_) {
      const char c = source_[position_];
      if (c == quote) {
        ++position_;
        push(TemplateTokenKind::kString, std::move(value));
        return;
      }
      if (c == '\\' && position_ + 1 < source_.size()) {
        ++position_;
        append_escape(value);
      } else {
        value.push_back(c);
      }
    }
    fail("a string without end");
  }

  /// position_ is on the character after the backslash and stays on the last one used.
  void append_escape(std::string& value) {
    constexpr std::string_view kLetters = "abfnrtv0'\"\\";
    constexpr std::string_view kValues("\a\b\f\n\r\t\v\0'\"\\", 11);
    const char c = source_[position_];
    if (c == '\n') return;
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 0;
    if (digits > 0) {
      unsigned code_point = 0;
      const char* first = source_.data() + position_ + 1;
      if (position_ + digits >= source_.size()) fail("a broken escape in a string");
      const auto [end, code] = std::from_chars(first, first + digits, code_point, 16);
      if (code != std::errc() || end != first + digits ||
          (code_point >= 0xD800 && code_point < 0xE000)) {
        fail("a broken escape in a string");
      }
      append_utf8(value, code_point);
      position_ += digits;
      return;
    }
    const std::size_t known = kLetters.find(c);
    if (known == std::string_view::npos) {
      value.push_back('\\');  // as Python, an unknown escape stays
      value.push_back(c);
    } else {
      value.push_back(kValues[known]);
    }
  }

  std::string source_;
  const std::string& where_;
  std::size_t position_ = 0;
  std::size_t counted_ = 0;
  std::size_t line_ = 1;
  std::vector<TemplateToken> tokens_;
};

}  // namespace

std::vector<TemplateToken> lex_template(std::string_view source, const std::string& where) {
  return Lexer(unify_newlines(source), where).run();
}

}  // namespace blockscope
