#include "viewer/panels/outlet.h"

#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "decode_record/base/error.h"
#include "decode_record/files/scratch_folder.h"

namespace blockscope {

void Outlet::draw_choice() {
  if (browser_ != nullptr && may_save_)
    ImGui::Checkbox("Save next to the trace, on its machine", &beside_);
}

std::string Outlet::place(const std::string& name, const std::string& trace) const {
  if (takes_paths()) return name;
  const std::filesystem::path path(name);
  if (name.empty() || path != path.filename() || name.front() == '.') {
    throw UsageError(fmt::format("expected a name without a folder, got '{}'", name));
  }
  constexpr std::array<std::string_view, 3> kWritten = {".png", ".csv", ".json"};
  if (!std::ranges::count(kWritten, path.extension().string())) {
    throw UsageError(
        fmt::format("expected a name that ends with .png, .csv or .json, got '{}'", name));
  }
  return downloads() ? "" : (std::filesystem::path(trace).parent_path() / name).string();
}

void Outlet::save(const std::string& name, const std::string& trace,
                  const std::function<void(const std::string&)>& write) {
  const std::string path = place(name, trace);
  if (!downloads()) return write(path);
  const ScratchFolder folder("blockscope-download");
  const std::filesystem::path copy = folder.path() / name;
  write(copy.string());
  std::ifstream file(copy, std::ios::binary);
  browser_->download(name, std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace blockscope
