// What anybody may send to `view --serve`: events, files, links and the headers of a request.
// Either an Error, or values in their ranges.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <variant>

#include "decode_record/base/error.h"
#include "viewer/model/selection_words.h"
#include "viewer/serve/page_access.h"
#include "viewer/serve/page_input.h"

namespace {

using namespace blockscope;

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const PageInput& input) {
  if (const auto* size = std::get_if<PageSize>(&input)) {
    require(size->width >= 1.0F && size->height >= 1.0F && size->scale > 0.0F);
    require(size->width * size->height * size->scale * size->scale <= 8192.0F * 4096.0F);
  }
  if (const auto* move = std::get_if<PointerMove>(&input)) {
    require(std::isfinite(move->x) && std::isfinite(move->y));
  }
  if (const auto* press = std::get_if<PointerButton>(&input)) {
    require(press->button >= 0 && press->button <= 2);
  }
  if (const auto* typed = std::get_if<TypedText>(&input)) require(typed->text.size() <= 4096);
}

template <typename Read>
void attempt(const Read& read) {
  try {
    read();
  } catch (const Error&) {
    // refused, as it should be
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  attempt([&] {
    for (const PageInput& input : read_events(text)) check(input);
  });
  attempt([&] {
    const FileGiven file = read_given_file(text);
    require(!file.name.empty() && file.name.find('/') == std::string::npos && file.name != "..");
  });
  attempt([&] { parse_selection(text); });
  const std::string secret(32, 'a');
  const auto half = static_cast<std::ptrdiff_t>(size / 2);
  const PageRequest request = {
      {text.begin(), text.begin() + half}, {text.begin() + half, text.end()}, text.substr(0, 32)};
  for (const bool any_host : {false, true}) {
    const bool passes = refusal(request, secret, {}, any_host, true).empty();
    require(!passes || request.secret == secret);
  }
  return 0;
}
