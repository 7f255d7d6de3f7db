// The few Unicode operations that tokenization needs: UTF-8 checking and repair, the normal forms
// (on utf8proc's tables), character classes, and GPT-2's byte alphabet.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace blockscope {

/// Byte offset of the first malformed sequence; nullopt if `text` is well-formed UTF-8.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

/// Replaces each maximal malformed part by U+FFFD (Unicode 15, section 3.9, as WHATWG and Rust do).
std::string replace_invalid_utf8(std::string_view bytes);

/// The code point at byte `position`. Moves `position` to the next one. `text` must be well-formed.
char32_t next_code_point(std::string_view text, std::size_t& position);

void append_utf8(std::string& text, char32_t code_point);

/// The number of bytes of the character that starts with `lead`, which must be from well-formed
/// text.
std::size_t utf8_length(char lead);

/// The characters of well-formed text.
std::u32string to_utf32(std::string_view text);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// `text` must be well-formed. O(n log n): runs of combining marks are sorted, not bubbled.
std::string normalize_unicode(std::string_view text, NormalForm form);

/// Lower case character by character, without context (no final sigma), as the package does.
std::string lowercase(std::string_view text);

bool is_white_space(char32_t code_point);  // property White_Space
bool is_numeric(char32_t code_point);      // general categories Nd, Nl, No
bool is_word(char32_t code_point);  // Alphabetic, Mark, Nd, Pc or Join_Control: \w of Rust's regex

/// GPT-2's byte alphabet: every byte as a printable character, U+0021..U+0143.
void append_byte_alphabet(std::string& text, unsigned char byte);
/// The byte that a character of the alphabet stands for; nullopt for any other character.
std::optional<unsigned char> byte_of_alphabet(char32_t code_point);

}  // namespace blockscope
