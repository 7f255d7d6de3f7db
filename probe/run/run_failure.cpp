#include "probe/run/run_failure.h"

#include <fmt/format.h>

#include <string_view>

namespace blockscope {
namespace {

/// The message without the advice on environment variables at the end of CUDA's messages.
std::string first_words(std::string_view text) {
  for (const std::string_view end :
       {std::string_view("\n"), std::string_view(" Including non-PyTorch memory"),
        std::string_view(" If reserved but unallocated")}) {
    text = text.substr(0, text.find(end));
  }
  return std::string(text);
}

}  // namespace

std::string RunFailure::message() const {
  return hint.empty() ? what : fmt::format("{}. HINT: {}", what, hint);
}

RunFailure split_failure(const std::string& message) {
  constexpr std::string_view kHint = ". HINT: ";
  const size_t at = message.find(kHint);
  if (at == std::string::npos) return {message, ""};
  return {message.substr(0, at), message.substr(at + kHint.size())};
}

RunFailure failure_of(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    std::string what = first_words(text);
    while (what.ends_with('.')) what.pop_back();
    return {"--device: " + what,
            "use a smaller --batch-size or --gen-length, shorter prompts, or --dtype bfloat16; "
            "other processes may use the GPU's memory (nvidia-smi)"};
  }
  const bool lost = dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr ||
                    text.starts_with("CUDA error:");
  if (!lost) return {text, ""};
  if (text.find("no kernel image") != std::string::npos) {
    return {"--device: " + first_words(text),
            "this LibTorch has no code for this GPU; blockscope doctor shows which LibTorch it is"};
  }
  return {
      "--device: " + first_words(text) + " (perhaps caused by an earlier call)",
      "this process can't use the GPU any more; nvidia-smi and dmesg (Xid) show whether the GPU "
      "is healthy"};
}

RunFailure host_memory_failure() {
  return {"out of memory", "use a smaller --batch-size or --gen-length"};
}

}  // namespace blockscope
