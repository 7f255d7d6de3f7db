// See unicode.h.
#include "probe/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "probe/text/regex.h"

namespace blockscope {

namespace {

unsigned char byte_at(std::string_view text, std::size_t position) {
  return static_cast<unsigned char>(text[position]);
}

struct Sequence {
  std::size_t length;  // of the character, or of the maximal malformed part
  bool valid;
};

/// Table 3-7 of the Unicode standard: the second byte's range depends on the first.
Sequence read_sequence(std::string_view text, std::size_t position) {
  const unsigned char lead = byte_at(text, position);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (std::size_t i = 1; i < length; ++i) {
    if (position + i >= text.size()) return {i, false};
    const unsigned char byte = byte_at(text, position + i);
    if (byte < low || byte > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true};
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// Characters of GPT-2's alphabet that stand for themselves.
constexpr bool is_printable_byte(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<std::uint16_t, 256> make_alphabet() {
  std::array<std::uint16_t, 256> alphabet{};
  std::uint16_t next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    alphabet[byte] = is_printable_byte(byte) ? static_cast<std::uint16_t>(byte) : next++;
  }
  return alphabet;
}

constexpr std::array<std::uint16_t, 256> kAlphabet = make_alphabet();
constexpr std::size_t kAlphabetEnd = 0x144;  // one past the largest character

std::array<std::int16_t, kAlphabetEnd> make_inverse() {
  std::array<std::int16_t, kAlphabetEnd> inverse{};
  inverse.fill(-1);
  for (std::size_t byte = 0; byte < 256; ++byte) {
    inverse[kAlphabet[byte]] = static_cast<std::int16_t>(byte);
  }
  return inverse;
}

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

}  // namespace

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const Sequence sequence = read_sequence(text, i);
    if (!sequence.valid) return i;
    i += sequence.length;
  }
  return std::nullopt;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t i = 0; i < bytes.size();) {
    const Sequence sequence = read_sequence(bytes, i);
    if (sequence.valid) {
      text.append(bytes.substr(i, sequence.length));
    } else {
      text.append("\xEF\xBF\xBD");
    }
    i += sequence.length;
  }
  return text;
}

std::size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

char32_t next_code_point(std::string_view text, std::size_t& position) {
  const std::size_t length = utf8_length(text[position]);
  constexpr std::array<unsigned char, 5> kLeadMask = {0, 0x7F, 0x1F, 0x0F, 0x07};
  auto code_point = static_cast<char32_t>(byte_at(text, position) & kLeadMask[length]);
  for (std::size_t i = 1; i < length; ++i) {
    code_point = (code_point << 6) | (byte_at(text, position + i) & 0x3FU);
  }
  position += length;
  return code_point;
}

void append_utf8(std::string& text, char32_t code_point) {
  std::array<utf8proc_uint8_t, 4> buffer{};
  const utf8proc_ssize_t length =
      utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), buffer.data());
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    text.push_back(static_cast<char>(buffer[static_cast<std::size_t>(i)]));
  }
}

std::u32string to_utf32(std::string_view text) {
  std::u32string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) result.push_back(next_code_point(text, i));
  return result;
}

namespace {

/// The normal form of a short text. Needs four bytes of memory or more for each byte of the text.
std::string normalize_piece(std::string_view text, NormalForm form) {
  const bool compat = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (compat ? UTF8PROC_COMPAT : 0) |
                                     (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE));

  // utf8proc_map would do all of this, but its ordering of marks is quadratic in the length of a
  // run.
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  std::array<utf8proc_int32_t, 32> expansion{};  // the longest decomposition has 18
  int boundary = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto code_point = static_cast<utf8proc_int32_t>(next_code_point(text, i));
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        code_point, expansion.data(), static_cast<utf8proc_ssize_t>(expansion.size()), options,
        &boundary);
    points.insert(points.end(), expansion.begin(),
                  expansion.begin() + std::max<std::ptrdiff_t>(count, 0));
  }
  for (auto begin = points.begin(); begin != points.end();) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, points.end(), [](auto point) { return combining_class(point) == 0; });
    std::stable_sort(begin, end, [](auto left, auto right) {
      return combining_class(left) < combining_class(right);
    });
    begin = end;
  }
  auto length = static_cast<utf8proc_ssize_t>(points.size());
  if (compose) length = utf8proc_normalize_utf32(points.data(), length, options);

  std::string result;
  result.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    append_utf8(result, static_cast<char32_t>(points[static_cast<std::size_t>(i)]));
  }
  return result;
}

}  // namespace

std::string normalize_unicode(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  // No form joins an ASCII character to the characters before it, so pieces can begin at one.
  constexpr std::size_t kPieceBytes = std::size_t{1} << 16;
  std::string result;
  result.reserve(text.size());
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = std::min(begin + kPieceBytes, text.size());
    while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0x80) ++end;
    result += normalize_piece(text.substr(begin, end - begin), form);
    begin = end;
  }
  return result;
}

std::string lowercase(std::string_view text) {
  constexpr char32_t kCapitalIWithDot = 0x130;  // the one character whose lower case is two
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const char32_t code_point = next_code_point(text, i);
    if (code_point == kCapitalIWithDot) {
      result.append("i\xCC\x87");
    } else {
      append_utf8(result, static_cast<char32_t>(
                              utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point))));
    }
  }
  return result;
}

bool is_white_space(char32_t code_point) {
  return (code_point >= 0x09 && code_point <= 0x0D) || code_point == 0x20 || code_point == 0x85 ||
         code_point == 0xA0 || code_point == 0x1680 ||
         (code_point >= 0x2000 && code_point <= 0x200A) || code_point == 0x2028 ||
         code_point == 0x2029 || code_point == 0x202F || code_point == 0x205F ||
         code_point == 0x3000;
}

bool is_numeric(char32_t code_point) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool is_word(char32_t code_point) {
  if (code_point < 0x80) {
    const char32_t lower = code_point | 0x20U;
    return (lower >= 'a' && lower <= 'z') || (code_point >= '0' && code_point <= '9') ||
           code_point == '_';
  }
  // utf8proc has no Alphabetic property, but Oniguruma has one.
  static const Regex word(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])", "word character");
  std::string text;
  append_utf8(text, code_point);
  return word.find(text, 0).has_value();
}

void append_byte_alphabet(std::string& text, unsigned char byte) {
  const unsigned code_point = kAlphabet[byte];
  if (code_point < 0x80) {
    text.push_back(static_cast<char>(code_point));
  } else {
    text.push_back(static_cast<char>(0xC0 | (code_point >> 6)));
    text.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  }
}

std::optional<unsigned char> byte_of_alphabet(char32_t code_point) {
  static const std::array<std::int16_t, kAlphabetEnd> inverse = make_inverse();
  if (code_point >= kAlphabetEnd || inverse[code_point] < 0) return std::nullopt;
  return static_cast<unsigned char>(inverse[code_point]);
}

}  // namespace blockscope
