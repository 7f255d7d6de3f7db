// See template_value.h.
#include "probe/text/template_value.h"

#include <ctime>

#include "probe/text/unicode.h"

namespace blockscope {

namespace {

/// Python's str.isspace: Unicode white space and the four information separators.
bool is_python_space(char32_t code_point) {
  return is_white_space(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

}  // namespace

bool TemplateValue::truthy() const {
  if (namespace_) return true;
  if (!json_) return false;
  switch (json_->type()) {
    case nlohmann::json::value_t::null:
      return false;
    case nlohmann::json::value_t::boolean:
      return json_->get<bool>();
    case nlohmann::json::value_t::string:
      return !string().empty();
    case nlohmann::json::value_t::array:
    case nlohmann::json::value_t::object:
      return !json_->empty();
    default:
      return *json_ != 0;
  }
}

TemplateValue TemplateValue::member(const std::string& key) const {
  if (namespace_) {
    const auto found = namespace_->find(key);
    return found == namespace_->end() ? TemplateValue() : found->second;
  }
  if (!json_ || !json_->is_object()) return {};
  const auto found = json_->find(key);
  if (found == json_->end()) return {};
  return TemplateValue(std::shared_ptr<const nlohmann::json>(json_, &*found));
}

TemplateValue TemplateValue::element(std::size_t index) const {
  return TemplateValue(std::shared_ptr<const nlohmann::json>(json_, &(*json_)[index]));
}

std::string strip_text(std::string_view text, const std::optional<std::string>& characters,
                       bool left, bool right) {
  const std::u32string set = characters ? to_utf32(*characters) : std::u32string();
  const auto stripped = [&](char32_t code_point) {
    return characters ? set.find(code_point) != std::u32string::npos : is_python_space(code_point);
  };
  std::size_t begin = 0;
  while (left && begin < text.size()) {
    std::size_t next = begin;
    if (!stripped(next_code_point(text, next))) break;
    begin = next;
  }
  std::size_t end = text.size();
  while (right && end > begin) {
    std::size_t start = end - 1;
    while (start > begin && (static_cast<unsigned char>(text[start]) & 0xC0U) == 0x80U) --start;
    std::size_t position = start;
    if (!stripped(next_code_point(text, position))) break;
    end = start;
  }
  return std::string(text.substr(begin, end - begin));
}

std::vector<std::string> split_text(std::string_view text,
                                    const std::optional<std::string>& separator, std::size_t most) {
  std::vector<std::string> parts;
  if (separator) {
    std::size_t begin = 0;
    for (std::size_t found = text.find(*separator);
         found != std::string_view::npos && parts.size() < most;
         found = text.find(*separator, begin)) {
      parts.emplace_back(text.substr(begin, found - begin));
      begin = found + separator->size();
    }
    parts.emplace_back(text.substr(begin));
    return parts;
  }
  std::string word;
  for (std::size_t i = 0; i < text.size() && parts.size() <= most;) {
    const std::size_t start = i;
    if (!is_python_space(next_code_point(text, i))) {
      word.append(text.substr(start, i - start));
    } else if (!word.empty()) {
      parts.push_back(std::exchange(word, {}));
    }
  }
  if (!word.empty()) parts.push_back(std::move(word));
  return parts;
}

std::optional<std::string> change_case(std::string text, bool upper) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) >= 0x80U) return std::nullopt;
    if (upper ? c >= 'a' && c <= 'z' : c >= 'A' && c <= 'Z') c = static_cast<char>(c ^ 0x20);
  }
  return text;
}

std::optional<std::string> format_local_time(const std::string& format) {
  constexpr std::string_view kDirectives = "aAbBdHIjmMpSyY%";
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::string text;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      text.push_back(format[i]);
      continue;
    }
    if (++i >= format.size() || kDirectives.find(format[i]) == std::string_view::npos) return {};
    const char directive[] = {'%', format[i], '\0'};
    char buffer[64];
    text.append(buffer, std::strftime(buffer, sizeof buffer, directive, &parts));
  }
  return text;
}

}  // namespace blockscope
