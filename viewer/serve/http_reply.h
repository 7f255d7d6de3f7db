// What a request says, and the beginning of its answer.
#pragma once

#include <libwebsockets.h>

#include <string>

namespace blockscope {

std::string header_text(lws* wsi, lws_token_indexes header);
/// A parameter of the address; empty if it is not there.
std::string argument(lws* wsi, const char* name);

/// Sends the headers of an answer whose body follows; -1 if the connection is to be closed.
int begin_reply(lws* wsi, unsigned status, const std::string& body);

/// A page with one sentence.
std::string refused_page(const std::string& reason);

}  // namespace blockscope
