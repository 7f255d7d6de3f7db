// Where a saved file goes: to a path on this machine or, from a viewer in a browser, into the
// browser's downloads or next to the trace.
#pragma once

#include <functional>
#include <string>

#include "viewer/screen/screen.h"

namespace blockscope {

class Outlet {
 public:
  Outlet(Browser* browser, bool may_save) : browser_(browser), may_save_(may_save) {}

  /// False: a name without a folder is asked for.
  bool takes_paths() const { return browser_ == nullptr; }
  bool downloads() const { return browser_ != nullptr && !beside_; }
  /// Whether the choice of a name has any effect that a person must see first.
  bool asks() const { return browser_ == nullptr || may_save_; }
  /// The item that chooses between a download and the trace's folder, where there is a choice.
  void draw_choice();
  /// Calls `write` with the path to write; its errors pass through. Throws UsageError for a name
  /// with a folder where none is allowed.
  void save(const std::string& name, const std::string& trace,
            const std::function<void(const std::string& path)>& write);
  /// Where save() puts the file; empty for a download.
  std::string place(const std::string& name, const std::string& trace) const;

 private:
  Browser* browser_;
  bool may_save_;
  bool beside_ = false;
};

}  // namespace blockscope
