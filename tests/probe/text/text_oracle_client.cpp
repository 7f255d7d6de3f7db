// Runs our text code for the Python parity checks: one JSON request per line on stdin, one JSON
// answer per line on stdout. Errors come back as {"error": message}.
//   {"tokenizer": path, "texts": [...], "special": bool, "ids": [[...]]} -> {"ids", "decoded",
//    "decoded_skip"}
//   {"template": text, "special_tokens": {...}, "conversations": [{"messages", "options"}]} ->
//    {"rendered": [...]}, null for messages that the template refuses
//   {"metric": name, "pairs": [[prediction, reference], ...]} -> {"scores": [...]}
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/text/chat_template.h"
#include "probe/text/metrics.h"
#include "probe/text/tokenizer.h"

namespace {

using blockscope::ChatMessage;
using blockscope::ChatOptions;
using blockscope::ChatTemplate;
using blockscope::TokenId;
using blockscope::Tokenizer;
using nlohmann::json;

json run_tokenizer(const json& request) {
  const auto path = request.at("tokenizer").get<std::string>();
  const Tokenizer tokenizer =
      path.ends_with(".json") ? Tokenizer::from_file(path) : Tokenizer::from_directory(path);
  json answer = {
      {"ids", json::array()}, {"decoded", json::array()}, {"decoded_skip", json::array()}};
  for (const json& text : request.at("texts")) {
    answer["ids"].push_back(
        tokenizer.encode(text.get<std::string>(), request.at("special").get<bool>()));
  }
  for (const json& ids : request.at("ids")) {
    const auto sequence = ids.get<std::vector<TokenId>>();
    answer["decoded"].push_back(tokenizer.decode(sequence, false));
    answer["decoded_skip"].push_back(tokenizer.decode(sequence, true));
  }
  return answer;
}

json run_template(const json& request) {
  const auto chat =
      ChatTemplate::recognise(request.at("template").get<std::string>(), "template",
                              request.at("special_tokens").get<ChatTemplate::SpecialTokens>());
  json answer = {{"rendered", json::array()}};
  for (const json& conversation : request.at("conversations")) {
    std::vector<ChatMessage> messages;
    for (const json& message : conversation.at("messages")) {
      messages.push_back({message.at("role"), message.at("content")});
    }
    ChatOptions options;
    options.add_generation_prompt = conversation.at("add_generation_prompt");
    if (conversation.contains("enable_thinking")) {
      options.enable_thinking = conversation.at("enable_thinking").get<bool>();
    }
    try {
      answer["rendered"].push_back(chat.render(messages, options));
    } catch (const blockscope::PromptError&) {
      answer["rendered"].push_back(nullptr);
    }
  }
  return answer;
}

json run_metric(const json& request) {
  const auto metric = blockscope::parse_metric(request.at("metric").get<std::string>()).value();
  json answer = {{"scores", json::array()}};
  for (const json& pair : request.at("pairs")) {
    const std::vector<std::string> references = {pair.at(1).get<std::string>()};
    answer["scores"].push_back(
        blockscope::score(metric, pair.at(0).get<std::string>(), references));
  }
  return answer;
}

json run(const json& request) {
  try {
    if (request.contains("tokenizer")) return run_tokenizer(request);
    if (request.contains("template")) return run_template(request);
    return run_metric(request);
  } catch (const blockscope::Error& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) std::cout << run(json::parse(line)).dump() << std::endl;
  return 0;
}
