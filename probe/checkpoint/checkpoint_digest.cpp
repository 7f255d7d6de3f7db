// The digest that identifies a checkpoint in traces and calibration files. It covers everything
// that decides the model's numbers. It leaves out how the checkpoint is stored or decoded (shards,
// mask id, block length, stop ids), so the same weights always have the same digest.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "decode_record/base/sha256.h"
#include "probe/checkpoint/checkpoint.h"
#include "probe/checkpoint/json_object.h"

namespace blockscope {

namespace {

constexpr std::size_t kSampledBytes = 64 * 1024;  // at each end of a tensor

const std::unordered_set<std::string_view> kStorageKeys = {
    "architecture", "attention_causal", "dtype",         "stop_token_ids",
    "bos_token_id", "pad_token_id",     "mask_token_id", "block_length"};

void update(Sha256& hash, const std::string& text) {
  hash.update({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

}  // namespace

std::string tokenizer_digest(const std::filesystem::path& folder) {
  constexpr std::uintmax_t kMostBytes = std::uintmax_t{256} << 20U;
  return sha256_hex(read_checkpoint_text(folder / "tokenizer.json", kMostBytes));
}

std::string Checkpoint::digest() const {
  Sha256 hash;
  update(hash, "blockscope checkpoint 1\n");
  for (const ResolvedEntry& entry : config_.resolved) {
    if (kStorageKeys.count(entry.key) != 0) continue;
    update(hash, fmt::format("{}={}\n", entry.key, entry.value));
  }
  std::vector<const TensorInfo*> tensors;
  for (const auto& item : by_name_) tensors.push_back(item.second);
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->name < b->name; });
  for (const TensorInfo* tensor : tensors) {
    update(hash, fmt::format("{} {} {}\n", tensor->name, tensor_dtype_name(tensor->dtype),
                             shape_text(tensor->shape)));
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(tensor->data);
    const std::size_t size = static_cast<std::size_t>(tensor->size);
    if (size <= 2 * kSampledBytes) {
      hash.update({bytes, size});
      continue;
    }
    hash.update({bytes, kSampledBytes});
    hash.update({bytes + (size - kSampledBytes), kSampledBytes});
  }
  if (adapter_) update(hash, fmt::format("adapter {}\n", adapter_->digest()));
  std::string text;
  for (const std::uint8_t byte : hash.finish()) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace blockscope
