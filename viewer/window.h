// The GLFW window, visible or hidden, with its OpenGL 3.3 context and Dear ImGui's context.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

struct GLFWwindow;

namespace blockscope {

struct WindowOptions {
  int width = 1440;
  int height = 900;
  float scale = 0.0F;    ///< scale of text and distances; 0: the monitor's
  bool visible = true;   ///< false: for pictures and tests
  std::string ini_file;  ///< keeps the layout; empty: the layout is not kept
};

struct Image {
  int width = 0;
  int height = 0;
  std::vector<std::uint32_t> rgba;  ///< rows from the top
};

/// A part of an image, in pixels from the top left. Parts outside the image are cut off.
Image cropped(const Image& image, float left, float top, float width, float height);

class Window {
 public:
  /// Throws Error without a display or OpenGL 3.3; the message says what to do over SSH.
  explicit Window(const WindowOptions& options);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  bool should_close() const;
  void close();
  void keep_open();  ///< undoes a close() by the user or the window system
  float scale() const { return scale_; }
  /// Waits up to `seconds` for input and processes it; false if no input came.
  bool wait(double seconds);
  /// Draws one frame through `draw` and shows it. With `picture`, also stores what was drawn.
  void frame(const std::function<void()>& draw, Image* picture = nullptr);
  void set_title(const std::string& title);
  void set_clipboard(const std::string& text);
  /// Files dropped onto the window since the last call.
  std::vector<std::string> take_dropped_files();
  /// Ends a wait(), like input does. Any thread may call it.
  static void wake();
  std::string gl_version() const;

 private:
  Image read_pixels() const;

  GLFWwindow* window_ = nullptr;
  float scale_ = 1.0F;
  std::string ini_file_;
  std::vector<std::string> dropped_;
  bool gl_ready_ = false;
};

}  // namespace blockscope
