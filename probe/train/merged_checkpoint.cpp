#include "probe/train/merged_checkpoint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "decode_record/files/output_file.h"
#include "probe/checkpoint/json_object.h"
#include "probe/model/block_diffusion_model.h"

namespace blockscope {

namespace fs = std::filesystem;

namespace {

constexpr const char* kWeights = "model.safetensors";
constexpr std::uintmax_t kMostCopied = std::uintmax_t{256} << 20U;

}  // namespace

std::vector<std::string> merged_files(const fs::path& base) {
  constexpr std::array kEndings{".json", ".jinja", ".py", ".model", ".txt"};
  std::vector<std::string> names{kWeights};
  std::error_code error;
  for (fs::directory_iterator at(base, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    const std::string name = at->path().filename().string();
    if (at->is_regular_file(ignored) && !name.ends_with(".index.json") &&
        name != kAdapterConfigName &&  // the merged folder is no adapter
        std::ranges::count(kEndings, at->path().extension().string()) > 0) {
      names.push_back(name);
    }
  }
  std::sort(names.begin() + 1, names.end());
  return names;
}

void export_merged(const Checkpoint& base, const fs::path& folder) {
  fs::create_directories(folder);
  const std::vector<ExpectedTensor> expected = expected_tensors(base.config());
  std::vector<SafetensorsWriter::Entry> entries;
  for (const ExpectedTensor& tensor : expected) {
    entries.push_back({tensor.name, base.at(tensor.name).dtype, tensor.shape});
  }
  SafetensorsWriter writer(folder / kWeights, entries);
  for (const ExpectedTensor& tensor : expected) {
    const TensorDtype dtype = base.at(tensor.name).dtype;
    const at::Tensor host = adapted_weight(base, tensor.name)
                                .to(dtype == TensorDtype::kBF16  ? at::kBFloat16
                                    : dtype == TensorDtype::kF16 ? at::kHalf
                                                                 : at::kFloat)
                                .contiguous();
    writer.write(tensor.name, host.const_data_ptr(), static_cast<std::size_t>(host.nbytes()));
  }
  writer.finish();
  for (const std::string& name : merged_files(base.folder())) {
    if (name == kWeights) continue;
    OutputFile copy((folder / name).string(), true);  // checked before the first step
    copy.write(read_checkpoint_text(base.folder() / name, kMostCopied));
    copy.commit();
  }
}

}  // namespace blockscope
