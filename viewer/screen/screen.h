// Where the viewer draws, and where its input comes from: a window, a browser, or only memory. A
// screen owns Dear ImGui's context.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "viewer/screen/image.h"

namespace blockscope {

struct ScreenOptions {
  int width = 1440;
  int height = 900;
  float scale = 0.0F;         ///< scale of text and distances; 0: the monitor's
  std::string ini_file = "";  ///< keeps the layout; empty: the layout is not kept
};

/// A file that a person chose in the browser.
struct PickedFile {
  std::string name;
  std::string bytes;
};

/// What only a viewer in a browser has: its files are on another machine than its person.
class Browser {
 public:
  virtual ~Browser() = default;
  /// The browser stores a file, under a name without a folder. Throws Error if no page is
  /// connected.
  virtual void download(const std::string& name, const std::string& bytes) = 0;
  /// Opens the browser's own dialog; the file comes with take_files().
  virtual void pick_file() = 0;
  virtual std::vector<PickedFile> take_files() = 0;
  /// What the page's address shows after '#'.
  virtual void set_link(const std::string& text) = 0;
  /// Links that were followed since the last call.
  virtual std::vector<std::string> take_links() = 0;
  /// True: the page asks before it is closed.
  virtual void set_unsaved(bool unsaved) = 0;
};

class Screen {
 public:
  virtual ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// Waits up to `seconds` for input and processes it; false if no input came.
  virtual bool wait(double seconds) = 0;
  /// Draws one frame through `draw` and shows it. With `picture`, also stores what was drawn.
  virtual void frame(const std::function<void()>& draw, Image* picture = nullptr) = 0;
  /// Ends a wait(), like input does. Any thread may call it.
  virtual void wake() = 0;
  virtual void set_clipboard(const std::string& /*text*/) {}
  virtual Browser* browser() { return nullptr; }

  bool should_close() const { return closing_; }
  void close() { closing_ = true; }
  void keep_open() { closing_ = gone_; }  ///< undoes a close() by the user or the window system
  /// True once nobody can see the screen any more, so that no question can be asked.
  bool gone() const { return gone_; }
  float scale() const { return scale_; }
  /// Files dropped onto the window since the last call.
  std::vector<std::string> take_dropped_files();

 protected:
  Screen() = default;
  /// Makes Dear ImGui's context, with its style and fonts at this scale. `alpha_texels`: the
  /// textures of the fonts have one byte a texel instead of four.
  void begin(float scale, const std::string& ini_file, bool alpha_texels = false);
  void end();  ///< the context; after the backend's end
  void vanish() { closing_ = gone_ = true; }

  std::vector<std::string> dropped_;

 private:
  bool closing_ = false;
  bool gone_ = false;
  bool begun_ = false;
  float scale_ = 1.0F;
  std::string ini_file_;
};

}  // namespace blockscope
