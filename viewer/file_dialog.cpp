#include "viewer/file_dialog.h"

#include <portable_file_dialogs.h>

namespace blockscope {

struct FileDialog::Impl {
  pfd::open_file dialog{"Open traces",
                        "",
                        {"Traces", "*.h5 *.hdf5 *.partial", "All files", "*"},
                        pfd::opt::multiselect};
};

bool FileDialog::available() {
  static const bool kAvailable = pfd::settings::available();
  return kAvailable;
}

FileDialog::FileDialog() : impl_(std::make_unique<Impl>()) {}

FileDialog::~FileDialog() = default;

std::optional<std::vector<std::string>> FileDialog::poll() {
  if (!impl_->dialog.ready(0)) return std::nullopt;
  return impl_->dialog.result();
}

}  // namespace blockscope
