// See regex.h.
#include "probe/text/regex.h"

#include <fmt/format.h>
#include <oniguruma.h>

#include <array>
#include <memory>
#include <mutex>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/text/unicode.h"

namespace blockscope {

namespace {

constexpr std::size_t kMaxPatternBytes = 16384;  // the longest pattern in use has under 1000
// The first limit is Oniguruma's default, and so the package's. The second one also bounds a
// pattern that fails slowly at every position of a long text.
constexpr unsigned long kRetriesPerMatch = 10'000'000;
constexpr unsigned long kRetriesPerSearch = 100'000'000;

const OnigUChar* bytes_of(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

std::string error_text(int code, OnigErrorInfo* info = nullptr) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> buffer{};
  const int length = info == nullptr ? onig_error_code_to_str(buffer.data(), code)
                                     : onig_error_code_to_str(buffer.data(), code, info);
  const std::string text(reinterpret_cast<const char*>(buffer.data()),
                         static_cast<std::size_t>(length));
  return replace_invalid_utf8(text);
}

struct FreeRegion {
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};
struct FreeMatchParam {
  void operator()(OnigMatchParam* param) const { onig_free_match_param(param); }
};

/// Compilation touches Oniguruma's global tables; searching doesn't.
std::mutex& compile_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

Regex::Regex(std::string_view pattern, const std::string& where) : where_(where) {
  if (pattern.size() > kMaxPatternBytes) {
    throw CheckpointError(fmt::format("{}: expected a pattern of at most {} bytes, got {}", where,
                                      kMaxPatternBytes, pattern.size()));
  }
  const std::lock_guard lock(compile_mutex());
  static const int initialized = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    return onig_initialize(encodings, 1);
  }();
  OnigErrorInfo info{};
  int code = initialized;
  if (code == ONIG_NORMAL) {
    code = onig_new(&handle_, bytes_of(pattern), bytes_of(pattern) + pattern.size(),
                    ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  }
  if (code != ONIG_NORMAL) {
    handle_ = nullptr;
    throw CheckpointError(
        fmt::format("{}: expected a regular expression that Oniguruma compiles, got an error: {}. "
                    "HINT: the file "
                    "is damaged or was written for another engine",
                    where, error_text(code, &info)));
  }
}

Regex::~Regex() {
  if (handle_ != nullptr) onig_free(handle_);
}

Regex::Regex(Regex&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), where_(std::move(other.where_)) {}

Regex& Regex::operator=(Regex&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(where_, other.where_);
  return *this;
}

namespace {

/// The working memory of a search loop, made once for all matches in a text.
class Searcher {
 public:
  Searcher() : region_(onig_region_new()), param_(onig_new_match_param()) {
    onig_initialize_match_param(param_.get());
    onig_set_retry_limit_in_match_of_match_param(param_.get(), kRetriesPerMatch);
    onig_set_retry_limit_in_search_of_match_param(param_.get(), kRetriesPerSearch);
  }

  std::optional<Span> find(OnigRegex handle, std::string_view text, std::size_t start,
                           const std::string& where) {
    const OnigUChar* begin = bytes_of(text);
    const OnigUChar* end = begin + text.size();
    const int result = onig_search_with_param(handle, begin, end, begin + start, end, region_.get(),
                                              ONIG_OPTION_NONE, param_.get());
    if (result == ONIG_MISMATCH) return std::nullopt;
    if (result < 0) {
      throw PromptError(
          fmt::format("{}: this pattern needs too much work on a text of {} bytes at byte {}: {}. "
                      "HINT: give the "
                      "prompt as input_ids",
                      where, text.size(), start, error_text(result)));
    }
    return Span{static_cast<std::size_t>(region_->beg[0]),
                static_cast<std::size_t>(region_->end[0])};
  }

 private:
  std::unique_ptr<OnigRegion, FreeRegion> region_;
  std::unique_ptr<OnigMatchParam, FreeMatchParam> param_;
};

}  // namespace

std::optional<Span> Regex::find(std::string_view text, std::size_t start) const {
  return Searcher().find(handle_, text, start, where_);
}

void Regex::for_each(std::string_view text, const std::function<void(const Span&)>& visit) const {
  Searcher searcher;
  std::size_t position = 0;
  std::optional<std::size_t> last_end;
  while (position <= text.size()) {
    const std::optional<Span> match = searcher.find(handle_, text, position, where_);
    if (!match) break;
    if (match->begin == match->end && last_end == match->end) {
      position += position < text.size() ? utf8_length(text[position]) : 1;
      continue;
    }
    visit(*match);
    position = match->end;
    last_end = match->end;
  }
}

std::string Regex::escape(std::string_view literal) {
  constexpr std::string_view kSpecial = R"(\.+*?()|[]{}^$#&-~)";
  std::string pattern;
  for (const char c : literal) {
    if (kSpecial.find(c) != std::string_view::npos) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

}  // namespace blockscope
