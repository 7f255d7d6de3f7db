#include "probe/choices/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

template <typename Number>
bool read_number(const std::string& text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

[[noreturn]] void refuse_value(const std::string& range, const std::string& text) {
  throw UsageError(fmt::format("expected {}, got '{}'", range, text));
}

}  // namespace

std::string whole_range(std::uint64_t least, std::uint64_t most) {
  if (most >= kAnyWhole) return fmt::format("a whole number from {}", least);
  return fmt::format("a whole number from {} to {}", least, most);
}

std::uint64_t parse_whole(const std::string& text, std::uint64_t least, std::uint64_t most) {
  std::uint64_t value = 0;
  if (!read_number(text, value) || value < least || value > most) {
    refuse_value(whole_range(least, most), text);
  }
  return value;
}

std::string real_range(const NumberRange& range) {
  const bool low = std::isfinite(range.least);
  const bool high = std::isfinite(range.most);
  if (!low && !high) return "a number";
  if (!high) return fmt::format("a number {} {:g}", range.open ? "above" : "from", range.least);
  if (!low) return fmt::format("a number up to {:g}", range.most);
  return fmt::format("a number {} {:g}{} {:g}", range.open ? "above" : "from", range.least,
                     range.open ? ", up to" : " to", range.most);
}

double parse_real(const std::string& text, const NumberRange& range) {
  double value = 0.0;
  const bool read = read_number(text, value) && std::isfinite(value);
  if (!read || value > range.most || (range.open ? value <= range.least : value < range.least)) {
    refuse_value(real_range(range), text);
  }
  return value;
}

std::string word_range(std::span<const std::string> words) {
  std::vector<std::string> names;
  for (const std::string& word : words) {
    if (!word.empty()) names.push_back(word);
  }
  return list_of(names);
}

std::size_t parse_word(const std::string& text, std::span<const std::string> words) {
  const auto found = std::ranges::find(words, text);
  if (text.empty() || found == words.end()) refuse_value(word_range(words), text);
  return static_cast<std::size_t>(found - words.begin());
}

std::string real_text(double value) { return fmt::format("{}", value); }

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

std::vector<std::string> split_choices(std::string_view text,
                                       const std::vector<std::string>& names) {
  std::vector<std::string> choices;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part(text.substr(begin, end - begin));
    begin = end + 1;
    if (choices.empty() || std::ranges::find(names, part) != names.end()) {
      choices.push_back(part);
    } else {
      choices.back() += "," + part;
    }
  }
  return choices;
}

void refuse_choice(std::string_view kind, std::string_view text, const std::string& what) {
  throw UsageError(fmt::format("{} '{}': {}", kind, text, what));
}

ChoiceText split_choice(std::string_view kind, std::string_view text) {
  ChoiceText result;
  std::size_t begin = 0;
  for (bool first = true; begin <= text.size(); first = false) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part(text.substr(begin, end - begin));
    begin = end + 1;
    if (part.empty()) {
      refuse_choice(kind, text, "expected a name, then options such as k=16, got nothing");
    }
    if (first) {
      result.name = part;
      continue;
    }
    const std::size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    if (std::ranges::any_of(result.options, [&](const auto& o) { return o.first == name; })) {
      refuse_choice(kind, text, fmt::format("expected {} once, got it twice", name));
    }
    std::optional<std::string> value;
    if (equals != std::string::npos) value = part.substr(equals + 1);
    result.options.emplace_back(name, std::move(value));
  }
  return result;
}

namespace choice_detail {

void set_option(std::string_view kind, std::string_view text, const OptionFacts& option,
                const std::optional<std::string>& value,
                const std::function<void(const std::string&)>& set) {
  const auto refuse = [&](const std::string& what) {
    refuse_choice(kind, text, fmt::format("{}: {}", option.name, what));
  };
  const bool is_switch = option.range.empty();
  if (is_switch && value.has_value()) refuse(fmt::format("expected no value, got '{}'", *value));
  if (!is_switch && value.value_or("").empty()) {
    refuse(fmt::format("expected {}, got nothing", option.range));
  }
  try {
    set(value.value_or(""));
  } catch (const UsageError& error) {
    refuse(error.what());
  }
}

std::string unknown_option(const ChoiceFacts& choice, const std::vector<std::string>& names,
                           const std::string& option) {
  if (names.empty()) return fmt::format("{} has no options, got '{}'", choice.name, option);
  return fmt::format("expected {}, got '{}'", list_of(names), option);
}

std::string option_text(const OptionFacts& option, const std::string& value) {
  return option.range.empty() ? option.name : option.name + "=" + value;
}

}  // namespace choice_detail

std::string choice_help(std::string_view kind, const ChoiceFacts& choice,
                        const std::vector<OptionFacts>& options) {
  std::string text = fmt::format("{} {}: {}\n", kind, choice.name, choice.meaning);
  if (!options.empty()) text += "\n";
  for (const OptionFacts& option : options) {
    const std::string form = option.range.empty() ? option.name : option.name + "=...";
    text += fmt::format("  {:<20} {}", form, option.meaning);
    std::vector<std::string> facts;
    if (!option.range.empty()) facts.push_back(option.range);
    if (!option.initial.empty()) facts.push_back("default " + option.initial);
    if (!facts.empty()) {
      text += fmt::format("\n  {:<20} ({}{}{})", "", facts.front(), facts.size() > 1 ? "; " : "",
                          facts.size() > 1 ? facts.back() : "");
    }
    text += "\n";
  }
  text += fmt::format("\nExample: --{} {}\nSource: {}\n", kind, choice.example, choice.source);
  return text;
}

}  // namespace blockscope
