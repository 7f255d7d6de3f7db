// The desktop's own file dialog (zenity, kdialog, ...), if the machine has one.
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
  /// Shows the dialog; the window keeps running meanwhile.
  FileDialog();
  ~FileDialog();
  FileDialog(const FileDialog&) = delete;
  FileDialog& operator=(const FileDialog&) = delete;
  /// The chosen files; empty if the user cancelled, nullopt while the dialog is open. Never waits.
  std::optional<std::vector<std::string>> poll();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace blockscope
