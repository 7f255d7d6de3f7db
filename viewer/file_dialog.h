// The desktop's own file dialog (zenity, kdialog, ...), where there is one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace blockscope {

class FileDialog {
 public:
  /// Whether this machine has a program for it and a display.
  static bool available();
  /// Shows the dialog; it runs beside the window.
  FileDialog();
  ~FileDialog();
  FileDialog(const FileDialog&) = delete;
  FileDialog& operator=(const FileDialog&) = delete;
  /// The files chosen, none when it was cancelled; nullopt while it is open. Never waits.
  std::optional<std::vector<std::string>> poll();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace blockscope
