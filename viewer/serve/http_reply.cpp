#include "viewer/serve/http_reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace blockscope {

std::string header_text(lws* wsi, lws_token_indexes header) {
  std::string text(static_cast<std::size_t>(lws_hdr_total_length(wsi, header)) + 1, '\0');
  const int length = lws_hdr_copy(wsi, text.data(), static_cast<int>(text.size()), header);
  text.resize(static_cast<std::size_t>(std::max(0, length)));
  return text;
}

std::string argument(lws* wsi, const char* name) {
  std::array<char, 256> buffer{};
  const std::string key = std::string(name) + "=";
  const char* found =
      lws_get_urlarg_by_name(wsi, key.c_str(), buffer.data(), static_cast<int>(buffer.size()));
  return found == nullptr ? "" : found;
}

int begin_reply(lws* wsi, unsigned status, const std::string& body) {
  std::array<unsigned char, LWS_PRE + 2048> buffer{};
  unsigned char* const start = buffer.data() + LWS_PRE;
  unsigned char* at = start;
  unsigned char* const end = buffer.data() + buffer.size() - 1;
  const auto add = [&](const char* name, const std::string& value) {
    return lws_add_http_header_by_name(wsi, reinterpret_cast<const unsigned char*>(name),
                                       reinterpret_cast<const unsigned char*>(value.data()),
                                       static_cast<int>(value.size()), &at, end) != 0;
  };
  // The page loads nothing and sends its address, which has the key, to nobody.
  if (lws_add_http_common_headers(wsi, status, "text/html; charset=utf-8", body.size(), &at, end) !=
          0 ||
      add("content-security-policy:",
          "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
          "img-src data: blob:; connect-src 'self' ws: wss:; base-uri 'none'; form-action "
          "'none'") ||
      add("referrer-policy:", "no-referrer") || add("x-content-type-options:", "nosniff") ||
      add("cache-control:", "no-store") ||
      lws_finalize_write_http_header(wsi, start, &at, end) != 0) {
    return -1;
  }
  return 0;
}

std::string refused_page(const std::string& reason) {
  return fmt::format(
      "<!doctype html><meta charset=utf-8><title>Blockscope</title><p "
      "style=\"font:16px sans-serif;max-width:40em;margin:3em auto\">{}</p>\n",
      reason);
}

}  // namespace blockscope
